package pace

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
)

// Support says whether the kernel holds packets of a device until their time.
type Support struct {
	Device string
	Qdisc  string // which does: "etf" or "fq", "" for none
	Reason string // why none does, and how to get one
	// Delta is the time before a packet's time at which etf gives it to the driver. The times that
	// are given to the kernel are later by as much, so that nothing leaves early: etf sends within
	// Delta after the packet's own time, or drops.
	Delta time.Duration
	// Horizon is how far ahead times may be, 0 for any.
	Horizon time.Duration

	clock int32
}

// Probe looks at the qdiscs of a network device in the calling thread's network namespace. The
// device "" is that of a socket that may send through any.
func Probe(device string) Support {
	s := Support{Device: device}
	if device == "" {
		s.Reason = "the socket is not bound to a device, so its qdisc is not known: bind it to one"
		return s
	}
	qs, err := sys.DeviceQdiscs(device)
	if err != nil {
		s.Reason = err.Error()
		return s
	}
	return support(device, qs)
}

// support judges the qdiscs of a device.
func support(device string, qs []sys.Qdisc) Support {
	s := Support{Device: device}
	fix := fmt.Sprintf("(tc qdisc replace dev %s root fq)", device)
	var root *sys.Qdisc
	for i := range qs {
		if qs[i].Parent == sys.QdiscRoot {
			root = &qs[i]
		}
	}
	if root == nil {
		s.Reason = fmt.Sprintf("%s has no qdisc that holds packets until their time %s", device, fix)
		return s
	}
	// A device with several queues has a root for all and a qdisc for each; every one has to wait.
	leaves := []*sys.Qdisc{root}
	switch root.Kind {
	case "mq", "mqprio", "taprio":
		leaves = nil
		for i := range qs {
			if qs[i].Parent>>16 == root.Handle>>16 && qs[i].Parent != sys.QdiscRoot {
				leaves = append(leaves, &qs[i])
			}
		}
		if len(leaves) == 0 {
			leaves = []*sys.Qdisc{root}
		}
	}
	for i, q := range leaves {
		switch {
		case q.Kind != "fq" && q.Kind != "etf":
			s.Reason = fmt.Sprintf("qdisc %s of %s does not hold packets until their time %s", q.Kind, device, fix)
		case q.Kind != leaves[0].Kind || q.Clock != leaves[0].Clock || q.Delta != leaves[0].Delta ||
			q.Offload != leaves[0].Offload:
			s.Reason = fmt.Sprintf("the queues of %s have different qdiscs %s", device, fix)
		case q.Deadline:
			s.Reason = fmt.Sprintf("qdisc etf of %s is in deadline mode, where times are the latest, not the "+
				"earliest: replace it without deadline_mode", device)
		case q.Kind == "etf" && !q.Offload && q.Delta <= 0:
			s.Reason = fmt.Sprintf("qdisc etf of %s has delta %d and drops all packets: replace it with a delta of "+
				"more than its timer is late, such as 300000 ns", device, q.Delta)
		}
		if s.Reason != "" {
			s.Horizon = 0
			return s
		}
		if q.Horizon > 0 && (i == 0 || s.Horizon == 0 || q.Horizon < s.Horizon) {
			s.Horizon = q.Horizon
		}
	}
	s.Qdisc, s.clock = leaves[0].Kind, leaves[0].Clock
	if !leaves[0].Offload {
		s.Delta = leaves[0].Delta // otherwise the NIC waits for the exact time
	}
	return s
}

// In says who waits: "qdisc etf", "qdisc fq" or "software".
func (s *Support) In() string {
	if s.Qdisc == "" {
		return "software"
	}
	return "qdisc " + s.Qdisc
}

// Describe notes in c what a queue with a Pacer can do: rates, and sending at a given time, in the
// qdisc or in software (In).
func (s *Support) Describe(c *engine.Capabilities) {
	c.Pacing, c.SendAt, c.SendAtIn = true, true, s.In()
	if s.Reason != "" {
		c.Notes = append(c.Notes, "sending at a given time is done in software: "+s.Reason)
	}
}

// Enable sets a socket up to carry times and returns the TxTime that makes them. Where no qdisc
// waits the error says why, and wraps engine.ErrUnsupported.
func (s *Support) Enable(fd int) (*TxTime, error) {
	if s.Qdisc == "" {
		return nil, fmt.Errorf("pace: %s: %w", s.Reason, engine.ErrUnsupported)
	}
	if err := sys.SetTxTime(fd, s.clock); err != nil {
		return nil, fmt.Errorf("pace: qdisc %s of %s: %w", s.Qdisc, s.Device, err)
	}
	return newTxTime(*s), nil
}

// ControlSize is the number of bytes that TxTime.Control writes at most.
const ControlSize = sys.TxTimeControl

// offsetAge is how old the difference of two clocks may get: one of them may be set.
const offsetAge = 100 * time.Millisecond

// TxTime makes the times that the kernel gets with packets of one socket. The goroutine in the
// Pacer's Transmit calls Control, and any goroutine ReadReports and Reports.
type TxTime struct {
	support Support

	now, offset int64     // CLOCK_REALTIME at the begin of Transmit, and the qdisc's clock minus that
	read        time.Time // when offset was measured
	last        int64     // the latest time given, by the qdisc's clock

	reading         sync.Mutex
	missed, invalid atomic.Uint64
}

func newTxTime(s Support) *TxTime { return &TxTime{support: s} }

// begin notes the time.
func (t *TxTime) begin(now time.Time) {
	t.now = now.UnixNano()
	if age := now.Sub(t.read); age < 0 || age > offsetAge {
		t.offset, t.read = clockOffset(t.support.clock), now
	}
}

// clockOffset is a clock's time minus CLOCK_REALTIME: the best of a few measurements, in each of
// which one is read before and after the other.
func clockOffset(clock int32) (offset int64) {
	best := int64(1 << 62)
	for range 4 {
		before := sys.ClockNow(sys.ClockRealtime)
		c := sys.ClockNow(clock)
		after := sys.ClockNow(sys.ClockRealtime)
		if d := after - before; d >= 0 && d < best {
			best, offset = d, c-before-d/2
		}
	}
	return offset
}

// Control writes the control message (SCM_TXTIME) that makes the kernel send the packet at ns,
// nanoseconds since 1970, or without a time (ok false, as from burst.Burst.Time) as soon as
// possible, into dst, which has ControlSize bytes, and returns its length, 0 for a packet that
// needs none. A Sink calls it for each message that it sends, in order, from within Transmit;
// packets that it joins to one message must have the same time. It may call it again for packets
// that the kernel has not taken. No packet gets an earlier time than the one before, so that they
// leave in order. It does not allocate.
func (t *TxTime) Control(dst []byte, ns int64, ok bool) int {
	at := t.next(ns, ok)
	if at == 0 {
		return 0
	}
	sys.PutTxTime(dst, at)
	return ControlSize
}

// next is the time that the next packet gets by the qdisc's clock, 0 for none.
func (t *TxTime) next(ns int64, ok bool) int64 {
	at := t.now
	if ok && ns > at {
		at = ns
	}
	at += t.offset + int64(t.support.Delta)
	at = max(at, t.last)
	if at <= t.now+t.offset && t.support.Qdisc == "fq" {
		return 0 // now; etf refuses packets without a time
	}
	t.last = at
	return at
}

// ReadReports takes what is in the socket's error queue and counts the packets that were not sent
// because of their time. Call it when the socket has an error (EPOLLERR), and before reading
// statistics. Reports of other origin in the queue are lost.
func (t *TxTime) ReadReports(fd int) {
	t.reading.Lock()
	defer t.reading.Unlock()
	for {
		r, _, e := sys.ReadTxTimeReport(fd)
		switch {
		case e == sys.EINTR:
		case e != 0:
			return
		case r == sys.TxTimeMissed:
			t.missed.Add(1)
		case r == sys.TxTimeInvalid:
			t.invalid.Add(1)
		}
	}
}

// Reports are the numbers of packets that ReadReports found: missed are those whose time passed in
// the qdisc, invalid those whose time the qdisc refused.
func (t *TxTime) Reports() (missed, invalid uint64) { return t.missed.Load(), t.invalid.Load() }
