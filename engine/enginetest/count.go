package enginetest

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// now is the time by which the ports live, in nanoseconds since 1970.
func (r *rig) now() int64 { return time.Now().UnixNano() }

// checkStats compares what the queues and ports count with what was done.
func checkStats(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 64)
	sent, bytes := 0, 0
	for i := range 30 {
		n, size := 1+i%8, r.minRecord()+13*i
		s.burstOf(n, size)
		sent, bytes = sent+n, bytes+n*size
		v.want(sent)
	}
	r.balance(sent, v)
	var tx engine.TxStats
	var rx engine.RxStats
	look := func(where string) {
		t.Helper()
		if tx.Packets+tx.Drops.Total() != uint64(sent) || tx.Drops.Total() == 0 && tx.Bytes != uint64(bytes) ||
			tx.Queued != 0 || tx.Forwarded != 0 {
			t.Errorf("%s: %d packets with %d bytes were sent; TxStats: %+v", where, sent, bytes, tx)
		}
		if !r.caps.Stream && rx.Packets != uint64(v.total) || rx.Packets == 0 || v.others == 0 &&
			rx.Bytes != uint64(v.bytes) {
			t.Errorf("%s: %d packets with %d bytes were received; RxStats: %+v", where, v.total, v.bytes, rx)
		}
		if rx.Polls == 0 || rx.Empty > rx.Polls {
			t.Errorf("%s: %d calls of TryRecv, of which %d found nothing", where, rx.Polls, rx.Empty)
		}
		if !h.Lossy && tx.Drops.Total()+rx.Drops.Total() != 0 {
			t.Errorf("%s: drops where none was due: %v when sending, %v when receiving", where, &tx.Drops, &rx.Drops)
		}
	}
	s.q.Stats(&tx)
	v.q.Stats(&rx)
	look("the queues")
	sums := func(where string) {
		t.Helper()
		var a, b engine.PortStats
		r.A.Stats(&a)
		r.B.Stats(&b)
		tx, rx = a.Tx, b.Rx
		look(where)
		if b.Tx.Packets != 0 || a.Rx.Packets != 0 && !h.Noise {
			t.Errorf("%s: packets went from A to B only, but B sent %d and A received %d", where, b.Tx.Packets,
				a.Rx.Packets)
		}
	}
	sums("the ports")
	if err := s.q.Close(); err != nil {
		t.Fatal(err)
	}
	v.quiet()
	if err := v.q.Close(); err != nil {
		t.Fatal(err)
	}
	sums("the ports, with their queues closed")
	// Fill is the whole answer: nothing of what was in s before is kept.
	var twice engine.PortStats
	r.A.Stats(&twice)
	first := twice.Tx.Packets
	if r.A.Stats(&twice); twice.Tx.Packets != first {
		t.Errorf("a second Stats into the same struct says %d packets, the first said %d", twice.Tx.Packets, first)
	}
}

// checkDrain waits until everything has left.
func checkDrain(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 128)
	if err := s.q.Drain(t.Context()); err != nil {
		t.Fatalf("Drain of a queue that has sent nothing: %v", err)
	}
	sent := 0
	for range 10 {
		s.burstOf(h.Window, r.minRecord())
		sent += h.Window
		ctx, cancel := context.WithTimeout(t.Context(), h.Patience)
		err := s.q.Drain(ctx)
		cancel()
		if err != nil {
			t.Fatalf("Drain of %d packets, while no program receives (Harness.Window says how many the way holds): %v",
				h.Window, err)
		}
		var st engine.TxStats
		if s.q.Stats(&st); st.Queued != 0 || st.Packets+st.Drops.Total() != uint64(sent) {
			t.Fatalf("after Drain %d of %d packets are queued, %d have left", st.Queued, sent, st.Packets)
		}
		v.want(sent)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.q.Drain(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Drain with a context that has ended: %v, expected nil or its error", err)
	}
}

// checkAllocations counts what a burst costs in steady state: nothing.
func checkAllocations(t testing.TB, h Harness) {
	if testenv.Race || testenv.Invariants || h.Virtual || h.Lossy {
		t.Log("not asked: counted in plain builds, in real time, without loss")
		return
	}
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 64)
	size := r.minRecord()
	w := engine.NewWaker()
	n := min(16, h.Window)
	var failed error
	pass := func() {
		got, err := s.q.Alloc(s.b, n, size)
		if got != n || err != nil {
			failed = errors.Join(&unexpected{got, err}, failed)
			s.b.Release()
			return
		}
		for i := range got {
			for k := range s.b.Segments(i) {
				clear(s.b.Bytes(i, k))
			}
			s.b.SetConn(i, s.conn)
		}
		if err := s.q.Send(s.b); err != nil {
			failed = err
		}
		for bytes, tries := 0, 0; bytes < n*size; tries++ {
			k, err := v.q.TryRecv(v.b)
			if err != nil || tries > 10_000_000 {
				failed = errors.Join(&unexpected{k, err}, failed)
				return
			}
			bytes += v.b.TotalLen()
			v.b.Release()
			if k == 0 && !v.q.Arm(w) {
				runtime.Gosched()
			}
		}
	}
	for range 50 {
		pass() // what is made on the first use
	}
	// Others in the process may allocate now and then; a queue that does so does it every time.
	least := 1e9
	for range 5 {
		least = min(least, testing.AllocsPerRun(50, pass))
		if least == 0 {
			break
		}
	}
	if least != 0 {
		t.Errorf("%v allocations for each burst, expected none", least)
	}
	if failed != nil {
		t.Fatalf("a burst there and its receipt: %v", failed)
	}
}
