package paired

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Sample is the outcome of one run of a contender.
type Sample struct {
	// Value is in the plan's unit and positive.
	Value float64
	// Verified is the number of bytes that the receiver checked and found right, 0 when it did not
	// look.
	Verified uint64
	// Single holds the times of single operations in the plan's unit, where they were measured one
	// by one.
	Single []float64
}

// Contender is one side of a comparison.
type Contender struct {
	Name    string
	Version string // of another program
	Command string // that starts another program
	// Unchecked says why its runs have no check of bytes: there are none, or another program does
	// not look at them. Without that reason a run that was not verified gives no verdict, and fails
	// the row when it is ours.
	Unchecked string
	// Run makes one run. Setting up and checking are not part of what it times.
	Run func(context.Context) (Sample, error)
}

// Ceiling is what the hardware can do at most (for rates) or at least needs (for times).
type Ceiling struct {
	// Measure returns it in the plan's unit. It is called once in each round.
	Measure func(context.Context) (float64, error)
	// Method says in a few words how.
	Method string
	// Enforce fails a row whose median is beyond the best ceiling by more than Slack, a part of it
	// (0: 0.05): what is measured only for comparison, as sizes that fit the caches make it, is not
	// enforced.
	Enforce bool
	Slack   float64
}

// defaultSlack is how far a median may be beyond the best ceiling: the machine may have sped up in
// between.
const defaultSlack = 0.05

// Plan says what is compared and how.
type Plan struct {
	Name   string // of the row, unique in its report
	Unit   Unit
	Ours   Contender
	Theirs []Contender // each is compared with ours; none: ours alone
	Pairs  int         // rounds; 0: MinPairs
	Warmup int         // rounds thrown away before those; 0: 1; negative: none
	Seed   uint64      // of the order and of the bootstrap
	Target float64     // of the ratio ours/theirs; 0: 1
	Margin float64     // around the target in which both are the same; a part: 0.05 is 5 %
	Goal   float64     // an absolute figure for ours; 0: none
	// Ceiling is measured in each round; nil: there is none.
	Ceiling *Ceiling
	// Gate waits before each round; nil: no wait, and the report does not know how busy the machine
	// was.
	Gate *Gate
	// Alone runs f while what ours keeps running, such as a second process that polls, rests. The
	// gate, the ceiling and theirs run inside. nil: there is nothing to rest.
	Alone func(f func() error) error
	// Limit ends the row with the rounds it has after this time; 0: no limit. One round is made in
	// any case.
	Limit time.Duration
}

// ErrFailed is wrapped by errors that say that a row is not to be believed: bytes that were not
// checked or were wrong, a figure beyond the ceiling.
var ErrFailed = errors.New("failed run")

// maxFailures is how many runs of one of theirs may fail in a row of a report before it is given
// up.
const maxFailures = 3

// Run makes the rounds of a plan and returns the row.
//
// A failure of ours, of the ceiling or of ctx ends it with an error and no row. When one of theirs
// fails, the round is made again as a whole, so that pairs stay pairs; after three failures that
// contender is given up, which its Error tells, and the others go on. An error that wraps ErrFailed
// comes with the row, whose Failed tells the same.
func Run(ctx context.Context, p Plan) (*Row, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	r := &runner{p: p, all: append([]Contender{p.Ours}, p.Theirs...)}
	r.samples, r.verified, r.blind = make([][]float64, len(r.all)), make([]uint64, len(r.all)), make([]int, len(r.all))
	r.failures, r.given = make([]int, len(r.all)), make([]error, len(r.all))
	r.order = newOrder(len(r.all), p.Seed)
	if err := r.rounds(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	row, err := r.row()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return row, row.err()
}

func (p *Plan) check() error {
	p.Pairs, p.Target = orDefault(p.Pairs, MinPairs), orDefault(p.Target, 1)
	p.Warmup = max(0, orDefault(p.Warmup, 1))
	bad := func(format string, a ...any) error {
		return fmt.Errorf("paired: plan %q: %s", p.Name, fmt.Sprintf(format, a...))
	}
	switch {
	case p.Name == "":
		return errors.New("paired: a plan needs a name")
	case p.Unit.Better() == "":
		return bad("unit %q: expected one of this package", p.Unit)
	case p.Pairs < 1:
		return bad("%d pairs: expected at least 1", p.Pairs)
	case positive(p.Target) != nil:
		return bad("target %v: expected a positive ratio", p.Target)
	case !(p.Margin >= 0 && p.Margin < 1):
		return bad("margin %v: expected a part from 0 up to 1", p.Margin)
	case p.Goal != 0 && positive(p.Goal) != nil:
		return bad("goal %v: expected a positive figure", p.Goal)
	}
	names := map[string]bool{}
	for _, c := range append([]Contender{p.Ours}, p.Theirs...) {
		if c.Name == "" || names[c.Name] || c.Run == nil {
			return bad("contender %q: expected a name of its own and a Run", c.Name)
		}
		names[c.Name] = true
	}
	return nil
}

// runner is a plan on its way. Contender 0 is ours.
type runner struct {
	p        Plan
	all      []Contender
	order    *order
	samples  [][]float64
	verified []uint64
	blind    []int // runs whose bytes were not verified
	failures []int
	given    []error // why a contender was given up
	repeated int
	single   []float64
	tops     []float64
	looks    []look
	gateErr  error
	note     string
}

func (r *runner) rounds(ctx context.Context) error {
	began := time.Now()
	for warm, done := 0, 0; done < r.p.Pairs; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("ended after %s of %d: %w", count(done, "round"), r.p.Pairs, err)
		}
		if done > 0 && r.p.Limit > 0 && time.Since(began) > r.p.Limit {
			r.note = fmt.Sprintf("stopped after %s of %d: the time of a row, %v, was used up", count(done, "round"),
				r.p.Pairs, r.p.Limit)
			return nil
		}
		keep := warm >= r.p.Warmup
		ok, err := r.round(ctx, keep)
		if err != nil {
			return fmt.Errorf("round %d of %d: %w", done+1, r.p.Pairs, err)
		}
		switch {
		case !ok:
			r.repeated++
		case keep:
			done++
		default:
			warm++
		}
	}
	return nil
}

func (r *runner) alone(f func() error) error {
	if r.p.Alone == nil {
		return f()
	}
	return r.p.Alone(f)
}

// round runs everybody once. It is not ok when one of theirs failed: nothing of it is kept then.
func (r *runner) round(ctx context.Context, keep bool) (ok bool, err error) {
	var seen look
	var top float64
	if r.p.Gate != nil && r.gateErr == nil || r.p.Ceiling != nil {
		err := r.alone(func() error {
			if r.p.Gate != nil && r.gateErr == nil {
				// A machine that does not tell its load can be measured all the same; the row says
				// so.
				if seen, r.gateErr = r.p.Gate.wait(ctx); ctx.Err() != nil {
					return ctx.Err()
				}
			}
			if r.p.Ceiling == nil {
				return nil
			}
			var err error
			if top, err = r.p.Ceiling.Measure(ctx); err == nil {
				err = positive(top)
			}
			if err != nil {
				return fmt.Errorf("ceiling: %w", err)
			}
			return nil
		})
		if err != nil {
			return false, err
		}
	}
	got := make([]Sample, len(r.all))
	for _, i := range r.order.round() {
		if r.given[i] != nil {
			continue
		}
		if err := r.one(ctx, i, &got[i]); err != nil {
			if ctx.Err() != nil || i == 0 || errors.As(err, new(*restError)) {
				return false, fmt.Errorf("%s: %w", r.all[i].Name, err)
			}
			if r.failures[i]++; r.failures[i] == maxFailures {
				r.given[i] = fmt.Errorf("given up after %d failures, the last: %w", maxFailures, err)
			}
			return false, nil
		}
	}
	if !keep {
		return true, nil
	}
	r.order.advance()
	for i, s := range got {
		if r.given[i] != nil {
			continue
		}
		r.samples[i] = append(r.samples[i], s.Value)
		r.verified[i] += s.Verified
		if s.Verified == 0 {
			r.blind[i]++
		}
	}
	r.single = append(r.single, got[0].Single...)
	if r.p.Ceiling != nil {
		r.tops = append(r.tops, top)
	}
	if r.p.Gate != nil && r.gateErr == nil {
		r.looks = append(r.looks, seen)
	}
	return true, nil
}

// restError is a failure of what lets ours rest, which is not a failure of those who run meanwhile.
type restError struct{ error }

func (e *restError) Unwrap() error { return e.error }

// one makes one run of a contender.
func (r *runner) one(ctx context.Context, i int, s *Sample) error {
	run := func() (err error) {
		if *s, err = r.all[i].Run(ctx); err == nil {
			err = positive(s.Value)
		}
		return err
	}
	if i == 0 {
		return run()
	}
	var failed error
	if err := r.alone(func() error { failed = run(); return nil }); err != nil {
		return &restError{err}
	}
	return failed
}

// row makes of the samples what the file holds.
func (r *runner) row() (*Row, error) {
	p := &r.p
	x := &Row{Name: p.Name, Unit: p.Unit, Better: p.Unit.Better(), Seed: p.Seed, Warmup: p.Warmup, Repeated: r.repeated,
		Note: r.note}
	for i, c := range r.all {
		s := Side{Name: c.Name, Version: c.Version, Command: c.Command, Unchecked: c.Unchecked, Unverified: r.blind[i],
			Failures: r.failures[i]}
		if r.given[i] != nil {
			s.Error = r.given[i].Error()
		} else {
			s.Samples, s.Verified = r.samples[i], r.verified[i]
		}
		if i == 0 {
			x.Ours = s
			continue
		}
		if s.Error == "" {
			s.Ratio = &Ratio{Target: p.Target, Margin: p.Margin}
		}
		x.Theirs = append(x.Theirs, s)
	}
	if p.Goal != 0 {
		x.Goal = &Goal{Value: p.Goal}
	}
	if p.Ceiling != nil {
		x.Ceiling = &Limit{Method: p.Ceiling.Method, Enforced: p.Ceiling.Enforce,
			Slack: orDefault(p.Ceiling.Slack, defaultSlack), Samples: r.tops}
	}
	if len(r.single) > 0 {
		slices.Sort(r.single)
		x.Latency = latencyOf(r.single)
	}
	if p.Gate != nil {
		x.Gate = logOf(r.looks, r.gateErr)
	}
	return x, x.derive()
}

// order decides who runs when. Over as many rounds as there are contenders, everybody has each
// place once.
type order struct {
	draw *rand.Rand
	perm []int
	at   int
}

func newOrder(n int, seed uint64) *order {
	o := &order{draw: generator(seed ^ 0x6f72646572)}
	o.perm = o.draw.Perm(n)
	return o
}

// round is the order of this round.
func (o *order) round() []int {
	return slices.Concat(o.perm[o.at:], o.perm[:o.at])
}

// advance goes to the next round.
func (o *order) advance() {
	if o.at++; o.at == len(o.perm) {
		o.at, o.perm = 0, o.draw.Perm(len(o.perm))
	}
}
