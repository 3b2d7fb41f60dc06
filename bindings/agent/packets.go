package agent

import (
	"fmt"

	"github.com/penstock-io/penstock/bindings/abi"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
)

// firstRoom is the memory for the packets of a receive queue at first, in bytes.
const firstRoom = 1 << 20

// roomFor leases memory for the packets of a queue, of size bytes at least; fresh says that the
// client does not know it yet.
func (x *conn) roomFor(h, size uint64) (l mem.Lease, fresh bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.room[h]
	if m != nil && m.Len() >= size {
		l, err = m.Lease()
		return l, false, err
	}
	total := uint64(firstRoom)
	for total < size {
		total *= 2
	}
	r, err := mem.Alloc(mem.Options{Name: "packets", Size: int(total)})
	if err != nil {
		return l, false, err
	}
	if m != nil {
		err = m.Close()
	}
	x.room[h] = r
	if err == nil {
		l, err = r.Lease()
	}
	return l, true, err
}

// drop gives back what belongs to a handle that was closed.
func (x *conn) drop(h uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if m := x.room[h]; m != nil {
		_ = m.Close() // it is unmapped after the last lease
		delete(x.room, h)
	}
	delete(x.last, h)
}

// burst waits for packets and copies them to where the client sees them. They go back to the queue
// at once.
func (x *conn) burst(r *request) (*answer, error) {
	h, n, timeout := r.u64(), r.u32(), int64(r.u64())
	return then(r, func() (*answer, error) {
		ctx, end := x.within(timeout)
		defer end()
		a := &answer{}
		var failed error
		k, err := x.table.Burst(ctx, h, int(n), func(b *burst.Burst) { failed = x.show(h, b, a) })
		if err == nil && k > 0 {
			err = x.table.Release(h)
		}
		if err == nil {
			err = failed
		}
		a.result = uint64(k)
		return a, err
	})
}

// show copies packets and describes them.
func (x *conn) show(h uint64, b *burst.Burst, a *answer) error {
	size := uint64(0)
	for i := range b.Len() {
		for j := range b.Segments(i) {
			size += uint64(len(b.Bytes(i, j)))
		}
	}
	l, fresh, err := x.roomFor(h, size)
	if err != nil {
		return err
	}
	a.close = func() { l.Release() } // which holds the descriptor, too
	if fresh {
		a.fd, a.pass = l.Region().FD(), true
	}
	x.note(h, b)
	a.u64(l.Region().Len())
	bytes, at := l.Bytes(), 0
	for i := range b.Len() {
		ns, timed := b.Time(i)
		for j := range b.Segments(i) {
			k := copy(bytes[at:], b.Bytes(i, j))
			a.u64(uint64(at))
			a.u32(uint32(k))
			a.u32(uint32(i))
			a.u32(uint32(b.Flow(i)))
			if timed {
				a.u32(1)
			} else {
				a.u32(0)
			}
			a.u64(uint64(ns))
			at += k
		}
	}
	return nil
}

// note keeps what is known of the batches of a burst, whose packets go back, until the next one.
func (x *conn) note(h uint64, b *burst.Burst) {
	var known []*reorder.Batch
	for i := range b.Len() {
		if k := abi.BatchOf(b, i); k != nil {
			if known == nil {
				known = make([]*reorder.Batch, b.Len())
			}
			known[i] = k
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last[h] = known
}

// batch says what is known of the batch that a packet of the last burst is. The client knows which
// packets there are.
func (x *conn) batch(r *request) (*answer, error) {
	h, i := r.u64(), r.u32()
	return then(r, func() (*answer, error) {
		x.mu.Lock()
		known, ok := x.last[h]
		x.mu.Unlock()
		if !ok {
			return nil, fmt.Errorf("agent: %d is no receive queue that gave packets: %w", h, abi.ErrInvalid)
		}
		if int64(i) >= int64(len(known)) || known[i] == nil {
			return &answer{}, nil
		}
		k, a := known[i], &answer{result: 1}
		timedOut := uint32(0)
		if k.TimedOut {
			timedOut = 1
		}
		a.u64(uint64(k.ID))
		a.u32(uint32(k.Packets))
		a.u32(uint32(k.PerBatch))
		a.u32(timedOut)
		a.u64(uint64(k.First))
		a.u64(uint64(k.Last))
		d := k.Tensor()
		a.tensor(&d)
		a.u32(uint32(len(k.Present)))
		for _, w := range k.Present {
			a.u64(w)
		}
		return a, nil
	})
}

// maxPackets is how many one request sends.
const maxPackets = 4096

func (x *conn) sendPackets(r *request) (*answer, error) {
	h, name, queue, n := r.u64(), r.text(), int32(r.u32()), r.u32()
	if n > maxPackets {
		return nil, fmt.Errorf("agent: %d packets in one request: expected %d at most: %w", n, maxPackets,
			abi.ErrInvalid)
	}
	packets := make([][]byte, n)
	for i := range packets {
		packets[i] = r.data()
	}
	return then(r, func() (*answer, error) {
		sent, err := x.table.Send(h, name, int(queue), len(packets), func(i int) []byte { return packets[i] })
		return &answer{result: uint64(sent)}, err
	})
}
