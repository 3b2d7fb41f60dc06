package fault

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Event is one fault at its place.
type Event struct {
	Kind Kind
	Dir  Direction
	Pos  uint64 // bytes or operations before it in this direction
	N    uint64
	For  time.Duration
	Bits uint64 // random, for what needs it
}

func (e Event) String() string {
	s := fmt.Sprintf("%v %v at %d", e.Kind, e.Dir, e.Pos)
	if e.For > 0 {
		s += fmt.Sprintf(" for %v", e.For)
	}
	return s
}

// script is a plan for one direction of one connection: a sequence of events in the order of their
// positions.
type script struct {
	pos   uint64
	dir   Direction
	lines []line
}

type line struct {
	rule Rule
	rand *rand.Rand
	next uint64
	over bool
}

// script makes the sequence for a direction of connection number conn, counted from 1. It depends
// on nothing else.
func (p *Plan) script(u Unit, conn int, dir Direction) *script {
	s := &script{dir: dir}
	for i, r := range p.Rules {
		if r.Dir == 0 {
			r.Dir = Both
		}
		if r.Dir&dir == 0 || r.Conn != 0 && r.Conn != conn || u == Bytes && r.Kind == Refuse {
			continue
		}
		r.N = max(r.N, 1)
		l := line{rule: r, rand: rand.New(rand.NewPCG(p.Seed, uint64(conn)<<32|uint64(i)<<8|uint64(dir)))}
		switch {
		case r.At.N != 0:
			l.next = r.At.draw(l.rand)
		case r.Every.N != 0:
			l.next = r.Every.draw(l.rand)
		}
		s.lines = append(s.lines, l)
	}
	return s
}

// step moves on by up to n units. It returns how many may pass, or, with k = 0 and ok, the event
// that comes first.
func (s *script) step(n uint64) (k uint64, e Event, ok bool) {
	var first *line
	for i := range s.lines {
		l := &s.lines[i]
		if !l.over && (first == nil || l.next < first.next) {
			first = l
		}
	}
	if first == nil || first.next-s.pos >= n && first.next > s.pos {
		s.pos += n
		return n, Event{}, false
	}
	if first.next > s.pos {
		k = first.next - s.pos
		s.pos += k
		return k, Event{}, false
	}
	r := &first.rule
	e = Event{Kind: r.Kind, Dir: s.dir, Pos: s.pos, N: r.N, For: r.For, Bits: first.rand.Uint64()}
	if r.Every.N == 0 {
		first.over = true
	} else {
		first.next += max(r.Every.draw(first.rand), 1)
	}
	return 0, e, true
}

// clear is how many units may pass before the next event.
func (s *script) clear() uint64 {
	n := uint64(1) << 63
	for i := range s.lines {
		if l := &s.lines[i]; !l.over {
			n = min(n, l.next-min(s.pos, l.next))
		}
	}
	return n
}

// refuses says whether connection number conn is to be refused.
func (p *Plan) refuses(conn int) bool {
	for _, r := range p.Rules {
		if r.Kind == Refuse && (r.Conn == 0 || r.Conn == conn) {
			return true
		}
	}
	return false
}

// maxEvents is how many events a log remembers one by one.
const maxEvents = 4096

// Counts says how often each kind of fault happened.
type Counts [kinds]uint64

// Total is the number of all faults.
func (c Counts) Total() (n uint64) {
	for _, x := range c {
		n += x
	}
	return n
}

func (c Counts) String() string {
	s := ""
	for k, n := range c {
		if n > 0 {
			s += fmt.Sprintf("%v %d, ", Kind(k), n)
		}
	}
	if s == "" {
		return "no faults"
	}
	return s[:len(s)-2]
}

// Log is what was done to a connection or path.
type Log struct {
	Counts   Counts
	Events   []Event // in order of each direction, at most 4096, those by hand included
	Up, Down uint64  // what passed, in bytes or operations
}

// recorder keeps a log that several goroutines write.
type recorder struct {
	mu  sync.Mutex
	log Log
}

func (r *recorder) add(e Event) {
	r.mu.Lock()
	r.log.Counts[e.Kind]++
	if len(r.log.Events) < maxEvents {
		r.log.Events = append(r.log.Events, e)
	}
	r.mu.Unlock()
}

func (r *recorder) passed(d Direction, n int) {
	r.mu.Lock()
	if d == Up {
		r.log.Up += uint64(n)
	} else {
		r.log.Down += uint64(n)
	}
	r.mu.Unlock()
}

func (r *recorder) snapshot() Log {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.log
	l.Events = append([]Event(nil), l.Events...)
	return l
}
