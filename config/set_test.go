package config_test

import (
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
)

const settable = `daqiri:
  cfg:
    version: 1
    memory_regions:
    - {name: a, kind: device, affinity: 1, num_bufs: 4096, buf_size: 2048}
    - {name: b, kind: huge, affinity: 0, num_bufs: 4096, buf_size: 2048}
    interfaces:
    - name: tx_port
      address: <0000:00:00.0>
      tx:
        queues: &q
        - {name: q0, id: 0, cpu_core: 3, memory_regions: [a]}
        - {name: q1, id: 1, cpu_core: 4, memory_regions: [a]}
    - name: rx_port
      address: <0000:00:00.0>
      rx:
        queues: *q
    - name: third_port
      address: <0000:00:00.0>
      tx:
        queues: *q
bench_tx:
  interface_name: tx_port
  payload_size: 100
  eth_dst_addr: <00:00:00:00:00:00>
  ip_src_addr: <1.2.3.4>
  ip_dst_addr: 10.0.0.2
  udp_src_port: 1
  udp_dst_port: 2
`

func set(t *testing.T, text string, settings ...string) (*config.Config, config.Diagnostics) {
	t.Helper()
	var o config.Options
	for _, s := range settings {
		x, err := config.ParseSetting(s)
		if err != nil {
			t.Fatal(err)
		}
		if x.String() != s {
			t.Fatalf("%q is written as %q", s, x)
		}
		o.Set = append(o.Set, x)
	}
	return config.Load("file.yaml", []byte(text), o)
}

// Settings reach every kind of place: by number, by name, all elements, keys that are not there,
// and placeholders are gone.
func TestSet(t *testing.T) {
	c, all := set(t, settable, "memory_regions[*].kind=host", "interfaces[tx_port].address=eth0",
		"interfaces[1].address=eth1", "interfaces[third_port].address=eth2", "interfaces[*].rx.queues[q1].cpu_core=-1",
		"bench_tx[0].eth_dst_addr=02:00:00:00:00:01", "bench_tx[tx_port].ip_src_addr=10.0.0.1",
		"bench_tx[*].batch_size=7", "engine=afpacket", "interfaces[0].tx.queues[0].memory_regions=[b, a]",
		"interfaces[tx_port].tx.queues[*].pacing_mbps=100")
	if c == nil {
		t.Fatal(all.Err())
	}
	if n := all.Count(config.Needs); n != 0 {
		t.Errorf("%d needs are left:\n%v", n, all)
	}
	if c.Regions[0].Kind != "host" || c.Regions[1].Kind != "host" || c.Regions[0].NUMA != 1 {
		t.Errorf("regions: %+v", c.Regions)
	}
	tx, rx := c.Interfaces[0], c.Interfaces[1]
	if tx.Address != "eth0" || rx.Address != "eth1" || tx.Engine != "afpacket" || rx.Engine != "afpacket" {
		t.Errorf("%+v\n%+v", tx, rx)
	}
	if rx.Rx.Queues[0].CPUCore != 3 || rx.Rx.Queues[1].CPUCore != -1 || tx.Tx.Queues[1].CPUCore != 4 ||
		c.Interfaces[2].Tx.Queues[1].CPUCore != 4 {
		t.Errorf("an alias, its anchor and another alias: %+v, %+v, %+v", rx.Rx.Queues, tx.Tx.Queues,
			c.Interfaces[2].Tx.Queues)
	}
	if q := tx.Tx.Queues[0]; len(q.Regions) != 2 || q.Regions[0] != "b" || q.Rate != 100e6 {
		t.Errorf("%+v", q)
	}
	b := c.BenchTx[0]
	if b.EthDst.String() != "02:00:00:00:00:01" || b.IPSrc.String() != "10.0.0.1" || b.BatchSize != 7 {
		t.Errorf("%+v", b)
	}
	if s := c.Source("interfaces[0].address"); s.Text != "eth0" || s.At.Line != 9 {
		t.Errorf("source %+v: expected what was set, in the place that it has in the file", s)
	}
}

// What cannot be set is an error that names the setting, and nothing is read.
func TestSetRefuses(t *testing.T) {
	for setting, want := range map[string]string{
		"interfaces[nobody].address=x":         `"interfaces" has no element "nobody"`,
		"interfaces[7].address=x":              `"interfaces" has no element "7"`,
		"interfaces.address=x":                 "interfaces is a list",
		"interfaces[0].adress=x":               "did you mean address?",
		"interfaces[0].rx.flow_isolation=true": `the file has no "rx" there`,
		"version[0]=1":                         `"version" is no list`,
		"version.x=1":                          "has a value and no keys",
		"interfaces[0]=x":                      "an element is a map",
		"memory_regions[0].kind={a: b}":        "is not one of the words",
		"memory_regions[0].access=[[a]]":       "the value is not readable",
		"memory_regions[0].num_bufs=many":      `num_bufs: "many"`,
		"bench_rx[0].queue_id=1":               `the file has no "bench_rx" there`,
	} {
		c, all := set(t, settable, setting)
		if c != nil || !strings.Contains(all.Err().Error(), want) {
			t.Errorf("%s: config %v, %v\nexpected %q", setting, c != nil, all.Err(), want)
		}
	}
	for _, text := range []string{"", "=x", "a", ".a=1", "a.=1", "a[=1", "a[]=1", "a]=1", "a[0]b=1", "a b=1",
		strings.Repeat("a.", 200) + "a=1"} {
		if s, err := config.ParseSetting(text); err == nil {
			t.Errorf("%q is read as %+v", text, s)
		}
	}
}

// A setting says the same as the file with the value in its place.
func TestSetIsAsWritten(t *testing.T) {
	written := strings.NewReplacer("address: <0000:00:00.0>", "address: eth7", "<00:00:00:00:00:00>",
		"02:00:00:00:00:01", "<1.2.3.4>", "10.0.0.1").Replace(settable)
	a, said := config.Load("file.yaml", []byte(written), config.Options{})
	b, also := set(t, settable, "interfaces[*].address=eth7", "bench_tx[*].eth_dst_addr=02:00:00:00:00:01",
		"bench_tx[*].ip_src_addr=10.0.0.1")
	if a == nil || b == nil || !a.Equal(b) || said.Text(nil) != also.Text(nil) {
		t.Errorf("%s\n%s", said.Text(nil), also.Text(nil))
	}
}

func FuzzSet(f *testing.F) {
	f.Add(settable, "interfaces[*].rx.queues[q1].cpu_core", "-1")
	f.Add(settable, "bench_tx[0].udp_src_port", "1-5")
	f.Add("penstock: &a {memory_regions: [*a], interfaces: [{name: x, rx: *a}]}\n", "interfaces[x].rx.interfaces[x].rx",
		"[a, b]")
	f.Add("a: &a [x, x]\nb: &b [*a, *a]\npenstock: {interfaces: *b}", "interfaces[*].rx.queues[*].id", "1")
	if b, err := os.ReadFile("testdata/pair.yaml"); err == nil {
		f.Add(string(b), "interfaces[0].address", "<x>")
	}
	f.Fuzz(func(t *testing.T, text, path, value string) {
		c, all := config.Load("f", []byte(text), config.Options{Set: []config.Setting{{Path: path, Value: value}}})
		if (c == nil) != (all.Err() != nil) {
			t.Fatalf("config %v, error %v", c != nil, all.Err())
		}
		if c != nil {
			if _, err := config.ParseSetting(path + "=" + value); err != nil {
				t.Fatalf("%q was set, and is not read: %v", path, err)
			}
		}
	})
}
