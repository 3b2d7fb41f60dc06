package transfer

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// proxy passes control connections on to a node, records what the dialing side says, and can cut
// them.
type proxy struct {
	addr string
	mu   sync.Mutex
	said bytes.Buffer
	all  []net.Conn
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: "tcp://" + l.Addr().String()}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		p.cut(-1)
		wg.Wait()
	})
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.all = append(p.all, in, out)
			p.mu.Unlock()
			wg.Add(2)
			go func() {
				defer wg.Done()
				io.Copy(io.MultiWriter(out, p), in)
				out.Close()
			}()
			go func() {
				defer wg.Done()
				io.Copy(in, out)
				in.Close()
			}()
		}
	}()
	return p
}

// Write records the first of what was said.
func (p *proxy) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.said.Len() < 4<<20 {
		p.said.Write(b)
	}
	return len(b), nil
}

// cut ends the first n connections, and all of them with -1.
func (p *proxy) cut(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, c := range p.all {
		if n < 0 || i/2 < n {
			c.Close()
		}
	}
}

// Connections that never become peers do not disturb the peers.
func TestHostileConnections(t *testing.T) {
	p := newPair(t, Options{})
	host := strings.TrimPrefix(p.b.Addrs()[0], "tcp://")
	dst, src := region(t, 1<<20), region(t, 1<<20)
	fill(src, 4)
	export(t, p.b, dst, "dst", path.Read|path.Write)
	p.ignore(t)

	// A whole session to be replayed: hello, lookup, a path, a put.
	px := newProxy(t, host)
	q, err := p.a.Dial(ctx(t), px.addr)
	if err != nil {
		t.Fatal(err)
	}
	x, err := q.Put(ctx(t), []path.Copy{lookup(t, q, "dst").At(0, src.All())}, PutOptions{Paths: []string{"tcp"}})
	wait(t, x, err)
	q.Close()
	px.mu.Lock()
	said := bytes.Clone(px.said.Bytes())
	px.mu.Unlock()
	if len(said) < 100 {
		t.Fatalf("only %d bytes were recorded", len(said))
	}

	stop := make(chan struct{})
	worked := make(chan int, 1)
	go func() { // the peer that works all the time
		n := 0
		defer func() { worked <- n }()
		rem, err := p.ab.Lookup(ctx(t), "dst")
		if err != nil {
			t.Error(err)
			return
		}
		for {
			x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{paths[n%2]}})
			if err == nil {
				err = x.Wait(ctx(t))
			}
			if err != nil {
				t.Error(err)
				return
			}
			n++
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	say := func(b []byte, hold bool) {
		c, err := net.Dial("tcp", host)
		if err != nil {
			t.Error(err)
			return
		}
		c.Write(b)
		if hold { // until the node has had enough: silence must not cost it more than its time limit
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			var e net.Error
			if _, err := io.Copy(io.Discard, c); errors.As(err, &e) && e.Timeout() {
				t.Error("the node still holds such a connection")
			}
		}
		c.Close()
	}
	rng := rand.New(rand.NewPCG(1, 1))
	garbage := make([]byte, 4096)
	for i := range garbage {
		garbage[i] = byte(rng.Uint32())
	}
	var wg sync.WaitGroup
	each := func(n int, f func(i int)) {
		for i := range n {
			wg.Add(1)
			go func() {
				defer wg.Done()
				f(i)
			}()
		}
	}
	each(20, func(i int) { say(garbage[:1+i*200], true) })
	each(20, func(i int) { say(said[:len(said)*i/20], true) }) // half a frame, then silence
	each(5, func(int) { say(said, true) })
	each(300, func(i int) { say(said[:i%40], false) })
	wg.Wait()
	close(stop)
	if n := <-worked; n == 0 {
		t.Error("the working peer got nothing done")
	}
	if err := p.ab.Err(); err != nil {
		t.Errorf("the working peer was lost: %v", err)
	}
	for end := ctx(t); len(p.b.Peers()) != 1; {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-end.Done():
			t.Fatalf("%d peers are left of the handshaking", len(p.b.Peers())-1)
		}
	}
	if !bytes.Equal(dst.All().Bytes(), src.All().Bytes()) {
		t.Error("the bytes are others")
	}
}

// The control connection is cut while transfers run over paths that are sound: both sides end
// everything.
func TestControlConnectionCut(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{DeadAfter: never}) // a busy machine is no cut
			px := newProxy(t, strings.TrimPrefix(p.b.Addrs()[0], "tcp://"))
			q, err := p.a.Dial(ctx(t), px.addr)
			if err != nil {
				t.Fatal(err)
			}
			size := 4 * PieceSize
			src, dst := region(t, size), region(t, size)
			x := export(t, p.b, dst, "dst", path.Write)
			rem := lookup(t, q, "dst")
			var all []*Transfer
			for i := range 80 {
				local := src.All()
				if i == 0 { // they take turns, so that one of the others would end when nearly all do
					local.Len = 1 << 20
				}
				x, err := q.Put(ctx(t), []path.Copy{rem.At(0, local)}, PutOptions{Paths: []string{name}})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, x)
			}
			select {
			case <-p.heard: // the first is done
			case <-q.Gone():
				t.Fatalf("the peer is lost: %v; the first transfer: %v", q.Err(), all[0].Err())
			}
			px.cut(1)
			soon(t, q.Gone(), "the loss of the peer")
			lost := 0
			for _, x := range all {
				soon(t, x.Done(), "the end of a transfer")
				if x.Err() != nil {
					lost++
				}
				if err := x.Err(); err != nil && !errors.Is(err, ErrPeerLost) && !errors.Is(err, control.Down) &&
					!errors.Is(err, path.ErrDown) {
					t.Errorf("ended with %v", err)
				}
				addsUp(t, x)
			}
			if lost == 0 {
				t.Error("no transfer was under way any more")
			}
			if err := x.Revoke(ctx(t)); err != nil {
				t.Fatal(err)
			}
			before := bytes.Clone(dst.All().Bytes()[:PieceSize])
			dst.All().Bytes()[0]++
			before[0]++
			y, err := p.ab.Notify(ctx(t), nil, PutOptions{Paths: []string{name}}) // the other peer works
			wait(t, y, err)
			if !bytes.Equal(before, dst.All().Bytes()[:PieceSize]) {
				t.Error("bytes were written after the revocation")
			}
			src.Close()
			dst.Close()
			soon(t, src.Unmapped(), "the return of the source's leases")
			soon(t, dst.Unmapped(), "the return of the destination's leases")
		})
	}
}

// Exports are revoked again and again while transfers to them run: each ends, with all its bytes or
// with an error, and after the revocation nothing is written any more.
func TestRevokeDuringTransfers(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{})
			p.ignore(t)
			const size = 2 << 20
			src := region(t, size)
			fill(src, 8)
			for i := range 30 {
				dst := region(t, size)
				x := export(t, p.b, dst, "dst", path.Write)
				rem := lookup(t, p.ab, "dst")
				var all []*Transfer
				for range 4 {
					y, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{name}})
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, y)
				}
				if i%3 > 0 {
					<-time.After(time.Duration(i) * 50 * time.Microsecond)
				}
				if err := x.Revoke(ctx(t)); err != nil {
					t.Fatal(err)
				}
				before := bytes.Clone(dst.All().Bytes())
				for _, y := range all {
					soon(t, y.Done(), "the end of a transfer")
					if err := y.Err(); err != nil && !errors.Is(err, path.ErrRevoked) && !errors.Is(err, path.ErrKey) {
						t.Errorf("ended with %v", err)
					}
					addsUp(t, y)
				}
				if !bytes.Equal(before, dst.All().Bytes()) {
					t.Fatal("bytes were written after the revocation")
				}
				dst.Close()
				soon(t, dst.Unmapped(), "the return of the export's lease")
			}
		})
	}
}
