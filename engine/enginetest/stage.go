package enginetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// StageHarness says how to test a stage.
type StageHarness struct {
	// Open puts a new stage on a receiver, whose packets lie in pool.
	Open func(t testing.TB, from engine.Receiver, pool *mem.Pool) engine.Stage
	// Memory is what the pool is made of.
	Memory mem.Options
	// Frame writes packet n into p, which is zero, and returns its length. The stage is to give it:
	// the check sees that it gives those packets and no others.
	Frame func(p []byte, n int) int
	// Bad writes a packet that the stage drops, if it drops any.
	Bad func(p []byte) int
	// Reorders says that packets may come in another order.
	Reorders bool
}

// feed is a Receiver of a test: the frames that were pushed, then an error.
type feed struct {
	alloc func(b *burst.Burst) []byte // adds a packet of one slot
	queue []func(p []byte) int
	err   error
	waker *engine.Waker
}

func (f *feed) TryRecv(b *burst.Burst) (n int, err error) {
	for len(f.queue) > 0 && b.Room() > 0 && b.SegmentRoom() > 0 {
		p := f.alloc(b)
		clear(p)
		b.SetLen(b.Len()-1, 0, f.queue[0](p))
		f.queue = f.queue[1:]
		n++
	}
	if n == 0 && len(f.queue) == 0 {
		err = f.err
	}
	return n, err
}

func (f *feed) Arm(w *engine.Waker) bool {
	f.waker = w
	return len(f.queue) > 0 || f.err != nil
}

// CheckStage checks what engine.Stage promises: packets of the caller's burst stay as they are,
// each packet comes once and in order, the counts agree with what came, what the stage reads from
// may end, and everything is given back.
func CheckStage(t *testing.T, h StageHarness) {
	for _, room := range []int{1, 3, 64} {
		t.Run(fmt.Sprintf("bursts of %d", room), func(t *testing.T) { checkStage(t, h, room) })
	}
}

func checkStage(t *testing.T, h StageHarness, room int) {
	const packets = 40
	pool, err := mem.NewPool(mem.PoolOptions{Name: "stage", SlotSize: slotSize, Slots: 256, Memory: h.Memory})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	src := burst.PoolSource(pool)
	f := &feed{alloc: func(b *burst.Burst) []byte {
		slot, err := pool.Get()
		if err != nil {
			t.Fatal(err)
		}
		b.Builder().Add(src, burst.Segment{Handle: slot.Handle(), Off: slot.Span().Off, Len: slotSize, Cap: slotSize})
		return slot.Bytes()
	}}
	s := h.Open(t, f, pool)
	if _, err := s.TryRecv(nil); !errors.Is(err, engine.ErrNil) {
		t.Errorf("TryRecv(nil): %v, expected engine.ErrNil", err)
	}
	bad, want := 0, map[string]int{}
	for n := range packets {
		if h.Bad != nil && n%3 == 1 {
			f.queue = append(f.queue, h.Bad)
			bad++
		}
		f.queue = append(f.queue, func(p []byte) int { return h.Frame(p, n) })
		var p [slotSize]byte
		want[string(p[:h.Frame(p[:], n)])] = n
	}
	end := fmt.Errorf("the test ends: %w", engine.ErrClosed)
	f.err = end
	b, next, bytes := burst.New(room+1), 0, uint64(0)
	for {
		f.alloc(b)[0] = 0xa5 // the caller's
		b.SetLen(0, 0, 1)
		n, err := s.TryRecv(b)
		if b.Len() != 1+n || b.PacketLen(0) != 1 || b.Bytes(0, 0)[0] != 0xa5 {
			t.Fatalf("TryRecv says %d packets, and the burst, which had one, has %d", n, b.Len())
		}
		for i := 1; i <= n; i++ {
			p := make([]byte, b.PacketLen(i))
			b.CopyTo(p, i)
			at, ok := want[string(p)]
			if !ok || !h.Reorders && at != next {
				t.Fatalf("packet %d is %x, which was not sent, came already or is out of order", next, p)
			}
			delete(want, string(p))
			next, bytes = next+1, bytes+uint64(len(p))
		}
		b.Release()
		if err != nil {
			if n != 0 || !errors.Is(err, end) {
				t.Fatalf("%d packets and %v, expected the error of the receiver behind the last packet", n, err)
			}
			break
		}
		if w := engine.NewWaker(); n == 0 && !s.Arm(w) {
			if f.waker != w {
				t.Fatal("Arm did not arm what the stage reads from")
			}
			select {
			case <-w.C():
			case <-t.Context().Done():
				t.Fatal("no Wake, although there is more")
			}
		}
	}
	var st engine.RxStats
	if s.Stats(&st); len(want) > 0 || st.Packets != packets || st.Bytes != bytes || st.Drops.Total() != uint64(bad) {
		t.Errorf("%d packets are missing; of %d and %d to drop the stage counts %d packets, %d bytes of %d, %v",
			len(want), packets, bad, st.Packets, st.Bytes, bytes, st.Drops)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if n := pool.Stats().InUse; n > 0 {
		t.Errorf("%d slots are not back", n)
	}
}
