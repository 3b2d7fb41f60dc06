package gpumemtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// checkAdopt is memory that exists already.
func checkAdopt(r *rig) {
	_, err := r.p.Adopt("nothing", nil, nil)
	r.is("adopt nothing", err, gpu.ErrArgument)
	for _, kind := range []gpu.Kind{gpu.DeviceMemory, gpu.PinnedMemory} {
		m := must(r.c.Alloc(gpu.MemoryOptions{Name: "theirs", Kind: kind, Size: 100_001}))(r)
		released := 0
		failure := errors.New("from release")
		x := must(r.p.Adopt("theirs", m, func() error { released++; return failure }))(r)
		r.Cleanup(func() { // after those of what follows
			if err := x.Close(); !errors.Is(err, failure) {
				r.Errorf("close does not say what release said: %v", err)
			}
			if released != 1 {
				r.Errorf("released %d times", released)
			}
			r.ok(m.Close())
		})
		_, err := r.p.Adopt("again", m, nil)
		r.is("adopt twice", err, gpu.ErrInUse)
		if x.Len() != 100_001 || gpumem.Memory(x) != m || (kind == gpu.DeviceMemory) != (x.Kind() == mem.Device) ||
			x.FD() != -1 {
			r.Errorf("%d bytes of kind %s", x.Len(), x.Kind())
		}
		b := noise(10, 100_001)
		r.write(x, b)
		if x.Mover() != nil {
			h := r.host(100_001)
			r.over(x.Mover().Load(mem.Span{Region: h, Len: 100_001}, 0))
			r.same("adopted memory", r.bytes(h)[:100_001], b)
		} else {
			r.same("adopted memory", r.bytes(x), b)
		}
		_, err = r.p.Export(x)
		if r.has(gpu.CapIPC) {
			r.is("export what was adopted", err, gpu.ErrArgument)
		} else {
			r.is("export", err, mem.ErrUnavailable)
		}
	}
}

// checkAddress is memory of another library, of which only the address is known. The driver stands
// for that library.
func checkAddress(r *rig) {
	if !r.has(gpu.CapAdoptAddress) {
		_, err := r.p.AdoptAddress("theirs", 4096, 1, nil)
		r.is("adopt an address", err, mem.ErrUnavailable)
		r.is("adopt an address", err, gpu.ErrUnsupported)
		return
	}
	const n = 1 << 20
	theirs := must(r.c.Alloc(gpu.MemoryOptions{Name: "theirs", Size: 8 * n}))(r)
	s := must(r.c.NewStream(gpu.StreamOptions{}))(r)
	r.ok(s.Fill(theirs.All(), 0, 4), s.Wait(always))
	addr := theirs.Addr() + n
	released := false
	x := must(r.p.AdoptAddress("theirs", addr, n, func() error { released = true; return nil }))(r)
	h := r.alloc(mem.HostPinned, n)
	want := noise(11, n)
	copy(r.bytes(h), want)
	r.over(x.Mover().Store(0, mem.Span{Region: h, Len: n}))
	got := make([]byte, 8*n)
	r.ok(s.Read(got, theirs.All()))
	r.same("what the other library sees", got[n:2*n], want)
	r.same("what lies beside it", append(got[:n:n], got[2*n:]...), make([]byte, 7*n))
	_, err := r.p.Export(x)
	if r.has(gpu.CapIPC) {
		r.is("export a part of an allocation", err, gpu.ErrArgument)
	}
	if r.has(gpu.CapDMABuf) { // of whole pages, with what is around the region in them
		part := must(r.p.AdoptAddress("part", theirs.Addr()+512, 100_000, nil))(r)
		if d := part.Direct(); d.Before != 512 || d.After != 8*n-512-100_000 {
			r.Errorf("%d bytes before the region and %d after it", d.Before, d.After)
		}
		r.ok(sys.Close(must(part.DMABuf(-512, 102_400))(r)))
		_, err := part.DMABuf(0, 4096)
		r.is("a dma-buf that begins in a page", err, mem.ErrBounds)
		_, err = part.DMABuf(-4608, 4096)
		r.is("a dma-buf from before the allocation", err, mem.ErrBounds)
		r.ok(part.Close())
	}
	pinned := must(r.c.Alloc(gpu.MemoryOptions{Kind: gpu.PinnedMemory, Size: 4096}))(r)
	local := r.host(4096)
	for what, x := range map[string]struct {
		addr, size uint64
		want       error
	}{
		"more than there is":       {addr, 8 * n, gpu.ErrBounds},
		"a byte more":              {addr, 7*n + 1, gpu.ErrBounds},
		"nothing":                  {0, 1, gpu.ErrArgument},
		"no bytes":                 {addr, 0, gpu.ErrArgument},
		"beyond what is numbered":  {addr, ^uint64(0), gpu.ErrArgument},
		"pinned memory":            {uint64(sys.Address(pinned.Bytes())), 16, gpu.ErrArgument},
		"memory of nobody's":       {uint64(sys.Address(r.bytes(local))), 16, gpu.ErrArgument},
		"a page that is not there": {4096, 16, gpu.ErrArgument},
	} {
		_, err := r.p.AdoptAddress(what, x.addr, x.size, func() error { r.Errorf("%s was released", what); return nil })
		r.is(what, err, x.want)
	}
	if n := len(r.rt.Devices()); n > 1 {
		c := must(r.rt.Devices()[(r.h.device+1)%n].Open())(r)
		_, err := c.AdoptAddress("theirs", addr, 1)
		r.is("memory of another device", err, gpu.ErrArgument)
		r.ok(c.Close())
	}
	r.ok(x.Close(), s.Close(), pinned.Close())
	if !released {
		r.Error("it was not released")
	}
	// The owner gives it back too early: Close of the adopted region says so.
	x = must(r.p.AdoptAddress("theirs", addr, n, nil))(r)
	r.ok(theirs.Close())
	if err := x.Close(); err == nil || !strings.Contains(err.Error(), "while it was adopted") {
		r.Errorf("memory whose owner gave it back is closed: %v", err)
	}
}

// checkDMABuf is descriptors of device memory, and the CPU's own way to it where the kernel has
// one.
func checkDMABuf(r *rig) {
	x := r.alloc(mem.Device, 4<<20)
	if !r.has(gpu.CapDMABuf) {
		_, err := x.DMABuf(0, x.Len())
		r.is("a dma-buf", err, mem.ErrUnavailable)
	} else {
		_, err := x.DMABuf(0, x.Len()+uint64(x.PageSize()))
		r.is("a dma-buf of more than there is", err, mem.ErrBounds)
		_, err = x.DMABuf(0, uint64(x.PageSize())-4096)
		r.is("a dma-buf of a part of a page", err, mem.ErrBounds)
		fd := must(x.DMABuf(0, x.Len()))(r)
		r.ok(sys.Close(fd))
	}
	_, err := r.p.MapCPU(r.host(1))
	r.is("map other memory", err, gpu.ErrArgument)
	if !r.opaque() {
		_, err := r.p.MapCPU(x)
		r.is("map what is visible", err, gpu.ErrArgument)
		return
	}
	c, err := r.p.MapCPU(x)
	if err != nil {
		r.is("map device memory for the CPU", err, mem.ErrUnavailable)
		if strings.Count(err.Error(), ":") < 3 {
			r.Errorf("%v does not say what is missing", err)
		}
		if n := x.Leases(); n != 0 {
			r.Errorf("%d leases after the refusal", n)
		}
		r.Logf("the CPU does not reach device memory: %v", err)
		return
	}
	r.Logf("the CPU reaches device memory by its dma-buf")
	l := must(c.Lease())(r)
	want := noise(12, int(x.Len()))
	if _, err := mem.CopyGuarded(l.Bytes(), want); err != nil {
		r.Error(err)
	}
	r.same("what the CPU wrote", r.content(x), want)
	r.write(x, want[100:])
	got := make([]byte, x.Len()-100)
	if _, err := mem.CopyGuarded(got, l.Bytes()); err != nil {
		r.Error(err)
	}
	r.same("what the device wrote", got, want[100:])
	if x.Leases() != 1 || c.Mover() != nil {
		r.Errorf("%d leases on what is mapped, mover %v", x.Leases(), c.Mover())
	}
	at := fmt.Sprintf("%x-", sys.Address(l.Bytes()))
	mapped := func() bool { return strings.Contains("\n"+string(must(os.ReadFile("/proc/self/maps"))(r)), "\n"+at) }
	if !mapped() {
		r.Error("the mapping is not where it is")
	}
	l.Release()
	r.ok(c.Close())
	if mapped() {
		r.Error("the mapping is there after its end")
	}
	if x.Leases() != 0 {
		r.Errorf("%d leases after the end of the mapping", x.Leases())
	}
}

// checkExport is what is not given to other processes.
func checkExport(r *rig) {
	x := r.alloc(mem.Device, 1)
	if !r.has(gpu.CapIPC) {
		_, err := r.p.Export(x)
		r.is("export", err, mem.ErrUnavailable)
		_, err = r.p.Open("theirs", gpumem.Handle{Size: 1, Token: []byte{1}})
		r.is("open", err, mem.ErrUnavailable)
		return
	}
	for what, x := range map[string]*mem.Region{"pinned memory": r.alloc(mem.HostPinned, 1),
		"other memory": r.host(1)} {
		_, err := r.p.Export(x)
		r.is("export "+what, err, gpu.ErrArgument)
	}
	_, err := r.provider(r.h.Options).Export(x)
	r.is("export memory of another provider", err, gpu.ErrArgument)
	pool := must(mem.NewPool(mem.PoolOptions{Name: "slots", SlotSize: 4096, Slots: 4,
		Memory: mem.Options{Kind: mem.Device, Provider: r.p}}))(r)
	_, err = r.p.Export(pool.Region())
	r.is("export a pool", err, gpu.ErrArgument)
	r.ok(pool.Close())
	own := must(mem.NewPool(mem.PoolOptions{Name: "slots", SlotSize: 4096, Slots: 4, Region: x}))(r)
	_, err = r.p.Export(x)
	r.is("export what a pool divides", err, gpu.ErrArgument)
	r.ok(own.Close())
	if _, err = r.p.Export(x); err != nil {
		r.Errorf("export what a pool divided: %v", err)
	}
	for _, dedicated := range []bool{false, true} {
		a := must(mem.NewAllocator(mem.AllocatorOptions{Name: "blocks", Budget: 64 << 20, Classes: []uint64{4 << 20},
			Dedicated: dedicated,
			Memory:    mem.Options{Kind: mem.Device, Provider: r.p}}))(r)
		small := must(mem.NewAllocator(mem.AllocatorOptions{Name: "blocks", Budget: 64 << 20,
			Classes: []uint64{1 << 20}, Memory: mem.Options{Kind: mem.Device, Provider: r.p}}))(r)
		b := must(a.Alloc(4 << 20))(r)
		if _, err := r.p.Export(b.Span().Region); dedicated && err != nil {
			r.Errorf("export a block of its own: %v", err)
		}
		s := must(small.Alloc(1))(r)
		_, err := r.p.Export(s.Span().Region)
		r.is("export one block of many", err, gpu.ErrArgument)
		r.ok(a.Free(b), small.Free(s), a.Close(), small.Close())
	}
	closed := must(mem.Alloc(mem.Options{Kind: mem.Device, Size: 1, Provider: r.p}))(r)
	r.ok(closed.Close())
	_, err = r.p.Export(closed)
	r.is("export what is closed", err, mem.ErrClosed)
	h := must(r.p.Export(x))(r)
	for what, h := range map[string]gpumem.Handle{
		"another card's":  {Device: "ffff:ff:ff.f", Size: h.Size, Token: h.Token},
		"cut off":         {Device: h.Device, Size: h.Size, Token: h.Token[:len(h.Token)-1]},
		"of nothing":      {},
		"of no bytes":     {Device: h.Device, Token: h.Token},
		"of empty tokens": {Device: h.Device, Size: 1},
	} {
		_, err := r.p.Open("theirs", h)
		r.is("open a handle "+what, err, gpu.ErrArgument)
	}
}

// RoleEnv says to Child what a process of the suite does.
const RoleEnv = "PENSTOCK_GPUMEMTEST_ROLE"

// Child is for TestMain of programs that set Harness.Importer: in a process that the suite started
// it does that process's part, with the runtime that open opens, and ends the process.
func Child(open func() (*gpu.Runtime, error)) {
	role := os.Getenv(RoleEnv)
	if role == "" {
		return
	}
	if err := importer(open, role); err != nil {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
	os.Exit(0)
}

// checkProcess is another process that opens an export, sees what this one wrote, and writes
// itself.
func checkProcess(r *rig) {
	if !r.has(gpu.CapIPC) || r.h.Importer == nil {
		return // checkExport shows that what lacks the capability refuses
	}
	x := r.alloc(mem.Device, 3<<20)
	n := int(x.Len())
	r.write(x, noise(20, n))
	h := must(json.Marshal(must(r.p.Export(x))(r)))(r)
	cmd := exec.CommandContext(r.Context(), os.Args[0])
	cmd.Env = append(append(os.Environ(), RoleEnv+"="+strconv.Itoa(r.h.device)), r.h.Importer...)
	cmd.Stderr = os.Stderr
	in := must(cmd.StdinPipe())(r)
	out := must(cmd.StdoutPipe())(r)
	r.ok(cmd.Start())
	fmt.Fprintf(in, "%s\n", h)
	answer, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(answer) != "done" || err != nil {
		r.Errorf("the other process says %q, %v", answer, err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		r.Error(err)
	}
	r.same("what the other process wrote", r.content(x), noise(21, n))
}

// importer is the other process.
func importer(open func() (*gpu.Runtime, error), device string) (err error) {
	stdin := bufio.NewReader(os.Stdin)
	line, err := stdin.ReadBytes('\n')
	if err != nil {
		return err
	}
	var h gpumem.Handle
	if err := json.Unmarshal(line, &h); err != nil {
		return err
	}
	i, err := strconv.Atoi(device)
	if err != nil {
		return err
	}
	rt, err := open()
	if err != nil {
		return err
	}
	c, err := rt.Devices()[i].Open()
	if err != nil {
		return err
	}
	p, err := gpumem.New(c, gpumem.Options{})
	if err != nil {
		return err
	}
	long := h
	long.Size += 64 << 20
	if _, err := p.Open("more", long); !errors.Is(err, gpu.ErrBounds) {
		return fmt.Errorf("more than there is: %w", err)
	}
	x, err := p.Open("theirs", h)
	if err != nil {
		return err
	}
	if _, err := p.Export(x); !errors.Is(err, gpu.ErrArgument) {
		return fmt.Errorf("another process's memory is exported: %w", err)
	}
	pinned, err := mem.Alloc(mem.Options{Kind: mem.HostPinned, Size: int(h.Size), Provider: p})
	if err != nil {
		return err
	}
	l, err := pinned.Lease()
	if err != nil {
		return err
	}
	span := mem.Span{Region: pinned, Len: h.Size}
	if err := over(x.Mover().Load(span, 0)); err != nil {
		return err
	}
	if string(span.Bytes()) != string(noise(20, int(h.Size))) {
		return errors.New("it is not what the other process wrote")
	}
	copy(span.Bytes(), noise(21, int(h.Size)))
	if err := over(x.Mover().Store(0, span)); err != nil {
		return err
	}
	l.Release()
	if err := errors.Join(pinned.Close(), x.Close(), p.Close(), c.Close(), rt.Close()); err != nil {
		return err
	}
	fmt.Println("done")
	_, err = io.Copy(io.Discard, stdin)
	return err
}

func over(m mem.Move, err error) error {
	if err != nil {
		return err
	}
	return m.Wait(always)
}
