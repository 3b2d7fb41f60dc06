package pace

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/bucket"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
)

const (
	// EthernetOverhead is what a frame takes on an Ethernet link beyond its bytes in memory:
	// preamble and start delimiter (8), frame check sequence (4) and the gap between frames (12).
	// See IEEE 802.3, clause 4.2.
	EthernetOverhead = 24

	// slack is the time that the default burst covers, and slackBytes what it holds on top: a
	// sleeper wakes up too late, by a millisecond where Go's runtime waits in epoll, whose limits
	// are in milliseconds, and by more on a busy machine.
	slack      = 4 * time.Millisecond
	slackBytes = 2048

	// maxSleep is the longest sleep, so that a clock that is set is noticed.
	maxSleep = time.Second
	// maxSpin bounds Options.Spin, because a Sink must not keep its caller for long.
	maxSpin = 2 * time.Millisecond
	// stillLooks is the number of looks at a clock after which it is taken to stand still, as a
	// virtual one does.
	stillLooks = 64
	// hole is the cost of a packet that was taken out of the burst.
	hole = -1
	// run is the number of packets that are passed on together at most.
	run = 64
	// defaultAhead is how long before its time the kernel gets a packet: more than a timer is late.
	defaultAhead = 50 * time.Millisecond
)

// Options say how packets leave.
type Options struct {
	// Rate is in bits per second of packets as they lie in memory, plus Overhead for each; 0 for no
	// limit.
	Rate uint64
	// Burst is the number of bytes that may leave at once after a rest. 0 is what leaves in 4 ms at
	// Rate, and 2048 more: less makes the traffic smoother, and loses rate where the process wakes
	// up later than that.
	Burst int
	// Overhead is added to each packet, in bytes: EthernetOverhead to limit the load of a link.
	Overhead int

	// SendAt says that packets with a time leave no earlier. Without it times are ignored.
	SendAt bool
	// DropLate drops packets whose time has passed by more than Late, as engine.DropLate, instead
	// of sending them.
	DropLate bool
	Late     time.Duration
	// Horizon refuses packets whose time is further ahead, as engine.DropRefused: they would keep
	// all behind them. 0 is no limit.
	Horizon time.Duration
	// Spin is how long before the time to leave the Outbox stops sleeping and looks at the clock
	// instead, 0 to 2 ms. What is below 1.2 ms helps little, because a sleeper may be as late. A
	// Send may take that long then.
	Spin time.Duration
	// Kernel hands packets to the kernel with their times, Ahead of them (0 for 50 ms), and never
	// later than half of the horizon of the qdisc. Without it this package waits.
	Kernel *TxTime
	// Device hands packets with a time to the inner sink Ahead of it: the device holds them.
	Device bool
	Ahead  time.Duration

	// Clock is the clock of packet times, nil for time.Now.
	Clock engine.Clock
	// Complete is engine.Outbox.Complete where the inner sink is async; it is called for packets
	// that are dropped here.
	Complete func(n int)
}

// Of takes the Options of a transmit queue, which are spec.Options or the zero value, with the
// queue's Rate and SendAt, and clears spec.Options. paced says whether the queue needs a Pacer.
// Options of another type are engine.ErrInvalid.
func Of(spec *engine.TxSpec) (o Options, paced bool, err error) {
	switch x := spec.Options.(type) {
	case nil:
	case Options:
		o = x
	default:
		return o, false, fmt.Errorf("options of type %T: expected pace.Options: %w", x, engine.ErrInvalid)
	}
	o.Rate, o.SendAt, spec.Options = spec.Rate, spec.SendAt, nil
	return o, o.Rate > 0 || o.SendAt, nil
}

// Pacer is an engine.Sink that lets packets through to another one when they may leave.
type Pacer struct {
	inner engine.Sink
	o     Options
	ahead time.Duration

	// What follows belongs to the goroutine in Transmit.
	bucket bucket.Bucket
	start  time.Time   // the bucket's time 0
	rests  atomic.Bool // the bucket does: the device keeps the rate
	cost   [run]int    // of packets in hand; a device that takes a packet may leave no trace of its length

	drops   engine.DropCounters
	timed   metrics.Counter
	early   metrics.Counter
	lateSum metrics.Counter
	lateMax atomic.Uint64
}

// New makes a Pacer in front of a device. Options that make no sense are an error that wraps
// engine.ErrInvalid.
func New(inner engine.Sink, o Options) (*Pacer, error) {
	switch {
	case inner == nil:
		return nil, fmt.Errorf("pace: no sink: expected the device to send with: %w", engine.ErrInvalid)
	case o.Burst < 0 || o.Overhead < 0 || o.Overhead > 1<<16:
		return nil, fmt.Errorf("pace: burst of %d bytes, overhead of %d: expected 0 or more, and at most 65536 of "+
			"overhead: %w", o.Burst, o.Overhead, engine.ErrInvalid)
	case o.Kernel != nil && o.Clock != nil:
		return nil, fmt.Errorf("pace: a clock and a qdisc: expected no clock, since the kernel goes by the "+
			"machine's: %w", engine.ErrInvalid)
	case o.Late < 0 || o.Horizon < 0 || o.Ahead < 0 || o.Spin < 0 || o.Spin > maxSpin:
		return nil, fmt.Errorf("pace: late %v, horizon %v, ahead %v, spin %v: expected 0 or more, and at most %v of "+
			"spin: %w", o.Late, o.Horizon, o.Ahead, o.Spin, maxSpin, engine.ErrInvalid)
	}
	p := &Pacer{inner: inner, o: o}
	p.start = p.now()
	if o.Rate > 0 {
		if o.Burst == 0 {
			o.Burst = int(min(o.Rate/8*uint64(slack)/uint64(time.Second), bucket.MaxBurst/2)) + slackBytes
		}
		var err error
		if p.bucket, err = bucket.New(o.Rate, o.Burst, 0); err != nil {
			return nil, fmt.Errorf("pace: %w: %w", err, engine.ErrInvalid)
		}
	}
	if o.Kernel != nil || o.Device {
		if p.ahead = o.Ahead; p.ahead == 0 {
			p.ahead = defaultAhead
		}
	}
	if o.Kernel != nil {
		if h := o.Kernel.support.Horizon; h > 0 {
			p.ahead = min(p.ahead, h/2)
		}
	}
	return p, nil
}

// LeaveRate says whether the device keeps the rate from now on, so that the Pacer does not. Any
// goroutine may call it.
func (p *Pacer) LeaveRate(device bool) { p.rests.Store(device) }

func (p *Pacer) now() time.Time {
	if p.o.Clock != nil {
		return p.o.Clock.Now()
	}
	return time.Now()
}

// Transmit implements engine.Sink. It does not allocate.
func (p *Pacer) Transmit(b *burst.Burst, from, to int) (next int, again time.Time) {
	now := p.now()
	if p.o.Kernel != nil {
		p.o.Kernel.begin(now)
	}
	for from < to {
		bucket := p.bucket
		end, wait, drop := p.admit(b, from, to, now)
		if end > from {
			last := p.last()
			next, again := p.inner.Transmit(b, from, end)
			p.sent(b, from, next)
			if next < end {
				p.bucket = bucket
				p.takeBack(b, from, next, now, last)
				return next, again
			}
			from = end
		}
		switch {
		case drop != engine.NumDrops:
			p.drops.Inc(drop)
			if p.o.Complete != nil {
				p.o.Complete(1)
			}
			from = end + 1
		case wait > 0:
			if wait > p.o.Spin || !p.spin(&now, wait) {
				return from, p.again(now, wait)
			}
		case from < to:
			now = p.now()
		}
	}
	return to, time.Time{}
}

// admit spends the tokens of packets from on that may leave now, up to run of them. The one at
// which it ends must wait, or be dropped for a reason other than NumDrops.
func (p *Pacer) admit(b *burst.Burst, from, to int, now time.Time) (end int, wait time.Duration, drop engine.Drop) {
	real, mono := now.UnixNano(), int64(now.Sub(p.start))
	to = min(to, from+run)
	for i := from; i < to; i++ {
		p.cost[i-from] = 0
		if b.Segments(i) == 0 {
			p.cost[i-from] = hole
			continue
		}
		if at, ok := b.Time(i); ok && p.o.SendAt {
			switch d := sub(at, real); {
			case p.o.Horizon > 0 && d > p.o.Horizon:
				return i, 0, engine.DropRefused
			case d > p.ahead:
				return i, d - p.ahead, engine.NumDrops
			case p.o.DropLate && d < -p.o.Late:
				return i, 0, engine.DropLate
			}
		}
		if p.o.Rate > 0 && !p.rests.Load() {
			n := b.PacketLen(i) + p.o.Overhead
			if at := p.bucket.Earliest(n); at > mono {
				return i, time.Duration(at - mono), engine.NumDrops
			}
			p.bucket.Spend(mono, n)
			p.cost[i-from] = n
		}
	}
	return to, 0, engine.NumDrops
}

// sub is a-b for b that is a time of today, and any a.
func sub(a, b int64) time.Duration {
	if d := a - b; a >= 0 || d < 0 {
		return time.Duration(d)
	}
	return -1 << 63
}

// last is the latest time that the kernel was given.
func (p *Pacer) last() int64 {
	if p.o.Kernel == nil {
		return 0
	}
	return p.o.Kernel.last
}

// takeBack brings tokens and times to where they are when only packets from to to-1 are taken, from
// how they were before.
func (p *Pacer) takeBack(b *burst.Burst, from, to int, now time.Time, last int64) {
	mono := int64(now.Sub(p.start))
	if p.o.Kernel != nil {
		p.o.Kernel.last = last
	}
	for i := from; i < to; i++ {
		n := p.cost[i-from]
		if n == hole {
			continue
		}
		if n > 0 {
			p.bucket.Spend(mono, n)
		}
		if p.o.Kernel != nil {
			p.o.Kernel.next(b.Time(i))
		}
	}
}

// sent measures how late packets were that the device has taken.
func (p *Pacer) sent(b *burst.Burst, from, to int) {
	if !p.o.SendAt {
		return
	}
	var now int64
	for i := from; i < to; i++ {
		at, ok := b.Time(i)
		if !ok || p.cost[i-from] == hole {
			continue
		}
		p.timed.Inc()
		if p.o.Kernel != nil || p.o.Device {
			continue // it is they who wait
		}
		if now == 0 {
			now = p.now().UnixNano()
		}
		late := sub(now, at)
		if late < 0 {
			p.early.Inc()
			continue
		}
		p.lateSum.Add(uint64(late))
		if uint64(late) > p.lateMax.Load() {
			p.lateMax.Store(uint64(late)) // no other goroutine writes it
		}
	}
}

// again is when to try again after a wait by the clock, by the clock of timers.
func (p *Pacer) again(now time.Time, wait time.Duration) time.Time {
	if wait > p.o.Spin {
		wait -= p.o.Spin
	}
	if p.o.Clock != nil {
		now = time.Now()
	}
	return now.Add(min(wait, maxSleep))
}

// spin looks at the clock until the wait is over, and moves now on. It reports false where the
// clock stands still.
func (p *Pacer) spin(now *time.Time, wait time.Duration) bool {
	until := now.Add(wait)
	for still := 0; still < stillLooks; {
		t := p.now()
		if !t.Before(until) {
			*now = t
			return true
		}
		if still++; t.After(*now) {
			*now, still = t, 0
		}
		runtime.Gosched()
	}
	return false
}

// AddStats adds to s what the Pacer knows: drops, timed packets and how late they left. Packets
// that the kernel reported as not sent are drops, and no longer among s.Packets; the kernel does
// not report how late the packets that it holds leave. Any goroutine may call it. No Pacer adds
// nothing.
func (p *Pacer) AddStats(s *engine.TxStats) {
	if p == nil {
		return
	}
	p.drops.AddTo(&s.Drops)
	s.TimedPackets += p.timed.Load()
	s.TooEarly += p.early.Load()
	s.LateMax = max(s.LateMax, p.lateMax.Load())
	s.LateSum += p.lateSum.Load()
	if p.o.Kernel != nil {
		missed, invalid := p.o.Kernel.Reports()
		s.Drops[engine.DropLate] += missed
		s.Drops[engine.DropRefused] += invalid
		s.Packets -= min(s.Packets, missed+invalid)
	}
}
