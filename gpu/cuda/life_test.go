package cuda

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/internal/sys"
)

// Goroutines that change threads at every chance use both devices at once. The fake reports each
// call on a thread without the right context.
func TestThreads(t *testing.T) {
	rt, f := opened(t, "")
	var contexts []*gpu.Context
	for _, d := range rt.Devices() {
		c := must[*gpu.Context](t)(d.Open())
		defer func() { ok(t, c.Close()) }()
		contexts = append(contexts, c)
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			c := contexts[i%len(contexts)]
			for round := range 5 {
				if err := oneRound(t, c, uint32(i*100+round)); err != nil {
					t.Errorf("goroutine %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	if f.Violations() != 0 {
		t.Error("calls on wrong threads, or out of order")
	}
}

// oneRound fills memory on the device and looks at it, with objects of its own.
func oneRound(t *testing.T, c *gpu.Context, v uint32) (err error) {
	s, err := c.NewStream(gpu.StreamOptions{})
	if err != nil {
		return err
	}
	runtime.Gosched()
	m, err := c.Alloc(gpu.MemoryOptions{Size: 4096})
	if err != nil {
		return errors.Join(err, s.Close())
	}
	defer func() { err = errors.Join(err, s.Close(), m.Close()) }()
	if err := s.Fill(m.All(), v, 4); err != nil {
		return err
	}
	runtime.Gosched()
	b := make([]byte, 4096)
	if err := s.Read(b, m.All()); err != nil {
		return err
	}
	if got := binary.LittleEndian.Uint32(b[4092:]); got != v {
		return fmt.Errorf("found %d, want %d", got, v)
	}
	return s.Wait(t.Context())
}

// A thousand times open, use and close: no descriptor, goroutine, mapping or thread more.
func TestOpenAndClose(t *testing.T) {
	library, f := start(t, "")
	cycle := func() {
		if err := scenario(library); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 { // what is made once is made
		cycle()
	}
	type state struct{ descriptors, goroutines, mappings, resident int } // resident: MiB
	look := func() state {
		maps := must[[]byte](t)(os.ReadFile("/proc/self/maps"))
		statm := strings.Fields(string(must[[]byte](t)(os.ReadFile("/proc/self/statm"))))
		pages := must[int](t)(strconv.Atoi(statm[1]))
		return state{len(must[[]os.DirEntry](t)(os.ReadDir("/proc/self/fd"))), runtime.NumGoroutine(),
			bytes.Count(maps, []byte("\n")), pages * os.Getpagesize() >> 20}
	}
	rounds := 1000
	if slow {
		rounds = 200
	}
	before := look()
	for range rounds {
		cycle()
	}
	// A stream's thread ends a moment after its stream: ask until it has. Only what grows with the
	// number of rounds is a leak.
	after := look()
	if after.descriptors > before.descriptors+10 || after.goroutines > before.goroutines ||
		after.mappings > before.mappings+200 ||
		after.resident > before.resident+64 {
		t.Errorf("before %+v, after %d rounds %+v", before, rounds, after)
	}
	clean(t, f)
}

// Two contexts of a device are one to the driver: what the first has made for itself ends with it,
// and not with the second.
func TestTwoContextsOfADevice(t *testing.T) {
	rt, f := opened(t, "")
	stays := must[*gpu.Context](t)(rt.Devices()[0].Open())
	before := f.Live()
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	ok(t, oneRound(t, c, 5))
	ok(t, c.Close())
	if f.Live() != before {
		r, err := f.Report()
		t.Errorf("%d objects are alive, %d before; %v\n%s", f.Live(), before, err, r)
	}
	ok(t, oneRound(t, stays, 6))
	ok(t, stays.Close())
}

// Between devices a stream asks the driver for a copy between contexts; to and from host memory,
// pinned for all, for a plain one.
func TestCopiesBetweenDevices(t *testing.T) {
	rt, f := opened(t, "")
	var c [2]*gpu.Context
	var m [2]*gpu.Memory
	for i, d := range rt.Devices() {
		c[i] = must[*gpu.Context](t)(d.Open())
		m[i] = must[*gpu.Memory](t)(c[i].Alloc(gpu.MemoryOptions{Size: 4096}))
	}
	p := must[*gpu.Memory](t)(c[1].Alloc(gpu.MemoryOptions{Kind: gpu.PinnedMemory, Size: 4096}))
	s := must[*gpu.Stream](t)(c[0].NewStream(gpu.StreamOptions{}))
	ok(t, errors.Join(s.Fill(m[0].All(), 0x01020304, 4), s.Copy(m[1].All(), m[0].All()), s.Copy(p.All(), m[0].All()),
		s.Wait(t.Context())))
	if n := f.Calls("cuMemcpyPeerAsync"); n != 1 {
		t.Errorf("%d copies between contexts, want 1", n)
	}
	if b := p.Bytes(); b[0] != 4 || b[4095] != 1 {
		t.Errorf("% x", b[:4])
	}
	ok(t, errors.Join(s.Close(), p.Close(), m[0].Close(), m[1].Close(), c[0].Close(), c[1].Close()))
}

// What is put into streams again and again allocates nothing, whatever it is.
func TestAllocations(t *testing.T) {
	rt, _ := opened(t, "")
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	defer func() { ok(t, c.Close()) }()
	s := must[*gpu.Stream](t)(c.NewStream(gpu.StreamOptions{}))
	a := must[*gpu.Memory](t)(c.Alloc(gpu.MemoryOptions{Size: 4096}))
	p := must[*gpu.Memory](t)(c.Alloc(gpu.MemoryOptions{Kind: gpu.PinnedMemory, Size: 4096}))
	m := must[*gpu.Module](t)(c.Load(kernels.Fill))
	call := must[*gpu.Call](t)(must[*gpu.Kernel](t)(m.Kernel("fill")).Prepare(gpu.Buffer(a.All()), gpu.U64(0),
		gpu.U64(64), gpu.U64(1)))
	e := must[*gpu.Event](t)(c.NewEvent(gpu.EventOptions{}))
	ops := []gpu.Op{gpu.CopyOp(a.All(), p.All()), gpu.LaunchOp(call, gpu.Grid{Groups: 1, Group: 32}),
		gpu.FillOp(a.All(), 1, 4), gpu.CopyOp(p.All(), a.All()),
		gpu.RecordOp(e), gpu.WaitForOp(e)}
	round := func() {
		if err := call.Set(3, gpu.U64(2)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Enqueue(ops); err != nil {
			t.Fatal(err)
		}
		if err := s.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	round()
	batch := func() {
		if _, err := s.Enqueue(ops); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(50, batch); n != 0 && !slow {
		t.Errorf("a batch of %d allocates %v times", len(ops), n)
	}
	for _, x := range []interface{ Close() error }{s, e, call, m, p, a} {
		ok(t, x.Close())
	}
}

// Memory is where it was asked to be, of every kind; what others made is adopted.
func TestAlignmentAndAdoption(t *testing.T) {
	rt, _ := opened(t, "")
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	defer func() { ok(t, c.Close()) }()
	s := must[*gpu.Stream](t)(c.NewStream(gpu.StreamOptions{}))
	defer func() { ok(t, s.Close()) }()
	for _, kind := range []gpu.Kind{gpu.DeviceMemory, gpu.PinnedMemory, gpu.MappedMemory, gpu.SharedMemory} {
		for _, align := range []uint64{0, 512, 4096, 1 << 16, 1 << 21} {
			m := must[*gpu.Memory](t)(c.Alloc(gpu.MemoryOptions{Kind: kind, Size: 1000, Align: align}))
			if a := max(align, 256); m.Addr()%a != 0 || m.Bytes() != nil && uint64(sys.Address(m.Bytes()))%a != 0 {
				t.Errorf("%v with alignment %d is at %#x", kind, align, m.Addr())
			}
			if kind == gpu.SharedMemory && m.Addr() != uint64(sys.Address(m.Bytes())) {
				t.Errorf("shared memory has two addresses: %#x and %#x", m.Addr(), sys.Address(m.Bytes()))
			}
			b := bytes.Repeat([]byte{1, 2, 3, 4}, 250)
			got := make([]byte, 1000)
			ok(t, errors.Join(s.Write(m.All(), b), s.Read(got, m.All())))
			if !bytes.Equal(b, got) {
				t.Errorf("%v with alignment %d: other bytes came back", kind, align)
			}
			ok(t, m.Close())
		}
	}
	_, err := c.Alloc(gpu.MemoryOptions{Size: 1, Align: 1 << 50})
	if !errors.Is(err, gpu.ErrUnsupported) {
		t.Errorf("an alignment of 1 PiB: %v", err)
	}
	own := must[[]byte](t)(dl.Alloc(1 << 16))
	defer dl.Free(own)
	m := must[*gpu.Memory](t)(c.Adopt("own", own[100:5000]))
	d := must[*gpu.Memory](t)(c.Alloc(gpu.MemoryOptions{Size: 4900}))
	ok(t, s.Fill(d.All(), 9, 1))
	ok(t, s.Copy(m.All(), d.All()))
	ok(t, s.Wait(t.Context()))
	if own[99] != 0 || own[100] != 9 || own[4999] != 9 || own[5000] != 0 {
		t.Errorf("% x and % x", own[98:102], own[4998:5002])
	}
	ok(t, errors.Join(m.Close(), d.Close()))
}

func TestAdoptTwice(t *testing.T) {
	rt, _ := lossy(t) // the fake reports it
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	own := must[[]byte](t)(dl.Alloc(1 << 16))
	defer dl.Free(own)
	m := must[*gpu.Memory](t)(c.Adopt("own", own))
	if _, err := c.Adopt("again", own[200:300]); !errors.Is(err, gpu.ErrDriver) ||
		!strings.Contains(err.Error(), "pinned already") {
		t.Errorf("adopted twice: %v", err)
	}
	ok(t, errors.Join(m.Close(), c.Close()))
}

func TestDMABuf(t *testing.T) {
	rt, f := opened(t, "device 1 attribute DMA_BUF_SUPPORTED 0")
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	defer func() { ok(t, c.Close()) }()
	m := must[*gpu.Memory](t)(c.Alloc(gpu.MemoryOptions{Size: 4 << 20}))
	fd := must[int](t)(m.ExportDMABuf(0, 4<<20))
	ok(t, sys.Close(fd))
	if n := f.Calls("cuPointerSetAttribute"); n != 1 {
		t.Errorf("copies were made synchronous %d times", n)
	}
	ok(t, m.Close())
	other := must[*gpu.Context](t)(rt.Devices()[1].Open())
	defer func() { ok(t, other.Close()) }()
	m = must[*gpu.Memory](t)(other.Alloc(gpu.MemoryOptions{Size: 4 << 20}))
	if _, err := m.ExportDMABuf(0, 4096); !errors.Is(err, gpu.ErrUnsupported) ||
		!strings.Contains(err.Error(), "open kernel modules") {
		t.Errorf("a device that cannot: %v", err)
	}
	ok(t, m.Close())
}

func init() { roles["sharer"] = sharer }

// Another process opens memory by its handle, refuses handles that are wrong, and writes; then this
// one's memory has what it wrote.
func TestAnotherProcess(t *testing.T) {
	rt, _ := opened(t, "")
	library, _ := built(t)
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	defer func() { ok(t, c.Close()) }()
	s := must[*gpu.Stream](t)(c.NewStream(gpu.StreamOptions{}))
	defer func() { ok(t, s.Close()) }()
	// Not at the beginning of its allocation.
	const n = 2 << 20
	m := must[*gpu.Memory](t)(c.Alloc(gpu.MemoryOptions{Size: n, Align: 1 << 22}))
	defer func() { ok(t, m.Close()) }()
	ok(t, s.Fill(m.All(), 0x11, 1))
	ok(t, s.Wait(t.Context()))
	handle := must[[]byte](t)(m.ExportIPC())

	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "GPU_CUDA_TEST_ROLE=sharer", "GPU_CUDA_TEST_LIBRARY="+library)
	cmd.Stderr = os.Stderr
	in := must[io.WriteCloser](t)(cmd.StdinPipe())
	out := must[io.ReadCloser](t)(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(in, "%x %d\n", handle, n)
	answer, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(answer) != "done" || err != nil {
		t.Errorf("the other process says %q, %v", answer, err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	got := make([]byte, n)
	ok(t, s.Read(got, m.All()))
	if got[0] != 0x22 || got[1] != 0x11 || got[n-1] != 0x22 {
		t.Errorf("% x ... % x", got[:2], got[n-2:])
	}
}

func sharer() int {
	if err := share(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func share() (err error) {
	stdin := bufio.NewReader(os.Stdin)
	var text string
	var n uint64
	if _, err := fmt.Fscanln(stdin, &text, &n); err != nil {
		return err
	}
	handle, err := hex.DecodeString(text)
	if err != nil {
		return err
	}
	rt, err := Open(Options{Library: os.Getenv("GPU_CUDA_TEST_LIBRARY")})
	if err != nil {
		return err
	}
	c, err := rt.Devices()[0].Open()
	if err != nil {
		return err
	}
	// What is wrong is refused.
	if _, err := c.OpenIPC("short", handle[:70], n); !errors.Is(err, gpu.ErrArgument) {
		return fmt.Errorf("a handle that is cut off: %w", err)
	}
	if _, err := c.OpenIPC("long", handle, n+(8<<20)); !errors.Is(err, gpu.ErrBounds) {
		return fmt.Errorf("more than there is: %w", err)
	}
	beyond := bytes.Clone(handle)
	binary.LittleEndian.PutUint64(beyond[64:], 1<<63)
	if _, err := c.OpenIPC("beyond", beyond, n); !errors.Is(err, gpu.ErrBounds) {
		return fmt.Errorf("from beyond its end: %w", err)
	}
	m, err := c.OpenIPC("shared", handle, n)
	if err != nil {
		return err
	}
	s, err := c.NewStream(gpu.StreamOptions{})
	if err != nil {
		return err
	}
	first := gpu.Span{Memory: m, Len: 1}
	last := gpu.Span{Memory: m, Off: n - 1, Len: 1}
	b := []byte{0}
	if err := s.Read(b, first); err != nil || b[0] != 0x11 {
		return fmt.Errorf("found % x, %w", b, err)
	}
	if err := errors.Join(s.Fill(first, 0x22, 1), s.Fill(last, 0x22, 1), s.Close(), m.Close(), c.Close(),
		rt.Close()); err != nil {
		return err
	}
	fmt.Println("done")
	_, err = io.Copy(io.Discard, stdin)
	return err
}
