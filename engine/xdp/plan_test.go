package xdp

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
)

// Ports that name one memory, or forward to each other, share a Memory around the first one that is
// fit for it, and what is alike is divided together.
func TestPlanMemory(t *testing.T) {
	need := func(stride, alike int, ports ...int) engine.MemoryNeed {
		return engine.MemoryNeed{Name: "m", Kind: mem.Host, CPU: true, Stride: stride, Alike: alike, Ports: ports}
	}
	far := engine.MemoryNeed{Name: "far", Kind: mem.Device, Stride: 2048, Ports: []int{0}}
	type share struct {
		ports, carve []int
		home         int
	}
	for name, c := range map[string]struct {
		ports    int
		memories []engine.MemoryNeed
		forwards [][2]int
		copied   []int // memories
		want     []share
	}{
		"a port alone makes its own": {ports: 1, memories: []engine.MemoryNeed{need(2048, 1, 0)}},
		"two memories of one port": {ports: 1, memories: []engine.MemoryNeed{need(2048, 1, 0), need(2048, 1, 0)},
			want: []share{{[]int{0}, []int{0, 1}, 0}}},
		"of other kinds": {ports: 1,
			memories: []engine.MemoryNeed{need(2048, 1, 0), need(2048, 2, 0), need(4096, 1, 0), need(2048, 0, 0)}},
		"one memory of two ports": {ports: 3,
			memories: []engine.MemoryNeed{need(4096, 0, 0, 2), need(2048, 1, 1)}, want: []share{{[]int{0, 2}, nil, 0}}},
		"forwarding": {ports: 2, memories: []engine.MemoryNeed{need(2048, 1, 0), need(2048, 1, 1)},
			forwards: [][2]int{{1, 0}}, want: []share{{[]int{0, 1}, []int{0, 1}, 0}}},
		"not forwarding": {ports: 2,
			memories: []engine.MemoryNeed{need(2048, 1, 0), need(2048, 1, 1)}},
		"in a chain": {ports: 4, memories: []engine.MemoryNeed{need(2048, 0, 3),
			need(2048, 0, 1, 2)}, forwards: [][2]int{{3, 1}, {0, 2}}, want: []share{{[]int{0, 1, 2, 3}, nil, 0}}},
		"slots that are not chunks": {ports: 2, memories: []engine.MemoryNeed{need(1024, 1, 0, 1)},
			copied: []int{0}},
		"the first fit one is the home": {ports: 2, memories: []engine.MemoryNeed{far, need(1024, 1, 0),
			need(4096, 0, 0, 1)}, copied: []int{0, 1}, want: []share{{[]int{0, 1}, nil, 2}}},
		"what is not alike stays outside": {ports: 2, memories: []engine.MemoryNeed{need(2048, 1, 0, 1),
			need(2048, 2, 1), need(2048, 1, 1)}, want: []share{{[]int{0, 1}, []int{0, 2}, 0}}},
	} {
		plan := New().PlanMemory(&engine.MemoryNeeds{Ports: make([]engine.PortSpec, c.ports), Memories: c.memories,
			Forwards: c.forwards})
		for i, a := range plan.Answers {
			switch copied := slices.Contains(c.copied, i); {
			case copied != (a.Use == engine.UseCopied), !copied && a.Use != engine.UseParts:
				t.Errorf("%s: memory %d is %v", name, i, a.Use)
			case (copied && c.memories[i].CPU) != strings.Contains(a.Why, "1024 bytes apart"):
				t.Errorf("%s: memory %d: %q", name, i, a.Why)
			}
		}
		if !slices.EqualFunc(plan.Shares, c.want, func(s engine.MemoryShare, w share) bool {
			return slices.Equal(s.Ports, w.ports) && slices.Equal(s.Parts, w.carve) && s.Home == w.home
		}) {
			t.Errorf("%s: %+v, expected %+v", name, plan.Shares, c.want)
		}
	}
}

// What is shared is a Memory with as many spare chunks as the port that asks for most, and ports
// get it in their options.
func TestPlanMemoryOpen(t *testing.T) {
	region, err := mem.Alloc(mem.Options{Name: "home", Size: 64 * 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	for _, c := range []struct{ first, second, want int }{{-1, -1, 0}, {-1, 32, 32}, {64, 32, 64},
		{0, 32, defaultSpare}} {
		n := &engine.MemoryNeeds{Ports: []engine.PortSpec{{Options: Options{Spare: c.first, Ring: 128}},
			{Options: &Options{Spare: c.second}}},
			Memories: []engine.MemoryNeed{{Name: "m", CPU: true, Stride: 4096, Ports: []int{0, 1}}}}
		plan := New().PlanMemory(n)
		if len(plan.Shares) != 1 {
			t.Fatalf("%+v", plan)
		}
		x, err := plan.Shares[0].Open(region)
		if err != nil {
			t.Fatal(err)
		}
		m := x.(*Memory)
		spare := 0
		if m.spare != nil {
			spare = m.spare.Slots()
		}
		if m.Chunk() != 4096 || m.region != region || spare != c.want {
			t.Errorf("chunks of %d bytes, %d spare ones, expected %d", m.Chunk(), spare, c.want)
		}
		for i := range n.Ports {
			if err := x.AddTo(&n.Ports[i]); err != nil {
				t.Error(err)
			}
		}
		if o := n.Ports[0].Options.(Options); o.Memory != m || o.Ring != 128 ||
			n.Ports[1].Options.(Options).Memory != m {
			t.Errorf("%+v", o)
		}
		if err := x.AddTo(&engine.PortSpec{Options: 1}); !errors.Is(err, engine.ErrInvalid) {
			t.Error(err)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}
