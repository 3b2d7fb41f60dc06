package engine

import (
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/packet/burst"
)

// RxDevice is the receive half of a device: what an engine supplies for a receive queue. RxFront
// does the rest. The queue calls the methods one at a time, with its own lock held, and none after
// Stop; none of them waits.
type RxDevice interface {
	// Collect gives the device free memory, adds the packets that it has received to b, oldest
	// first, while b has room, and counts on the front what it drops. A packet that does not fit
	// into an empty b is dropped as DropTooLong. Packets for other queues of the port go to those
	// (RxFront.Bring). The error says why the device brings nothing more; it is the same at every
	// call from then on.
	Collect(b *burst.Burst) error
	// Watch asks for one Wake of w when Collect may have something to bring or to say.
	Watch(w *Waker) Armed
	// Stop ends reception and gives back everything that the queue has of the device and of its
	// pools, after it has counted (RxFront.Drop) what the device still held as dropped for that
	// reason. The engine's lock over queues (RxSet) is held.
	Stop(why Drop) error
}

// Armed is how a device answers Watch.
type Armed uint8

// The answers.
const (
	ArmedWake  Armed = iota // the device wakes the Waker
	ArmedReady              // there is something already: the device does not wake it
	// ArmedPoll says that the device cannot wake the owner now: it has no descriptor, or has no
	// free memory. The front wakes the owner after a pause (Retry), and the owner looks again.
	ArmedPoll
)

// RxDiscarder is an RxDevice that throws away what it has received without memory to receive it
// into. Of others the front collects packets and releases them.
type RxDiscarder interface {
	// Flush throws away what the device has received and returns the number of packets.
	Flush() int
}

// RxFinisher is an RxDevice that has something to do before the owner sees packets: it flushes an
// accelerator, say.
type RxFinisher interface {
	// Finish is called with the packets of b from that index on, which the owner gets next; another
	// queue of the port may have received them. With an error the owner does not get them: they are
	// dropped as DropDown, with what waits in the inbox. Collect returns that error from then on.
	Finish(b *burst.Burst, from int) error
}

// RxAccounter is an RxDevice whose hardware or kernel counts packets by itself.
type RxAccounter interface {
	// Account adds to the front's counts what was counted since the last call.
	Account()
}

// RxFront is the front half of a receive queue, the same for all engines, as TxFront is for
// transmit queues: identity, counts, packets that other queues of the port bring, waking, the order
// of closing. Engines embed it in the type that is their RxDevice, and call Start before anything
// else. It implements RxQueue but for Close, which is RxSet.Close.
//
// There are two locks. The queue's own is held by its owner's calls, by Close and by Stats, while
// the device works; the inbox has one of its own, under which nothing else is locked. So a device
// may hold a lock of its port in Collect and bring packets to other queues meanwhile.
type RxFront struct {
	spec     RxSpec
	dev      RxDevice
	finisher RxFinisher // dev, where it is one

	mu    sync.Mutex
	state rxState

	inbox struct {
		sync.Mutex
		packets *burst.Burst // nil until Bring is called
		one     *burst.Burst // of one packet, to drop the first that waits
		waker   *Waker       // of the owner, which sleeps as far as is known
		shut    bool

		room, segments int // of packets
	}
	waiting atomic.Int64 // packets in the inbox

	retry  Retry
	polled bool // retry is armed

	packets, bytes, polls, empty uint64 // with the queue's lock held
	copied, calls                atomic.Uint64
	slots                        []*RxSlots // count what they copy
	drops                        [NumDrops]atomic.Uint64
}

// rxState is where a receive queue is in its life.
type rxState uint8

const (
	rxIdle   rxState = iota // before Start
	rxOpen                  // it receives
	rxClosed                // the device is closed
)

// Start gives the front its parts. spec is checked (CheckRx), and its ID is the queue's.
func (f *RxFront) Start(spec RxSpec, dev RxDevice) {
	f.spec, f.dev, f.state = spec, dev, rxOpen
	f.finisher, _ = dev.(RxFinisher)
	f.Inbox(max(spec.Depth, 1), 2*max(spec.Depth, 1))
}

// Inbox sets how many packets and segments find room in the inbox; without it, as many packets as
// the queue's Depth, of two segments. It is called before the first Bring.
func (f *RxFront) Inbox(packets, segments int) { f.inbox.room, f.inbox.segments = packets, segments }

// ID implements RxQueue.
func (f *RxFront) ID() int { return f.spec.ID.Number() }

// Spec is what the queue was opened with.
func (f *RxFront) Spec() *RxSpec { return &f.spec }

// Drop counts n packets as dropped. Any goroutine may call it.
func (f *RxFront) Drop(why Drop, n uint64) {
	if n > 0 {
		f.drops[why].Add(n)
	}
}

// Copied counts bytes of packets that the process has copied on the way, Calls system calls. Any
// goroutine may call them.
func (f *RxFront) Copied(bytes int) { f.copied.Add(uint64(bytes)) }

// Calls counts system calls.
func (f *RxFront) Calls(n int) { f.calls.Add(uint64(n)) }

// Do calls fn with the queue's lock held: the device does nothing meanwhile. It is false, and fn is
// not called, when the queue is closed.
func (f *RxFront) Do(fn func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != rxOpen {
		return false
	}
	fn()
	return true
}

// Wake wakes the owner if it sleeps. Any goroutine may call it.
func (f *RxFront) Wake() {
	f.inbox.Lock()
	defer f.inbox.Unlock()
	f.wake()
}

func (f *RxFront) wake() {
	if w := f.inbox.waker; w != nil {
		f.inbox.waker = nil
		w.Wake()
	}
}

// Bring locks the inbox of a queue and returns its burst, to which the caller adds packets that
// another queue of the port, or the port, has received for this one, as many as there is room for
// (Inbox). Brought ends it. Bring returns nil, and Brought must not follow, when the queue is
// closed: the caller counts its packets as DropClosed.
func (f *RxFront) Bring() *burst.Burst {
	f.inbox.Lock()
	if f.inbox.shut {
		f.inbox.Unlock()
		return nil
	}
	if f.inbox.packets == nil {
		f.inbox.packets, f.inbox.one = burst.NewSegmented(f.inbox.room, f.inbox.segments),
			burst.NewSegmented(1, burst.MaxSegments)
	}
	return f.inbox.packets
}

// Brought unlocks the inbox, and wakes the owner if the caller has added packets.
func (f *RxFront) Brought() {
	if n := int64(f.inbox.packets.Len()); n != f.waiting.Load() {
		f.waiting.Store(n)
		f.wake()
	}
	f.inbox.Unlock()
}

// Waiting is the number of packets in the inbox. They are older than what the device has: Collect
// brings nothing to b while there are some.
func (f *RxFront) Waiting() int { return int(f.waiting.Load()) }

// TryRecv implements RxQueue.
func (f *RxFront) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, ErrNil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.polls++
	if f.state != rxOpen {
		f.empty++
		return 0, ErrClosed
	}
	had := b.Len()
	err := f.collect(b)
	n := b.Len() - had
	if n == 0 {
		f.empty++
		if f.Waiting() > 0 {
			err = nil
		}
		return 0, err
	}
	if f.finisher != nil {
		if err := f.finisher.Finish(b, had); err != nil {
			b.Truncate(had)
			f.Drop(DropDown, uint64(n+f.empties()))
			f.empty++
			return 0, err
		}
	}
	f.packets += uint64(n)
	f.bytes += uint64(b.Builder().LenFrom(had))
	return n, nil
}

// collect adds to b what waits in the inbox, and then what the device has.
func (f *RxFront) collect(b *burst.Burst) (err error) {
	had := b.Len()
	if f.Waiting() > 0 {
		f.take(b)
	}
	if b.Room() > 0 && f.Waiting() == 0 {
		err = f.dev.Collect(b)
		if b.Len() == had && f.Waiting() > 0 {
			// the device had no room for them, or another queue has brought them meanwhile
			f.take(b)
		}
	}
	return err
}

// take moves packets of the inbox to b.
func (f *RxFront) take(b *burst.Burst) {
	f.inbox.Lock()
	defer f.inbox.Unlock()
	if f.inbox.packets == nil {
		return
	}
	_, dropped := MoveKept(b, f.inbox.packets, f.inbox.one)
	f.Drop(DropTooLong, uint64(dropped))
	f.waiting.Store(int64(f.inbox.packets.Len()))
}

// Arm implements RxQueue.
func (f *RxFront) Arm(w *Waker) (ready bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.polled {
		f.polled = false
		f.retry.Stop()
	}
	f.setWaker(w)
	armed := ArmedReady
	if f.state == rxOpen && f.Waiting() == 0 {
		armed = f.dev.Watch(w)
	}
	if armed == ArmedReady {
		f.setWaker(nil)
		return true
	}
	if armed == ArmedPoll {
		f.polled = true
		f.retry.Arm(w)
	}
	return false
}

func (f *RxFront) setWaker(w *Waker) {
	f.inbox.Lock()
	defer f.inbox.Unlock()
	f.inbox.waker = w
}

// discardBursts bounds Discard: more keeps coming.
const discardBursts = 1 << 10

// Discard implements RxQueue.
func (f *RxFront) Discard() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != rxOpen {
		return 0, ErrClosed
	}
	n := f.discard()
	f.Drop(DropFlushed, uint64(n))
	return n, nil
}

func (f *RxFront) discard() (n int) {
	n = f.empties()
	if d, ok := f.dev.(RxDiscarder); ok {
		return n + d.Flush()
	}
	b := burst.NewSegmented(256, 512)
	for range discardBursts {
		_ = f.collect(b)
		if b.Len() == 0 {
			break
		}
		n += b.Len()
		b.Release()
	}
	return n
}

// empties releases the packets of the inbox and returns their number.
func (f *RxFront) empties() (n int) {
	f.inbox.Lock()
	defer f.inbox.Unlock()
	if f.inbox.packets != nil {
		n = f.inbox.packets.Len()
		f.inbox.packets.Release()
		f.waiting.Store(0)
	}
	return n
}

// Stats implements RxQueue.
func (f *RxFront) Stats(s *RxStats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a, ok := f.dev.(RxAccounter); ok && f.state == rxOpen {
		a.Account()
	}
	f.Counts(s)
}

// counted is Counts with the queue's lock.
func (f *RxFront) counted(s *RxStats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Counts(s)
}

// Counts is Stats as it was counted last, for an engine that holds the queue's lock (Do).
func (f *RxFront) Counts(s *RxStats) {
	*s = RxStats{Packets: f.packets, Bytes: f.bytes, Copied: f.copied.Load(), Polls: f.polls, Empty: f.empty,
		Calls: f.calls.Load()}
	for _, x := range f.slots {
		s.Copied += x.copied.Load()
	}
	for i := range f.drops {
		s.Drops[i] = f.drops[i].Load()
	}
}

// Shut closes the queue: its device, which counts what it still holds as DropClosed, and its inbox.
// The owner wakes. It is for engines, whose RxSet calls it when a queue is closed; a second call
// does nothing.
func (f *RxFront) Shut() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != rxOpen {
		return nil
	}
	if a, ok := f.dev.(RxAccounter); ok {
		a.Account()
	}
	f.inbox.Lock()
	f.inbox.shut = true
	f.inbox.Unlock()
	err := f.dev.Stop(DropClosed)
	f.Drop(DropClosed, uint64(f.empties()))
	f.state = rxClosed
	f.retry.Stop()
	f.Wake()
	return err
}
