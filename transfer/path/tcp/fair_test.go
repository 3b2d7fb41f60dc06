package tcp

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// TestSmallFirst: with two streams the first one carries what is small, and only that: puts,
// requests, and what the peer asked for, whatever large things began before.
func TestSmallFirst(t *testing.T) {
	const size = 8 << 20
	a, b := newNode(t, size, 32, 2, false), newNode(t, size, 32, 2, false)
	whole := func(n *node, k path.Key, size uint64) []path.Copy {
		return []path.Copy{{Local: mem.Span{Region: n.region, Len: size}, Key: k}}
	}
	frames := func(b []byte) (out []header) {
		for len(b) > 0 {
			var h header
			if err := h.parse(b); err != nil {
				t.Fatal(err)
			}
			out = append(out, h)
			b = b[headerSize+int(h.payload)+int(h.msg):]
		}
		return out
	}
	// B asks for something large and something small, and puts both.
	if n, err := b.post([]path.Op{
		{Kind: path.Get, Copies: whole(b, a.export.Key(), size)},
		{Kind: path.Get, Copies: whole(b, a.export.Key(), 5000)},
		{Kind: path.Put, Copies: whole(b, a.export.Key(), size)},
		{Kind: path.Put, Copies: whole(b, a.export.Key(), stripeMin-1)},
	}); n != 4 {
		t.Fatal(err)
	}
	var put int
	first := b.emit(b.streams[0], 1<<30)
	for _, h := range frames(first) {
		if h.typ == framePut {
			put += int(h.payload)
		}
	}
	if put != stripeMin-1 {
		t.Errorf("the first stream carries %d bytes of puts, expected those of the small one", put)
	}
	second := frames(b.emit(b.streams[1], 1<<30))
	if len(second) == 0 || second[0].typ != framePut || second[0].imm != size {
		t.Errorf("the second stream carries %+v, expected the large put", second)
	}
	if _, err := a.feed(a.streams[0], first); err != nil {
		t.Fatal(err)
	}
	b.streams[0].out.gone(len(first))
	small, large := 0, 0
	for _, h := range frames(a.emit(a.streams[0], 1<<30)) {
		if h.typ == frameData {
			small += int(h.payload)
		}
	}
	for _, h := range frames(a.emit(a.streams[1], 1<<30)) {
		if h.typ == frameData {
			large += int(h.payload)
		}
	}
	if small != 5000 || large < a.batch {
		t.Errorf("%d bytes of the small request on the first stream, %d of the large one on the second", small, large)
	}
}

// TestSmallBeforeMegabytes: a small put is there before the megabytes that were sent before it and
// wait in the sockets.
func TestSmallBeforeMegabytes(t *testing.T) {
	for _, secret := range [][]byte{nil, aSecret()} {
		ca, cb := configs()
		ca.Secret, cb.Secret = secret, secret
		la, lb := region(t, 16<<20), region(t, 16<<20)
		e, err := cb.Exports.Add(lb.All(), path.Read|path.Write)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{CongestionControl: "reno", KTLS: Off}
		a, b, ea, eb := meet(t, o, o, ca, cb, nil)
		if ea != nil || eb != nil {
			t.Fatal(ea, eb)
		}
		buffers(t, a, 4<<20)
		buffers(t, b, 4<<20)
		var ev [4]path.Event
		post := func(op path.Op) {
			t.Helper()
			op.Kind, op.Notify = path.Put, true
			if _, err := a.Post([]path.Op{op}); err != nil {
				t.Fatal(err)
			}
		}
		post(path.Op{Imm: 1, Copies: []path.Copy{{Local: la.All(), Key: e.Key()}}})
		for range 50 {
			a.Poll(ev[:])
		}
		post(path.Op{Imm: 2, Copies: []path.Copy{{Local: mem.Span{Region: la, Len: 64}, Key: e.Key()}}})
		if _, err := sys.PollIn(10_000, b.fds[0]); err != nil {
			t.Fatal(err)
		}
		if n := b.Poll(ev[:]); n != 1 || ev[0].Imm != 2 {
			t.Errorf("sealed %v: the first Poll reports %+v, expected the small put", secret != nil, ev[:n])
		}
		if got := b.Stats().BytesPlaced; got > smallBudget+crcBytes {
			t.Errorf("sealed %v: %d bytes were placed before the small put was told", secret != nil, got)
		}
		a.Close()
		b.Close()
	}
}

// TestAtMost: a list of pieces is cut at any place, and can be made whole again.
func TestAtMost(t *testing.T) {
	all := []byte("abcdefghij")
	for n := 1; n <= 11; n++ {
		v := make([]sys.Iovec, 3)
		v[0].Set(all[:3])
		v[1].Set(all[3:7])
		v[2].Set(all[7:])
		w, whole := atMost(v, n)
		var got []byte
		for i := range w {
			got = append(got, w[i].Bytes()...)
		}
		if !bytes.Equal(got, all[:min(n, 10)]) {
			t.Errorf("%d: %q", n, got)
		}
		if whole != nil {
			w[len(w)-1].Set(whole)
		}
		got = got[:0]
		for i := range v {
			got = append(got, v[i].Bytes()...)
		}
		if !bytes.Equal(got, all) {
			t.Errorf("%d: whole again it is %q", n, got)
		}
	}
}

// BenchmarkBeside is what a small put waits for, alone and beside large ones that never end.
func BenchmarkBeside(b *testing.B) {
	for _, sealed := range []bool{false, true} {
		for _, streams := range []int{1, 2} {
			for _, large := range []bool{false, true} {
				b.Run(fmt.Sprintf("sealed=%v/streams=%d/large=%v", sealed, streams, large), func(b *testing.B) {
					sealedBench.Store(sealed)
					defer sealedBench.Store(false)
					const size = 16 << 20
					e := newBench(b, Options{CongestionControl: "reno"}, streams, true, size)
					e.serve()
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					big := []path.Op{{Kind: path.Put, Token: 1, Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}}
					op := []path.Op{{Kind: path.Put, Token: 2,
						Copies: []path.Copy{{Local: mem.Span{Region: e.la, Len: 4096}, Key: e.kb}}}}
					n := max(b.N, 2000)
					q := make(quantiles, 0, n)
					posted, moved := 0, 0
					t0 := time.Now()
					for len(q) < n {
						begin := time.Now()
						if _, err := e.a.Post(op); err != nil {
							b.Fatal(err)
						}
						for done := false; !done; {
							for large && posted < 2 {
								if _, err := e.a.Post(big); err != nil {
									b.Fatal(err)
								}
								posted++
							}
							for _, x := range e.ev[:e.a.Poll(e.ev[:])] {
								if x.Err != nil {
									b.Fatal(x.Err)
								}
								if x.Token == 1 {
									posted--
									moved++
								}
								done = done || x.Token == 2
							}
						}
						q = append(q, time.Since(begin))
					}
					rate := float64(moved) * size / time.Since(t0).Seconds()
					for posted > 0 {
						for _, x := range e.ev[:e.a.Poll(e.ev[:])] {
							if x.Token == 1 {
								posted--
							}
						}
					}
					b.ReportMetric(q.at(.5), "p50-us")
					b.ReportMetric(q.at(.99), "p99-us")
					b.ReportMetric(rate/1e9, "large-GB/s")
				})
			}
		}
	}
}

// BenchmarkOneThreadSealed is both ends of a put on one thread, plain, on two streams, and
// encrypted, relative to the first of the same round: the work of both sides together, which other
// load on the machine disturbs least.
func BenchmarkOneThreadSealed(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			mk := func(name string, streams int, sealed bool) way {
				sealedBench.Store(sealed)
				defer sealedBench.Store(false)
				e := newBench(b, Options{CongestionControl: "reno", KTLS: Off}, streams, true, size)
				close(e.done)
				op := []path.Op{{Kind: path.Put, Copies: []path.Copy{{Local: e.la.All(), Key: e.kb}}}}
				var ev [4]path.Event
				return way{name, func(dst, src []byte) {
					copy(e.la.All().Bytes()[:8], src[:8])
					if _, err := e.a.Post(op); err != nil {
						b.Fatal(err)
					}
					for done := false; !done; {
						e.b.Poll(ev[:])
						for _, x := range ev[:e.a.Poll(ev[:])] {
							if x.Err != nil {
								b.Fatal(x.Err)
							}
							done = true
						}
					}
					copy(dst[:8], e.lb.All().Bytes()[:8])
					copy(dst[8:], src[8:]) // each way pays for this alike; TestKeysChange compares every byte
				}}
			}
			compareWays(b, size, []way{mk("one stream", 1, false), mk("two streams", 2, false),
				mk("one stream, encrypted", 1, true), mk("two streams, encrypted", 2, true)})
		})
	}
}

// TestSmallIsNoted: what is small makes both ends move less in one call, the notification of
// something large does not.
func TestSmallIsNoted(t *testing.T) {
	const size = 4 << 20
	a, b := newNode(t, size, 32, 2, false), newNode(t, size, 32, 2, false)
	for _, c := range []struct {
		op   path.Op
		want bool
	}{
		{path.Op{Kind: path.Put, Notify: true, Copies: []path.Copy{{Local: a.region.All(), Key: b.export.Key()}}}, false},
		{path.Op{Kind: path.Get, Notify: true, Copies: []path.Copy{{Local: a.region.All(), Key: b.export.Key()}}}, false},
		{path.Op{Kind: path.Notify}, true},
		{path.Op{Kind: path.Put, Copies: []path.Copy{{Local: mem.Span{Region: a.region, Len: 9}, Key: b.export.Key()}}}, true},
		{path.Op{Kind: path.Get, Copies: []path.Copy{{Local: mem.Span{Region: a.region, Len: 9}, Key: b.export.Key()}}}, true},
	} {
		a.smallMoved, b.smallMoved = false, false
		if _, err := a.post([]path.Op{c.op}); err != nil {
			t.Fatal(err)
		}
		shuttle(t, a, b, func(n int) int { return n - 1 })
		if ev := a.events(); len(ev) != 1 || ev[0].Err != nil {
			t.Fatalf("%+v", ev)
		}
		b.events()
		if a.smallMoved != c.want || b.smallMoved != c.want {
			t.Errorf("kind %d of %d bytes: noted %v here and %v there, expected %v", c.op.Kind, c.op.Bytes(),
				a.smallMoved, b.smallMoved, c.want)
		}
	}
}

// Parts of something large keep off the first stream although they are small themselves, in both
// directions.
func TestBulkKeepsOffTheFirstStream(t *testing.T) {
	const size = 64 << 10
	a, b := newNode(t, size, 32, 2, false), newNode(t, size, 32, 2, false)
	all := []path.Copy{{Local: mem.Span{Region: b.region, Len: size}, Key: a.export.Key()}}
	if n, err := b.post([]path.Op{
		{Kind: path.Put, Bulk: true, Copies: all},
		{Kind: path.Get, Bulk: true, Copies: all},
	}); n != 2 {
		t.Fatal(err)
	}
	payload := func(wire []byte, typ frameType) (n int) {
		for len(wire) > 0 {
			var h header
			if err := h.parse(wire); err != nil {
				t.Fatal(err)
			}
			if h.typ == typ {
				n += int(h.payload)
			}
			wire = wire[headerSize+int(h.payload)+int(h.msg):]
		}
		return n
	}
	first := b.emit(b.streams[0], 1<<30)
	if n := payload(first, framePut); n != 0 {
		t.Errorf("%d bytes of the put go by the first stream", n)
	}
	if n := payload(b.emit(b.streams[1], 1<<30), framePut); n != size {
		t.Errorf("%d bytes of the put go by the second stream", n)
	}
	if _, err := a.feed(a.streams[0], first); err != nil { // the request
		t.Fatal(err)
	}
	if n := payload(a.emit(a.streams[0], 1<<30), frameData); n != 0 {
		t.Errorf("%d bytes of the get come by the first stream", n)
	}
	if n := payload(a.emit(a.streams[1], 1<<30), frameData); n != size {
		t.Errorf("%d bytes of the get come by the second stream", n)
	}
}
