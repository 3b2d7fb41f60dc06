package flow

import (
	"slices"
	"sync/atomic"
)

// Count is a number of packets and their bytes.
type Count struct{ Packets, Bytes uint64 }

func (c *Count) add(o Count) { c.Packets += o.Packets; c.Bytes += o.Bytes }

// cell counts for one rule. One goroutine writes it.
type cell struct{ packets, bytes atomic.Uint64 }

func (c *cell) count(packets, bytes uint64) {
	c.packets.Store(c.packets.Load() + packets)
	c.bytes.Store(c.bytes.Load() + bytes)
}

func (c *cell) read() Count { return Count{c.packets.Load(), c.bytes.Load()} }

// Counters counts packets per rule for one poller: its methods Count and CountBatch belong to one
// goroutine at a time. Reading, by Table.Stats, is for anyone at any time. Nothing is lost when
// rules come and go: what rules counted that were deleted since is kept as one sum.
type Counters struct {
	table *Table
	view  atomic.Pointer[view]
}

// view is the cells of one version of the table.
type view struct {
	of        *Snapshot
	cells     []*cell // by index of the rule
	unmatched *cell
	deleted   Count // of rules that of does not have
}

// NewCounters returns a handle for one poller. Close it when the poller ends.
func (t *Table) NewCounters() *Counters {
	c := &Counters{table: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	c.view.Store(newView(&view{unmatched: new(cell)}, t.now.Load()))
	t.counters = append(t.counters, c)
	return c
}

// newView carries the counts of old over to another version.
func newView(old *view, s *Snapshot) *view {
	v := &view{of: s, cells: make([]*cell, s.classifier.Len()), unmatched: old.unmatched, deleted: old.deleted}
	had := make(map[uint32]*cell, len(old.cells))
	for k, c := range old.cells {
		had[old.of.classifier.rules[k].ID] = c
	}
	for i := range s.classifier.rules {
		id := s.classifier.rules[i].ID
		if v.cells[i] = had[id]; v.cells[i] == nil {
			v.cells[i] = new(cell)
		}
		delete(had, id)
	}
	for _, c := range had {
		v.deleted.add(c.read())
	}
	return v
}

// at returns the cells of a version. It allocates when the version is another than at the call
// before.
func (c *Counters) at(s *Snapshot) *view {
	v := c.view.Load()
	if v.of != s {
		v = newView(v, s)
		c.view.Store(v)
	}
	return v
}

// Count counts one packet of a number of bytes for the rule of a decision of snapshot s. It does
// not allocate, but for the first packet of another version.
func (c *Counters) Count(s *Snapshot, d Decision, bytes int) {
	v := c.at(s)
	if d.Rule < 0 {
		v.unmatched.count(1, uint64(bytes))
		return
	}
	v.cells[d.Rule].count(1, uint64(bytes))
}

// CountBatch counts frames[i] for the rule of decisions[i], made with snapshot s, for every frame.
func (c *Counters) CountBatch(s *Snapshot, frames [][]byte, decisions []Decision) {
	v := c.at(s)
	for i, f := range frames {
		cell := v.unmatched
		if r := decisions[i].Rule; r >= 0 {
			cell = v.cells[r]
		}
		cell.count(1, uint64(len(f)))
	}
}

// Close gives the counts to the table, where Stats goes on to show them. The handle must not be
// used afterwards.
func (c *Counters) Close() {
	t := c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.counters, c); i >= 0 {
		t.counters = slices.Delete(t.counters, i, i+1)
		t.closed.add(c.view.Load())
	}
}

// tally is counts by rule.
type tally struct {
	rules     map[uint32]Count
	unmatched Count
	deleted   Count
}

func newTally() *tally { return &tally{rules: map[uint32]Count{}} }

func (t *tally) add(v *view) {
	for i, c := range v.cells {
		id := v.of.classifier.rules[i].ID
		n := t.rules[id]
		n.add(c.read())
		t.rules[id] = n
	}
	t.unmatched.add(v.unmatched.read())
	t.deleted.add(v.deleted)
}

// RuleStats is what one rule has counted.
type RuleStats struct {
	ID   uint32
	Name string
	Count
}

// Stats is what all counters of a table have counted, open and closed.
type Stats struct {
	Version   uint64
	Rules     []RuleStats // of the present rules, in their order
	Unmatched Count       // packets that no rule accepted
	Deleted   Count       // of rules that the table no longer has
}

// Stats returns the sums over all counters. Each number is exact for some moment of the call;
// together they are those of one moment only when no goroutine counts meanwhile.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.now.Load()
	sum := newTally()
	for id, n := range t.closed.rules {
		sum.rules[id] = n
	}
	sum.unmatched, sum.deleted = t.closed.unmatched, t.closed.deleted
	for _, c := range t.counters {
		sum.add(c.view.Load())
	}
	out := Stats{Version: s.version, Unmatched: sum.unmatched, Deleted: sum.deleted}
	for i := range s.classifier.rules {
		r := &s.classifier.rules[i]
		out.Rules = append(out.Rules, RuleStats{r.ID, r.Name, sum.rules[r.ID]})
		delete(sum.rules, r.ID)
	}
	for _, n := range sum.rules {
		out.Deleted.add(n)
	}
	return out
}
