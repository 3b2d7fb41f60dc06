package tcp

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
)

const (
	zeroCopyMin   = 32 << 10 // payload of a frame from which pinning pages is cheaper than copying them
	zeroCopyTrial = 64       // reports that all say "copied" until it is switched off
)

// zeroCopy tracks the kernel's reports of MSG_ZEROCOPY: an operation does not end before the kernel
// reported that it no longer uses the memory. Where the kernel copies after all, which costs more
// than an ordinary send, zeroCopy is switched off.
type zeroCopy struct {
	on       bool
	reports  uint64
	copied   uint64
	marks    []zcMark        // by slot
	disorder [][]([2]uint32) // by stream: reports that came before earlier ones
}

// zcMark is what had been sent when an operation was otherwise done.
type zcMark struct {
	gen  uint32
	sent [maxStreams]uint32
}

func (z *zeroCopy) init(p *Path, o *Options) {
	switch {
	case !o.ZeroCopy:
		p.zcLine = "off: it is not asked for"
	case p.sealed:
		p.zcLine = "off: what is sent is encrypted, and not the memory itself"
	default:
		if v, err := sys.Option(p.fds[0], sys.SolSocket, sys.SoZeroCopy); err != nil || v == 0 {
			p.zcLine = fmt.Sprintf("off: the kernel does not have it (SO_ZEROCOPY reads %d, %v)", v, err)
			return
		}
		z.on = true
		z.marks = make([]zcMark, p.window)
		z.disorder = make([][][2]uint32, p.data)
		p.unused = func(slot uint16) bool { return z.unused(p, slot) }
		p.zcLine = fmt.Sprintf("on from %d bytes, until the kernel reports copies", zeroCopyMin)
	}
}

// zeroCopyRun splits off what can be sent in one way: large payload from its pages, everything else
// by copying, because headers are overwritten before the kernel is through with them. No piece of
// scratch is as large as zeroCopyMin.
func zeroCopyRun(v []sys.Iovec) ([]sys.Iovec, int) {
	direct := v[0].Len() >= zeroCopyMin
	n := 1
	for n < len(v) && (v[n].Len() >= zeroCopyMin) == direct {
		n++
	}
	switch {
	case direct:
		return v[:n], sys.MsgZeroCopy
	case n < len(v):
		return v[:n], sys.MsgMore
	}
	return v, 0
}

// unused reports whether the kernel no longer uses the memory of anything that was sent before the
// operation was done.
func (z *zeroCopy) unused(p *Path, slot uint16) bool {
	m := &z.marks[slot]
	if m.gen != p.ops[slot].gen {
		m.gen = p.ops[slot].gen
		for i := range p.data {
			m.sent[i] = p.streams[i].out.zcSent
		}
	}
	for i := range p.data {
		if int32(p.streams[i].out.zcDone-m.sent[i]) < 0 {
			return false
		}
	}
	return true
}

// reap reads the kernel's reports and ends the operations that waited for them.
func (z *zeroCopy) reap(p *Path) {
	if z.marks == nil || p.err != nil {
		return
	}
	for i := range p.data {
		o := &p.streams[i].out
		for o.zcSent != o.zcDone {
			first, last, copied, e := sys.ZeroCopyDone(p.fds[i])
			p.st.Syscalls++
			if e != 0 {
				break
			}
			if int32(last-first) < 0 {
				continue
			}
			n := uint64(last-first) + 1
			z.reports += n
			if copied {
				z.copied += n
				p.st.ZeroCopyCopied += n
			}
			p.dirty = true
			z.done(o, i, first, last)
		}
	}
	if z.on && z.reports >= zeroCopyTrial && z.copied == z.reports {
		z.on = false
		p.mu.Lock()
		p.zcLine = fmt.Sprintf("switched off: the kernel copied all of the first %d sends", z.copied)
		p.mu.Unlock()
	}
	for range p.held.n {
		slot := p.held.pop()
		if z.unused(p, slot) {
			p.finish(slot, p.ops[slot].err)
		} else {
			p.held.push(slot)
		}
	}
}

// done records that sends first to last are through. Reports normally come in order.
func (z *zeroCopy) done(o *output, stream int, first, last uint32) {
	if first != o.zcDone {
		z.disorder[stream] = append(z.disorder[stream], [2]uint32{first, last})
		return
	}
	o.zcDone = last + 1
	for again := true; again; {
		again = false
		d := z.disorder[stream]
		for k := range d {
			if d[k][0] == o.zcDone {
				o.zcDone = d[k][1] + 1
				d[k] = d[len(d)-1]
				z.disorder[stream] = d[:len(d)-1]
				again = true
				break
			}
		}
	}
}
