package prog

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/penstock-io/penstock/packet/flow"
)

// maxCounters is how many counters there are: for two full sets of rules, so that any set can
// follow any other.
const maxCounters = slotRules + 2*MaxRules

// Counts is what a program has counted since it was loaded, over all changes of rules.
//
// Each packet ends in exactly one of Redirected, Kernel, Discarded, NoSocket and Faults, and is
// counted for exactly one rule, or as Unmatched, or for a rule that is no longer there, in Deleted;
// Faults that happen before the rule is known are in none of them. With Spec.Uncounted some are in
// none at all.
type Counts struct {
	Redirected flow.Count // given to an AF_XDP socket, which counts on its own what it has no room for
	Kernel     flow.Count // left to the kernel, by a rule or by the isolation
	Discarded  flow.Count // dropped by a rule or by the isolation
	NoSocket   flow.Count // for a logical queue that has no socket on the packet's NIC queue; dropped
	Faults     flow.Count // the program does not agree with its own tables, which cannot happen; dropped

	Bare      flow.Count   // redirected without Meta, because the driver leaves no room for it
	Unmatched flow.Count   // no rule accepted them
	Deleted   flow.Count   // of rules that are no longer there
	Rules     []flow.Count // of the rules in force, in their order in the last Apply
}

// counters are counts of packets and bytes, for each CPU one set, in memory that the program and
// this process share. It is a plain array with an entry for each CPU and not a map of the type
// per-CPU array, because only the former can be mapped: reading takes no system call and no memory.
type counters struct {
	m      *ebpf.Map
	memory *ebpf.Memory
	cpus   int
	stride int
	buf    []byte

	slot    []uint32 // of the rules in force, in their order
	ids     []uint32 // and their IDs
	free    []uint32
	leaving []uint32
	high    int // behind the highest slot that is in use
	deleted flow.Count
}

func newCounters() (*counters, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("prog: %w: the number of CPUs: %w", ErrUnavailable, err)
	}
	c := &counters{cpus: cpus, stride: (maxCounters*counterSize + 63) &^ 63}
	c.m, err = ebpf.NewMap(&ebpf.MapSpec{Name: "penstock_counts", Type: ebpf.Array, KeySize: 4,
		ValueSize: uint32(c.stride), MaxEntries: uint32(cpus), Flags: mmapable})
	if err != nil {
		return nil, explain("make the counters", err)
	}
	if c.memory, err = c.m.Memory(); err != nil {
		c.m.Close()
		return nil, explain("map the counters", err)
	}
	c.buf = make([]byte, c.stride)
	for s := uint32(maxCounters); s > slotRules; s-- {
		c.free = append(c.free, s-1)
	}
	return c, nil
}

// mmapable is BPF_F_MMAPABLE.
const mmapable = 1 << 10

// close frees the map. Its pages stay mapped until the garbage collector finds no reader of them.
func (c *counters) close() {
	c.m.Close()
	c.memory = nil
}

// slots returns where each of the rules counts: where it did before, when a rule in force has its
// ID, else in a free slot. Nothing is taken before keep.
func (c *counters) slots(rules []flow.Rule) ([]uint32, error) {
	out := make([]uint32, len(rules))
	old := make(map[uint32]uint32, len(c.ids))
	for i, id := range c.ids {
		if id != 0 {
			old[id] = c.slot[i]
		}
	}
	next := len(c.free)
	for i := range rules {
		s, ok := old[rules[i].ID]
		if !ok {
			if next == 0 {
				return nil, fmt.Errorf("prog: %w: %d rules, and no counter is free: rules that went are still waited "+
					"for: try again", ErrTooLarge, len(rules))
			}
			next--
			s = c.free[next]
		}
		out[i] = s
	}
	return out, nil
}

// keep takes note of the rules that are in force now, and of the slots that they were given. The
// slots of others are leaving: a program that is replaced may still count there.
func (c *counters) keep(rules []flow.Rule, slots []uint32) {
	taken := make(map[uint32]bool, len(slots))
	for _, s := range slots {
		taken[s] = true
	}
	for _, s := range c.slot {
		if !taken[s] {
			c.leaving = append(c.leaving, s)
		}
	}
	c.free = slices.DeleteFunc(c.free, func(s uint32) bool { return taken[s] })
	c.slot = slots
	c.high = slotRules
	for _, s := range slices.Concat(c.slot, c.leaving) {
		c.high = max(c.high, int(s)+1)
	}
	c.ids = c.ids[:0]
	for i := range rules {
		c.ids = append(c.ids, rules[i].ID)
	}
}

// reclaim frees the slots of deleted rules, where no program counts any more; their counts go to
// deleted.
func (c *counters) reclaim() {
	for _, s := range c.leaving {
		n := c.take(s)
		c.deleted.Packets += n.Packets
		c.deleted.Bytes += n.Bytes
		c.free = append(c.free, s)
	}
	c.leaving = c.leaving[:0]
}

// take reads a slot and makes it 0. No program may count there.
func (c *counters) take(slot uint32) (n flow.Count) {
	var b [counterSize]byte
	var zero [counterSize]byte
	for cpu := range c.cpus {
		at := int64(cpu*c.stride + int(slot)*counterSize)
		if _, err := c.memory.ReadAt(b[:], at); err != nil {
			continue
		}
		n.Packets += binary.NativeEndian.Uint64(b[:])
		n.Bytes += binary.NativeEndian.Uint64(b[8:])
		c.memory.WriteAt(zero[:], at)
	}
	return n
}

// Counters fills c with what was counted. Each number is exact for some moment of the call;
// together they are those of one moment only when no packet arrives meanwhile. After Close they are
// those of the end. It does not allocate when c.Rules has room.
func (p *Program) Counters(c *Counts) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		rules := append(c.Rules[:0], p.last.Rules...)
		*c = p.last
		c.Rules = rules
		return nil
	}
	return p.counters.read(c)
}

// read fills c.
func (k *counters) read(c *Counts) error {
	*c = Counts{Rules: slices.Grow(c.Rules[:0], len(k.slot))[:len(k.slot)], Deleted: k.deleted}
	clear(c.Rules)
	for cpu := range k.cpus {
		if _, err := k.memory.ReadAt(k.buf[:k.high*counterSize], int64(cpu*k.stride)); err != nil {
			return fmt.Errorf("prog: read the counters: %w", err)
		}
		for _, f := range [...]struct {
			to   *flow.Count
			slot uint32
		}{
			{&c.Redirected, slotRedirected}, {&c.Kernel, slotKernel}, {&c.Discarded, slotDiscarded}, {&c.NoSocket, slotNoSocket},
			{&c.Faults, slotFault}, {&c.Bare, slotBare}, {&c.Unmatched, slotUnmatched},
		} {
			k.add(f.to, f.slot)
		}
		for i, s := range k.slot {
			k.add(&c.Rules[i], s)
		}
		for _, s := range k.leaving {
			k.add(&c.Deleted, s)
		}
	}
	return nil
}

func (k *counters) add(to *flow.Count, slot uint32) {
	b := k.buf[int(slot)*counterSize:][:counterSize]
	to.Packets += binary.NativeEndian.Uint64(b)
	to.Bytes += binary.NativeEndian.Uint64(b[8:])
}
