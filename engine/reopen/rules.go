package reopen

import (
	"cmp"
	"slices"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/flow"
)

// rules are the rules of a Port: those of the port that is open, and what was counted before.
type rules struct{ port *Port }

// Rules implements engine.Port.
func (p *Port) Rules() engine.Rules {
	if p.port().Rules() == nil {
		return nil
	}
	return rules{p}
}

// Apply implements engine.Rules. While the interface is away it is engine.ErrDown.
func (r rules) Apply(changes ...flow.Change) (flow.Result, error) {
	r.port.mu.RLock()
	defer r.port.mu.RUnlock()
	if r.port.away {
		return flow.Result{}, errAway(r.port)
	}
	return r.port.cur.Rules().Apply(changes...)
}

// Check implements engine.RuleChecker.
func (r rules) Check(changes ...flow.Change) error {
	r.port.mu.RLock()
	defer r.port.mu.RUnlock()
	if r.port.away {
		return errAway(r.port)
	}
	if c, ok := r.port.cur.Rules().(engine.RuleChecker); ok {
		return c.Check(changes...)
	}
	return nil
}

// List implements engine.Rules.
func (r rules) List() []flow.Rule { return r.port.port().Rules().List() }

// Stats implements engine.Rules.
func (r rules) Stats() flow.Stats {
	r.port.mu.RLock()
	defer r.port.mu.RUnlock()
	s := r.port.cur.Rules().Stats()
	r.port.rules.addTo(&s)
	return s
}

// pastRules is what rules counted on ports that are closed.
type pastRules struct {
	rules              map[uint32]flow.Count
	unmatched, deleted flow.Count
}

func newPastRules() pastRules { return pastRules{rules: map[uint32]flow.Count{}} }

func add(sum *flow.Count, n flow.Count) {
	sum.Packets += n.Packets
	sum.Bytes += n.Bytes
}

// add adds what a port has counted.
func (p *pastRules) add(s flow.Stats) {
	for _, r := range s.Rules {
		n := p.rules[r.ID]
		add(&n, r.Count)
		p.rules[r.ID] = n
	}
	add(&p.unmatched, s.Unmatched)
	add(&p.deleted, s.Deleted)
}

// addTo adds it to the counts of the port that is open: of rules that are not there any more to
// those that were deleted.
func (p *pastRules) addTo(s *flow.Stats) {
	add(&s.Unmatched, p.unmatched)
	add(&s.Deleted, p.deleted)
	for id, n := range p.rules {
		if k := slices.IndexFunc(s.Rules, func(r flow.RuleStats) bool { return r.ID == id }); k >= 0 {
			add(&s.Rules[k].Count, n)
		} else {
			add(&s.Deleted, n)
		}
	}
}

// restore puts rules, in their order, into a table that has none, with the IDs that they had.
func restore(to engine.Rules, list []flow.Rule) error {
	if len(list) == 0 {
		return nil
	}
	at := make([]int, len(list)) // places by ID: a table takes IDs that grow
	for i := range at {
		at[i] = i
	}
	slices.SortFunc(at, func(a, b int) int { return cmp.Compare(list[a].ID, list[b].ID) })
	var changes []flow.Change
	for n, k := range at {
		before, next := uint32(0), len(list)
		for _, other := range at[:n] {
			if other > k && other < next {
				before, next = list[other].ID, other
			}
		}
		changes = append(changes, flow.Insert(before, list[k]))
	}
	_, err := to.Apply(changes...)
	return err
}
