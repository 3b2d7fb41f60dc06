package transfer

import (
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/transfer/path"
)

// BenchmarkSmallPut is one put of 64 bytes after the other, until both sides know of each.
func BenchmarkSmallPut(b *testing.B) {
	for _, name := range paths {
		b.Run(name, func(b *testing.B) {
			put := putter(b, newPair(b, Options{}), name, 1)
			put()
			b.ReportAllocs()
			for b.Loop() {
				put()
			}
		})
	}
}

// BenchmarkAccount is what counting adds to one transfer: its begin, the choice of its path, its
// end and its latency, with and without a subscriber to events.
func BenchmarkAccount(b *testing.B) {
	for _, events := range []bool{false, true} {
		b.Run(map[bool]string{false: "silent", true: "events"}[events], func(b *testing.B) {
			p := newPair(b, Options{})
			if events {
				defer p.a.Events(b.Context(), 1).Close()
			}
			t := &Transfer{request: request{peer: p.ab, kind: path.Put, bytes: 64, id: p.a.nextID()}}
			t.moved.Store(64)
			t.explain.Times.Total = 5000
			once := func() {
				t.explain.Path = ""
				t.entered()
				t.rerouted("shm", 0)
				t.explain.Path = "shm"
				t.counted(nil)
			}
			once()
			b.ReportAllocs()
			for b.Loop() {
				once()
			}
		})
	}
}

// Counting allocates nothing, with or without a subscriber.
func TestAccountAllocatesNothing(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace, "the race detector allocates")
	p := newPair(t, Options{})
	x := &Transfer{request: request{peer: p.ab, kind: path.Get, bytes: 64, id: p.a.nextID()}}
	once := func() {
		x.explain.Path = ""
		x.entered()
		x.rerouted("tcp", 0)
		x.explain.Path = "tcp"
		x.counted(nil)
		p.ab.account.Received(path.Put)
	}
	once()
	for range 2 {
		if n := testing.AllocsPerRun(1000, once); n != 0 {
			t.Errorf("%v allocations per transfer", n)
		}
		defer p.a.Events(t.Context(), 1).Close()
	}
}

func BenchmarkSnapshot(b *testing.B) {
	p := newPair(b, Options{})
	for _, name := range paths {
		putter(b, p, name, 1)()
	}
	b.ReportAllocs()
	for b.Loop() {
		p.a.Snapshot()
	}
}
