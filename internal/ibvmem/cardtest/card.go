// Package cardtest is a simulated accelerator for tests of code that registers its memory.
//
//	c := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
//	r := c.Region("tensor", 1<<20)
//
// A card that needs a flush shows what adapters wrote only after it: Seen is what its kernels would
// read.
package cardtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// Options say what the card can.
type Options struct {
	DMABuf bool   // its memory can be had as a dma-buf
	Addr   uint64 // address of its first region, 0 for none; regions follow each other there
	Bus    string // its PCI address
	Flush  bool   // writes of others are seen after a flush only
	Page   int    // bytes of a page of its memory; 0 is 64 KiB
	Loose  bool   // its regions are as long as asked, also where that is no whole page
	// bytes of the same allocation before a region, with Addr; as many or some more are behind it,
	// and none of them may change
	Around int
}

// Card is such an accelerator. Its methods may be called from any goroutine.
type Card struct {
	t testing.TB
	o Options

	// Refuse, when set, is what a flush fails with.
	Refuse atomic.Pointer[error]

	mu      sync.Mutex // guards what follows
	flushes int
	bufs    int // descriptors given away
	memory  map[*mem.Region]*memory
	next    uint64
}

// memory is what lies behind a region.
type memory struct {
	fd    int
	bytes []byte // as adapters have it
	seen  []byte // as the card has it, where that may be older
}

// New makes a card. Its regions are closed with the test.
func New(t testing.TB, o Options) *Card {
	if o.Page == 0 {
		o.Page = 64 << 10
	}
	return &Card{t: t, o: o, memory: map[*mem.Region]*memory{}, next: o.Addr}
}

// Region is size bytes of the card's memory, rounded up to its pages. It is closed when the test
// ends.
func (c *Card) Region(name string, size int) *mem.Region {
	c.t.Helper()
	whole := (size + c.o.Page - 1) / c.o.Page * c.o.Page
	if !c.o.Loose {
		size = whole
	}
	around := c.o.Around
	all := (around + whole + around + c.o.Page - 1) / c.o.Page * c.o.Page
	fd, err := sys.MemfdCreate(name, int64(all), 0)
	if err != nil {
		c.t.Fatal(err)
	}
	m := &memory{fd: fd}
	mapped, err := sys.Mmap(fd, 0, all, sys.ProtRead|sys.ProtWrite, sys.MapShared)
	if err != nil {
		c.t.Fatal(err)
	}
	others := [][]byte{mapped[:around], mapped[around+size:]}
	d := mem.Direct{Bus: c.o.Bus}
	if around > 0 {
		for _, b := range others {
			for i := range b {
				b[i] = 0xA5
			}
		}
		d.Before, d.After = uint64(around), uint64(all-around-size)
	}
	m.bytes = mapped[around : around+whole]
	m.seen = m.bytes
	if c.o.Flush {
		m.seen = make([]byte, whole)
		d.Flush = c
	}
	if c.o.Addr != 0 {
		c.mu.Lock()
		d.Addr = c.next + uint64(around)
		c.next += uint64(all)
		c.mu.Unlock()
	}
	at := mem.Mapping{Kind: mem.Device, Size: uint64(size), PageSize: c.o.Page, FD: -1, NUMANode: -1, Mover: mover{m},
		Direct: d,
		Free: func() error {
			if around > 0 && bytes.Count(others[0], []byte{0xA5})+bytes.Count(others[1], []byte{0xA5}) != all-size {
				c.t.Errorf("bytes beside region %q have changed", name)
			}
			return errors.Join(sys.Munmap(mapped), sys.Close(fd))
		}}
	if c.o.DMABuf {
		at.DMABuf = func(off int64, n uint64) (int, error) { return c.export(m, uint64(off+int64(around)), n) }
	} else {
		at.Direct.NoDMABuf = errors.New("the stand-in card exports none")
	}
	r, err := mem.AdoptMapping(name, at)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.memory[r] = m
	c.mu.Unlock()
	c.t.Cleanup(func() {
		if err := r.Close(); err != nil {
			c.t.Errorf("closing region %q: %v", name, err)
		}
	})
	return r
}

// Pool is a pool in a region of its own. It is closed when the test ends, and all slots must be
// back by then.
func (c *Card) Pool(name string, slots, size int) *mem.Pool {
	c.t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: name, Region: c.Region(name, slots*size), Slots: slots, SlotSize: size})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if s := p.Stats(); s.InUse > 0 || s.Rejected > 0 {
			c.t.Errorf("pool %q: %d slots are out, %d were released twice", name, s.InUse, s.Rejected)
		}
		if err := p.Close(); err != nil {
			c.t.Error(err)
		}
	})
	return p
}

// export is a descriptor whose file position is where the buffer begins, which is how the stand-in
// for libibverbs knows it.
func (c *Card) export(m *memory, off, n uint64) (int, error) {
	if off%uint64(c.o.Page) != 0 || n%uint64(c.o.Page) != 0 || n == 0 {
		return -1, fmt.Errorf("a dma-buf of %d bytes at %d: expected whole pages of %d", n, off, c.o.Page)
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", m.fd), os.O_RDWR, 0)
	if err != nil {
		return -1, err
	}
	defer f.Close()
	if _, err := f.Seek(int64(off), 0); err != nil {
		return -1, err
	}
	c.mu.Lock()
	c.bufs++
	c.mu.Unlock()
	return sys.Dup(int(f.Fd()))
}

func (c *Card) of(r *mem.Region) *memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memory[r]
}

// FD is the descriptor behind a region, for the script of the stand-in for libibverbs ("peer").
func (c *Card) FD(r *mem.Region) int { return c.of(r).fd }

// Written are a region's bytes as adapters have them.
func (c *Card) Written(r *mem.Region) []byte { return c.of(r).bytes[:r.Len()] }

// Seen are a region's bytes as the card's kernels have them.
func (c *Card) Seen(r *mem.Region) []byte { return c.of(r).seen[:r.Len()] }

// Flush implements mem.Flusher.
func (c *Card) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushes++
	if err := c.Refuse.Load(); err != nil {
		return *err
	}
	for r, m := range c.memory {
		if !r.Closed() && c.o.Flush {
			copy(m.seen, m.bytes)
		}
	}
	return nil
}

// Flushes is how often the card was flushed, and DMABufs how many descriptors were given away.
func (c *Card) Flushes() int { c.mu.Lock(); defer c.mu.Unlock(); return c.flushes }

// DMABufs is how many descriptors were given away.
func (c *Card) DMABufs() int { c.mu.Lock(); defer c.mu.Unlock(); return c.bufs }

// mover copies at once.
type mover struct{ m *memory }

func (v mover) Load(dst mem.Span, off uint64) (mem.Move, error) {
	copy(dst.Bytes(), v.m.seen[off:])
	return done{}, nil
}

func (v mover) Store(off uint64, src mem.Span) (mem.Move, error) {
	copy(v.m.seen[off:], src.Bytes())
	copy(v.m.bytes[off:], src.Bytes())
	return done{}, nil
}

func (mover) Staging() mem.Provider { return nil }
func (mover) Device() string        { return "stand-in card" }

type done struct{}

func (done) Done() (bool, error)        { return true, nil }
func (done) Wait(context.Context) error { return nil }
