package engine

import (
	"testing"

	"github.com/penstock-io/penstock/mem"
)

// able is an engine with these capabilities, planner one that knows better.
type able struct {
	named
	can Capabilities
}

func (a able) Capabilities() Capabilities { return a.can }

type planner struct{ able }

func (planner) PlanMemory(n *MemoryNeeds) MemoryPlan {
	return MemoryPlan{Answers: make([]MemoryAnswer, len(n.Memories)), Shares: []MemoryShare{{Home: 7}}}
}

// An engine that does not plan is known by its capabilities.
func TestPlanMemory(t *testing.T) {
	host, pinned, card := MemoryNeed{Kind: mem.Host, CPU: true}, MemoryNeed{Kind: mem.Device, CPU: true},
		MemoryNeed{Kind: mem.Device}
	needs := &MemoryNeeds{Ports: make([]PortSpec, 1), Memories: []MemoryNeed{host, pinned, card}}
	for name, c := range map[string]struct {
		can  Capabilities
		want [3]MemoryUse
	}{
		"unknown": {Capabilities{}, [3]MemoryUse{UseUnknown, UseUnknown, UseCopied}},
		"socket":  {Capabilities{MemoryUse: UseInPlace}, [3]MemoryUse{UseInPlace, UseInPlace, UseCopied}},
		"card": {Capabilities{MemoryUse: UseRegistered, Memory: []mem.Kind{mem.Host, mem.Device}},
			[3]MemoryUse{UseRegistered, UseReached, UseReached}},
		"optional": {Capabilities{MemoryUse: UseCopied, Pools: PoolsOptional, PoolsWhy: "blocks"},
			[3]MemoryUse{UseCopied, UseCopied, UseCopied}},
	} {
		plan := PlanMemory(able{can: c.can}, needs)
		if len(plan.Answers) != 3 || len(plan.Shares) != 0 {
			t.Fatalf("%s: %+v", name, plan)
		}
		for i, a := range plan.Answers {
			if a.Use != c.want[i] {
				t.Errorf("%s: memory %d: %v (%s), expected %v", name, i, a.Use, a.Why, c.want[i])
			}
		}
	}
	if plan := PlanMemory(planner{}, needs); len(plan.Shares) != 1 || plan.Shares[0].Home != 7 {
		t.Errorf("the engine was not asked: %+v", plan)
	}
	if UseReached.String() != "reached" || MemoryUse(99).String() != "use 99" {
		t.Error(UseReached, MemoryUse(99))
	}
}
