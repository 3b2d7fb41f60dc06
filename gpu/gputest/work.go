package gputest

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/gpu"
)

// checkOrder sends bytes on long ways through one stream, each step of which reads what the one
// before has written.
func checkOrder(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s := r.stream()
	for _, k := range r.reached() {
		const size, steps = 3000, 200
		a, b := r.alloc(k, size), r.alloc(gpu.DeviceMemory, size)
		data := noise(7, size)
		for round := range 5 {
			r.write(s, a, data)
			for i := range steps {
				from, to := a, b
				if i%2 == 1 {
					from, to = b, a
				}
				r.ok(s.Copy(to.All(), from.All()))
				r.ok(s.Fill(from.All(), uint32(i), 1))
				if i%7 == round { // each step moves a byte, so that none may be left out or done twice
					r.ok(s.Fill(gpu.Span{Memory: to, Off: uint64(i), Len: 1}, uint32(i+round), 1))
				}
			}
			want := bytes.Clone(data)
			for i := range steps {
				if i%7 == round {
					want[i] = byte(i + round)
				}
			}
			if !r.holds("after 200 steps of a stream", s, a, want) {
				return
			}
		}
	}
}

// checkBatch puts batches in, one of them with a mistake in the middle.
func checkBatch(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s, m, e := r.stream(), r.alloc(gpu.DeviceMemory, 1000), r.event(false)
	part := func(i int) gpu.Span { return gpu.Span{Memory: m, Off: uint64(i * 100), Len: 100} }
	n, err := s.Enqueue([]gpu.Op{gpu.FillOp(m.All(), 1, 1), gpu.FillOp(part(1), 2, 1), gpu.CopyOp(part(2), part(1)),
		gpu.RecordOp(e), gpu.WaitForOp(e), gpu.FillOp(part(1), 3, 1)})
	if n != 6 || err != nil {
		t.Fatalf("Enqueue of 6 took %d: %v", n, err)
	}
	r.ok(e.Wait(always))
	want := bytes.Repeat([]byte{1}, 1000)
	copy(want[100:], bytes.Repeat([]byte{3}, 100))
	copy(want[200:], bytes.Repeat([]byte{2}, 100))
	r.holds("a batch", s, m, want)
	if n, err := s.Enqueue(nil); n != 0 || err != nil {
		t.Errorf("Enqueue of nothing: %d, %v", n, err)
	}
	n, err = s.Enqueue([]gpu.Op{gpu.FillOp(part(5), 5, 1), {Kind: 99}, gpu.FillOp(part(6), 6, 1)})
	if n != 1 {
		t.Errorf("Enqueue took %d of a batch whose second is nonsense", n)
	}
	r.is("nonsense in a batch", err, gpu.ErrArgument)
	copy(want[500:], bytes.Repeat([]byte{5}, 100))
	r.holds("a batch with a mistake", s, m, want)
}

// checkRefused asks for what cannot be, and looks that nothing was done.
func checkRefused(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s, m, p, q := r.stream(), r.alloc(gpu.DeviceMemory, 100), r.alloc(gpu.PinnedMemory, 100),
		r.alloc(gpu.PinnedMemory, 100)
	r.write(s, m, noise(8, 100))
	span := func(off, n uint64) gpu.Span { return gpu.Span{Memory: m, Off: off, Len: n} }
	there := gpu.Span{Memory: p, Len: 100}
	for _, x := range []struct {
		what string
		err  error
		want error
	}{
		{"a copy beyond the end", s.Copy(span(1, 100), there), gpu.ErrBounds},
		{"a copy from beyond the end", s.Copy(span(0, 100), gpu.Span{Memory: p, Off: 1, Len: 100}), gpu.ErrBounds},
		{"a copy whose end overflows", s.Copy(span(^uint64(0)-10, 100), there), gpu.ErrBounds},
		{"a copy of other lengths", s.Copy(span(0, 50), there), gpu.ErrArgument},
		{"a copy onto itself", s.Copy(span(0, 50), span(49, 50)), gpu.ErrArgument},
		{"a copy of no memory", s.Copy(span(0, 50), gpu.Span{Len: 50}), gpu.ErrArgument},
		{"a copy that the device has no part in", s.Copy(there, q.All()), gpu.ErrArgument},
		{"a fill beyond the end", s.Fill(span(0, 101), 0, 1), gpu.ErrBounds},
		{"a fill of half a pattern", s.Fill(span(0, 5), 0, 2), gpu.ErrArgument},
		{"a fill at half a pattern", s.Fill(span(2, 4), 0, 4), gpu.ErrArgument},
		{"a fill with three bytes", s.Fill(span(0, 3), 0, 3), gpu.ErrArgument},
		{"a fill of pinned memory", s.Fill(there, 0, 1), gpu.ErrArgument},
		{"a write of more", s.Write(span(0, 5), make([]byte, 6)), gpu.ErrArgument},
		{"a write beyond the end", s.Write(span(95, 6), make([]byte, 6)), gpu.ErrBounds},
		{"a read of more", s.Read(make([]byte, 6), span(0, 5)), gpu.ErrArgument},
		{"a read beyond the end", s.Read(make([]byte, 6), span(95, 6)), gpu.ErrBounds},
		{"a launch of nothing", s.Launch(nil, gpu.Grid{Groups: 1, Group: 1}), gpu.ErrArgument},
		{"a record of nothing", s.Record(nil), gpu.ErrArgument},
	} {
		r.is(x.what, x.err, x.want)
	}
	r.holds("memory that only mistakes were about", s, m, noise(8, 100))
	if _, err := m.All().Sub(99, 2); !errors.Is(err, gpu.ErrBounds) {
		t.Errorf("a part beyond the end: %v", err)
	}
}

func checkEvents(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s, e, m := r.stream(), r.event(false), r.alloc(gpu.DeviceMemory, 1<<20)
	_, err := e.Query()
	r.is("query an event that was never recorded", err, gpu.ErrArgument)
	r.is("wait for an event that was never recorded", e.Wait(always), gpu.ErrArgument)
	r.is("wait in a stream for an event that was never recorded", s.WaitFor(e), gpu.ErrArgument)
	for i := range 50 {
		r.ok(s.Fill(m.All(), uint32(i), 4))
		r.ok(s.Record(e))
		if i%3 == 0 { // again, later: the first record is forgotten
			r.ok(s.Fill(m.All(), uint32(i)+1000, 4))
			r.ok(s.Record(e))
		}
		if i%2 == 0 {
			r.ok(e.Wait(always))
		} else {
			for done := false; !done; runtime.Gosched() {
				done, err = e.Query()
				r.ok(err)
			}
		}
		// What was before the event is done, and nothing else was in the stream.
		done, err := e.Query()
		r.ok(err)
		if !done {
			t.Fatal("an event that has happened has not")
		}
	}
	r.ok(s.Wait(always))
	done, err := s.Query()
	r.ok(err)
	if !done {
		t.Error("a stream is not done after Wait")
	}
	ctx, cancel := context.WithCancel(always)
	cancel()
	r.ok(s.Wait(ctx)) // it is done: the end of ctx does not matter
	r.ok(e.Wait(ctx))
}

func checkElapsed(t testing.TB, h Harness) {
	r := rigOf(t, h)
	if !r.has(gpu.CapElapsed) {
		_, err := r.c.NewEvent(gpu.EventOptions{Timing: true})
		r.is("an event with timing", err, gpu.ErrUnsupported)
		return
	}
	s, m := r.stream(), r.alloc(gpu.DeviceMemory, 1<<20)
	a, b, plain := r.event(true), r.event(true), r.event(false)
	r.ok(s.Record(a))
	for i := range 10 {
		r.ok(s.Fill(m.All(), uint32(i), 1))
	}
	r.ok(s.Record(b))
	r.ok(s.Record(plain))
	r.ok(s.Wait(always))
	there, err := b.Elapsed(a)
	r.ok(err)
	back, err := a.Elapsed(b)
	r.ok(err)
	self, err := a.Elapsed(a)
	r.ok(err)
	// The test cannot know how long it was, only that it was not negative, and the same both ways.
	if there < 0 || back != -there || self != 0 {
		t.Errorf("from a to b are %v, from b to a %v, from a to a %v", there, back, self)
	}
	_, err = plain.Elapsed(a)
	r.is("elapsed time of an event without timing", err, gpu.ErrArgument)
	_, err = a.Elapsed(nil)
	r.is("elapsed time since nothing", err, gpu.ErrArgument)
	if release, ok := r.block(s); ok {
		r.ok(s.Record(b))
		_, err = b.Elapsed(a)
		r.is("elapsed time to what has not happened", err, gpu.ErrArgument)
		release()
	}
}

// checkAcrossStreams hands bytes back and forth between two streams, in which only events keep the
// order.
func checkAcrossStreams(t testing.TB, h Harness) {
	r := rigOf(t, h)
	const size, rounds = 10000, 60
	s := []*gpu.Stream{r.stream(), r.stream()}
	e := []*gpu.Event{r.event(false), r.event(false)}
	m := []*gpu.Memory{r.alloc(gpu.DeviceMemory, size), r.alloc(gpu.DeviceMemory, size)}
	r.write(s[0], m[0], noise(9, size))
	r.ok(s[0].Record(e[0]))
	want := noise(9, size)
	for i := range rounds {
		a, b := i%2, 1-i%2
		n, err := s[b].Enqueue([]gpu.Op{
			gpu.WaitForOp(e[a]),
			gpu.CopyOp(m[b].All(), m[a].All()),
			gpu.FillOp(gpu.Span{Memory: m[b], Off: uint64(i), Len: 1}, uint32(i), 1),
			gpu.FillOp(m[a].All(), 0xee, 1),
			gpu.RecordOp(e[b]),
		})
		if n != 5 {
			t.Fatal(n, err)
		}
		want[i] = byte(i)
	}
	r.ok(e[rounds%2].Wait(always))
	// The end of the last stream is that of all before: one wait is enough.
	got := make([]byte, size)
	r.ok(s[rounds%2].Read(got, m[rounds%2].All()))
	r.same("after 60 steps of two streams", got, want)
}

// checkBlocked holds a stream and looks at what waits for it, and what does not.
func checkBlocked(t testing.TB, h Harness) {
	r := rigOf(t, h)
	held, free, behind := r.stream(), r.stream(), r.stream()
	a, b, c := r.alloc(gpu.DeviceMemory, 4096), r.alloc(gpu.DeviceMemory, 4096), r.alloc(gpu.DeviceMemory, 4096)
	e, f := r.event(false), r.event(false)
	r.write(free, a, noise(10, 4096))
	r.ok(free.Fill(b.All(), 0, 1))
	r.ok(free.Fill(c.All(), 0, 1))
	r.ok(free.Wait(always))

	release, ok := r.block(held)
	if !ok {
		return
	}
	r.ok(held.Copy(b.All(), a.All())) // returns, though it is not done
	r.ok(held.Record(e))
	r.ok(behind.WaitFor(e))
	r.ok(behind.Copy(c.All(), b.All()))
	r.ok(behind.Record(f))
	waits := func(when string) {
		t.Helper()
		for what, query := range map[string]func() (bool, error){"the stream": held.Query, "its event": e.Query,
			"a stream behind": behind.Query, "the event of that": f.Query} {
			for range 50 { // what does not wait has time to show it
				done, err := query()
				r.ok(err)
				if done {
					t.Errorf("%s is done %s, although it is held", what, when)
					break
				}
				runtime.Gosched()
			}
		}
	}
	waits("at once")
	for range 20 { // others go on
		r.ok(free.Copy(gpu.Span{Memory: a, Len: 100}, gpu.Span{Memory: a, Off: 100, Len: 100}))
		r.write(free, a, noise(10, 4096))
	}
	waits("later")
	release()
	r.ok(f.Wait(always))
	got := make([]byte, 4096)
	r.ok(behind.Read(got, c.All()))
	r.same("what came by two streams", got, noise(10, 4096))
	r.ok(held.Wait(always))

	// An event that is recorded again, in another stream, forgets the first record, whichever comes
	// to its end first.
	release, ok = r.block(held)
	if !ok {
		return
	}
	r.ok(held.Record(e))
	r.ok(free.Record(e))
	r.ok(e.Wait(always))
	release()
	r.ok(held.Wait(always))
	done, err := e.Query()
	r.ok(err)
	if !done {
		t.Error("an event that has happened has not, since an earlier record of it came to its end")
	}
}

// tell lets a stream go, and sets told before it does: no wait may end before that.
func (r *rig) tell(release func()) (told *atomic.Bool) {
	told = &atomic.Bool{}
	over := make(chan struct{})
	r.Cleanup(func() { <-over })
	go func() {
		defer close(over)
		for range 100 { // a wait that returns early has time to
			runtime.Gosched()
		}
		told.Store(true)
		release()
	}()
	return told
}

func checkBlockedWait(t testing.TB, h Harness) {
	r := rigOf(t, h)
	for i, wait := range map[string]func(*gpu.Stream, *gpu.Event) error{
		"Stream.Wait":                  func(s *gpu.Stream, _ *gpu.Event) error { return s.Wait(always) },
		"Event.Wait":                   func(_ *gpu.Stream, e *gpu.Event) error { return e.Wait(always) },
		"Stream.Wait with another end": func(s *gpu.Stream, _ *gpu.Event) error { return s.Wait(t.Context()) },
		"Event.Wait with another end":  func(_ *gpu.Stream, e *gpu.Event) error { return e.Wait(t.Context()) },
		"Stream.Wait after a WaitEvent": func(s *gpu.Stream, e *gpu.Event) error {
			return errors.Join(s.WaitFor(e), s.Wait(always))
		},
	} {
		for range 3 {
			s, e := r.stream(), r.event(false)
			release, ok := r.block(s)
			if !ok {
				return
			}
			r.ok(s.Record(e))
			told := r.tell(release)
			r.ok(wait(s, e))
			if !told.Load() {
				t.Fatalf("%s returns before the work is done", i)
			}
			r.ok(s.Wait(always))
		}
	}
}

// checkBlockedRead reads and writes behind work that is held.
func checkBlockedRead(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s, m := r.stream(), r.alloc(gpu.DeviceMemory, 1000)
	for range 3 {
		r.write(s, m, noise(11, 1000))
		release, ok := r.block(s)
		if !ok {
			return
		}
		r.ok(s.Fill(m.All(), 0x77, 1))
		told := r.tell(release)
		r.holds("a read behind a fill", s, m, bytes.Repeat([]byte{0x77}, 1000))
		if !told.Load() {
			t.Error("Read returns before the work in front of it is done")
		}
		release, ok = r.block(s)
		if !ok {
			return
		}
		r.ok(s.Fill(m.All(), 0x66, 1))
		told = r.tell(release)
		b := noise(12, 1000)
		r.ok(s.Write(m.All(), b))
		if !told.Load() {
			// its bytes would be overwritten, or src is not free
			t.Error("Write returns before the work in front of it is done")
		}
		clear(b) // src is the caller's again
		r.holds("a write behind a fill", s, m, noise(12, 1000))
	}
}

// checkBrokenOff ends waits for work that goes on.
func checkBrokenOff(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s, e, m := r.stream(), r.event(false), r.alloc(gpu.DeviceMemory, 100)
	release, ok := r.block(s)
	if !ok {
		return
	}
	r.ok(s.Fill(m.All(), 9, 1))
	r.ok(s.Record(e))
	for _, wait := range []func(context.Context) error{s.Wait, e.Wait} {
		ctx, cancel := context.WithCancel(always)
		cancel()
		r.is("a wait that has ended before", wait(ctx), context.Canceled)
		ctx, cancel = context.WithCancel(always)
		over := make(chan error, 1)
		go func() { over <- wait(ctx) }()
		for range 100 {
			runtime.Gosched()
		}
		cancel()
		r.is("a wait that was broken off", <-over, context.Canceled)
	}
	done, err := s.Query()
	r.ok(err)
	if done {
		t.Error("work that nobody waits for any more is done, although it is held")
	}
	release()
	r.ok(s.Wait(always))
	r.holds("work that nobody waited for", s, m, bytes.Repeat([]byte{9}, 100))
}
