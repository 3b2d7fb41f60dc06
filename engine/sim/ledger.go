package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
)

// Entry is the account of one place that packets pass. In + Made = Out + Held + Kernel + Drops
// always holds.
type Entry struct {
	Kind string // "transmit", "wire", "segment", "port" or "receive"
	Name string
	In   uint64 // packets that came
	Made uint64 // packets that came to be here: duplicates, copies for several ports
	Out  uint64 // packets that went on
	Held uint64 // packets that are here now: late on a wire, or waiting for the owner of a queue
	// Kernel is the number of packets that were left to the kernel, by rule or isolation.
	Kernel uint64
	Drops  engine.Drops
	// Of wires: what happened to packets that were not lost.
	Corrupted, Reordered, Delayed uint64
}

// Balance is In + Made - Out - Held - Kernel - Drops: 0.
func (e *Entry) Balance() int64 {
	return int64(e.In + e.Made - e.Out - e.Held - e.Kernel - e.Drops.Total())
}

func (e *Entry) String() string {
	return fmt.Sprintf("%s %s: in %d, made %d, out %d, held %d, kernel %d, drops: %v", e.Kind, e.Name, e.In, e.Made,
		e.Out, e.Held, e.Kernel, &e.Drops)
}

// Ledger is the accounts of a network at one moment.
type Ledger struct {
	Entries []Entry
	// Sent are the packets that transmit queues passed to their wires, and Received those that
	// owners of receive queues got. Sent + Made = Received + Held + Kernel + Drops, always. Drops
	// does not hold what transmit queues themselves refused: those packets were not sent.
	Sent, Made, Received, Held, Kernel uint64
	Drops                              engine.Drops
	problems                           []error
}

// Err is nil if the accounts balance: each place, from place to place, and the whole. Tests call
// it; it is always nil.
func (l *Ledger) Err() error {
	errs := slices.Clone(l.problems)
	for i := range l.Entries {
		if e := &l.Entries[i]; e.Balance() != 0 {
			errs = append(errs, fmt.Errorf("sim: ledger: %v: off by %d", e, e.Balance()))
		}
	}
	if off := int64(l.Sent + l.Made - l.Received - l.Held - l.Kernel - l.Drops.Total()); off != 0 {
		errs = append(errs, fmt.Errorf("sim: ledger: sent %d and made %d, received %d, held %d, kernel %d, dropped "+
			"%v: off by %d", l.Sent, l.Made,
			l.Received, l.Held, l.Kernel, &l.Drops, off))
	}
	return errors.Join(errs...)
}

// String lists the entries, a line each.
func (l *Ledger) String() string {
	var s strings.Builder
	for i := range l.Entries {
		fmt.Fprintln(&s, &l.Entries[i])
	}
	fmt.Fprintf(&s, "sent %d, made %d, received %d, held %d, kernel %d, drops: %v", l.Sent, l.Made, l.Received, l.Held,
		l.Kernel, &l.Drops)
	return s.String()
}

// Find is the entry of a kind and name, nil if there is none.
func (l *Ledger) Find(kind, name string) *Entry {
	for i := range l.Entries {
		if e := &l.Entries[i]; e.Kind == kind && e.Name == name {
			return e
		}
	}
	return nil
}

// totals are sums over queues and ports that were closed.
type totals struct {
	rx            engine.RxStats
	rxCame        uint64
	txCame, txOut uint64
	txDrops       engine.Drops
	came, kernel  uint64
	drops         engine.Drops
}

// add adds the counts of a port, whose receive queues are closed. The caller holds Network.mu for
// writing.
func (b *totals) add(p *Port) {
	b.rx.Add(p.rx.Past())
	b.rxCame += p.past.rxCame
	for _, q := range p.old {
		b.txCame += q.came.Load()
		b.txOut += q.packets.Load()
		addDrops(&b.txDrops, &q.drops)
	}
	b.came += p.came.Load()
	b.kernel += p.kernel.Load()
	addDrops(&b.drops, &p.drops)
}

func addDrops(d *engine.Drops, from *[engine.NumDrops]atomic.Uint64) {
	for i := range from {
		d[i] += from[i].Load()
	}
}

// Ledger returns the accounts. It stops the network for that moment, so it is exact also while
// packets move.
func (n *Network) Ledger() *Ledger {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &Ledger{}
	toPort := map[*endpoint]uint64{}
	var toSegment, fromSegment uint64
	for _, w := range n.wires {
		e := Entry{Kind: "wire", Name: w.name, In: w.in.Load(), Made: w.made.Load(), Out: w.out.Load(),
			Held:      w.held.Load(),
			Corrupted: w.corrupted.Load(), Reordered: w.reordered.Load(), Delayed: w.delayed.Load()}
		addDrops(&e.Drops, &w.drops)
		l.Entries = append(l.Entries, e)
		if w.sw != nil {
			toSegment += e.Out
		} else {
			toPort[w.port] += e.Out
			if w.port.on != nil {
				fromSegment += e.In
			}
		}
	}
	if s := n.segment; s != nil {
		e := Entry{Kind: "segment", Name: s.name, In: s.in.Load(), Made: s.made.Load(), Out: s.out.Load()}
		addDrops(&e.Drops, &s.drops)
		l.Entries = append(l.Entries, e)
		l.same("the segment, from its wires", toSegment, e.In)
		l.same("wires from the segment", e.Out, fromSegment)
	}
	for _, name := range slices.Sorted(maps.Keys(n.endpoints)) {
		s := n.endpoints[name]
		tx, port, rx, sent := s.entries()
		l.Sent += tx.Out
		l.Received += rx.Out
		l.same("the wire from port "+name, tx.Out, s.out.in.Load())
		l.same("port "+name+", from its wire", toPort[s], port.In)
		l.same("the queues of port "+name, port.Out, sent)
		l.Entries = append(l.Entries, tx, port, rx)
	}
	for i := range l.Entries {
		e := &l.Entries[i]
		l.Made += e.Made
		l.Held += e.Held
		l.Kernel += e.Kernel
		if e.Kind != "transmit" {
			l.Drops.Add(&e.Drops)
		}
	}
	return l
}

func (l *Ledger) same(what string, out, in uint64) {
	if out != in {
		l.problems = append(l.problems, fmt.Errorf("sim: ledger: %s: %d packets went there, %d came", what, out, in))
	}
}

// entries are the accounts of an endpoint: of its transmit queues, the port, and its receive
// queues. offered is what came to those.
func (s *endpoint) entries() (tx, port, rx Entry, offered uint64) {
	b := s.closed
	var held uint64
	if p := s.port; p != nil {
		b.add(p)
		for _, q := range p.tx {
			b.txCame += q.came.Load()
			b.txOut += q.packets.Load()
			addDrops(&b.txDrops, &q.drops)
		}
		for _, q := range p.rx.Live() {
			q.Do(func() {
				q.in.Lock()
				defer q.in.Unlock()
				var s engine.RxStats
				q.Counts(&s)
				b.rx.Add(&s)
				b.rxCame += q.came
				held += q.waiting()
			})
		}
	}
	tx = Entry{Kind: "transmit", Name: s.name, In: b.txCame, Out: b.txOut, Drops: b.txDrops}
	port = Entry{Kind: "port", Name: s.name, In: b.came, Kernel: b.kernel, Drops: b.drops}
	port.Out = port.In - port.Kernel - port.Drops.Total()
	rx = Entry{Kind: "receive", Name: s.name, In: b.rxCame, Out: b.rx.Packets, Held: held, Drops: b.rx.Drops}
	return tx, port, rx, b.rxCame
}

// lost adds the drops on the way to and from a endpoint that count in the statistics of its port:
// those of the wires that it owns and what the segment did with its frames. The caller holds
// Network.mu.
func (s *endpoint) lost(d *engine.Drops) {
	for _, w := range []*wire{s.out, s.into()} {
		if w != nil && w.owner == s {
			addDrops(d, &w.drops)
		}
	}
	d[engine.DropDown] += s.unheard.Load()
}

// into is the wire to the endpoint, nil for a loop, whose one wire is out.
func (s *endpoint) into() *wire {
	switch {
	case s.down != nil:
		return s.down
	case s.cable.back.port == s:
		return other(s.cable.back, s.out)
	}
	return other(s.cable.out, s.out)
}

func other(w, than *wire) *wire {
	if w == than {
		return nil
	}
	return w
}
