package gpucard

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
)

// bench is a device and its memory, for figures.
type bench struct {
	*testing.T
	time         time.Duration // of each figure, at least
	p            *gpumem.Provider
	dev          *mem.Region
	pinned, host *mem.Region
}

const figureBytes = 64 << 20

// What memory costs on this card. Nothing is asserted but the bytes: the figures are in the result
// file's output.
func TestFigures(t *testing.T) {
	if !card(t) {
		return
	}
	vec.Calibrate()
	took := 200 * time.Millisecond
	if r, err := look(library()); err != nil {
		t.Fatal(err)
	} else if r.Fake {
		took = time.Millisecond // they mean nothing there
	}
	rt := open(t)
	defer func() { closed(t, rt) }()
	for _, d := range rt.Devices()[:1] {
		c, err := d.Open()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s", d)
		b := &bench{T: t, time: took, p: b0(t)(gpumem.New(c, gpumem.Options{}))}
		b.slots()
		b.allocations()
		b.dev = b.region(mem.Device, b.p)
		b.pinned = b.region(mem.HostPinned, b.p)
		b.host = b.region(mem.Host, nil)
		b.copies()
		b.bounces()
		b.sideBySide()
		closed(t, b.dev, b.pinned, b.host, b.p, c)
	}
}

func closed(t *testing.T, all ...interface{ Close() error }) {
	t.Helper()
	for _, c := range all {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func b0(t *testing.T) func(*gpumem.Provider, error) *gpumem.Provider {
	return func(p *gpumem.Provider, err error) *gpumem.Provider {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
}

func (b *bench) region(k mem.Kind, p mem.Provider) *mem.Region {
	b.Helper()
	r, err := mem.Alloc(mem.Options{Name: "figures", Kind: k, Size: figureBytes, Provider: p})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// each is the time of one f, in rounds that take b.time together.
func (b *bench) each(f func()) time.Duration {
	f()
	rounds := 0
	start := time.Now()
	for time.Since(start) < b.time {
		for range 1 + rounds/4 {
			f()
			rounds++
		}
	}
	return time.Since(start) / time.Duration(rounds)
}

func (b *bench) ok(err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}

// slots is what a slot of device memory costs.
func (b *bench) slots() {
	p, err := mem.NewPool(mem.PoolOptions{Name: "figures", SlotSize: 4096, Slots: 4096,
		Memory: mem.Options{Kind: mem.Device, Provider: b.p}})
	b.ok(err)
	b.Logf("a slot of device memory, taken and given back: %d ns", b.each(func() {
		for range 1000 {
			s, err := p.Get()
			b.ok(err)
			b.ok(s.Release())
		}
	}).Nanoseconds()/1000)
	c := p.Cache()
	b.Logf("the same through a cache: %d ns", b.each(func() {
		for range 1000 {
			s, err := c.Get()
			b.ok(err)
			b.ok(c.Put(s))
		}
	}).Nanoseconds()/1000)
	c.Close()
	b.ok(p.Close())
}

// allocations is what regions cost, which pools pay once.
func (b *bench) allocations() {
	for _, k := range []mem.Kind{mem.Device, mem.HostPinned} {
		for _, size := range []int{2 << 20, figureBytes} {
			b.Logf("a region of %d MiB of kind %s, made and closed: %v", size>>20, k, b.each(func() {
				r, err := mem.Alloc(mem.Options{Name: "figures", Kind: k, Size: size, Provider: b.p})
				b.ok(err)
				b.ok(r.Close())
			}))
		}
	}
}

// move is a copy of n bytes, waited for.
func (b *bench) move(dev, h *mem.Region, store bool, n uint64) {
	s := mem.Span{Region: h, Len: n}
	var m mem.Move
	var err error
	if store {
		m, err = dev.Mover().Store(0, s)
	} else {
		m, err = dev.Mover().Load(s, 0)
	}
	b.ok(err)
	b.ok(m.Wait(context.Background()))
}

func rate(n uint64, d time.Duration) string {
	return fmt.Sprintf("%v, %.2f GB/s", d, float64(n)/float64(d.Nanoseconds()))
}

var ways = map[bool]string{true: "to the device", false: "from the device"}

func (b *bench) copies() {
	for _, store := range []bool{true, false} {
		for _, n := range []uint64{64, 4 << 10, 64 << 10, 1 << 20, figureBytes} {
			b.Logf("pinned memory %s, %d bytes and a wait: %s", ways[store], n, rate(n, b.each(func() {
				b.move(b.dev, b.pinned, store, n)
			})))
		}
	}
	b.check(b.dev, b.pinned)
}

// check moves bytes to and fro and looks at them.
func (b *bench) check(dev, h *mem.Region) {
	b.Helper()
	l, err := h.Lease()
	b.ok(err)
	defer l.Release()
	want := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, figureBytes/11+1)[:figureBytes]
	vec.Copy(l.Bytes(), want)
	b.move(dev, h, true, figureBytes)
	clear(l.Bytes())
	b.move(dev, h, false, figureBytes)
	if !bytes.Equal(l.Bytes(), want) {
		b.Error("other bytes came back")
	}
}

// bounces is ordinary memory by way of the Provider's buffers, of several sizes, and by the
// driver's own means.
func (b *bench) bounces() {
	for _, size := range []int{-1, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20} {
		way := fmt.Sprintf("in halves of %d KiB", size>>10)
		if size < 0 {
			way = "by the driver's own means"
		}
		p := b0(b.T)(gpumem.New(b.p.Context(), gpumem.Options{Bounce: size}))
		dev := b.region(mem.Device, p)
		for _, store := range []bool{true, false} {
			for _, n := range []uint64{64, 4 << 10, 64 << 10, 1 << 20, figureBytes} {
				b.Logf("ordinary memory %s, %d bytes %s: %s", ways[store], n, way, rate(n, b.each(func() {
					b.move(dev, b.host, store, n)
				})))
			}
		}
		b.check(dev, b.host)
		closed(b.T, dev, p)
	}
}

// sideBySide is pieces of pinned memory, many of them under way.
func (b *bench) sideBySide() {
	for _, piece := range []uint64{16 << 10, 256 << 10, 4 << 20} {
		for _, under := range []int{1, 4, 16} {
			moves := make([]mem.Move, under)
			d := b.each(func() {
				for i := range moves {
					m, err := b.dev.Mover().Store(uint64(i)*piece,
						mem.Span{Region: b.pinned, Off: uint64(i) * piece, Len: piece})
					b.ok(err)
					moves[i] = m
				}
				for _, m := range moves {
					b.ok(m.Wait(context.Background()))
				}
			})
			b.Logf("pinned memory to the device, %d pieces of %d KiB under way: %s", under, piece>>10,
				rate(uint64(under)*piece, d))
		}
	}
}
