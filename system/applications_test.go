package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/app"
	"github.com/penstock-io/penstock/transfer"
)

// appsText has an application of each kind, and a queue without one. What comes to the queues of
// loop is steered by the flows.
const appsText = twoRegions + `
  interfaces:
    - name: loop
      engine: sim
      address: sim://apps?loop
      rx:
        queues: [{memory_regions: [a]}, {memory_regions: [a]}, {memory_regions: [a]}, {memory_regions: [a]}]
        flows:
          - {name: counted, match: {udp_dst: 1}, actions: [{type: queue, id: 0}]}
          - {name: forwarded, match: {udp_dst: 2}, actions: [{type: queue, id: 1}]}
          - {name: sunk, match: {udp_dst: 3}, actions: [{type: queue, id: 2}]}
          - {name: mine, match: {udp_dst: 4}, actions: [{type: queue, id: 3}]}
      tx: {queues: [{memory_regions: [b]}]}
    - {name: far, engine: sim, address: "sim://far?loop", rx: {queues: [{memory_regions: [a]}]}, tx: {queues: [{memory_regions: [b]}]}}
    - {name: server, address: "udp://127.0.0.1:0", rx: {queues: [{memory_regions: [a]}]}, tx: {queues: [{memory_regions: [b]}]}}
  transfers: {listen: ["tcp://127.0.0.1:0"]}
  applications:
    - {name: counter, kind: count, interface: loop, queue: 0}
    - {name: forwarder, kind: forward, interface: loop, queue: 1, to: far}
    - {name: radar, kind: sink, interface: loop, queue: 2, tensor: {name: samples, dtype: u8, shape: [4, 22], sequence: {offset: 0, width: 4}}}
    - {name: echo, kind: echo, interface: server}
`

// Open alone runs the applications of a file: packets are counted, sent on, echoed, and put into a
// tensor that peers get. Their queues are theirs, the others the program's.
func TestApplications(t *testing.T) {
	s := mustOpen(t, appsText, Options{})
	var planned []string
	for _, a := range s.Plan().Applications {
		planned = append(planned, a.text())
	}
	want := []string{"counter: count loop/0", "forwarder: forward loop/1 -> far/0",
		"radar: sink loop/2, into the tensor samples, u8[4 22]", "echo: echo server/0"}
	if !slices.Equal(planned, want) || !strings.Contains(s.Plan().Text(), "\napplications\n  counter: count loop/0\n") {
		t.Errorf("%q\n%s", planned, s.Plan().Text())
	}
	for queue, name := range []string{"counter", "forwarder", "radar"} {
		if _, err := s.Rx("loop", queue); !errors.Is(err, engine.ErrInUse) || !strings.Contains(err.Error(),
			fmt.Sprintf("the application %q takes the packets of receive queue %d of \"loop\"", name, queue)) {
			t.Error(err)
		}
		if q := s.Interfaces()[0].Rx[queue]; q.Application != name || q.Receiver != nil {
			t.Errorf("%+v", q)
		}
	}
	if q := s.Interfaces()[0].Rx[3]; q.Application != "" || q.Receiver != rxOf(t, s, "loop", 3) {
		t.Errorf("%+v", q)
	}
	const n = 4
	for i := range uint32(n) {
		for port := range uint16(4) {
			sendFrames(t, txOf(t, s, "loop", 0), udpFrame(t, port+1, i))
		}
	}
	take := func(iface string, queue int, port uint16) {
		t.Helper()
		b := burst.New(n)
		for got := uint32(0); got < n; b.Release() {
			if err := rxOf(t, s, iface, queue).Recv(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			for i := range b.Len() {
				if p := b.Bytes(i, 0); numberOf(p) != got || p[37] != byte(port) {
					t.Errorf("%s/%d: packet %d is %x", iface, queue, got, p)
				}
				got++
			}
		}
	}
	take("far", 0, 2) // that the application sends there
	take("loop", 3, 4)
	pingPong(t, s.Port("server").Info().Address)
	until(t, "the count", func() bool { return s.Snapshot().Applications[0].Packets == n })

	node, err := transfer.Open(t.Context(), transfer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	peer, err := node.Dial(t.Context(), s.Node().Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	const row = 22
	got, err := mem.Alloc(mem.Options{Size: n * row})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	dst, err := got.Span(0, n*row)
	if err != nil {
		t.Fatal(err)
	}
	desc, x, err := peer.GetTensor(t.Context(), "samples", dst)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(n) {
		if b := dst.Bytes()[i*row : (i+1)*row]; desc.String() != "u8[4 22]" || !bytes.Equal(b, udpFrame(t, 3, i)[42:]) {
			t.Errorf("row %d of %v is %x", i, desc, b)
		}
	}

	var families []string
	for _, f := range s.Metrics() {
		families = append(families, f.Name)
	}
	if !slices.Contains(families, "penstock_application_packets_total") {
		t.Errorf("%q", families)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for i, a := range s.Snapshot().Applications {
		if a.Packets != a.Sent+a.Taken+a.Drops.Total() || a.Packets == 0 || a.Ended != "" ||
			a.From != s.Plan().Applications[i].From || a.To != s.Plan().Applications[i].To {
			t.Errorf("%+v", a)
		}
	}
	if _, err := s.Rx("loop", 0); !errors.Is(err, engine.ErrInUse) {
		t.Error(err)
	}
}

// A file without an application for a queue leaves it to the program, unless that wants none left
// over.
func TestUnclaimedQueues(t *testing.T) {
	s := mustOpen(t, appsText, Options{Unclaimed: app.Count})
	all := s.Plan().Applications
	if len(all) != 6 || all[3].Unclaimed || !all[4].Unclaimed || !all[5].Unclaimed ||
		all[4].text() != "unclaimed loop/3: count loop/3" || all[5].From != "far/0" {
		t.Errorf("%+v", all)
	}
	if _, err := s.Rx("loop", 3); !errors.Is(err, engine.ErrInUse) {
		t.Error(err)
	}
	sendFrames(t, txOf(t, s, "loop", 0), udpFrame(t, 4, 0))
	until(t, "the count", func() bool { return s.Snapshot().Applications[4].Packets == 1 })
	if cfg := mustLoad(t, appsText); s.Config().Applications == nil ||
		len(s.Config().Applications) != len(cfg.Applications) {
		t.Errorf("the configuration has %d applications", len(s.Config().Applications))
	}
	if _, err := s.Reload(mustLoad(t, strings.Replace(appsText, "udp_dst: 4", "udp_dst: 5", 1))); err != nil {
		t.Error(err)
	}
}

// What a program cannot run is missing, each with its place and how to go on, and nothing is
// opened.
func TestMissingApplications(t *testing.T) {
	text := strings.NewReplacer("kind: count, interface: loop, queue: 0", "kind: tee, interface: loop, queue: 0",
		"queue: 1, to: far}", "queue: 1, to: server, cpu_core: 4094}").Replace(appsText)
	cfg, problems := config.Load("test.yaml", []byte(text), config.Options{Kinds: []string{"tee"}})
	if cfg == nil {
		t.Fatal(problems.Err())
	}
	d := &diary{}
	s, err := Open(t.Context(), cfg, Options{Engines: noted(t, d)})
	var missing *MissingError
	if s != nil || !errors.As(err, &missing) || len(missing.Missing) != 3 || len(d.read()) > 0 {
		t.Fatalf("%v, %v", err, d.read())
	}
	for i, want := range []string{`test.yaml:22:29: needs: application "counter": this program has no kind tee; expected one of count, echo, forward, sink; Options.Applications adds kinds`,
		`test.yaml:23:71: needs: application "forwarder": packets of loop are frames, and those of server are datagrams: nothing can be forwarded between them; expected an interface whose packets are frames`,
		`test.yaml:23:89: needs: this process cannot run on core 4094; expected one of `} {
		if got := missing.Missing[i].String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s\nexpected\n%s", got, want)
		}
	}
}

// failing is a consumer that fails at the second burst.
type failing struct{ bursts, closed int }

var errFull = errors.New("the disk is full")

func (f *failing) Consume(context.Context, *burst.Burst) error {
	if f.bursts++; f.bursts > 1 {
		return errFull
	}
	return nil
}

func (f *failing) Close() error { f.closed++; return nil }

// A program adds kinds of its own. An application that fails is heard of, and Close ends the
// others, which wait for packets.
func TestApplicationFails(t *testing.T) {
	cfg, problems := config.Load("test.yaml", []byte(strings.Replace(appsText, "kind: count", "kind: disk", 1)),
		config.Options{Kinds: []string{"disk"}})
	if cfg == nil {
		t.Fatal(problems.Err())
	}
	f, kinds := &failing{}, app.Kinds()
	kinds["disk"] = func(*app.Options) (engine.Consumer, error) { return f, nil }
	heard := make(chan error, 4)
	s, err := Open(t.Context(), cfg, Options{Logger: silent, Applications: kinds,
		OnApplication: func(name string, err error) {
			heard <- fmt.Errorf("%s: %w", name, err)
		}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint32(2) {
		sendFrames(t, txOf(t, s, "loop", 0), udpFrame(t, 1, i))
		until(t, "the packet", func() bool { return s.Snapshot().Applications[0].Packets == uint64(i+1) })
	}
	if err := <-heard; !errors.Is(err, errFull) || !strings.HasPrefix(err.Error(), "counter: ") {
		t.Error(err)
	}
	x := s.Snapshot().Applications
	if x[0].Ended != `application "counter": the disk is full` || x[1].Ended != "" || x[0].Taken != 1 ||
		x[0].Drops[app.DropRefused] != 1 {
		t.Errorf("%+v", x)
	}
	if err := s.Close(); err != nil || f.closed == 0 || len(heard) > 0 {
		t.Errorf("%v, closed %d times, %d more have ended", err, f.closed, len(heard))
	}
}

// An application that cannot be made ends Open, with its place in the file, and everything is
// closed again.
func TestApplicationNotMade(t *testing.T) {
	kinds := app.Kinds()
	kinds[app.Sink] = func(*app.Options) (engine.Consumer, error) { return nil, errFull }
	_, err := Open(t.Context(), mustLoad(t, appsText), Options{Logger: silent, Applications: kinds})
	if !errors.Is(err, errFull) || !strings.Contains(err.Error(), "test.yaml:24:7: ") ||
		!strings.Contains(err.Error(), `application "radar": the disk is full`) {
		t.Error(err)
	}
}
