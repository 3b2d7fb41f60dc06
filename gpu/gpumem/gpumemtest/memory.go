package gpumemtest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// always is a context that does not end.
var always = context.Background()

// noise is n bytes of a seed.
func noise(seed uint64, n int) []byte {
	x := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	b := make([]byte, n)
	x.Read(b)
	return b
}

// write puts bytes at the beginning of a region of any kind, past its Mover.
func (r *rig) write(x *mem.Region, b []byte) {
	r.Helper()
	s := must(r.c.NewStream(gpu.StreamOptions{}))(r)
	r.ok(s.Write(must(gpumem.Span(mem.Span{Region: x, Len: uint64(len(b))}))(r), b), s.Close())
}

// content is all of a region of any kind, past its Mover.
func (r *rig) content(x *mem.Region) []byte {
	r.Helper()
	b := make([]byte, x.Len())
	s := must(r.c.NewStream(gpu.StreamOptions{}))(r)
	r.ok(s.Read(b, gpumem.Memory(x).All()), s.Close())
	return b
}

func (r *rig) same(what string, got, want []byte) bool {
	if bytes.Equal(got, want) {
		return true
	}
	r.Helper()
	wrong, first := 0, -1
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	r.Errorf("%s: %d of %d bytes are wrong, the first at %d; %d were expected", what, wrong, len(got), first, len(want))
	return false
}

func checkDevice(r *rig) {
	unit := r.p.Granularity(mem.Device)
	if r.p.Device() != r.c.Device() || r.p.Context() != r.c {
		r.Errorf("the provider is of %s", r.p.Device())
	}
	for _, size := range []int{1, unit, unit + 1} {
		x := r.alloc(mem.Device, size)
		m := gpumem.Memory(x)
		want := (size + unit - 1) / unit * unit
		if x.Kind() != mem.Device || x.Len() != uint64(want) || m == nil || m.Size() != x.Len() ||
			m.Kind() != gpu.DeviceMemory || x.FD() != -1 || x.Handle() != any(m) {
			r.Errorf("%d bytes are %d of kind %s, and %v", size, x.Len(), x.Kind(), m)
		}
		if r.opaque() {
			if mv := x.Mover(); x.All().Bytes() != nil || mv == nil || mv.Device() != r.c.Device().String() ||
				mv.Staging() == nil {
				r.Fatalf("the CPU does not reach it: bytes %v, mover %v", x.All().Bytes() != nil, mv)
			}
		} else if x.Mover() != nil || len(r.bytes(x)) != want {
			r.Errorf("the CPU reaches it: mover %v, %d bytes", x.Mover(), len(x.All().Bytes()))
		}
		b := noise(1, want)
		r.write(x, b)
		r.same("device memory", r.content(x), b)
		s := must(gpumem.Span(mem.Span{Region: x, Off: 5, Len: 7}))(r)
		if s.Memory != m || s.Off != 5 || s.Len != 7 {
			r.Errorf("a span is %+v", s)
		}
	}
	if s := mem.ReadStats(); s.Regions[mem.Device] < 3 {
		r.Errorf("%+v", s)
	}
}

func checkPinned(r *rig) {
	x := r.alloc(mem.HostPinned, 100_000)
	m := gpumem.Memory(x)
	b := r.bytes(x)
	if x.Kind() != mem.HostPinned || x.Mover() != nil || uint64(len(b)) != x.Len() || x.Len() < 100_000 ||
		x.Len()%uint64(x.PageSize()) != 0 || m == nil || m.Size() != x.Len() {
		r.Fatalf("100000 bytes are %d, %d of them visible, of kind %s, with %v", x.Len(), len(b), x.Kind(), m)
	}
	if r.has(gpu.CapAdopt) {
		seals, err := sys.Seals(x.FD())
		if err != nil || seals&(sys.SealShrink|sys.SealGrow) != sys.SealShrink|sys.SealGrow {
			r.Errorf("peers cannot map it: descriptor %d with seals %#x, %v", x.FD(), seals, err)
		}
		if on, err := x.PlacedOn(); err == nil && on[-1] != 0 {
			r.Errorf("pages by node: %v", on)
		}
		if n := r.info.NUMANode; n >= 0 && x.NUMANode() != n && x.Note() == "" {
			r.Errorf("it is on node %d, the device on %d, and no word of it", x.NUMANode(), n)
		}
	} else {
		if x.FD() != -1 || !strings.Contains(x.Note(), "without a descriptor") {
			r.Errorf("descriptor %d, note %q", x.FD(), x.Note())
		}
		_, err := mem.Alloc(mem.Options{Kind: mem.HostPinned, Size: 1, NUMANode: mem.OnNode(0), Provider: r.p})
		r.is("pinned memory on a node of the caller's choice", err, mem.ErrUnavailable)
	}
	copy(b, noise(2, len(b)))
	d := r.alloc(mem.Device, 100_000)
	s := must(r.c.NewStream(gpu.StreamOptions{}))(r)
	n := min(x.Len(), d.Len())
	to, from := must(gpumem.Memory(d).Span(0, n))(r), must(m.Span(0, n))(r)
	r.ok(s.Copy(to, from), s.Wait(always), s.Close())
	r.same("copied by the device", r.content(d)[:n], b[:n])
}

func checkRefused(r *rig) {
	for _, k := range []mem.Kind{mem.Host, mem.Huge, mem.Foreign, 77} {
		_, err := mem.Alloc(mem.Options{Kind: k, Size: 1, Provider: r.p})
		r.is("memory of kind "+k.String(), err, mem.ErrUnavailable)
	}
	for _, k := range []mem.Kind{mem.Device, mem.HostPinned} {
		if _, err := mem.Alloc(mem.Options{Kind: k, Size: int(^uint(0) >> 1), Provider: r.p}); err == nil {
			r.Errorf("all the memory that there is to number, of kind %s", k)
		}
	}
	_, err := mem.Alloc(mem.Options{Kind: mem.Device, Size: int(r.info.MaxAlloc) + r.p.Granularity(mem.Device),
		Provider: r.p})
	r.is("more than the device gives at once", err, gpu.ErrOutOfMemory)
	_, err = gpumem.New(r.c, gpumem.Options{Streams: -1})
	r.is("-1 streams", err, gpu.ErrArgument)
	other := r.host(1)
	if gpumem.Memory(other) != nil {
		r.Error("memory of an accelerator behind a region of the host")
	}
	_, err = gpumem.Span(other.All())
	r.is("the accelerator's memory behind a region of the host", err, mem.ErrUnavailable)
	_, err = gpumem.Span(mem.Span{Region: other, Off: other.Len(), Len: 1})
	r.is("a span outside", err, mem.ErrBounds)
	d := r.alloc(mem.Device, 1)
	r.is("seal writes of device memory", d.SealWrites(), mem.ErrUnavailable)
	if _, err := d.DMABuf(1, 2); err == nil {
		r.Error("a dma-buf of a part of a page")
	}
	if !r.has(gpu.CapDMABuf) {
		_, err := d.DMABuf(0, d.Len())
		r.is("a dma-buf", err, mem.ErrUnavailable)
	}
	if !r.opaque() {
		return
	}
	mv := d.Mover()
	small := r.host(1)
	for what, err := range map[string]error{
		"load from behind the end":    second(mv.Load(mem.Span{Region: small, Len: 2}, d.Len()-1)),
		"load to behind the end":      second(mv.Load(mem.Span{Region: small, Off: small.Len(), Len: 1}, 0)),
		"store behind the end":        second(mv.Store(d.Len(), mem.Span{Region: small, Len: 1})),
		"store far behind the end":    second(mv.Store(1<<63, mem.Span{Region: small, Len: 1})),
		"store of what is not inside": second(mv.Store(0, mem.Span{Region: small, Off: 1 << 63, Len: 1 << 63})),
		"store of no region":          second(mv.Store(0, mem.Span{Len: 1})),
	} {
		r.is(what, err, mem.ErrBounds)
	}
	if n := r.p.Stats(); n.Loads+n.Stores != 0 {
		r.Errorf("refusals were counted as copies: %+v", n)
	}
}

func second[T any](_ T, err error) error { return err }

func checkInUse(r *rig) {
	p := must(gpumem.New(r.c, r.h.Options))(r)
	x := must(mem.Alloc(mem.Options{Name: "weights", Kind: mem.Device, Size: 1, Provider: p}))(r)
	h := must(mem.Alloc(mem.Options{Name: "staging", Kind: mem.HostPinned, Size: 1, Provider: p}))(r)
	err := p.Close()
	r.is("close with regions there", err, gpu.ErrInUse)
	if err != nil && (!strings.Contains(err.Error(), `"weights"`) || !strings.Contains(err.Error(), "2 regions")) {
		r.Errorf("%v does not say which", err)
	}
	l := must(h.Lease())(r)
	r.ok(x.Close(), h.Close())
	r.is("close with a lease on a region", p.Close(), gpu.ErrInUse)
	l.Release()
	live := r.c.Live()
	r.ok(p.Close(), p.Close())
	if n := r.c.Live(); n >= live {
		r.Errorf("%d objects of the context before the end of the provider, %d after it", live, n)
	}
	_, err = mem.Alloc(mem.Options{Kind: mem.Device, Size: 1, Provider: p})
	r.is("memory of a provider that is closed", err, gpu.ErrClosed)
	if errors.Is(err, gpu.ErrDeviceLost) {
		r.Error(err)
	}
}
