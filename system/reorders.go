package system

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/stage/reorder"
)

// reorderStage is the stage for the reorder plans whose flows go to a receive queue, nil without
// one. It stands behind the stages that record packets (config.RxQueue.OfPackets). A plan whose
// flows go to several queues is one for all of them.
func (p *Plan) reorderStage(rx *config.Rx, q *config.RxQueue, path string) *engine.StageKind {
	var shares []*reorderShare
	for k := range rx.Reorder {
		r := &rx.Reorder[k]
		if !r.Takes(rx, q.ID) {
			continue
		}
		at := fmt.Sprintf("%s.reorder[%d]", path, k)
		if p.reorders[at] == nil {
			if p.reorders == nil {
				p.reorders = map[string]*reorderShare{}
			}
			p.reorders[at] = &reorderShare{spec: r, timeout: q.Timeout}
			p.checkReorder(r, at)
		}
		shares = append(shares, p.reorders[at])
	}
	if shares == nil {
		return nil
	}
	return &engine.StageKind{Name: "reorder", Open: func(from engine.Receiver, spec engine.StageSpec) (engine.Stage,
		error) {
		var plans []*reorder.Shared
		for _, x := range shares {
			s, err := x.open(spec)
			if err != nil {
				return nil, err
			}
			plans = append(plans, s)
		}
		return reorder.NewShared(from, spec, plans...)
	}}
}

// reorderShare is a reorder plan of a file, and what the stages of its queues share while they are
// open.
type reorderShare struct {
	spec    *config.Reorder
	timeout time.Duration // of the first queue

	mu     sync.Mutex
	shared *reorder.Shared // nil before the first stage
}

func (x *reorderShare) open(spec engine.StageSpec) (*reorder.Shared, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.shared != nil && !x.shared.Closed() {
		return x.shared, nil
	}
	plan := x.spec.Plan()
	if plan.Pool, plan.Timeout = spec.Pools[x.spec.Region], x.timeout; plan.Pool == nil {
		return nil, fmt.Errorf("reorder: plan %q: no memory region %q: %w", plan.Name, x.spec.Region,
			engine.ErrNotFound)
	}
	s, err := reorder.Share(plan)
	if err == nil {
		x.shared = s
	}
	return s, err
}

// checkReorder says what the stage would refuse.
func (p *Plan) checkReorder(r *config.Reorder, path string) {
	i := slices.IndexFunc(p.cfg.Regions, func(x config.Region) bool { return x.Name == r.Region })
	if i < 0 || r.Engine == "hw" { // package config has said it
		return
	}
	plan, region := r.Plan(), &p.cfg.Regions[i]
	slot, reached := int(region.BufSize), p.hidden(r.Region) == nil
	if plan.Executor == reorder.GPU {
		reached = region.OnGPU()
	}
	if given := p.o.Regions[r.Region]; given != nil && !region.Owned {
		slot = given.SlotSize()
		if plan.Executor == reorder.GPU {
			_, reached = given.Region().Handle().(*gpu.Memory)
		}
	}
	if err := plan.CheckFor(r.Region, slot, reached); err != nil {
		p.causes = append(p.causes, err)
		p.refuse(config.CodeConflict, path, err.Error(), "", "")
	}
}
