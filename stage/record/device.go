package record

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// Memory that the processor does not reach is copied into chunks of pinned memory by the device:
// the copies of a burst run side by side, and beside the writing of earlier chunks.

// loads are copies that run into the chunk, from where bytes and packets were when the first began.
type loads struct {
	moves          []mem.Move
	bytes, packets int
	err            error // of one that did not begin
}

// hidden is a segment of packet i that the processor does not reach; false: there is none.
func hidden(b *burst.Burst, i int) (mem.Span, bool) {
	for k := range b.Segments(i) {
		if b.Bytes(i, k) == nil && b.Segment(i, k).Len > 0 {
			return b.Segment(i, k), true
		}
	}
	return mem.Span{}, false
}

// pin makes sure that the chunk has room for n bytes in memory that the device reaches. It is false
// without a chunk.
func (r *Recorder) pin(m mem.Mover, n int) (bool, error) {
	if r.cur.region != nil && cap(r.cur.b)-len(r.cur.b) >= n {
		return true, nil
	}
	if r.cur.packets > 0 {
		r.send()
		if !r.begin() {
			return false, nil
		}
	}
	c := r.cur
	o := mem.Options{Name: "record", Size: max(chunkSize, n), Kind: mem.HostPinned, Provider: m.Staging()}
	region, err := mem.Alloc(o)
	if errors.Is(err, mem.ErrUnavailable) {
		o.Kind, o.Provider = mem.Host, nil
		region, err = mem.Alloc(o)
	}
	if err != nil {
		return true, fmt.Errorf("memory for packets of %s: %w", m.Device(), err)
	}
	if old := c.region; old != nil {
		r.regions = slices.DeleteFunc(r.regions, func(x *mem.Region) bool { return x == old })
		err = old.Close()
	}
	c.region, c.b, r.regions = region, region.All().Bytes()[:0], append(r.regions, region)
	return true, err
}

// load has the device copy n bytes of a segment behind what is in to, which is of the chunk.
func (r *Recorder) load(to []byte, g mem.Span, n int) []byte {
	at, l := len(to), &r.loads
	span, err := r.cur.region.Span(uint64(at), uint64(n))
	if err == nil {
		var m mem.Move
		if m, err = g.Region.Mover().Load(span, g.Off); err == nil {
			l.moves = append(l.moves, m)
			r.stats.Bounced += uint64(n)
		}
	}
	l.err = errors.Join(l.err, err)
	return to[:at+n]
}

// join waits for the copies. When one fails it takes the packets behind out of the chunk.
func (r *Recorder) join() {
	l := &r.loads
	if len(l.moves) == 0 && l.err == nil {
		return
	}
	for _, m := range l.moves {
		l.err = errors.Join(l.err, m.Wait(context.Background())) // it writes to the chunk, whatever happens
	}
	if c := r.cur; l.err != nil {
		n := c.packets - l.packets
		c.b, c.packets = c.b[:l.bytes], l.packets
		c.about = c.about[:min(len(c.about), l.packets)]
		r.stats.Taken -= uint64(n)
		if r.idle() {
			r.stats.Held -= uint64(n)
		}
		for range n {
			r.refuse(l.err)
		}
	}
	clear(l.moves)
	*l = loads{moves: l.moves[:0]}
}
