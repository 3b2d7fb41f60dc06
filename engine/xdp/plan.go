package xdp

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
)

// PlanMemory implements engine.MemoryPlanner: ports whose queues name the same memory, or that
// forward to each other, share one Memory, around the first memory whose slots the kernel receives
// into.
func (*Engine) PlanMemory(n *engine.MemoryNeeds) engine.MemoryPlan {
	plan := engine.MemoryPlan{Answers: make([]engine.MemoryAnswer, len(n.Memories))}
	first := make([]int, len(n.Ports)) // of the ports that a port shares with
	for i := range first {
		first[i] = i
	}
	join := func(a, b int) {
		a, b = first[a], first[b]
		for i := range first {
			if first[i] == max(a, b) {
				first[i] = min(a, b)
			}
		}
	}
	for i := range n.Memories {
		x := &n.Memories[i]
		for _, p := range x.Ports {
			join(x.Ports[0], p)
		}
		switch a := &plan.Answers[i]; {
		case !x.CPU:
			a.Use = engine.UseCopied
		case !isChunk(x.Stride):
			a.Use = engine.UseCopied
			a.Why = fmt.Sprintf("the slots of %s are %d bytes apart, so the engine %s copies each packet", x.Name,
				x.Stride, Name)
			a.Hint = "slots of 2KiB or 4KiB are received into and sent from in place"
		default:
			a.Use = engine.UseParts
		}
	}
	for _, f := range n.Forwards {
		join(f[0], f[1])
	}
	for i := range n.Ports {
		if first[i] == i {
			plan.Shares = append(plan.Shares, share(n, plan.Answers, first, i)...)
		}
	}
	return plan
}

// share is the memory of the ports whose first one is that, none where each port makes its own as
// well.
func share(n *engine.MemoryNeeds, answers []engine.MemoryAnswer, first []int, of int) []engine.MemoryShare {
	s, spare := engine.MemoryShare{Home: -1}, -1 // none
	for i := range n.Ports {
		if first[i] == of {
			s.Ports = append(s.Ports, i)
			_, o, _ := resolve(n.Ports[i])
			spare = max(spare, o.Spare)
		}
	}
	for i := range n.Memories {
		if x := &n.Memories[i]; answers[i].Use == engine.UseParts && slices.ContainsFunc(x.Ports, func(p int) bool {
			return first[p] == of
		}) {
			if s.Home < 0 {
				s.Home = i
			}
			if h := &n.Memories[s.Home]; h.Alike > 0 && h.Alike == x.Alike && h.Stride == x.Stride {
				s.Parts = append(s.Parts, i)
			}
		}
	}
	if len(s.Parts) < 2 {
		s.Parts = nil
		if len(s.Ports) < 2 || s.Home < 0 {
			return nil
		}
	}
	chunk := n.Memories[s.Home].Stride
	s.Open = func(home *mem.Region) (engine.SharedMemory, error) {
		return NewMemory(MemoryOptions{Region: home, Chunk: chunk, Spare: spare})
	}
	return []engine.MemoryShare{s}
}

// isChunk reports whether the kernel can receive into slots that are so many bytes apart.
func isChunk(stride int) bool { return stride == 2048 || stride == 4096 }

// AddTo implements engine.SharedMemory: it is Options.Memory.
func (m *Memory) AddTo(spec *engine.PortSpec) error {
	o, err := engine.Given[Options](spec.Options)
	if err != nil {
		return err
	}
	o.Memory = m
	spec.Options = o
	return nil
}
