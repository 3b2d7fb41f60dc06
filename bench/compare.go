package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// open opens the queue of a class and prepares what is measured on it. Closing the subject closes
// the queue.
func (o *TransferOptions) open(ctx context.Context, l *link, c class, h shape) (*subject, error) {
	switch c.kind {
	case "p50":
		return o.pingSubject(ctx, l, c.driver, c.mode, 50)
	case "p99":
		return o.pingSubject(ctx, l, c.driver, c.mode, 99)
	}
	if err := l.openQueues(ctx, c.driver, c.mode, 1, 0); err != nil {
		return nil, err
	}
	var s *subject
	var err error
	if c.kind == "borrow" {
		if s, err = o.lendSubject(ctx, l, c.size); s == nil && err == nil {
			err = fmt.Errorf("bench: the %s path cannot lend", c.driver)
		}
	} else {
		s, err = o.flowSubject(ctx, l, path.Put, h)
	}
	if err != nil {
		_, e := l.closeQueues()
		return nil, errors.Join(err, e)
	}
	end, finish := s.close, s.finish
	s.close = func() error {
		err := end()
		_, e := l.closeQueues()
		return errors.Join(err, e)
	}
	s.finish = func(x *paired.Row) error {
		if c.driver == "tcp" {
			x.Note = joinNotes(x.Note, congestionNote(l.queues[0].Path().Explain()))
		}
		return finish(x)
	}
	return s, nil
}

// classRow measures a class, beside theirs where there are any.
func (o *TransferOptions) classRow(ctx context.Context, r *Suite, c class, theirs []rival, versions map[string]string,
	note string) (err error) {
	h := shape{class: c.name, what: c.kind, path: c.driver, mode: c.mode, size: c.size, peers: 1}
	if c.kind == "blocks" {
		h.what, h.blocks = "put", 1024
	}
	n := o.node()
	n.NoChecksum = !c.crc
	if c.network != "" {
		n.Paths = append(n.Paths, "tcp?congestion="+c.network)
	}
	if c.sealed {
		n.Secret = make([]byte, setup.SecretSize)
		rand.Read(n.Secret)
	}
	l, err := o.dial(ctx, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	s, err := o.open(ctx, l, c, h)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	p := paired.Plan{Pairs: o.Pairs, Target: c.ratio, Goal: c.goal,
		Limit: o.RowTime * time.Duration(max(1, len(theirs)))}
	for i := range theirs {
		p.Theirs = append(p.Theirs, theirs[i].contender(versions))
	}
	finish := s.finish
	s.finish = func(x *paired.Row) error {
		x.Note = joinNotes(note, x.Note)
		return finish(x)
	}
	return o.row(ctx, r, l, h, s, p)
}

// against measures every class beside all the ways to run the tools that were asked for and are
// here.
func (o *TransferOptions) against(ctx context.Context, r *Suite) error {
	versions, err := o.lookUp(ctx, r)
	if err != nil {
		return err
	}
	for _, c := range o.classes() {
		theirs := here(c.rivals, versions)
		if len(theirs) == 0 || !slices.Contains(o.Paths, c.driver) {
			continue
		}
		o.Progress.Say("%s, beside others", c.name)
		if err := o.classRow(ctx, r, c, theirs, versions, ""); err != nil {
			return err
		}
	}
	return nil
}

// here are the rivals whose tools are installed.
func here(all []rival, versions map[string]string) (out []rival) {
	for _, v := range all {
		if _, ok := versions[v.tool]; ok {
			out = append(out, v)
		}
	}
	return out
}

func (o *TransferOptions) classes() []class {
	if o.Quick {
		return small(classes(o.Network, 16<<20, o.OpenSSL))
	}
	return classes(o.Network, 1<<30, o.OpenSSL)
}

// lookUp tells the report which of the tools that were asked for are here. It returns their
// versions by the names of --against.
func (o *TransferOptions) lookUp(ctx context.Context, r *Suite) (map[string]string, error) {
	found, lines, missing, err := findTools(ctx, o.Against, o.OpenSSL != nil)
	if err != nil {
		return nil, err
	}
	r.Missing = append(r.Missing, missing...)
	versions := map[string]string{}
	for _, name := range o.Against {
		if !found[name] || len(lines) == 0 {
			continue
		}
		program, version, _ := strings.Cut(lines[0], ": ")
		lines, versions[name] = lines[1:], version
		r.Method.Peers = append(r.Method.Peers, paired.Peer{Name: program, Version: version})
	}
	return versions, nil
}

// Targets measures the table of targets: each class beside the peer that was fastest in a first
// look, and how soon the death of a peer is noticed. The classes in which everybody is forced to
// the same congestion control run in a network namespace of their own (see
// TransferOptions.Isolated), which takes root.
func Targets(ctx context.Context, o TransferOptions) (*paired.Report, error) {
	if o.Against == nil {
		o.Against = []string{"ucx", "fi", "iperf3", "openssl"}
	}
	if o.placed() {
		return nil, errors.New("bench: the table of targets is about host memory: call Transfer for the memory of an " +
			"accelerator")
	}
	if o.Budget == 0 && !o.Quick {
		o.Budget = 100 * time.Millisecond
	}
	if err := o.defaults(); err != nil {
		return nil, err
	}
	if o.Network != "" {
		if err := enterNetwork(o.Network, o.Outside); err != nil {
			return nil, err
		}
	}
	r := o.Begin("targets", append(o.method(), "comparisons are with the peer that was fastest in a first look",
		"goals are figures of the machine that the targets were set on: elsewhere they are for orientation")...)
	r.Method.Pairs, r.Method.Alone = o.Pairs, o.Pairs
	return r.End(o.targets(ctx, r))
}

func (o *TransferOptions) targets(ctx context.Context, r *Suite) error {
	versions, err := o.lookUp(ctx, r)
	if err != nil {
		return err
	}
	for _, c := range o.classes() {
		if !slices.Contains(o.Paths, c.driver) {
			continue
		}
		best, note, err := o.scout(ctx, c, versions)
		if err != nil {
			return err
		}
		var theirs []rival
		if best != nil {
			theirs = []rival{*best}
			o.Progress.Say("%s, beside %s", c.name, best.name)
		} else {
			o.Progress.Say("%s", c.name)
		}
		if err := o.classRow(ctx, r, c, theirs, versions, note); err != nil {
			return err
		}
	}
	if o.Network != "" {
		return nil
	}
	for _, d := range o.Paths {
		if err := o.callRows(ctx, r, d); err != nil {
			return err
		}
		if err := o.listRows(ctx, r, d); err != nil {
			return err
		}
	}
	for _, d := range o.Paths {
		if err := o.deathRows(ctx, r, d); err != nil {
			return fmt.Errorf("%s, peer killed: %w", d, err)
		}
	}
	if len(o.Isolated) > 0 && slices.Contains(o.Paths, "tcp") {
		return o.isolated(ctx, r, "reno")
	}
	return nil
}

func joinNotes(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// scout runs each rival of a class three times and returns the one with the best median: one run on
// a busy machine picks any of them. The note names the rivals that fail. These runs only choose;
// the pairs are measured afresh.
func (o *TransferOptions) scout(ctx context.Context, c class, versions map[string]string) (best *rival, note string,
	err error) {
	looks := 3
	if o.Quick {
		looks = 1
	}
	var top float64
	rivals, lower := here(c.rivals, versions), c.kind == "p50" || c.kind == "p99"
	for i := range rivals {
		v := &rivals[i]
		o.Progress.Say("%s: a first look at %s", c.name, v.name)
		var seen []float64
		for range looks {
			x, err := v.run(ctx)
			if ctx.Err() != nil {
				return nil, "", ctx.Err()
			}
			if err != nil {
				note = joinNotes(note, fmt.Sprintf("%s failed: %v", v.name, err))
				break
			}
			seen = append(seen, x)
		}
		if len(seen) == 0 {
			continue
		}
		s, err := paired.Summarize(seen)
		if err != nil {
			return nil, "", err
		}
		note = joinNotes(note, fmt.Sprintf("%s %.3g", v.name, s.Median))
		if best == nil || lower == (s.Median < top) {
			best, top = v, s.Median
		}
	}
	if note != "" {
		note = "first look: " + note
	}
	return best, note, nil
}

// isolated runs the classes with one congestion control for everybody: this program again, in a
// network of its own.
func (o *TransferOptions) isolated(ctx context.Context, r *Suite, network string) error {
	o.Progress.Say("everybody with %s, in a network namespace", network)
	outside, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	args := append(slices.Clone(o.Isolated[1:]), "--network", network, "--outside", outside)
	cmd := exec.CommandContext(ctx, o.Isolated[0], args...)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 5 * time.Second
	sys.OwnNetwork(cmd)
	out, err := cmd.Output()
	if errors.Is(err, os.ErrPermission) {
		r.Missing = append(r.Missing,
			"the same congestion control for everybody: a network namespace needs root: run as root")
		return nil
	}
	in, e := paired.Read(bytes.NewReader(out))
	if e != nil {
		return fmt.Errorf("bench: in a network namespace: %w", errors.Join(err, e))
	}
	r.Rows = append(r.Rows, in.Rows...)
	r.Missing = append(r.Missing, in.Missing...)
	if err != nil {
		return fmt.Errorf("%w: in a network namespace: %w", paired.ErrFailed, err)
	}
	return nil
}

// enterNetwork makes the network namespace that this process was started in usable. outside is the
// one it must not be in: the congestion control of the whole machine is not ours to change.
func enterNetwork(congestion, outside string) error {
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	if outside == "" || here == outside {
		return errors.New("bench: --network is for the program itself, in a network namespace of its own")
	}
	if err := sys.LoopbackUp(); err != nil {
		return err
	}
	return sys.SetDefaultCongestion(congestion)
}
