package shm

import (
	"encoding/binary"
	"fmt"

	"github.com/penstock-io/penstock/internal/budget"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/transfer/path"
)

// One core copies at about half of what the memory can do, so both sides copy a large put: the
// poster publishes a job, and both claim chunks of it until none is left.
//
// The poster has lent its local region before, read-only (packetRegion). The message says which
// bytes of it go where in which export of the helper. Two words in the control memory hold, each
// with the job's generation in the upper half, the next chunk that is not claimed (both sides claim
// by compare-and-swap) and the number of chunks that the helper has finished. The poster ends the
// job, normally or early, by claiming all that is left; then it waits until as many chunks are
// finished as it did not claim itself. So the operation ends only when neither side writes any
// more, unless the helper is dead.
//
// The helper writes only into its own exports, inside its own Poll: a helper that was stopped in
// the middle of a chunk can never write into the poster's memory, and its own side has finished the
// chunk when it reports the path as down.
const (
	helpBytes   = 8 << 20 // least block that is worth it
	chunkBytes  = 512 << 10
	maxChunks   = 1 << 22
	maxRegions  = 8 // regions lent at once, in each direction
	helpPayload = path.KeySize + 8
)

// helpRegion is a local region that was lent to the peer.
type helpRegion struct {
	r  *mem.Region
	id uint32
}

// lentRegion is a region of the peer. A process that touches a page that a sparse memfd does not
// have makes the page, and the kernel charges that process for it. So a region is mapped only if it
// may have all its pages, and copied from the mapping only where it has; otherwise it is read, and
// reading finds zeros where there are no pages.
type lentRegion struct {
	fd    int
	size  uint64
	mem   []byte        // nil: not mapped
	grant *budget.Grant // of the descriptor and the mapping
}

// whole reports whether the region has as many pages as it needs.
func (r *lentRegion) whole() bool {
	n, err := sys.AllocatedSize(r.fd)
	return err == nil && n >= r.size
}

// present reports whether a part of the region is mapped and has all its pages. That of the whole
// region says little: pages beyond the end of a file count as well, and it may be punched.
func (r *lentRegion) present(off, n uint64) bool {
	if r.mem == nil {
		return false
	}
	var pages [chunkBytes/4096 + 1]byte
	ok, err := sys.InCore(r.mem[off:off+n], pages[:])
	return err == nil && ok
}

func (r lentRegion) close() {
	if r.mem != nil {
		sys.Munmap(r.mem)
	}
	sys.Close(r.fd)
	r.grant.Release()
}

// ownJob is a job of this side.
type ownJob struct {
	active bool
	gen    uint32
	count  uint32 // chunks
	next   uint32 // claim word as last seen: it never goes back
	own    uint32 // chunks that we claimed
	bytes  uint64 // of those
	len    uint64
}

// helpJob is a job of the peer.
type helpJob struct {
	active bool
	gen    uint32
	count  uint32
	done   uint32     // chunks that we finished
	owed   uint32     // generation to report as left, 0 for none
	src    lentRegion // one of Path.lent
	from   uint64     // where in it the job begins
	len    uint64
	key    path.Key
	off    uint64
}

func jobWord(gen, n uint32) uint64 { return uint64(gen)<<32 | uint64(n) }

// startJob offers block c to the peer. Whatever stands against it, the poster copies alone, unless
// the path went down.
func (p *Path) startJob(s *slot, c *path.Copy, a *attachment) bool {
	if !p.helps || s.kind != path.Put || c.Local.Region.FD() < 0 || len(p.out) > 0 {
		return false
	}
	id, ok := p.lendRegion(c.Local.Region)
	if !ok {
		return false
	}
	j := &p.job
	j.gen++
	if j.gen == 0 {
		j.gen = 1
	}
	n := (c.Local.Len + chunkBytes - 1) / chunkBytes
	if n > maxChunks {
		return false
	}
	*j = ownJob{active: true, gen: j.gen, count: uint32(n), len: c.Local.Len}
	p.ctl.ownDone.Store(jobWord(j.gen, 0))
	p.ctl.ownClaim.Store(jobWord(j.gen, 0))
	var b [helpPayload]byte
	c.Key.Append(b[:0])
	binary.LittleEndian.PutUint32(b[path.KeySize:], id)
	binary.LittleEndian.PutUint32(b[path.KeySize+4:], j.gen)
	if !p.put(messageHelp, c.Local.Off, c.Local.Len, c.RemoteOff, 0, b[:]) {
		j.active = false
		return false
	}
	return true
}

// claim takes the next chunk of our job.
func (p *Path) claim() (chunk uint32, ok bool) {
	j := &p.job
	for {
		w := p.ctl.ownClaim.Load()
		n := uint32(w)
		if uint32(w>>32) != j.gen || n < j.next || n > j.count {
			p.fail(fmt.Errorf("claim word %#x of job %d with %d chunks, %d claimed: %w", w, j.gen, j.count, j.next,
				path.ErrProtocol), false)
			return 0, false
		}
		j.next = n
		if n == j.count {
			return 0, false
		}
		if p.ctl.ownClaim.CompareAndSwap(w, w+1) {
			j.next++
			j.own++
			return n, true
		}
	}
}

// runJob copies chunks of block c, together with the peer. ready means that the whole block is
// placed.
func (p *Path) runJob(s *slot, c *path.Copy, a *attachment, budget uint64) (used uint64, ready bool) {
	j := &p.job
	for used < budget {
		i, ok := p.claim()
		if !ok {
			break
		}
		off := uint64(i) * chunkBytes
		n := min(chunkBytes, j.len-off)
		p.copyPart(s, c, a, off, n)
		j.bytes += n
		used += n
	}
	switch {
	case p.downErr != nil:
		return used, false
	case j.next < j.count:
		p.stopped = stopBudget
		return used, false
	case !p.jobQuiet():
		p.stopped = stopHelper
		return used, false
	}
	j.active = false
	p.stats.helped.Add(j.len - j.bytes)
	return used, true
}

// jobQuiet reports whether the peer has finished all chunks that it claimed of our job, of which
// none is left to claim.
func (p *Path) jobQuiet() bool {
	j := &p.job
	if j.next < j.count {
		return false
	}
	w := p.ctl.ownDone.Load()
	if n := uint32(w); uint32(w>>32) != j.gen || n > j.count-j.own {
		p.fail(fmt.Errorf("done word %#x of job %d, of which the peer claimed %d chunks: %w", w, j.gen, j.count-j.own,
			path.ErrProtocol), false)
		return false
	}
	return uint32(w) == j.count-j.own
}

// closeJob claims all that is left, so that the peer finds nothing more to do.
func (p *Path) closeJob() {
	j := &p.job
	w := p.ctl.ownClaim.Swap(jobWord(j.gen, j.count))
	n := uint32(w)
	if uint32(w>>32) != j.gen || n < j.next || n > j.count {
		p.fail(fmt.Errorf("claim word %#x of job %d with %d chunks: %w", w, j.gen, j.count, path.ErrProtocol), false)
		return
	}
	j.own += j.count - n
	j.next = j.count
}

// lendRegion returns the number under which the peer knows a region.
func (p *Path) lendRegion(r *mem.Region) (uint32, bool) {
	for i := range p.regions {
		if p.regions[i].r == r {
			return p.regions[i].id, true
		}
	}
	if seals, err := sys.Seals(r.FD()); err != nil || seals&sys.SealShrink == 0 {
		return 0, false
	}
	fd, err := sys.ReopenReadOnly(r.FD())
	if err != nil {
		return 0, false
	}
	if len(p.regions) == maxRegions {
		p.takeBack(0)
	}
	p.regionID++
	p.regions = append(p.regions, helpRegion{r, p.regionID})
	p.send(packet{kind: packetRegion, id: p.regionID, size: r.Len()}, fd)
	return p.regionID, len(p.out) == 0
}

// takeBack makes the peer close a lent region.
func (p *Path) takeBack(i int) {
	id := p.regions[i].id
	p.regions = append(p.regions[:i], p.regions[i+1:]...)
	p.send(packet{kind: packetForget, id: id}, -1)
}

// sweepRegions takes back regions that this side has closed, so that the peer's descriptor does not
// keep their memory.
func (p *Path) sweepRegions() {
	for i := len(p.regions) - 1; i >= 0; i-- {
		select {
		case <-p.regions[i].r.Unmapped():
			p.takeBack(i)
		default:
		}
	}
}

// lend keeps a region of the peer, if the peer may put and has descriptors left; otherwise it
// copies alone.
func (p *Path) lend(k *packet, fd int) {
	if _, known := p.lent[k.id]; known || len(p.lent) >= maxRegions || !p.helps {
		p.fail(fmt.Errorf("region %d lent beyond what was agreed: %w", k.id, path.ErrProtocol), false)
		return
	}
	if err := checkSealed(fd, 0, k.size); err != nil {
		p.fail(fmt.Errorf("region: %w", err), false)
		return
	}
	if p.reach.Rights()&path.Write == 0 {
		p.stats.rejected.Add(1)
		return
	}
	r := lentRegion{fd: fd, size: k.size}
	a := budget.Amounts{budget.Descriptors: 1}
	whole := r.whole()
	if whole {
		a[budget.Mappings], a[budget.Address] = 1, k.size
	}
	var err error
	if r.grant, err = budget.Process().Take(p.principal, a); err != nil {
		return
	}
	if r.fd, err = sys.Dup(fd); err != nil {
		r.grant.Release()
		return
	}
	if whole {
		r.mem, _ = sys.Mmap(r.fd, 0, int(k.size), sys.ProtRead, sys.MapShared) // otherwise it is read
	}
	p.lent[k.id] = r
}

// forget gives up a region of the peer.
func (p *Path) forget(k *packet) {
	m, ok := p.lent[k.id]
	if !ok {
		return // it was not kept
	}
	if p.helping.active {
		if p.leaveJob(); p.downErr != nil {
			return // which has closed it
		}
	}
	delete(p.lent, k.id)
	m.close()
}

// startHelping takes a job of the peer over.
func (p *Path) startHelping(m *ring.Message) {
	if len(m.Payload()) != helpPayload || !p.helps {
		p.fail(fmt.Errorf("job description of %d bytes: %w", m.Len, path.ErrProtocol), false)
		return
	}
	p.payHelped()
	b := m.Payload()
	id := binary.LittleEndian.Uint32(b[path.KeySize:])
	if _, ok := p.lent[id]; !ok {
		p.receive() // the region was sent before the message, but on the socket
	}
	src, ok := p.lent[id]
	off, n, at := m.Words[0], m.Words[1], m.Words[2]
	if !ok || p.downErr != nil {
		return
	}
	if off > src.size || n > src.size-off || n == 0 || n > maxChunks*chunkBytes {
		p.fail(fmt.Errorf("job of %d bytes at %d in a region of %d: %w", n, off, src.size, path.ErrProtocol), false)
		return
	}
	key := path.ParseKey(b)
	if _, err := p.reach.Resolve(key, at, n, path.Write); err != nil {
		p.stats.rejected.Add(1)
		return
	}
	p.helping = helpJob{active: true, gen: binary.LittleEndian.Uint32(b[path.KeySize+4:]),
		count: uint32((n + chunkBytes - 1) / chunkBytes),
		src:   src, from: off, len: n, key: key, off: at, owed: p.helping.owed}
}

// help copies chunks of the peer's job.
func (p *Path) help() {
	j := &p.helping
	// Resolved again each time: the export may have been revoked. Its bytes stay mapped until this
	// path was fenced for it.
	dst, err := p.reach.Resolve(j.key, j.off, j.len, path.Write)
	if err != nil {
		p.leaveJob()
		return
	}
	// A peer that plays with the word can make every attempt fail: there are only so many.
	for copied, tries := 0, 0; copied < quantum && tries < 64; tries++ {
		w := p.ctl.peerClaim.Load()
		i := uint32(w)
		if uint32(w>>32) != j.gen || i >= j.count {
			p.leaveJob()
			return
		}
		if !p.ctl.peerClaim.CompareAndSwap(w, w+1) {
			continue
		}
		off := uint64(i) * chunkBytes
		n := min(chunkBytes, j.len-off)
		if err := j.copyChunk(dst[off:off+n], j.from+off); err != nil {
			p.fail(err, false)
			return
		}
		copied += int(n)
		j.done++
		p.stats.placed.Add(n)
		p.ctl.peerDone.Store(jobWord(j.gen, j.done))
	}
}

func (j *helpJob) copyChunk(dst []byte, off uint64) error {
	if j.src.present(off, uint64(len(dst))) {
		return guard(func() { vec.CopyPart(dst, j.src.mem[off:off+uint64(len(dst))], int(j.len)) })
	}
	for len(dst) > 0 {
		n, err := sys.Pread(j.src.fd, dst, int64(off))
		if err != nil || n == 0 { // 0: its end, where a seal says that there is none
			return fmt.Errorf("transfer/path/shm: the region that the peer lent cannot be read at %d (%v): %w", off,
				err, path.ErrUnreachable)
		}
		dst, off = dst[n:], off+uint64(n)
	}
	return nil
}

// leaveJob ends the help and tells the peer, which may sleep until then.
func (p *Path) leaveJob() {
	j := &p.helping
	if j.done > 0 {
		j.owed = j.gen
	}
	*j = helpJob{owed: j.owed}
	p.payHelped()
}

// payHelped sends the message that could not be sent for lack of room.
func (p *Path) payHelped() {
	if p.helping.owed != 0 && p.downErr == nil && p.put(messageHelped, uint64(p.helping.owed), 0, 0, 0, nil) {
		p.helping.owed = 0
	}
}
