package system

import (
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/engine/xdp"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

// sample is a value of an option that is not its default.
func sample(t *testing.T, o *engine.Option) string {
	t.Helper()
	for _, text := range append(append([]string(nil), o.Words...), "true", "false", "3", "4096", "2KiB", "3s", "1ms",
		"10.0.0.1", "02:00:00:00:00:01", "239.1.2.3", "1:2:3", "40 0 0 12", "eth7") {
		if _, err := o.Value(text); err == nil && text != o.Default {
			return text
		}
	}
	t.Fatalf("no value for %s", o.Key)
	return ""
}

// Every option of every engine is set by a file and by an address, and sets the same.
func TestEveryOptionHasAnEffect(t *testing.T) {
	addresses := map[string]string{"": "eth0", "udp": "udp://127.0.0.1:5000", "tcp": "tcp://127.0.0.1:5000",
		"sim": "sim://x", "roce": "roce://127.0.0.1:5000", "rdma": "rdma://127.0.0.1:5000"}
	for _, s := range drivers.Table() {
		for i := range s.Options {
			o := &s.Options[i]
			if o.Field == "" || o.Of != engine.OfPort {
				continue
			}
			for _, scheme := range append([]string{""}, s.Schemes...) {
				if s.Option(o.Key, scheme) != o || (scheme == "") != (s.Needs.Interface) {
					continue
				}
				section := s.FileSection()
				if o.Section != "" {
					section = o.Section
				}
				value := sample(t, o)
				written := value
				if o.List {
					written = "[\"" + value + "\"]"
				}
				load := func(text string) any {
					t.Helper()
					cfg, said := config.Load("x.yaml", []byte(text), config.Options{})
					if cfg == nil {
						if strings.Contains(said.Err().Error(), "unknown key") {
							t.Errorf("%s: %v", text, said.Err())
						}
						// by itself it does not make sense, and that was found: sockets without a
						// fan-out, for instance
						return nil
					}
					return cfg.Interfaces[0].PortSpec().Options
				}
				in := load(fmt.Sprintf("penstock: {interfaces: [{name: p, engine: %s, address: %q, %s: {%s: %s}}]}",
					s.Name, addresses[scheme], section, o.Key, written))
				if in == nil {
					continue
				}
				by := s.PortOptions(scheme)
				if _, err := s.Read(addresses[scheme]+"?"+o.Key+"="+url.QueryEscape(value), by); err != nil {
					t.Errorf("%s: %v", s.Name, err)
				}
				got := reflect.ValueOf(by).Elem()
				if got.IsZero() || !reflect.DeepEqual(got.Interface(), in) {
					t.Errorf("%s: %s=%s: in an address %+v, in a file %+v", s.Name, o.Key, value, got, in)
				}
			}
		}
	}
}

// What the options of a file become, where that is more than their value.
func TestOptionsOfAFile(t *testing.T) {
	for _, c := range []struct {
		file string
		want any
	}{
		{"{name: p, address: \"tcp://127.0.0.1:5000\"}", nil},
		{"{name: p, address: \"udp://127.0.0.1:5000\", tx: {queues: []}}", nil},
		{"{name: p, address: \"udp://127.0.0.1:5000?gro=1\", rx: {queues: [{memory_regions: [a]}, {memory_regions: [a]}]}}", socket.UDPOptions{Queues: 2}},
		{"{name: p, socket: {mode: server, local: \"tcp://127.0.0.1:5000\"}}", nil},
		{"{name: p, socket: {mode: client, remote: \"tcp://127.0.0.1:5000\"}}",
			socket.TCPOptions{Options: conns.Options{Reconnect: true, BackoffMin: time.Second,
				BackoffMax: time.Second}}},
		{"{name: p, socket: {mode: client, remote: \"tcp://127.0.0.1:5000\", connect_timeout: 0s, connect_retry: 0s}}",
			socket.TCPOptions{Options: conns.Options{Background: true}}},
		{"{name: p, socket: {mode: client, remote: \"tcp://127.0.0.1:5000\", connect_retry: 3s, connect_retry_max: 9s, connect_timeout: 4s}}",
			socket.TCPOptions{Options: conns.Options{Reconnect: true, BackoffMin: 3 * time.Second,
				BackoffMax: 9 * time.Second, ConnectTimeout: 4 * time.Second}}},
		{"{name: p, address: eth0}", nil},
		{"{name: p, address: eth0, rx: {hardware_timestamps: true, queues: []}}", xdp.Options{HardwareTime: true}},
		{"{name: p, address: eth0, xdp: {spare: 0, bind: zerocopy, attach: native}}", xdp.Options{Spare: -1, Bind: xdp.BindZeroCopy, Attach: xdp.AttachNative}},
		{"{name: p, address: eth0, xdp: {chains: false, queues: [1, 2]}}", xdp.Options{Queues: []int{1, 2}, NoChains: true}},
		{"{name: p, engine: afpacket, address: eth0, afpacket: {filter: [\"40 0 0 12\", \"6 0 0 0\"], fanout: cpu}}",
			afpacket.Options{Filter: []afpacket.FilterInstruction{{Op: 40, K: 12}, {Op: 6}},
				Fanout: afpacket.FanoutCPU}},
		{"{name: p, engine: sim, address: x}", nil},
	} {
		cfg := mustLoad(t, "penstock:\n  memory_regions: [{name: a, kind: host, num_bufs: 2048, buf_size: 64KiB}]\n  "+
			"interfaces: ["+c.file+"]\n")
		if got := cfg.Interfaces[0].PortSpec().Options; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, expected %+v", c.file, got, c.want)
		}
	}
}

// Options of queues come from their own sections, and from the address for all of them.
func TestOptionsOfQueues(t *testing.T) {
	cfg := mustLoad(t, `penstock:
  memory_regions: [{name: a, kind: host, num_bufs: 2048, buf_size: 4KiB}]
  interfaces:
    - name: p
      engine: afpacket
      address: eth0?keep_truncated=1
      rx: {queues: [{memory_regions: [a]}, {memory_regions: [a], afpacket: {keep_truncated: false}}]}
    - {name: q, address: "udp://127.0.0.1:5000", tx: {queues: [{memory_regions: [a], socket: {drop_late: true, late: 5us}}]}}
`)
	p, q := &cfg.Interfaces[0], &cfg.Interfaces[1]
	if a, b, c := p.RxSpec(0).Options, p.RxSpec(1).Options,
		q.TxSpec(0).Options; a != any(afpacket.RxOptions{KeepTruncated: true}) || b != any(afpacket.RxOptions{}) ||
		!reflect.DeepEqual(c, pace.Options{DropLate: true, Late: 5 * time.Microsecond}) {
		t.Errorf("%+v, %+v, %+v", a, b, c)
	}
}

// What an address or a section says wrongly is an error with its place, before anything is opened.
func TestWrongOptions(t *testing.T) {
	for file, want := range map[string][]string{
		`{name: p, address: "tcp://127.0.0.1:5000?lisen=1"}`:      {"3:24", "lisen", "did you mean listen?"},
		`{name: p, address: "sim://p?lop"}`:                       {"3:24", "lop", "did you mean loop?"},
		`{name: p, address: "sim://p?loop=maybe"}`:                {"maybe", "1 or 0"},
		`{name: p, address: "udp://127.0.0.1:70000"}`:             {"3:24", "70000", "0 to 65535"},
		`{name: p, address: "udp://127.0.0.1"}`:                   {"3:24", "host:port"},
		`{name: p, address: "udp://"}`:                            {"host:port"},
		`{name: p, address: "udp://:5?ttl=300"}`:                  {"ttl", "1 to 255"},
		`{name: p, address: "udp://:5?nodelay=1"}`:                {"nodelay", "no such key"},
		`{name: p, address: "udp://:5", socket: {nodelay: true}}`: {"nodelay says nothing to the engine socket with udp://"},
		`{name: p, address: eth0, xdp: {rng: 64}}`:                {"rng", "did you mean ring?"},
		`{name: p, address: eth0, xdp: {ring: 1000}}`:             {"power of two"},
		`{name: p, address: eth0, engine: afpacket, xdp: {ring: 1024}}`: {"the section xdp says nothing to the " +
			"engine afpacket"},
		`{name: p, address: eth0, engine: afpacket, afpacket: {sockets: 2}}`: {"expected a fanout"},
		`{name: p, address: eth0, engine: socket}`:                           {"udp://host:port"},
		`{name: p, address: eth0, engine: sim, sim: {mac: 7}}`:               {"mac"},
	} {
		cfg, said := config.Load("x.yaml", []byte("penstock:\n  interfaces:\n  - "+file+"\n"), config.Options{})
		for _, w := range want {
			if cfg != nil || !strings.Contains(said.Err().Error(), w) {
				t.Errorf("%s: %v, expected %q", file, said.Err(), w)
			}
		}
	}
}

// max_payload_size is kept by both ends of a socket.
func TestMaxPayload(t *testing.T) {
	text := `penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 256, buf_size: 2KiB}]
  interfaces:
`
	plain := mustOpen(t, text+`    - {name: s, address: "udp://127.0.0.1:0", rx: {queues: [{memory_regions: [m]}]}}
`, Options{})
	to := plain.Port("s").Info().Address
	short := mustOpen(t, text+`    - {name: c, socket: {mode: client, remote: "`+to+
		`", max_payload_size: 100}, tx: {queues: [{memory_regions: [m]}]}}
`, Options{})
	b := burst.New(4)
	if n, err := txOf(t, short, "c", 0).Alloc(b, 1, 101); n != 0 || !errors.Is(err, engine.ErrInvalid) &&
		!errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("101 bytes: %d, %v", n, err)
	}
	if n, err := txOf(t, short, "c", 0).Alloc(b, 1, 100); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	clear(b.Bytes(0, 0))
	if err := txOf(t, short, "c", 0).Send(b); err != nil {
		t.Fatal(err)
	}
	if err := rxOf(t, plain, "s", 0).Recv(t.Context(), b); err != nil || b.Len() != 1 || b.PacketLen(0) != 100 {
		t.Fatal(err, b.Len())
	}
	b.Release()
}

// Cores: a pinned poller serves all queues of its core, and stays there; a master core is used and
// left again.
func TestCores(t *testing.T) {
	core, err := sys.Processor(0)
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, fmt.Sprintf(`penstock:
  master_core: %d
  memory_regions: [{name: m, kind: host, num_bufs: 1024, buf_size: 2KiB}]
  interfaces:
    - name: a
      engine: sim
      address: sim://cores?loop
      rx:
        queues: [{name: q, memory_regions: [m], cpu_core: %d}, {memory_regions: [m], cpu_core: %d}, {memory_regions: [m]}, {memory_regions: [m], poll_mode: direct}]
        flows: [{match: {udp_dst: 1}, actions: [{type: queue, id: 1}]}, {match: {udp_dst: 2}, actions: [{type: queue, id: 2}]}, {match: {udp_dst: 3}, actions: [{type: queue, id: 3}]}]
      tx: {queues: [{memory_regions: [m]}]}
    - {name: b, engine: sim, address: "sim://cores2?loop", rx: {queues: [{name: q, memory_regions: [m]}]}}
`, core, core, core), Options{Engines: noted(t, &diary{})})
	var got []string
	for _, p := range s.Plan().Pollers {
		got = append(got, fmt.Sprintf("%s: %d %s %v", p.Name, p.Core, p.Mode, p.Queues))
	}
	want := []string{fmt.Sprintf("core %d: %d adaptive [a/q a/a-rx1]", core, core), "a/a-rx2: -1 event [a/a-rx2]",
		"b/q: -1 event [b/q]"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
	b := burst.New(4)
	for port := range 4 {
		sendFrames(t, txOf(t, s, "a", 0), udpFrame(t, uint16(port), 1))
		if err := rxOf(t, s, "a", port).Recv(t.Context(), b); err != nil || b.Len() != 1 {
			t.Fatal(port, err)
		}
		b.Release()
	}
	snap := s.Snapshot()
	if snap.Pollers[0].Stats.Packets != 2 || snap.Pollers[1].Stats.Packets != 1 || snap.Pollers[0].Core != core {
		t.Errorf("%+v", snap.Pollers)
	}
}
