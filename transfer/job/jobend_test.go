package job

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// What cannot get better is not tried again.
func TestJobRefusals(t *testing.T) {
	s := newServer(t, 1<<20, transfer.ExportOptions{})
	n := open(t, transfer.Options{})
	l := link(t, n, s.addr(), LinkOptions{})
	dst := region(t, 1<<20)
	wo := region(t, 1<<20)
	export(t, s.node, wo, "wo", path.Write)
	for what, c := range map[string]struct {
		begin func() (*Job, error)
		want  error
	}{
		"no such name": {func() (*Job, error) { return l.Fetch(ctx(t), "y", dst.All(), Options{}) }, control.NotFound},
		"not writable": {func() (*Job, error) { return l.Store(ctx(t), "x", dst.All(), Options{}) }, path.ErrRights},
		"not readable": {func() (*Job, error) { return l.Fetch(ctx(t), "wo", dst.All(), Options{}) }, path.ErrRights},
		"no such path": {func() (*Job, error) {
			return l.Fetch(ctx(t), "x", dst.All(), Options{Transfer: transfer.PutOptions{Paths: []string{"none"}}})
		}, path.ErrUnavailable},
		"wrong address": {func() (*Job, error) {
			return link(t, n, "tcp://192.0.2.1:1", LinkOptions{}).Fetch(ctx(t), "x", dst.All(), Options{})
		}, transfer.ErrPlaintext},
		"no port": {func() (*Job, error) {
			return link(t, n, "tcp://10.0.0.7", LinkOptions{}).Fetch(ctx(t), "x", dst.All(), Options{})
		}, transfer.CheckAddress("tcp://10.0.0.7")},
	} {
		j, err := c.begin()
		if err == nil {
			err = j.Wait(ctx(t))
			if e := j.Explain(); e.Attempts != 1 {
				t.Errorf("%s: tried again: %v", what, e)
			}
		}
		if !errors.Is(err, c.want) && (err == nil || err.Error() != c.want.Error()) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, o := range map[string]Options{
		"From":    {From: 1<<20 + 1},
		"Window":  {Window: 257},
		"Window-": {Window: -1},
		"Stall":   {Stall: -1},
		"Retry":   {Retry: Retry{Factor: 0.1}},
		"Msg":     {Transfer: transfer.PutOptions{Msg: []byte{1}}},
	} {
		if j, err := l.Fetch(ctx(t), "x", dst.All(), o); err == nil {
			t.Errorf("%s: accepted", what)
			j.Cancel()
		}
	}
	if _, err := l.Fetch(ctx(t), "", dst.All(), Options{}); err == nil {
		t.Error("a name of no bytes was accepted")
	}
	if _, err := l.Fetch(ctx(t), "x", mem.Span{Region: dst, Off: 1 << 20, Len: 1}, Options{}); !errors.Is(err,
		mem.ErrBounds) {
		t.Errorf("beyond the region: %v", err)
	}
	canceled, cancel := context.WithCancel(ctx(t))
	cancel()
	if _, err := l.Fetch(canceled, "x", dst.All(), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled before: %v", err)
	}
}

// A server that is not there: the job fails once, says how often and why, and gives the memory
// back.
func TestJobGivesUp(t *testing.T) {
	s := newServer(t, 4096, transfer.ExportOptions{})
	s.proxy.Refuse(true)
	n := open(t, transfer.Options{})
	l := link(t, n, s.addr(), LinkOptions{Retry: Retry{First: time.Millisecond, Max: 2 * time.Millisecond}})
	dst := region(t, 4096)
	var ends atomic.Int64
	j, err := l.Fetch(ctx(t), "x", dst.All(), Options{Retry: Retry{Attempts: 5}})
	if err != nil {
		t.Fatal(err)
	}
	called := make(chan struct{})
	j.OnDone(func(*Job) { ends.Add(1); close(called) })
	err = j.Wait(ctx(t))
	if !errors.Is(err, ErrGaveUp) || !strings.Contains(err.Error(), "5 attempts") {
		t.Errorf("%v", err)
	}
	if e := j.Explain(); e.History[0].Dials != 5 {
		t.Errorf("%v", e)
	}
	soon(t, called, "the call of OnDone")
	if j.Cancel() || ends.Load() != 1 {
		t.Errorf("ended %d times", ends.Load())
	}
	dst.Close()
	soon(t, dst.Unmapped(), "the return of the last lease")
	// By time: the dials go on, the job does not.
	dst2 := region(t, 4096)
	j, err = l.Fetch(ctx(t), "x", dst2.All(), Options{Retry: Retry{Attempts: -1, Total: 50 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Wait(ctx(t)); !errors.Is(err, ErrGaveUp) || !strings.Contains(err.Error(), "without progress") {
		t.Errorf("%v", err)
	}
	if c := l.Snapshot(); c.Counts.Jobs != 2 || c.Counts.Failed != 2 || c.Jobs != 0 || c.Sessions.DialsFailed < 5 {
		t.Errorf("%+v", c)
	}
}

// A peer that goes again and again without a byte: the attempts are counted, and their list is
// bounded.
func TestJobGivesUpOnLosses(t *testing.T) {
	s := newServer(t, 4096, transfer.ExportOptions{})
	d := over("tcp")
	d.dial = func(ctx context.Context) error { // of a data connection
		s.proxy.Cut()
		<-ctx.Done()
		return ctx.Err()
	}
	l := link(t, open(t, transfer.Options{Paths: []setup.Driver{d}}), s.addr(),
		LinkOptions{Retry: Retry{First: time.Microsecond, Max: time.Millisecond}})
	dst := region(t, 4096)
	j, err := l.Fetch(ctx(t), "x", dst.All(), Options{Retry: Retry{Attempts: 50}})
	if err != nil {
		t.Fatal(err)
	}
	err = j.Wait(ctx(t))
	var je *Error
	if !errors.Is(err, ErrGaveUp) || !errors.Is(err, transfer.ErrPeerLost) || !errors.As(err, &je) {
		t.Fatalf("%v", err)
	}
	if je.Attempts < 50 || len(je.History) > maxHistory || je.History[0].Number != 1 ||
		je.History[len(je.History)-1].Number != je.Attempts {
		t.Errorf("%d attempts, %d listed", je.Attempts, len(je.History))
	}
	if n := len(err.Error()); n > 300*(maxHistory+3) {
		t.Errorf("an error of %d bytes", n)
	}
	for _, a := range j.Explain().History {
		if a.Err == nil || a.Moved > 0 {
			t.Errorf("attempt %d: %d bytes, %v", a.Number, a.Moved, a.Err)
		}
	}
	dst.Close()
	soon(t, dst.Unmapped(), "the return of the last lease")
}

// overdue is a context whose deadline passes when the test says so.
type overdue struct {
	context.Context
	done chan struct{}
}

func (c *overdue) Done() <-chan struct{} { return c.done }

func (c *overdue) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// What this side ends, in the middle of a job: the error says which way, with the cause of a
// context, and never that the peer is lost.
func TestJobCancel(t *testing.T) {
	cause := errors.New("the caller's reason")
	for what, c := range map[string]struct {
		cancel func(m *midway, stop context.CancelCauseFunc, late *overdue)
		want   []error
	}{
		"Cancel": {func(m *midway, _ context.CancelCauseFunc, _ *overdue) { m.job.Cancel() },
			[]error{path.ErrCanceled, context.Canceled}},
		"context": {func(_ *midway, stop context.CancelCauseFunc, _ *overdue) { stop(cause) },
			[]error{path.ErrCanceled, context.Canceled, cause}},
		"deadline": {func(_ *midway, _ context.CancelCauseFunc, late *overdue) { close(late.done) },
			[]error{path.ErrCanceled, context.DeadlineExceeded}},
		"Link.Close": {func(m *midway, _ context.CancelCauseFunc, _ *overdue) { m.l.Close() },
			[]error{transfer.ErrClosed}},
		"Node.Close": {func(m *midway, _ context.CancelCauseFunc, _ *overdue) { m.n.Close() },
			[]error{transfer.ErrClosed}},
	} {
		for _, via := range paths {
			t.Run(what+"/"+via, func(t *testing.T) {
				m := &midway{server: newServer(t, midwaySize, transfer.ExportOptions{}),
					g: gateOver(midwayHeld, overPath(via)), mem: region(t, midwaySize)}
				m.n = open(t, transfer.Options{Paths: []setup.Driver{m.g.driver}})
				m.l = NewLink(m.n, m.addr(), LinkOptions{})
				x, stop := context.WithCancelCause(ctx(t))
				defer stop(nil)
				late := &overdue{context.Background(), make(chan struct{})}
				if what == "deadline" {
					x = late
				}
				var err error
				if m.job, err = m.l.Fetch(x, "x", m.mem.All(),
					Options{Piece: midwayPiece, Window: 2, OnVerified: m.offs.add}); err != nil {
					t.Fatal(err)
				}
				soon(t, m.g.held, "the middle of the job")
				go func() { // the operations that are under way come back, canceled or done
					<-m.job.ctx.Done()
					m.g.release(m.n)
				}()
				c.cancel(m, stop, late)
				err = m.job.Wait(ctx(t))
				for _, want := range c.want {
					if !errors.Is(err, want) {
						t.Errorf("%v; expected %v in it", err, want)
					}
				}
				if errors.Is(err, transfer.ErrPeerLost) || transfer.Retriable(err) {
					t.Errorf("retriable, or the peer is lost: %v", err)
				}
				if v := m.job.Verified(); v < (midwayHeld-1)*midwayPiece || v >= midwaySize ||
					!bytes.Equal(m.mem.All().Bytes()[:v], m.r.All().Bytes()[:v]) {
					t.Errorf("%d bytes are verified", v)
				}
				if got := m.offs.get(); got[len(got)-1] != m.job.Verified() {
					t.Errorf("told of %v, verified %d", got, m.job.Verified())
				}
				m.mem.Close()
				soon(t, m.mem.Unmapped(), "the return of the last lease")
				m.l.Close()
				if _, err := m.l.Fetch(ctx(t), "x", m.mem.All(), Options{}); err == nil {
					t.Error("a closed link took a job")
				}
				if _, err := m.l.Peer(ctx(t)); !errors.Is(err, transfer.ErrClosed) {
					t.Errorf("a closed link has a peer: %v", err)
				}
			})
		}
	}
}

// Cancel while nothing can be had: waiting for a session, and between attempts.
func TestJobCancelWhileWaiting(t *testing.T) {
	s := newServer(t, 4096, transfer.ExportOptions{})
	s.proxy.Refuse(true)
	l := link(t, open(t, transfer.Options{}), s.addr(), LinkOptions{Retry: Retry{First: time.Hour, Max: time.Hour}})
	dst := region(t, 4096)
	j, err := l.Fetch(ctx(t), "x", dst.All(), Options{Retry: Retry{Attempts: -1, Total: -1}})
	if err != nil {
		t.Fatal(err)
	}
	for c := ctx(t); l.Snapshot().Sessions.DialsFailed == 0 && c.Err() == nil; {
		j.Wait(shortly(t))
	}
	if !j.Cancel() {
		t.Error("it had ended")
	}
	if err := j.Wait(ctx(t)); !errors.Is(err, path.ErrCanceled) {
		t.Errorf("%v", err)
	}
}

// Callbacks may close what they are called by.
func TestCloseFromOnVerified(t *testing.T) {
	for what, end := range map[string]func(n *transfer.Node, l *Link) error{
		"node": func(n *transfer.Node, l *Link) error { return n.Close() },
		"link": func(n *transfer.Node, l *Link) error { return l.Close() },
	} {
		t.Run(what, func(t *testing.T) {
			s := newServer(t, 1<<20, transfer.ExportOptions{})
			n := open(t, transfer.Options{})
			l := NewLink(n, s.addr(), LinkOptions{})
			dst := region(t, 1<<20)
			var once sync.Once
			closed := make(chan struct{})
			j, err := l.Fetch(ctx(t), "x", dst.All(), Options{Piece: 4096, Window: 1, OnVerified: func(uint64) {
				once.Do(func() {
					if err := end(n, l); err != nil {
						t.Error(err)
					}
					close(closed)
				})
			}})
			if err != nil {
				t.Fatal(err)
			}
			soon(t, closed, "the end of Close")
			if err := j.Wait(ctx(t)); err != nil && !errors.Is(err, transfer.ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// A slow OnVerified delays no transfer, and the job never makes two calls at a time; a new
// beginning waits for it.
func TestSlowOnVerified(t *testing.T) {
	m := &midway{server: newServer(t, midwaySize, transfer.ExportOptions{}), g: newGate(midwayHeld),
		mem: region(t, midwaySize)}
	m.n = open(t, transfer.Options{Paths: []setup.Driver{m.g.driver}})
	m.l = link(t, m.n, m.addr(), LinkOptions{})
	var inside atomic.Int64
	block := make(chan struct{})
	zero := false
	var err error
	m.job, err = m.l.Fetch(ctx(t), "x", m.mem.All(),
		Options{Piece: midwayPiece, Window: 2, OnVerified: func(off uint64) {
			if inside.Add(1) != 1 {
				t.Error("called twice at a time")
			}
			<-block
			if off == 0 {
				zero = true
				// Nothing of the new content is there yet.
				if !bytes.Equal(m.mem.All().Bytes()[:midwayPiece], first(m.r)) {
					t.Error("bytes were overwritten before the caller knew")
				}
			}
			m.offs.add(off)
			inside.Add(-1)
		}})
	if err != nil {
		t.Fatal(err)
	}
	soon(t, m.g.held, "the middle of the job") // although the callback blocks
	old := m.r
	m.again(t, 4, midwaySize, transfer.ExportOptions{})
	m.r = old // for the comparison
	for c := ctx(t); m.job.Verified() != 0 && c.Err() == nil; {
		m.job.Wait(shortly(t))
	}
	close(block)
	if err := m.job.Wait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if !zero {
		t.Error("not told of the new beginning")
	}
}

func first(r *mem.Region) []byte { return r.All().Bytes()[:midwayPiece] }

// A path that stands still although the peer lives is left after the time that the caller gives.
func TestJobStall(t *testing.T) {
	m := newMidway(t, path.Get, transfer.ExportOptions{}, Options{Stall: 20 * time.Millisecond})
	// The pieces that stand still are canceled; their end comes when the gate opens.
	for c := ctx(t); m.g.driver.cancels.Load() == 0; {
		if c.Err() != nil {
			t.Fatal("nothing was canceled")
		}
		m.job.Wait(shortly(t))
	}
	m.g.release(m.n)
	m.good(t, 0)
	if err := m.job.Explain().History[0].Err; !errors.Is(err, errStalled) {
		t.Errorf("the first attempt ended with %v", err)
	}
}

// Many jobs share a link whose connection is cut again and again: each ends once, exactly.
func TestJobsUnderCuts(t *testing.T) {
	const jobs, size = 12, 512 << 10
	s := newServer(t, size, transfer.ExportOptions{})
	sink := make([]*mem.Region, jobs)
	for i := range sink {
		sink[i] = region(t, size)
		export(t, s.node, sink[i], "sink"+string(rune('a'+i)), path.Write)
	}
	n := open(t, transfer.Options{})
	l := link(t, n, s.addr(), LinkOptions{Max: 3, Retry: Retry{First: time.Millisecond, Max: 5 * time.Millisecond,
		Attempts: -1}})
	stop := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		tick := time.NewTicker(15 * time.Millisecond)
		defer tick.Stop()
		for range 100 { // not for ever: on a busy machine no session would last until it is of use
			select {
			case <-stop:
				return
			case <-tick.C:
				s.proxy.Cut()
			}
		}
	})
	src := region(t, size)
	fill(src, 11)
	var all []*Job
	dsts := make([]*mem.Region, jobs)
	var ends atomic.Int64
	for i := range jobs {
		dsts[i] = region(t, size)
		o := Options{Piece: 16 << 10, Transfer: transfer.PutOptions{Paths: []string{paths[i%2]}}}
		j, err := l.Fetch(ctx(t), "x", dsts[i].All(), o)
		if err != nil {
			t.Fatal(err)
		}
		k, err := l.Store(ctx(t), "sink"+string(rune('a'+i)), src.All(), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range []*Job{j, k} {
			j.OnDone(func(*Job) { ends.Add(1) })
			all = append(all, j)
		}
	}
	for _, j := range all {
		if err := j.Wait(ctx(t)); err != nil {
			t.Errorf("%v", err)
		}
	}
	close(stop)
	cutter.Wait()
	for i := range jobs {
		if !bytes.Equal(dsts[i].All().Bytes(), s.r.All().Bytes()) {
			t.Errorf("fetch %d: the bytes are not right", i)
		}
		if !bytes.Equal(sink[i].All().Bytes(), src.All().Bytes()) {
			t.Errorf("store %d: the bytes are not right", i)
		}
	}
	for c := ctx(t); ends.Load() < 2*jobs && c.Err() == nil; {
		all[0].Wait(shortly(t))
	}
	if ends.Load() != 2*jobs {
		t.Errorf("%d of %d ended", ends.Load(), 2*jobs)
	}
	c := l.Snapshot()
	if c.Counts.Done != 2*jobs || c.Counts.Restarts != 0 {
		t.Errorf("%+v", c)
	}
	t.Logf("%+v", c)
}
