package verbs

import (
	"cmp"
	"fmt"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// Memory of accelerators is registered like any other, where there is a way (package
// internal/ibvmem). What differs is when bytes that an adapter wrote are there for the accelerator:
// some see them only after a flush (mem.Flusher), which the CPU beside the accelerator does. So the
// receiving side flushes
//
//   - before it reports a notification, if the peer may write such memory;
//   - when the peer asks for it, which it does when a put into such memory is complete at the
//     adapters (frameFlush), and before it reports the put as done;
//
// and the side that gets flushes its own memory before it reports the get as done. Many puts share
// one question. A flush that fails ends the puts that wait for it; a notification that would not be
// true ends the path, since it does not say which memory it is about.

// flushGiven makes all that the peer wrote so far visible to this side's accelerators.
func (p *Path) flushGiven() error {
	err := p.unseenBefore
	for f := range p.flushers {
		err = cmp.Or(err, f.Flush())
	}
	if err != nil {
		return fmt.Errorf("an accelerator does not take what the peer wrote into its memory: %w", err)
	}
	return nil
}

// flushOwn makes what was got visible to the accelerators whose memory the blocks are in.
func flushOwn(copies []path.Copy) error {
	var last mem.Flusher
	for i := range copies {
		f := copies[i].Local.Region.Direct().Flush
		if f == nil || f == last || copies[i].Local.Len == 0 {
			continue
		}
		last = f
		if err := f.Flush(); err != nil {
			return fmt.Errorf("verbs: block %d of %d: the accelerator of region %q does not take what was read "+
				"into it: %w", i, len(copies), copies[i].Local.Region.Name(), err)
		}
	}
	return nil
}

// askFlush asks the peer for a flush, once for all puts that wait for it, and answers its question.
func (p *Path) askFlush() {
	f := &p.frame
	if p.owed {
		*f = frame{typ: frameFlushed, status: p.verdict}
		p.owed = !p.say(f, plainReserve)
	}
	if p.unseen.n == 0 || p.flushing.n > 0 {
		return
	}
	*f = frame{typ: frameFlush}
	if !p.say(f, plainReserve) {
		return
	}
	for p.unseen.n > 0 {
		p.enqueue(&p.flushing, p.dequeue(&p.unseen))
	}
}

// flushed takes in that the peer's accelerators see what was complete when they were asked.
func (p *Path) flushed(status uint8) error {
	if p.flushing.n == 0 {
		return malformed("a flush that was not asked for")
	}
	for p.flushing.n > 0 {
		k := p.dequeue(&p.flushing)
		w := &p.works[k]
		if w.seen = true; status != 0 {
			w.err = errUnseen
		}
		p.proceed(k)
	}
	return nil
}

// errUnseen is the end of a put whose bytes are in the memory of an accelerator that does not see
// them.
var errUnseen = fmt.Errorf("verbs: the peer's accelerator does not take what was written into its memory, its path "+
	"says why: %w", path.ErrUnreachable)

// maxClosed bounds what is remembered of exports that the peer's adapter cannot reach.
const maxClosed = 1024

// closedTo notes that the peer's adapter cannot reach an export.
func (p *Path) closedTo(k path.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closedKeys == nil || len(p.closedKeys) >= maxClosed {
		p.closedKeys = map[path.Key]struct{}{}
	}
	p.closedKeys[k] = struct{}{}
}

// ReachesRegion says whether the adapter reaches a region of this side that the CPU does not. The
// first question about a region registers a page of it. See path.DeviceReacher.
func (p *Path) ReachesRegion(r *mem.Region) error {
	if err := p.dev.memory.Reaches(p.dom.pd, r); err != nil {
		return fmt.Errorf("verbs: %w: %w", path.ErrUnreachable, err)
	}
	return nil
}

// ReachesDevice says whether the peer's adapter may reach an export in memory of an accelerator: as
// far as the peer said what it can, and as nothing was refused yet. See path.DeviceReacher.
func (p *Path) ReachesDevice(d path.Desc) error {
	if p.peer.flags&flagDevices == 0 {
		return fmt.Errorf("verbs: %w: the peer's adapter reaches no memory of accelerators: it takes no dma-bufs, "+
			"and no module for peer memory is loaded there", path.ErrUnreachable)
	}
	p.mu.Lock()
	_, refused := p.closedKeys[d.Key]
	p.mu.Unlock()
	if refused {
		return fmt.Errorf("verbs: %w: the peer's adapter could not reach this export, its path says why",
			path.ErrUnreachable)
	}
	return nil
}

// noDevices is which side's adapter reaches no memory of accelerators.
func (p *Path) noDevices() string {
	switch here, there := p.dev.memory.Able(), p.peer.flags&flagDevices != 0; {
	case !here && !there:
		return "neither adapter reaches any: they take no dma-bufs, and no module for peer memory is loaded " +
			"(modprobe nvidia-peermem)"
	case !here:
		return "this side's adapter reaches none: it takes no dma-bufs, and no module for peer memory is loaded " +
			"(modprobe nvidia-peermem)"
	}
	return "the peer's adapter reaches none"
}
