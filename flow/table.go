package flow

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/packet"
)

// Isolation says what happens to packets that no rule accepts. The zero Isolation leaves them to the kernel, so that ARP, SSH and
// everything else that nobody thought of keeps working.
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

// Table is a set of rules that changes while packets are classified. Any goroutine may change it, and any may take its Snapshot;
// readers never wait and never see a part of a change.
type Table struct {
	now    atomic.Pointer[Snapshot]
	engine *Capabilities

	mu       sync.Mutex // over changes, and the next fields
	nextID   uint32
	counters []*Counters
	closed   *tally // of counters that were closed
}

// Snapshot is one version of a table. It is immutable and stays valid as long as somebody holds it.
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

// Snapshot returns the present version. Take one per batch of packets, and classify all of them with it. It does not allocate.
func (t *Table) Snapshot() *Snapshot { return t.now.Load() }

// List returns the rules in force, highest priority first, those of one priority in the order in which they were added.
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

// Rules returns copies of the rules, with their IDs, in the order in which they were added.
func (s *Snapshot) Rules() []Rule {
	out := make([]Rule, s.classifier.Len())
	for i := range out {
		out[i] = s.classifier.Rule(i)
	}
	return out
}

// Classify returns the decision for a frame, by the isolation when no rule accepts it. It allocates nothing.
func (s *Snapshot) Classify(frame []byte, l *packet.Layers) Decision {
	return s.Resolve(s.classifier.Classify(frame, l))
}

// ClassifyBatch is Classify for many frames, through a cache unless it is nil; see Classifier.ClassifyBatch.
func (s *Snapshot) ClassifyBatch(cache *Cache, frames [][]byte, layers []packet.Layers, out []Decision) {
	if cache == nil {
		s.classifier.ClassifyBatch(frames, layers, out)
	} else {
		cache.ClassifyBatch(s.classifier, frames, layers, out)
	}
	for i := range frames {
		out[i] = s.Resolve(out[i])
	}
}

// Resolve puts what the isolation says into a decision of this version's classifier that no rule has made. Others it returns as they are.
func (s *Snapshot) Resolve(d Decision) Decision {
	if d.Verdict == Unmatched {
		return s.unmatched
	}
	return d
}

// Change is one step of a batch: made by Add, Replace or Delete.
type Change struct {
	op   changeOp
	id   uint32
	rule Rule
}

type changeOp uint8

const (
	opAdd changeOp = 1 + iota
	opReplace
	opDelete
)

// Add puts a rule behind the others. Its ID must be 0: the table gives it one.
func Add(r Rule) Change { return Change{op: opAdd, rule: r.Clone()} }

// Replace puts r in the place of the rule with this ID, which stays. r.ID must be 0 or the same.
func Replace(id uint32, r Rule) Change { return Change{op: opReplace, id: id, rule: r.Clone()} }

// Delete takes the rule with this ID away.
func Delete(id uint32) Change { return Change{op: opDelete, id: id} }

// Result is what a batch did.
type Result struct {
	Version uint64   // of the table with the whole batch in it
	IDs     []uint32 // for each change, the ID of its rule: new ones in the order of the batch
}

// Apply makes all changes, in order, and publishes them as one version, or makes none. IDs are given in the order of the batch and never
// used again, also not those of deleted rules; a batch that fails uses none up.
//
// The error is Problems, in which Rule is the index of the change in the batch: rules that Validate or Check refuse, names given twice,
// IDs that the table does not have. Warnings of Validate do not stop a batch. The cost is that of compiling the whole set.
func (t *Table) Apply(changes ...Change) (Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.now.Load()
	b := batch{rules: s.classifier.rules, origin: make([]int, len(s.classifier.rules)), nextID: t.nextID}
	b.rules = slices.Clone(b.rules) // shares matches and actions, which nobody changes
	for i := range b.origin {
		b.origin[i] = -1
	}
	ids := make([]uint32, len(changes))
	for i := range changes {
		ids[i] = b.apply(i, &changes[i])
	}
	b.check(t.engine)
	if err := b.problems.Err(); err != nil {
		return Result{}, err
	}
	c := &Classifier{rules: b.rules}
	c.build()
	t.nextID = b.nextID
	s = t.publish(s.version+1, c, s.isolation)
	return Result{s.version, ids}, nil
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
		if c.rule.ID != 0 {
			p.add(Invalid, "id", "%d: a table gives the IDs of new rules: expected 0; use Replace to change a rule", c.rule.ID)
		}
		if b.nextID > MaxRuleID {
			p.add(Invalid, "id", "all %d IDs of this table have been used: make a new table", MaxRuleID)
			return 0
		}
		r := c.rule
		r.ID = b.nextID
		b.nextID++
		b.rules, b.origin = append(b.rules, r), append(b.origin, i)
		return r.ID
	}
	at, ok := slices.BinarySearchFunc(b.rules, c.id, func(r Rule, id uint32) int { return int(r.ID) - int(id) })
	switch {
	case c.op != opReplace && c.op != opDelete:
		p.add(Invalid, "change", "an empty change: expected one made by Add, Replace or Delete")
	case !ok:
		p.add(Invalid, "id", "the table has no rule %d: it was deleted, or never added", c.id)
	case c.op == opDelete:
		b.rules, b.origin = slices.Delete(b.rules, at, at+1), slices.Delete(b.origin, at, at+1)
	case c.rule.ID != 0 && c.rule.ID != c.id:
		p.add(Invalid, "id", "rule %d cannot become rule %d: expected 0 or %d", c.id, c.rule.ID, c.id)
	default:
		r := c.rule
		r.ID = c.id
		b.rules[at], b.origin[at] = r, i
	}
	return c.id
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
			p.add(Duplicate, "name", "rules %d and %d would both have this name: give each rule its own, or none", b.rules[first].ID, r.ID)
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
