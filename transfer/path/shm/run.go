package shm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer/path"
)

// stop says why run returned while operations are queued.
type stop uint8

const (
	stopBudget stop = iota // more to copy now
	stopAttach             // the peer has to hand over an export
	stopRoom               // the peer has to take notifications out
	stopHelper             // the peer has to finish the chunks that it copies
)

// wholeBlocks is the size in bytes from which a block of a list is copied as a part of the whole
// operation, so that a long list of them bypasses the caches like one large block.
const wholeBlocks = 64 << 10

// longBytes is a copy that takes as long as many polls.
const longBytes = 1 << 20

var errShut = errors.New("the peer has closed the path")

var errWait = errors.New("waiting for the peer to hand over its memory")

// What is refused on the way is refused without allocating, so that bad operations in a loop cost
// nothing either.
var (
	errBounds = fmt.Errorf("transfer/path/shm: a block is not inside the peer's export (its RemoteOff + Local.Len "+
		"exceeds Desc.Size): %w", path.ErrBounds)
	errPutRight = fmt.Errorf("transfer/path/shm: put into an export that the peer gave for reading only: %w",
		path.ErrRights)
	errGetRight = fmt.Errorf("transfer/path/shm: get from an export that the peer gave for writing only: %w",
		path.ErrRights)
	errRevoked  = fmt.Errorf("transfer/path/shm: the peer revoked the export: %w", path.ErrRevoked)
	errCanceled = fmt.Errorf("transfer/path/shm: %w", path.ErrCanceled)
)

// run does operations in order until about budget bytes are copied or the first one has to wait.
// Budget 0 tries only what copies nothing.
func (p *Path) run(budget uint64) {
	for p.queued > 0 {
		s := &p.fifo[p.head&p.mask]
		switch s.phase {
		case phaseResolve:
			err := p.resolve(s)
			if p.downErr != nil {
				return
			}
			if err == errWait {
				p.stopped = stopAttach
				return
			} else if err != nil {
				p.finish(s, err)
				continue
			}
			s.block = 0
			s.phase = phaseCopy
			fallthrough
		case phaseCopy:
			if s.block < len(s.copies) {
				n, err := p.copyBlocks(s, budget)
				if n >= longBytes {
					p.ticks -= int(n / (16 << 10)) // look at the socket after about as much time as after so many polls
				}
				budget -= min(n, budget)
				if p.downErr != nil {
					return
				}
				if err != nil {
					p.abandon(s, err)
					continue
				}
				if s.block < len(s.copies) {
					return // copyBlocks has set stopped
				}
			}
			if !s.notify {
				p.finish(s, nil)
				continue
			}
			s.phase = phaseNotify
			fallthrough
		case phaseNotify:
			if !p.put(messageNotify, s.imm, s.total, 0, 0, s.msg) {
				if p.downErr != nil {
					return
				}
				p.stopped = stopRoom
				return
			}
			p.stats.sent.Add(1)
			p.finish(s, nil)
		case phaseDrain:
			if !p.jobQuiet() {
				if p.downErr == nil {
					p.stopped = stopHelper
				}
				return
			}
			p.job.active = false
			p.finish(s, s.err)
		}
	}
}

// overtake does a small operation at once while the first of the queue, a large one, is being
// copied. It returns false when that cannot be: then the operation takes its turn, also to fail if
// it is wrong. Notifications keep their order; a put or get has none (package pathtest).
func (p *Path) overtake(op *path.Op, total uint64) bool {
	if first := &p.fifo[p.head&p.mask]; first.phase != phaseCopy || first.total <= inlineBytes || op.Kind != path.Put &&
		op.Kind != path.Get {
		return false
	}
	want := path.Write
	if op.Kind == path.Get {
		want = path.Read
	}
	for i := range op.Copies {
		c := &op.Copies[i]
		a := p.atts[c.Key]
		if a == nil || a.state != attachReady || a.rights&want == 0 {
			return false
		}
		if size := uint64(len(a.main)); c.RemoteOff > size || c.Local.Len > size-c.RemoteOff {
			return false
		}
	}
	d := done{token: op.Token, kind: op.Kind, bytes: total}
	if err := p.copySmall(op, total); err != nil {
		d.bytes, d.err = 0, err
	} else if op.Notify {
		if !p.put(messageNotify, op.Imm, total, 0, 0, op.Msg) {
			return false // no room, or down: its bytes are copied again, or were copied for nothing
		}
		p.stats.sent.Add(1)
	}
	p.seq++
	p.addDone(d)
	return true
}

// copySmall copies all blocks of an operation, whose exports are ready.
func (p *Path) copySmall(op *path.Op, total uint64) error {
	s := &p.small
	s.kind, s.total = op.Kind, total
	return guard(func() {
		for i := range op.Copies {
			c := &op.Copies[i]
			if c.Local.Len > 0 {
				p.copyPart(s, c, p.atts[c.Key], 0, c.Local.Len)
			}
		}
	})
}

// put sends one message and wakes the peer if it sleeps. It returns false when there is no room, or
// the path went down.
func (p *Path) put(kind uint8, a, b, c, d uint64, payload []byte) bool {
	ok, err := p.tx.Put(kind, a, b, c, d, payload)
	if !ok {
		if err != nil {
			p.fail(fmt.Errorf("message ring: %w: %w", path.ErrProtocol, err), false)
		}
		return false
	}
	switch p.peerState() {
	case awake:
	case shut: // the peer may have read it or not: so it does not count as delivered
		p.fail(errShut, true)
		return false
	default:
		p.ringPeer()
	}
	return true
}

// resolve finds the exports of all blocks and checks rights and bounds before the first byte is
// copied.
func (p *Path) resolve(s *slot) error {
	want := path.Write
	if s.kind == path.Get {
		want = path.Read
	}
	for ; s.block < len(s.copies); s.block++ {
		c := &s.copies[s.block]
		a := p.last
		if a == nil || a.key != c.Key {
			var err error
			fresh := p.atts[c.Key] == nil
			if a, err = p.attached(c.Key); err != nil {
				if err == errWait && fresh {
					p.askAhead(s)
				}
				return err
			}
		}
		a.opSeq = s.seq
		if a.rights&want == 0 {
			if s.kind == path.Get {
				return errGetRight
			}
			return errPutRight
		}
		if size := uint64(len(a.main)); c.RemoteOff > size || c.Local.Len > size-c.RemoteOff {
			return errBounds
		}
	}
	return nil
}

// copyBlocks copies up to budget bytes. A fault in the peer's memory (huge pages that it punched a
// hole into) is an error.
func (p *Path) copyBlocks(s *slot, budget uint64) (used uint64, err error) {
	if fault := guard(func() { err = p.copyBare(s, budget, &used) }); fault != nil {
		return used, fault
	}
	return used, err
}

// copyBare is copyBlocks without the guard: it counts in used what it copied.
func (p *Path) copyBare(s *slot, budget uint64, used *uint64) error {
	for s.block < len(s.copies) {
		c := &s.copies[s.block]
		if left := c.Local.Len - s.off; left > 0 {
			if *used >= budget && !p.job.active { // a job may only have to wait for its helper
				p.stopped = stopBudget
				return nil
			}
			a := p.last
			if a == nil || a.key != c.Key {
				if a = p.ready(c.Key); a == nil {
					return errRevoked
				}
			}
			helped := p.job.active || s.off == 0 && left >= helpBytes && p.startJob(s, c, a)
			if p.downErr != nil { // the peer was seen to have gone while the job was offered: its memory is unmapped
				return nil
			}
			if helped {
				n, ready := p.runJob(s, c, a, budget-min(*used, budget))
				*used += n
				if !ready {
					return nil
				}
			} else {
				n := min(left, budget-*used)
				p.copyPart(s, c, a, s.off, n)
				s.off += n
				*used += n
				if n < left {
					p.stopped = stopBudget
					return nil
				}
			}
		}
		s.block++
		s.off = 0
	}
	return nil
}

// copyPart copies n bytes of block c from off.
func (p *Path) copyPart(s *slot, c *path.Copy, a *attachment, off, n uint64) {
	local := c.Local.Bytes()[off : off+n]
	at := c.RemoteOff + off
	remote := a.main[at : at+n]
	if n >= populateBytes {
		a.pages.populate(a.main, at, n, s.kind == path.Put)
	}
	dst, src := remote, local
	if s.kind == path.Get {
		dst, src = local, remote
	}
	if n < wholeBlocks {
		copy(dst, src)
	} else {
		vec.CopyPart(dst, src, int(s.total))
	}
}

// guard calls f, which touches the peer's memory, and makes an error of a fault there.
func guard(f func()) error {
	if err := mem.Guard(f); err != nil {
		return fmt.Errorf("transfer/path/shm: the peer's memory cannot be accessed (%v): %w", err, path.ErrUnreachable)
	}
	return nil
}

// finish ends the first operation of the queue.
func (p *Path) finish(s *slot, err error) {
	d := done{token: s.token, kind: s.kind, err: err}
	if err == nil {
		d.bytes = s.total
	}
	p.release(s)
	p.head++
	p.queued--
	p.addDone(d)
}

// release drops what a slot refers to.
func (p *Path) release(s *slot) {
	if s.owned {
		p.buffers = append(p.buffers, s.msg[:0])
	}
	s.copies, s.msg, s.err, s.owned = nil, nil, nil, false
}

func (p *Path) addDone(d done) {
	p.dones[(p.doneHead+uint64(p.doneLen))&p.mask] = d
	p.doneLen++
}

// abandon ends the first operation early, once the peer has stopped copying for it.
func (p *Path) abandon(s *slot, err error) {
	if !p.job.active {
		p.finish(s, err)
		return
	}
	p.closeJob()
	s.phase, s.err = phaseDrain, err
}

// Cancel ends an operation early. One whose bytes are all placed ends with ErrCanceled too if its
// notification was not sent.
func (p *Path) Cancel(token uint64) bool {
	if p.downErr != nil {
		return false
	}
	err := errCanceled
	found := false
	for i := range p.queued {
		s := &p.fifo[(p.head+uint64(i))&p.mask]
		if s.token != token {
			continue
		}
		found = true
		if i == 0 {
			if s.phase != phaseDrain {
				p.abandon(s, err)
				p.run(0)
			}
			break
		}
		// Later ones move up: they keep their order.
		d := done{token: s.token, kind: s.kind, err: err}
		p.release(s)
		for k := i; k < p.queued-1; k++ {
			p.fifo[(p.head+uint64(k))&p.mask] = p.fifo[(p.head+uint64(k)+1)&p.mask]
		}
		p.queued--
		p.addDone(d)
		break
	}
	if !found {
		if i := slices.IndexFunc(p.fences, func(f fence) bool { return f.token == token }); i >= 0 {
			p.fences = slices.Delete(p.fences, i, i+1)
			p.addDone(done{token: token, kind: path.Fence, err: err})
			found = true
		}
	}
	if found && p.armed {
		p.ringSelf()
	}
	return found
}
