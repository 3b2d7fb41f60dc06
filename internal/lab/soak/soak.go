package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/transfer/identity"
)

// What a worker may do wrong on purpose, for tests that show that Run notices.
const (
	BreakLost  = "lost completion"
	BreakTwice = "completion twice"
	BreakByte  = "wrong byte"
	BreakLease = "leaked lease"
	BreakCount = "silent receiver"
)

// breaks are plans of faults that break the contract of paths.
var breaks = map[string]string{
	BreakLost: "drop every=~15",
	BreakByte: "corrupt every=~4",
}

// Options of a run. The zero value runs for ten seconds with a random seed.
type Options struct {
	Duration time.Duration // of the disturbed part; what ends it comes on top
	Seed     uint64        // 0: chosen and printed
	Out      io.Writer     // for the table; nil: nowhere
	Workers  int           // processes; 0: 3
	MaxBytes uint64        // largest transfer; 0: 64 MiB
	Patience time.Duration // without progress until something counts as hung; 0: 60 s
	Calm     bool          // no faults
	Break    string        // what worker 1 does wrong: one of the constants above; "" is nothing
}

// Kind is what became of the transfers of one kind.
type Kind struct {
	Name                        string
	Begun, Good, Failed, Killed uint64 // Killed: the process that began them got SIGKILL before their end
	Bytes                       uint64 // of the good ones
	Heard, Unheard              uint64 // good ones that the receiver reported; or it got SIGKILL before
	Reasons, Paths              map[string]uint64
}

// Report is what a run found.
type Report struct {
	Seed    uint64
	Took    time.Duration
	Kinds   []Kind
	Borrows uint64
	Looked  uint64 // stores whose bytes the receiver found right
	// Failovers are those of transfers that were begun one by one, of all workers. Sums are what
	// nodes counted that were closed in order: for all transfers, also those of jobs.
	Failovers uint64
	Retries   uint64 // attempts of jobs after the first
	// downloads that went on where an earlier job had ended, also one of a life of the worker that
	// was killed
	Resumed uint64
	Sums    map[string]uint64
	Faults  map[string]int // events by name
	Lives   int            // processes started
	Nodes   int            // nodes opened
	Wrong   []string       // what does not balance; empty is good
}

// run is the process that starts the workers and keeps the accounts.
type run struct {
	o      Options
	r      *rand.Rand
	b      *accounts
	all    []*member
	faults map[string]int
	lives  int
	dir    string // see config
}

// member is a worker in all its lives. Only the goroutine of Run uses it, but for what is marked.
type member struct {
	index int
	front *fault.Proxy // of its control connections with certificates
	plain *fault.Proxy // and without
	life  int
	p     *proc.Process
	quiet chan struct{} // gets one for each node that is quiet
}

// Run soaks. The error says that something does not balance, with the first complaints and how to
// run it again; the report has all of them.
func Run(ctx context.Context, o Options) (Report, error) {
	if o.Duration == 0 {
		o.Duration = 10 * time.Second
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64() >> 32
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Workers == 0 {
		o.Workers = 3
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 20
	}
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	if o.Workers < 2 || o.MaxBytes < 4096 {
		return Report{}, fmt.Errorf("soak: %d workers, at most %d bytes: expected at least 2 and 4096", o.Workers,
			o.MaxBytes)
	}
	// The harness's watcher stays for the life of this process, so it must be there before anything
	// is counted.
	p, err := proc.Launch(proc.Spec{Path: "/proc/self/exe", Env: []string{workerEnv + "=" + noWorker}})
	if err != nil {
		return Report{}, fmt.Errorf("soak: %w", err)
	}
	if err := p.Kill(); err != nil {
		return Report{}, fmt.Errorf("soak: %w", err)
	}
	start := time.Now()
	before, err := held()
	if err != nil {
		return Report{}, fmt.Errorf("soak: %w", err)
	}
	x := &run{o: o, r: rand.New(rand.NewPCG(o.Seed, 0x736f616b)), b: newAccounts(), faults: map[string]int{}}
	fmt.Fprintf(o.Out, "soak: seed %d, %d workers, %v\n", o.Seed, o.Workers, o.Duration)
	err = x.soak(ctx)
	x.b.close()
	x.leftovers(before)
	rep := x.report(time.Since(start))
	rep.print(o.Out)
	if err != nil {
		return rep, fmt.Errorf("soak: seed %d: %w", o.Seed, err)
	}
	if len(rep.Wrong) > 0 {
		few := rep.Wrong[:min(len(rep.Wrong), 10)]
		return rep, fmt.Errorf("soak: %d things do not balance; run again with seed %d (make soak SEED=%d "+
			"DURATION=%v):\n%s",
			len(rep.Wrong)+x.b.dropped, o.Seed, o.Seed, o.Duration, strings.Join(few, "\n"))
	}
	return rep, nil
}

func (x *run) soak(ctx context.Context) (err error) {
	defer func() {
		for _, m := range x.all {
			if m.p != nil {
				err = errors.Join(err, m.p.Kill())
			}
			err = errors.Join(err, m.front.Close())
			if m.plain != nil {
				err = errors.Join(err, m.plain.Close())
			}
		}
	}()
	if x.dir, err = os.MkdirTemp("", "penstock-soak-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.tidy()) }()
	ca, err := identity.NewAuthority()
	if err != nil {
		return err
	}
	for i := range x.o.Workers {
		c, err := ca.Credentials(workerName(i), identity.IssueOptions{})
		if err == nil {
			err = identity.Save(filepath.Join(x.dir, workerName(i)), c)
		}
		if err != nil {
			return err
		}
		// The target is set when the worker says where it listens.
		front, err := fault.NewProxy("tcp", "127.0.0.1:1", fault.Plan{})
		if err != nil {
			return err
		}
		m := &member{index: i, front: front, quiet: make(chan struct{}, 1024)}
		x.all = append(x.all, m)
		if m.plain, err = fault.NewProxy("unix", "@penstock-soak-nobody", fault.Plan{}); err != nil {
			return err
		}
	}
	for _, m := range x.all {
		if err := x.start(m); err != nil {
			return err
		}
	}
	end := time.Now().Add(x.o.Duration)
	for time.Now().Before(end) && ctx.Err() == nil {
		pauseFor := min(time.Duration(50+x.r.IntN(450))*time.Millisecond, time.Until(end))
		if !pause(ctx, pauseFor) {
			break
		}
		if x.o.Calm {
			continue
		}
		if err := x.disturb(ctx); err != nil {
			return err
		}
	}
	if err := x.finish(); err != nil {
		return err
	}
	return ctx.Err()
}

// start begins a life of a worker.
func (x *run) start(m *member) error {
	m.life++
	x.lives++
	c := config{Name: fmt.Sprintf("w%d.%d", m.index, m.life), Dir: x.dir, Index: m.index, Seed: x.o.Seed,
		MaxBytes: x.o.MaxBytes, Patience: x.o.Patience, Silence: time.Second}
	if x.o.Calm { // without faults a worker is silent only while the machine runs something else
		c.Silence = x.o.Patience
	}
	for _, o := range x.all {
		c.Peers = append(c.Peers, "tcp://"+workerName(o.index)+"@"+o.front.Addr())
		c.Plain = append(c.Plain, "unix://"+o.plain.Addr())
	}
	if !x.o.Calm {
		c.Data = fmt.Sprintf("seed=%d; cut every=~40000000; stall every=~50000000 for=20ms; short every=~300000; "+
			"halfclose every=~400000000", x.o.Seed)
	}
	if m.index == 1 {
		c.Break = x.o.Break
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	life := c.Name
	m.p, err = proc.Launch(proc.Spec{Path: exe, Env: []string{workerEnv + "=" + string(text)}, Input: true,
		OnLine: func(s string) {
			var l line
			if err := json.Unmarshal([]byte(s), &l); err != nil || l.T == "" {
				// SIGKILL can cut the last line in two; everything else is an accident, such as a
				// panic.
				x.b.mu.Lock()
				if !x.b.killed[life] {
					x.b.complain("%s said what is no line: %.200q", life, s)
				}
				x.b.mu.Unlock()
				return
			}
			switch l.T {
			case tOpen:
				m.front.SetTarget(strings.TrimPrefix(l.Text, "tcp://"))
				m.plain.SetTarget(strings.TrimPrefix(l.Plain, "unix://"))
			case tQuiet:
				m.quiet <- struct{}{}
			}
			if x.o.Break == BreakCount && m.index == 1 && l.T == tHeard {
				return // as if the worker had never been notified
			}
			x.b.take(&l)
			if x.o.Break == BreakTwice && m.index == 1 && l.T == tEnd {
				x.b.take(&l)
			}
		}})
	return err
}

// tidy removes the directory of the run, in which there must be nothing but identities and
// downloads that are not complete.
func (x *run) tidy() error {
	all, err := os.ReadDir(x.dir)
	for _, f := range all {
		if !strings.HasSuffix(f.Name(), partial) && !f.IsDir() {
			x.b.complaint("a file was left behind: %s", f.Name())
		}
	}
	return errors.Join(err, os.RemoveAll(x.dir))
}

// workerName is what a worker's certificate says, in all its lives.
func workerName(index int) string { return fmt.Sprint("w", index) }

// name is the current life of a worker.
func (m *member) name() string { return fmt.Sprintf("w%d.%d", m.index, m.life) }

// say gives a worker a command. That it is gone shows elsewhere.
func (m *member) say(cmd string) { fmt.Fprintln(m.p.Input(), cmd) }

// disturb does one thing to one worker.
func (x *run) disturb(ctx context.Context) error {
	m := x.all[x.r.IntN(len(x.all))]
	select {
	case <-m.p.Done():
		return x.died(m)
	default:
	}
	short := func() { pause(ctx, time.Duration(5+x.r.IntN(300))*time.Millisecond) }
	fronts := [][]*fault.Proxy{{m.front}, {m.plain}, {m.front, m.plain}}[x.r.IntN(3)]
	each := func(f func(*fault.Proxy)) {
		for _, p := range fronts {
			f(p)
		}
	}
	switch k := x.r.IntN(24); {
	case k < 4:
		x.faults["kill"]++
		x.b.mu.Lock()
		x.b.killed[m.name()] = true
		x.b.mu.Unlock()
		if err := m.p.Kill(); err != nil {
			return err
		}
		return x.start(m)
	case k < 7: // shorter, or longer than the time after which its peers give it up
		x.faults["freeze"]++
		if err := m.p.Stop(); err != nil {
			return err
		}
		pause(ctx, time.Duration(10+x.r.IntN(10)*x.r.IntN(250))*time.Millisecond)
		return m.p.Continue()
	case k < 10:
		x.faults["cut control"]++
		each((*fault.Proxy).Cut)
	case k < 12:
		x.faults["stall control"]++
		d := fault.Direction(1 + x.r.IntN(3))
		each(func(p *fault.Proxy) { p.Stall(d) })
		short()
		each(func(p *fault.Proxy) { p.Resume(fault.Both) })
	case k < 13:
		x.faults["half-close control"]++
		d := fault.Direction(1 + x.r.IntN(2))
		each(func(p *fault.Proxy) { p.HalfClose(d) })
	case k < 15:
		x.faults["cut data"]++
		m.say(cCut)
	case k < 17:
		x.faults["stall data"]++
		m.say(cStall)
		short()
		m.say(cResume)
	case k < 18:
		x.faults["leave"]++
		m.say(cLeave)
	case k < 20:
		x.faults["deny certificate"]++
		m.say(cDeny)
		pause(ctx, time.Duration(5+x.r.IntN(1200))*time.Millisecond)
		m.say(cPardon)
	case k < 22:
		x.faults["take rights"]++
		m.say(cTake)
		pause(ctx, time.Duration(5+x.r.IntN(1200))*time.Millisecond)
		m.say(cGive)
	default:
		x.faults["renew"]++
		m.say(cRenew)
	}
	return nil
}

// died is called for a worker that ended although this process did not kill it.
func (x *run) died(m *member) error {
	e, err := m.p.Wait(context.Background())
	x.b.complaint("%s ended by itself: %v\n%s", m.name(), e, m.p.Output())
	x.b.mu.Lock()
	x.b.killed[m.name()] = true
	x.b.mu.Unlock()
	return errors.Join(err, x.start(m))
}

// finish lets everything come to rest, first on all workers, and then ends them.
func (x *run) finish() error {
	for _, m := range x.all {
		for _, c := range []string{cResume, cPardon, cGive} {
			m.say(c)
		}
		for len(m.quiet) > 0 {
			<-m.quiet
		}
		m.say(cQuiet)
	}
	// A worker may have a renewal to finish first, and each step has its own patience.
	limit, cancel := context.WithTimeout(context.Background(), 8*x.o.Patience)
	defer cancel()
	for _, m := range x.all {
		select {
		case <-m.quiet:
		case <-m.p.Done():
		case <-limit.Done():
			x.b.complaint("%s does not come to rest", m.name())
		}
	}
	for _, m := range x.all {
		m.say(cFinish)
	}
	for _, m := range x.all {
		e, err := m.p.Wait(limit)
		if err != nil {
			x.b.complaint("%s does not end: %v", m.name(), err)
			continue
		}
		if !e.OK() {
			x.b.complaint("%s: %v\n%s", m.name(), e, tail(m.p.Output(), 4<<10))
		}
	}
	return nil
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// leftovers complains of what this process still holds.
func (x *run) leftovers(before holding) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(x.o.Patience); ; <-tick.C {
		now, err := held()
		if err != nil {
			x.b.complaint("%v", err)
			return
		}
		if now.goroutines <= before.goroutines && now.fds <= before.fds {
			return
		}
		if time.Now().After(end) {
			buf := make([]byte, 16<<10)
			x.b.complaint("this process has %d goroutines and %d descriptors, before it had %d and %d\n%s",
				now.goroutines, now.fds, before.goroutines, before.fds, buf[:runtime.Stack(buf, true)])
			return
		}
	}
}

func (x *run) report(took time.Duration) Report {
	b := x.b
	b.mu.Lock()
	defer b.mu.Unlock()
	r := Report{Seed: x.o.Seed, Took: took, Borrows: b.borrows, Looked: b.looked, Failovers: b.hops, Retries: b.tries,
		Resumed: b.resumed, Sums: b.sums, Faults: x.faults, Lives: x.lives, Nodes: len(b.nodes),
		Wrong: slices.Clone(b.wrong)}
	for name, t := range b.kinds {
		r.Kinds = append(r.Kinds, Kind{Name: name, Begun: t.begun, Good: t.good, Failed: t.failed, Killed: t.killed,
			Bytes: t.bytes,
			Heard: t.heard, Unheard: t.unheard, Reasons: t.reasons, Paths: t.paths})
	}
	slices.SortFunc(r.Kinds, func(a, b Kind) int { return strings.Compare(a.Name, b.Name) })
	for _, k := range r.Kinds {
		if k.Begun != k.Good+k.Failed+k.Killed && len(r.Wrong) == 0 {
			r.Wrong = append(r.Wrong,
				fmt.Sprintf("%s: %d began, %d succeeded, %d failed and %d died with their process", k.Name, k.Begun,
					k.Good, k.Failed, k.Killed))
		}
	}
	return r
}
