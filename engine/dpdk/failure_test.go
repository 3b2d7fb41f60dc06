//go:build dpdk && !race && !asan

package dpdk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// TestFailures: whatever EAL or a driver refuses is an error of the engine's that says what to do,
// and the process lives: it can ask again. EAL starts once in a process, so each attempt has its
// own.
func TestFailures(t *testing.T) {
	none := EAL{Huge: HugeOff}
	with := func(change func(*EAL)) EAL {
		o := none
		change(&o)
		return o
	}
	host := netns.New(t, netns.Topology{}).Hosts[0]
	link := host.Link().Name
	text := filepath.Join(t.TempDir(), "driver.so")
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	prefix := fmt.Sprintf("penstock-failures-%d", os.Getpid())
	taken := with(func(o *EAL) { o.Files, o.FilePrefix = true, prefix })
	t.Cleanup(func() { os.RemoveAll("/run/dpdk/" + prefix) })
	run := (*exec.Cmd).Start
	first, said := startChild(t, run, nil, trial{"dpdk://net_null0", taken})
	if said[0] != "open" {
		t.Fatal(said)
	}
	without := func(caps string) []string {
		return []string{"setpriv", "--inh-caps=" + caps, "--bounding-set=" + caps}
	}
	locked := append([]string{"prlimit", "--memlock=65536:65536"}, without("-ipc_lock,-sys_resource")...)
	// Each is refused with both texts in the error; also the second time it is asked.
	for _, x := range []struct {
		name, address string
		eal           EAL
		by            []string
		want, do      string
	}{
		{"more huge pages than there are", "net_null0",
			EAL{Huge: HugeOn, EALMemory: thisMachine(engine.Address{}).Memory &^ (1<<20 - 1)}, nil, "rte_eal_init",
			"--hugepages"},
		{"more memory than there is", "net_null0", with(func(o *EAL) { o.EALMemory = 1 << 40 }), nil, "eal_memory", "at most"},
		{"a processor that is not there", "net_null0", with(func(o *EAL) { o.Cores = []int{4000} }), nil, "rte_eal_init", "cores:"},
		{"a card that is not there", "ffff:fe:1f.6", none, nil, "there is no card at ffff:fe:1f.6", "lspci"},
		{"an interface that is not there", "net_af_packet0,iface=nothing", none, nil, "net_af_packet0", "interface"},
		{"a driver that is not there", "net_nothing0", none, nil, "net_nothing0", "drivers:"},
		{"an argument that the driver does not know", "net_memif0,nothing=1", none, nil, "nothing", "zero-copy"},
		{"an argument that another driver does not know", "net_af_packet0,nothing=1,iface=" + link, none, nil, "net_af_packet0", "address"},
		{"a library that is not there", "net_null0", with(func(o *EAL) { o.Drivers = []string{"/is/not/there.so"} }), nil, "/is/not/there.so", "drivers:"},
		{"a library that is none", "net_null0", with(func(o *EAL) { o.Drivers = []string{text} }), nil, text, "drivers:"},
		{"files of a living process", "net_null0", taken, nil, "rte_eal_init", "file_prefix"},
		{"a packet socket without rights", "net_af_packet0,iface=" + link, none, without("-all"), "net_af_packet0", "CAP_NET_RAW"},
		{"a tap without rights", "net_tap0,iface=tap9", none, without("-all"), "net_tap0", "CAP_NET_ADMIN"},
		{"AF_XDP without rights", "net_af_xdp0,iface=" + link, none, without("-all"), "net_af_xdp0", "CAP_NET_ADMIN"},
		{"AF_XDP without memory that may be locked", "net_af_xdp0,iface=" + link, none, locked, "net_af_xdp", "locked memory"},
	} {
		t.Run(x.name, func(t *testing.T) {
			port := trial{"dpdk://" + x.address, x.eal}
			c, said := startChild(t, host.Start, x.by, port, port)
			for _, line := range said {
				if !strings.HasPrefix(line, "refused") || strings.HasPrefix(line, "refused (other)") ||
					!strings.Contains(line, x.want) || !strings.Contains(line, x.do) {
					t.Errorf("%s\nexpected a refusal with %q and %q", line, x.want, x.do)
				}
			}
			if err := c.end(); err != nil {
				t.Error(err)
			}
		})
	}
	if err := first.end(); err != nil {
		t.Error(err)
	}
}

// TestTwice: a device has one port in a process.
func TestTwice(t *testing.T) {
	spec := engine.PortSpec{Address: fmt.Sprintf("dpdk://net_null%d", names.Add(1)), RxQueues: 1}
	p := openPort(t, spec, Options{})
	spec.Options = Options{EAL: eal}
	if _, err := New().OpenPort(t.Context(), spec); !errors.Is(err, engine.ErrInUse) {
		t.Errorf("once more: %v", err)
	}
	if _, err := p.AddRxQueue(engine.RxSpec{}); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	openPort(t, spec, Options{})
}
