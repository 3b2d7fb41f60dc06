package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// TestProcesses is the suite between two processes: SIGKILL midway, a frozen peer. It must be
// first.
func TestProcesses(t *testing.T) { pathtest.RunProcess(t, New(Options{})) }

func configs() (setup.Config, setup.Config) {
	return setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)},
		setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)}
}

func TestBadConfig(t *testing.T) {
	x := new(path.Exports)
	for _, c := range []setup.Config{{}, {Exports: x, Window: -1}, {Exports: x, Window: maxWindow + 1},
		{Exports: x, Streams: maxStreams + 1}, {Exports: x, Streams: -1}} {
		if _, err := New(Options{}).Dial(t.Context(), setup.Offer{Addr: "127.0.0.1:1"}, c); err == nil ||
			sys.IsErrno(err, sys.ECONNREFUSED) {
			t.Errorf("config %+v: %v", c, err)
		}
	}
	_, err := New(Options{CongestionControl: "no-such-thing"}).Listen()
	if !sys.IsErrno(err, sys.ENOENT) || !strings.Contains(err.Error(), "cubic") &&
		!strings.Contains(err.Error(), "reno") {
		t.Errorf("unknown congestion control: %v; expected ENOENT and the names there are", err)
	}
}

// TestUnknownConnections: connections that say nothing, nonsense or a wrong token disturb no other
// path.
func TestUnknownConnections(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	l, err := New(Options{}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hurry(l)
	var conns []net.Conn
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		return c
	}
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range setup.MaxPending() + 20 { // more than the listener keeps
		dial()
	}
	nonsense := dial()
	nonsense.Write(bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 10))
	tok := newToken()
	ca, cb := configs()
	accepted := make(chan path.Path)
	go func() {
		p, err := l.Accept(t.Context(), tok, cb)
		if err != nil {
			t.Error(err)
		}
		accepted <- p
	}()
	if _, err := New(Options{}).Dial(t.Context(), setup.Offer{Addr: l.Addr(), Token: newToken()}, ca); !errors.Is(err,
		path.ErrProtocol) || !strings.Contains(err.Error(), "token") {
		t.Errorf("wrong token: %v", err)
	}
	p, err := New(Options{}).Dial(t.Context(), setup.Offer{Addr: l.Addr(), Token: tok}, ca)
	if err != nil {
		t.Fatal(err)
	}
	q := <-accepted
	defer q.Close()
	defer p.Close()
	if _, err := New(Options{}).Dial(t.Context(), setup.Offer{Addr: l.Addr(), Token: tok}, ca); !errors.Is(err,
		path.ErrProtocol) {
		t.Errorf("token used twice: %v", err)
	}
	nonsense.SetReadDeadline(time.Now().Add(time.Minute))
	if b, err := io.ReadAll(nonsense); err != nil && !sys.IsErrno(err, sys.ECONNRESET) || len(b) > helloSize {
		t.Errorf("nonsense was answered by %q, %v; expected an answer and the end", b, err)
	}
}

func TestAcceptEnds(t *testing.T) {
	l, err := New(Options{}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	_, cb := configs()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Accept(ctx, newToken(), cb); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled Accept: %v", err)
	}
	ended := make(chan error)
	go func() {
		_, err := l.Accept(t.Context(), newToken(), cb)
		ended <- err
	}()
	l.Close()
	if err := <-ended; !errors.Is(err, ErrListenerClosed) {
		t.Errorf("Accept of a closed listener: %v", err)
	}
	if _, err := l.Accept(t.Context(), newToken(), cb); !errors.Is(err, ErrListenerClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// TestWrongVersion: both sides say which versions met.
func TestWrongVersion(t *testing.T) {
	l, err := New(Options{}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ca, cb := configs()
	tok := newToken()
	accepted := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		close(ready)
		_, err := l.Accept(t.Context(), tok, cb)
		accepted <- err
	}()
	<-ready
	for err = nil; err == nil; { // until Accept waits
		c, cerr := net.Dial("tcp", l.Addr())
		if cerr != nil {
			t.Fatal(cerr)
		}
		var b [helloSize]byte
		(&hello{version: 7, kind: kindHello, window: 1, token: tok, count: 1, frame: 100, blocks: 1}).put(b[:])
		c.Write(b[:])
		if _, rerr := io.ReadFull(c, b[:]); rerr != nil {
			t.Fatal(rerr)
		}
		c.Close()
		var h hello
		if perr := h.parse(b[:]); perr != nil || h.status != statusVersion || h.version != version {
			t.Fatalf("answer %+v, %v", h, perr)
		}
		select {
		case err = <-accepted:
		default:
		}
	}
	if !errors.Is(err, path.ErrProtocol) || !strings.Contains(err.Error(), "version 7") {
		t.Errorf("acceptor: %v", err)
	}

	// And a dialer that meets another version.
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	go func() {
		c, err := nl.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		var b [helloSize]byte
		io.ReadFull(c, b[:])
		(&hello{version: 8, kind: kindAnswer, window: 1, frame: 100, blocks: 1}).put(b[:])
		c.Write(b[:])
	}()
	if _, err := New(Options{}).Dial(t.Context(), setup.Offer{Addr: nl.Addr().String()}, ca); !errors.Is(err,
		path.ErrProtocol) || !strings.Contains(err.Error(), "version 8") {
		t.Errorf("dialer: %v", err)
	}
}

// TestDialEnds: a listener that never answers does not hold a dialer beyond its context.
func TestDialEnds(t *testing.T) {
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ca, _ := configs()
	go func() {
		c, err := nl.Accept()
		if err == nil {
			io.ReadFull(c, make([]byte, helloSize))
			cancel()
			<-t.Context().Done()
			c.Close()
		}
	}()
	if _, err := New(Options{}).Dial(ctx, setup.Offer{Addr: nl.Addr().String()}, ca); !errors.Is(err,
		context.Canceled) {
		t.Errorf("%v", err)
	}
}

// proxy joins a dialer and a listener through ordinary sockets and lets change reach into the
// stream to the listener.
type proxy struct {
	net.Listener
	mu    sync.Mutex
	conns []*net.TCPConn
}

func newProxy(t *testing.T, to string, change func(n int, b []byte)) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, c.(*net.TCPConn), d.(*net.TCPConn))
			p.mu.Unlock()
			wg.Go(func() { io.Copy(c, d); c.Close() })
			wg.Go(func() {
				defer d.Close()
				b := make([]byte, 64<<10)
				for at := 0; ; {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					if change != nil {
						change(at, b[:n])
					}
					at += n
					if _, err := d.Write(b[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); p.reset(); wg.Wait() })
	return p
}

// reset cuts all connections by RST.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.SetLinger(0)
		c.Close()
	}
	p.conns = nil
}

func proxied(t *testing.T, ca, cb setup.Config, change func(int, []byte)) (*Path, *Path, *proxy) {
	d := New(Options{CongestionControl: "reno"})
	l, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	px := newProxy(t, l.Addr(), change)
	tok := newToken()
	acc := make(chan path.Path, 1)
	go func() {
		p, err := l.Accept(t.Context(), tok, cb)
		if err != nil {
			t.Error(err)
		}
		acc <- p
	}()
	a, err := d.Dial(t.Context(), setup.Offer{Addr: px.Addr().String(), Token: tok}, ca)
	if err != nil {
		t.Fatal(err)
	}
	b := <-acc
	t.Cleanup(func() { a.Close(); b.Close() })
	return a.(*Path), b.(*Path), px
}

func region(t testing.TB, size int) *mem.Region {
	t.Helper()
	r, err := mem.Alloc(mem.Options{Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// TestReset cuts the connection midway: each operation ends once, with the reason, and EventDown is
// last.
func TestReset(t *testing.T) {
	ca, cb := configs()
	ra, rb := region(t, 8<<20), region(t, 8<<20)
	e, err := cb.Exports.Add(rb.All(), path.Read|path.Write)
	if err != nil {
		t.Fatal(err)
	}
	a, b, px := proxied(t, ca, cb, nil)
	op := func(k path.OpKind) path.Op {
		return path.Op{Kind: k, Copies: []path.Copy{{Local: ra.All(), Key: e.Key()}}}
	}
	if n, err := a.Post([]path.Op{op(path.Put), op(path.Put), op(path.Get)}); n != 3 {
		t.Fatal(err)
	}
	var ev [8]path.Event
	for b.Stats().BytesPlaced < 1<<20 {
		a.Poll(ev[:])
		b.Poll(ev[:])
	}
	px.reset()
	for name, p := range map[string]*Path{"initiator": a, "target": b} {
		var got []path.Event
		w, err := path.NewWaiter()
		if err != nil {
			t.Fatal(err)
		}
		for len(got) == 0 || got[len(got)-1].Kind != path.EventDown {
			n, err := w.Wait(t.Context(), p, ev[:], 0)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, ev[:n]...)
		}
		w.Close()
		want := map[string]int{"initiator": 4, "target": 1}[name]
		if len(got) != want {
			t.Errorf("%s: events %+v, expected %d", name, got, want)
		}
		for _, x := range got {
			if x.Kind == path.EventDone && x.Err == nil {
				continue // done before the cut
			}
			if !errors.Is(x.Err, path.ErrDown) {
				t.Errorf("%s: %+v, expected ErrDown", name, x)
			}
		}
		if n, err := p.Post([]path.Op{op(path.Put)}); n != 0 || !errors.Is(err, path.ErrDown) {
			t.Errorf("%s: post on a path that is down: %d, %v", name, n, err)
		}
	}
}

// TestDamageOnTheWire flips one bit of payload between two real ends.
func TestDamageOnTheWire(t *testing.T) {
	ca, cb := configs()
	ra, rb := region(t, 1<<20), region(t, 1<<20)
	e, err := cb.Exports.Add(rb.All(), path.Read|path.Write)
	if err != nil {
		t.Fatal(err)
	}
	const at = helloSize + headerSize + 5000
	a, b, _ := proxied(t, ca, cb, func(n int, p []byte) {
		if n <= at && at < n+len(p) {
			p[at-n] ^= 1
		}
	})
	put := func() path.Event {
		if n, err := a.Post([]path.Op{{Kind: path.Put,
			Copies: []path.Copy{{Local: mem.Span{Region: ra, Len: 100_000}, Key: e.Key()}}}}); n != 1 {
			t.Fatal(err)
		}
		var ev [8]path.Event
		for {
			b.Poll(ev[:])
			if a.Poll(ev[:]) > 0 {
				return ev[0]
			}
		}
	}
	if x := put(); !errors.Is(x.Err, path.ErrIntegrity) {
		t.Errorf("damaged put: %+v", x)
	}
	if x := put(); x.Err != nil || x.Proof != path.ProofCRC32C {
		t.Errorf("the next put: %+v", x)
	}
	if n := b.Stats().Corrupt; n != 1 {
		t.Errorf("%d frames counted as damaged, expected 1", n)
	}
}

// TestSlowConsumer sends to a peer that polls nothing, and then one event at a time: what waits is
// bounded by buffers of fixed size, and in the end every notification is there, in order.
func TestSlowConsumer(t *testing.T) {
	ca, cb := configs()
	ca.Window, cb.Window = 64, 64
	a, b := dialPair(t, Options{CongestionControl: "reno"}, ca, cb)
	buffers(t, a, 32<<10)
	buffers(t, b, 32<<10)
	defer a.Close()
	defer b.Close()
	msg := make([]byte, path.MaxMessage)
	var ev [64]path.Event
	posted, done, got := 0, 0, 0
	post := func() bool {
		msg[0], msg[len(msg)-1] = byte(posted), byte(posted)
		n, _ := a.Post([]path.Op{{Kind: path.Notify, Imm: uint64(posted), Msg: msg}})
		posted += n
		return n > 0
	}
	for post() {
	}
	for range 100 {
		done += a.Poll(ev[:])
	}
	if posted != 64 || done != 0 {
		t.Fatalf("%d posted and %d done while nobody polls; the window is 64", posted, done)
	}
	const all = 2000
	for got < all {
		if posted < all {
			post()
		}
		done += a.Poll(ev[:])
		for _, x := range ev[:b.Poll(ev[:got%2])] { // every other call has no room for events
			if x.Kind != path.EventNotify || x.Imm != uint64(got) || len(x.Msg) != len(msg) || x.Msg[0] != byte(got) ||
				x.Msg[len(msg)-1] != byte(got) {
				t.Fatalf("notification %d: %+v", got, x)
			}
			got++
		}
		if len(b.notes.v) > noticeSlots || len(b.notes.arena) > noticeArena || len(b.streams[0].out.ctl) > 0 {
			t.Fatalf("%d notifications are kept in %d bytes", len(b.notes.v), len(b.notes.arena))
		}
		if got%2 == 0 {
			for _, x := range ev[:b.Poll(ev[:1])] {
				if x.Imm != uint64(got) || x.Msg[0] != byte(got) || x.Msg[len(msg)-1] != byte(got) {
					t.Fatalf("notification %d: %+v", got, x)
				}
				got++
			}
		}
	}
}

// TestZeroCopyReports: no operation ends before the kernel is done with its memory, and where it
// copies all the same, the path stops asking for it.
func TestZeroCopyReports(t *testing.T) {
	e := newBench(t, Options{ZeroCopy: true, CongestionControl: "reno"}, 2, false, 4<<20)
	if !e.a.zc.on {
		testenv.Missing(t, "MSG_ZEROCOPY", errors.New(e.a.zcLine))
	}
	e.serve()
	for i := range 200 {
		b := e.la.All().Bytes()
		b[i*4096] = byte(i)
		e.do(t, []path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}})
		for _, s := range e.a.streams[:2] {
			if s.out.zcSent != s.out.zcDone {
				t.Fatalf("put %d ended while %d of %d sends were in use", i, s.out.zcSent-s.out.zcDone, s.out.zcSent)
			}
		}
		if !bytes.Equal(b, e.lb.All().Bytes()) {
			t.Fatalf("put %d: bytes differ", i)
		}
		if !e.a.zc.on {
			break
		}
	}
	st := e.a.Stats()
	if st.ZeroCopySends == 0 || e.a.zc.reports != st.ZeroCopySends {
		t.Errorf("%d sends, %d reports", st.ZeroCopySends, e.a.zc.reports)
	}
	if st.ZeroCopyCopied == st.ZeroCopySends && e.a.zc.on {
		t.Errorf("all %d sends were copied, and it is still on", st.ZeroCopySends)
	}
	t.Logf("%d sends, %d copied: %s", st.ZeroCopySends, st.ZeroCopyCopied, e.a.zcLine)
}

// TestZeroCopyDisorder: reports of later sends that come first do not free earlier ones.
func TestZeroCopyDisorder(t *testing.T) {
	z := zeroCopy{disorder: make([][][2]uint32, 1)}
	var o output
	for _, r := range []struct{ first, last, done uint32 }{{0, 1, 2}, {5, 6, 2}, {3, 4, 2}, {2, 2, 7}} {
		z.done(&o, 0, r.first, r.last)
		if o.zcDone != r.done {
			t.Errorf("after %d to %d: %d done, expected %d", r.first, r.last, o.zcDone, r.done)
		}
	}
}

// TestStreams moves bytes over 1, 2, 5 and 16 connections, both ways, and looks that all of them
// are used.
func TestStreams(t *testing.T) {
	for _, n := range []int{1, 2, 5, 16} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			e := newBench(t, Options{CongestionControl: "reno"}, n, false, 24<<20)
			e.serve()
			a, b := e.la.All().Bytes(), e.lb.All().Bytes()
			pathtest.Fill(a, uint64(n))
			e.do(t, []path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}})
			if !bytes.Equal(a, b) {
				t.Fatal("put: bytes differ")
			}
			for _, s := range e.a.streams {
				if large := s.index > 0 || n == 1; large != (s.out.seq > 0) {
					t.Errorf("connection %d of %d sent %d frames of a large put", s.index, n, s.out.seq)
				}
			}
			clear(a)
			e.do(t, []path.Op{{Kind: path.Get, Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}})
			if !bytes.Equal(a, b) {
				t.Fatal("get: bytes differ")
			}
			if st := e.a.Stats(); st.BytesCopied > st.BytesGot/20 {
				t.Errorf("%d of %d received bytes were copied", st.BytesCopied, st.BytesGot)
			}
		})
	}
}

// TestIdleMemory: an idle end is small, because its buffers come with the first use.
func TestIdleMemory(t *testing.T) {
	var bytes int
	ca, cb := configs()
	a, b := dialPair(t, Options{CongestionControl: "reno"}, ca, cb)
	defer a.Close()
	defer b.Close()
	for _, s := range a.streams {
		bytes += cap(s.out.scratch) + cap(s.out.iov)*16 + cap(s.in.stage) + cap(s.in.table) + cap(s.in.dst)*16 +
			flightSize*8
	}
	bytes += len(a.ops)*256 + cap(a.rxv)*16 + len(a.trash) + cap(a.notes.v)*40 + cap(a.notes.arena) +
		(cap(a.serveSmall.blocks)+cap(a.serveBig.blocks))*32 + 4*2*a.window
	if bytes > 176<<10 {
		t.Errorf("an idle end takes %d bytes", bytes)
	}
}

// TestWakeReadsAll: the first Poll after Arm reads every connection, also one that has been silent
// for long.
func TestWakeReadsAll(t *testing.T) {
	e := newBench(t, Options{CongestionControl: "reno"}, 2, true, 2<<20)
	close(e.done)
	e.b.heat[1], e.b.calls = 0, 0
	if e.b.Arm() {
		t.Fatal("an idle path does not arm")
	}
	if _, err := e.a.Post([]path.Op{{Kind: path.Put,
		Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}}); err != nil {
		t.Fatal(err)
	}
	if e.a.streams[1].out.seq == 0 {
		t.Fatal("nothing was sent on the second connection")
	}
	if _, err := sys.PollIn(5000, e.b.fds[1]); err != nil {
		t.Fatal(err)
	}
	e.b.Poll(e.ev[:])
	if e.b.streams[1].in.seq == 0 {
		t.Error("the second connection was not read")
	}
}
