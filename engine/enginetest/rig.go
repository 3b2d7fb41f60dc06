package enginetest

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// slotSize is that of the pools that the suite makes unless a check needs others.
const slotSize = 2048

// rig is a pair of ports with what a check has added to them.
type rig struct {
	Pair
	t     testing.TB
	h     Harness
	caps  engine.Capabilities
	pools []*mem.Pool
	held  []*burst.Burst
	ended bool
}

// newRig opens a pair. When the test ends it closes both ports and demands all memory back.
func newRig(t testing.TB, h Harness) *rig {
	t.Helper()
	r := &rig{t: t, h: h, Pair: h.Open(t)}
	if r.A == nil || r.B == nil {
		t.Fatal("the harness opened no ports")
	}
	r.caps = r.A.Capabilities()
	t.Cleanup(r.end)
	return r
}

func (r *rig) end() {
	if r.ended {
		return
	}
	r.ended = true
	if !r.t.Failed() { // otherwise a goroutine of the check may still be at them
		for _, b := range r.held {
			b.Release()
		}
	}
	for _, p := range []engine.Port{r.A, r.B} {
		if err := p.Close(); err != nil && !errors.Is(err, engine.ErrClosed) {
			r.t.Errorf("closing port %s: %v", p.Name(), err)
		}
	}
	if r.t.Failed() {
		return
	}
	r.awaitMemory()
	for _, p := range r.pools {
		if err := p.Close(); err != nil {
			r.t.Errorf("closing pool %s: %v", p.Name(), err)
		}
		if s := p.Stats(); s.Rejected > 0 {
			r.t.Errorf("pool %s: %d slots were released twice, or were not its own", p.Name(), s.Rejected)
		}
	}
}

// awaitMemory waits until all packet memory is back.
func (r *rig) awaitMemory() {
	r.t.Helper()
	r.eventually("all packet memory to come back", r.allBack)
}

func (r *rig) allBack() error {
	for _, p := range r.pools {
		if s := p.Stats(); s.InUse != 0 {
			return fmt.Errorf("%d slots of pool %s are out", s.InUse, p.Name())
		}
	}
	return nil
}

// eventually waits until done says nil.
func (r *rig) eventually(what string, done func() error) {
	r.t.Helper()
	for range 100 {
		if done() == nil {
			return
		}
		runtime.Gosched()
	}
	limit := time.NewTimer(r.h.Patience)
	defer limit.Stop()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		err := done()
		if err == nil {
			return
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-limit.C:
			again.Stop()
			r.t.Fatalf("waited %v for %s: %v", r.h.Patience, what, err)
		}
	}
}

// breathe lets other goroutines run. Virtual time stands still as long as any goroutine runs, so
// there it sleeps.
func (r *rig) breathe() {
	if !r.h.Virtual {
		runtime.Gosched()
		return
	}
	t := time.NewTimer(20 * time.Microsecond)
	<-t.C
}

// pool makes a pool of n slots of size bytes, closed at the end.
func (r *rig) pool(name string, size, n int) *mem.Pool {
	r.t.Helper()
	return r.poolOf(r.h.Memory, name, size, n)
}

// hostPool is pool for what the engine's user always has in host memory.
func (r *rig) hostPool(name string, size, n int) *mem.Pool {
	r.t.Helper()
	return r.poolOf(mem.Options{}, name, size, n)
}

func (r *rig) poolOf(o mem.Options, name string, size, n int) *mem.Pool {
	r.t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: name, SlotSize: size, Slots: n, Memory: o})
	if err != nil {
		r.t.Fatal(err)
	}
	r.pools = append(r.pools, p)
	return p
}

// burst makes a burst that is released at the end, however the check ends.
func (r *rig) burst(packets int) *burst.Burst {
	b := burst.NewSegmented(packets, packets*8)
	r.held = append(r.held, b)
	return b
}

// tryRx and tryTx add a queue with a pool of its own, of n slots, unless the specification has
// pools.
func (r *rig) tryRx(p engine.Port, spec engine.RxSpec, n int) (engine.RxQueue, error) {
	if spec.Pools == nil && !r.h.OwnRx {
		spec.Pools = []*mem.Pool{r.pool(p.Name()+" rx", slotSize, n)}
	}
	if r.h.Rx != nil {
		r.h.Rx(&spec)
	}
	return p.AddRxQueue(spec)
}

func (r *rig) tryTx(p engine.Port, spec engine.TxSpec, n int) (engine.TxQueue, error) {
	if spec.Pools == nil {
		spec.Pools = []*mem.Pool{r.pool(p.Name()+" tx", slotSize, n)}
	}
	if r.h.Tx != nil {
		r.h.Tx(&spec)
	}
	return p.AddTxQueue(spec)
}

// rx and tx are tryRx and tryTx where an error ends the test.
func (r *rig) rx(p engine.Port, spec engine.RxSpec, n int) *receiver {
	r.t.Helper()
	q, err := r.tryRx(p, spec, n)
	if err != nil {
		r.t.Fatalf("adding a receive queue to %s: %v", p.Name(), err)
	}
	return r.receive(q)
}

func (r *rig) tx(p engine.Port, spec engine.TxSpec, n int) *sender {
	r.t.Helper()
	q, err := r.tryTx(p, spec, n)
	if err != nil {
		r.t.Fatalf("adding a transmit queue to %s: %v", p.Name(), err)
	}
	return r.send(p, q)
}

// maxPacket is the size of the largest packet.
func (r *rig) maxPacket() int {
	switch {
	case r.h.MaxPacket > 0:
		return r.h.MaxPacket
	case r.caps.MaxPacket > 0:
		return r.caps.MaxPacket
	}
	return 9000
}

// minRecord is the size of the smallest packet that holds a record.
func (r *rig) minRecord() int {
	n := recordHeader
	if r.caps.Frames {
		n += frameHeader
	}
	return max(n, r.h.MinPacket)
}

// lost is the number of packets that the ports say were dropped on the way from one port to the
// other, in both directions.
func (r *rig) lost() uint64 {
	var n uint64
	for _, p := range []engine.Port{r.A, r.B} {
		var s engine.PortStats
		p.Stats(&s)
		n += s.Tx.Drops.Total() + s.Rx.Drops.Total() + s.Drops.Total()
	}
	return n
}

// sender sends records on one transmit queue. It belongs to one goroutine.
type sender struct {
	r     *rig
	q     engine.TxQueue
	b     *burst.Burst
	id    uint16
	class uint16
	seq   uint32
	conn  uint32
	full  *framer // nil where packets are not frames
	data  []byte
}

// send makes a sender on a queue of port p, with id 0.
func (r *rig) send(p engine.Port, q engine.TxQueue) *sender {
	s := &sender{r: r, q: q, b: r.burst(64), data: make([]byte, max(r.maxPacket(), slotSize))}
	if r.Conn != nil {
		s.conn = r.Conn(p)
	}
	if r.caps.Frames {
		s.full = &framer{}
		other := r.A
		if p == r.A {
			other = r.B
		}
		s.full.frame.SrcMAC, s.full.frame.DstMAC = p.Info().MAC, other.Info().MAC
		if s.full.frame.DstMAC == (packet.MAC{}) {
			s.full.frame.DstMAC = packet.BroadcastMAC
		}
	}
	return s
}

// as makes another sender on the same queue.
func (s *sender) as(id, class uint16) *sender {
	c := *s
	c.id, c.class, c.seq = id, class, 0
	c.b = s.r.burst(s.b.Cap())
	c.data = make([]byte, len(s.data))
	if s.full != nil {
		f := *s.full
		c.full = &f
	}
	return &c
}

// next makes the bytes of the next packet, of that many bytes. They are valid until the next call.
func (s *sender) next(size int) []byte {
	p := s.data[:size]
	rec := p
	if s.full != nil {
		rec = p[frameHeader:]
	}
	fillRecord(rec, s.id, s.class, s.seq)
	if s.full != nil {
		if err := s.full.fill(p, s.id, s.class); err != nil {
			s.r.t.Errorf("writing a frame's headers: %v", err)
		}
	}
	s.seq++
	return p
}

// write makes packet i of b the next one.
func (s *sender) write(b *burst.Burst, i, size int) {
	if !put(b, i, s.next(size)) {
		s.r.t.Errorf("%d bytes do not fit into packet %d of Alloc", size, i)
	}
	if s.conn != 0 {
		b.SetConn(i, s.conn)
	}
}

// alloc is Alloc that waits for descriptors and memory, of which there must be some in the end. It
// says how many packets it got.
func (s *sender) alloc(b *burst.Burst, n, size int) int {
	s.r.t.Helper()
	got := 0
	s.r.eventually("descriptors", func() (err error) {
		got, err = s.q.Alloc(b, n, size)
		if got == 0 && (errors.Is(err, engine.ErrFull) || errors.Is(err, engine.ErrNoBuffers)) {
			return err
		}
		if got == 0 {
			s.r.t.Fatalf("Alloc of %d packets of %d bytes: 0, %v", n, size, err)
		}
		return nil
	})
	if b.Len() != got {
		s.r.t.Fatalf("Alloc said %d packets, the burst holds %d", got, b.Len())
	}
	return got
}

// burstOf sends n packets of size bytes each, in as many bursts as it takes.
func (s *sender) burstOf(n, size int) {
	s.r.t.Helper()
	for n > 0 {
		k := s.alloc(s.b, min(n, s.b.Cap()), size)
		for i := range k {
			s.write(s.b, i, size)
		}
		if err := s.q.Send(s.b); err != nil {
			s.r.t.Fatalf("Send of %d packets: %v", k, err)
		}
		if s.b.Len() != 0 {
			s.r.t.Fatalf("after Send the burst still holds %d packets", s.b.Len())
		}
		n -= k
	}
}

// receiver receives records from one queue and verifies them. It belongs to one goroutine.
type receiver struct {
	r      *rig
	q      engine.RxQueue
	w      *engine.Waker
	b      *burst.Burst
	next   map[uint16]uint32 // the number that comes next, of each sender
	n      int               // records received
	bytes  int               // of them, with headers
	others int               // packets that were not of the suite
	total  int               // packets of both kinds
	stream map[uint32][]byte // per connection, what has come and is no whole record yet
	data   []byte
	frames bool
	hashes map[[2]uint16]uint32                    // of frames, by source and destination port
	gaps   bool                                    // packets were dropped, so numbers may be missing
	loose  bool                                    // the check looks at the numbers itself
	note   func(rec record, whole []byte)          // called with each record
	see    func(b *burst.Burst, i int, rec record) // looks at each packet, not of streams
	cut    func(b *burst.Burst, i int) bool        // reports whether it has dealt with a packet that is not whole
}

func (r *rig) receive(q engine.RxQueue) *receiver {
	return &receiver{r: r, q: q, w: engine.NewWaker(), b: r.burst(64), next: map[uint16]uint32{},
		stream: map[uint32][]byte{}, hashes: map[[2]uint16]uint32{},
		data: make([]byte, max(r.maxPacket(), 1<<16)), frames: r.caps.Frames}
}

// take verifies the packets of b. It does not release them.
func (v *receiver) take(b *burst.Burst) {
	v.r.t.Helper()
	for i := range b.Len() {
		v.total++
		n := b.CopyTo(v.data, i)
		if n != b.PacketLen(i) {
			v.r.t.Fatalf("packet %d: %d of its %d bytes can be read", i, n, b.PacketLen(i))
		}
		if v.r.caps.Stream {
			v.takeStream(b.Conn(i), v.data[:n])
			continue
		}
		if v.cut != nil && v.cut(b, i) {
			v.n++
			continue
		}
		p := v.data[:n]
		if v.frames {
			v.headers(b, i, p)
			if n < frameHeader {
				v.other(n)
				continue
			}
			p = p[frameHeader:]
		}
		rec, ok, err := parseRecord(p)
		if err != nil {
			v.r.t.Fatalf("packet of %d bytes: %v", n, err)
		}
		if !ok {
			v.other(n)
			continue
		}
		if len(p) != rec.length && !(v.frames && n <= 60) { // Ethernet pads short frames
			v.r.t.Fatalf("packet with record %d of sender %d has %d bytes, expected %d", rec.seq, rec.sender, n,
				n-len(p)+rec.length)
		}
		v.bytes += n
		v.count(rec, v.data[:n])
		if v.see != nil {
			v.see(b, i, rec)
		}
	}
}

func (v *receiver) takeStream(conn uint32, p []byte) {
	v.r.t.Helper()
	s := append(v.stream[conn], p...)
	for len(s) >= recordHeader {
		rec, ok, err := parseRecord(s)
		if ok && rec.length > len(s) {
			break // the rest comes later
		}
		if err != nil || !ok {
			v.r.t.Fatalf("the stream of connection %d is not the one sent: %v", conn, err)
		}
		v.count(rec, s[:rec.length])
		v.bytes += rec.length
		s = s[rec.length:]
	}
	v.stream[conn] = append([]byte(nil), s...)
}

func (v *receiver) other(n int) {
	v.r.t.Helper()
	if !v.r.h.Noise && !v.r.h.Alone {
		v.r.t.Fatalf("a packet of %d bytes that nobody sent: % x", n, v.data[:min(n, 64)])
	}
	v.others++
}

func (v *receiver) count(rec record, whole []byte) {
	v.r.t.Helper()
	if want := v.next[rec.sender]; !v.loose && rec.seq != want && (!v.r.h.Lossy && !v.gaps || rec.seq < want) {
		what := "lost without a trace, or out of order"
		if rec.seq < want {
			what = "twice, or out of order"
		}
		v.r.t.Fatalf("sender %d: packet %d came where %d was expected: %s", rec.sender, rec.seq, want, what)
	}
	v.next[rec.sender] = rec.seq + 1
	v.n++
	if v.note != nil {
		v.note(rec, whole)
	}
}

// some waits until packets are there, adds them to b, which has room, and returns how many. The
// error is that of TryRecv.
func (v *receiver) some(b *burst.Burst) (int, error) { return v.someOr(b, nil) }

// someOr also returns, with 0 and nil, when stop says nil.
func (v *receiver) someOr(b *burst.Burst, stop func() error) (int, error) {
	v.r.t.Helper()
	var limit *time.Timer
	for stuck := 0; ; {
		n, err := v.q.TryRecv(b)
		if n > 0 || err != nil {
			return n, err
		}
		if v.q.Arm(v.w) {
			if stuck++; stuck > 1000 {
				runtime.Gosched()
			}
			if stuck > 1_000_000 {
				v.r.t.Fatal("Arm says that there is something, a million times, and TryRecv finds nothing")
			}
			continue
		}
		stuck = 0
		if stop != nil {
			if stop() == nil {
				return 0, nil
			}
			tick := time.NewTimer(2 * time.Millisecond) // a change of what stop looks at wakes no goroutine
			select {
			case <-v.w.C():
			case <-tick.C:
			}
			tick.Stop()
			continue
		}
		if limit == nil {
			limit = time.NewTimer(v.r.h.Patience)
			defer limit.Stop()
		}
		select {
		case <-v.w.C():
		case <-limit.C:
			v.r.t.Fatalf("no packet and no wake-up for %v after %d records", v.r.h.Patience, v.n)
		}
	}
}

// want receives until n records have come since the receiver was made. On lossy links those that
// were dropped count. On a port that is alone any packet stands for all that are missing.
func (v *receiver) want(n int) {
	v.r.t.Helper()
	if v.r.h.Alone {
		if _, err := v.some(v.b); err != nil {
			v.r.t.Fatalf("TryRecv: %v after %d packets", err, v.total)
		}
		v.take(v.b)
		v.b.Release()
		v.n = n
		return
	}
	if v.atLeast(n); v.n > n {
		v.r.t.Fatalf("%d records, expected %d", v.n, n)
	}
}

// atLeast is want where more may come.
func (v *receiver) atLeast(n int) {
	v.r.t.Helper()
	var stop func() error
	if v.r.h.Lossy {
		start := time.Now()
		stop = func() error {
			if missing := n - v.n; uint64(missing) <= v.r.lost() {
				return nil
			} else if time.Since(start) > v.r.h.Patience {
				v.r.t.Fatalf("%d packets are missing, of which %d are counted as drops", missing, v.r.lost())
			}
			return errors.New("not yet")
		}
	}
	for v.n < n {
		got, err := v.someOr(v.b, stop)
		if err != nil {
			v.r.t.Fatalf("TryRecv: %v after %d of %d records", err, v.n, n)
		}
		if got != v.b.Len() {
			v.r.t.Fatalf("TryRecv said %d packets, the burst holds %d", got, v.b.Len())
		}
		if got == 0 {
			return // the rest is lost
		}
		v.take(v.b)
		v.b.Release()
	}
}

// rest receives what is there until nothing comes any more, that is until done says nil.
func (v *receiver) rest(done func() error) {
	v.r.t.Helper()
	start := time.Now()
	for {
		n, err := v.someOr(v.b, func() error {
			err := done()
			if err != nil && time.Since(start) > v.r.h.Patience {
				v.r.t.Fatalf("waited %v: %v", v.r.h.Patience, err)
			}
			return err
		})
		if err != nil {
			v.r.t.Fatalf("TryRecv: %v", err)
		}
		if n == 0 {
			return
		}
		v.take(v.b)
		v.b.Release()
	}
}

// balance demands that each of the packets given to A's transmit queues has either been received by
// one of the receivers or is counted as a drop. It receives what is still on its way.
func (r *rig) balance(given int, at ...*receiver) {
	r.t.Helper()
	sum := func() error {
		got := 0
		for _, v := range at {
			got += v.n
		}
		lost := r.lost()
		switch total := uint64(got) + lost; {
		case total < uint64(given):
			return fmt.Errorf("%d packets were sent, %d received and %d counted as drops", given, got, lost)
		case total > uint64(given) && !r.h.Noise:
			r.t.Fatalf("%d packets were sent, but %d received and %d counted as drops", given, got, lost)
		}
		return nil
	}
	if !r.caps.ExactDrops {
		sum = func() error { return nil }
	}
	for _, v := range at {
		if !r.h.Alone {
			v.rest(sum)
		}
	}
	var s engine.PortStats
	r.eventually("everything to leave", func() error {
		r.A.Stats(&s)
		if n := s.Tx.Packets + s.Tx.Drops.Total(); n != uint64(given) || s.Tx.Queued != 0 {
			return fmt.Errorf("%d packets were given to Send, of which %d left, %d are queued, and these were "+
				"dropped: %v", given, s.Tx.Packets,
				s.Tx.Queued, &s.Tx.Drops)
		}
		return nil
	})
	if r.caps.ExactDrops {
		for _, p := range []engine.Port{r.A, r.B} {
			p.Stats(&s)
			if n := s.Tx.Drops[engine.DropUnattributed] + s.Rx.Drops[engine.DropUnattributed] +
				s.Drops[engine.DropUnattributed]; n > 0 {
				r.t.Errorf("port %s: %d drops are not attributed, although Capabilities.ExactDrops says that all are",
					p.Name(), n)
			}
		}
	}
}

// dropped are the drops of both ports by reason.
func (r *rig) dropped() engine.Drops {
	var d engine.Drops
	for _, p := range []engine.Port{r.A, r.B} {
		var s engine.PortStats
		p.Stats(&s)
		d.Add(&s.Tx.Drops)
		d.Add(&s.Rx.Drops)
		d.Add(&s.Drops)
	}
	return d
}

// only demands that nothing but these reasons occurred, and at least one of them if some says so.
func (r *rig) only(some bool, reasons ...engine.Drop) {
	r.t.Helper()
	d := r.dropped()
	rest, n := d, uint64(0)
	for _, k := range append(reasons, engine.DropInjected) {
		if k != engine.DropInjected {
			n += d[k]
		} else if !r.h.Lossy {
			continue
		}
		rest[k] = 0
	}
	if rest.Total() > 0 || some && n == 0 {
		r.t.Errorf("drops: %v; expected only %v", &d, reasons)
	}
}

// quiet demands that nothing more is there.
func (v *receiver) quiet() {
	v.r.t.Helper()
	if v.r.h.Alone {
		return
	}
	before := v.n
	n, err := v.q.TryRecv(v.b)
	if err != nil {
		v.r.t.Fatalf("TryRecv: %v", err)
	}
	v.take(v.b)
	v.b.Release()
	if v.n != before {
		v.r.t.Fatalf("%d more packets, expected none", n)
	}
}
