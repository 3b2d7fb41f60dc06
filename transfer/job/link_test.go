package job

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/pool"
	"github.com/penstock-io/penstock/transfer/sched"
)

// server is a node that exports a region as "x" behind a proxy that can be cut.
type server struct {
	node  *transfer.Node
	r     *mem.Region
	x     *transfer.Export
	proxy *fault.Proxy
}

func newServer(t testing.TB, size int, o transfer.ExportOptions) *server {
	t.Helper()
	s := &server{r: region(t, size)}
	fill(s.r, 3)
	s.node = open(t, transfer.Options{Name: "server", Listen: []string{"tcp://127.0.0.1:0"}})
	o.Name = "x"
	var err error
	if s.x, err = s.node.Export(s.r.All(), o); err != nil {
		t.Fatal(err)
	}
	if s.proxy, err = fault.NewProxy("tcp", s.node.Addrs()[0][len("tcp://"):], fault.Plan{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.proxy.Close() })
	return s
}

func (s *server) addr() string { return "tcp://" + s.proxy.Addr() }

func link(t testing.TB, n *transfer.Node, addr string, o LinkOptions) *Link {
	t.Helper()
	l := NewLink(n, addr, o)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func waitJob(t testing.TB, j *Job, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Wait(ctx(t)); err != nil {
		t.Fatalf("%v\n%v", err, j.Explain())
	}
}

func TestFetchAndStore(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			const size = 3<<20 + 4096
			s := newServer(t, size, transfer.ExportOptions{Rights: path.Read | path.Write})
			n := open(t, transfer.Options{})
			l := link(t, n, s.addr(), LinkOptions{})
			dst := region(t, size)
			o := Options{Piece: 256 << 10, Transfer: transfer.PutOptions{Paths: []string{name}}}
			j, err := l.Fetch(ctx(t), "x", dst.All(), o)
			waitJob(t, j, err)
			if !bytes.Equal(dst.All().Bytes(), s.r.All().Bytes()) {
				t.Error("the bytes did not come")
			}
			fill(dst, 9)
			j, err = l.Store(ctx(t), "x", dst.All(), o)
			waitJob(t, j, err)
			if !bytes.Equal(dst.All().Bytes(), s.r.All().Bytes()) {
				t.Error("the bytes did not arrive")
			}
			e := j.Explain()
			if j.Verified() != size || j.Progress() != 1 || e.Attempts != 1 || e.History[0].Paths[0] != name ||
				e.History[0].Moved != size {
				t.Errorf("verified %d, progress %v: %v", j.Verified(), j.Progress(), e)
			}
		})
	}
}

// A fetch goes on where it was when its connection is cut, again and again.
func TestFetchSurvivesCuts(t *testing.T) {
	const size = 8 << 20
	s := newServer(t, size, transfer.ExportOptions{})
	// slower than what sees the cuts
	n := open(t, transfer.Options{Limits: transfer.Limits{Node: transfer.Quota{Out: sched.Limits{Rate: 64 << 20,
		Burst: 64 << 10}}}})
	l := link(t, n, s.addr(), LinkOptions{})
	dst := region(t, size)
	cuts := 0
	var last uint64
	// There are more cuts than attempts without progress are allowed: progress sets the limit back.
	o := Options{Retry: Retry{Attempts: 4}, Piece: 64 << 10, Window: 2, OnVerified: func(off uint64) {
		if off <= last {
			t.Errorf("verified %d after %d", off, last)
		}
		if off > last && !bytes.Equal(dst.All().Bytes()[last:off], s.r.All().Bytes()[last:off]) {
			t.Errorf("bytes %d to %d are not right", last, off)
		}
		last = off
		if off > uint64(cuts+1)<<20 {
			cuts++
			had := n.Peers()
			for _, p := range had { // else shared memory may bring all the rest before the session is seen to be lost
				for p.Err() == nil {
					s.proxy.Cut() // more than once: the proxy may not have the connection yet
					runtime.Gosched()
				}
			}
		}
	}}
	j, err := l.Fetch(ctx(t), "x", dst.All(), o)
	waitJob(t, j, err)
	if !bytes.Equal(dst.All().Bytes(), s.r.All().Bytes()) {
		t.Error("the bytes did not come")
	}
	if e := j.Explain(); e.Attempts <= o.Retry.Attempts || last != size || e.Restarts != 0 {
		t.Errorf("last offset %d: %v", last, e)
	}
	t.Log(j.Explain())
}

// A session that replaces another one sets up at once what jobs used before, although no job asks
// for it yet.
func TestLinkWarmsPaths(t *testing.T) {
	s := newServer(t, 4096, transfer.ExportOptions{})
	d := over("tcp")
	l := link(t, open(t, transfer.Options{Paths: []setup.Driver{d}}), s.addr(), LinkOptions{})
	dst := region(t, 4096)
	j, err := l.Fetch(ctx(t), "x", dst.All(), Options{})
	waitJob(t, j, err)
	p, err := l.Peer(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	s.proxy.Cut()
	soon(t, p.Gone(), "the loss of the session")
	q, err := l.Peer(ctx(t))
	if err != nil || q == p {
		t.Fatalf("%v: the same session: %v", err, q == p)
	}
	for c := ctx(t); d.dials.Load() < 2; {
		if c.Err() != nil {
			t.Fatal("the path was not set up again")
		}
		runtime.Gosched()
	}
}

func TestLinkSessions(t *testing.T) {
	s := newServer(t, 4096, transfer.ExportOptions{})
	n := open(t, transfer.Options{})
	l := link(t, n, s.addr(), LinkOptions{Min: -1, Max: 2})
	if c := l.Snapshot(); c.Sessions.Dials != 0 || c.Addr != s.addr() {
		t.Errorf("dialed for nobody: %+v", c)
	}
	p, release, err := l.Acquire(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	// The second user shares it, and another one comes in the background.
	q, release2, err := l.Acquire(ctx(t))
	if err != nil || p != q {
		t.Errorf("%v: another session: %v", err, p != q)
	}
	for c := ctx(t); l.Snapshot().Sessions.Living < 2; {
		if c.Err() != nil {
			t.Fatalf("%+v", l.Snapshot())
		}
		runtime.Gosched()
	}
	release()
	release()
	release2()
	if c := l.Snapshot(); c.Sessions.Leases != 0 || c.Sessions.Unused != 2 {
		t.Errorf("%+v", c)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Peer(ctx(t)); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("a link of a closed node: %v", err)
	}
	if _, err := NewLink(n, s.addr(), LinkOptions{}).Peer(ctx(t)); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("a link made by a closed node: %v", err)
	}
	for _, o := range []LinkOptions{{Min: 3, Max: 2}, {Max: -1}, {Retry: Retry{Factor: -1}}} {
		if _, err := NewLink(n, s.addr(), o).Peer(ctx(t)); !errors.Is(err, pool.ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// BenchmarkResume cuts the control connection in the middle of a fetch. connect-ns is from the loss
// until there is a session again, resume-ns from there, path set-up included, until the first piece
// of 4 KiB that was missing is in place: medians.
func BenchmarkResume(b *testing.B) {
	for _, name := range paths {
		b.Run(name, func(b *testing.B) {
			const size = 256 << 10
			s := newServer(b, size, transfer.ExportOptions{Tag: [16]byte{1}})
			l := link(b, open(b, transfer.Options{}), s.addr(), LinkOptions{})
			dst := region(b, size)
			var connect, resume []time.Duration
			for b.Loop() {
				clear(dst.All().Bytes())
				var once sync.Once
				j, err := l.Fetch(ctx(b), "x", dst.All(),
					Options{Piece: 4096, Window: 1, Transfer: transfer.PutOptions{Paths: []string{name}},
						OnVerified: func(uint64) { once.Do(s.proxy.Cut) }})
				waitJob(b, j, err)
				if !bytes.Equal(dst.All().Bytes(), s.r.All().Bytes()) {
					b.Fatal("the bytes are not right")
				}
				for _, a := range j.Explain().History[1:] {
					if a.First > 0 {
						connect, resume = append(connect, a.Connect), append(resume, a.First)
					}
				}
			}
			if len(resume) == 0 {
				b.Fatal("nothing was resumed")
			}
			slices.Sort(connect)
			slices.Sort(resume)
			b.ReportMetric(float64(connect[len(connect)/2]), "connect-ns")
			b.ReportMetric(float64(resume[len(resume)/2]), "resume-ns")
			b.ReportMetric(float64(len(resume)), "resumed")
		})
	}
}
