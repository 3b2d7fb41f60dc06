package flow

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/packet"
)

// Isolation says what happens to packets that no rule accepts. The zero Isolation leaves them to
// the kernel, so that ARP, SSH and everything else that no rule mentions keeps working.
type Isolation struct {
	Unmatched Verdict `json:"unmatched,omitzero"` // Kernel, Deliver or Discard; the zero value stands for Kernel
	Queue     uint16  `json:"queue,omitzero"`     // for Deliver
}

func (i Isolation) decision() Decision {
	d := Decision{Rule: -1, Verdict: i.Unmatched, Queue: i.Queue}
	if d.Verdict == Unmatched {
		d.Verdict = Kernel
	}
	return d
}

func (i Isolation) check() error {
	if i.Unmatched > Kernel {
		return fmt.Errorf("flow: isolation: verdict %d: expected kernel, deliver or discard", i.Unmatched)
	}
	if i.Queue != 0 && i.Unmatched != Deliver {
		return fmt.Errorf("flow: isolation: queue %d with verdict %v: use deliver", i.Queue, i.decision().Verdict)
	}
	return nil
}

// TableOptions is how a Table begins.
type TableOptions struct {
	Isolation Isolation
	Engine    *Capabilities // rules must fit into these; nil: Software
}

// Table is a set of rules that changes while packets are classified. Any goroutine may change it,
// and any may take its Snapshot; readers never wait and never see a part of a change.
type Table struct {
	now    atomic.Pointer[Snapshot]
	engine *Capabilities

	mu       sync.Mutex // over changes, and the next fields
	nextID   uint32
	counters []*Counters
	closed   *tally // of counters that were closed
}

// Snapshot is one version of a table. It is immutable and stays valid as long as a goroutine holds
// it.
type Snapshot struct {
	version    uint64
	classifier *Classifier
	isolation  Isolation
	unmatched  Decision
}

// NewTable returns a table without rules, version 1. The error says what is wrong with the options.
func NewTable(o TableOptions) (*Table, error) {
	if err := o.Isolation.check(); err != nil {
		return nil, err
	}
	t := &Table{engine: o.Engine, nextID: 1, closed: newTally()}
	if t.engine == nil {
		t.engine = &Software
	}
	c, err := Compile(nil)
	if err != nil {
		return nil, err
	}
	t.publish(1, c, o.Isolation)
	return t, nil
}

func (t *Table) publish(version uint64, c *Classifier, i Isolation) *Snapshot {
	s := &Snapshot{version, c, i, i.decision()}
	t.now.Store(s)
	return s
}

// Snapshot returns the present version. Take one per batch of packets, and classify all of them
// with it. It does not allocate.
func (t *Table) Snapshot() *Snapshot { return t.now.Load() }

// List returns the rules in force, highest priority first, those of one priority in the order in
// which they were added (or put by Insert and Move).
func (t *Table) List() []Rule {
	rules := t.Snapshot().Rules()
	slices.SortStableFunc(rules, func(a, b Rule) int { return cmp.Compare(b.Priority, a.Priority) })
	return rules
}

// Version counts the changes of the table, from 1.
func (s *Snapshot) Version() uint64 { return s.version }

// Classifier returns the rules of this version, for a Cache.
func (s *Snapshot) Classifier() *Classifier { return s.classifier }

// Isolation returns what happens to packets that no rule accepts.
func (s *Snapshot) Isolation() Isolation { return s.isolation }

// Rules returns copies of the rules, with their IDs, in the order of List but for priorities.
func (s *Snapshot) Rules() []Rule {
	out := make([]Rule, s.classifier.Len())
	for i := range out {
		out[i] = s.classifier.Rule(i)
	}
	return out
}

// Classify returns the decision for a frame, by the isolation when no rule accepts it. It allocates
// nothing.
func (s *Snapshot) Classify(frame []byte, l *packet.Layers) Decision {
	return s.Resolve(s.classifier.Classify(frame, l))
}

// Resolve puts what the isolation says into a decision of this version's classifier that no rule
// has made. Others it returns as they are.
func (s *Snapshot) Resolve(d Decision) Decision {
	if d.Verdict == Unmatched {
		return s.unmatched
	}
	return d
}

// Change is one step of a batch: made by Add, Insert, Replace, Move or Delete.
type Change struct {
	op     changeOp
	id     uint32
	before uint32 // of opAdd and opMove: the ID of the rule that will be next; 0: none
	rule   Rule
}

type changeOp uint8

const (
	opAdd changeOp = 1 + iota
	opReplace
	opDelete
	opMove
)

// Add puts a rule behind the others. Its ID is 0, and the table gives it one, or more than all that
// the table has given: the ID that it had in another table.
func Add(r Rule) Change { return Change{op: opAdd, rule: r.Clone()} }

// Insert puts a rule in front of the one with the ID before, 0 for behind all: among rules of one
// priority that a packet matches the first wins. The ID of r must be 0, as for Add.
func Insert(before uint32, r Rule) Change { return Change{op: opAdd, before: before, rule: r.Clone()} }

// Move puts the rule with this ID in front of another one, 0 for behind all. Its counts stay.
func Move(id, before uint32) Change { return Change{op: opMove, id: id, before: before} }

// Replace puts r in the place of the rule with this ID, which stays. r.ID must be 0 or the same.
func Replace(id uint32, r Rule) Change { return Change{op: opReplace, id: id, rule: r.Clone()} }

// Delete takes the rule with this ID away.
func Delete(id uint32) Change { return Change{op: opDelete, id: id} }

// Result is what a batch did.
type Result struct {
	Version uint64   // of the table with the whole batch in it
	IDs     []uint32 // for each change, the ID of its rule: new ones in the order of the batch
}

// Apply makes all changes, in order, and publishes them as one version, or makes none. IDs are
// given in the order of the batch and never used again, also not those of deleted rules; a batch
// that fails uses none up.
//
// The error is Problems, in which Rule is the index of the change in the batch: rules that Validate
// or Check refuse, names given twice, IDs that the table does not have. Warnings of Validate do not
// stop a batch. The cost is that of compiling the whole set.
func (t *Table) Apply(changes ...Change) (Result, error) { return t.Install(nil, changes...) }

// Install is Apply for an engine that has a device besides: install gets the version that is to
// come, before any reader sees it, and puts it into the device. When it returns an error, nothing
// has changed, and the error is the answer. It must not use the table.
func (t *Table) Install(install func(next *Snapshot) error, changes ...Change) (Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.now.Load()
	ids := make([]uint32, len(changes))
	b := t.batch(changes, ids)
	if err := b.problems.Err(); err != nil {
		return Result{}, err
	}
	c := &Classifier{rules: b.rules}
	c.build()
	next := &Snapshot{s.version + 1, c, s.isolation, s.unmatched}
	if install != nil {
		if err := install(next); err != nil {
			return Result{}, err
		}
	}
	t.nextID = b.nextID
	t.now.Store(next)
	return Result{next.version, ids}, nil
}

// Check is what Apply would answer to the changes now, and makes none of them. What a device
// besides says only Apply knows.
func (t *Table) Check(changes ...Change) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.batch(changes, nil).problems.Err()
}

// batch makes the changes in a copy of the rules. The caller holds mu.
func (t *Table) batch(changes []Change, ids []uint32) *batch {
	rules := t.now.Load().classifier.rules
	// shares matches and actions, which do not change
	b := &batch{rules: slices.Clone(rules), origin: make([]int, len(rules)), nextID: t.nextID}
	for i := range b.origin {
		b.origin[i] = -1
	}
	for i := range changes {
		id := b.apply(i, &changes[i])
		if ids != nil {
			ids[i] = id
		}
	}
	b.check(t.engine)
	return b
}

// SetIsolation changes what happens to packets that no rule accepts, as a version of its own.
func (t *Table) SetIsolation(i Isolation) (version uint64, err error) {
	if err := i.check(); err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.now.Load()
	return t.publish(s.version+1, s.classifier, i).version, nil
}

// batch is a set of rules on its way from one version to the next.
type batch struct {
	rules    []Rule
	origin   []int // of each rule: the change that it comes from, or -1
	nextID   uint32
	problems Problems
}

func (b *batch) apply(i int, c *Change) uint32 {
	p := report{&b.problems, i, c.rule.Name}
	if c.op == opAdd {
		if c.rule.ID != 0 && c.rule.ID < b.nextID {
			p.add(Invalid, "id",
				"%d: this table has given it before: expected 0, or %d and more; use Replace to change a rule",
				c.rule.ID, b.nextID)
		}
		b.nextID = max(b.nextID, c.rule.ID)
		if b.nextID > MaxRuleID {
			p.add(Invalid, "id", "all %d IDs of this table have been used: make a new table", MaxRuleID)
			return 0
		}
		r := c.rule
		r.ID = b.nextID
		b.nextID++
		b.insert(p, c.before, r, i)
		return r.ID
	}
	at := b.find(c.id)
	switch {
	case c.op < opReplace || c.op > opMove:
		p.add(Invalid, "change", "an empty change: expected one made by Add, Insert, Replace, Move or Delete")
	case at < 0:
		p.add(Invalid, "id", "the table has no rule %d: it was deleted, or never added", c.id)
	case c.op == opDelete:
		b.rules, b.origin = slices.Delete(b.rules, at, at+1), slices.Delete(b.origin, at, at+1)
	case c.op == opMove && c.before == c.id: // it is there
	case c.op == opMove:
		r, origin := b.rules[at], b.origin[at]
		b.rules, b.origin = slices.Delete(b.rules, at, at+1), slices.Delete(b.origin, at, at+1)
		b.insert(p, c.before, r, origin)
	case c.rule.ID != 0 && c.rule.ID != c.id:
		p.add(Invalid, "id", "rule %d cannot become rule %d: expected 0 or %d", c.id, c.rule.ID, c.id)
	default:
		r := c.rule
		r.ID = c.id
		b.rules[at], b.origin[at] = r, i
	}
	return c.id
}

// find is the place of the rule with an ID, -1 if there is none.
func (b *batch) find(id uint32) int {
	return slices.IndexFunc(b.rules, func(r Rule) bool { return r.ID == id })
}

// insert puts r in front of the rule with the ID before, 0 for behind all.
func (b *batch) insert(p report, before uint32, r Rule, origin int) {
	at := len(b.rules)
	if before != 0 {
		if at = b.find(before); at < 0 {
			p.add(Invalid, "before", "the table has no rule %d: it was deleted, or never added", before)
			return
		}
	}
	b.rules, b.origin = slices.Insert(b.rules, at, r), slices.Insert(b.origin, at, origin)
}

// check looks at the changed rules, and at the names and the number of all.
func (b *batch) check(engine *Capabilities) {
	names := make(map[string]int, len(b.rules))
	for at := range b.rules {
		r := &b.rules[at]
		i := b.origin[at]
		first, twice := names[r.Name]
		if r.Name != "" {
			names[r.Name] = at
		}
		if twice && i < 0 {
			i = b.origin[first] // the later one was there before
		}
		p := report{&b.problems, max(i, 0), r.Name}
		if twice {
			p.add(Duplicate, "name", "rules %d and %d would both have this name: give each rule its own, or none",
				b.rules[first].ID, r.ID)
		}
		if b.origin[at] < 0 {
			continue
		}
		r.check(p)
		one := Check(b.rules[at:at+1], engine)
		for k := range one {
			one[k].Rule = i
		}
		b.problems = append(b.problems, one...)
		if engine.MaxRules > 0 && at >= engine.MaxRules {
			p.add(Unsupported, "rules", "%s takes %d rules", engine.engine(), engine.MaxRules)
		}
		if !engine.Priorities && r.Priority != b.rules[0].Priority {
			p.add(Unsupported, "priority", "%s has no priorities: give all rules the same", engine.engine())
		}
	}
	b.problems.sort()
}
