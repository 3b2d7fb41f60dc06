package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// TestDialerDiesBetween: a dialer that dies, or misbehaves, after some of its connections ends the
// Accept at once, and the listener goes on.
func TestDialerDiesBetween(t *testing.T) {
	l, err := New(Options{CongestionControl: "reno"}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		name string
		end  func(*net.TCPConn)
		want string
	}{
		{"closed", func(c *net.TCPConn) { c.Close() }, "closed by the dialer"},
		{"reset", func(c *net.TCPConn) { c.SetLinger(0); c.Close() }, "reset"},
		{"talks", func(c *net.TCPConn) { c.Write([]byte("x")) }, "before the path was set up"},
	} {
		_, cb := configs()
		cb.Streams = 3
		tok := newToken()
		accepted := make(chan error, 1)
		go func() {
			_, err := l.Accept(t.Context(), tok, cb)
			accepted <- err
		}()
		var conns []*net.TCPConn
		for i := range 2 { // of three
			nc, err := net.Dial("tcp", l.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			var b [helloSize]byte
			(&hello{version: version, kind: kindHello, window: 1, token: tok, index: uint16(i), count: 3, frame: 100,
				blocks: 1}).put(b[:])
			nc.Write(b[:])
			if _, err := io.ReadFull(nc, b[:]); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, nc.(*net.TCPConn))
		}
		c.end(conns[0])
		err := <-accepted
		if !errors.Is(err, path.ErrDown) || !strings.Contains(err.Error(), "after 2 of 3 connections") ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; expected ErrDown and %q", c.name, err, c.want)
		}
		// The other connection was cut with it.
		if n, err := conns[1].Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: the other connection got %d bytes", c.name, n)
		}
	}
	watched := func() int {
		l := l.(*Listener)
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.guests) + len(l.waiting)
	}
	if n := watched(); n != 0 {
		t.Errorf("the listener remembers %d paths that never were", n)
	}

	// An Accept that gives up midway leaves nothing behind either.
	_, cb := configs()
	tok := newToken()
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept(ctx, tok, cb)
		accepted <- err
	}()
	nc, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var b [helloSize]byte
	(&hello{version: version, kind: kindHello, window: 1, token: tok, count: 2, frame: 100, blocks: 1}).put(b[:])
	nc.Write(b[:])
	if _, err := io.ReadFull(nc, b[:]); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-accepted; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled midway: %v", err)
	}
	if n := watched(); n != 0 {
		t.Errorf("the listener still watches %d connections of it", n)
	}
	ca, cb := configs()
	tok = newToken()
	go func() {
		p, err := l.Accept(t.Context(), tok, cb)
		if err == nil {
			err = p.Close()
		}
		accepted <- err
	}()
	p, err := New(Options{CongestionControl: "reno"}).Dial(t.Context(), setup.Offer{Addr: l.Addr(), Token: tok}, ca)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}

// TestFirstBytesOvertake: nothing keeps the order between connections, so what a dialer sends on
// one may come before what shows its secret on another. The listener leaves it to the path.
func TestFirstBytesOvertake(t *testing.T) {
	o := Options{CongestionControl: "reno", KTLS: Off}
	l, err := New(o).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hold, passed := make(chan struct{}), make(chan struct{}, 16)
	m := newMiddle(t, l.Addr())
	m.edit = func(w *wire, up bool, n int, b []byte) bool {
		if up && w.link > 0 && n == 0 {
			<-hold
		}
		w.pass(b)
		if up && w.link == 0 && n > 0 {
			passed <- struct{}{}
		}
		return true
	}
	release := sync.OnceFunc(func() { close(hold) })
	m.start()
	t.Cleanup(release) // before the middle waits for its goroutines
	ca, cb := sealedConfigs(2)
	tok := newToken()
	var b path.Path
	accepted := make(chan error, 1)
	go func() {
		var err error
		b, err = l.Accept(t.Context(), tok, cb)
		accepted <- err
	}()
	a, err := New(o).Dial(t.Context(), setup.Offer{Addr: m.l.Addr().String(), Token: tok}, ca)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Post([]path.Op{{Kind: path.Notify, Msg: []byte("early")}}); err != nil {
		t.Fatal(err)
	}
	var ev [4]path.Event
	for sent := false; !sent; {
		a.Poll(ev[:])
		select {
		case <-passed:
			sent = true
		default:
		}
	}
	// The listener has seen it when it answers a connection that came later.
	c, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var h [helloSize]byte
	(&hello{version: version + 1, kind: kindHello, window: 1, token: newToken(), count: 1, frame: 100,
		blocks: 1}).put(h[:])
	c.Write(h[:])
	if _, err := io.ReadFull(c, h[:]); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-accepted:
		t.Fatalf("accepted before all connections were there: %v", err)
	default:
	}
	release()
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for {
		a.Poll(ev[:])
		for _, e := range ev[:b.Poll(ev[:])] {
			if e.Kind != path.EventNotify || string(e.Msg) != "early" {
				t.Fatalf("%+v", e)
			}
			return
		}
	}
}

// TestConnectionsInAnyOrder: the connections of a path come at the same time. Those that are there
// before the first wait for it longer than a pending connection may, whether Accept was there
// before or comes after them.
func TestConnectionsInAnyOrder(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("sealed=%v,late=%v", sealed, late), func(t *testing.T) {
				t.Parallel()
				o := Options{CongestionControl: "reno"}
				l, err := New(o).Listen()
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				if !late {
					hurry(l)
				}
				const streams = 3
				hold, others := make(chan struct{}), make(chan struct{}, streams)
				m := newMiddle(t, l.Addr())
				m.raw = !sealed
				m.hello = func(up bool, b []byte) {
					var h hello
					if err := h.parse(b); err != nil {
						t.Error(err)
					}
					switch {
					case !up:
					case h.index == 0:
						<-hold
					default:
						others <- struct{}{}
					}
				}
				release := sync.OnceFunc(func() { close(hold) })
				m.start()
				t.Cleanup(release)
				ca, cb := configs()
				if sealed {
					ca, cb = sealedConfigs(streams)
				}
				ca.Streams, cb.Streams = streams, streams
				tok := newToken()
				accepted := make(chan error, 1)
				accept := func() {
					p, err := l.Accept(t.Context(), tok, cb)
					if err == nil {
						defer p.Close()
					}
					accepted <- err
				}
				if !late {
					go accept()
					for !awaits(l, tok) {
						runtime.Gosched()
					}
				}
				dialed := make(chan error, 1)
				go func() {
					p, err := New(o).Dial(t.Context(), setup.Offer{Addr: m.l.Addr().String(), Token: tok}, ca)
					if err == nil {
						defer p.Close()
					}
					dialed <- err
				}()
				for range streams - 1 {
					<-others
				}
				if late {
					go accept()
				} else {
					// an Accept that waits for a path loses none of its connections meanwhile
					<-time.After(quick + 200*time.Millisecond)
				}
				release()
				if err := <-dialed; err != nil {
					t.Error("dial:", err)
				}
				if err := <-accepted; err != nil {
					t.Error("accept:", err)
				}
			})
		}
	}
}

// TestOutOfFiles: a listener in a process that can open no more files sleeps, and goes on when
// there are some again.
func TestOutOfFiles(t *testing.T) {
	const child = "PENSTOCK_TCP_OUT_OF_FILES"
	if os.Getenv(child) == "" {
		cmd := exec.Command("/bin/sh", "-c", `ulimit -n 64 && exec "$@"`, "sh", os.Args[0],
			"-test.run=^TestOutOfFiles$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("went on")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	l, err := New(Options{}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other, err := net.Listen("tcp", "127.0.0.1:0") // makes what the network of the runtime needs
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	var files []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		files = append(files, f)
	}
	last := files[len(files)-1]
	files = files[:len(files)-1]
	last.Close()
	c, err := net.Dial("tcp", l.Addr()) // the kernel accepts it, the listener cannot
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before, err := sys.ProcessCPU()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	<-time.After(600 * time.Millisecond)
	after, err := sys.ProcessCPU()
	if err != nil {
		t.Fatal(err)
	}
	if used, took := after-before, time.Since(begin); used > took/4 {
		t.Errorf("%v of processor time in %v of waiting", used, took)
	}
	for _, f := range files {
		f.Close()
	}
	var b [helloSize]byte
	(&hello{version: version + 1, kind: kindHello, window: 1, token: newToken(), count: 1, frame: 100,
		blocks: 1}).put(b[:])
	c.Write(b[:])
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(c, b[:]); err != nil {
		t.Fatal("no answer after there were files again:", err)
	}
	t.Log("went on")
}

// sayHello connects and says hello as connection index of two.
func sayHello(t *testing.T, addr string, tok setup.Token, index uint16) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	var b [helloSize]byte
	(&hello{version: version, kind: kindHello, window: 16, token: tok, index: index, count: 2, frame: maxFrameBytes,
		blocks: maxFrameBlocks}).put(b[:])
	if _, err := c.Write(b[:]); err != nil {
		t.Fatal(err)
	}
	return c
}

// answerTo reads what the listener answers.
func answerTo(t *testing.T, c net.Conn) (status, error) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	var b [helloSize]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return 0, err
	}
	var h hello
	err := h.parse(b[:])
	return h.status, err
}

// TestEarlyConnectionIsRefused: a connection that waits for the first one of its path is refused
// when no Accept waits for the path any more.
func TestEarlyConnectionIsRefused(t *testing.T) {
	l, err := New(Options{}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hurry(l)
	_, cb := configs()
	tok := newToken()
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept(ctx, tok, cb)
		accepted <- err
	}()
	c := sayHello(t, l.Addr(), tok, 1)
	<-time.After(quick + 200*time.Millisecond) // longer than a pending connection may wait
	cancel()
	if err := <-accepted; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if st, err := answerTo(t, c); err != nil || st != statusToken {
		t.Errorf("status %d, %v; expected a refusal", st, err)
	}
}

// TestOldestMakesRoom: those who come make room by the order in which they came, not by how long
// they may still stay.
func TestOldestMakesRoom(t *testing.T) {
	l, err := New(Options{}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	silent := func(n int) {
		for range n {
			c, err := net.Dial("tcp", l.Addr())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
	}
	silent(setup.MaxPending())
	c := sayHello(t, l.Addr(), newToken(), 0)
	silent(setup.MaxPending() / 2)
	if st, err := answerTo(t, c); err != nil || st != statusToken {
		t.Errorf("status %d, %v; expected a refusal after the time of grace", st, err)
	}
}

// TestLateListener: a listener that was stalled beyond the time of its pending connections reads
// what they said before it drops them, however many they are.
func TestLateListener(t *testing.T) {
	l, err := New(Options{}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := l.(*Listener)
	conns := make([]net.Conn, min(setup.MaxPending(), 150))
	for i := range conns {
		if conns[i], err = net.Dial("tcp", l.Addr()); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
	}
	all := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.unknown) == len(conns)
	}
	for end := time.Now().Add(helloTimeout); !all(); {
		if time.Now().After(end) {
			t.Fatal("not all are there")
		}
		runtime.Gosched()
	}
	m.mu.Lock() // the listener does not run
	for i, c := range conns {
		h := hello{version: version, kind: kindHello, token: newToken(), count: 1, window: 1 << 20,
			frame: maxFrameBytes, blocks: maxFrameBlocks}
		var b [helloSize]byte
		h.put(b[:])
		if _, err := c.Write(b[:]); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	for _, s := range m.unknown {
		s.until = time.Now()
	}
	m.mu.Unlock()
	for i, c := range conns {
		if st, err := answerTo(t, c); err != nil || st != statusToken {
			t.Errorf("%d: status %d, %v; expected that the token is refused", i, st, err)
		}
	}
}

// TestMoreStreamsThanAgreed: both sides fail when the dialer has more streams than the accepting
// side.
func TestMoreStreamsThanAgreed(t *testing.T) {
	l, err := New(Options{}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tok := newToken()
	ca, cb := configs()
	ca.Streams, cb.Streams = 4, 3
	accepted := make(chan error)
	go func() {
		_, err := l.Accept(t.Context(), tok, cb)
		accepted <- err
	}()
	if _, err := New(Options{}).Dial(t.Context(), setup.Offer{Addr: l.Addr(), Token: tok}, ca); !errors.Is(err,
		path.ErrProtocol) {
		t.Errorf("4 streams where 3 are agreed: %v", err)
	}
	if err := <-accepted; !errors.Is(err, path.ErrProtocol) {
		t.Errorf("4 streams where 3 are agreed: %v at the accepting side", err)
	}
}

// TestOneRefusalEndsTheDial: a connection that is refused ends the others of its path, one of which
// would wait for ever.
func TestOneRefusalEndsTheDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer l.Close()
	serving.Go(func() {
		for range 2 {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			var b [helloSize]byte
			var h hello
			if _, err := io.ReadFull(c, b[:]); err != nil || h.parse(b[:]) != nil {
				t.Errorf("no hello: %v", err)
			}
			if h.index == 1 {
				(&hello{version: version, kind: kindAnswer, status: statusToken, frame: maxFrameBytes,
					blocks: maxFrameBlocks}).put(b[:])
				c.Write(b[:])
			}
		}
		l.Accept() // until the test ends
	})
	ca, _ := configs()
	ca.Streams = 2
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := New(Options{CongestionControl: "reno"}).Dial(ctx,
		setup.Offer{Addr: l.Addr().String(), Token: newToken()}, ca); !errors.Is(err, path.ErrProtocol) ||
		ctx.Err() != nil {
		t.Errorf("%v, %v; expected a refusal of the token at once", err, ctx.Err())
	}
}

// quick is how long the listeners of some tests wait for an Accept.
const quick = 300 * time.Millisecond

// awaits reports whether an Accept waits for the path of a token.
func awaits(l setup.Listener, tok setup.Token) bool {
	m := l.(*Listener)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiting[tok] != nil
}

func hurry(l setup.Listener) {
	m := l.(*Listener)
	m.mu.Lock()
	m.grace = quick
	m.mu.Unlock()
}
