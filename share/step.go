package share

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// stepSize is the part of an upload that a peer may write to at a time: bytes n*stepSize to
// (n+1)*stepSize of the file, or its end, for each n. A peer gets the step that it is in and the
// one behind it, so an upload takes at most two steps of the disk ahead of what its peer vouched
// for. It is a multiple of chunkSize and of window.
const stepSize = 64 << 20

// uploadStep is a part of an upload that its peer may write to: memory of its own over blocks that
// the disk has.
type uploadStep struct {
	region *mem.Region
	export *transfer.Export
}

// stepLen is how many bytes step n of the file has.
func (c *claim) stepLen(n uint64) uint64 { return min(stepSize, c.size-n*stepSize) }

// room gives the peer step n to write to. The key is zero if that is not ready: the peer asks
// again.
func (u *upload) room(n uint64) (path.Desc, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.p == nil || u.steps == nil {
		return path.Desc{}, errEnded
	}
	now := u.p.good() / stepSize
	if u.p.good() == u.size || n < now || n > now+1 || n*stepSize >= u.size {
		return path.Desc{}, control.Errorf(control.BadRequest,
			"step %d of an upload that is at %d of %d bytes: expected %d or the next one", n, u.p.good(), u.size, now)
	}
	for i, s := range u.steps {
		if i < now { // all of it is acknowledged
			u.endStep(s)
			delete(u.steps, i)
		}
	}
	if s := u.steps[n]; s != nil {
		return s.export.Desc(), nil
	}
	s, err := u.makeStep(n)
	if errors.Is(err, context.DeadlineExceeded) && !u.ended() {
		return path.Desc{}, nil
	}
	if err != nil {
		return path.Desc{}, err
	}
	u.steps[n] = s
	return s.export.Desc(), nil
}

// makeStep allocates a step before it maps it for writing.
func (u *upload) makeStep(n uint64) (*uploadStep, error) {
	up, from, size := &u.s.uploads, n*stepSize, u.stepLen(n)
	done := false
	up.disk.Lock() // what one takes is seen by the next
	err := roomFor(u.p.data, u.p.shown, from+size-min(from+size, u.p.filled), &u.s.o)
	if err == nil {
		done, err = u.p.fallocate(min(from, u.p.filled), from+size) // no holes: they would not be counted
	}
	up.disk.Unlock()
	if err == nil && !done {
		ctx, cancel := context.WithTimeout(u.ctx, up.patience)
		err = u.p.zero(ctx, from+size)
		cancel()
	}
	u.filled.Store(u.p.filled)
	if err != nil {
		return nil, err
	}
	b, err := sys.Mmap(int(u.p.data.Fd()), int64(from), int(size), sys.ProtRead|sys.ProtWrite, sys.MapShared)
	if err != nil {
		return nil, err
	}
	r, err := mem.Adopt(partialOf(u.p.base), b, func() error { return sys.Munmap(b) })
	if err != nil {
		sys.Munmap(b)
		return nil, err
	}
	x, err := u.s.node.Export(r.All(), transfer.ExportOptions{Rights: path.Write, Peer: u.peer})
	if err != nil {
		r.Close()
		return nil, err
	}
	return &uploadStep{r, x}, nil
}

// endStep takes a step back. u.fences ends when the peer can write to it no more. u.mu is held.
func (u *upload) endStep(s *uploadStep) {
	u.fences.Go(func() {
		// Only the first call of Revoke waits for the peer, so it is not cut short.
		if err := s.export.Revoke(context.Background()); err != nil {
			u.mu.Lock()
			u.unfenced = err
			u.mu.Unlock()
		}
		s.region.Close()
	})
}

// fence takes the partial file from the calls of the peer, which cannot write to it any more when
// fence returns.
func (u *upload) fence() (p *partial, err error) {
	u.mu.Lock()
	p, u.p = u.p, nil
	for _, s := range u.steps {
		u.endStep(s)
	}
	u.steps = nil
	u.mu.Unlock()
	u.fences.Wait()
	u.mu.Lock()
	defer u.mu.Unlock()
	return p, u.unfenced
}
