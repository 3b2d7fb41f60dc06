package fault

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrInjected is wrapped by the errors that this package makes itself.
var ErrInjected = errors.New("injected fault")

// Kind is what a rule does.
type Kind uint8

const (
	// Cut breaks the connection in both directions, with a reset where there is one. A path goes
	// down before the operation.
	Cut Kind = iota + 1
	// Stall stops the flow for a while, or for ever without a duration: bytes wait, a path's
	// Poll does nothing.
	Stall
	// Delay holds back what comes for a duration: all that follows in a stream, or one operation's
	// completion. A completion can also be held back for N polls.
	Delay
	// Short ends a read or write of a stream here; a path reports one event for each of the next N
	// polls.
	Short
	// Corrupt flips a bit in each of the next N bytes, of a byte that a Get brought.
	Corrupt
	// Drop loses N bytes of a stream, or the completion of an operation.
	Drop
	// Duplicate repeats N bytes of a stream, or the completion of an operation.
	Duplicate
	// Reorder holds back a completion until N later ones have passed.
	Reorder
	// HalfClose ends one direction of a stream in good order; what its sender still sends is thrown
	// away.
	HalfClose
	// Refuse resets a connection instead of accepting it, whatever the position; a path's Post
	// stops before the operation as if the window were full, provided that something is
	// outstanding.
	Refuse
	// Fail ends an operation with ErrInjected and path.ErrIntegrity. It is not carried out.
	Fail
	kinds
)

var kindNames = [kinds]string{Cut: "cut", Stall: "stall", Delay: "delay", Short: "short", Corrupt: "corrupt",
	Drop:      "drop",
	Duplicate: "duplicate", Reorder: "reorder", HalfClose: "halfclose", Refuse: "refuse", Fail: "fail"}

func (k Kind) String() string {
	if k > 0 && k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Direction is one or both ways of a connection: Up is from the side that dialed. For a [Conn] Up
// is what it writes, Down what it reads. A path has only Up: its own operations.
type Direction uint8

const (
	Up   Direction = 1
	Down Direction = 2
	Both Direction = Up | Down
)

func (d Direction) String() string {
	switch d {
	case Up:
		return "up"
	case Down:
		return "down"
	case Both:
		return "both"
	}
	return fmt.Sprintf("direction(%d)", uint8(d))
}

// Unit is what positions count.
type Unit uint8

const (
	Bytes      Unit = iota + 1 // of a stream
	Operations                 // of a path
)

// sensible says which kinds make sense for what.
var sensible = map[Unit][]Kind{
	Bytes:      {Cut, Stall, Delay, Short, Corrupt, Drop, Duplicate, HalfClose, Refuse},
	Operations: {Cut, Stall, Delay, Short, Corrupt, Drop, Duplicate, Reorder, Refuse, Fail},
}

// Number is a position or distance: exact, or drawn again each time between 1 and twice itself less
// one.
type Number struct {
	N      uint64
	Random bool
}

// About is a random number with the mean n.
func About(n uint64) Number { return Number{max(n, 1), true} }

// Exactly is n.
func Exactly(n uint64) Number { return Number{N: n} }

func (n Number) String() string {
	if n.Random {
		return "~" + strconv.FormatUint(n.N, 10)
	}
	return strconv.FormatUint(n.N, 10)
}

func (n Number) draw(r *rand.Rand) uint64 {
	if n.Random {
		return 1 + r.Uint64N(2*n.N-1)
	}
	return n.N
}

// Rule says what happens where.
type Rule struct {
	Kind  Kind
	Dir   Direction     // 0 means Both
	Conn  int           // counts connections, or paths of a driver, from 1; 0 means each
	At    Number        // position of the first time; with Every and without At it is drawn like Every
	Every Number        // distance to the next time; 0: once
	N     uint64        // see the kinds; 0 means 1
	For   time.Duration // of Stall and Delay, longest wait of Reorder
}

func (r Rule) String() string {
	if r.Dir == 0 {
		r.Dir = Both
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v", r.Kind, r.Dir)
	if r.Conn != 0 {
		fmt.Fprintf(&b, " conn=%d", r.Conn)
	}
	for _, f := range []struct {
		name string
		n    Number
	}{{"at", r.At}, {"every", r.Every}, {"n", Number{N: r.N}}} {
		if f.n.N != 0 {
			fmt.Fprintf(&b, " %s=%v", f.name, f.n)
		}
	}
	if r.For != 0 {
		fmt.Fprintf(&b, " for=%v", r.For)
	}
	return b.String()
}

// Plan is what goes wrong, fully determined by the seed and the rules. The zero Plan disturbs
// nothing.
type Plan struct {
	Seed  uint64
	Rules []Rule
}

// String is the plan as Parse reads it.
func (p Plan) String() string {
	parts := []string{fmt.Sprintf("seed=%d", p.Seed)}
	for _, r := range p.Rules {
		parts = append(parts, r.String())
	}
	return strings.Join(parts, "; ")
}

// Check says which rule makes no sense for things that count in u.
func (p Plan) Check(u Unit) error {
	for i, r := range p.Rules {
		switch {
		case !slices.Contains(sensible[u], r.Kind):
			return fmt.Errorf("fault: rule %d (%v): expected one of %v", i+1, r, sensible[u])
		case r.Kind == Delay && r.For <= 0 && (u != Operations || r.N == 0):
			return fmt.Errorf("fault: rule %d (%v): a delay needs for=DURATION", i+1, r)
		case r.Conn < 0 || r.For < 0 || r.Dir > Both:
			return fmt.Errorf("fault: rule %d (%v): negative numbers and unknown directions mean nothing", i+1, r)
		case u == Operations && r.Dir&Up == 0 && r.Dir != 0:
			return fmt.Errorf("fault: rule %d (%v): a path has no direction down; put the rule on the peer's path", i+1,
				r)
		case (r.At.Random && r.At.N == 0) || (r.Every.Random && r.Every.N == 0):
			return fmt.Errorf("fault: rule %d (%v): a random number has a mean of 1 at least", i+1, r)
		}
	}
	return nil
}

// Parse reads a plan: its parts are separated by semicolons, first seed=N, then rules
//
//	KIND [up|down|both] [conn=N] [at=N|at=~N] [every=N|every=~N] [n=N] [for=DURATION]
//
// where ~N is a random number with the mean N.
func Parse(s string) (Plan, error) {
	var p Plan
	for i, part := range strings.Split(s, ";") {
		words := strings.Fields(part)
		if len(words) == 0 {
			continue
		}
		if v, ok := strings.CutPrefix(words[0], "seed="); ok && len(words) == 1 {
			n, err := strconv.ParseUint(v, 0, 64)
			if err != nil {
				return p, fmt.Errorf("fault: plan %q: seed: %w", s, err)
			}
			p.Seed = n
			continue
		}
		r, err := parseRule(words)
		if err != nil {
			return p, fmt.Errorf("fault: plan %q: part %d: %w", s, i+1, err)
		}
		p.Rules = append(p.Rules, r)
	}
	return p, nil
}

func parseRule(words []string) (Rule, error) {
	k := slices.Index(kindNames[:], words[0])
	if k < 1 {
		return Rule{}, fmt.Errorf("%q: expected one of %s", words[0], strings.Join(kindNames[1:], ", "))
	}
	r := Rule{Kind: Kind(k), Dir: Both}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		var err error
		switch key {
		case "up":
			r.Dir = Up
		case "down":
			r.Dir = Down
		case "both":
			r.Dir = Both
		case "conn":
			r.Conn, err = strconv.Atoi(value)
		case "at":
			r.At, err = parseNumber(value)
		case "every":
			r.Every, err = parseNumber(value)
		case "n":
			r.N, err = strconv.ParseUint(value, 10, 64)
		case "for":
			r.For, err = time.ParseDuration(value)
		default:
			err = errors.New("expected up, down, both, conn=, at=, every=, n= or for=")
		}
		if err != nil {
			return r, fmt.Errorf("%q: %w", w, err)
		}
	}
	return r, nil
}

func parseNumber(s string) (Number, error) {
	rest, random := strings.CutPrefix(s, "~")
	n, err := strconv.ParseUint(rest, 10, 63)
	if err == nil && random && n == 0 {
		err = errors.New("a random number has a mean of 1 at least")
	}
	return Number{n, random}, err
}

// Random is a plan of one to three rules of the given kinds at positions up to span, with stops of
// at most a few milliseconds where a kind stops something: what a test over many seeds uses. Stalls
// end by themselves.
func Random(u Unit, seed, span uint64, from ...Kind) Plan {
	r := rand.New(rand.NewPCG(seed, 0x6661756c74))
	p := Plan{Seed: seed}
	span = max(span, 2)
	for range 1 + r.IntN(3) {
		x := Rule{Kind: from[r.IntN(len(from))], Dir: Direction(1 + r.IntN(3)), At: Exactly(r.Uint64N(span))}
		if u == Operations {
			x.Dir = Up
		}
		switch x.Kind {
		case Stall, Delay, Reorder:
			x.For = time.Duration(1+r.IntN(5)) * time.Millisecond
			x.Every = About(1 + span/4)
		case Short:
			x.Every = About(1 + span/16)
		}
		switch x.Kind {
		case Corrupt, Drop, Duplicate, Reorder:
			x.N = 1 + r.Uint64N(4)
		}
		p.Rules = append(p.Rules, x)
	}
	return p
}
