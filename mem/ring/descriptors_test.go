package ring

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func descs(t testing.TB, slots int, payload, start uint64) (*Descriptors, []byte) {
	t.Helper()
	mem := alignedBytes(DescriptorsSize(slots))
	r, err := newDescriptors(mem, payload, start)
	if err != nil {
		t.Fatal(err)
	}
	return r, mem
}

// TestDescriptorsAreAQueue runs random calls against a slice: full at exactly Cap, empty at none,
// batches as large as can be, releases in any order, drops only of what nobody has claimed, and the
// counters right after each step. Tickets cross 2^64.
func TestDescriptorsAreAQueue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		slots := rapid.IntRange(1, 9).Draw(rt, "slots")
		start := starts.Draw(rt, "start")
		r, _ := descs(t, slots, 1<<40, start)
		n := r.Cap()
		var queue []Desc             // published and not claimed
		held := map[uint64]Desc{}    // claimed and not released, by ticket
		oldest, next := start, start // tickets: oldest of those in the ring, next to publish
		gone := map[uint64]bool{}    // released, but an older one is not
		tag := uint64(0)
		free := func(ticket uint64) {
			gone[ticket] = true
			for gone[oldest] {
				delete(gone, oldest)
				oldest++
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				s := r.Stats()
				if got, want := s.InRing, uint64(len(queue)+len(held)); got != want || s.Claimed != uint64(len(held)) ||
					s.Published != s.Released+s.Dropped+s.InRing {
					rt.Fatalf("stats %+v with %d waiting and %d claimed", s, len(queue), len(held))
				}
				if r.Len() != len(queue) {
					rt.Fatalf("Len %d with %d waiting", r.Len(), len(queue))
				}
			},
			"Publish": func(rt *rapid.T) {
				ds := make([]Desc, rapid.IntRange(0, 2*n).Draw(rt, "n"))
				for i := range ds {
					tag++
					ds[i] = Desc{Off: tag, Len: 3 * tag, Time: -int64(tag), Tag: tag, Value: ^tag, Flow: uint32(tag),
						Hash: 7, Source: 8, Flags: DescFrame}
				}
				k, err := r.Publish(ds)
				if want := min(len(ds), n-int(next-oldest)); k != want || err != nil {
					rt.Fatalf("Publish of %d with tickets %d to %d of %d took %d (%v), expected %d", len(ds), oldest,
						next, n, k, err, want)
				}
				queue = append(queue, ds[:k]...)
				next += uint64(k)
			},
			"Claim": func(rt *rapid.T) {
				dst := make([]Desc, rapid.IntRange(0, 2*n).Draw(rt, "n"))
				ticket, k, err := r.Claim(dst)
				if want := min(len(dst), len(queue)); k != want || err != nil {
					rt.Fatalf("Claim of %d with %d waiting got %d (%v)", len(dst), len(queue), k, err)
				}
				if d := cmp.Diff(append([]Desc{}, queue[:k]...), append([]Desc{}, dst[:k]...)); d != "" {
					rt.Fatal(d)
				}
				for i := range k {
					held[ticket+uint64(i)] = dst[i]
				}
				queue = queue[k:]
			},
			"Release": func(rt *rapid.T) {
				for ticket := range held { // any one
					r.Release(ticket, 1)
					delete(held, ticket)
					free(ticket)
					break
				}
			},
			"DropOldest": func(rt *rapid.T) {
				dst := make([]Desc, rapid.IntRange(0, 3).Draw(rt, "n"))
				first := next - uint64(len(queue))
				k, err := r.DropOldest(dst)
				if want := min(len(dst), len(queue)); k != want || err != nil {
					rt.Fatalf("DropOldest of %d with %d waiting took %d (%v)", len(dst), len(queue), k, err)
				}
				for i := range k {
					if dst[i] != queue[i] {
						rt.Fatalf("dropped %+v, expected %+v", dst[i], queue[i])
					}
					free(first + uint64(i))
				}
				queue = queue[k:]
			},
			"Recover": func(rt *rapid.T) {
				dst := make([]Desc, n)
				if k := r.Recover(dst); k != len(held) {
					rt.Fatalf("Recover found %d of %d", k, len(held))
				}
				for ticket := range held {
					free(ticket)
				}
				clear(held)
			},
		})
	})
}

// TestDescriptorsTorn has many goroutines on both sides, one of which drops the oldest, and a slot
// of payload for each descriptor whose bytes must be the ones that were published while a consumer
// holds it. Every descriptor ends once, those of one producer in order as one consumer sees them;
// empty polls of many lose nothing.
func TestDescriptorsTorn(t *testing.T) {
	const producers, consumers, slots, each = 3, 3, 8, 20000
	r, mem := descs(t, slots, 1<<20, math.MaxUint64-1000)
	payload := make([][4]uint64, producers*each) // by tag; plain memory, for the race detector
	var ends [producers * each]atomic.Uint32
	var failed atomic.Bool
	fail := func(format string, a ...any) {
		failed.Store(true)
		t.Errorf(format, a...)
	}
	end := func(tag uint64) {
		if ends[tag].Add(1) != 1 {
			fail("descriptor %d ended twice", tag)
		}
	}
	var put, get sync.WaitGroup
	for p := range producers {
		put.Go(func() {
			var batch [5]Desc
			var old [2]Desc
			for i := 0; i < each && !failed.Load(); {
				n := min(1+i%len(batch), each-i)
				for k := range batch[:n] {
					tag := uint64(p*each + i + k)
					payload[tag] = [4]uint64{tag, ^tag, 2 * tag, 3}
					batch[k] = Desc{Off: 8, Len: 8, Tag: tag, Value: ^tag, Source: uint32(p)}
				}
				k, err := r.Publish(batch[:n])
				if err != nil {
					fail("publish: %v", err)
					return
				}
				i += k
				if k == 0 && p == 0 {
					d, err := r.DropOldest(old[:])
					if err != nil {
						fail("drop: %v", err)
					}
					for _, x := range old[:d] {
						end(x.Tag)
					}
				}
				if k == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	for c := range consumers {
		get.Go(func() {
			// A consumer may have attached from elsewhere.
			r, err := AttachDescriptors(mem)
			if err != nil {
				fail("attach: %v", err)
				return
			}
			var dst [4]Desc
			last := [producers]int64{-1, -1, -1}
			for !failed.Load() {
				ticket, n, err := r.Claim(dst[:1+c])
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil {
					fail("claim: %v", err)
					return
				}
				for i, d := range dst[:n] {
					if d.Value != ^d.Tag || payload[d.Tag] != [4]uint64{d.Tag, ^d.Tag, 2 * d.Tag, 3} {
						fail("torn: %+v", d)
					}
					if int64(d.Tag) <= last[d.Source] {
						fail("consumer %d got %d after %d", c, d.Tag, last[d.Source])
					}
					last[d.Source] = int64(d.Tag)
					payload[d.Tag] = [4]uint64{} // whoever still reads it is torn
					end(d.Tag)
					if c == 1 && i == 0 && n > 1 { // out of order
						r.Release(ticket+1, n-1)
						r.Release(ticket, 1)
					}
				}
				if n > 0 && (c != 1 || n == 1) {
					r.Release(ticket, n)
				}
				if n == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	put.Wait()
	r.CloseProducers()
	get.Wait()
	for tag := range ends {
		if ends[tag].Load() != 1 && !failed.Load() {
			t.Fatalf("descriptor %d ended %d times", tag, ends[tag].Load())
		}
	}
	s := r.Stats()
	if s.Published+1001 != producers*each || s.Released+s.Dropped != s.Published || s.InRing != 0 {
		// tickets began 1001 before 0
		t.Errorf("stats: %+v", s)
	}
}

func TestDescriptorsEmptyPolls(t *testing.T) {
	r, _ := descs(t, 4, 8, 0)
	var dst [4]Desc
	for range 100000 {
		if _, n, err := r.Claim(dst[:]); n != 0 || err != nil {
			t.Fatalf("%d from an empty ring: %v", n, err)
		}
	}
	if _, err := r.Publish([]Desc{{Tag: 1}}); err != nil {
		t.Fatal(err)
	}
	if ticket, n, err := r.Claim(dst[:]); ticket != 0 || n != 1 || dst[0].Tag != 1 || err != nil {
		t.Errorf("after 100000 empty polls: ticket %d, %d descriptors, %v", ticket, n, err)
	}
	if s := r.Stats(); s.Empty != 100000 {
		t.Errorf("%d empty polls were counted", s.Empty)
	}
}

// TestDescriptorsClose: each end of either side, twice, and what the other sees.
func TestDescriptorsClose(t *testing.T) {
	var dst [4]Desc
	r, _ := descs(t, 4, 8, 0)
	if _, err := r.Publish(make([]Desc, 2)); err != nil {
		t.Fatal(err)
	}
	r.CloseProducers()
	r.CloseProducers()
	if n, err := r.Publish(make([]Desc, 1)); n != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("published %d after the close: %v", n, err)
	}
	if _, n, err := r.Claim(dst[:1]); n != 1 || err != nil {
		t.Errorf("claimed %d of what was there: %v", n, err)
	}
	if _, n, err := r.Claim(dst[:]); n != 1 || err != nil {
		t.Errorf("claimed %d of the rest: %v", n, err)
	}
	if _, n, err := r.Claim(dst[:]); n != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("claimed %d after the end: %v", n, err)
	}
	r, _ = descs(t, 4, 8, 0)
	r.Publish(make([]Desc, 3))
	r.CloseConsumers()
	r.CloseConsumers()
	if _, err := r.Publish(make([]Desc, 1)); !errors.Is(err, ErrClosed) || !r.ConsumersClosed() {
		t.Errorf("published to consumers that are gone: %v", err)
	}
	if _, _, err := r.Claim(dst[:]); !errors.Is(err, ErrClosed) {
		t.Errorf("claimed after the close of consumers: %v", err)
	}
	if n, err := r.DropOldest(dst[:]); n != 3 || err != nil {
		t.Errorf("the producer took %d of its 3 back: %v", n, err)
	}
}

// TestDescriptorsRecover: a producer that dies between claim and publication, and a consumer
// between claim and release, lose nothing that Recover does not name.
func TestDescriptorsRecover(t *testing.T) {
	r, mem := descs(t, 4, 8, 0)
	if _, err := r.Publish([]Desc{{Tag: 1}, {Tag: 2}}); err != nil {
		t.Fatal(err)
	}
	r.h.tail.Add(1) // it has claimed ticket 2, and is gone
	if n, err := r.Publish([]Desc{{Tag: 4}, {Tag: 5}}); n != 1 || err != nil {
		t.Fatalf("published %d behind it: %v", n, err)
	}
	var dst [8]Desc
	if _, n, _ := r.Claim(dst[:]); n != 2 {
		t.Fatalf("claimed %d, expected what is before the gap", n)
	}
	r.Release(1, 1) // the other one is with a consumer that is gone
	other, err := AttachDescriptors(mem)
	if err != nil {
		t.Fatal(err)
	}
	if n := other.Recover(dst[:]); n != 1 || dst[0].Tag != 1 {
		t.Errorf("recovered %d: %+v", n, dst[0])
	}
	if n := other.Recover(dst[:]); n != 0 {
		t.Errorf("recovered %d the second time", n)
	}
	if _, n, err := other.Claim(dst[:]); n != 2 || dst[0].Flags != DescVoid || dst[1].Tag != 4 || err != nil {
		t.Errorf("claimed %d behind the gap: %+v, %v", n, dst[:n], err)
	}
	other.Release(2, 2)
	if err := r.Check(); err != nil {
		t.Error(err)
	}
}

// TestDescriptorsAttach: what differs is an error that says what, and no access outside the memory.
func TestDescriptorsAttach(t *testing.T) {
	_, mem := descs(t, 4, 100, 0)
	if r, err := AttachDescriptors(mem); err != nil || r.Cap() != 4 || r.Payload() != 100 {
		t.Fatalf("%v, %v", r, err)
	}
	for _, x := range []struct {
		what  string
		spoil func([]byte) []byte
	}{
		{"magic", func(b []byte) []byte { b[0]++; return b }},
		{"version", func(b []byte) []byte { b[8]++; return b }},
		{"slot size", func(b []byte) []byte { b[12] = 32; return b }},
		{"slots", func(b []byte) []byte { b[16] = 8; return b }},
		{"many slots", func(b []byte) []byte { b[23] = 0xff; return b }},
		{"cut", func(b []byte) []byte { return b[:len(b)-64] }},
		{"short", func(b []byte) []byte { return b[:64] }},
	} {
		b := alignedBytes(len(mem))
		copy(b, mem)
		if _, err := AttachDescriptors(x.spoil(b)); !errors.Is(err, ErrLayout) {
			t.Errorf("%s: %v", x.what, err)
		}
	}
	for _, n := range []int{0, 1, 64, DescriptorsSize(4) - 1, DescriptorsSize(4) + 64} {
		if _, err := NewDescriptors(alignedBytes(n + 1)[:n], 1); !errors.Is(err, ErrLayout) {
			t.Errorf("a ring in %d bytes: %v", n, err)
		}
	}
	if _, err := NewDescriptors(alignedBytes(DescriptorsSize(4) + 8)[8:], 1); err == nil {
		t.Error("a ring at an odd place was made")
	}
	if DescriptorsSize(0) != 0 || DescriptorsSize(MaxDescriptors+1) != 0 || DescriptorsSize(3) != DescriptorsSize(4) {
		t.Error("sizes")
	}
}

// TestDescriptorsHostile: a descriptor outside the payload is refused on both sides, and tickets
// that cannot be end the ring.
func TestDescriptorsHostile(t *testing.T) {
	const big = 1 << 63
	r, _ := descs(t, 4, 100, 0)
	for _, d := range []Desc{{Off: 101}, {Off: 100, Len: 1}, {Off: big, Len: big}, {Len: math.MaxUint64, Off: 2}} {
		if n, err := r.Publish([]Desc{{}, d}); n != 0 || !errors.Is(err, ErrPayload) {
			t.Errorf("%+v: %d, %v", d, n, err)
		}
	}
	if n, err := r.Publish([]Desc{{Off: 100}, {Len: 100, Tag: 7}}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	r.slots[1].d.Off = 50
	var dst [2]Desc
	if _, n, err := r.Claim(dst[:]); n != 2 || !errors.Is(err, ErrPayload) ||
		dst[1] != (Desc{Tag: 7, Flags: DescVoid}) {
		t.Errorf("claimed %d: %+v, %v", n, dst, err)
	}
	for name, do := range map[string]func(*Descriptors) error{
		"Claim":      func(r *Descriptors) error { _, _, err := r.Claim(dst[:]); return err },
		"Publish":    func(r *Descriptors) error { _, err := r.Publish(dst[:]); return err },
		"DropOldest": func(r *Descriptors) error { _, err := r.DropOldest(dst[:]); return err },
	} {
		r, _ := descs(t, 4, 100, 0)
		for i := range r.slots {
			r.slots[i].seq.Store(1000)
		}
		for range 2 {
			if err := do(r); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestDescriptorsLargeObject: what passes the ring is 64 bytes, whatever it describes.
func TestDescriptorsLargeObject(t *testing.T) {
	r, mem := descs(t, 2, 5<<30, 0)
	want := Desc{Off: 4 << 30, Len: 1 << 30, Tag: 9}
	r.Publish([]Desc{want})
	var got [1]Desc
	if _, n, err := r.Claim(got[:]); n != 1 || err != nil || got[0] != want || len(mem) != DescriptorsSize(2) {
		t.Errorf("%d, %v, %+v", n, err, got)
	}
}

func TestDescriptorsAllocateNothing(t *testing.T) {
	r, _ := descs(t, 8, 100, 0)
	ds, got := make([]Desc, 4), make([]Desc, 4)
	if n := testing.AllocsPerRun(100, func() {
		r.Publish(ds)
		ticket, n, _ := r.Claim(got)
		r.Release(ticket, n)
		r.Claim(got)
		r.Publish(ds)
		r.DropOldest(got)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The cost of one descriptor falls with the burst: one claim and one count for all. ns/op is that
// of one descriptor, put and got by one goroutine.
func BenchmarkDescriptors(b *testing.B) {
	for _, burst := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("burst %d", burst), func(b *testing.B) {
			r, _ := descs(b, 1024, 100, 0)
			ds, dst := make([]Desc, burst), make([]Desc, burst)
			for i := 0; i < b.N; i += burst {
				r.Publish(ds)
				ticket, n, _ := r.Claim(dst)
				r.Release(ticket, n)
			}
		})
	}
}
