package shm

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/budget"
	"github.com/penstock-io/penstock/internal/handles"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

const (
	// maxAttachments is the number of the peer's exports that are mapped at once; the least
	// recently used gives way.
	maxAttachments = 4096
	// evictAtOnce is how many give way at once.
	evictAtOnce = 64
	// maxAsked is the number of attach requests on their way.
	maxAsked = 64
	// populateBytes is the least copy for which pages are mapped ahead, and populateBlock the grain
	// of that.
	populateBytes = 64 << 10
	populateBlock = 64 << 10
)

// errAttaching says that Borrow has to be tried again.
var errAttaching = fmt.Errorf("transfer/path/shm: borrow: the export is being attached, poll and try again: %w",
	path.ErrFull)

type attachState uint8

const (
	attachAsked attachState = iota
	attachReady
	attachFailed
)

// attachment is an export of the peer. The path's owner uses it; any goroutine may release views of
// it.
type attachment struct {
	p      *Path
	key    path.Key
	state  attachState
	rights path.Rights
	err    error  // why it failed
	main   []byte // for copying: writable when the rights say so
	view   []byte // for Borrow: never writable; main itself when that is read-only, or nil until the first Borrow
	opSeq  uint64 // operation that used it last: it is not given up under a running one
	used   uint64 // by Path.useClock
	pages  touched
	views  handles.Table
	grant  *budget.Grant // of the mappings

	// refs counts the path itself and each view. The release that brings it to 0 unmaps.
	refs atomic.Int64
}

// ready returns an attachment that can be used now, or nil.
func (p *Path) ready(key path.Key) *attachment {
	a := p.atts[key]
	if a == nil || a.state != attachReady {
		return nil
	}
	p.useClock++
	a.used = p.useClock
	p.last = a
	return a
}

// attached returns the attachment of key, or asks the peer for it and returns errWait. A failure is
// reported once.
func (p *Path) attached(key path.Key) (*attachment, error) {
	if a := p.ready(key); a != nil {
		return a, nil
	}
	if a := p.atts[key]; a != nil {
		if a.state == attachAsked {
			return nil, errWait
		}
		delete(p.atts, key)
		return nil, a.err
	}
	if len(p.asked) >= maxAsked {
		return nil, errWait
	}
	if len(p.atts) >= maxAttachments && !p.evict() {
		return nil, fmt.Errorf("transfer/path/shm: more than %d exports of the peer in use at once: %w", maxAttachments,
			path.ErrUnreachable)
	}
	a := &attachment{p: p, key: key}
	p.askID++
	p.atts[key], p.asked[p.askID] = a, a
	p.send(packet{kind: packetAttach, id: p.askID, key: key}, -1)
	return nil, errWait
}

// evict gives up the attachments that were not used for longest, several at once because finding
// them takes a look at all.
func (p *Path) evict() bool {
	var running uint64
	if p.queued > 0 {
		running = p.fifo[p.head&p.mask].seq
	}
	var old []*attachment
	for _, a := range p.atts {
		if a.state == attachFailed {
			delete(p.atts, a.key)
			return true
		}
		if a.state == attachReady && a.refs.Load() == 1 && (running == 0 || a.opSeq != running) {
			old = append(old, a)
		}
	}
	slices.SortFunc(old, func(a, b *attachment) int { return cmp.Compare(a.used, b.used) })
	old = old[:min(len(old), evictAtOnce)]
	for _, a := range old {
		p.detach(a)
	}
	p.flushGone()
	return len(old) > 0
}

// askAhead asks for the exports of the blocks after the one that waits, so that a list of many is
// not one round trip for each.
func (p *Path) askAhead(s *slot) {
	for i := s.block + 1; i < min(len(s.copies), s.block+maxAsked) && len(p.asked) < maxAsked/2; i++ {
		k := s.copies[i].Key
		if p.atts[k] != nil {
			continue
		}
		if _, err := p.attached(k); err != errWait {
			return
		}
		if a := p.atts[k]; a != nil {
			a.opSeq = s.seq
		}
	}
}

// attachedReply is the peer's answer to a request.
func (p *Path) attachedReply(k *packet, fd int) {
	a := p.asked[k.id]
	if a == nil {
		p.fail(fmt.Errorf("answer to attach request %d, which is not open: %w", k.id, path.ErrProtocol), false)
		return
	}
	if k.arg != statusOK {
		delete(p.asked, k.id)
		a.state, a.err = attachFailed, statusError(k.arg)
		return
	}
	if err := checkSealed(fd, k.off, k.size); err != nil {
		p.fail(fmt.Errorf("export: %w", err), false)
		return
	}
	delete(p.asked, k.id)
	prot, mappings := sys.ProtRead, uint64(1)
	if k.rights&path.Write != 0 {
		prot |= sys.ProtWrite
		if k.rights&path.Read != 0 {
			mappings = 2
		}
	}
	pages := newTouched(k.size)
	grant, err := budget.Process().Take(p.principal,
		budget.Amounts{budget.Mappings: mappings, budget.Address: mappings * k.size,
			budget.Memory: 8 * uint64(len(pages))})
	if err != nil {
		p.unmapped(a, err)
		return
	}
	m, err := sys.Mmap(fd, int64(k.off), int(k.size), prot, sys.MapShared)
	if err == nil && k.rights&path.Write != 0 && k.rights&path.Read != 0 {
		// A separate mapping for views, so that a stray write through one faults instead of
		// reaching the peer's memory.
		if a.view, err = sys.Mmap(fd, int64(k.off), int(k.size), sys.ProtRead, sys.MapShared); err != nil {
			sys.Munmap(m)
		}
	}
	if err != nil {
		grant.Release()
		p.unmapped(a, err)
		return
	}
	a.grant = grant
	a.main, a.rights, a.state = m, k.rights, attachReady
	if k.rights == path.Read {
		a.view = m
	}
	a.pages = pages
	a.refs.Store(1)
	p.useClock++
	a.used = p.useClock
}

// unmapped ends an attachment that cannot be mapped.
func (p *Path) unmapped(a *attachment, err error) {
	a.state, a.err = attachFailed, fmt.Errorf("transfer/path/shm: the peer's export cannot be mapped: %w: %w",
		path.ErrUnreachable, err)
	p.send(packet{kind: packetLetGo, key: a.key}, -1)
}

// detach ends the use of an attachment by the path: nothing can be written any more when it
// returns, and the mapping goes with the last view.
func (p *Path) detach(a *attachment) {
	delete(p.atts, a.key)
	if p.last == a {
		p.last = nil
	}
	if a.rights&path.Write != 0 {
		sys.Munmap(a.main)
	}
	a.main = nil
	p.viewed[a.key] = struct{}{} // until flushGone
	a.drop()
}

// EndView gives the reference of a view back.
func (a *attachment) EndView(handle uint64) error {
	if !a.views.Give(handles.Handle(handle)) {
		return fmt.Errorf("transfer/path/shm: borrowed memory: %w", mem.ErrReleased)
	}
	a.drop()
	return nil
}

// drop gives one reference back.
func (a *attachment) drop() {
	if a.refs.Add(-1) != 0 {
		return
	}
	if a.view != nil {
		sys.Munmap(a.view)
	}
	a.grant.Release()
	p := a.p
	p.mu.Lock()
	if !p.bellDead {
		p.gone = append(p.gone, a.key)
		p.hasGone.Store(true)
	}
	p.mu.Unlock()
	p.ringSelf() // the owner tells the peer
}

// flushGone tells the peer which of its exports are not mapped any more.
func (p *Path) flushGone() {
	p.mu.Lock()
	gone := p.gone
	p.gone = nil
	p.hasGone.Store(false)
	p.mu.Unlock()
	for _, k := range gone {
		delete(p.viewed, k)
		p.send(packet{kind: packetLetGo, key: k}, -1)
	}
}

// Borrow gives a read-only view of the peer's export without copying. The pages are mapped for
// reading only: a write through the view is a fault in the writer. A view outlives Close and the
// peer; the peer's Fence waits for its release.
func (p *Path) Borrow(key path.Key, off, n uint64) (path.View, error) {
	a := p.last
	if a == nil || a.key != key {
		if p.downErr != nil {
			return path.View{}, p.downErr
		}
		var err error
		if a, err = p.attached(key); err != nil {
			if err == errWait {
				err = errAttaching
			}
			return path.View{}, err
		}
	}
	if a.rights&path.Read == 0 {
		return path.View{}, errGetRight
	}
	if size := uint64(len(a.view)); off > size || n > size-off {
		return path.View{}, errBounds
	}
	a.refs.Add(1)
	return path.NewView(a.view[off:off+n:off+n], a, uint64(a.views.Take())), nil
}

// touched remembers which blocks of a mapping have their pages mapped already. It only saves
// faults: being wrong is harmless.
type touched []uint64

// newTouched remembers the first 16 GiB: the size is the peer's choice, and sparse memory costs it
// nothing.
func newTouched(size uint64) touched {
	return make(touched, min((size+64*populateBlock-1)/(64*populateBlock), 4096))
}

// populate maps the pages of all blocks that m[off:off+n] touches, unless that was done before.
func (t touched) populate(m []byte, off, n uint64, write bool) {
	first, end := off/populateBlock, min((off+n+populateBlock-1)/populateBlock, 64*uint64(len(t)))
	for b := first; b < end; b++ {
		if t[b/64]&(1<<(b%64)) != 0 {
			continue
		}
		run := b
		for b < end && t[b/64]&(1<<(b%64)) == 0 {
			t[b/64] |= 1 << (b % 64)
			b++
		}
		pages := m[run*populateBlock : min(b*populateBlock, uint64(len(m)))]
		// An error shows again as a fault when the bytes are touched.
		if write {
			sys.PopulateWrite(pages)
		} else {
			sys.PopulateRead(pages)
		}
	}
}

// fence starts to wait until the peer has unmapped an export of ours that was revoked.
func (p *Path) fence(op *path.Op) {
	region, ok := p.granted[op.Key]
	if !ok {
		p.addDone(done{token: op.Token, kind: path.Fence})
		return
	}
	for i := len(p.regions) - 1; i >= 0; i-- {
		if p.regions[i].r == region {
			p.takeBack(i) // goes before, so that the answer covers it
		}
	}
	p.fences = append(p.fences, fence{op.Token, op.Key})
	p.send(packet{kind: packetRevoke, key: op.Key}, -1)
}

// letGo is the peer's word that it has unmapped an export.
func (p *Path) letGo(key path.Key) {
	delete(p.granted, key)
	p.fences = slices.DeleteFunc(p.fences, func(f fence) bool {
		if f.key == key {
			p.addDone(done{token: f.token, kind: path.Fence})
		}
		return f.key == key
	})
}

// revoked is the peer's wish that we unmap its export.
func (p *Path) revoked(key path.Key) {
	a := p.atts[key]
	if a == nil || a.state != attachReady {
		// Given up already, or not yet handed over: the answer to that request will say that it is
		// revoked. If views of it are still out, their release will tell.
		if _, ok := p.viewed[key]; !ok {
			p.send(packet{kind: packetLetGo, key: key}, -1)
		}
		return
	}
	if p.queued > 0 {
		s := &p.fifo[p.head&p.mask]
		if a.opSeq == s.seq && s.phase <= phaseCopy {
			if p.abandon(s, errRevoked); p.downErr != nil {
				return // which has detached it
			}
		}
	}
	p.detach(a)
	p.flushGone()
}
