package pace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/bucket"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const slotSize = 2048

// sent is a packet that left.
type sent struct {
	n     uint64
	at    time.Time
	bytes int
}

// device is a Sink that notes what it is given.
type device struct {
	log   []sent
	room  int           // packets that it takes at a time, 0 for all
	every time.Duration // pause after those
	free  time.Time     // when it takes some again
	left  int
	held  *burst.Burst // an async device moves packets here
	onGet func()
}

func (d *device) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	now := time.Now()
	if d.onGet != nil {
		d.onGet()
	}
	if d.room > 0 && !now.Before(d.free) {
		d.left, d.free = d.room, now.Add(d.every)
	}
	for i := from; i < to; i++ {
		if b.Segments(i) == 0 {
			continue
		}
		if d.room > 0 && d.left == 0 {
			return i, d.free
		}
		d.left--
		d.log = append(d.log, sent{binary.LittleEndian.Uint64(b.Bytes(i, 0)), now, b.PacketLen(i)})
		if d.held != nil {
			if !b.Take(d.held, i) {
				panic("no room to keep a packet")
			}
		}
	}
	return to, time.Time{}
}

// rig is an Outbox in front of a Pacer in front of a device.
type rig struct {
	t    testing.TB
	pool *mem.Pool
	src  *burst.Source
	dev  *device
	p    *Pacer
	out  *engine.Outbox
	b    *burst.Burst
	next uint64
}

const rigDepth = 512

func newRig(t testing.TB, dev *device, o Options) *rig {
	t.Helper()
	pool, err := mem.NewPool(mem.PoolOptions{Name: "pace", SlotSize: slotSize, Slots: rigDepth})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, pool: pool, src: burst.PoolSource(pool), dev: dev, b: burst.New(rigDepth)}
	if dev.held != nil {
		o.Complete = func(n int) { r.out.Complete(n) }
	}
	if r.p, err = New(dev, o); err != nil {
		t.Fatal(err)
	}
	if r.out, err = engine.NewOutbox(r.p, rigDepth, dev.held != nil); err != nil {
		t.Fatal(err)
	}
	return r
}

// add puts a packet into the next burst, to leave at a time, 0 for none.
func (r *rig) add(bytes int, at time.Time) {
	if r.out.Reserve(1) != 1 {
		r.t.Fatal("no descriptor")
	}
	s, err := r.pool.Get()
	if err != nil {
		r.t.Fatal(err)
	}
	r.b.Builder().Reserve(r.out, 1)
	binary.LittleEndian.PutUint64(s.Bytes(), r.next)
	r.next++
	i := r.b.Builder().Add(r.src, burst.Segment{Handle: s.Handle(), Off: r.pool.Offset(s.Handle()), Len: uint32(bytes)})
	if !at.IsZero() {
		r.b.SetTime(i, at.UnixNano())
	}
}

func (r *rig) send() {
	if err := r.out.Send(r.b); err != nil {
		r.t.Fatal(err)
	}
}

// complete ends what the async device holds.
func (r *rig) complete() {
	if n := r.dev.held.Len(); n > 0 {
		r.dev.held.Release()
		r.out.Complete(n)
	}
}

// done waits for everything and closes.
func (r *rig) done() {
	r.t.Helper()
	if err := r.out.Drain(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	r.out.Close()
	if r.out.Free() != rigDepth || r.out.Queued() != 0 {
		r.t.Errorf("%d descriptors of %d are free, %d packets queued", r.out.Free(), rigDepth, r.out.Queued())
	}
	if s := r.pool.Stats(); s.InUse != 0 || s.Rejected != 0 {
		r.t.Errorf("slots: %+v", s)
	}
	if err := r.pool.Close(); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) stats() (s engine.TxStats) {
	r.p.AddStats(&s)
	return s
}

// With a burst of one packet they leave at the rate's distance, to the nanosecond.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &device{}, Options{Rate: 8e6, Burst: 1000, Overhead: EthernetOverhead})
		start := time.Now()
		for range 300 {
			r.add(1000-EthernetOverhead, time.Time{})
		}
		r.send()
		r.done()
		for i, s := range r.dev.log {
			if s.n != uint64(i) || s.at.Sub(start) != time.Duration(i)*time.Millisecond {
				t.Fatalf("packet %d left as number %d after %v", s.n, i, s.at.Sub(start))
			}
		}
		if len(r.dev.log) != 300 {
			t.Error(len(r.dev.log))
		}
	})
}

// The default burst is four milliseconds and 2048 bytes.
func TestDefaultBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &device{}, Options{Rate: 20e6})
		start := time.Now()
		for range 20 {
			r.add(1000, time.Time{})
		}
		r.send()
		r.done()
		n := 0
		for _, s := range r.dev.log {
			if s.at.Equal(start) {
				n++
			}
		}
		if last := r.dev.log[19].at.Sub(start); n != 12 || last != 3180800*time.Nanosecond {
			// (20000 - 12048) bytes at 2.5 bytes/us
			t.Errorf("%d packets left at once, the last after %v", n, last)
		}
	})
}

// Nothing leaves early, a later packet waits behind an earlier one, and lateness is what it is.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, spin := range []time.Duration{0, 200 * time.Microsecond} {
			r := newRig(t, &device{}, Options{SendAt: true, Spin: spin})
			start := time.Now()
			for _, ms := range []float64{0, 5, 3, -2, 5.0001, 5.1, 20} {
				at := time.Time{}
				if ms != 0 {
					at = start.Add(time.Duration(ms * 1e6))
				}
				r.add(100, at)
			}
			r.add(100, time.Time{})
			r.send()
			r.done()
			want := []time.Duration{0, 5e6, 5e6, 5e6, 5000100, 5100000, 20e6, 20e6}
			for i, s := range r.dev.log {
				if s.n != uint64(i) || s.at.Sub(start) != want[i] {
					t.Errorf("spin %v: packet %d left as number %d after %v, want %v", spin, s.n, i, s.at.Sub(start),
						want[i])
				}
			}
			st := r.stats()
			if len(r.dev.log) != len(want) || st.TimedPackets != 6 || st.TooEarly != 0 || st.LateMax != 7e6 ||
				st.LateSum != 9e6 || st.Drops.Total() != 0 {
				t.Errorf("%+v", st)
			}
		}
	})
}

// Without SendAt times mean nothing.
func TestTimesIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &device{}, Options{})
		start := time.Now()
		r.add(100, start.Add(time.Hour))
		r.send()
		r.done()
		if st := r.stats(); !r.dev.log[0].at.Equal(start) || st.TimedPackets != 0 {
			t.Errorf("%+v %+v", r.dev.log, st)
		}
	})
}

// Late packets are sent or dropped, those beyond the horizon refused; the descriptors come back in
// either case.
func TestDrops(t *testing.T) {
	for _, async := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &device{}
			if async {
				d.held = burst.New(rigDepth)
			}
			r := newRig(t, d, Options{SendAt: true, DropLate: true, Late: 2 * time.Millisecond, Horizon: time.Second})
			start := time.Now()
			for _, at := range []time.Duration{-2e6 - 1, -2e6, 5e6, 3e6, 2e6, time.Second, 2*time.Second + 1,
				2 * time.Second, 6e6, 1 << 62, 5e6} {
				r.add(100, start.Add(at))
			}
			r.send()
			time.Sleep(3 * time.Second) // virtual
			synctest.Wait()
			if async {
				r.complete()
			}
			r.done()
			var got []uint64
			for _, s := range r.dev.log {
				got = append(got, s.n)
			}
			// At 5 ms the third one leaves, the one for 3 ms just so, and the one for 2 ms no more.
			// What is behind the one for two seconds is late when its turn comes.
			want := []uint64{1, 2, 3, 5, 7}
			st := r.stats()
			if !slices.Equal(got, want) || st.Drops[engine.DropLate] != 4 || st.Drops[engine.DropRefused] != 2 ||
				st.TimedPackets != 5 {
				t.Errorf("async %v: sent %v, %+v", async, got, st)
			}
		})
	}
}

// The tokens of what a full device did not take are not lost, also where the device takes packets
// away.
func TestFullDevice(t *testing.T) {
	for _, async := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &device{room: 3, every: 500 * time.Microsecond}
			if async {
				d.held = burst.New(rigDepth)
			}
			r := newRig(t, d, Options{Rate: 8e6, Burst: 5000})
			start := time.Now()
			for range 7 {
				r.add(1000, time.Time{})
			}
			r.send()
			time.Sleep(time.Minute) // virtual
			synctest.Wait()
			if async {
				r.complete()
			}
			r.done()
			// Five packets would have tokens at once, of which the device takes three. Half a
			// millisecond later there are tokens for two and a half.
			want := []time.Duration{0, 0, 0, 5e5, 5e5, 1e6, 2e6}
			for i, s := range d.log {
				if got := s.at.Sub(start); got != want[i] {
					t.Errorf("async %v: packet %d left after %v, want %v", async, i, got, want[i])
				}
			}
			if len(d.log) != len(want) {
				t.Errorf("%d packets left", len(d.log))
			}
		})
	}
}

// A packet that the caller took out of the burst costs nothing, delays no other, and does not
// count.
func TestHole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &device{}, Options{SendAt: true, Rate: 8e6, Burst: 1000, Overhead: EthernetOverhead})
		start := time.Now()
		for _, at := range []time.Duration{0, time.Hour, 0} {
			r.add(1000-EthernetOverhead, start.Add(at))
		}
		other := burst.New(1)
		if !r.b.Take(other, 1) {
			t.Fatal("nothing taken")
		}
		r.send()
		other.Release()
		r.done()
		st := r.stats()
		if len(r.dev.log) != 2 || r.dev.log[1].at.Sub(start) != time.Millisecond || st.TimedPackets != 2 ||
			st.TooEarly != 0 {
			t.Errorf("%v, %+v", r.dev.log, st)
		}
	})
}

// slow is a clock that goes on by a millisecond with each look.
type slow struct{ now time.Time }

func (c *slow) Now() time.Time {
	c.now = c.now.Add(time.Millisecond)
	return c.now
}

// A long burst takes time, and what is due meanwhile leaves with it.
func TestLongBurst(t *testing.T) {
	p, err := New(&null{}, Options{SendAt: true, Clock: &slow{time.Unix(1e9, 0)}})
	if err != nil {
		t.Fatal(err)
	}
	b := burst.New(2 * run)
	src := burst.NewSource(nil, nil, nil)
	for i := range 2 * run {
		b.Builder().Add(src, burst.Segment{Handle: burst.NoHandle, Len: 1})
		if i >= run {
			b.SetTime(i, time.Unix(1e9, 0).Add(3*time.Millisecond).UnixNano()) // after New and two looks
		}
	}
	if next, _ := p.Transmit(b, 0, 2*run); next != 2*run {
		t.Errorf("%d packets left", next)
	}
}

// program is what TestProgram does: bursts of packets with pauses after them.
type program struct {
	o       Options
	room    int
	every   time.Duration
	packets [][]step
	pause   []time.Duration
}

type step struct {
	bytes int
	timed bool
	at    time.Duration // from the burst's Send
}

func drawProgram(t *rapid.T) program {
	p := program{o: Options{SendAt: rapid.Bool().Draw(t, "sendAt"), Overhead: rapid.IntRange(0, 50).Draw(t, "overhead"),
		DropLate: rapid.Bool().Draw(t, "dropLate"), Late: time.Duration(rapid.IntRange(0, 3e6).Draw(t, "late"))}}
	if rapid.Bool().Draw(t, "limited") {
		p.o.Rate, p.o.Burst = rapid.Uint64Range(1e6, 1e10).Draw(t, "rate"), rapid.IntRange(1, 10000).Draw(t, "burst")
	}
	if rapid.Bool().Draw(t, "spins") {
		p.o.Spin = 100 * time.Microsecond
	}
	p.room, p.every = rapid.IntRange(0, 9).Draw(t, "room"), time.Duration(rapid.IntRange(1, 1e6).Draw(t, "every"))
	for range rapid.IntRange(1, 5).Draw(t, "bursts") {
		p.packets = append(p.packets, rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
			return step{rapid.IntRange(8, slotSize).Draw(t, "bytes"), rapid.Bool().Draw(t, "timed"),
				time.Duration(rapid.IntRange(-5e6, 10e6).Draw(t, "time"))}
		}), 0, 80).Draw(t, "packets"))
		p.pause = append(p.pause, time.Duration(rapid.IntRange(0, 5e6).Draw(t, "pause")))
	}
	return p
}

// run runs the program in virtual time and says what is wrong.
func (p *program) run(t *testing.T) string {
	d := &device{room: p.room, every: p.every}
	r := newRig(t, d, p.o)
	times := map[uint64]time.Time{}
	for i, steps := range p.packets {
		for _, s := range steps {
			var at time.Time
			if s.timed {
				at = time.Now().Add(s.at)
				times[r.next] = at
			}
			r.add(s.bytes, at)
		}
		r.send()
		time.Sleep(p.pause[i]) // virtual
	}
	r.done()
	st := r.stats()
	if n := uint64(len(d.log)) + st.Drops.Total(); n != r.next || !p.o.DropLate && st.Drops.Total() > 0 ||
		st.TooEarly > 0 {
		return fmt.Sprintf("%d packets given, %d sent, %+v", r.next, len(d.log), st)
	}
	largest := p.o.Burst
	for i, s := range d.log {
		if i > 0 && s.n <= d.log[i-1].n {
			return fmt.Sprintf("packet %d after %d", s.n, d.log[i-1].n)
		}
		if at, ok := times[s.n]; ok && p.o.SendAt && (s.at.Before(at) || p.o.DropLate && s.at.Sub(at) > p.o.Late) {
			return fmt.Sprintf("packet %d left at %v, its time was %v", s.n, s.at, at)
		}
		largest = max(largest, s.bytes+p.o.Overhead)
	}
	for i := range d.log {
		bits := 0
		for _, s := range d.log[i:] {
			bits += 8 * (s.bytes + p.o.Overhead)
			// Numbers of this size are exact in floats but for the last few digits.
			if limit := float64(p.o.Rate)*s.at.Sub(d.log[i].at).Seconds() + float64(8*largest); p.o.Rate > 0 &&
				float64(bits) > limit+1e-3 {
				return fmt.Sprintf("%d bits in %v, at most %v", bits, s.at.Sub(d.log[i].at), limit)
			}
		}
	}
	return ""
}

// Any program: packets leave in order, none early, none lost, and no window has more than the rate
// allows.
func TestProgram(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawProgram(rt)
		wrong := ""
		synctest.Test(t, func(t *testing.T) { wrong = p.run(t) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// clock is one that the test sets.
type clock struct{ off atomic.Int64 }

func (c *clock) Now() time.Time { return time.Now().Round(0).Add(time.Duration(c.off.Load())) }

// Packets that wait follow a clock that is set.
func TestClockSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clock{}
		c.off.Store(-int64(time.Hour))
		r := newRig(t, &device{}, Options{SendAt: true, Clock: c})
		start := time.Now()
		r.add(100, start)
		r.send()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(r.dev.log) != 0 {
			t.Fatal("left an hour early")
		}
		c.off.Store(0)
		r.done()
		if d := r.dev.log[0].at.Sub(start); d > time.Minute+maxSleep {
			t.Errorf("left after %v", d)
		}
	})
}

func TestCloseWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &device{}, Options{SendAt: true, Rate: 1})
		r.add(100, time.Unix(1<<33, 0))
		r.send()
		r.out.Close()
		r.done()
		var drops engine.Drops
		if r.out.AddDrops(&drops); drops[engine.DropClosed] != 1 {
			t.Error(drops.String())
		}
	})
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Burst: -1}, {Overhead: -1}, {Overhead: 1 << 20}, {Late: -1}, {Horizon: -1},
		{Ahead: -1}, {Spin: -1}, {Spin: time.Second},
		{Rate: 1 << 63}, {Rate: 1, Burst: bucket.MaxBurst + 1}, {Kernel: newTxTime(Support{}), Clock: &clock{}}} {
		if _, err := New(&device{}, o); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := New(nil, Options{}); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
	if _, err := New(&device{}, Options{Rate: bucket.MaxRate}); err != nil {
		t.Error(err)
	}
}

func TestSub(t *testing.T) {
	const now = 1.7e18
	for _, c := range []struct {
		a    int64
		want time.Duration
	}{{now, 0}, {now + 5, 5}, {0, -now}, {-1, -now - 1}, {-1 << 63, -1 << 63}, {1<<63 - 1, 1<<63 - 1 - now}} {
		if got := sub(c.a, now); got != c.want {
			t.Errorf("%d - now = %d, want %d", c.a, got, c.want)
		}
	}
}
