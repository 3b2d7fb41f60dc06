package xdp

import (
	"errors"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/xdp/prog"
	"github.com/penstock-io/penstock/packet/flow"
)

// Rules are the steering rules of a port: a table, and the program that does what it says. It
// implements engine.Rules.
type Rules struct {
	port *Port
}

// Rules implements engine.Port: it is a *Rules.
func (p *Port) Rules() engine.Rules { return &Rules{p} }

// Apply makes all changes or none; see flow.Table. They are in force, from one packet to the next,
// when it returns.
func (r *Rules) Apply(changes ...flow.Change) (res flow.Result, err error) {
	if p := r.port; p.times { // the program is bound to the interface
		failed := p.ns.Do(func() error { res, err = r.apply(changes); return nil })
		return res, errors.Join(err, failed)
	}
	return r.apply(changes)
}

func (r *Rules) apply(changes []flow.Change) (flow.Result, error) {
	p := r.port
	p.rules.Lock()
	defer p.rules.Unlock()
	before := p.table.Snapshot().Rules()
	return p.table.Install(func(next *flow.Snapshot) error {
		rules := next.Rules()
		if len(rules) > 0 {
			p.meta.Store(true)
		}
		// Wherever the card puts a packet, the program does what the rules say. So the card comes
		// first: it may refuse.
		err := p.steer(rules, p.applied)
		if err == nil {
			if err = p.prog.Apply(rules, p.applied); err == nil {
				return nil
			}
			err = p.refusal(err)
		}
		_ = p.steer(before, p.applied)
		return err
	}, changes...)
}

// Check implements engine.RuleChecker.
func (r *Rules) Check(changes ...flow.Change) error { return r.port.table.Check(changes...) }

// List implements engine.Rules.
func (r *Rules) List() []flow.Rule { return r.port.table.List() }

// Stats are the packets that each rule matched, as the program has counted them. Before the first
// rule it does not count what goes to a receive queue: those packets are in engine.RxStats, and not
// in Unmatched.
func (r *Rules) Stats() flow.Stats {
	p := r.port
	p.rules.Lock()
	defer p.rules.Unlock()
	s := p.table.Snapshot()
	var c prog.Counts
	out := flow.Stats{Version: s.Version()}
	if p.prog.Counters(&c) != nil { // the kernel does not give them
		return out
	}
	out.Unmatched, out.Deleted = c.Unmatched, c.Deleted
	for i, rule := range s.Rules() {
		out.Rules = append(out.Rules, flow.RuleStats{ID: rule.ID, Name: rule.Name, Count: c.Rules[i]})
	}
	return out
}

// isolation is what happens to packets that no rule accepts: the kernel gets them, or the first
// receive queue, or, where that was closed and there is no other, they are dropped. rxs are the
// receive queues. The caller holds their lock.
func (p *Port) isolation(rxs []*rxQueue) flow.Isolation {
	if p.spec.Isolated {
		return flow.Isolation{Unmatched: flow.Kernel}
	}
	if len(rxs) > 0 {
		p.had = rxs[0].ID()
	}
	if p.had < 0 {
		return flow.Isolation{Unmatched: flow.Kernel}
	}
	return flow.Isolation{Unmatched: flow.Deliver, Queue: uint16(p.had)}
}

// isolate changes the program, if the first of the receive queues is another one now. The caller
// holds their lock.
func (p *Port) isolate(rxs []*rxQueue) error {
	i := p.isolation(rxs)
	p.rules.Lock()
	defer p.rules.Unlock()
	if i == p.applied {
		return nil
	}
	rules := p.table.Snapshot().Rules()
	err := p.steer(rules, i)
	if err == nil {
		if err = p.prog.Apply(rules, i); err != nil {
			err = p.refusal(err)
		}
	}
	if err != nil {
		_ = p.steer(rules, p.applied)
		return err
	}
	p.applied = i
	return nil
}
