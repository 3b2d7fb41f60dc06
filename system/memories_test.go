package system

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
)

// sharer is the engine sim as one whose ports share a memory.
type sharer struct {
	*noting
	needs engine.MemoryNeeds
}

func (e *sharer) PlanMemory(n *engine.MemoryNeeds) engine.MemoryPlan {
	e.needs = *n
	return engine.MemoryPlan{
		Answers: []engine.MemoryAnswer{{Use: engine.UseParts},
			{Use: engine.UseCopied, Why: "a is odd", Hint: "make it even"}, {Use: engine.UseParts}},
		Shares: []engine.MemoryShare{{Ports: []int{1, 2}, Home: 0, Parts: []int{0, 2}, Open: e.share}},
	}
}

func (e *sharer) share(home *mem.Region) (engine.SharedMemory, error) {
	return &sharedMemory{e}, e.d.step("share %d KiB", home.Len()>>10)
}

type sharedMemory struct{ e *sharer }

func (m *sharedMemory) AddTo(s *engine.PortSpec) error { return m.e.d.step("add to %s", s.Name) }
func (m *sharedMemory) Close() error                   { m.e.d.note("close it"); return nil }

// Any engine may have ports share memory: it is asked with all that they use, regions are divided
// as it says, the memory is made before its ports and given up when they have it, and whatever
// fails is undone.
func TestEngineSharesMemory(t *testing.T) {
	text := `penstock:
  memory_regions:
    - {name: x, kind: host, num_bufs: 2048, buf_size: 2KiB}
    - {name: a, kind: host, num_bufs: 2048, buf_size: 1000, align: 64}
    - {name: b, kind: host, num_bufs: 1024, buf_size: 4KiB}
  interfaces:
    - {name: other, address: "udp://127.0.0.1:0", rx: {queues: [{memory_regions: [x]}]}}
    - {name: zero, engine: sim, address: "sim://0?loop", rx: {queues: [{memory_regions: [b]}]}}
    - {name: one, engine: sim, address: "sim://1?loop", rx: {queues: [{memory_regions: [a]}]}, tx: {queues: [{memory_regions: [b]}]}}
    - {name: two, engine: sim, address: "sim://2?loop", rx: {queues: [{memory_regions: [x]}]}, tx: {queues: [{memory_regions: [a]}]}}
  applications: [{kind: forward, interface: two, to: one}, {kind: count, interface: zero}]
`
	open := func(fail int) (*System, *sharer, *diary, error) {
		d := &diary{fail: fail}
		table := noted(t, d)
		e := &sharer{noting: table.Engines()[0].(*noting)}
		table, err := engine.NewTable(e, table.Engines()[1])
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), mustLoad(t, text), Options{Engines: table})
		return s, e, d, err
	}
	s, e, d, err := open(0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range e.needs.Memories {
		got = append(got, fmt.Sprintf("%s of %d bytes, cpu %v, alike %d, ports %v", m.Name, m.Stride, m.CPU, m.Alike,
			m.Ports))
	}
	if want := []string{"b of 4096 bytes, cpu true, alike 1, ports [0 1]",
		"a of 1024 bytes, cpu true, alike 1, ports [1 2]",
		"x of 2048 bytes, cpu true, alike 1, ports [2]"}; !slices.Equal(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
	if len(e.needs.Ports) != 3 || e.needs.Ports[2].Name != "two" || !slices.Equal(e.needs.Forwards, [][2]int{{2, 1}}) {
		t.Errorf("%+v", e.needs)
	}
	lines := d.read()
	lines = slices.DeleteFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "rx ") || strings.HasPrefix(l, "tx ")
	})
	if want := []string{"share 8192 KiB", "open zero", "add to one", "open one", "add to two",
		"open two"}; !slices.Equal(lines, want) {
		t.Errorf("%q, expected %q", lines, want)
	}
	if s.Region("b").Region() != s.Region("x").Region() || s.Region("b").Region() == s.Region("a").Region() ||
		s.Region("x").Span().Off != 4<<20 {
		t.Error("the regions are not divided as the engine says")
	}
	p := s.Plan()
	if p.Regions[0].Area != "sim-one" || !slices.Equal(p.Regions[0].Uses,
		[]string{"sim: part of UMEM", "socket: in place"}) || p.Interfaces[2].Memory != "sim-one" ||
		p.Interfaces[1].Memory != "" ||
		len(p.Notes) != 1 || p.Notes[0].Path != "memory_regions[1].buf_size" ||
		!strings.Contains(strings.Join(strings.Fields(p.Text()), " "),
			"sim-one, 4.0 MiB (sim: part of UMEM, socket: in place)") {
		t.Errorf("%s", p.Text())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if lines = d.read(); !slices.Equal(lines[len(lines)-2:], []string{"close two", "close it"}) {
		t.Errorf("%q: expected the memory to be given up behind the ports", lines)
	}
	for fail := 1; fail < 5; fail++ {
		_, _, d, err := open(fail)
		if !errors.Is(err, engine.ErrInternal) {
			t.Fatalf("step %d: %v", fail, err)
		}
		if lines := d.read(); slices.Contains(lines, "close it") != (fail > 1) {
			t.Errorf("step %d fails: %q", fail, lines)
		}
	}
}
