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

// gate holds back the completions of a node's operations once a number of them came, so that a test
// can change the world in the middle of a job.
type gate struct {
	driver *fakeDriver
	held   chan struct{} // closed when it holds
	left   atomic.Int64
	open   atomic.Bool
}

func newGate(after int) *gate { return gateOver(after, over("tcp")) }

func gateOver(after int, d *fakeDriver) *gate {
	g := &gate{driver: d, held: make(chan struct{})}
	g.left.Store(int64(after))
	g.driver.poll = func(p path.Path, events []path.Event) int {
		if g.open.Load() {
			return p.Poll(events)
		}
		if g.left.Load() <= 0 {
			return 0
		}
		n := p.Poll(events[:1])
		if n == 1 && events[0].Kind == path.EventDone && g.left.Add(-1) == 0 {
			close(g.held)
		}
		return n
	}
	return g
}

// release lets the completions come, those of a node's paths that are waiting included: the fence
// of a revocation has the node poll all of them.
func (g *gate) release(n *transfer.Node) {
	g.open.Store(true)
	r, err := mem.Alloc(mem.Options{Size: 4096})
	if err != nil {
		panic(err)
	}
	defer r.Close()
	x, err := n.Export(r.All(), transfer.ExportOptions{})
	if err != nil { // closed: nothing waits
		return
	}
	x.Key() // as if a peer had it
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	x.Revoke(ended)
}

// midway is a job that is held when about half of it is verified.
type midway struct {
	*server
	n    *transfer.Node
	l    *Link
	g    *gate
	mem  *mem.Region // local
	job  *Job
	offs offsets
	keep bool // the server's memory, when it is restarted
}

// offsets is what OnVerified got.
type offsets struct {
	mu  sync.Mutex
	all []uint64
}

func (o *offsets) add(off uint64) {
	o.mu.Lock()
	o.all = append(o.all, off)
	o.mu.Unlock()
}

func (o *offsets) get() []uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]uint64(nil), o.all...)
}

const (
	midwaySize  = 1 << 20
	midwayPiece = 64 << 10
	midwayHeld  = 8 // pieces
)

func newMidway(t *testing.T, kind path.OpKind, x transfer.ExportOptions, o Options) *midway {
	t.Helper()
	x.Rights = path.Read | path.Write
	m := &midway{server: newServer(t, midwaySize, x), g: newGate(midwayHeld), mem: region(t, midwaySize)}
	m.n = open(t, transfer.Options{Name: "client", Paths: []setup.Driver{m.g.driver}})
	m.l = link(t, m.n, m.addr(), LinkOptions{Retry: Retry{First: time.Millisecond, Max: 10 * time.Millisecond,
		Attempts: -1}})
	o.Piece, o.Window, o.OnVerified = midwayPiece, 2, m.offs.add
	begin := m.l.Fetch
	if kind == path.Put {
		begin = m.l.Store
		fill(m.mem, 5)
	}
	var err error
	if m.job, err = begin(ctx(t), "x", m.mem.All(), o); err != nil {
		t.Fatal(err)
	}
	soon(t, m.g.held, "the middle of the job")
	return m
}

// lose ends the session of both nodes.
func (m *midway) lose(t *testing.T) {
	t.Helper()
	peers := m.n.Peers()
	m.proxy.Cut()
	for _, p := range peers {
		soon(t, p.Gone(), "the loss of the session")
	}
	m.g.release(m.n)
}

// down ends the server. Nothing is accepted until Refuse(false).
func (m *midway) down(t *testing.T) {
	t.Helper()
	peers := m.n.Peers()
	m.proxy.Refuse(true)
	m.node.Close()
	for _, p := range peers {
		soon(t, p.Gone(), "the loss of the session")
	}
	m.g.release(m.n)
}

// again restarts the server, with other memory under the same name.
func (m *midway) again(t *testing.T, seed uint64, size int, o transfer.ExportOptions) {
	t.Helper()
	m.down(t)
	if !m.keep {
		m.r = region(t, size)
		fill(m.r, seed)
	}
	m.node = open(t, transfer.Options{Name: "server", Listen: []string{"tcp://127.0.0.1:0"}})
	o.Name, o.Rights = "x", path.Read|path.Write
	var err error
	if m.x, err = m.node.Export(m.r.All(), o); err != nil {
		t.Fatal(err)
	}
	m.proxy.SetTarget(m.node.Addrs()[0][len("tcp://"):])
	m.proxy.Refuse(false)
}

// good checks a job that ended well: the bytes of both sides are equal.
func (m *midway) good(t *testing.T, restarts int) {
	t.Helper()
	if err := m.job.Wait(ctx(t)); err != nil {
		t.Fatalf("%v\n%v", err, m.job.Explain())
	}
	n := m.job.Bytes()
	if !bytes.Equal(m.mem.All().Bytes()[:n], m.r.All().Bytes()[:n]) {
		t.Error("the bytes are not right")
	}
	e := m.job.Explain()
	var moved uint64
	for _, a := range e.History {
		moved += a.Moved
	}
	want := n
	if restarts > 0 {
		want += midwayHeld * midwayPiece // at least, for it may have got on between
	}
	if e.Restarts != restarts || e.Attempts < 2 || e.Verified != n || m.job.Progress() != 1 || restarts == 0 &&
		moved != want || moved < want-midwayPiece {
		t.Errorf("%d bytes moved, expected %d, and %d new beginnings:\n%v", moved, want, restarts, e)
	}
	offs := m.offs.get()
	falls := 0
	for i, off := range offs {
		if i > 0 && off <= offs[i-1] {
			falls++
			if off != 0 {
				t.Errorf("verified %d after %d", off, offs[i-1])
			}
		}
	}
	if len(offs) == 0 || offs[len(offs)-1] != n || falls != restarts {
		t.Errorf("told of %v", offs)
	}
}

var both = []path.OpKind{path.Get, path.Put}

// The loss of the session, with the server and its export still there: nothing is moved twice.
func TestJobResumes(t *testing.T) {
	for _, kind := range both {
		t.Run(map[path.OpKind]string{path.Get: "fetch", path.Put: "store"}[kind], func(t *testing.T) {
			m := newMidway(t, kind, transfer.ExportOptions{}, Options{Restarts: -1})
			m.lose(t)
			m.good(t, 0)
		})
	}
}

func TestJobServerStartedAnew(t *testing.T) {
	tag := [16]byte{1, 2, 3}
	t.Run("same tag", func(t *testing.T) {
		m := newMidway(t, path.Get, transfer.ExportOptions{Tag: tag}, Options{Restarts: -1})
		m.again(t, 3, midwaySize, transfer.ExportOptions{Tag: tag})
		m.good(t, 0)
	})
	t.Run("same tag, store", func(t *testing.T) {
		m := newMidway(t, path.Put, transfer.ExportOptions{Tag: tag}, Options{Restarts: -1})
		// What the tag promises: the memory holds what was stored in it.
		m.keep = true
		m.again(t, 8, midwaySize, transfer.ExportOptions{Tag: tag})
		m.good(t, 0)
	})
	t.Run("no tag", func(t *testing.T) {
		m := newMidway(t, path.Get, transfer.ExportOptions{}, Options{})
		m.again(t, 4, midwaySize, transfer.ExportOptions{})
		m.good(t, 1)
	})
	t.Run("no tag, store", func(t *testing.T) {
		m := newMidway(t, path.Put, transfer.ExportOptions{}, Options{})
		m.again(t, 4, midwaySize, transfer.ExportOptions{})
		m.good(t, 1)
	})
	t.Run("other tag", func(t *testing.T) {
		m := newMidway(t, path.Get, transfer.ExportOptions{Tag: tag}, Options{})
		m.again(t, 4, midwaySize, transfer.ExportOptions{Tag: [16]byte{9}})
		m.good(t, 1)
	})
	t.Run("same tag, fewer bytes", func(t *testing.T) {
		m := newMidway(t, path.Get, transfer.ExportOptions{Tag: tag}, Options{})
		m.again(t, 4, midwaySize/2+midwayPiece, transfer.ExportOptions{Tag: tag})
		m.good(t, 1)
		if m.job.Bytes() != midwaySize/2+midwayPiece {
			t.Errorf("%d bytes", m.job.Bytes())
		}
	})
	t.Run("not allowed", func(t *testing.T) {
		m := newMidway(t, path.Get, transfer.ExportOptions{Tag: tag}, Options{Restarts: -1})
		m.again(t, 4, midwaySize, transfer.ExportOptions{Tag: [16]byte{9}})
		err := m.job.Wait(ctx(t))
		var je *Error
		if !errors.Is(err, transfer.ErrChanged) || !errors.As(err, &je) || je.Attempts != 2 ||
			!strings.Contains(err.Error(), "another tag") {
			t.Errorf("%v", err)
		}
	})
}

// A server that was restarted listens before it exports: the name is missing for a while.
func TestJobNameIsComingBack(t *testing.T) {
	tag := [16]byte{7}
	m := newMidway(t, path.Get, transfer.ExportOptions{Tag: tag}, Options{Restarts: -1})
	m.down(t)
	old := m.r
	asked := make(chan *transfer.Peer, 16)
	m.node = open(t, transfer.Options{Listen: []string{"tcp://127.0.0.1:0"}, OnPeer: func(p *transfer.Peer) {
		asked <- p
	}})
	m.proxy.SetTarget(m.node.Addrs()[0][len("tcp://"):])
	m.proxy.Refuse(false)
	for c := ctx(t); ; {
		h := m.job.Explain().History
		if len(h) > 3 && errors.Is(h[len(h)-2].Err, control.NotFound) {
			break
		}
		if m.job.Err() != nil || c.Err() != nil {
			t.Fatal(m.job.Explain())
		}
		m.job.Wait(shortly(t))
	}
	if _, err := m.node.Export(old.All(), transfer.ExportOptions{Name: "x", Tag: tag}); err != nil {
		t.Fatal(err)
	}
	m.good(t, 0)
}

// shortly ends after a moment: for tests that look again and again.
func shortly(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	t.Cleanup(cancel)
	return c
}

// The name is given to other memory while the job runs, on the same session.
func TestJobRevoked(t *testing.T) {
	tag := [16]byte{7}
	for _, c := range []struct {
		name     string
		x, y     transfer.ExportOptions
		restarts int
	}{
		{"no tags", transfer.ExportOptions{}, transfer.ExportOptions{}, 1},
		{"same tags", transfer.ExportOptions{Tag: tag}, transfer.ExportOptions{Tag: tag}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMidway(t, path.Get, c.x, Options{})
			revoked := make(chan error, 1)
			other := region(t, midwaySize)
			fill(other, 3+uint64(c.restarts)) // with the same tag the same content
			go func() { revoked <- m.x.Revoke(ctx(t)) }()
			// The name is free at once; the fence may wait for the gate.
			for wait := ctx(t); ; {
				c.y.Name, c.y.Rights = "x", path.Read
				if _, err := m.node.Export(other.All(), c.y); err == nil {
					break
				}
				if wait.Err() != nil {
					t.Fatal("the name is not free")
				}
			}
			m.r = other
			m.g.release(m.n)
			if err := <-revoked; err != nil {
				t.Error(err)
			}
			m.good(t, c.restarts)
		})
	}
}

// A name that goes for good fails the job at once.
func TestJobNameIsGone(t *testing.T) {
	m := newMidway(t, path.Get, transfer.ExportOptions{}, Options{})
	revoked := make(chan error, 1)
	go func() { revoked <- m.x.Revoke(ctx(t)) }()
	m.g.release(m.n)
	<-revoked
	if err := m.job.Wait(ctx(t)); err != nil && !errors.Is(err, control.NotFound) {
		t.Errorf("%v", err)
	}
}

func TestJobFrom(t *testing.T) {
	const size, from = 1 << 20, 700_001
	tag := [16]byte{5}
	for _, c := range []struct {
		name string
		tag  [16]byte // asked for
		want uint64   // bytes moved
	}{
		{"no tag", [16]byte{}, size - from},
		{"same tag", tag, size - from},
		{"other tag", [16]byte{6}, size},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, size, transfer.ExportOptions{Tag: tag})
			l := link(t, open(t, transfer.Options{}), s.addr(), LinkOptions{})
			dst := region(t, size)
			copy(dst.All().Bytes(), s.r.All().Bytes()[:from])
			var offs offsets
			j, err := l.Fetch(ctx(t), "x", dst.All(), Options{From: from, Tag: c.tag, OnVerified: offs.add})
			waitJob(t, j, err)
			if !bytes.Equal(dst.All().Bytes(), s.r.All().Bytes()) {
				t.Error("the bytes are not right")
			}
			e := j.Explain()
			if e.History[0].Moved != c.want || e.Restarts > 0 != (c.want == size) ||
				e.History[0].Restarted != (c.want == size) {
				t.Errorf("%v", e)
			}
			if got := offs.get(); got[len(got)-1] != size || (got[0] == 0) != (c.want == size) {
				t.Errorf("told of %v", got)
			}
		})
	}
	t.Run("all of it", func(t *testing.T) {
		s := newServer(t, size, transfer.ExportOptions{Tag: tag})
		l := link(t, open(t, transfer.Options{}), s.addr(), LinkOptions{})
		dst := region(t, size)
		j, err := l.Fetch(ctx(t), "x", dst.All(), Options{From: size, Tag: tag})
		waitJob(t, j, err)
		if e := j.Explain(); e.History[0].Moved != 0 || j.Verified() != size {
			t.Errorf("%v", e)
		}
	})
}

// A part of an export, and spans that do not fit.
func TestJobRange(t *testing.T) {
	s := newServer(t, 1<<20, transfer.ExportOptions{Rights: path.Read | path.Write})
	l := link(t, open(t, transfer.Options{}), s.addr(), LinkOptions{})
	dst := region(t, 2<<20)
	part, _ := dst.Span(100, 5000)
	j, err := l.Fetch(ctx(t), "x", part, Options{Off: 777, Piece: 1000})
	waitJob(t, j, err)
	if !bytes.Equal(part.Bytes(), s.r.All().Bytes()[777:5777]) {
		t.Error("the bytes are not right")
	}
	j, err = l.Fetch(ctx(t), "x", dst.All(), Options{Off: 1<<20 - 10})
	waitJob(t, j, err)
	if j.Bytes() != 10 {
		t.Errorf("%d bytes at the end", j.Bytes())
	}
	j, err = l.Store(ctx(t), "x", part, Options{Off: 50})
	waitJob(t, j, err)
	if !bytes.Equal(part.Bytes(), s.r.All().Bytes()[50:5050]) {
		t.Error("the bytes are not right")
	}
	empty, _ := dst.Span(0, 0)
	j, err = l.Fetch(ctx(t), "x", empty, Options{})
	waitJob(t, j, err)
	if j.Progress() != 1 || j.Bytes() != 0 {
		t.Errorf("nothing: %v", j.Explain())
	}
	for what, begin := range map[string]func() (*Job, error){
		"store beyond the end": func() (*Job, error) { return l.Store(ctx(t), "x", part, Options{Off: 1<<20 - 10}) },
		"fetch beyond the end": func() (*Job, error) { return l.Fetch(ctx(t), "x", part, Options{Off: 1<<20 + 1}) },
	} {
		j, err := begin()
		if err == nil {
			err = j.Wait(ctx(t))
		}
		if !errors.Is(err, path.ErrBounds) || j.Explain().Attempts != 1 {
			t.Errorf("%s: %v", what, err)
		}
	}
}
