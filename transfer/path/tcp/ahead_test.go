package tcp

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
)

// pairOf makes a pair whose ends the caller polls, and puts of size bytes that fill its memory.
func pairOf(t testing.TB, puts, size int) (*bench, []path.Op) {
	e := newBench(t, Options{CongestionControl: "reno"}, 1, false, puts*size)
	close(e.done)
	pathtest.Fill(e.la.All().Bytes(), 1)
	ops := make([]path.Op, puts)
	for i := range ops {
		at := uint64(i * size)
		ops[i] = path.Op{Kind: path.Put, Copies: []path.Copy{{Local: mem.Span{Region: e.la, Off: at, Len: uint64(size)},
			Key: e.kb, RemoteOff: at}}}
	}
	return e, ops
}

// fly posts the operations at once and polls both ends until they are done; it returns how often.
func (e *bench) fly(t testing.TB, ops []path.Op) (polls int) {
	if n, err := e.a.Post(ops); n != len(ops) || err != nil {
		t.Fatal(n, err)
	}
	for done := 0; done < len(ops); polls++ {
		for _, x := range e.ev[:e.a.Poll(e.ev[:])] {
			if x.Err != nil {
				t.Fatal(x.Err)
			}
			done++
		}
		e.b.Poll(e.ev[:])
	}
	return polls
}

// TestReadsOfFrames: small frames share reads, at the price of a copy; large ones are read to their
// places.
func TestReadsOfFrames(t *testing.T) {
	const puts = 64
	for _, c := range []struct{ size, reads, copied int }{
		{4 << 10, puts / 4, puts * 4 << 10},
		{bulk, 2 * puts, stageSize}, // the read of the first header goes as far as it can
	} {
		t.Run(fmt.Sprint(c.size), func(t *testing.T) {
			e, ops := pairOf(t, puts, c.size)
			polls := e.fly(t, ops)
			if !bytes.Equal(e.la.All().Bytes(), e.lb.All().Bytes()) {
				t.Error("the bytes are not those that were put")
			}
			if n := e.b.st.Syscalls; n > uint64(c.reads+2*polls) { // a poll may read nothing, and acknowledge
				t.Errorf("%d calls in %d polls, expected %d reads at most", n, polls, c.reads)
			}
			if n := e.b.st.BytesCopied; n > uint64(c.copied) {
				t.Errorf("%d bytes were copied, expected %d at most", n, c.copied)
			}
		})
	}
}

// TestReadsAfterLargeFrames: a large frame does not make reads short for the small ones that
// follow, also where these have no payload.
func TestReadsAfterLargeFrames(t *testing.T) {
	e, ops := pairOf(t, 1, 64<<10)
	e.fly(t, ops)
	before := e.b.st.Syscalls
	notes := make([]path.Op, 64)
	for i := range notes {
		notes[i] = path.Op{Kind: path.Notify, Imm: uint64(i)}
	}
	polls := e.fly(t, notes)
	if n := e.b.st.Syscalls - before; n > uint64(16+2*polls) {
		t.Errorf("%d calls in %d polls for %d notifications, expected 16 reads at most", n, polls, len(notes))
	}
}

// BenchmarkPutsAtOnce measures 64 puts that are posted at once, both ends polled by this goroutine,
// beside the same bytes over plain sockets.
func BenchmarkPutsAtOnce(b *testing.B) {
	for _, size := range []int{64, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			e, ops := pairOf(b, 64, size)
			x, y := rawPair(b, "reno")
			ours, raw := time.Hour, time.Hour
			for range max(b.N, 400) {
				t0 := time.Now()
				e.fly(b, ops)
				t1 := time.Now()
				rawOneThread(b, x, y, e.la.All().Bytes(), e.lb.All().Bytes(), 1)
				ours, raw = min(ours, t1.Sub(t0)), min(raw, time.Since(t1))
			}
			b.ReportMetric(float64(ours.Nanoseconds())/64, "ns/put")
			b.ReportMetric(float64(raw.Nanoseconds())/64, "raw-ns/put")
		})
	}
}
