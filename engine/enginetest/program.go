package enginetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// SeedEnv is the environment variable that makes the check Program run one given seed, as printed
// by a failure.
const SeedEnv = "PENSTOCK_ENGINETEST_SEED"

// Program is random traffic from port A to port B and back. It does not depend on the engine.
//
// B's application decides by a record's sender and number what to do with it: release it, keep it
// for two rounds, send it back as it is (Forward), or send back a copy. Over a byte stream, where a
// packet is no record, both ways back are copies. An engine without rules, or with one queue, skips
// changes that it cannot make: they have no influence on what arrives.
type Program struct {
	Seed   uint64
	Rounds []Round
}

// Round is a change and then some bursts, at most one for each sender, which are sent at the same
// time. A round has ended when everything that was sent in it has arrived.
type Round struct {
	Change Change
	Queue  int // that the change is about, 1 to 3
	Bursts []Burst
}

// Change adds or closes a queue while traffic rests for a moment.
type Change uint8

// The changes. With a receive queue comes a rule that steers one class there, where there are
// rules.
const (
	NoChange Change = iota
	AddRx           // add B's receive queue, or close it if it is there
	AddTx           // add A's transmit queue, or close it if it is there
	AddEcho         // replace B's transmit queue
	Unsent          // allocate packets and release them
	numChanges
)

func (c Change) String() string {
	return [...]string{"", "receive queue", "transmit queue", "echo queue", "alloc and release"}[c]
}

// Burst is what one sender sends in one round.
type Burst struct {
	Sender uint16 // 0 to 3; the class is the same
	Queue  int    // A's transmit queue, 0 if there is no such
	Sizes  []int  // of records in bytes
}

// senders of a program.
const senders = 4

// NewProgram makes the program of a seed.
func NewProgram(seed uint64, rounds int) Program {
	rnd := rand.New(rand.NewPCG(seed, 4))
	p := Program{Seed: seed}
	for range rounds {
		r := Round{Queue: 1 + rnd.IntN(3)}
		if rnd.IntN(3) == 0 {
			r.Change = Change(rnd.IntN(int(numChanges)))
		}
		for id := range uint16(senders) {
			if rnd.IntN(3) == 0 {
				continue
			}
			b := Burst{Sender: id, Queue: rnd.IntN(4)}
			for range 1 + rnd.IntN(8) {
				b.Sizes = append(b.Sizes, recordHeader+[]int{rnd.IntN(30), rnd.IntN(300), rnd.IntN(1300)}[rnd.IntN(3)])
			}
			r.Bursts = append(r.Bursts, b)
		}
		p.Rounds = append(p.Rounds, r)
	}
	return p
}

// String lists the program's steps.
func (p Program) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "program with seed %d:\n", p.Seed)
	for i, r := range p.Rounds {
		fmt.Fprintf(&s, "%4d:", i)
		if r.Change != NoChange {
			fmt.Fprintf(&s, " %v %d;", r.Change, r.Queue)
		}
		for _, b := range r.Bursts {
			fmt.Fprintf(&s, " sender %d on queue %d: %v;", b.Sender, b.Queue, b.Sizes)
		}
		s.WriteByte('\n')
	}
	return s.String()
}

// decision is what B's application does with a record.
type decision uint8

const (
	release decision = iota
	keepIt
	forwardIt
	copyIt
	numDecisions
)

func (p *Program) decide(sender uint16, seq uint32) decision {
	x := p.Seed ^ uint64(sender)<<40 ^ uint64(seq)<<8
	x = (x ^ x>>31) * 0x9e3779b97f4a7c15
	return decision(x >> 61 & 3)
}

// Flow names packets that stay in order: those of a sender that went one way.
type Flow struct {
	Sender uint16
	Back   bool  // what came back to A
	Way    uint8 // of those that came back, how they were sent
}

// Packet is what arrived.
type Packet struct {
	Seq    uint32
	Length int    // of the record in bytes
	Sum    uint32 // CRC-32C of the record
}

// Result is what a program did: for each flow the packets that arrived, in order, and the drops of
// both ports.
type Result struct {
	Arrived map[Flow][]Packet
	Drops   engine.Drops
}

// Diff says what is different in the other result, "" for nothing.
func (r Result) Diff(o Result) string {
	var s strings.Builder
	flows := maps.Clone(r.Arrived)
	maps.Copy(flows, o.Arrived)
	for f := range flows {
		a, b := r.Arrived[f], o.Arrived[f]
		if i := firstDifference(a, b); i < len(a) || i < len(b) {
			fmt.Fprintf(&s, "flow %+v: %d packets and %d packets; the first difference is at %d\n", f, len(a), len(b),
				i)
		}
	}
	if r.Drops != o.Drops {
		fmt.Fprintf(&s, "drops: %v and %v\n", &r.Drops, &o.Drops)
	}
	return s.String()
}

func firstDifference(a, b []Packet) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// model is the result of the program over an engine that loses nothing.
func (p *Program) model() Result {
	r := Result{Arrived: map[Flow][]Packet{}}
	var seq [senders]uint32
	var data [2048]byte
	for _, round := range p.Rounds {
		for _, b := range round.Bursts {
			for _, n := range b.Sizes {
				rec := data[:n]
				fillRecord(rec, b.Sender, b.Sender, seq[b.Sender])
				k := Packet{seq[b.Sender], n, recordSum(rec)}
				there := Flow{Sender: b.Sender}
				r.Arrived[there] = append(r.Arrived[there], k)
				if d := p.decide(b.Sender, k.Seq); d == forwardIt || d == copyIt {
					back := Flow{b.Sender, true, uint8(d)}
					r.Arrived[back] = append(r.Arrived[back], k)
				}
				seq[b.Sender]++
			}
		}
	}
	return r
}

// Execute runs a program over new ports of an engine, and demands what it must deliver: every
// packet once, in order, with every byte right, or counted as a drop where the harness is Lossy.
// The result is for comparison with that of another engine.
func Execute(t testing.TB, h Harness, p Program) Result {
	t.Helper()
	x := newExecution(t, h.defaults(), p)
	defer x.r.end()
	for i := range p.Rounds {
		x.round(&p.Rounds[i])
	}
	res := Result{x.arrived, x.r.dropped()}
	if h.Noise {
		// a frame of the kernel's that came before the first queue; each packet of the program has
		// to arrive all the same
		res.Drops[engine.DropNoQueue] = 0
	}
	want := p.model()
	if !h.Lossy {
		if d := want.Diff(res); d != "" {
			t.Fatalf("expected and arrived differ:\n%s", d)
		}
		return res
	}
	for f, got := range res.Arrived { // a part of the model, in its order
		all := want.Arrived[f]
		for _, k := range got {
			i := slices.Index(all, k)
			if i < 0 {
				t.Fatalf("flow %+v: packet %+v was not sent, came twice, or out of order", f, k)
			}
			all = all[i+1:]
		}
	}
	return res
}

// Same runs a program over two engines and demands that they deliver the same.
func Same(t testing.TB, p Program, a, b Harness) {
	t.Helper()
	if d := Execute(t, a, p).Diff(Execute(t, b, p)); d != "" {
		t.Errorf("two engines deliver different things:\n%s\n%v", d, p)
	}
}

// checkProgram runs the programs of a few seeds. One that fails is made smaller and shown.
func checkProgram(t testing.TB, h Harness) {
	seeds := []uint64{1, 2, 3}[:testenv.Rounds(3)]
	if v := os.Getenv(SeedEnv); v != "" {
		s, err := strconv.ParseUint(v, 0, 64)
		if err != nil {
			t.Fatalf("%s=%q: expected a number: %v", SeedEnv, v, err)
		}
		seeds = []uint64{s}
	}
	rounds := 60
	if testenv.Race || testenv.Invariants {
		rounds = 20
	}
	for _, seed := range seeds {
		p := NewProgram(seed, rounds)
		if failed := fails(t, h, p); failed != nil {
			p, failed = shrink(t, h, p, failed)
			t.Fatalf("%s\n%s=%d runs the whole of it; a part of it that fails:\n%v", failed.text(), SeedEnv, seed, p)
		}
	}
}

// fails runs a program and returns the trial if it failed.
func fails(t testing.TB, h Harness, p Program) *trial {
	if r := try(t, func(t testing.TB) { Execute(t, h, p) }); r.Failed() {
		return r
	}
	return nil
}

// shrink leaves rounds away as long as the program still fails, and then bursts, within a bound of
// tries.
func shrink(t testing.TB, h Harness, p Program, failed *trial) (Program, *trial) {
	tries := 40
	h = h.defaults()
	h.Patience = min(h.Patience, 2*time.Second) // a smaller one that hangs longer than that is as good as failed
	again := func(q Program) bool {
		if tries--; tries < 0 {
			return false
		}
		r := fails(t, h, q)
		if r == nil {
			return false
		}
		p, failed = q, r
		return true
	}
	for n := len(p.Rounds) / 2; n > 0; n /= 2 {
		for at := len(p.Rounds) - n; at >= 0; at -= n {
			at = min(at, len(p.Rounds)-n)
			if at < 0 {
				break
			}
			q := p
			q.Rounds = slices.Delete(slices.Clone(p.Rounds), at, at+n)
			again(q)
		}
	}
	for i := range p.Rounds {
		for k := len(p.Rounds[i].Bursts) - 1; k >= 0; k-- {
			q := p
			q.Rounds = slices.Clone(p.Rounds)
			q.Rounds[i].Bursts = slices.Delete(slices.Clone(p.Rounds[i].Bursts), k, k+1)
			again(q)
		}
	}
	return p, failed
}
