package cudatest

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"

	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

func devices(r *rig) {
	all := must[[]*cuda.Device](r)(r.d.Devices())
	buses, uuids := map[string]bool{}, map[string]bool{}
	for i, dev := range all {
		in := must[cuda.Info](r)(dev.Info())
		r.Logf("device %d: %+v", i, in)
		buses[in.Bus], uuids[in.UUID] = true, true
		if dev.Ordinal() != i || dev.Driver() != r.d || in.Name == "" || in.Major < 3 || in.WarpSize != 32 ||
			in.Memory == 0 || in.Multiprocessors == 0 {
			r.Errorf("device %d: %+v", i, in)
		}
		if !regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$`).MatchString(in.Bus) {
			r.Errorf("bus %q is not in the form of sysfs", in.Bus)
		}
		if !regexp.MustCompile(`^GPU-[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$`).MatchString(in.UUID) {
			r.Errorf("UUID %q", in.UUID)
		}
	}
	if len(uuids) != len(all) || len(buses) > len(all) {
		r.Errorf("buses %v, UUIDs %v: not of %d devices", buses, uuids, len(all))
	}
	_, err := r.d.Device(-1)
	r.wants(err, cuda.ErrUnavailable)
	r.misuse(func() {
		_, err = r.d.Device(len(all))
		r.wants(err, cuda.ErrUnavailable, fmt.Sprint("device ", len(all)))
		if v, err := r.dev.Attribute(9999); v != 0 || err != nil {
			r.Errorf("an attribute that no driver knows: %d, %v", v, err)
		}
	})
}

func memory(r *rig) {
	c := r.open()
	free, total, err := c.MemInfo()
	if err != nil || free == 0 || free > total {
		r.Fatalf("%d free of %d, %v", free, total, err)
	}
	p, q := r.alloc(c, 8<<20), r.alloc(c, 8<<20)
	if base, n, err := c.Range(p + 100); base != p || n < 8<<20 || err != nil {
		r.Errorf("range %#x %d, %v", base, n, err)
	}
	in, other := must[cuda.PointerInfo](r)(c.Inspect(p+5)), must[cuda.PointerInfo](r)(c.Inspect(q))
	if in.Type != cuda.MemoryDevice || in.Device != r.dev.Ordinal() || in.Base != p || in.Size < 8<<20 || in.Managed ||
		in.BufferID == other.BufferID {
		r.Errorf("%+v and %+v", in, other)
	}
	r.ok(c.SyncMemops(p, true), c.SyncMemops(p, false))
}

func pinnedMemory(r *rig) {
	if r.lacks(r.info.MapHostMemory, "mapped host memory") {
		return
	}
	c := r.open()
	h := r.pinned(c, 10000, cuda.HostMapped|cuda.HostPortable)
	if f := must[cuda.HostFlags](r)(c.HostFlagsOf(dl.Address(h))); f&(cuda.HostMapped|
		cuda.HostPortable) != cuda.HostMapped|cuda.HostPortable {
		r.Errorf("flags %v", f)
	}
	if in := must[cuda.PointerInfo](r)(c.Inspect(must[cuda.Pointer](r)(c.HostPointer(dl.Address(h))))); in.Type != cuda.MemoryHost {
		r.Errorf("mapped host memory is %v", in.Type)
	}
	if r.lacks(r.info.HostRegister, "registration of host memory") {
		return
	}
	const n = 1 << 16
	own := must[[]byte](r)(sys.MmapAnonymous(n))
	defer func() { r.ok(sys.Munmap(own)) }()
	at := dl.Address(own)
	r.ok(c.Register(at, n, cuda.HostMapped))
	r.misuse(func() { r.wants(c.Register(at, n, 0), nil, "HOST_MEMORY_ALREADY_REGISTERED", "pinned already") })
	s := r.stream(c)
	r.ok(s.Fill(must[cuda.Pointer](r)(c.HostPointer(at)), 1, 9, n), s.Synchronize())
	if own[0] != 9 || own[n-1] != 9 {
		r.Error("the device does not reach registered memory")
	}
	r.ok(c.Unregister(at))
	r.misuse(func() {
		r.wants(c.Unregister(at), nil, "not pinned")
		if in, err := c.Inspect(cuda.Pointer(at)); !r.info.PageableAccess && in.Type != cuda.MemoryUnknown ||
			err != nil {
			r.Errorf("pageable memory is %v, %v", in.Type, err)
		}
	})
}

func copies(r *rig) {
	c := r.open()
	s := r.stream(c)
	const n = 1 << 16
	from, to := r.pinned(c, n, cuda.HostPortable), r.pinned(c, n, 0)
	a, b := r.alloc(c, n), r.alloc(c, n)
	for i := range from {
		from[i] = byte(i * 7 >> 3)
	}
	r.ok(s.ToDevice(a, dl.Address(from), n), s.OnDevice(b, a, n), s.FromDevice(dl.Address(to), b, n), s.Synchronize())
	if !bytes.Equal(from, to) {
		r.Error("asynchronous copies: other bytes came back")
	}
	clear(to)
	r.ok(c.ToDevice(a+8, dl.Address(from), n-8), c.FromDevice(dl.Address(to), a+8, n-8))
	if !bytes.Equal(from[:n-8], to[:n-8]) {
		r.Error("synchronous copies: other bytes came back")
	}
	clear(to)
	r.ok(s.Copy(cuda.Pointer(dl.Address(to)), cuda.Pointer(dl.Address(from)), n), s.Synchronize())
	if !bytes.Equal(from, to) {
		r.Error("a copy between host memories: other bytes came")
	}
}

func fills(r *rig) {
	c := r.open()
	s := r.stream(c)
	a := r.alloc(c, 128)
	for _, f := range []struct {
		size int
		want []byte
	}{{1, []byte{0x44, 0x44, 0x44, 0x44}}, {2, []byte{0x44, 0x33, 0x44, 0x33}}, {4, []byte{0x44, 0x33, 0x22, 0x11}}} {
		r.ok(s.Fill(a, 1, 0xee, 128), s.Fill(a, f.size, 0x11223344, uint64(64/f.size)), s.Synchronize())
		if got := r.content(c, a, 128); !bytes.Equal(got,
			append(slices.Repeat(f.want, 16), slices.Repeat([]byte{0xee}, 64)...)) {
			r.Errorf("elements of %d bytes: % x", f.size, got)
		}
	}
	r.wants(s.Fill(a, 3, 0, 1), nil, "1, 2 or 4")
}

// virtualMemory is memory and addresses apart: the same memory at several addresses.
func virtualMemory(r *rig) {
	if r.older(cuda.VirtualMemory) || r.lacks(r.info.VirtualMemory && r.info.ShareDescriptor,
		"virtual memory that is shared by descriptors") {
		return
	}
	c := r.open()
	spec := cuda.PhysicalSpec{Share: true, GPUDirectRDMA: r.info.GPUDirectVirtual}
	g := must[uint64](r)(c.Granularity(spec))
	if g < 4096 || g&(g-1) != 0 {
		r.Fatalf("granularity %d", g)
	}
	m := must[*cuda.Physical](r)(c.Create(2*g, spec))
	if m.Size() != 2*g {
		r.Errorf("size %d", m.Size())
	}
	at := must[cuda.Pointer](r)(c.Reserve(4*g, 0))
	s := r.stream(c)
	r.ok(c.Map(at, m, 2*g), c.Map(at+cuda.Pointer(2*g), m, 2*g), c.Access(at, 4*g, true, c.Device()))
	r.wants(c.Access(at, 4*g, true), nil, "at least one device")
	r.ok(s.Fill(at, 4, 0x01020304, g/2), s.Synchronize())
	if got := r.content(c, at+cuda.Pointer(4*g-8), 8); !bytes.Equal(got, []byte{4, 3, 2, 1, 4, 3, 2, 1}) {
		r.Errorf("the second address has % x", got)
	}
	// A descriptor is the same memory.
	fd := must[int](r)(m.Export())
	same := must[*cuda.Physical](r)(c.Import(fd))
	r.ok(sys.Close(fd))
	third := must[cuda.Pointer](r)(c.Reserve(2*g, g))
	r.ok(c.Map(third, same, 2*g), c.Access(third, 2*g, false, c.Device()))
	if got := r.content(c, third, 4); !bytes.Equal(got, []byte{4, 3, 2, 1}) {
		r.Errorf("the imported memory has % x", got)
	}
	r.ok(c.Unmap(third, 2*g), c.Unreserve(third, 2*g), same.Release())
	r.ok(c.Unmap(at, 2*g), c.Unmap(at+cuda.Pointer(2*g), 2*g), c.Unreserve(at, 4*g), m.Release())
	r.misuse(func() {
		_, err := c.Create(g+1, spec)
		r.wants(err, nil, fmt.Sprint(g+1, " bytes"))
	})
}

func dmaBuf(r *rig) {
	if r.older(cuda.DMABuf) || r.lacks(r.info.DMABuf, "export as dma-buf") {
		return
	}
	c := r.open()
	p := r.alloc(c, 4<<20)
	fd := must[int](r)(c.DMABuf(p, 4<<20))
	file := os.NewFile(uintptr(fd), "dma-buf")
	r.ok(file.Close())
	r.misuse(func() {
		_, err := c.DMABuf(p+1, 4096)
		r.wants(err, nil, "4096 bytes")
	})
}

func flush(r *rig) {
	if r.older(cuda.FlushWrites) || r.lacks(r.info.FlushByHost, "flush of GPUDirect writes by the host") {
		return
	}
	c := r.open()
	r.ok(c.FlushWrites(cuda.OrderingOwner))
	r.wants(c.FlushWrites(cuda.OrderingNone), nil, "expected owner")
}

func peers(r *rig) {
	all := must[[]*cuda.Device](r)(r.d.Devices())
	if len(all) < 2 {
		return
	}
	a, b := r.openOn(all[0]), r.openOn(all[1])
	link := must[cuda.Link](r)(all[0].Link(all[1]))
	r.Logf("device 0 to device 1: %+v", link)
	can := must[bool](r)(all[0].CanAccess(all[1]))
	if can != link.Access {
		r.Errorf("reaches it: %v, and %+v", can, link)
	}
	if can {
		r.ok(a.EnablePeer(b))
		r.misuse(func() { r.ok(a.EnablePeer(b)) }) // once more is no error
		r.ok(a.DisablePeer(b))
	}
	// Copies go in any case, by the host where there is no other way.
	p, q := r.alloc(a, 4096), r.alloc(b, 4096)
	s := r.stream(a)
	r.ok(s.Fill(p, 4, 0x01020304, 1024), s.ToPeer(q, b, p, a, 4096), s.Synchronize())
	if got := r.content(b, q, 4096); !bytes.Equal(got, slices.Repeat([]byte{4, 3, 2, 1}, 1024)) {
		r.Errorf("the other device has % x...", got[:8])
	}
}

func outOfMemory(r *rig) {
	c := r.open()
	_, err := c.Alloc(1 << 50)
	r.wants(err, cuda.ErrOutOfMemory, "cuMemAlloc_v2", "bytes", "nvidia-smi")
	_, err = c.AllocHost(1<<55, 0)
	r.wants(err, nil, "pinned memory")
	r.alloc(c, 4096) // and it goes on
}
