package penstock

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/convert"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/reorder"
	"github.com/penstock-io/penstock/tensor"
)

// reorderStage is the stage for the reorder plans whose flows go to a receive queue, nil without one. It is the first behind the queue.
func (p *Plan) reorderStage(rx *config.Rx, q *config.RxQueue, path string) *engine.StageKind {
	var specs []config.Reorder
	for k, r := range rx.Reorder {
		if slices.Contains(r.FlowIDs, 0) && len(rx.Queues) == 1 || slices.ContainsFunc(rx.Flows, func(f config.Flow) bool { return slices.Contains(r.FlowIDs, f.ID) && steersTo(&f, q.ID) }) {
			specs = append(specs, r)
			p.checkReorder(&r, fmt.Sprintf("%s.reorder[%d]", path, k))
		}
	}
	if specs == nil {
		return nil
	}
	return &engine.StageKind{Name: "reorder", Open: func(from engine.Receiver, spec engine.StageSpec) (engine.Stage, error) {
		var plans []reorder.Plan
		for i := range specs {
			plan := reorderPlan(&specs[i])
			if plan.Pool, plan.Timeout = spec.Pools[specs[i].Region], q.Timeout; plan.Pool == nil {
				return nil, fmt.Errorf("reorder: plan %q: no memory region %q: %w", plan.Name, specs[i].Region, engine.ErrNotFound)
			}
			plans = append(plans, plan)
		}
		return reorder.New(from, spec, plans...)
	}}
}

// checkReorder says what the stage would refuse.
func (p *Plan) checkReorder(r *config.Reorder, path string) {
	i := slices.IndexFunc(p.cfg.Regions, func(x config.Region) bool { return x.Name == r.Region })
	if i < 0 || r.Type != "cpu" || r.Engine == "hw" { // package config has said it
		return
	}
	plan := reorderPlan(r)
	slot := int(p.cfg.Regions[i].BufSize)
	if given := p.o.Regions[r.Region]; given != nil && !p.cfg.Regions[i].Owned {
		slot = given.SlotSize()
	}
	if err := plan.CheckFor(r.Region, slot, p.hidden(r.Region) == nil); err != nil {
		p.causes = append(p.causes, err)
		p.refuse(config.CodeConflict, path, err.Error(), "", "")
	}
}

// steersTo reports whether a flow steers to a queue.
func steersTo(f *config.Flow, queue int) bool {
	return slices.ContainsFunc(f.Actions, func(a config.Action) bool {
		return a.Type == "queue" && (a.ID.Set && a.ID.Value == queue || slices.Contains(a.IDs, queue))
	})
}

// reorderPlan is the plan that a file describes, without its memory.
func reorderPlan(r *config.Reorder) reorder.Plan {
	field := func(b config.BitField) reorder.Field { return reorder.Field{Offset: b.Offset, Width: b.Width} }
	p := reorder.Plan{Name: r.Name, Offset: r.PayloadOffset, Channels: r.Channels}
	for _, id := range r.FlowIDs {
		p.Flows = append(p.Flows, uint32(id))
	}
	if m := r.Method.BatchNumber; m != nil {
		p.Sequence, p.Batch = field(m.Sequence), field(m.Batch)
	}
	if m := r.Method.PacketsPerBatch; m != nil {
		p.Sequence, p.PerBatch = field(m.Sequence), m.PacketsPerBatch
	}
	if r.MissingAction == "drop" {
		p.Missing = reorder.Drop
	}
	if t := r.DataTypes; t != nil {
		bits := map[string]int{"int4": 4, "int8": 8, "int16": 16, "int32": 32}[t.Input]
		to := map[string]tensor.DType{"int8": tensor.I8, "int32": tensor.I32, "fp16": tensor.F16, "bf16": tensor.BF16, "fp32": tensor.F32, "fp64": tensor.F64}[t.Output]
		p.Convert = &convert.Spec{To: to, From: convert.Format{Bits: bits, BigEndian: t.Endianness == "network" || bits == 4}} // of two int4 the first is the upper one
	}
	return p
}
