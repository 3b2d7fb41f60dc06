package engine

import (
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// toyPort is the receive half of a port whose device is a list of numbers, each for a queue. All
// queues take from the list: numbers for others they bring to those.
type toyPort struct {
	rx RxSet[*toyRx]

	mu   sync.Mutex
	list []toyPacket
	lost int // for queues that are not there
}

type toyPacket struct {
	to int
	n  uint64
}

// toyRx is a receive queue, and its device.
type toyRx struct {
	RxFront
	port            *toyPort
	direct, brought *RxSlots
	answer          Armed // of Watch, where the list is empty
	err             error // of Collect, where it is empty
	watched         int
	own, others     [8]byte // packets on their way into slots
}

// toyMost is the number of queues.
const toyMost = 3

func (p *toyPort) add(spec RxSpec, device func(*toyRx) RxDevice) (*toyRx, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	if err := p.rx.Admit(&spec, &Capabilities{RxQueues: toyMost, Memory: []mem.Kind{mem.Host}}); err != nil {
		return nil, err
	}
	q := &toyRx{port: p}
	q.Start(spec, device(q))
	q.direct, q.brought = NewRxSlots(&q.RxFront), NewRxSlots(&q.RxFront)
	p.rx.Add(q)
	return q, nil
}

func plainToy(q *toyRx) RxDevice { return q }

func newToy(t testing.TB, p *toyPort, spec RxSpec, device func(*toyRx) RxDevice) *toyRx {
	t.Helper()
	if spec.Pools == nil {
		spec.Pools = []*mem.Pool{newPool(t, 256)}
	}
	q, err := p.add(spec, device)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q
}

// arrive puts numbers for a queue on the list, and wakes all queues.
func (p *toyPort) arrive(to int, numbers ...uint64) {
	p.mu.Lock()
	for _, n := range numbers {
		p.list = append(p.list, toyPacket{to, n})
	}
	p.mu.Unlock()
	for _, q := range p.rx.Live() {
		q.Wake()
	}
}

func (p *toyPort) listed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.list)
}

// Collect implements RxDevice.
func (q *toyRx) Collect(b *burst.Burst) error {
	p := q.port
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.list) > 0 && b.Room() > 0 {
		x := p.list[0]
		switch to := p.rx.Find(x.to); {
		case to == nil:
			p.lost++
		case to != q:
			to.bring(x.n)
		case q.Waiting() > 0: // brought by the owner of another queue meanwhile: older
			return nil
		default:
			if q.direct.Put(b, binary.LittleEndian.AppendUint64(q.own[:0], x.n), false) == NoRoom {
				return nil
			}
		}
		p.list = p.list[1:]
	}
	if len(p.list) == 0 {
		return q.err
	}
	return nil
}

func (q *toyRx) bring(n uint64) {
	b := q.Bring()
	if b == nil {
		q.Drop(DropClosed, 1)
		return
	}
	if q.brought.Put(b, binary.LittleEndian.AppendUint64(q.others[:0], n), false) == NoRoom {
		q.Drop(DropQueueFull, 1)
	}
	q.Brought()
}

// Watch implements RxDevice. A queue is woken by arrive.
func (q *toyRx) Watch(*Waker) Armed {
	q.watched++
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	if len(q.port.list) > 0 {
		return ArmedReady
	}
	return q.answer
}

// Stop implements RxDevice: what is on the list is for the queues that remain.
func (q *toyRx) Stop(why Drop) error {
	q.port.mu.Lock()
	defer q.port.mu.Unlock()
	if len(q.port.rx.Live()) == 0 {
		q.Drop(why, uint64(len(q.port.list)))
		q.port.list = nil
	}
	q.direct.Close()
	q.brought.Close()
	return q.err
}

// Close implements RxQueue.
func (q *toyRx) Close() error { return q.port.rx.Close(q) }

// flushingToy is a device that discards and counts by itself.
type flushingToy struct {
	*toyRx
	kernel, accounts int
}

func (d *flushingToy) Flush() int {
	d.port.mu.Lock()
	defer d.port.mu.Unlock()
	n := len(d.port.list)
	d.port.list = nil
	return n
}

func (d *flushingToy) Account() {
	d.accounts++
	d.Drop(DropKernel, uint64(d.kernel))
	d.kernel = 0
}

func stats(q RxQueue) (s RxStats) {
	q.Stats(&s)
	return s
}

// recv demands that TryRecv adds these numbers.
func recv(t testing.TB, q RxQueue, b *burst.Burst, want ...uint64) {
	t.Helper()
	n, err := q.TryRecv(b)
	if got := numbers(b); n != len(want) || err != nil || !slices.Equal(got, want) {
		t.Fatalf("%d packets, %v, %v: expected %v", n, got, err, want)
	}
	b.Release()
}

// A queue from its beginning to behind its end.
func TestRxFrontLife(t *testing.T) {
	p := new(toyPort)
	pool := newPool(t, 64)
	q := newToy(t, p, RxSpec{ID: Queue(1), Pools: []*mem.Pool{pool}}, plainToy)
	b := burst.New(4)
	if _, err := q.TryRecv(nil); !errors.Is(err, ErrNil) {
		t.Error(err)
	}
	recv(t, q, b)
	p.arrive(1, 1, 2, 3, 4, 5)
	recv(t, q, b, 1, 2, 3, 4)
	p.arrive(0, 9)
	recv(t, q, b, 5)
	if s := stats(q); q.ID() != 1 || s.Packets != 5 || s.Bytes != 40 || s.Copied != 40 || s.Polls != 3 ||
		s.Empty != 1 || s.Drops.Total() != 0 || p.lost != 1 {
		t.Errorf("%+v, %d lost", s, p.lost)
	}
	if ran := false; !q.Do(func() { ran = true }) || !ran {
		t.Error("Do of an open queue")
	}
	w := NewWaker()
	if q.Arm(w) {
		t.Error("ready where nothing is")
	}
	p.arrive(1, 6, 7)
	<-w.C()
	if q.Arm(w) != true {
		t.Error("not ready where packets are")
	}
	if err := q.Close(); err != nil || pool.Stats().InUse != 0 {
		t.Fatal(err, pool.Stats())
	}
	for range 2 {
		if n, err := q.TryRecv(b); n != 0 || !errors.Is(err, ErrClosed) {
			t.Error(n, err)
		}
		if _, err := q.Discard(); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if !q.Arm(w) || q.Bring() != nil || q.Do(func() { t.Error("called") }) {
			t.Error("a closed queue has something to say, takes nothing, and does nothing")
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	if s := stats(q); s.Packets != 5 || s.Drops[DropClosed] != 2 || s.Drops.Total() != 2 {
		t.Errorf("%+v", s)
	}
}

// An error comes behind the packets, and then each time; a failed Close says so once.
func TestRxFrontError(t *testing.T) {
	p := new(toyPort)
	q, b := newToy(t, p, RxSpec{}, plainToy), burst.New(2)
	q.err = ErrDown
	p.arrive(0, 1, 2, 3)
	recv(t, q, b, 1, 2)
	recv(t, q, b, 3)
	q.bring(4)
	recv(t, q, b, 4)
	for range 2 {
		if n, err := q.TryRecv(b); n != 0 || !errors.Is(err, ErrDown) {
			t.Error(n, err)
		}
	}
	if err := q.Close(); !errors.Is(err, ErrDown) {
		t.Error(err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// What the device answers becomes what Arm says.
func TestRxFrontArm(t *testing.T) {
	p := new(toyPort)
	q := newToy(t, p, RxSpec{}, plainToy)
	old, w := NewWaker(), NewWaker()
	woken := func(w *Waker) bool {
		select {
		case <-w.C():
			return true
		default:
			return false
		}
	}
	if q.Arm(old) || q.Arm(w) {
		t.Fatal("ready where nothing is")
	}
	q.Wake()
	if !woken(w) || woken(old) {
		t.Error("the Waker that was given last is not the one that is woken")
	}
	q.Wake()
	if woken(w) {
		t.Error("one Arm, two Wakes")
	}
	q.answer = ArmedReady
	if !q.Arm(w) {
		t.Error("not ready although the device is")
	}
	if q.Wake(); woken(w) {
		t.Error("a Wake after Arm said that there is something")
	}
	q.answer = ArmedPoll
	if q.Arm(w) {
		t.Error("ready, though the device only cannot wake")
	}
	<-w.C() // by Retry
	// Another Arm ends it.
	q.Arm(old)
	q.answer = ArmedWake
	if q.Arm(w) || q.retry.waker != nil {
		t.Error("Retry still wakes the Waker of an Arm that was replaced")
	}
	looked := q.watched
	q.bring(1)
	if !woken(w) || !q.Arm(w) || q.watched != looked {
		t.Error("packets of other queues wake the owner, and are there without a look at the device")
	}
	if err := q.Close(); err != nil || !q.Arm(w) {
		t.Error(err)
	}
	// Close wakes.
	q = newToy(t, p, RxSpec{}, plainToy)
	if q.Arm(w) {
		t.Error("ready")
	}
	q.Close()
	if !woken(w) {
		t.Error("Close wakes nobody")
	}
}

// The packets of the inbox are older than what the device has, and wait up to the queue's Depth.
func TestRxFrontInbox(t *testing.T) {
	p := new(toyPort)
	first, second := newToy(t, p, RxSpec{}, plainToy), newToy(t, p, RxSpec{ID: Queue(1), Depth: 4}, plainToy)
	b := burst.New(8)
	p.arrive(1, 1, 2, 3, 4, 5, 6)
	p.arrive(0, 7)
	recv(t, first, b, 7)
	p.arrive(1, 8)
	if second.Waiting() != 4 {
		t.Fatalf("%d packets wait", second.Waiting())
	}
	one := burst.New(1)
	recv(t, second, one, 1)
	recv(t, second, b, 2, 3, 4, 8)
	if s := stats(second); s.Drops[DropQueueFull] != 2 || s.Drops.Total() != 2 || s.Packets != 5 {
		t.Errorf("%+v", s)
	}
	// A packet of more segments than an empty burst has room for holds up none.
	heads := newPool(t, 16)
	third := newToy(t, p, RxSpec{ID: Queue(2), Pools: []*mem.Pool{heads}}, plainToy)
	x := third.Bring()
	var hs [2]mem.Handle
	heads.GetBatch(hs[:])
	src := burst.PoolSource(heads)
	x.Builder().Add(src, burst.Segment{Handle: hs[0], Off: heads.Offset(hs[0]), Len: 8})
	x.Builder().AddSegment(src, burst.Segment{Handle: hs[1], Off: heads.Offset(hs[1]), Len: 8})
	third.Brought()
	third.bring(3)
	recv(t, third, one, 3)
	if s := stats(third); s.Drops[DropTooLong] != 1 {
		t.Errorf("%+v", s)
	}
}

// What waits when a queue ends is counted, by it and in the port's sums, also while others bring it
// more.
func TestRxFrontClosing(t *testing.T) {
	p := new(toyPort)
	first, second := newToy(t, p, RxSpec{}, plainToy), newToy(t, p, RxSpec{ID: Queue(1)}, plainToy)
	b := burst.New(8)
	second.bring(1)
	second.bring(2)
	p.arrive(0, 3, 4)
	p.arrive(1, 5)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	recv(t, first, b, 3, 4) // and 5 is for no queue
	second.bring(6)         // by a queue that had found it before
	if s := stats(second); s.Drops[DropClosed] != 3 || p.lost != 1 {
		t.Errorf("%v, %d lost", &s.Drops, p.lost)
	}
	p.arrive(0, 7)
	if live, again := p.rx.End(); len(live) != 1 || !again {
		t.Errorf("%d queues, %v", len(live), again)
	}
	first.Close()
	var sum RxStats
	p.rx.Lock()
	p.rx.Sum(&sum)
	p.rx.Unlock()
	if sum.Packets != 2 || sum.Drops[DropClosed] != 3 { // what is dropped after the end is the queue's only
		t.Errorf("%+v", sum)
	}
}

// Discard counts as flushed what the device and the inbox hold, by the device where that can.
func TestRxFrontDiscard(t *testing.T) {
	p := new(toyPort)
	q, b := newToy(t, p, RxSpec{}, plainToy), burst.New(8)
	p.arrive(0, 1, 2, 3)
	q.bring(4)
	if n, err := q.Discard(); n != 4 || err != nil {
		t.Errorf("%d packets, %v", n, err)
	}
	recv(t, q, b)
	if s := stats(q); s.Drops[DropFlushed] != 4 || s.Packets != 0 {
		t.Errorf("%+v", s)
	}
	q.Close()

	little := newPool(t, 1)
	var d *flushingToy
	q = newToy(t, p, RxSpec{Pools: []*mem.Pool{little}}, func(q *toyRx) RxDevice {
		d = &flushingToy{toyRx: q}
		return d
	})
	taken := make([]mem.Handle, 1)
	little.GetBatch(taken)
	p.arrive(0, 1, 2, 3)
	if n, err := q.Discard(); n != 3 || err != nil {
		t.Errorf("%d packets without memory, %v", n, err)
	}
	little.PutBatch(taken)
	d.kernel = 5
	if s := stats(q); s.Drops[DropKernel] != 5 || s.Drops[DropFlushed] != 3 {
		t.Errorf("%+v", s)
	}
	d.kernel = 2
	q.Close()
	looked := d.accounts
	if s := stats(q); s.Drops[DropKernel] != 7 || d.accounts != looked {
		t.Errorf("%+v; the device was asked %d times after its end", s, d.accounts-looked)
	}
}

// Two owners take from one device and bring each other packets, one queue comes and goes, and each
// packet is received in order or counted.
func TestRxFrontOwners(t *testing.T) {
	p := new(toyPort)
	pool := newPool(t, 2048)
	const rounds, each = 400, 5
	var all sync.WaitGroup
	owner := func(q *toyRx, got *int) {
		rx, b := NewRx(q, Batching{}), burst.New(16)
		for next := uint64(0); ; {
			if err := rx.Recv(t.Context(), b); err != nil {
				if !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
				return
			}
			for i := range b.Len() {
				if n := number(b, i); n < next {
					t.Errorf("queue %d: packet %d behind %d", q.ID(), n, next)
				} else {
					next = n + 1
				}
			}
			*got += b.Len()
			b.Release()
		}
	}
	var got [4]int
	qs := make([]*toyRx, 3)
	for i := range 2 {
		qs[i] = newToy(t, p, RxSpec{ID: Queue(i), Pools: []*mem.Pool{pool}}, plainToy)
		all.Go(func() { owner(qs[i], &got[i]) })
	}
	sent := 0
	var end sync.WaitGroup
	for r := range uint64(rounds) {
		for to := range 3 {
			for k := range uint64(each) {
				p.arrive(to, r*each+k)
				sent++
			}
		}
		if r%20 == 0 {
			qs[2] = newToy(t, p, RxSpec{ID: Queue(2), Pools: []*mem.Pool{pool}}, plainToy)
			q := qs[2]
			end.Go(func() { owner(q, &got[2]) })
		}
		if r%20 == 10 {
			qs[2].Close()
			end.Wait()
		}
		stats(qs[0])
		for p.listed() > 50 || qs[0].Waiting() > 50 || qs[1].Waiting() > 50 {
			runtime.Gosched()
		}
	}
	for _, q := range qs {
		q.Close()
	}
	all.Wait()
	end.Wait()
	var sum RxStats
	p.rx.Lock()
	p.rx.Sum(&sum)
	p.rx.Unlock()
	if n := int(sum.Packets); n != got[0]+got[1]+got[2] || n+int(sum.Drops.Total())+p.lost != sent || got[0] == 0 ||
		got[1] == 0 {
		t.Errorf("of %d packets %v were received, %d are counted as such; drops %v, %d were for no queue", sent, got, n,
			&sum.Drops, p.lost)
	}
	if n := pool.Stats().InUse; n != 0 {
		t.Errorf("%d slots are out", n)
	}
}

// Nothing on the way allocates, be it direct or by the inbox.
func TestRxFrontAllocations(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "allocations are counted in plain builds")
	p := new(toyPort)
	q := newToy(t, p, RxSpec{}, plainToy)
	b, w, list := burst.New(16), NewWaker(), []toyPacket{{0, 1}, {0, 2}}
	if n := testing.AllocsPerRun(1000, func() {
		p.list = list
		q.bring(3)
		if n, err := q.TryRecv(b); n < 1 || err != nil {
			t.Fatal(n, err)
		}
		b.Release()
		q.TryRecv(b)
		b.Release()
		if q.Arm(w) {
			t.Fatal("ready")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
