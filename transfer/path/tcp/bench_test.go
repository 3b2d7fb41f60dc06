package tcp

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"golang.org/x/sys/unix"
)

// rawPair is two ends of a plain connection, set up like the paths' own, for the floor: what the
// sockets alone allow.
func rawPair(t testing.TB, cc string) (int, int) {
	t.Helper()
	a, err := address("")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{CongestionControl: cc}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := sys.SocketTCP(false)
	must(err)
	defer sys.Close(l)
	must(o.prepare(l, a.Addr()))
	must(sys.BindTCP(l, a))
	must(sys.ListenTCP(l, 1))
	a, err = sys.LocalAddr(l)
	must(err)
	conn, err := New(o).connect(t.Context(), a, 0)
	must(err)
	defer conn.Close()
	var c int
	must(sys.OfConn(conn.(*net.TCPConn), func(fd int) (err error) { c, err = sys.Dup(fd); return err }))
	_, err = sys.PollIn(5000, l)
	must(err)
	s, _, err := sys.AcceptTCP(l)
	must(err)
	t.Cleanup(func() { sys.Close(c); sys.Close(s) })
	return c, s
}

func rawSend(fd int, b []byte) sys.Errno {
	var v [1]sys.Iovec
	for len(b) > 0 {
		v[0].Set(b)
		n, e := sys.Sendv(fd, v[:], 0)
		if e == sys.EAGAIN || e == sys.EINTR {
			continue
		}
		if e != 0 {
			return e
		}
		b = b[n:]
	}
	return 0
}

func rawRecv(fd int, b []byte) sys.Errno {
	var v [1]sys.Iovec
	for len(b) > 0 {
		v[0].Set(b)
		n, e := sys.Recvv(fd, v[:])
		if e == sys.EAGAIN || e == sys.EINTR {
			continue
		}
		if e != 0 {
			return e
		}
		if n == 0 {
			return sys.EPIPE
		}
		b = b[n:]
	}
	return 0
}

type quantiles []time.Duration

func (q quantiles) at(p float64) float64 {
	slices.Sort(q)
	return float64(q[int(p*float64(len(q)-1))].Nanoseconds()) / 1e3
}

// rawPingPong returns the one-way times of n rounds of 64 bytes.
func rawPingPong(t testing.TB, n int) quantiles {
	a, b := rawPair(t, "reno")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		buf := make([]byte, 64)
		for range n {
			if rawRecv(b, buf) != 0 || rawSend(b, buf) != 0 {
				return
			}
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buf := make([]byte, 64)
	q := make(quantiles, 0, n)
	for range n {
		t0 := time.Now()
		if rawSend(a, buf) != 0 || rawRecv(a, buf) != 0 {
			t.Fatal("raw ping-pong failed")
		}
		q = append(q, time.Since(t0)/2)
	}
	<-done
	return q
}

// bench is a connected pair with memory on both sides, and a peer that polls on a thread of its
// own.
type bench struct {
	a, b   *Path
	la, lb *mem.Region
	ka, kb path.Key
	stop   atomic.Bool
	done   chan struct{}
	ev     [64]path.Event
	onPeer func(path.Event)
}

// sealedBench makes newBench encrypt.
var sealedBench atomic.Bool

func newBench(t testing.TB, o Options, streams int, noCRC bool, size int) *bench {
	xa, xb := new(path.Exports), new(path.Exports)
	e := &bench{done: make(chan struct{})}
	var err error
	alloc := func() *mem.Region {
		r, err := mem.Alloc(mem.Options{Size: size})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	e.la, e.lb = alloc(), alloc()
	add := func(x *path.Exports, r *mem.Region) path.Key {
		var ex *path.Export
		if ex, err = x.Add(r.All(), path.Read|path.Write); err != nil {
			t.Fatal(err)
		}
		return ex.Key()
	}
	e.ka, e.kb = add(xa, e.la), add(xb, e.lb)
	var secret []byte
	if sealedBench.Load() {
		secret = aSecret()
	}
	e.a, e.b = dialPair(t, o, setup.Config{Rights: path.Read | path.Write, Exports: xa, NoChecksum: noCRC,
		Streams: streams, Secret: secret}, setup.Config{Rights: path.Read | path.Write, Exports: xb, Streams: streams,
		Secret: secret})
	t.Cleanup(func() {
		e.stop.Store(true)
		<-e.done
		e.a.Close()
		e.b.Close()
	})
	return e
}

func (e *bench) serve() {
	go func() {
		defer close(e.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var ev [64]path.Event
		for !e.stop.Load() {
			for _, x := range ev[:e.b.Poll(ev[:])] {
				if e.onPeer != nil {
					e.onPeer(x)
				}
			}
		}
	}()
}

// do posts one operation and polls until it is done.
func (e *bench) do(t testing.TB, ops []path.Op) {
	if _, err := e.a.Post(ops); err != nil {
		t.Fatal(err)
	}
	for {
		for _, x := range e.ev[:e.a.Poll(e.ev[:])] {
			if x.Err != nil {
				t.Fatal(x.Err)
			}
			if x.Kind == path.EventDone {
				return
			}
		}
	}
}

// pathPingPong returns the one-way times of n rounds: a 64-byte put with notification, answered by
// the same.
func pathPingPong(t testing.TB, n int, noCRC bool) quantiles {
	e := newBench(t, Options{CongestionControl: "reno"}, 1, noCRC, 1<<16)
	back := []path.Op{{Kind: path.Put, Notify: true,
		Copies: []path.Copy{{Local: mem.Span{Region: e.lb, Len: 64}, Key: e.ka}}}}
	e.onPeer = func(x path.Event) {
		if x.Kind == path.EventNotify {
			e.b.Post(back)
		}
	}
	e.serve()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	op := []path.Op{{Kind: path.Put, Notify: true,
		Copies: []path.Copy{{Local: mem.Span{Region: e.la, Len: 64}, Key: e.kb}}}}
	q := make(quantiles, 0, n)
	for range n {
		t0 := time.Now()
		if _, err := e.a.Post(op); err != nil {
			t.Fatal(err)
		}
		for seen := false; !seen; {
			for _, x := range e.ev[:e.a.Poll(e.ev[:])] {
				if x.Err != nil {
					t.Fatal(x.Err)
				}
				seen = seen || x.Kind == path.EventNotify
			}
		}
		q = append(q, time.Since(t0)/2)
	}
	return q
}

// BenchmarkPingPong compares 64-byte puts between two spinning threads with the same bytes over
// plain sockets.
func BenchmarkPingPong(b *testing.B) {
	for _, noCRC := range []bool{false, true} {
		b.Run(fmt.Sprintf("crc=%v", !noCRC), func(b *testing.B) {
			n := max(b.N, 1000)
			raw := rawPingPong(b, n)
			q := pathPingPong(b, n, noCRC)
			b.ReportMetric(q.at(.5), "p50-us")
			b.ReportMetric(q.at(.99), "p99-us")
			b.ReportMetric(raw.at(.5), "raw-p50-us")
			b.ReportMetric(raw.at(.99), "raw-p99-us")
			b.ReportMetric(q.at(.5)/raw.at(.5), "p50-ratio")
		})
	}
}

// rawRate sends n messages of size bytes, the receiver into the same buffer each time, and returns
// bytes per second.
func rawRate(t testing.TB, cc string, size, n int) float64 {
	a, b := rawPair(t, cc)
	region := func() *mem.Region {
		r, err := mem.Alloc(mem.Options{Size: size})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	src, dst := region().All().Bytes()[:size], region().All().Bytes()[:size]
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for range n {
			if rawRecv(b, dst) != 0 {
				return
			}
		}
		rawSend(b, []byte{1})
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t0 := time.Now()
	for range n {
		if rawSend(a, src) != 0 {
			t.Fatal("raw send failed")
		}
	}
	if rawRecv(a, make([]byte, 1)) != 0 {
		t.Fatal("raw receive failed")
	}
	return float64(n) * float64(size) / time.Since(t0).Seconds()
}

func pathRate(t testing.TB, o Options, streams, size, blocks, depth, n int, noCRC bool) float64 {
	e := newBench(t, o, streams, noCRC, size)
	e.serve()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	op := path.Op{Kind: path.Put}
	each := uint64(size / blocks)
	for i := range uint64(blocks) {
		// Every other block is left out of order, so that neighbours do not become one.
		at := (i*7 + 3) % uint64(blocks) * each
		op.Copies = append(op.Copies, path.Copy{Local: mem.Span{Region: e.la, Off: at, Len: each}, Key: e.kb,
			RemoteOff: i * each})
	}
	ops := []path.Op{op}
	e.do(t, ops) // the congestion control is chosen here
	t0 := time.Now()
	for posted, done := 0, 0; done < n; {
		for posted < n && posted-done < depth {
			if _, err := e.a.Post(ops); err != nil {
				t.Fatal(err)
			}
			posted++
		}
		for _, x := range e.ev[:e.a.Poll(e.ev[:])] {
			if x.Err != nil {
				t.Fatal(x.Err)
			}
			done++
		}
	}
	rate := float64(n) * float64(size) / time.Since(t0).Seconds()
	return rate
}

// BenchmarkPut compares puts with plain sockets under the same congestion control.
func BenchmarkPut(b *testing.B) {
	type variant struct {
		name  string
		o     Options
		noCRC bool
		n     int
	}
	for _, s := range []struct{ size, blocks, depth int }{{64 << 10, 1, 8}, {1 << 20, 1, 4}, {16 << 20, 1, 2},
		{64 << 20, 1, 1}, {4 << 20, 1024, 1}} {
		for _, v := range []variant{{"default,crc=off", Options{}, true, 1}, {"default,crc=on", Options{}, false, 1},
			{"default,crc=off,streams=2", Options{}, true, 2},
			{"system,crc=off", Options{CongestionControl: CongestionSystem}, true, 1}} {
			b.Run(fmt.Sprintf("%dKiB/blocks=%d/%s", s.size>>10, s.blocks, v.name), func(b *testing.B) {
				// Interleaved, and the best of each: on a machine with other work that is what the
				// code allows.
				n := max(1, (64<<20)/s.size)
				var ours, raw float64
				for range max(b.N, 10) {
					raw = max(raw, rawRate(b, "reno", s.size, n))
					ours = max(ours, pathRate(b, v.o, v.n, s.size, s.blocks, s.depth, n, v.noCRC))
				}
				b.ReportMetric(ours/1e9, "GB/s")
				b.ReportMetric(raw/1e9, "raw-GB/s")
				b.ReportMetric(ours/raw, "ratio")
			})
		}
	}
}

// oneThread moves total bytes in puts of size bytes, both ends polled by this goroutine: no
// waiting, no wake-ups, so that the time is what the calls and copies take. raw does the same with
// plain sockets.
func oneThread(t testing.TB, e *bench, size, blocks, n int) float64 {
	op := path.Op{Kind: path.Put}
	each := uint64(size / blocks)
	for i := range uint64(blocks) {
		at := (i*7 + 3) % uint64(blocks) * each
		op.Copies = append(op.Copies, path.Copy{Local: mem.Span{Region: e.la, Off: at, Len: each}, Key: e.kb,
			RemoteOff: i * each})
	}
	ops := []path.Op{op}
	t0 := time.Now()
	for range n {
		if _, err := e.a.Post(ops); err != nil {
			t.Fatal(err)
		}
		for k := 0; k == 0; {
			e.b.Poll(e.ev[:])
			k = e.a.Poll(e.ev[:])
		}
		if e.ev[0].Err != nil {
			t.Fatal(e.ev[0].Err)
		}
	}
	return float64(n) * float64(size) / time.Since(t0).Seconds()
}

func rawOneThread(t testing.TB, a, b int, src, dst []byte, n int) float64 {
	var v [1]sys.Iovec
	t0 := time.Now()
	for range n {
		for out, in := src, dst; len(in) > 0; {
			if len(out) > 0 {
				v[0].Set(out)
				if k, e := sys.Sendv(a, v[:], 0); e == 0 {
					out = out[k:]
				}
			}
			v[0].Set(in)
			if k, e := sys.Recvv(b, v[:]); e == 0 {
				in = in[k:]
			}
		}
	}
	return float64(n) * float64(len(src)) / time.Since(t0).Seconds()
}

// BenchmarkOneThread is BenchmarkPut for a machine with other work: the best of many short
// interleaved trials.
func BenchmarkOneThread(b *testing.B) {
	for _, s := range []struct{ size, blocks int }{{64, 1}, {4 << 10, 1}, {64 << 10, 1}, {1 << 20, 1}, {16 << 20, 1},
		{4 << 20, 1024}} {
		for _, crc := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dB/blocks=%d/crc=%v", s.size, s.blocks, crc), func(b *testing.B) {
				e := newBench(b, Options{CongestionControl: "reno"}, 1, !crc, s.size)
				close(e.done)
				x, y := rawPair(b, "reno")
				n := max(1, min(2000, (8<<20)/s.size))
				var ours, raw float64
				for range max(b.N, 40) {
					ours = max(ours, oneThread(b, e, s.size, s.blocks, n))
					raw = max(raw, rawOneThread(b, x, y, e.la.All().Bytes()[:s.size], e.lb.All().Bytes()[:s.size], n))
				}
				b.ReportMetric(ours/1e9, "GB/s")
				b.ReportMetric(raw/1e9, "raw-GB/s")
				b.ReportMetric(ours/raw, "ratio")
			})
		}
	}
}

// BenchmarkSendWays compares the ways to hand memory to the kernel, on one thread as above.
func BenchmarkSendWays(b *testing.B) {
	const size = 1 << 20
	src, dst := region(b, size), region(b, size)
	x, y := rawPair(b, "reno")
	if err := sys.SetOption(x, sys.SolSocket, sys.SoZeroCopy, 1); err != nil {
		b.Fatal(err)
	}
	var v [1]sys.Iovec
	pages := make([]sys.Iovec, size/4096)
	ways := []struct {
		name string
		send func(at int) int
	}{
		{"send", func(at int) int { v[0].Set(src.All().Bytes()[at:]); n, _ := sys.Sendv(x, v[:], 0); return n }},
		{"sendmsg of 4 KiB pieces", func(at int) int {
			k := 0
			for o := at; o < size; o = (o/4096 + 1) * 4096 {
				pages[k].Set(src.All().Bytes()[o:min(size, (o/4096+1)*4096)])
				k++
			}
			n, _ := sys.Sendv(x, pages[:k], 0)
			return n
		}},
		{"send MSG_ZEROCOPY", func(at int) int {
			v[0].Set(src.All().Bytes()[at:])
			n, _ := sys.Sendv(x, v[:], sys.MsgZeroCopy)
			for {
				if _, _, _, e := sys.ZeroCopyDone(x); e != 0 {
					return n
				}
			}
		}},
		{"sendfile from the memfd", func(at int) int {
			offset := int64(at)
			n, _ := unix.Sendfile(x, src.FD(), &offset, size-at)
			return n
		}},
	}
	best := make([]float64, len(ways))
	for range max(b.N, 100) {
		for w := range ways {
			t0 := time.Now()
			for range 4 {
				for out, in := 0, dst.All().Bytes(); len(in) > 0; {
					if out < size {
						out += max(0, ways[w].send(out))
					}
					v[0].Set(in)
					if k, e := sys.Recvv(y, v[:]); e == 0 {
						in = in[k:]
					}
				}
			}
			best[w] = max(best[w], 4*size/time.Since(t0).Seconds())
		}
	}
	for w := range ways {
		b.Logf("%-24s %.1f GB/s, %.2f of send", ways[w].name, best[w]/1e9, best[w]/best[0])
	}
}

// BenchmarkSealed compares encrypted puts with plain ones, interleaved.
func BenchmarkSealed(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 16 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			n, depth := max(1, (128<<20)/size), 2
			var sealed, plain float64
			for range max(b.N, 5) {
				sealedBench.Store(true)
				sealed = max(sealed, pathRate(b, Options{CongestionControl: "reno"}, 1, size, 1, depth, n, true))
				sealedBench.Store(false)
				plain = max(plain, pathRate(b, Options{CongestionControl: "reno"}, 1, size, 1, depth, n, true))
			}
			b.ReportMetric(sealed/1e9, "GB/s")
			b.ReportMetric(plain/1e9, "plain-GB/s")
			b.ReportMetric(sealed/plain, "ratio")
		})
	}
}
