package afpacket

import (
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

// rxQueue is a receive queue. It implements engine.RxQueue, and engine.RxDevice by the sockets of
// its port.
type rxQueue struct {
	engine.RxFront
	port *Port
	o    RxOptions
	fds  []int // a duplicate of each socket's, so that each queue is woken by itself

	// Where packets are copied to: those that the queue takes out of a ring, under the front's
	// lock, and those that others bring, under that of the inbox. They are nil in a queue that
	// lends the frames of the ring.
	direct, brought *engine.RxSlots
}

// AddRxQueue implements engine.Port. spec.Options is an RxOptions, a pointer to one, or nil.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	q, err := p.addRx(spec)
	if err != nil {
		return nil, fmt.Errorf("afpacket: %s: receive queue %v: %w", p.name, spec.ID, err)
	}
	return q, nil
}

func (p *Port) addRx(spec engine.RxSpec) (*rxQueue, error) {
	q := &rxQueue{port: p}
	err := Spec.RxDefaults(p.spec.Address, &spec)
	if err == nil {
		q.o, err = engine.Given[RxOptions](spec.Options)
	}
	if err != nil {
		return nil, err
	}
	spec.Options = nil
	can := p.Capabilities()
	if err := engine.CheckRx(&spec, &can); err != nil {
		return nil, err
	}
	p.rx.Lock()
	defer p.rx.Unlock()
	if err := p.rx.Number(&spec, maxQueues); err != nil {
		return nil, err
	}
	if p.link.Gone() {
		return nil, ErrRemoved
	}
	if err := p.accept(spec.HardwareTime); err != nil {
		return nil, err
	}
	if err := q.dup(); err != nil {
		q.closeDups()
		return nil, err
	}
	q.Start(spec, q)
	if len(spec.Pools) > 0 {
		q.direct, q.brought = engine.NewRxSlots(&q.RxFront), engine.NewRxSlots(&q.RxFront)
	}
	for _, s := range p.sockets {
		s.mu.Lock()
		if len(p.rx.Live()) == 0 { // what came while there was no queue
			p.counts.Drop(engine.DropNoQueue, s.discard())
		}
		s.account()
		s.mu.Unlock()
	}
	p.rx.Add(q)
	p.wakeAll() // which queue reads which socket has changed
	return q, nil
}

// accept makes the sockets receive. The caller holds p.rx.
func (p *Port) accept(hardware bool) error {
	for _, s := range p.sockets {
		if err := s.accept(&p.o); err != nil {
			return err
		}
	}
	p.open = true
	if !hardware {
		return nil
	}
	if err := sys.SetHardwareReceiveTimes(p.tx, p.link.Info().Device); err != nil {
		return err
	}
	for _, s := range p.sockets {
		if err := sys.SetOption(s.fd, sys.SolPacket, sys.PacketTimestamp, sys.PacketStampHardware); err != nil {
			return err
		}
	}
	return nil
}

// wakeAll wakes the owners of all receive queues.
func (p *Port) wakeAll() {
	for _, q := range p.rx.Live() {
		q.Wake()
	}
}

func (q *rxQueue) dup() error {
	for _, s := range q.port.sockets {
		fd, err := sys.Dup(s.fd)
		if err != nil {
			return err
		}
		if err := engine.Events.Add(fd); err != nil {
			sys.Close(fd)
			return err
		}
		q.fds = append(q.fds, fd)
	}
	return nil
}

func (q *rxQueue) closeDups() {
	for _, fd := range q.fds {
		engine.Events.Remove(fd)
		sys.Close(fd)
	}
	q.fds = nil
}

// reads reports whether q takes packets out of the ring of s: of a port with one, all queues do; of
// several, one does.
func (q *rxQueue) reads(s *socket) bool {
	if len(q.port.sockets) == 1 {
		return true
	}
	live := q.port.rx.Live()
	return len(live) > 0 && live[s.number%len(live)] == q
}

// Collect implements engine.RxDevice.
func (q *rxQueue) Collect(b *burst.Burst) error {
	for _, s := range q.port.sockets {
		if q.reads(s) {
			s.pump(q, b, pumpOthers)
		}
	}
	if q.port.link.Gone() {
		return ErrRemoved
	}
	return nil
}

// Flush implements engine.RxDiscarder. More keeps coming: it ends after one round of the ring.
func (q *rxQueue) Flush() (n int) {
	for _, s := range q.port.sockets {
		if q.reads(s) {
			n += s.pump(q, nil, s.round())
		}
	}
	return n
}

// Watch implements engine.RxDevice.
func (q *rxQueue) Watch(w *engine.Waker) engine.Armed {
	if q.port.link.Gone() {
		return engine.ArmedReady
	}
	armed := engine.ArmedWake
	for i, s := range q.port.sockets {
		switch {
		case !q.reads(s):
		case s.ready():
			return engine.ArmedReady
		case s.blocked():
			armed = engine.ArmedPoll
		default:
			_ = sys.SocketError(q.fds[i]) // the interface was down: poll would say so for ever
			if engine.Events.Arm(q.fds[i], w) != nil {
				return engine.ArmedReady
			}
		}
	}
	return armed
}

// Account implements engine.RxAccounter: it asks the kernel for what it dropped.
func (q *rxQueue) Account() {
	for _, s := range q.port.sockets {
		s.mu.Lock()
		s.account()
		s.mu.Unlock()
	}
}

// Stop implements engine.RxDevice. What is in the ring is for the other queues of the port; the
// last one drops it. A queue that still brings packets to this one has counted them when Stop has
// had the lock of the ring.
func (q *rxQueue) Stop(why engine.Drop) error {
	last := len(q.port.rx.Live()) == 0
	for _, s := range q.port.sockets {
		s.mu.Lock()
		if last {
			q.Drop(why, uint64(s.discard()))
		}
		s.mu.Unlock()
	}
	if q.direct != nil {
		q.direct.Close()
		q.brought.Close()
	}
	q.closeDups()
	q.port.wakeAll() // which queue reads which socket has changed
	return nil
}

// Close implements engine.RxQueue.
func (q *rxQueue) Close() error {
	q.Account() // while the kernel's drops are its own
	return q.port.rx.Close(q)
}

// put adds the frame that s looks at to b, for this queue, and takes it out of the ring. It returns
// what engine.RxSlots.Put does; slots are nil where the frame itself is lent.
func (q *rxQueue) put(s *socket, slots *engine.RxSlots, b *burst.Burst, bytes []byte, id uint32) (i int) {
	f, spec := &s.frame, q.Spec()
	var flags burst.Flags
	switch {
	case f.Status&sys.FrameChecksumLater != 0:
		flags |= burst.ChecksumPartial
	case f.Status&sys.FrameChecksumGood != 0:
		flags |= burst.ChecksumGood
	}
	if spec.Timestamps || spec.HardwareTime {
		flags |= burst.HasTime
		if f.Status&sys.FrameHardwareTime != 0 {
			flags |= burst.HardwareTime
		}
	}
	if f.Len < f.Wire {
		flags |= burst.Truncated
	}
	if f.Outgoing {
		flags |= burst.Outgoing
	}
	switch {
	case flags&burst.Truncated != 0 && !q.o.KeepTruncated:
		q.Drop(engine.DropTooLong, 1)
		i = engine.PutDropped
	case slots != nil:
		i = slots.Put(b, bytes, q.o.KeepTruncated)
		if i >= 0 {
			flags |= b.Flags(i)
		}
	default:
		i = b.Builder().Add(s.src, burst.Segment{Handle: s.handle(), Off: f.Off, Len: f.Len})
	}
	if i == engine.NoRoom {
		return i
	}
	if i >= 0 {
		b.Builder().SetReceived(i, int(f.Wire), flags, f.Time)
		if s.typ != 0 {
			b.Builder().SetType(i, s.typ)
		}
		if id != 0 {
			b.Builder().SetFlow(i, id)
		}
	}
	if i >= 0 && slots == nil {
		s.lend()
	} else {
		s.giveBack()
	}
	return i
}
