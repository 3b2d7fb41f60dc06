package gpumem

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/mem"
)

// maxBounces is how many copies of other memory go on at once.
const maxBounces = 2

// bounce is a way for bytes of memory that the runtime does not know: pinned memory in two halves,
// of which the CPU has one and the device the other.
type bounce struct {
	mu   sync.Mutex
	s    *gpu.Stream
	half [2]half
	ops  [2]gpu.Op
}

type half struct {
	m  *gpu.Memory
	ev *gpu.Event // behind the device's last work on it
}

func newBounce(c *gpu.Context, name string, size uint64) (*bounce, error) {
	b := &bounce{}
	err := func() (err error) {
		if b.s, err = c.NewStream(gpu.StreamOptions{Name: name}); err != nil {
			return err
		}
		for i := range b.half {
			h := &b.half[i]
			if h.m, err = c.Alloc(gpu.MemoryOptions{Name: name + " bounce", Kind: gpu.PinnedMemory,
				Size: size}); err != nil {
				return err
			}
			if h.ev, err = c.NewEvent(gpu.EventOptions{Name: name}); err != nil {
				return err
			}
		}
		return nil
	}()
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// close gives back what there is.
func (b *bounce) close() error {
	var errs []error
	if b.s != nil {
		errs = append(errs, b.s.Close())
	}
	for i := range b.half {
		if h := &b.half[i]; h.ev != nil {
			errs = append(errs, h.ev.Close())
		}
		if h := &b.half[i]; h.m != nil {
			errs = append(errs, h.m.Close())
		}
	}
	return errors.Join(errs...)
}

// way returns a locked bounce, or a locked copyStream where there is none.
func (p *Provider) way() (*bounce, *copyStream) {
	n := int(p.next.Add(1))
	if len(p.bounces) == 0 {
		l := &p.streams[n%len(p.streams)]
		l.mu.Lock()
		return nil, l
	}
	b := p.bounces[n%len(p.bounces)]
	b.mu.Lock()
	return b, nil
}

// store copies memory that the runtime does not know, and returns when that is done.
func (p *Provider) store(dst gpu.Span, src []byte) (mem.Move, error) {
	p.counts.bounced.Add(dst.Len)
	b, l := p.way()
	var err error
	if b != nil {
		err = b.finish(b.store(dst, src))
		b.mu.Unlock()
	} else {
		err = l.s.Write(dst, src)
		l.mu.Unlock()
	}
	return p.bounced(err, dst.Len)
}

// load is store the other way.
func (p *Provider) load(dst []byte, src gpu.Span) (mem.Move, error) {
	p.counts.bounced.Add(src.Len)
	b, l := p.way()
	var err error
	if b != nil {
		err = b.finish(b.load(dst, src))
		b.mu.Unlock()
	} else {
		err = l.s.Read(dst, src)
		l.mu.Unlock()
	}
	return p.bounced(err, src.Len)
}

func (p *Provider) bounced(err error, n uint64) (mem.Move, error) {
	if err != nil {
		return nil, fmt.Errorf("gpumem: %s: copy of %d bytes: %w", p.o.Name, n, err)
	}
	return over{}, nil
}

// store puts pieces into the halves in turn. The device is behind the CPU by one piece.
func (b *bounce) store(dst gpu.Span, src []byte) error {
	size := b.half[0].m.Size()
	for i := 0; len(src) > 0; i++ {
		h := &b.half[i%2]
		if i >= 2 {
			if err := await(h.ev); err != nil {
				return err
			}
		}
		n := min(size, uint64(len(src)))
		if _, err := mem.CopyGuarded(h.m.Bytes(), src[:n]); err != nil {
			return err
		}
		if err := b.put(h, gpu.Span{Memory: dst.Memory, Off: dst.Off, Len: n},
			gpu.Span{Memory: h.m, Len: n}); err != nil {
			return err
		}
		dst.Off += n
		src = src[n:]
	}
	return nil
}

// load has the device fill one half while the CPU empties the other.
func (b *bounce) load(dst []byte, src gpu.Span) error {
	size := b.half[0].m.Size()
	asked, total := uint64(0), uint64(len(dst))
	for i := 0; len(dst) > 0; i++ {
		for k := asked / size; asked < total && k <= uint64(i)+1; k++ {
			n := min(size, total-asked)
			h := &b.half[k%2]
			if err := b.put(h, gpu.Span{Memory: h.m, Len: n},
				gpu.Span{Memory: src.Memory, Off: src.Off + asked, Len: n}); err != nil {
				return err
			}
			asked += n
		}
		h := &b.half[i%2]
		if err := await(h.ev); err != nil {
			return err
		}
		n := min(size, uint64(len(dst)))
		if _, err := mem.CopyGuarded(dst[:n], h.m.Bytes()); err != nil {
			return err
		}
		dst = dst[n:]
	}
	return nil
}

// put has the device copy from or to a half.
func (b *bounce) put(h *half, dst, src gpu.Span) error {
	b.ops = [2]gpu.Op{gpu.CopyOp(dst, src), gpu.RecordOp(h.ev)}
	_, err := b.s.Enqueue(b.ops[:])
	b.ops = [2]gpu.Op{}
	return err
}

// finish waits for what the device still does, also after a failure: the halves are the next
// user's.
func (b *bounce) finish(err error) error {
	return errors.Join(err, awaitStream(b.s))
}

// looks is how often a wait asks before it sleeps: the device is most often ahead of the CPU.
const looks = 64

func await(ev *gpu.Event) error {
	for range looks {
		if done, err := ev.Query(); done || err != nil {
			return err
		}
	}
	return ev.Wait(context.Background())
}
