package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
)

// badFrame has a wrong checksum.
func badFrame(t testing.TB, port uint16) []byte {
	f := udpFrame(t, port, 1)
	f[len(f)-1] ^= 1
	return f
}

// A stage that a file names stands between the queue and the receiver, with a poller and without,
// and what it drops is seen.
func TestStages(t *testing.T) {
	for _, poll := range []string{"event", "direct"} {
		s := mustOpen(t, twoRegions+`
  interfaces:
    - name: loop
      engine: sim
      address: sim://`+t.Name()+`?loop
      rx: {queues: [{memory_regions: [a], poll_mode: `+poll+`, stages: [{type: "checksum?all"}]}]}
      tx: {queues: [{memory_regions: [b]}]}
`, Options{})
		sendFrames(t, txOf(t, s, "loop", 0), badFrame(t, 1), udpFrame(t, 2, 1), badFrame(t, 3), udpFrame(t, 4, 1))
		b := burst.New(8)
		for b.Len() < 2 {
			if err := rxOf(t, s, "loop", 0).Recv(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		if want := udpFrame(t, 4, 1); b.Len() != 2 || !slices.Equal(b.Bytes(1, 0), want) {
			t.Errorf("%d packets, the last %x, expected %x", b.Len(), b.Bytes(1, 0), want)
		}
		b.Release()
		q := s.Snapshot().Interfaces[0].Rx[0]
		if len(q.Stages) != 1 || q.Stages[0].Type != "checksum" || q.Stages[0].Stats.Packets != 2 ||
			q.Stages[0].Stats.Drops[engine.DropBadChecksum] != 2 || q.Stats.Packets != 4 {
			t.Errorf("%+v", q)
		}
		var got []string
		for _, f := range s.Metrics() {
			if err := f.Check(); err != nil {
				t.Error(err)
			}
			if strings.HasPrefix(f.Name, "penstock_stage_") {
				for _, x := range f.Samples {
					got = append(got, fmt.Sprint(f.Name, x.Values, x.Value))
				}
			}
		}
		if want := []string{"penstock_stage_packets_total[loop 0 0 checksum] 2",
			"penstock_stage_packets_dropped_total[loop 0 0 checksum bad-checksum] 2"}; !slices.Equal(got, want) {
			t.Errorf("%q, expected %q", got, want)
		}
		if text := strings.Join(strings.Fields(s.Plan().Text()), " "); !strings.Contains(text, "stages checksum") {
			t.Error(text)
		}
		ended := make(chan error)
		go func() { ended <- rxOf(t, s, "loop", 0).Recv(t.Context(), b) }()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, engine.ErrClosed) {
			t.Error(err)
		}
	}
}

// ends counts packets, and ends the reception at the last one.
type ends struct{ left int }

func (c *ends) Consume(_ context.Context, b *burst.Burst) error {
	if c.left -= b.Len(); c.left <= 0 {
		return io.EOF
	}
	return nil
}

func (c *ends) Close() error { return nil }

// A consumer takes the packets of a queue without an application.
func TestConsumeQueue(t *testing.T) {
	s := mustOpen(t, twoRegions+`
  interfaces:
    - name: loop
      engine: sim
      address: sim://`+t.Name()+`?loop
      rx: {queues: [{memory_regions: [a]}]}
      tx: {queues: [{memory_regions: [b]}]}
`, Options{})
	sendNumbers(t, txOf(t, s, "loop", 0), 1, 9)
	c := &ends{9}
	if err := engine.Consume(t.Context(), rxOf(t, s, "loop", 0), burst.New(4), c); err != io.EOF || c.left != 0 {
		t.Error(err, c.left)
	}
}

// slow is a stage of a program: it gives a packet when the next one has come, and the last one when
// it ends.
type slow struct {
	engine.Receiver
	name string
	log  *[]string
	kept *burst.Burst
	in   *burst.Burst
	err  error
}

func (s *slow) TryRecv(b *burst.Burst) (int, error) {
	if _, err := s.Receiver.TryRecv(s.in); err != nil {
		s.err = err
	}
	if s.kept.Len() > 0 && (s.in.Len() > 0 || s.err != nil) && b.Room() > 0 {
		n := s.kept.MoveTo(b)
		s.in.MoveTo(s.kept)
		return n, nil
	}
	s.in.MoveTo(s.kept)
	if s.kept.Len() == 0 {
		return 0, s.err
	}
	return 0, nil
}

func (s *slow) Arm(w *engine.Waker) bool {
	if s.Receiver.Arm(w) || s.in.Len() > 0 {
		w.Wake()
	}
	return false
}

func (s *slow) Stats(out *engine.RxStats) { *out = engine.RxStats{} }

func (s *slow) Close() error {
	*s.log = append(*s.log, s.name)
	s.kept.Release()
	s.in.Release()
	return nil
}

// A program adds stages with one line. They stand one on the other in the order of the file, are
// closed from the application on, before the queue, and what they keep goes back.
func TestStagesOfAProgram(t *testing.T) {
	for _, poll := range []string{"adaptive", "direct"} {
		var log []string
		kind := func(name string) engine.StageKind {
			return engine.StageKind{Name: name, Open: func(from engine.Receiver, spec engine.StageSpec) (engine.Stage,
				error) {
				log = append(log, "open "+name+" "+spec.Queue)
				return &slow{Receiver: from, name: name, log: &log, kept: burst.New(1), in: burst.New(1)}, nil
			}}
		}
		s := mustOpen(t, twoRegions+`
  interfaces:
    - name: loop
      engine: sim
      address: sim://`+t.Name()+`?loop
      rx: {queues: [{name: q, memory_regions: [a], poll_mode: `+poll+`, stages: [{type: one}, {type: two}]}]}
      tx: {queues: [{memory_regions: [b]}]}
`, Options{Stages: []engine.StageKind{kind("one"), kind("two")}})
		sendNumbers(t, txOf(t, s, "loop", 0), 1, 5)
		wantNumbers(t, rxOf(t, s, "loop", 0), 1, 3) // two are kept
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if want := []string{"open one q", "open two q", "two", "one"}; !slices.Equal(log, want) {
			t.Errorf("%q, expected %q", log, want)
		}
	}
}

// A stage that is not here is missing, with its place and what there is; one that fails to open
// closes everything.
func TestStagesMissing(t *testing.T) {
	text := twoRegions + `
  interfaces:
    - name: udp
      address: "udp://127.0.0.1:0"
      rx: {queues: [{memory_regions: [a], stages: [{type: chekcsum}, {type: checksum}, {type: "checksum?al"}]}]}
`
	_, err := Open(t.Context(), mustLoad(t, text), Options{})
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), ":9:") || !strings.Contains(err.Error(),
		`no stage is called "chekcsum"; there is: checksum`) || !strings.Contains(err.Error(), "has no frames") ||
		!strings.Contains(err.Error(), "did you mean all?") {
		t.Error(err)
	}
	broken := errors.New("broken")
	text = strings.NewReplacer("chekcsum", "broken", `, {type: "checksum?al"}`, "").Replace(text)
	table := []engine.StageKind{{Name: "broken", Open: func(engine.Receiver, engine.StageSpec) (engine.Stage, error) {
		return nil, broken
	}}, {Name: "checksum"}}
	if _, err := Open(t.Context(), mustLoad(t, text), Options{Stages: table}); !errors.Is(err, broken) ||
		!strings.Contains(err.Error(), "stage broken") || !strings.Contains(err.Error(), ":9:") {
		t.Error(err)
	}
}

// The modes of pollers in files, and what they may not ask for.
func TestPollModes(t *testing.T) {
	file := func(queues string) string {
		return `penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 256, buf_size: 2KiB}]
  interfaces:
    - name: a
      engine: sim
      address: sim://` + t.Name() + `?loop
      rx:
        queues: [` + queues + `]
      tx: {queues: [{memory_regions: [m]}]}
`
	}
	if runtime.GOMAXPROCS(0) < 2 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	}
	s := mustOpen(t, file(`{name: b, memory_regions: [m], poll_mode: busy}, {name: c, memory_regions: [m], poll_mode: adaptive}, {name: d, memory_regions: [m], poll_mode: event}`), Options{})
	var got []string
	for _, p := range s.Plan().Pollers {
		got = append(got, p.Name+" "+p.Mode)
	}
	if want := []string{"a/b busy", "a/c adaptive", "a/d event"}; !slices.Equal(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
	sendNumbers(t, txOf(t, s, "a", 0), 1, 3)
	wantNumbers(t, rxOf(t, s, "a", 0), 1, 3)
	if p := s.Snapshot().Pollers; p[0].Stats.Sleeps != 0 || p[0].Stats.Packets != 3 {
		t.Errorf("%+v", p[0])
	}

	p, err := MakePlan(mustLoad(t,
		file(`{memory_regions: [m], cpu_core: 0, poll_mode: event}, {memory_regions: [m], cpu_core: 0}, {memory_regions: [m], cpu_core: 0, poll_mode: busy}`)), Options{})
	if err != nil || len(p.Pollers) != 1 || p.Err() == nil ||
		!strings.Contains(p.Err().Error(), "one mode for all queues of a core") ||
		!strings.Contains(p.Err().Error(), ":8:") {
		t.Errorf("%v, %v, %+v", err, p.Err(), p.Pollers)
	}
	many := strings.TrimSuffix(strings.Repeat(`{memory_regions: [m], poll_mode: busy}, `, runtime.GOMAXPROCS(0)), ", ")
	if p, err := MakePlan(mustLoad(t, file(many)), Options{}); err != nil || p.Err() == nil ||
		!strings.Contains(p.Err().Error(), "GOMAXPROCS") {
		t.Errorf("%v, %v", err, p.Err())
	}
}

// A file puts packets through a persistent kernel, and the snapshot has its counts.
func TestFeedStage(t *testing.T) {
	s := mustOpen(t, `penstock:
  gpu_runtime: host
  memory_regions:
    - {name: in, kind: host_pinned, num_bufs: 512, buf_size: 2KiB}
    - {name: out, kind: host, num_bufs: 512, buf_size: 2KiB}
  interfaces:
    - name: loop
      engine: sim
      address: sim://`+t.Name()+`?loop
      rx: {queues: [{memory_regions: [in], stages: [{type: "feed?kernel=echo&memory=in&slots=8&ordered"}]}]}
      tx: {queues: [{memory_regions: [out]}]}
`, Options{})
	sendFrames(t, txOf(t, s, "loop", 0), udpFrame(t, 2, 1), make([]byte, 60), udpFrame(t, 4, 1))
	b := burst.New(8)
	for b.Len() < 2 {
		if err := rxOf(t, s, "loop", 0).Recv(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		want := udpFrame(t, uint16(2+2*i), 1)
		if got := b.Bytes(i, 0); !slices.Equal(got[:6], want[6:12]) || !slices.Equal(got[26:30], want[30:34]) ||
			!slices.Equal(got[34:36], want[36:38]) {
			t.Errorf("the answer to %x is %x", want, got)
		}
	}
	b.Release()
	q := s.Snapshot().Interfaces[0].Rx[0].Stages[0]
	if q.Type != "feed" || q.Stats.Packets != 2 || q.Stats.Drops[engine.DropRule] != 1 ||
		q.Counts[0] != (engine.Count{Name: "published", N: 3}) || q.Counts[1] != (engine.Count{Name: "results", N: 3}) {
		t.Errorf("%+v", q)
	}
	levels := 0
	for _, f := range s.Metrics() {
		if !strings.HasPrefix(f.Name, "penstock_stage_") {
			continue
		}
		for _, x := range f.Samples {
			if name := x.Values[len(x.Values)-1]; name == "in_ring" || name == "high_water" {
				if levels++; f.Name != "penstock_stage_level" || f.Kind != metrics.KindGauge {
					t.Errorf("%s is in %s, a %s", name, f.Name, f.Kind)
				}
			}
		}
	}
	if levels != 2 {
		t.Errorf("%d levels", levels)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
