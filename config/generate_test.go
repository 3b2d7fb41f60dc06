package config_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
)

func upHost() *config.Host {
	h := testHost()
	h.Interfaces[1].Up = true
	h.Interfaces[0].Addresses = []netip.Prefix{netip.MustParsePrefix("fd00::1/64"),
		netip.MustParsePrefix("10.1.0.1/24")}
	return h
}

// The same plan and machine give the same bytes, which load without a word of complaint on that
// machine.
func TestGenerate(t *testing.T) {
	for name, p := range map[string]config.Plan{
		"raw":        {Kind: "raw"},
		"raw_queues": {Kind: "raw", Tx: "eth1", Rx: "eth0", Engine: "afpacket", Queues: 2, Payload: 1000},
		"socket":     {Kind: "socket"},
		"socket_tcp": {Kind: "socket", Transport: "tcp", Server: netip.MustParseAddr("fd00::1"),
			Client: netip.MustParseAddr("fd00::2"), Port: 7000, Payload: 60000},
		"transfer": {Kind: "transfer", Share: "/data", Listen: netip.MustParseAddr("10.1.0.1")},
		"local":    {Kind: "transfer"},
		"receive":  {Kind: "receive", Server: netip.MustParseAddr("10.1.0.1"), Port: 7000},
		"reorder":  {Kind: "reorder", Payload: 1400},
		"gpu":      {Kind: "gpu"},
	} {
		text, err := config.Generate(p, upHost())
		if err != nil {
			t.Fatal(name, err)
		}
		checkFile(t, "testdata/generate/"+name+".yaml", text)
		again, err := config.Generate(p, upHost())
		if err != nil || string(again) != string(text) {
			t.Errorf("%s: the second time it is another text", name)
		}
		c, d := config.Load(name, text, config.Options{Host: upHost()})
		if c == nil || d.Count(config.Warning) > 0 || d.Count(config.Needs) > 0 {
			t.Errorf("%s: %s", name, d.Text(text))
		}
	}
}

// The processor takes the place of a GPU only where there is none.
func TestGenerateForGPU(t *testing.T) {
	h := upHost()
	h.GPUs = 1
	text, err := config.Generate(config.Plan{Kind: "gpu"}, h)
	if err != nil {
		t.Fatal(err)
	}
	if c, d := config.Load("f", text, config.Options{Host: h}); c == nil || c.GPURuntime != "auto" || len(d) != 0 {
		t.Errorf("%s\n%s", d.Text(text), text)
	}
}

// Cores are near the interface, each for one task, and core 0 is left for the system.
func TestGenerateCores(t *testing.T) {
	text, err := config.Generate(config.Plan{Kind: "raw"}, upHost())
	if err != nil {
		t.Fatal(err)
	}
	c, _ := config.Load("f", text, config.Options{})
	got := []int{c.Interfaces[0].Tx.Queues[0].CPUCore, c.BenchTx[0].CPUCore, c.Interfaces[1].Rx.Queues[0].CPUCore,
		c.BenchRx[0].CPUCore}
	if !slices.Equal(got, []int{1, 2, 4, 5}) {
		t.Errorf("cores %v", got)
	}
	if b := c.BenchTx[0]; b.EthDst != upHost().Interfaces[1].MAC || b.IPSrc != netip.MustParseAddr("10.1.0.1") ||
		c.Regions[0].NUMA != 0 || c.Regions[1].NUMA != 1 {
		t.Errorf("%+v", b)
	}
	small := upHost()
	small.Cores, small.Nodes = []int{0, 1}, nil
	small.Interfaces[0].Node, small.Interfaces[1].Node = -1, -1
	text, err = config.Generate(config.Plan{Kind: "raw"}, small)
	if err != nil {
		t.Fatal(err)
	}
	c, d := config.Load("f", text, config.Options{Host: small})
	if got := []int{c.Interfaces[0].Tx.Queues[0].CPUCore, c.Interfaces[1].Rx.Queues[0].CPUCore, c.BenchTx[0].CPUCore,
		c.BenchRx[0].CPUCore}; !slices.Equal(got, []int{1, 0, -1, -1}) || len(d) != 0 {
		t.Errorf("cores %v: %s", got, d.Text(text))
	}
}

func TestGenerateRefuses(t *testing.T) {
	for want, p := range map[string]config.Plan{
		`kind "pair"`:                 {Kind: "pair"},
		`no network interface "eth7"`: {Kind: "raw", Tx: "eth7"},
		"named twice":                 {Kind: "raw", Tx: "eth0", Rx: "eth0"},
		"2 receive queues, not 5":     {Kind: "raw", Queues: 5},
		"does not fit into the MTU":   {Kind: "raw", Payload: 9000},
		"xdp or afpacket, not dpdk":   {Kind: "raw", Engine: "dpdk"},
		`transport "sctp"`:            {Kind: "socket", Transport: "sctp"},
		"port 70000":                  {Kind: "socket", Port: 70000},
		"a payload of 70000 bytes":    {Kind: "socket", Payload: 70000},
		"port -1":                     {Kind: "transfer", Port: -1},
		"port 65535":                  {Kind: "receive", Port: 65535},
		"whole samples of 2 bytes":    {Kind: "reorder", Payload: 1023},
		"at most 65502 bytes":         {Kind: "gpu", Payload: 65504},
	} {
		text, err := config.Generate(p, upHost())
		if text != nil || !errors.Is(err, config.ErrGenerate) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\n%s", want, err, text)
		}
	}
	if _, err := config.Generate(config.Plan{Kind: "raw"}, testHost()); err == nil ||
		!strings.Contains(err.Error(), "has 1 interface") {
		t.Error(err)
	}
}
