package ibv

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
)

func testSendRecv(t *testing.T, w *world) {
	a, b := w.pair(t, options{})
	fill(a.buf[:4096], 1)
	b.postRecv(t, 77, b.mr.SGE(8192, 4096))
	a.send.Send(0xfeed_0000_0001, Signaled, a.mr.SGE(0, 4096))
	a.post(t)
	one(t, a.wait(t, 1)[0], 0xfeed_0000_0001, Success)
	wc := b.wait(t, 1)[0]
	one(t, wc, 77, Success)
	if wc.Len() != 4096 || wc.Opcode() != OpRecv || wc.QPN() != b.qp.Num() || wc.Flags()&^FlagGRH != 0 {
		t.Errorf("%d bytes, %v, queue pair %#x, flags %v", wc.Len(), wc.Opcode(), wc.QPN(), wc.Flags())
	}
	sameBytes(t, b.buf[8192:8192+4096], a.buf[:4096])

	// A value that comes with it, and a message without bytes.
	b.postRecv(t, 78)
	a.send.SendImm(2, Signaled, 0x01020304)
	a.post(t)
	one(t, a.wait(t, 1)[0], 2, Success)
	wc = b.wait(t, 1)[0]
	one(t, wc, 78, Success)
	if wc.Len() != 0 || wc.Flags()&^FlagGRH != FlagImm || wc.Imm() != 0x01020304 {
		t.Errorf("%d bytes, flags %v, value %#x", wc.Len(), wc.Flags(), wc.Imm())
	}
}

func testWriteRead(t *testing.T, w *world) {
	a, b := w.pair(t, options{})
	fill(a.buf[:10000], 2)
	a.send.Write(1, Signaled, b.mr.Addr()+100, b.mr.RKey(), a.mr.SGE(0, 10000))
	a.post(t)
	wc := a.wait(t, 1)[0]
	one(t, wc, 1, Success)
	if wc.Opcode() != OpWrite {
		t.Error(wc.Opcode())
	}
	sameBytes(t, b.buf[100:10100], a.buf[:10000])

	a.send.Read(2, Signaled|Fence, b.mr.Addr()+5000, b.mr.RKey(), a.mr.SGE(20000, 3000))
	a.post(t)
	wc = a.wait(t, 1)[0]
	one(t, wc, 2, Success)
	if wc.Opcode() != OpRead || wc.Len() != 3000 {
		t.Error(wc.Opcode(), wc.Len())
	}
	sameBytes(t, a.buf[20000:23000], b.buf[5000:8000])

	b.postRecv(t, 9)
	a.send.WriteImm(3, Signaled|Solicited, 0xa1b2c3d4, b.mr.Addr()+30000, b.mr.RKey(), a.mr.SGE(0, 77))
	a.post(t)
	one(t, a.wait(t, 1)[0], 3, Success)
	wc = b.wait(t, 1)[0]
	one(t, wc, 9, Success)
	if wc.Opcode() != OpRecvWrite || wc.Imm() != 0xa1b2c3d4 || wc.Flags()&FlagImm == 0 || wc.Len() != 77 {
		t.Errorf("%v, value %#x, flags %v, %d bytes", wc.Opcode(), wc.Imm(), wc.Flags(), wc.Len())
	}
	sameBytes(t, b.buf[30000:30077], a.buf[:77])
}

func testAtomics(t *testing.T, w *world) {
	a, b := w.pair(t, options{})
	at := func(e *end, off int) *uint64 { return &words(e.buf)[off/8] }
	*at(b, 64) = 40
	a.send.FetchAdd(1, Signaled, b.mr.Addr()+64, b.mr.RKey(), 2, a.mr.SGE(8, 8))
	a.send.CmpSwap(2, Signaled, b.mr.Addr()+64, b.mr.RKey(), 42, 1<<40, a.mr.SGE(16, 8))
	a.send.CmpSwap(3, Signaled, b.mr.Addr()+64, b.mr.RKey(), 42, 7, a.mr.SGE(24, 8))
	a.post(t)
	wc := a.wait(t, 3)
	for i, op := range []Opcode{OpFetchAdd, OpCmpSwap, OpCmpSwap} {
		one(t, wc[i], uint64(i+1), Success)
		if wc[i].Opcode() != op {
			t.Errorf("%d: %v", i, wc[i].Opcode())
		}
	}
	if got := []uint64{*at(a, 8), *at(a, 16), *at(a, 24), *at(b, 64)}; !slices.Equal(got,
		[]uint64{40, 42, 1 << 40, 1 << 40}) {
		t.Errorf("old values and the new one: %v", got)
	}
}

func words(b []byte) []uint64 { return structs[uint64](b, len(b)/8) }

func testScatterGather(t *testing.T, w *world) {
	a, b := w.pair(t, options{})
	fill(a.buf, 3)
	want := slices.Concat(a.buf[10:110], a.buf[5000:5001], a.buf[300:900])
	a.send.Write(1, Signaled, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(10, 100), a.mr.SGE(5000, 1), a.mr.SGE(300, 600))
	a.post(t)
	one(t, a.wait(t, 1)[0], 1, Success)
	sameBytes(t, b.buf[:701], want)

	b.postRecv(t, 5, b.mr.SGE(20000, 1), b.mr.SGE(30000, 500), b.mr.SGE(40000, 400))
	a.send.Send(2, Signaled, a.mr.SGE(10, 100), a.mr.SGE(5000, 1), a.mr.SGE(300, 600))
	a.post(t)
	one(t, a.wait(t, 1)[0], 2, Success)
	wc := b.wait(t, 1)[0]
	one(t, wc, 5, Success)
	if wc.Len() != 701 {
		t.Error(wc.Len())
	}
	sameBytes(t, slices.Concat(b.buf[20000:20001], b.buf[30000:30500], b.buf[40000:40200]), want)
}

// testInline: bytes that are changed as soon as they are posted.
func testInline(t *testing.T, w *world) {
	o := options{qp: QPSpec{Inline: 64}}
	a, b := w.pair(t, o)
	if a.qp.Spec().Inline < 64 {
		t.Fatalf("inline %d", a.qp.Spec().Inline)
	}
	b.postRecv(t, 5, b.mr.SGE(0, 100))
	want := []byte("a message that goes inline")
	a.send.Send(1, Signaled|Inline, a.put(0, want))
	a.send.Write(2, Signaled|Inline, b.mr.Addr()+1000, b.mr.RKey(), a.put(100, want[2:]))
	if n, err := a.qp.PostSend(a.send); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	clear(a.buf[:200]) // the library has copied them
	for i, wc := range a.wait(t, 2) {
		one(t, wc, uint64(i+1), Success)
	}
	wc := b.wait(t, 1)[0]
	one(t, wc, 5, Success)
	sameBytes(t, b.buf[:wc.Len()], want)
	sameBytes(t, b.buf[1000:1000+len(want)-2], want[2:])

	// The library refuses more than the queue pair takes.
	a.send.Reset()
	if _, ok := a.send.Send(3, Inline, a.put(0, make([]byte, a.qp.Spec().Inline+1))); !ok {
		t.Error("the builder knows nothing of the queue pair")
	}
	if n, err := a.qp.PostSend(a.send); n != 0 || !errors.Is(err, ErrInvalid) {
		t.Errorf("posted %d: %v", n, err)
	}
}

// testUnsignaled: the caller chooses the interval of completions, and slots come back with the next
// one.
func testUnsignaled(t *testing.T, w *world) {
	a, b := w.pair(t, options{})
	slots := a.qp.Spec().SendWRs
	for round := range 5 {
		for i := range slots {
			flags := SendFlags(0)
			if i == slots-1 {
				flags = Signaled
			}
			if _, ok := a.send.Write(uint64(round<<16|i), flags, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(0, 8)); !ok {
				a.post(t)
				a.send.Write(uint64(round<<16|i), flags, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(0, 8))
			}
		}
		a.post(t)
		one(t, a.wait(t, 1)[0], uint64(round<<16|slots-1), Success)
	}
	quiet(t, a.cq)
}

// testHalfRefused: more requests than slots. Those that fit are posted, and the chain goes on with
// the rest. The receiver has no receives at first, so that no slot comes back. Soft-RoCE has more
// slots than it says.
func testHalfRefused(t *testing.T, w *world) {
	a, b := w.pair(t, options{qp: QPSpec{SendWRs: 8}, cqe: 512})
	slots := a.qp.Spec().SendWRs
	total := 4*slots + 5
	c := must(NewSendChain(total, total))(t)
	defer c.Close()
	for i := range total {
		if at, ok := c.Send(uint64(1000+i), Signaled, a.mr.SGE(uint64(8*i), 8)); !ok || at != i {
			t.Fatal(at, ok)
		}
	}
	n, err := a.qp.PostSend(c)
	var e *Error
	if n < slots || n == total || w.fake && n != slots || !errors.Is(err, ErrFull) || !errors.As(err, &e) ||
		e.Errno != sys.ENOMEM || c.posted != n {
		t.Fatalf("posted %d of %d (%d): %v", n, slots, c.posted, err)
	}
	if again, err := a.qp.PostSend(c); again != 0 || !errors.Is(err, ErrFull) || c.posted != n {
		t.Fatalf("once more: %d, %v", again, err)
	}
	seen := 0
	for seen < total {
		k := min(8, total-seen)
		for i := range k {
			b.postRecv(t, uint64(seen+i), b.mr.SGE(0, 8))
		}
		for i, wc := range a.wait(t, k) {
			one(t, wc, uint64(1000+seen+i), Success)
		}
		b.wait(t, k)
		seen += k
		if c.posted == c.Len() {
			continue
		}
		left := c.Len() - c.posted
		if n, err := a.qp.PostSend(c); n < min(left, k) || n < left && !errors.Is(err, ErrFull) || n == left &&
			err != nil {
			t.Fatalf("the rest of %d: %d, %v", left, n, err)
		}
	}
	if n, err := a.qp.PostSend(c); n != 0 || err != nil {
		t.Errorf("a chain that is posted: %d, %v", n, err)
	}
	quiet(t, a.cq)
}

// testRecvFull is the same for receives.
func testRecvFull(t *testing.T, w *world) {
	a, b := w.pair(t, options{qp: QPSpec{RecvWRs: 4}, cqe: 512})
	slots := b.qp.Spec().RecvWRs
	total := 4 * slots
	c := must(NewRecvChain(total, total))(t)
	defer c.Close()
	for i := range total {
		c.Recv(uint64(i), b.mr.SGE(0, 8))
	}
	n, err := b.qp.PostRecv(c)
	if n < slots || n == total || w.fake && n != slots || !errors.Is(err, ErrFull) || c.posted != n {
		t.Fatalf("posted %d of %d: %v", n, slots, err)
	}
	for i := range total {
		a.send.Send(1, Signaled, a.mr.SGE(0, 8))
		a.post(t)
		a.wait(t, 1)
		one(t, b.wait(t, 1)[0], uint64(i), Success)
		if c.posted < c.Len() {
			if n, err := b.qp.PostRecv(c); n != 1 || err != nil && !errors.Is(err, ErrFull) {
				t.Fatalf("one more: %d, %v", n, err)
			}
		}
	}
}

// testRewind posts one chain again and again.
func testRewind(t *testing.T, w *world) {
	a, b := w.pair(t, options{})
	for i := range 8 {
		flags := SendFlags(0)
		if i == 7 {
			flags = Signaled
		}
		a.send.FetchAdd(uint64(i), flags, b.mr.Addr()+uint64(8*i), b.mr.RKey(), uint64(i), a.mr.SGE(0, 8))
	}
	for range 3 {
		a.send.posted = 0
		if n, err := a.qp.PostSend(a.send); n != 8 || err != nil {
			t.Fatal(n, err)
		}
		one(t, a.wait(t, 1)[0], 7, Success)
	}
	for i := range 8 {
		if got := binary.LittleEndian.Uint64(b.buf[8*i:]); got != uint64(3*i) {
			t.Errorf("word %d is %d", i, got)
		}
	}
}

// testReconnect: reset, and everything once more with other numbers.
func testReconnect(t *testing.T, w *world) {
	a, b := w.pair(t, options{})
	for round := range 3 {
		b.postRecv(t, 1, b.mr.SGE(0, 8))
		a.send.Send(2, Signaled, a.mr.SGE(0, 8))
		a.post(t)
		one(t, a.wait(t, 1)[0], 2, Success)
		one(t, b.wait(t, 1)[0], 1, Success)
		for _, e := range []*end{a, b} {
			if round == 1 {
				if err := e.qp.Err(); err != nil {
					t.Fatal(err)
				}
			}
			if err := e.qp.Reset(); err != nil {
				t.Fatal(err)
			}
			if err := e.qp.Init(InitAttr{Access: everything}); err != nil {
				t.Fatal(err)
			}
		}
		o := options{rts: RTSAttr{PSN: uint32(1000 + round), Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 1}}
		a.connect(t, b, o)
		b.connect(t, a, o)
	}
}
