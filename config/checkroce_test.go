package config_test

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
)

// The connection manager is chosen in files of both spellings, by a value from outside in DAQIRI's;
// what it cannot do is refused with its place.
func TestConnectManager(t *testing.T) {
	ours := `penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 512, buf_size: 2048}]
  interfaces:
    - {name: a, socket: {mode: server, local: "roce://10.0.0.1:7"}, roce: {connect: cm}, rx: {queues: [{memory_regions: [m]}]}}
`
	theirs := `daqiri:
  cfg:
    version: 1
    stream_type: socket
    master_core: 0
    memory_regions: [{name: DATA_RX_SERVER, kind: host, affinity: 0, num_bufs: 512, buf_size: 2048}]
    interfaces:
      - {name: a, address: 10.0.0.1, socket_config: {mode: server, local_addr: "roce://10.0.0.1:7"}, roce_config: {transport_mode: RC}, rx: {queues: [{name: q, id: 0}]}}
`
	for text, sets := range map[string][]string{ours: nil, theirs: {"interfaces[a].roce.connect=cm"}} {
		var o config.Options
		for _, s := range sets {
			x, err := config.ParseSetting(s)
			if err != nil {
				t.Fatal(err)
			}
			o.Set = append(o.Set, x)
		}
		c, said := config.Load("roce.yaml", []byte(text), o)
		if c == nil || c.Interfaces[0].Sections["roce"]["connect"] != "cm" {
			t.Errorf("%v: %v", sets, said.Err())
		}
	}
	if c, said := config.Load("roce.yaml", []byte(theirs), config.Options{}); c == nil ||
		c.Interfaces[0].Sections["roce"]["connect"] != "" {
		t.Errorf("DAQIRI's file as it is: %v", said.Err())
	}
	for _, how := range []string{"UC", "UD"} {
		if c, said := config.Load("roce.yaml", []byte(strings.Replace(ours, "connect: cm",
			"connect: cm, transport: "+how, 1)), config.Options{}); c == nil ||
			c.Interfaces[0].Sections["roce"]["transport"] != how || said.Err() != nil {
			t.Errorf("%s by rdma_cm: %v", how, said.Err())
		}
	}
	for _, x := range []struct{ from, to, want string }{
		{"rx: {queues: [{memory_regions: [m]}]}", "tx: {queues: [{memory_regions: [m]}]}", "the port has no receive queue: connect: cm"},
		{"connect: cm", "connect: udp", "tcp or cm"},
	} {
		_, said := config.Load("roce.yaml", []byte(strings.Replace(ours, x.from, x.to, 1)), config.Options{})
		if err := said.Err(); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, expected %q", x.to, err, x.want)
		}
	}
}
