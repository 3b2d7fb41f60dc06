package gputest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

func checkInfo(t testing.TB, h Harness) {
	r := rigOf(t, h)
	f := r.info
	if again := r.rt.Devices()[h.device].Info(); again != f {
		t.Errorf("Info is %+v, and then %+v", f, again)
	}
	if f.Runtime != r.rt.Name() || f.Index != h.device || !strings.Contains(r.c.Device().String(), f.Name) {
		t.Errorf("device %d is %s with the description %+v", h.device, r.c.Device(), f)
	}
	if f.Driver == "" || f.Arch == "" || f.Memory == 0 || f.MaxAlloc > f.Memory || f.Units <= 0 || f.NUMANode < -1 {
		t.Errorf("the description has no driver, architecture, memory or units, or more for one allocation than "+
			"there is: %+v", f)
	}
	for c := range driver.NumCapabilities {
		err := f.Capabilities.Check(c)
		if f.Capabilities.Has(c) != (err == nil) {
			t.Errorf("%s: Has is %v, Check %v", c, f.Capabilities.Has(c), err)
		}
		if err != nil {
			r.is(c.String(), err, gpu.ErrUnsupported)
		}
	}
	free, total, err := r.c.MemoryInfo()
	r.ok(err)
	if total != f.Memory || free > total {
		t.Errorf("%d of %d bytes are free on a device of %d", free, total, f.Memory)
	}
	if h.NoKernels {
		return
	}
	if !f.Capabilities.Has(gpu.CapGoKernels) && !f.Capabilities.Has(gpu.CapSource) && !f.Capabilities.Has(gpu.CapPTX) {
		t.Errorf("there is no form of program that the device runs: %s", f.Capabilities.String())
	}
}

func checkAlloc(t testing.TB, h Harness) {
	r := rigOf(t, h)
	a := r.info.Align
	for _, k := range r.kinds {
		seen := map[uint64]bool{}
		for _, size := range []uint64{1, 7, a - 1, a, a + 1, 3*a + 5, 1 << 20} {
			if size == 0 {
				continue
			}
			m := r.alloc(k, size)
			if m.Kind() != k || m.Size() != size || m.Align() < a {
				t.Errorf("%d bytes of kind %s aligned to %d are %d of kind %s aligned to %d", size, k, a, m.Size(),
					m.Kind(), m.Align())
			}
			sees := k != gpu.DeviceMemory || r.has(gpu.CapDeviceBytes)
			if b := m.Bytes(); sees {
				if uint64(len(b)) != size {
					t.Fatalf("the CPU sees %d of %d bytes of kind %s", len(b), size, k)
				}
				if uint64(sys.Address(b))%a != 0 {
					t.Errorf("the CPU's address of memory of kind %s is not aligned to %d", k, a)
				}
				copy(b, noise(size, int(size))) // all of it can be touched
				r.same("memory of kind "+k.String(), b, noise(size, int(size)))
			} else if b != nil {
				t.Errorf("the CPU sees memory of kind %s, and %s is missing", k, gpu.CapDeviceBytes)
			}
			addressed := r.has(gpu.CapAddresses) && k != gpu.PinnedMemory
			if addressed != (m.Addr() != 0) || m.Addr()%a != 0 {
				t.Errorf("memory of kind %s is at address %#x of the device, aligned to %d; %s: %v", k, m.Addr(), a,
					gpu.CapAddresses, r.has(gpu.CapAddresses))
			}
			if m.Addr() != 0 && seen[m.Addr()] {
				t.Errorf("two allocations at address %#x", m.Addr())
			}
			seen[m.Addr()] = true
		}
		m, err := r.c.Alloc(gpu.MemoryOptions{Kind: k, Size: 1000, Align: 64 * a})
		if err != nil {
			r.is("a greater alignment", err, gpu.ErrUnsupported)
			continue
		}
		r.closeLater(m)
		if b := m.Bytes(); m.Align() != 64*a || m.Addr()%(64*a) != 0 || b != nil && uint64(sys.Address(b))%(64*a) != 0 {
			t.Errorf("memory of kind %s at %#x, aligned to %d, was to be aligned to %d", k, m.Addr(), m.Align(), 64*a)
		}
	}
}

func checkAllocRefused(t testing.TB, h Harness) {
	r := rigOf(t, h)
	for _, x := range []struct {
		what string
		o    gpu.MemoryOptions
		want error
	}{
		{"no bytes", gpu.MemoryOptions{}, gpu.ErrArgument},
		{"an unknown kind", gpu.MemoryOptions{Kind: 77, Size: 1}, gpu.ErrArgument},
		{"an odd alignment", gpu.MemoryOptions{Size: 1, Align: 3}, gpu.ErrArgument},
		{"too much at once", gpu.MemoryOptions{Size: r.info.MaxAlloc + 1}, gpu.ErrOutOfMemory},
		{"all there is to number", gpu.MemoryOptions{Size: ^uint64(0)}, gpu.ErrOutOfMemory},
	} {
		m, err := r.c.Alloc(x.o)
		r.is(x.what, err, x.want)
		if m != nil {
			r.closeLater(m)
		}
	}
	for _, k := range []gpu.Kind{gpu.MappedMemory, gpu.SharedMemory} {
		if slices.Contains(r.kinds, k) {
			continue
		}
		_, err := r.c.Alloc(gpu.MemoryOptions{Kind: k, Size: 1})
		r.is("memory of kind "+k.String(), err, gpu.ErrUnsupported)
	}
	if n := r.c.Live(); n != 0 {
		t.Errorf("%d objects after refusals", n)
	}
}

// sizes are lengths of copies where implementations change their way, and odd ones; the long ones
// first, so that what is written beyond a short one is seen.
var sizes = []uint64{1<<18 + 3, 65537, 65536, 65535, 4097, 4096, 4095, 256, 255, 65, 64, 63, 17, 16, 15, 7, 4, 3, 2, 1,
	0}

// room is the size of memory for all of them, at small offsets.
const room = 1<<18 + 256

func checkWriteRead(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s := r.stream()
	for _, k := range r.kinds {
		m := r.alloc(k, room)
		want := noise(uint64(k), room)
		r.write(s, m, want)
		for i, n := range sizes {
			off := uint64(i * 5)
			b := noise(uint64(i)+100, int(n))
			span, err := m.Span(off, n)
			r.ok(err)
			r.ok(s.Write(span, b))
			got := make([]byte, n)
			r.ok(s.Read(got, span))
			if !r.same(fmt.Sprintf("%d bytes at %d of kind %s", n, off, k), got, b) {
				return
			}
			copy(want[off:], b)
		}
		r.holds("memory of kind "+k.String(), s, m, want)
	}
}

func checkCopy(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s := r.stream()
	for _, from := range r.kinds {
		for _, to := range r.kinds {
			if from == gpu.PinnedMemory && to == gpu.PinnedMemory {
				continue
			}
			src, dst := r.alloc(from, room), r.alloc(to, room)
			data, want := noise(1, room), noise(2, room)
			r.write(s, src, data)
			r.write(s, dst, want)
			for i, n := range sizes {
				so, do := uint64(i*3%64), uint64(i*7%64)
				r.ok(s.Copy(gpu.Span{Memory: dst, Off: do, Len: n}, gpu.Span{Memory: src, Off: so, Len: n}))
				copy(want[do:do+n], data[so:])
				if !r.holds(fmt.Sprintf("a copy of %d bytes from %s to %s", n, from, to), s, dst, want[:do+n+16]) {
					return
				}
			}
			if !r.holds(fmt.Sprintf("copies from %s to %s", from, to), s, dst, want) ||
				!r.holds("the source of copies", s, src, data) {
				return
			}
			// Within one memory, side by side.
			r.ok(s.Copy(gpu.Span{Memory: dst, Off: 1000, Len: 1000}, gpu.Span{Memory: src, Off: 5, Len: 1000}))
			if to != gpu.PinnedMemory {
				r.ok(s.Copy(gpu.Span{Memory: dst, Off: 2000, Len: 1000}, gpu.Span{Memory: dst, Off: 1000, Len: 1000}))
				copy(want[2000:], data[5:1005])
			}
			copy(want[1000:], data[5:1005])
			r.holds("a copy within one memory", s, dst, want)
			if b := dst.Bytes(); b != nil {
				r.ok(s.Wait(always))
				r.same("what the CPU sees of it", b[:room], want)
			}
		}
	}
}

func checkFill(t testing.TB, h Harness) {
	r := rigOf(t, h)
	s := r.stream()
	for _, k := range r.reached() {
		m := r.alloc(k, room)
		want := noise(3, room)
		r.write(s, m, want)
		for i, n := range sizes {
			for _, width := range []int{1, 2, 4} {
				w := uint64(width)
				off, n := uint64(i)*w, n/w*w
				pattern := 0x81726354 + uint32(i)<<9
				r.ok(s.Fill(gpu.Span{Memory: m, Off: off, Len: n}, pattern, width))
				p := []byte{byte(pattern), byte(pattern >> 8), byte(pattern >> 16), byte(pattern >> 24)}[:width]
				copy(want[off:off+n], bytes.Repeat(p, int(n/w)))
			}
			if !r.holds(fmt.Sprintf("fills of %d bytes of kind %s", n, k), s, m, want) {
				return
			}
		}
	}
}

func checkAdopt(t testing.TB, h Harness) {
	r := rigOf(t, h)
	region, err := mem.Alloc(mem.Options{Name: "theirs", Size: 1 << 16})
	r.ok(err)
	r.closeLater(region)
	lease, err := region.Lease()
	r.ok(err)
	t.Cleanup(func() { lease.Release() })
	page := lease.Bytes()[:1<<16]
	if !r.has(gpu.CapAdopt) {
		_, err := r.c.Adopt("theirs", page)
		r.is("adopt", err, gpu.ErrUnsupported)
		return
	}
	_, err = r.c.Adopt("nothing", nil)
	r.is("adopt nothing", err, gpu.ErrArgument)
	m, err := r.c.Adopt("theirs", page)
	r.ok(err)
	r.closeLater(m)
	if m.Size() != 1<<16 || &m.Bytes()[0] != &page[0] || m.Kind() != gpu.MappedMemory && r.has(gpu.CapMapped) {
		t.Errorf("the adopted memory is %d bytes of kind %s", m.Size(), m.Kind())
	}
	s, d := r.stream(), r.alloc(gpu.DeviceMemory, 1<<16)
	copy(page, noise(4, 1<<16))
	r.ok(s.Copy(d.All(), m.All()))
	r.holds("a copy from adopted memory", s, d, noise(4, 1<<16))
	r.write(s, d, noise(5, 1<<16))
	r.ok(s.Copy(m.All(), d.All()))
	r.ok(s.Wait(always))
	r.same("a copy to adopted memory", page, noise(5, 1<<16))
}

func checkPeer(t testing.TB, h Harness) {
	r := rigOf(t, h)
	other := h
	other.device = (h.device + 1) % len(r.rt.Devices())
	p := newRig(t, r.rt, other)
	src, dst := p.alloc(gpu.DeviceMemory, 1<<16), r.alloc(gpu.DeviceMemory, 1<<16)
	s, q := r.stream(), p.stream()
	p.write(q, src, noise(6, 1<<16))
	err := s.Copy(dst.All(), src.All())
	if !r.has(gpu.CapPeer) {
		r.is("a copy from another context", err, gpu.ErrUnsupported)
		return
	}
	r.ok(err)
	r.holds("a copy from another device", s, dst, noise(6, 1<<16))
	r.ok(s.Fill(dst.All(), 0x5a, 1))
	r.ok(s.Copy(src.All(), dst.All()))
	r.ok(s.Wait(always))
	p.holds("a copy to another device", q, src, bytes.Repeat([]byte{0x5a}, 1<<16))
	r.is("a copy between two others", s.Copy(src.All(), src.All()), gpu.ErrArgument)
}

// checkExports looks at refusals; what an export can be used for is for tests of the runtime that
// has it.
func checkExports(t testing.TB, h Harness) {
	r := rigOf(t, h)
	m := r.alloc(gpu.DeviceMemory, 1<<16)
	if !r.has(gpu.CapIPC) {
		_, err := m.ExportIPC()
		r.is("export to other processes", err, gpu.ErrUnsupported)
		_, err = r.c.OpenIPC("theirs", []byte{1}, 1)
		r.is("open memory of others", err, gpu.ErrUnsupported)
	} else {
		_, err := r.c.OpenIPC("nothing", nil, 0)
		r.is("open no memory", err, gpu.ErrArgument)
	}
	if !r.has(gpu.CapDMABuf) {
		_, err := m.ExportDMABuf(0, 1<<16)
		r.is("export as dma-buf", err, gpu.ErrUnsupported)
	} else {
		_, err := m.ExportDMABuf(0, 1<<17)
		r.is("export more than there is", err, gpu.ErrBounds)
	}
	if !r.has(gpu.CapAdoptAddress) {
		_, err := r.c.AdoptAddress("theirs", 1<<16, 1)
		r.is("adopt an address", err, gpu.ErrUnsupported)
	} else {
		_, err := r.c.AdoptAddress("nothing", 0, 1)
		r.is("adopt no address", err, gpu.ErrArgument)
		_, err = r.c.AdoptAddress("more", m.Addr()+1, 1<<40)
		r.is("adopt more than there is", err, gpu.ErrBounds)
		part, err := r.c.AdoptAddress("part", m.Addr()+256, 1000)
		r.ok(err)
		r.closeLater(part)
		s := r.stream()
		r.write(s, part, noise(7, 1000))
		if part.Kind() != gpu.DeviceMemory || part.Addr() != m.Addr()+256 || part.Size() != 1000 ||
			part.Bytes() != nil && !r.has(gpu.CapDeviceBytes) {
			t.Errorf("the adopted memory is %d bytes of kind %s at %#x", part.Size(), part.Kind(), part.Addr())
		}
		got := make([]byte, 1000)
		r.ok(s.Read(got, gpu.Span{Memory: m, Off: 256, Len: 1000}))
		r.same("what was written to the adopted memory", got, noise(7, 1000))
	}
	p := r.alloc(gpu.PinnedMemory, 1<<16)
	if _, err := p.ExportIPC(); err == nil {
		t.Error("memory of the host is exported as memory of the device")
	}
}
