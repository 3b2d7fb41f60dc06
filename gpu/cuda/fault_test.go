package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/kernels"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
)

// scenario uses about everything of a device and closes all of it. It goes on after an error as a
// user would who closes what there is, and returns the first.
func scenario(library string) (err error) {
	rt, err := Open(Options{Library: library})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	c, err := rt.Devices()[0].Open()
	if err != nil {
		return err
	}
	var open []interface{ Close() error }
	keep := func(x interface{ Close() error }, err error) error {
		if err == nil {
			open = append(open, x)
		}
		return err
	}
	var s *gpu.Stream
	defer func() {
		if s != nil {
			err = errors.Join(err, s.Close()) // first, as it waits for the work that uses the others
		}
		for i := len(open) - 1; i >= 0; i-- {
			err = errors.Join(err, open[i].Close())
		}
		err = errors.Join(err, c.Close())
	}()
	if s, err = c.NewStream(gpu.StreamOptions{Priority: 1}); err != nil {
		return err
	}
	var mem [4]*gpu.Memory
	for i := range mem {
		mem[i], err = c.Alloc(gpu.MemoryOptions{Kind: gpu.Kind(i), Size: 4096, Align: 8192})
		if err := keep(mem[i], err); err != nil {
			return err
		}
	}
	device, pinned, mapped := mem[gpu.DeviceMemory], mem[gpu.PinnedMemory], mem[gpu.MappedMemory]
	m, err := c.Load(kernels.Fill)
	if err := keep(m, err); err != nil {
		return err
	}
	k, err := m.Kernel("fill")
	if err != nil {
		return err
	}
	call, err := k.Prepare(gpu.Buffer(device.All()), gpu.U64(0), gpu.U64(4096), gpu.U64(0x0101010101010101))
	if err := keep(call, err); err != nil {
		return err
	}
	e, err := c.NewEvent(gpu.EventOptions{Timing: true})
	if err := keep(e, err); err != nil {
		return err
	}
	later, err := c.NewEvent(gpu.EventOptions{Timing: true})
	if err := keep(later, err); err != nil {
		return err
	}
	for i := range pinned.Bytes() {
		pinned.Bytes()[i] = 7
	}
	if _, err := s.Enqueue([]gpu.Op{gpu.RecordOp(e), gpu.CopyOp(device.All(), pinned.All()),
		gpu.LaunchOp(call, gpu.Grid{Groups: 1, Group: 32}),
		gpu.FillOp(mapped.All(), 1, 4), gpu.CopyOp(mapped.All(), device.All()), gpu.WaitForOp(e),
		gpu.RecordOp(later)}); err != nil {
		return err
	}
	if err := errors.Join(later.Wait(context.Background()), s.Wait(context.Background())); err != nil {
		return err
	}
	if _, err := later.Elapsed(e); err != nil {
		return err
	}
	b := make([]byte, 4096)
	if err := errors.Join(s.Read(b, device.All()), s.Write(device.All(), b)); err != nil {
		return err
	}
	if b[4095] != 1 || mapped.Bytes()[4095] != 1 {
		return fmt.Errorf("the bytes are %d and %d", b[4095], mapped.Bytes()[4095])
	}
	_, _, err = c.MemoryInfo()
	return err
}

// used are the functions of the driver that the scenario calls.
var used = []string{
	"cuInit", "cuDriverGetVersion", "cuDeviceGet", "cuDeviceGetCount", "cuDeviceGetName", "cuDeviceGetUuid",
	"cuDeviceTotalMem", "cuDeviceGetAttribute",
	"cuDeviceGetPCIBusId", "cuDeviceCanAccessPeer", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease",
	"cuCtxSetCurrent", "cuCtxGetStreamPriorityRange",
	"cuStreamCreateWithPriority", "cuStreamDestroy", "cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuMemFreeHost",
	"cuMemHostGetDevicePointer",
	"cuModuleLoadDataEx", "cuModuleUnload", "cuModuleGetFunction", "cuEventCreate", "cuEventRecord", "cuEventQuery",
	"cuEventElapsedTime", "cuEventDestroy",
	"cuStreamWaitEvent", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemsetD32Async", "cuLaunchKernel", "cuMemGetInfo",
}

// Every call that fails gives its error of its kind, with the driver's name for it, and nothing is
// left behind but what could not be given back.
func TestEveryCallFails(t *testing.T) {
	library, f := start(t, "")
	if err := scenario(library); err != nil {
		t.Fatal(err)
	}
	clean(t, f)
	results := map[string]error{"OUT_OF_MEMORY": gpu.ErrOutOfMemory, "NO_DEVICE": gpu.ErrUnavailable,
		"NOT_SUPPORTED": gpu.ErrUnsupported, "INVALID_HANDLE": gpu.ErrDriver,
		"LAUNCH_FAILED": gpu.ErrDeviceLost}
	for _, name := range used {
		if f.Calls(name) <= 0 && f.Calls(name+"_v2") <= 0 {
			t.Errorf("the scenario does not call %s", name)
		}
	}
	for _, name := range used {
		ends := strings.Contains(name, "Free") || strings.Contains(name, "Destroy") ||
			strings.Contains(name, "Release") || strings.Contains(name, "Unload")
		for result, kind := range results {
			library, f = start(t, fmt.Sprintf("fail %s CUDA_ERROR_%s", name, result))
			err := scenario(library)
			switch {
			case ends && kind == gpu.ErrDeviceLost:
				// On a lost device nothing can be given back: no news.
				if err != nil {
					t.Errorf("%s gives %s: %v", name, result, err)
				}
			case !errors.Is(err, kind) || !strings.Contains(err.Error(), "CUDA_ERROR_"+result) ||
				!strings.Contains(err.Error(), name):
				t.Errorf("%s gives %s: %v", name, result, err)
			}
			var e *gpu.Error
			if err != nil && (!errors.As(err, &e) || e.Name != "CUDA_ERROR_"+result || e.Kind != kind) {
				t.Errorf("%s gives %s: %#v", name, result, e)
			}
			if ends || name == "cuCtxSetCurrent" {
				continue // what could not be ended is alive
			}
			clean(t, f)
		}
	}
	start(t, "")
}

// A device that is lost under queued work: each call of its context fails once it is known,
// everything is given back, the other device goes on, and a new context has the same error until
// the process starts again.
func TestLostInTheMiddle(t *testing.T) {
	rt, f := lossy(t)
	c := must[*gpu.Context](t)(rt.Devices()[0].Open())
	s := must[*gpu.Stream](t)(c.NewStream(gpu.StreamOptions{}))
	a := must[*gpu.Memory](t)(c.Alloc(gpu.MemoryOptions{Size: 1 << 20}))
	p := must[*gpu.Memory](t)(c.Alloc(gpu.MemoryOptions{Kind: gpu.PinnedMemory, Size: 1 << 20}))
	e := must[*gpu.Event](t)(c.NewEvent(gpu.EventOptions{}))
	ok(t, f.Script("sticky cuMemcpyHtoDAsync call 3 CUDA_ERROR_ECC_UNCORRECTABLE"))
	var lost error
	for i := range 8 {
		n, err := s.Enqueue([]gpu.Op{gpu.CopyOp(a.All(), p.All()), gpu.RecordOp(e)})
		if err != nil {
			lost = err
			if n > 1 {
				t.Errorf("batch %d: %d pieces of work were taken, and an error", i, n)
			}
			break
		}
	}
	if lost == nil {
		lost = s.Wait(context.Background())
	}
	is := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, gpu.ErrDeviceLost) || !strings.Contains(err.Error(), "CUDA_ERROR_ECC_UNCORRECTABLE") {
			t.Errorf("%s: %v", what, err)
		}
	}
	is("the work", lost)
	is("the context", c.Err())
	before := f.Calls("cuMemAlloc_v2")
	_, err := c.Alloc(gpu.MemoryOptions{Size: 1})
	is("alloc", err)
	is("copy", s.Copy(a.All(), p.All()))
	is("wait", s.Wait(context.Background()))
	is("event", e.Wait(context.Background()))
	if f.Calls("cuMemAlloc_v2") != before {
		t.Error("the driver was asked for memory although the device is lost")
	}
	for _, x := range []interface{ Close() error }{e, a, p, s, c} {
		ok(t, x.Close())
	}
	// The other device.
	other := must[*gpu.Context](t)(rt.Devices()[1].Open())
	m := must[*gpu.Memory](t)(other.Alloc(gpu.MemoryOptions{Size: 1}))
	ok(t, errors.Join(m.Close(), other.Close()))
	// The same one again.
	again, err := rt.Devices()[0].Open()
	if err == nil {
		_, err = again.Alloc(gpu.MemoryOptions{Size: 1})
		ok(t, again.Close())
	}
	is("a new context", err)
}

// lossy is a runtime on the fake, whose report is not looked at: after a loss much is refused.
func lossy(t testing.TB) (*gpu.Runtime, *fake.Control) {
	t.Helper()
	library, f := start(t, "")
	rt := must[*gpu.Runtime](t)(Open(Options{Library: library}))
	t.Cleanup(func() {
		ok(t, rt.Close())
		ok(t, f.Restart())
	})
	return rt, f
}

// What is not here says so.
func TestUnavailable(t *testing.T) {
	_, err := Open(Options{Library: t.TempDir() + "/libcuda.so.1"})
	if !errors.Is(err, gpu.ErrUnavailable) || !strings.Contains(err.Error(), "install NVIDIA's driver") {
		t.Errorf("no driver: %v", err)
	}
	library, _ := start(t, "devices 0")
	if _, err = Open(Options{Library: library}); !errors.Is(err, gpu.ErrUnavailable) ||
		!strings.Contains(err.Error(), "nvidia-smi") {
		t.Errorf("no device: %v", err)
	}
	library, _ = start(t, "driver 10020")
	if _, err = Open(Options{Library: library}); !errors.Is(err, gpu.ErrDriver) ||
		!strings.Contains(err.Error(), "update") {
		t.Errorf("an old driver: %v", err)
	}
}

// The form of a program: the newest that device and driver take.
func TestPrograms(t *testing.T) {
	ptx := func(sm, version int) driver.PTX {
		return driver.PTX{SM: sm, Version: version,
			Text: fmt.Sprintf(".version %d.%d\n.target sm_%d\n.address_size 64\n.visible .entry fill()\n{\nret;\n}\n",
				version/10, version%10, sm)}
	}
	var f *fake.Control
	try := func(script string, forms ...driver.PTX) (version int, err error) {
		t.Helper()
		var library string
		library, f = start(t, script)
		c := must[driver.Context](t)(must[*cudaRuntime](t)(load(Options{Library: library})).Devices()[0].Open())
		defer func() { ok(t, c.Close()) }()
		m, err := c.Load(&gpu.Program{Name: "k", Kernels: []gpu.Signature{{Name: "fill"}}, PTX: forms})
		if err != nil {
			return 0, err
		}
		defer func() { ok(t, m.Close()) }()
		k, err := m.Kernel(0)
		if err != nil {
			return 0, err
		}
		return k.(*kernel).f.Attribute(cuda.FunctionPTXVersion)
	}
	const sm75 = "device 0 attribute COMPUTE_CAPABILITY_MAJOR 7; device 0 attribute COMPUTE_CAPABILITY_MINOR 5; "
	for _, c := range []struct {
		name, script string
		forms        []driver.PTX
		version      int // of the PTX that was taken
		kind         error
		says         string
		loads        int
	}{
		{"one that fits", sm75, []driver.PTX{ptx(70, 60)}, 60, nil, "", 1},
		{"the newest that fits", sm75, []driver.PTX{ptx(50, 60), ptx(75, 63), ptx(70, 61), ptx(75, 64)}, 64, nil, "", 1},
		{"a newer one is passed over", sm75, []driver.PTX{ptx(90, 78), ptx(70, 60)}, 60, nil, "", 1},
		{"only newer ones", sm75, []driver.PTX{ptx(90, 78), ptx(80, 70)}, 0, gpu.ErrArch, "sm_75", 0},
		{"an old driver takes the older text", sm75 + "driver 11000", []driver.PTX{ptx(75, 83), ptx(70, 60)}, 60, nil, "", 2},
		{"no text that the driver reads", sm75 + "driver 11000", []driver.PTX{ptx(70, 83)}, 0, gpu.ErrArch, "PTX 8.3 for sm_70", 1},
		{"none at all", sm75, nil, 0, gpu.ErrArch, "sm_75", 0},
		{"text that is wrong", sm75, []driver.PTX{{SM: 70, Version: 60,
			Text: ".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry fill(.param .x y)\n"}}, 0,
			gpu.ErrBuild, "line 4", 1},
		{"no such kernel", sm75, []driver.PTX{{SM: 70, Version: 60, Text: ".version 6.0\n.target sm_70\n.address_size 64\n"}}, 0, gpu.ErrDriver, `"fill"`, 1},
	} {
		switch v, err := try(c.script, c.forms...); {
		case c.kind == nil:
			if err != nil || v != c.version {
				t.Errorf("%s: PTX %d was taken, want %d; %v", c.name, v, c.version, err)
			}
		case !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.kind, c.says)
		}
		if n := f.Calls("cuModuleLoadDataEx"); n != c.loads {
			t.Errorf("%s: the driver was asked %d times, want %d", c.name, n, c.loads)
		}
	}
}

// Above 0 goes first, which to CUDA is a lower number.
func TestPriorities(t *testing.T) {
	library, f := start(t, "")
	c := must[driver.Context](t)(must[*cudaRuntime](t)(load(Options{Library: library})).Devices()[0].Open())
	for asked, want := range map[int]int{0: 0, 1: -1, 3: -3, 1000: -5, -1: 0, -1000: 0} {
		s := must[driver.Stream](t)(c.NewStream(driver.StreamSpec{Priority: asked}))
		if got := must[int](t)(s.(*stream).s.Priority()); got != want {
			t.Errorf("priority %d became %d, want %d", asked, got, want)
		}
		ok(t, s.Close())
	}
	ok(t, c.Close())
	clean(t, f)
}

// What a device cannot do it says, with a reason.
func TestCapabilities(t *testing.T) {
	for _, c := range []struct {
		script string
		lacks  gpu.Capability
		says   string
	}{
		{"device 0 attribute CAN_MAP_HOST_MEMORY 0", gpu.CapMapped, "map host memory"},
		{"device 0 attribute UNIFIED_ADDRESSING 0", gpu.CapShared, "addresses"},
		{"device 0 attribute COMPUTE_CAPABILITY_MAJOR 6", gpu.CapSharedAtomics, "sm_70"},
		{"device 0 attribute COMPUTE_CAPABILITY_MAJOR 6", gpu.CapResident, "sm_70"},
		{"device 0 attribute STREAM_PRIORITIES_SUPPORTED 0", gpu.CapPriorities, "priorities"},
		{"device 0 attribute CONCURRENT_KERNELS 0", gpu.CapResident, "one kernel"},
		{"device 0 attribute HOST_REGISTER_SUPPORTED 0", gpu.CapAdopt, "pin"},
		{"peers off", gpu.CapPeer, "device 0 does not reach device 1"},
		{"devices 1", gpu.CapPeer, "one device only"},
		{"device 0 attribute DMA_BUF_SUPPORTED 0", gpu.CapDMABuf, "open kernel modules"},
		{"device 0 attribute GPU_DIRECT_RDMA_SUPPORTED 0", gpu.CapGPUDirect, "GPUDirect"},
		{"device 0 attribute GPU_DIRECT_RDMA_WRITES_ORDERING 0; device 0 attribute GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS 0", gpu.CapGPUDirect, "does not order"},
		{"", gpu.CapSource, "PTX"},
		{"", gpu.CapGoKernels, "host"},
		{"", gpu.CapDeviceBytes, "copy"},
	} {
		library, _ := start(t, c.script)
		rt := must[*gpu.Runtime](t)(Open(Options{Library: library}))
		got := rt.Devices()[0].Info().Capabilities
		if got[c.lacks].OK || !strings.Contains(got[c.lacks].Why, c.says) {
			t.Errorf("%s: %v: %+v", c.script, c.lacks, got[c.lacks])
		}
		ok(t, rt.Close())
	}
	start(t, "")
}

// On a device that shows a picture launches end before its watchdog does something, and the kernel
// goes on.
func TestWatchdog(t *testing.T) {
	rt, _ := opened(t, "devices 1; device 0 attribute KERNEL_EXEC_TIMEOUT 1")
	d := rt.Devices()[0]
	if info := d.Info(); !info.Watchdog {
		t.Fatal("the device has no watchdog")
	}
	c := must[*gpu.Context](t)(d.Open())
	defer func() { ok(t, c.Close()) }()
	m := must[*gpu.Module](t)(c.Load(kernels.Tally))
	defer func() { ok(t, m.Close()) }()
	k := must[*gpu.Kernel](t)(m.Kernel("tally"))
	words := must[*gpu.Memory](t)(c.Alloc(gpu.MemoryOptions{Kind: gpu.MappedMemory, Size: 8}))
	defer func() { ok(t, words.Close()) }()
	o := gpu.ResidentOptions{Grid: gpu.Grid{Groups: 1, Group: 32}, Turn: 2 * time.Second}
	if _, err := c.NewResident(k, o, gpu.Buffer(words.All())); !errors.Is(err, gpu.ErrArgument) ||
		!strings.Contains(err.Error(), "watchdog") {
		t.Errorf("turns of 2 s on a device with a watchdog: %v", err)
	}
	o.Turn = 0
	r := must[*gpu.Resident](t)(c.NewResident(k, o, gpu.Buffer(words.All())))
	defer func() { ok(t, r.Close(t.Context())) }()
	ok(t, r.Start())
	for r.Stats().Launches < 2 { // half a second
		runtime.Gosched()
	}
}

// Writes of network cards are flushed where the device does not order them, and only there.
func TestFlushWrites(t *testing.T) {
	for script, flushes := range map[string]bool{"": false,
		"device 0 attribute GPU_DIRECT_RDMA_WRITES_ORDERING 0":                                                 true,
		"device 0 attribute GPU_DIRECT_RDMA_WRITES_ORDERING 0; device 0 attribute GPU_DIRECT_RDMA_SUPPORTED 0": false} {
		library, f := start(t, script)
		rt := must[*gpu.Runtime](t)(Open(Options{Library: library}))
		c := must[*gpu.Context](t)(rt.Devices()[0].Open())
		if c.Info().FlushWrites != flushes {
			t.Errorf("%q: flush %v", script, c.Info().FlushWrites)
		}
		before := f.Calls("cuFlushGPUDirectRDMAWrites")
		ok(t, c.FlushWrites())
		if n := f.Calls("cuFlushGPUDirectRDMAWrites") - before; (n == 1) != flushes {
			t.Errorf("%q: %d calls", script, n)
		}
		if flushes {
			ok(t, f.Script("fail cuFlushGPUDirectRDMAWrites CUDA_ERROR_UNKNOWN"))
			if err := c.FlushWrites(); err == nil || !strings.Contains(err.Error(), "flush writes of network cards") {
				t.Errorf("%v", err)
			}
		}
		ok(t, c.Close())
		if err := c.FlushWrites(); (err != nil) != flushes {
			t.Errorf("%q: after the end: %v", script, err)
		}
		ok(t, rt.Close())
	}
	start(t, "")
}
