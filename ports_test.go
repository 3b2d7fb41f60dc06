package penstock

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/engine/xdp"
	"github.com/penstock-io/penstock/internal/sys"
)

// Every key of the sections socket, xdp and afpacket changes what the engine is told, and all of them together are exactly these options.
func TestEveryKeyHasAnEffect(t *testing.T) {
	for _, c := range []struct {
		name    string
		file    string // an interface
		section func(p *config.Interface) any
		values  map[string]string // a value for each key that is not in the file
		want    any
	}{
		{"udp", "{name: p, socket: {mode: server, local: \"udp://127.0.0.1:5000\"}, rx: {queues: [{memory_regions: [a]}, {memory_regions: [a]}]}}", func(p *config.Interface) any { return p.Socket },
			map[string]string{"max_payload_size": "1000", "receive_buffer": "1MiB", "send_buffer": "2MiB"},
			socket.UDPOptions{MaxPayload: 1000, ReceiveBuffer: 1 << 20, SendBuffer: 2 << 20, Queues: 2}},
		{"tcp", "{name: p, socket: {mode: client, remote: \"tcp://127.0.0.1:5000\"}}", func(p *config.Interface) any { return p.Socket },
			map[string]string{"max_payload_size": "1000", "receive_buffer": "1MiB", "send_buffer": "2MiB", "connect_retry": "3s", "connect_timeout": "4s"},
			socket.TCPOptions{MaxPayload: 1000, ReceiveBuffer: 1 << 20, SendBuffer: 2 << 20, Reconnect: true, BackoffMin: 3 * time.Second, BackoffMax: 3 * time.Second, ConnectTimeout: 4 * time.Second}},
		{"xdp", "{name: p, address: eth0, xdp: {}}", func(p *config.Interface) any { return p.XDP },
			map[string]string{"queues": "[1, 2]", "bind": "copy", "attach": "generic", "ring": "4096", "spare": "100", "busy_poll": "50us", "chains": "false"},
			xdp.Options{Queues: []int{1, 2}, Bind: xdp.BindCopy, Attach: xdp.AttachGeneric, Ring: 4096, Spare: 100, BusyPoll: 50 * time.Microsecond, NoChains: true}},
		{"afpacket", "{name: p, engine: afpacket, address: eth0, afpacket: {fanout: hash}}", func(p *config.Interface) any { return p.AFPacket },
			map[string]string{"frames": "128", "frame_size": "2KiB", "fanout": "cpu", "sockets": "3", "promiscuous": "true", "qdisc_bypass": "true"},
			afpacket.Options{Frames: 128, FrameSize: 2048, Fanout: afpacket.FanoutCPU, Sockets: 3, Promiscuous: true, QdiscBypass: true}},
	} {
		// load reads the interface with keys besides.
		load := func(keys string) *config.Interface {
			t.Helper()
			text := c.file
			section := c.name
			if section == "udp" || section == "tcp" {
				section = "socket"
			}
			at := strings.Index(text, section+": {") + len(section) + 3
			if keys != "" && text[at] != '}' {
				keys += ", "
			}
			if key, _, _ := strings.Cut(keys, ":"); key == "fanout" || strings.Contains(keys, " fanout:") {
				text = strings.Replace(text, "fanout: hash", "", 1)
			}
			text = text[:at] + keys + text[at:]
			return &mustLoad(t, "penstock:\n  memory_regions: [{name: a, kind: host, num_bufs: 256, buf_size: 2KiB}]\n  interfaces:\n    - "+text+"\n").Interfaces[0]
		}
		base := load("")
		var all []string
		v := reflect.TypeOf(c.section(base)).Elem()
		for i := range v.NumField() {
			key := v.Field(i).Tag.Get("cfg")
			value, ok := c.values[key]
			if !ok {
				if key == "mode" || key == "local" || key == "remote" || c.name == "udp" && strings.HasPrefix(key, "connect_") { // they make the address; UDP does not connect
					continue
				}
				t.Errorf("%s: this test does not know the key %s", c.name, key)
				continue
			}
			all = append(all, key+": "+value)
			if with := load(key + ": " + value); reflect.DeepEqual(portOptions(with), portOptions(base)) {
				t.Errorf("%s: %s: %s has no effect: %+v", c.name, key, value, portOptions(with))
			}
		}
		if got := portOptions(load(strings.Join(all, ", "))); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v\nexpected %+v", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		file string
		want any
	}{
		{"{name: p, address: \"tcp://127.0.0.1:5000\"}", socket.TCPOptions{}},
		{"{name: p, address: \"udp://127.0.0.1:5000\", tx: {queues: []}}", socket.UDPOptions{}},
		{"{name: p, socket: {mode: server, local: \"tcp://127.0.0.1:5000\"}}", socket.TCPOptions{}},
		{"{name: p, socket: {mode: client, remote: \"tcp://127.0.0.1:5000\", connect_timeout: 0s, connect_retry: 0s}}", socket.TCPOptions{Background: true}},
		{"{name: p, address: eth0}", xdp.Options{}},
		{"{name: p, address: eth0, rx: {hardware_timestamps: true, queues: []}}", xdp.Options{HardwareTime: true}},
		{"{name: p, address: eth0, xdp: {spare: 0, bind: zerocopy, attach: native}}", xdp.Options{Spare: -1, Ring: 2048, Bind: xdp.BindZeroCopy, Attach: xdp.AttachNative}},
		{"{name: p, engine: afpacket, address: eth0}", afpacket.Options{}},
		{"{name: p, engine: sim, address: x}", nil},
	} {
		cfg := mustLoad(t, "penstock:\n  interfaces: ["+c.file+"]\n")
		if got := portOptions(&cfg.Interfaces[0]); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, expected %+v", c.file, got, c.want)
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
	short := mustOpen(t, text+`    - {name: c, socket: {mode: client, remote: "`+to+`", max_payload_size: 100}, tx: {queues: [{memory_regions: [m]}]}}
`, Options{})
	b := burst.New(4)
	if n, err := short.Tx("c", 0).Alloc(b, 1, 101); n != 0 || !errors.Is(err, engine.ErrInvalid) && !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("101 bytes: %d, %v", n, err)
	}
	if n, err := short.Tx("c", 0).Alloc(b, 1, 100); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	clear(b.Bytes(0, 0))
	if err := short.Tx("c", 0).Send(b); err != nil {
		t.Fatal(err)
	}
	if err := plain.Rx("s", 0).Recv(t.Context(), b); err != nil || b.Len() != 1 || b.PacketLen(0) != 100 {
		t.Fatal(err, b.Len())
	}
	b.Release()
}

// Cores: a pinned poller serves all queues of its core, and stays there; a master core is used and left again.
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
	want := []string{fmt.Sprintf("core %d: %d adaptive [a/q a/a-rx1]", core, core), "a/a-rx2: -1 event [a/a-rx2]", "b/q: -1 event [b/q]"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
	b := burst.New(4)
	for port := range 4 {
		sendFrames(t, s.Tx("a", 0), udpFrame(t, uint16(port), 1))
		if err := s.Rx("a", port).Recv(t.Context(), b); err != nil || b.Len() != 1 {
			t.Fatal(port, err)
		}
		b.Release()
	}
	snap := s.Snapshot()
	if snap.Pollers[0].Stats.Packets != 2 || snap.Pollers[1].Stats.Packets != 1 || snap.Pollers[0].Core != core {
		t.Errorf("%+v", snap.Pollers)
	}
}
