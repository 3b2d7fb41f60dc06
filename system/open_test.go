package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
)

// sendNumbers sends n packets whose last byte counts from first on.
func sendNumbers(t testing.TB, q engine.TxQueue, first, n int) {
	t.Helper()
	b := burst.New(n)
	if got, err := q.Alloc(b, n, 64); got != n || err != nil {
		t.Fatal(got, err)
	}
	for i := range n {
		clear(b.Bytes(i, 0))
		b.Bytes(i, 0)[63] = byte(first + i)
	}
	if err := q.Send(b); err != nil {
		t.Fatal(err)
	}
}

// wantNumbers receives n packets of sendNumbers.
func wantNumbers(t testing.TB, r *engine.Rx, first, n int) {
	t.Helper()
	b := burst.New(n)
	for got := 0; got < n; {
		if err := r.Recv(t.Context(), b); err != nil {
			t.Fatalf("%v after %d of %d packets", err, got, n)
		}
		for i := range b.Len() {
			if p := b.Bytes(i, 0); len(p) != 64 || p[63] != byte(first+got) {
				t.Errorf("packet %d: %x", got, p)
			}
			got++
		}
		b.Release()
	}
}

const twoRegions = `penstock:
  memory_regions:
    - {name: a, kind: host, num_bufs: 256, buf_size: 2KiB}
    - {name: b, kind: host, num_bufs: 256, buf_size: 2KiB}
`

// What a file says opens, and packets come through: in memory and over sockets, with a poller and
// without.
func TestOpenCarriesPackets(t *testing.T) {
	for _, poll := range []string{"indirect", "direct"} {
		s := mustOpen(t, twoRegions+`
  interfaces:
    - name: loop
      engine: sim
      address: sim://`+t.Name()+`?loop
      rx: {queues: [{memory_regions: [a], poll_mode: `+poll+`}]}
      tx: {queues: [{memory_regions: [b]}]}
    - name: server
      address: "udp://127.0.0.1:0"
      rx: {queues: [{memory_regions: [a], poll_mode: `+poll+`}]}
`, Options{})
		sendNumbers(t, txOf(t, s, "loop", 0), 1, 3)
		wantNumbers(t, rxOf(t, s, "loop", 0), 1, 3)
		client := mustOpen(t, twoRegions+`
  interfaces:
    - name: client
      socket: {mode: client, remote: "`+s.Port("server").Info().Address+`"}
      tx: {queues: [{memory_regions: [b]}]}
`, Options{})
		sendNumbers(t, txOf(t, client, "client", 0), 5, 4)
		wantNumbers(t, rxOf(t, s, "server", 0), 5, 4)

		snap := s.Snapshot()
		if len(snap.Interfaces) != 2 || len(snap.Regions) != 2 || snap.Node != nil {
			t.Fatalf("%+v", snap)
		}
		loop := &snap.Interfaces[0]
		if loop.Stats.Rx.Packets != 3 || loop.Rx[0].Stats.Packets != 3 || loop.Tx[0].Stats.Packets != 3 ||
			loop.Info.Engine != "sim" || snap.Interfaces[1].Rx[0].Stats.Bytes != 4*64 {
			t.Errorf("%+v", snap.Interfaces)
		}
		if polled := loop.Rx[0].Polled; (poll == "indirect") != (polled != nil) || polled != nil &&
			(polled.Packets != 3 || len(snap.Pollers) != 2 || snap.Pollers[0].Stats.Packets != 3) {
			t.Errorf("%s: %+v %+v", poll, polled, snap.Pollers)
		}
		for _, r := range snap.Regions {
			if r.Stats.Slots != 256 || r.SlotSize != 2048 {
				t.Errorf("%+v", r)
			}
		}
		if _, err := s.Rx("loop", 1); !errors.Is(err, engine.ErrNotFound) ||
			!strings.Contains(err.Error(), `"loop" has no receive queue 1: expected one of [0]`) {
			t.Error(err)
		}
		if _, err := s.Rx("x", 0); !errors.Is(err, engine.ErrNotFound) ||
			!strings.Contains(err.Error(), `no interface "x": expected one of ["loop" `) {
			t.Error(err)
		}
		if _, err := s.Tx("server", 0); !errors.Is(err, engine.ErrNotFound) ||
			!strings.Contains(err.Error(), `"server" has no transmit queue 0: expected one of []`) {
			t.Error(err)
		}
		if s.Port("x") != nil || s.Region("x") != nil || s.Region("a") == nil || s.Link("x") != nil ||
			s.Node() != nil || s.Share() != nil {
			t.Error("something is there that is not in the file")
		}
		if f := s.Interfaces(); len(f) != 2 || f[0].Name != "loop" || len(f[0].Rx) != 1 || len(f[0].Tx) != 1 ||
			f[0].Rx[0].Name != "loop-rx0" || f[0].Rx[0].Receiver != rxOf(t, s, "loop", 0) {
			t.Errorf("%+v", f)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := rxOf(t, s, "loop", 0).Recv(t.Context(), burst.New(1)); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("Recv after Close: %v", err)
		}
	}
}

// Close ends Recv with packets under way, whether the receiver waits or has packets left to
// receive.
func TestCloseWhileReceiving(t *testing.T) {
	for _, poll := range []string{"indirect", "direct"} {
		s := mustOpenUnclosed(t, twoRegions+`
  interfaces:
    - name: loop
      engine: sim
      address: sim://`+t.Name()+`?loop
      rx: {queues: [{memory_regions: [a], poll_mode: `+poll+`}, {memory_regions: [a], poll_mode: `+poll+`}]}
      tx: {queues: [{memory_regions: [b]}]}
`)
		ended, begun := make(chan error), make(chan struct{})
		go func() {
			b := burst.New(4)
			for n := 0; ; n++ {
				if err := rxOf(t, s, "loop", 0).Recv(context.Background(), b); err != nil {
					ended <- err
					return
				}
				b.Release()
				if n == 3 {
					close(begun)
				}
			}
		}()
		other := make(chan error)
		go func() { other <- rxOf(t, s, "loop", 1).Recv(context.Background(), burst.New(1)) }() // nothing comes here
		stop := make(chan struct{})
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			b := burst.New(4)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if n, _ := txOf(t, s, "loop", 0).Alloc(b, 4, 64); n > 0 {
					_ = txOf(t, s, "loop", 0).Send(b)
				}
			}
		}()
		<-begun
		// The sender may be between Alloc and Send, and the receiver between Recv and Release:
		// Close says so.
		if err := s.Close(); err != nil && !errors.Is(err, mem.ErrInUse) {
			t.Error(err)
		}
		for _, c := range []chan error{ended, other} {
			if err := <-c; !errors.Is(err, engine.ErrClosed) {
				t.Error(err)
			}
		}
		close(stop)
		<-sent
		if n := s.Region("a").Stats().InUse; n != 0 {
			t.Errorf("%d slots of received packets are out, and the receiver has released all", n)
		}
	}
}

// Bursts that are out at Close are reported, with their region, and their memory goes when they are
// released.
func TestCloseWithBurstsOut(t *testing.T) {
	s := mustOpenUnclosed(t, twoRegions+`
  interfaces:
    - {name: loop, engine: sim, address: "sim://out?loop", rx: {queues: [{memory_regions: [a]}]}, tx: {queues: [{memory_regions: [b]}]}}
`)
	sendNumbers(t, txOf(t, s, "loop", 0), 0, 3)
	b := burst.New(8)
	for b.Len() < 3 {
		if err := rxOf(t, s, "loop", 0).Recv(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	err := s.Close()
	if !errors.Is(err, mem.ErrInUse) || !strings.Contains(err.Error(), `region "a": 3 slots are out`) ||
		strings.Contains(err.Error(), `"b"`) {
		t.Error(err)
	}
	if again := s.Close(); again == nil || again.Error() != err.Error() {
		t.Error(again)
	}
	if b.Bytes(2, 0)[63] != 2 { // still there
		t.Errorf("%x", b.Bytes(2, 0))
	}
	b.Release()
}

func mustOpenUnclosed(t *testing.T, text string) *System {
	t.Helper()
	s, err := Open(t.Context(), mustLoad(t, text), Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const diaryText = `penstock:
  memory_regions:
    - {name: a, kind: host, num_bufs: 256, buf_size: 2KiB}
    - {name: b, kind: host, num_bufs: 256, buf_size: 2KiB}
  interfaces:
    - name: one
      engine: sim
      address: sim://one
      rx:
        queues: [{name: r0, memory_regions: [a]}, {name: r1, memory_regions: [a], poll_mode: direct}]
        flows: [{name: f, match: {udp_dst: 5}, actions: [{type: queue, id: 1}]}]
      tx: {queues: [{name: t0, memory_regions: [b]}]}
    - name: two
      engine: sim
      address: sim://two
      rx: {queues: [{name: r2, memory_regions: [a]}]}
      tx: {queues: [{name: t1, memory_regions: [b]}]}
  transfers: {listen: ["tcp://127.0.0.1:0"]}
`

// Things are opened and closed in the order of the documentation.
func TestOrder(t *testing.T) {
	d := &diary{}
	var plan *Plan
	s := mustOpen(t, diaryText, Options{Engines: noted(t, d), Plan: func(p *Plan) error {
		if n := len(d.read()); n != 0 {
			t.Errorf("%d steps before the plan was told", n)
		}
		plan = p
		return nil
	}})
	if s.Plan() != plan || plan == nil {
		t.Error("the plan that was told is not the System's")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if snap := s.Snapshot(); len(snap.Interfaces) != 2 || snap.Node == nil || len(s.Metrics()) == 0 {
		// counts can be read all the same
		t.Errorf("%+v", snap)
	}
	want := "open one, rx r0, rx r1, tx t0, rules one, open two, rx r2, tx t1, close r0, close r1, close t0, close " +
		"one, close r2, close t1, close two"
	if got := strings.Join(d.read(), ", "); got != want {
		t.Errorf("%s\nexpected\n%s", got, want)
	}
}

// Whatever step fails, everything is closed again, and the error says what it was and where in the
// file.
func TestFailureClosesAll(t *testing.T) {
	before := descriptors(t)
	places := []string{"test.yaml:6:7: interface \"one\"", "receive queue 0", "receive queue 1", "transmit queue 0",
		"flows", "interface \"two\"", "receive queue 0", "transmit queue 0"}
	for k, want := range places {
		d := &diary{fail: k + 1}
		s, err := Open(t.Context(), mustLoad(t, diaryText), Options{Engines: noted(t, d)})
		if s != nil || !errors.Is(err, engine.ErrInternal) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "test.yaml:") {
			t.Errorf("step %d: %v, expected %q", k+1, err, want)
		}
		open := map[string]bool{}
		for i, line := range d.read() {
			verb, name, _ := strings.Cut(line, " ")
			switch {
			case verb == "close" && !open[name]:
				t.Errorf("step %d: %s was closed, and was not open: %v", k+1, name, d.read())
			case verb == "close":
				delete(open, name)
			case verb != "rules" && i != k:
				open[name] = true
			}
		}
		if len(open) > 0 {
			t.Errorf("step %d: %v stay open: %v", k+1, open, d.read())
		}
	}
	// What comes behind the ports: the node, what it shares, the page of metrics.
	for _, c := range []struct{ add, want string }{
		{"  metrics: {listen: \"127.0.0.1:65536\"}\n", "test.yaml:20:21: the page of metrics"},
		{"    share: {path: \"/\\0\"}\n", "share"},
		{"    peers: []\n  security: {identity: " + t.TempDir() + "}\n", "there is no identity"},
	} {
		d := &diary{}
		text := strings.Replace(diaryText, "transfers: {listen: [\"tcp://127.0.0.1:0\"]}",
			"transfers:\n    listen: [\"tcp://127.0.0.1:0\"]", 1) + c.add
		s, err := Open(t.Context(), mustLoad(t, text), Options{Engines: noted(t, d)})
		if s != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, expected %q", err, c.want)
		}
		if lines := d.read(); len(lines) > 0 && lines[len(lines)-1] != "close two" {
			t.Error(lines)
		}
	}
	// Memory that is not there.
	s, err := Open(t.Context(), mustLoad(t, strings.Replace(diaryText, "name: b, kind: host",
		"name: b, kind: huge, page_size: 1GiB", 1)), Options{Engines: noted(t, &diary{})})
	if err == nil {
		s.Close()
		t.Log("this machine has pages of 1 GiB")
	} else if !strings.Contains(err.Error(),
		"test.yaml:4:56: needs: the regions of kind huge ask for 1 of the pages of 1GiB") &&
		!strings.Contains(err.Error(), "test.yaml:4:40: needs: this kernel has no huge pages of 1048576 kB") {
		t.Error(err)
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// descriptors is the number of open descriptors. The runtime's own are there after the first use of
// the network.
func descriptors(t testing.TB) int {
	t.Helper()
	s := mustOpen(t, "penstock: {transfers: {listen: [\"tcp://127.0.0.1:0\"]}, metrics: {listen: \"127.0.0.1:0\"}}",
		Options{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// All that is missing is said at once, with its place and how to go on, and nothing is opened. An
// error of Options.Plan ends Open.
func TestMissing(t *testing.T) {
	text := `penstock:
  master_core: 4095
  gpu_runtime: host
  memory_regions:
    - {name: a, kind: host, num_bufs: 256, buf_size: 2KiB}
    - {name: gpu, kind: device, gpu: 7, num_bufs: 256, buf_size: 2KiB}
    - {name: mine, kind: host, num_bufs: 256, buf_size: 2KiB, owned: false}
  interfaces:
    - name: one
      engine: sim
      address: sim://one
      rx:
        queues: [{memory_regions: [a], cpu_core: 4094}, {memory_regions: [gpu]}, {memory_regions: [mine]}]
        hardware_timestamps: true
        flows: [{name: f, id: 7, match: {udp_dst: 5}, actions: [{type: queue, id: 1}]}]
        reorder: [{name: r, reorder_type: cpu, memory_region: a, payload_byte_offset: 42, flow_ids: [7], method: {seq_packets_per_batch: {sequence_number: {bit_offset: 336, bit_width: 16}, packets_per_batch: 8}}}]
      tx:
        queues: [{memory_regions: [a], cpu_core: 0}]
        flows: [{match: {udp_dst: 5}, actions: [{type: vlan_push, vlan_id: 5}]}]
    - {name: two, engine: efa, address: eth0}
    - {name: three, engine: afpacket, address: eth0}
  transfers: {listen: ["tcp://10.0.0.1:7070"], share: {path: /is/not/there}}
  registry: {url: "etcd://127.0.0.1:2379"}
  metrics: {listen: "0.0.0.0:9095"}
`
	d := &diary{}
	told := false
	o := Options{Engines: noted(t, d), Regions: map[string]*mem.Pool{}, Plan: func(p *Plan) error {
		told = len(p.Missing) > 0
		return nil
	}}
	s, err := Open(t.Context(), mustLoad(t, text), o)
	var missing *MissingError
	if s != nil || !errors.As(err, &missing) || !errors.Is(err, ErrMissing) || !told {
		t.Fatal(err)
	}
	for _, want := range []string{"2:16: needs: this process cannot run on core 4095; expected one of 0",
		"6:38: needs: the runtime host has no device 7; expected 0 to 0",
		"7:70: needs: the program gives no memory for the region \"mine\"",
		"13:50: needs: this process cannot run on core 4094",
		"14:30: needs: the engine sim: the port has no receive times of the network card",
		"19:16: needs: flows of tx change packets that are sent, and the engine sim does not do that",
		"20:27: needs: interface \"two\": the engine efa is not built",
		"21:29: needs: interface \"three\": engine: no engine is called \"afpacket\"",
		"22:24: needs: tcp://10.0.0.1:7070 is beyond this machine",
		"22:62: needs: there is nothing to share", "23:13: needs: registries are not built",
		"24:21: needs: the page of metrics would be at 0.0.0.0:9095"} {
		if !strings.Contains(err.Error(), "\n\ttest.yaml:"+want) {
			t.Errorf("not said: %s", want)
		}
	}
	if len(missing.Missing) != 12 {
		t.Errorf("%d things are missing", len(missing.Missing))
	}
	if n := len(d.read()); n != 0 {
		t.Errorf("%d steps", n)
	}
	if t.Failed() {
		t.Log(err)
	}
	o.Plan = func(p *Plan) error { return io.ErrUnexpectedEOF }
	if _, err := Open(t.Context(), mustLoad(t, diaryText), o); !errors.Is(err, io.ErrUnexpectedEOF) ||
		len(d.read()) != 0 {
		t.Error(err)
	}
	if _, err := Open(t.Context(), nil, Options{}); !errors.Is(err, config.ErrInvalid) {
		t.Error(err)
	}
	if _, err := Open(t.Context(), &config.Config{MasterCore: -1, Interfaces: []config.Interface{{Name: "x",
		Engine: "sim", Rx: &config.Rx{Queues: []config.RxQueue{{Regions: []string{"none"}}}}}}},
		Options{}); !errors.Is(err, config.ErrInvalid) {
		t.Error(err)
	}
}

// Memory of the program's is used and stays the program's.
func TestGivenRegion(t *testing.T) {
	pool, err := mem.NewPool(mem.PoolOptions{Name: "mine", SlotSize: 2048, Slots: 256})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	text := `penstock:
  memory_regions: [{name: mine, kind: host, num_bufs: 256, buf_size: 2KiB, owned: false}]
  interfaces: [{name: loop, engine: sim, address: "sim://given?loop", rx: {queues: [{memory_regions: [mine]}]}, tx: {queues: [{memory_regions: [mine]}]}}]
`
	s := mustOpen(t, text, Options{Regions: map[string]*mem.Pool{"mine": pool}})
	if s.Region("mine") != pool {
		t.Error("it is another one")
	}
	sendNumbers(t, txOf(t, s, "loop", 0), 0, 3)
	wantNumbers(t, rxOf(t, s, "loop", 0), 0, 3)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if slot, err := pool.Get(); err != nil {
		t.Errorf("the pool was closed: %v", err)
	} else if err := pool.Put(slot); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		o    Options
		want string
	}{{Options{Regions: map[string]*mem.Pool{"mine": pool, "yours": pool}},
		`for a region "yours", and there is none`}} {
		if _, err := Open(t.Context(), mustLoad(t, text), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, expected %q", err, c.want)
		}
	}
	if _, err := Open(t.Context(), mustLoad(t, strings.Replace(text, "num_bufs: 256", "num_bufs: 257", 1)),
		Options{Regions: map[string]*mem.Pool{"mine": pool}}); err == nil ||
		!strings.Contains(err.Error(), "has 256 slots of 2048 bytes; expected 257") {
		t.Error(err)
	}
}

// The node of a file shares what it says, knows its peers, and its counts are on the page of
// metrics beside those of ports and memory.
func TestNode(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello.txt"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := mustOpen(t, "penstock: {transfers: {name: a, listen: [\"tcp://127.0.0.1:0\"], share: {path: "+dir+"}}}",
		Options{})
	b := mustOpen(t, twoRegions+`
  interfaces: [{name: loop, engine: sim, address: "sim://node?loop", rx: {queues: [{memory_regions: [a]}]}, tx: {queues: [{memory_regions: [b]}]}}]
  transfers:
    name: b
    paths: [tcp]
    peers: [{name: other, address: "`+a.Node().Addrs()[0]+`"}]
  metrics: {listen: "127.0.0.1:0"}
`, Options{})
	p, err := b.Link("other").Peer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, err := p.Lookup(t.Context(), "hello.txt")
	if err != nil {
		t.Fatal(err)
	}
	if m.Size() != 5 {
		t.Errorf("%d bytes are shared", m.Size())
	}
	if n := a.Share().Snapshot(); n.Files != 1 {
		t.Errorf("%+v", n)
	}
	snap := b.Snapshot()
	if snap.Node == nil || len(snap.Links) != 1 || snap.Links[0].Name != "other" ||
		snap.Links[0].Addr != a.Node().Addrs()[0] || a.Snapshot().Share.Files != 1 {
		t.Errorf("%+v", snap)
	}
	sendNumbers(t, txOf(t, b, "loop", 0), 0, 3)
	wantNumbers(t, rxOf(t, b, "loop", 0), 0, 3)
	r, err := http.Get("http://" + b.MetricsAddr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	page, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`penstock_packets_total{direction="in",port="loop"} 3`,
		`penstock_pool_slots{pool="a"} 256`, `penstock_export_dropped_total{what="family"} 0`, "penstock_peers 1"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page of metrics has no %s", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", page)
	}
	names := map[string]bool{}
	for _, f := range b.Metrics() {
		if names[f.Name] {
			t.Errorf("two families are called %s", f.Name)
		}
		names[f.Name] = true
	}
}

// The log goes where the file says, from the level on that it says.
func TestLogging(t *testing.T) {
	for _, c := range []struct {
		level string
		want  bool
	}{{"info", true}, {"warn", false}, {"off", false}} {
		name := filepath.Join(t.TempDir(), "log")
		s := mustOpen(t, fmt.Sprintf("penstock: {logging: {level: %s, format: json, file: %q}}", c.level, name),
			Options{})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(name)
		if err != nil && c.level != "off" {
			t.Fatal(err)
		}
		var first struct{ Level, Msg string }
		if c.want {
			if err := json.Unmarshal([]byte(strings.SplitN(string(b), "\n", 2)[0]), &first); err != nil ||
				first.Level != "INFO" || first.Msg != "open" {
				t.Errorf("%s: %v", b, err)
			}
		} else if len(b) > 0 {
			t.Errorf("%s: %s", c.level, b)
		}
	}
	_, err := Open(t.Context(), mustLoad(t, "penstock:\n  logging: {file: /is/not/there/log}\n"), Options{})
	if err == nil || !strings.Contains(err.Error(), "test.yaml:2:19: the log: open /is/not/there/log: no such file") {
		t.Error(err)
	}
}

// With an identity the node speaks TLS, as the plan says, and knows who its peers are; a floor of
// encrypted asks for one.
func TestIdentity(t *testing.T) {
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	ca, _, err := identity.Setup(one, "store", 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ca.Credentials("reader", identity.IssueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := identity.Save(two, c); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(one, identity.PolicyFile), []byte("allow reader list\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	came := make(chan *transfer.Peer, 1)
	a := mustOpen(t, "penstock: {transfers: {listen: [\"tcp://127.0.0.1:0\"]}, security: {identity: "+one+
		", floor: encrypted}}", Options{OnPeer: func(p *transfer.Peer) {
		came <- p
	}})
	if l := a.Plan().Node.Listen[0]; !l.Encrypted || a.Identity().Name() != "store" {
		t.Errorf("%+v", l)
	}
	b := mustOpen(t, "penstock: {transfers: {peers: [{name: other, address: \""+
		strings.Replace(a.Node().Addrs()[0], "tcp://", "tcp://store@", 1)+"\"}]}, security: {identity: "+two+"}}",
		Options{})
	p, err := b.Link("other").Peer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := p.Certificate(); !ok || c.Name != "store" {
		t.Errorf("%+v", c)
	}
	if c, ok := (<-came).Certificate(); !ok || c.Name != "reader" {
		t.Errorf("%+v", c)
	}
	_, err = Open(t.Context(), mustLoad(t, "penstock:\n  transfers: {}\n  security: {identity: "+
		filepath.Join(one, "none")+"}\n"), Options{})
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "test.yaml:3:24: needs: there is no identity in") {
		t.Error(err)
	}
}

// Receiving allocates nothing, with a poller and without.
func TestReceiveAllocatesNothing(t *testing.T) {
	s := mustOpen(t, twoRegions+`
  interfaces:
    - name: loop
      engine: sim
      address: sim://allocs?loop
      rx: {queues: [{memory_regions: [a]}, {memory_regions: [a], poll_mode: direct}]}
      tx: {queues: [{memory_regions: [b]}]}
`, Options{})
	b := burst.New(8)
	w := engine.NewWaker()
	for id := range 2 {
		r := rxOf(t, s, "loop", id)
		if n := testing.AllocsPerRun(100, func() {
			if n, err := r.TryRecv(b); n != 0 || err != nil {
				t.Error(n, err)
			}
			r.Arm(w)
		}); n != 0 {
			t.Errorf("queue %d: %v allocations", id, n)
		}
	}
}

// An engine that this build does not have is taken from the program's table.
func TestEngineOfTheProgram(t *testing.T) {
	table, err := engine.NewTable(named{noted(t, &diary{}).Engines()[0], "verbs"})
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, twoRegions+
		"  interfaces: [{name: x, engine: verbs, address: x, rx: {queues: [{memory_regions: [a]}]}, tx: {queues: "+
		"[{memory_regions: [b]}]}}]\n", Options{Engines: table})
	if s.Port("x") == nil {
		t.Error("it is not open")
	}
}

type named struct {
	engine.Engine
	name string
}

func (n named) Name() string { return n.name }

// A queue that the application polls delivers bursts as batch_size and timeout say, like one with a
// poller.
func TestDirectBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := noted(t, &diary{})
		s := mustOpen(t, `penstock:
  memory_regions: [{name: a, kind: host, num_bufs: 256, buf_size: 2KiB}]
  interfaces:
    - name: loop
      engine: sim
      address: sim://direct?loop
      rx: {queues: [{memory_regions: [a], poll_mode: direct, batch_size: 4, timeout: 1s}]}
      tx: {queues: [{memory_regions: [a]}]}
`, Options{Engines: table})
		if q := s.Plan().Interfaces[0].Rx[0]; q.Poller != "" || q.Burst != 4 || q.Timeout != time.Second {
			t.Errorf("%+v", q)
		}
		b, came, rx := burst.New(16), make(chan error, 1), rxOf(t, s, "loop", 0)
		sendNumbers(t, txOf(t, s, "loop", 0), 0, 3)
		go func() { came <- rx.Recv(t.Context(), b) }()
		synctest.Wait()
		select {
		case err := <-came:
			t.Errorf("%d of 4 packets came before the timeout: %v", b.Len(), err)
		default:
			sendNumbers(t, txOf(t, s, "loop", 0), 3, 1)
			if err := <-came; err != nil || b.Len() != 4 {
				t.Errorf("%d packets, %v", b.Len(), err)
			}
		}
		b.Release()
		began := time.Now()
		sendNumbers(t, txOf(t, s, "loop", 0), 4, 1)
		if err := rx.Recv(t.Context(), b); err != nil || b.Len() != 1 || time.Since(began) != time.Second {
			t.Errorf("%d packets after %v, %v", b.Len(), time.Since(began), err)
		}
		b.Release()
	})
}
