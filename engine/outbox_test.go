package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// device is a Sink that takes what its room allows, and checks what it is given.
type device struct {
	o     *Outbox
	async bool
	keeps bool          // moves packets out of the burst, as if it still read them
	every time.Duration // again is so much later; 0 means Kick

	mu     sync.Mutex
	room   int // packets that it takes before it is full
	got    []uint64
	when   []time.Time
	held   *burst.Burst // packets that it keeps
	taken  int          // and those that it has not completed
	closed bool

	inside atomic.Bool
	calls  int
	onCall func(n int) // in Transmit
	errs   []string
}

func (d *device) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	if d.inside.Swap(true) {
		d.fault("two Transmits at a time")
	}
	defer d.inside.Store(false)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.closed {
		d.errs = append(d.errs, "Transmit after Close")
	}
	if from >= to || to != b.Len() {
		d.errs = append(d.errs, "Transmit of nothing")
	}
	if d.onCall != nil {
		d.onCall(d.calls)
	}
	for i := from; i < to; i++ {
		if b.Segments(i) == 0 {
			continue
		}
		if d.room == 0 {
			var again time.Time
			if d.every > 0 {
				again = time.Now().Add(d.every)
			}
			return i, again
		}
		d.room--
		d.got = append(d.got, number(b, i))
		d.when = append(d.when, time.Now())
		if d.async {
			d.taken++
		}
		if d.keeps && !b.Take(d.held, i) {
			d.errs = append(d.errs, "no room to keep a packet")
		}
	}
	return to, time.Time{}
}

func (d *device) fault(s string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.errs = append(d.errs, s)
}

// allow makes room for n packets more, and releases and completes what is kept.
func (d *device) allow(n int) {
	d.mu.Lock()
	d.room += n
	if d.held != nil {
		d.held.Release()
	}
	taken := d.taken
	d.taken = 0
	d.mu.Unlock()
	if taken > 0 {
		d.o.Complete(taken)
	}
	d.o.Kick()
}

// pool of packets to send
type packets struct {
	pool *mem.Pool
	src  *burst.Source
}

func newPackets(t testing.TB, slots int) packets {
	p := newPool(t, slots)
	return packets{p, burst.PoolSource(p)}
}

// alloc fills b with up to n packets numbered from first on, each with a descriptor of o.
func (p packets) alloc(o *Outbox, b *burst.Burst, n int, first uint64) int {
	var hs [256]mem.Handle
	n = o.Reserve(min(n, len(hs)))
	got := p.pool.GetBatch(hs[:n])
	o.Unreserve(n - got)
	b.Builder().Reserve(o, got)
	mem := p.src.Region().All().Bytes()
	for i, h := range hs[:got] {
		off := p.pool.Offset(h)
		binary.LittleEndian.PutUint64(mem[off:], first+uint64(i))
		b.Builder().Add(p.src, burst.Segment{Handle: h, Off: off, Len: 8, Cap: 64})
	}
	return got
}

func newOutbox(t testing.TB, d *device, depth int) *Outbox {
	t.Helper()
	o, err := NewOutbox(d, depth, d.async)
	if err != nil {
		t.Fatal(err)
	}
	d.o = o
	if d.keeps {
		d.held = burst.New(depth)
	}
	t.Cleanup(func() {
		o.Close()
		d.mu.Lock()
		d.closed = true
		d.mu.Unlock()
		d.allow(0)
		if o.Free() != depth || o.Queued() != 0 {
			t.Errorf("%d of %d descriptors are free, %d packets queued at the end", o.Free(), depth, o.Queued())
		}
		for _, e := range d.errs {
			t.Error(e)
		}
	})
	return o
}

func upTo(n int) []uint64 {
	s := make([]uint64, n)
	for i := range s {
		s[i] = uint64(i)
	}
	return s
}

func TestOutboxDirect(t *testing.T) {
	for _, async := range []bool{false, true} {
		p := newPackets(t, 64)
		d := &device{async: async, room: 1 << 30}
		o := newOutbox(t, d, 16)
		b := burst.New(32)
		if n := p.alloc(o, b, 32, 0); n != 16 {
			t.Fatalf("%d descriptors of 16", n)
		}
		if o.Free() != 0 || o.Reserve(1) != 0 {
			t.Error("more descriptors than the depth")
		}
		if err := o.Send(b); err != nil || b.Len() != 0 || b.Builder().Reserved(o) != 0 {
			t.Fatal(err)
		}
		if async {
			if o.Free() != 0 || o.Queued() != 16 {
				t.Errorf("%d free, %d queued before they are completed", o.Free(), o.Queued())
			}
			d.allow(0)
		}
		if o.Free() != 16 || o.Queued() != 0 || !slices.Equal(d.got, upTo(16)) {
			t.Errorf("%d free, %d queued, got %v", o.Free(), o.Queued(), d.got)
		}
	}
}

func TestOutboxRefuses(t *testing.T) {
	p := newPackets(t, 64)
	d := &device{room: 1 << 30}
	o := newOutbox(t, d, 16)
	other := newOutbox(t, &device{}, 16)
	b := burst.New(32)
	if err := o.Send(nil); err != ErrNil {
		t.Error(err)
	}
	if err := o.Send(b); err != nil {
		t.Errorf("an empty burst: %v", err)
	}
	p.alloc(other, b, 3, 0)
	if err := o.Send(b); err != ErrUnreserved || b.Len() != 0 || other.Free() != 16 {
		t.Errorf("packets of another queue: %v, %d left, %d free there", err, b.Len(), other.Free())
	}
	// One packet more than descriptors.
	p.alloc(o, b, 3, 0)
	h, _ := p.pool.Get()
	b.Builder().Add(p.src, burst.Segment{Handle: h.Handle(), Len: 8})
	if err := o.Send(b); err != ErrUnreserved {
		t.Error(err)
	}
	// More descriptors than packets: the others come back.
	p.alloc(o, b, 4, 0)
	b.Builder().Reserve(o, o.Reserve(5))
	if err := o.Send(b); err != nil || o.Free() != 16 || len(d.got) != 4 {
		t.Errorf("%v, %d free, sent %v", err, o.Free(), d.got)
	}
	// A burst all of whose packets were taken.
	p.alloc(o, b, 1, 0)
	c := burst.New(1)
	b.Take(c, 0)
	if err := o.Send(b); err != nil {
		t.Error(err)
	}
	if err := o.Send(c); err != nil || len(d.got) != 5 {
		t.Error(err, d.got)
	}
	p.alloc(o, b, 2, 0)
	o.Close()
	o.Close()
	if err := o.Send(b); err != ErrClosed || o.Free() != 16 {
		t.Errorf("%v, %d free", err, o.Free())
	}
	var drops Drops
	o.AddDrops(&drops)
	if drops[DropClosed] != 2 || drops[DropRefused] != 7 || drops.Total() != 9 {
		t.Error(drops.String())
	}
	for _, depth := range []int{0, -1} {
		if _, err := NewOutbox(d, depth, false); !errors.Is(err, ErrInvalid) {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
	if _, err := NewOutbox(nil, 1, false); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func TestOutboxClaim(t *testing.T) {
	q := newQueue(t, 64)
	d := &device{room: 1 << 30}
	o := newOutbox(t, d, 4)
	b, c := burst.New(16), burst.New(1)
	if n, err := o.Claim(b); n != 0 || err != nil {
		t.Errorf("an empty burst: %d, %v", n, err)
	}
	if _, err := o.Claim(nil); err != ErrNil {
		t.Error(err)
	}
	q.push(upTo(7)...)
	q.TryRecv(b)
	b.Builder().SetReceived(1, 8, burst.HasTime, 12345)
	b.Take(c, 0)
	if n, err := o.Claim(b); n != 4 || err != ErrFull || b.Live() != 4 || b.Builder().Reserved(o) != 4 ||
		o.Free() != 0 {
		t.Fatalf("%d, %v, %d packets, %d reserved", n, err, b.Live(), b.Builder().Reserved(o))
	}
	if _, ok := b.Time(1); ok {
		t.Error("the time of receipt is still there")
	}
	if n, err := o.Claim(c); n != 0 || err != ErrFull || c.Len() != 0 {
		t.Errorf("%d, %v", n, err)
	}
	if err := o.Send(b); err != nil || !slices.Equal(d.got, []uint64{1, 2, 3, 4}) {
		t.Errorf("%v, sent %v", err, d.got)
	}
	q.push(1, 2)
	q.TryRecv(b)
	if n, err := o.Claim(b); n != 2 || err != nil || b.Builder().Reserved(o) != 2 {
		t.Errorf("%d, %v", n, err)
	}
	b.Release()
	q.push(1)
	q.TryRecv(b)
	o.Close()
	if n, err := o.Claim(b); n != 0 || err != ErrClosed || b.Len() != 0 {
		t.Errorf("%d, %v", n, err)
	}
}

// What the device does not take is sent at the time that it says, in order, and descriptors come
// back one by one.
func TestOutboxBlocked(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		for _, async := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				p := newPackets(t, 64)
				d := &device{async: async, keeps: keeps, every: time.Second}
				d.onCall = func(int) { d.room = 2 } // two packets for each call
				o := newOutbox(t, d, 16)
				b := burst.New(32)
				start := time.Now()
				for k := range uint64(2) { // the second is queued behind the first
					p.alloc(o, b, 5, 5*k)
					if err := o.Send(b); err != nil {
						t.Fatal(err)
					}
				}
				if !async && (o.Queued() != 8 || o.Free() != 8 || p.pool.Stats().InUse != 8 && !keeps) {
					t.Errorf("%d queued, %d free, %d slots out after two packets", o.Queued(), o.Free(),
						p.pool.Stats().InUse)
				}
				time.Sleep(5*time.Second + time.Millisecond)
				synctest.Wait()
				if async {
					d.allow(0)
				}
				if err := o.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(d.got, upTo(10)) {
					t.Errorf("sent %v", d.got)
				}
				for i, w := range d.when {
					// 2, 2, 1 and then 2 for each call: the next burst is offered as soon as the
					// one before is taken
					at := []int{0, 0, 1, 1, 2, 2, 2, 3, 3, 4}[i]
					if got := w.Sub(start); got != time.Duration(at)*time.Second {
						t.Errorf("packet %d left after %v", i, got)
					}
				}
			})
		}
	}
}

// Without a time the device has to Kick; a Kick from inside of Transmit is not lost, and one too
// many does no harm.
func TestOutboxKick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPackets(t, 64)
		d := &device{}
		o := newOutbox(t, d, 16)
		b := burst.New(32)
		o.Kick()
		p.alloc(o, b, 5, 0)
		o.Send(b)
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(d.got) != 0 || d.calls > 2 {
			t.Errorf("%d calls sent %v through a device that is full", d.calls, d.got)
		}
		d.allow(2)
		synctest.Wait()
		if o.Queued() != 3 {
			t.Errorf("%d queued", o.Queued())
		}
		// Room comes while Transmit runs, after it looked.
		d.mu.Lock()
		d.onCall = func(int) {
			d.onCall = func(int) { d.room = 100 }
			o.Kick()
		}
		d.mu.Unlock()
		o.Kick()
		if err := o.Drain(t.Context()); err != nil || !slices.Equal(d.got, upTo(5)) {
			t.Errorf("%v, sent %v", err, d.got)
		}
	})
}

func TestOutboxDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPackets(t, 64)
		d := &device{}
		o := newOutbox(t, d, 16)
		b := burst.New(32)
		for range 3 {
			if err := o.Drain(t.Context()); err != nil || len(o.waiters) != 0 {
				t.Fatalf("an idle queue: %v, %d waiters", err, len(o.waiters))
			}
		}
		p.alloc(o, b, 2, 0)
		o.Send(b)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := o.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) || len(o.waiters) != 0 ||
			o.waiting.Load() != 0 {
			t.Fatalf("%v, %d waiters", err, len(o.waiters))
		}
		// It does not wait for what is sent later.
		done := make(chan error)
		for range 2 {
			go func() { done <- o.Drain(t.Context()) }()
		}
		synctest.Wait()
		p.alloc(o, b, 2, 2)
		o.Send(b)
		d.allow(1)
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("drained with a packet of before queued")
		default:
		}
		d.allow(1)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if o.Queued() != 2 || len(o.waiters) != 0 {
			t.Errorf("%d queued, %d waiters", o.Queued(), len(o.waiters))
		}
	})
}

func TestOutboxClose(t *testing.T) {
	for _, async := range []bool{false, true} {
		for _, every := range []time.Duration{0, time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				p := newPackets(t, 64)
				d := &device{async: async, keeps: async, room: 3, every: every}
				o := newOutbox(t, d, 16)
				b := burst.New(32)
				p.alloc(o, b, 5, 0)
				o.Send(b)
				p.alloc(o, b, 4, 5)
				o.Send(b)
				p.alloc(o, b, 2, 9)
				both := make(chan bool)
				for range 2 {
					go func() {
						o.Close()
						both <- true
					}()
				}
				<-both
				<-both
				var drops Drops
				o.AddDrops(&drops)
				if drops[DropClosed] != 6 || drops.Total() != 6 || len(d.got) != 3 {
					t.Errorf("dropped %v, sent %v", drops.String(), d.got)
				}
				if async {
					if o.Queued() != 3 || o.Free() != 11 {
						t.Errorf("%d queued, %d free with 3 packets in the device", o.Queued(), o.Free())
					}
					d.allow(0)
				}
				if o.Free() != 14 { // two are still reserved
					t.Errorf("%d free", o.Free())
				}
				b.Release()
			})
		}
	}
}

// A Send that meets a Close half-way does not touch the device any more.
func TestOutboxCloseMeanwhile(t *testing.T) {
	p := newPackets(t, 64)
	d := &device{room: 1 << 30}
	o := newOutbox(t, d, 16)
	closed := make(chan struct{})
	d.onCall = func(int) {
		go func() {
			o.Close()
			close(closed)
		}()
		for !o.closed.Load() {
			runtime.Gosched()
		}
	}
	// A burst of another sender, which has put it into the queue and has not looked yet whether a
	// goroutine sends.
	b := burst.New(4)
	p.alloc(o, b, 2, 0)
	b.Builder().Unreserve()
	o.given.Add(2)
	o.queue.Put(o.keep(b))
	p.alloc(o, b, 3, 2)
	if err := o.Send(b); err != ErrClosed {
		t.Error(err)
	}
	<-closed
	var drops Drops
	if o.AddDrops(&drops); drops[DropClosed] != 3 || !slices.Equal(d.got, upTo(2)) || o.Free() != 16 {
		t.Errorf("dropped %v, sent %v, %d free", drops.String(), d.got, o.Free())
	}
}

// A Send does some work of others, not all of it for ever.
func TestOutboxFair(t *testing.T) {
	const rounds = 1000
	p := newPackets(t, 2*rounds)
	d := &device{room: 1 << 30}
	o := newOutbox(t, d, 2*rounds)
	var byUs int
	buf := make([]byte, 1<<14)
	var late []*burst.Burst
	d.onCall = func(n int) {
		if !strings.Contains(string(buf[:runtime.Stack(buf, false)]), "Outbox).run") {
			byUs++
		}
		if n > rounds {
			return
		}
		b := burst.New(1) // another goroutine sends meanwhile
		p.alloc(o, b, 1, uint64(n))
		o.Send(b)
		late = append(late, b)
	}
	b := burst.New(1)
	p.alloc(o, b, 1, 0)
	o.Send(b)
	for done := false; !done; {
		o.Drain(t.Context())
		d.mu.Lock()
		done = len(late) == rounds
		d.mu.Unlock()
	}
	o.Drain(t.Context())
	d.mu.Lock()
	defer d.mu.Unlock()
	if byUs > othersBursts+2 {
		t.Errorf("one Send has sent %d bursts", byUs)
	}
	if !slices.Equal(d.got, upTo(rounds+1)) {
		t.Errorf("sent %d packets, not all or not in order", len(d.got))
	}
}
