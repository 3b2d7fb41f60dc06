package cuda

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// Every row of the table is filled, and the fake, which is written from the manual by another hand,
// has every function by that name.
func TestTableAgainstTheFake(t *testing.T) {
	path, _ := built(t)
	l, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, s := range symbolTable {
		if s.name == "" || seen[s.name] {
			t.Errorf("row %d has the name %q, empty or for the second time", i, s.name)
			continue
		}
		seen[s.name] = true
		if _, err := l.Symbol(s.name); err != nil {
			t.Errorf("the fake has no %s: %v", s.name, err)
		}
	}
	for f := range features {
		if featureTable[f].name == "" || featureTable[f].since == 0 {
			t.Errorf("feature %d has no row", f)
		}
	}
}

// A header that another project wrote by hand knows the same versions of functions: where both have
// a function, the header's name is ours.
func TestTableAgainstAnotherHeader(t *testing.T) {
	dir := "/usr/include/ffnvcodec"
	loader, err := os.ReadFile(filepath.Join(dir, "dynlink_loader.h"))
	if err != nil {
		testenv.Missing(t, "ffnvcodec/dynlink_loader.h (Debian: apt-get install libffmpeg-nvenc-dev)", err)
	}
	// LOAD_SYMBOL(cuMemAlloc, tcuMemAlloc_v2, "cuMemAlloc_v2");
	names := map[string]string{}
	for _, m := range regexp.MustCompile(`LOAD_SYMBOL(?:_OPT)?\((cu[A-Z]\w+),\s*t\w+,\s*"(\w+)"\)`).FindAllStringSubmatch(string(loader), -1) {
		names[m[1]] = m[2]
	}
	version := regexp.MustCompile(`_v\d+$`)
	both := 0
	for _, s := range symbolTable {
		if want, ok := names[version.ReplaceAllString(s.name, "")]; ok {
			both++
			// The header may be older than a version that exists since: it then has the plain name.
			if want != s.name && version.MatchString(want) {
				t.Errorf("the header calls it %s, and the table %s", want, s.name)
			}
		}
	}
	if both < 15 {
		t.Errorf("only %d functions are in both, of %v", both, slices.Sorted(maps.Keys(names)))
	}
}

// The names of results are the driver's.
func TestResultNames(t *testing.T) {
	d, _ := start(t, "")
	l, err := dl.Open(d.Path())
	if err != nil {
		t.Fatal(err)
	}
	name := must[dl.Func](t)(l.Symbol("cuGetErrorName"))
	text := must[[]byte](t)(dl.Alloc(8))
	defer dl.Free(text)
	known := 0
	for r := Result(0); r < 1000; r++ {
		put(text, 0, uintptr(0))
		e := name.Call2(uintptr(r), dl.Address(text))
		p := get[uintptr](text, 0)
		if int32(e) != 0 || p == 0 {
			if _, ok := resultTable[r]; ok {
				t.Errorf("the driver does not know %v (%d)", r, r)
			}
			continue
		}
		known++
		if got := dl.GoString(p); got != r.String() {
			t.Errorf("%d is %s to the driver, and %v here", r, got, r)
		}
	}
	if known != len(resultTable)+1 {
		t.Errorf("the driver knows %d results, the table %d", known, len(resultTable))
	}
}

// A driver that lacks a function lacks the feature, and says since when there is one; without a
// function of Core there is no driver.
func TestMissingFunctions(t *testing.T) {
	path, _ := built(t)
	l, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbolTable {
		fns, missing, err := bind(func(name string) (dl.Func, error) {
			if name == s.name {
				return 0, dl.ErrNoSymbol
			}
			return l.Symbol(name)
		})
		if s.feature == Core {
			wants(t, err, ErrDriver, s.name, "update")
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		d := &Driver{fn: fns, missing: missing, version: 11000}
		for f := range features {
			if err := d.Has(f); f == s.feature {
				wants(t, err, ErrDriver, s.name, f.String(), Version(featureTable[f].since), "11.0")
			} else if err != nil {
				t.Errorf("without %s: %v", s.name, err)
			}
		}
	}
	if err := new(Driver).Has(features); !errors.Is(err, ErrDriver) {
		t.Errorf("a feature that does not exist: %v", err)
	}
}

// Methods of a missing feature say so instead of calling what is not there.
func TestMethodsOfMissingFeatures(t *testing.T) {
	d, _ := start(t, "")
	c := open(t, d, 0)
	s := stream(t, c)
	e := must[*Event](t)(c.NewEvent(EventSpec{}))
	defer func() { ok(t, e.Close()) }()
	old := *d
	for f := Core + 1; f < features; f++ {
		old.missing[f] = "cuSomething"
	}
	oc := &Context{dev: &Device{d: &old, h: c.dev.h}, d: &old, h: c.h}
	os := &Stream{oc, s.h}
	for name, call := range map[string]func() error{
		"CanAccess":    func() error { _, err := oc.dev.CanAccess(oc.dev); return err },
		"Link":         func() error { _, err := oc.dev.Link(oc.dev); return err },
		"EnablePeer":   func() error { return oc.EnablePeer(oc) },
		"DisablePeer":  func() error { return oc.DisablePeer(oc) },
		"ToPeer":       func() error { return os.ToPeer(1, oc, 2, oc, 3) },
		"FlushWrites":  func() error { return oc.FlushWrites(OrderingOwner) },
		"WriteValue32": func() error { return os.WriteValue32(4, 1) },
		"AwaitValue64": func() error { return os.AwaitValue64(8, 1) },
		"Granularity":  func() error { _, err := oc.Granularity(PhysicalSpec{}); return err },
		"Create":       func() error { _, err := oc.Create(1, PhysicalSpec{}); return err },
		"Import":       func() error { _, err := oc.Import(0); return err },
		"Reserve":      func() error { _, err := oc.Reserve(1, 0); return err },
		"DMABuf":       func() error { _, err := oc.DMABuf(1, 1); return err },
		"Share":        func() error { _, err := oc.Share(1); return err },
		"OpenShared":   func() error { _, err := oc.OpenShared(Handle{}); return err },
		"Event.Handle": func() error { _, err := (&Event{oc, e.h}).Handle(); return err },
		"OpenEvent":    func() error { _, err := oc.OpenEvent(Handle{}); return err },
	} {
		err := call()
		if !errors.Is(err, ErrDriver) || !strings.Contains(err.Error(), "cuSomething") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "libcuda.so.1"))
	wants(t, err, ErrUnavailable, "libcuda.so.1", "install")
	if !errors.Is(err, dl.ErrNotFound) {
		t.Errorf("%v does not wrap the loader's", err)
	}
	other, err := testenv.Compile("not-cuda", []string{"testdata/other.c"}, "-shared")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Load(other)
	wants(t, err, ErrDriver, "cuInit", "update")
}

func TestNoDevice(t *testing.T) {
	path, _ := built(t)
	_, f := start(t, "")
	if err := errors.Join(f.Restart(), f.Script("devices 0")); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path)
	wants(t, err, ErrUnavailable, "CUDA_ERROR_NO_DEVICE", "nvidia-smi")
	// A device that comes later is found by a later Load.
	if err := errors.Join(f.Restart()); err != nil {
		t.Fatal(err)
	}
	d, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := must[int](t)(d.DeviceCount()); n != 2 {
		t.Errorf("%d devices", n)
	}
}

func TestOldDriver(t *testing.T) {
	path, _ := built(t)
	_, f := start(t, "")
	if err := errors.Join(f.Restart(), f.Script("driver 10020")); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path)
	wants(t, err, ErrDriver, "10.2", "11.0")
}

func TestDevices(t *testing.T) {
	d, _ := start(t, "devices 3; device 1 memory 80G; device 2 attribute DMA_BUF_SUPPORTED 0; device 1 attribute "+
		"GPU_DIRECT_RDMA_WRITES_ORDERING 200")
	all := must[[]*Device](t)(d.Devices())
	if len(all) != 3 || d.Version() != 12080 {
		t.Fatalf("%d devices, version %d", len(all), d.Version())
	}
	buses, uuids := map[string]bool{}, map[string]bool{}
	for i, dev := range all {
		in := must[Info](t)(dev.Info())
		buses[in.Bus], uuids[in.UUID] = true, true
		if dev.Ordinal() != i || dev.Driver() != d || in.Name == "" || in.Major < 5 || in.WarpSize != 32 ||
			!in.UnifiedAddressing || !in.MapHostMemory {
			t.Errorf("device %d: %+v", i, in)
		}
		if !regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$`).MatchString(in.Bus) {
			t.Errorf("bus %q is not in the form of sysfs", in.Bus)
		}
		if !regexp.MustCompile(`^GPU-[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$`).MatchString(in.UUID) {
			t.Errorf("UUID %q", in.UUID)
		}
		if in.DMABuf != (i != 2) || (in.Memory == 80<<30) != (i == 1) ||
			(in.Ordering == OrderingAllDevices) != (i == 1) {
			t.Errorf("device %d: what was scripted is not there: %+v", i, in)
		}
	}
	if len(buses) != 3 || len(uuids) != 3 {
		t.Errorf("buses %v, UUIDs %v: not of three devices", buses, uuids)
	}
	_, err := d.Device(3)
	wants(t, err, ErrUnavailable, "device 3")
	_, err = d.Device(-1)
	wants(t, err, ErrUnavailable)
	allowed[t] = 1
	if v, err := all[0].Attribute(9999); v != 0 || err != nil {
		t.Errorf("an attribute that no driver knows: %d, %v", v, err)
	}
	allowed[t]++
}

// A driver belongs to the process that loaded it.
func TestAnotherProcess(t *testing.T) {
	d, f := start(t, "")
	child := *d
	child.pid++
	before := f.Calls("cuDeviceGetCount") + f.Calls("cuDevicePrimaryCtxRetain") + f.Calls("cuDeviceGetAttribute")
	dev := &Device{d: &child}
	_, err := child.Devices()
	wants(t, err, ErrUnavailable, "fork")
	_, err = child.Device(0)
	wants(t, err, ErrUnavailable, "fork")
	_, err = dev.Retain()
	wants(t, err, ErrUnavailable, "fork")
	_, err = dev.Info()
	wants(t, err, ErrUnavailable, "fork")
	_, err = dev.Attribute(WarpSize)
	wants(t, err, ErrUnavailable, "fork")
	if after := f.Calls("cuDeviceGetCount") + f.Calls("cuDevicePrimaryCtxRetain") +
		f.Calls("cuDeviceGetAttribute"); after != before {
		t.Errorf("the driver was called %d times", after-before)
	}
}

// Devices that do not reach each other say so.
func TestNoPeers(t *testing.T) {
	d, f := start(t, "peers off")
	a, b := open(t, d, 0), open(t, d, 1)
	if must[bool](t)(a.Device().CanAccess(b.Device())) {
		t.Error("peers although they are off")
	}
	wants(t, a.EnablePeer(b), ErrUnsupported, "device 0 to device 1", "nvidia-smi topo")
	allowed[t] = f.Violations()
}

// Structures have the sizes that the manual's have.
func TestLayouts(t *testing.T) {
	for name, s := range map[string][2]int{
		"CUmemAllocationProp": {size[allocationProp](), 32}, "CUmemAccessDesc": {size[accessDesc](), 12},
	} {
		if s[0] != s[1] {
			t.Errorf("%s has %d bytes, want %d", name, s[0], s[1])
		}
	}
}

func size[T any]() int { return int(reflect.TypeFor[T]().Size()) }

// A child of fork that does not exec cannot use the driver: it has its parent's handles and none of
// its threads. The driver refuses, the error says so, and the parent goes on. (Go itself does not
// run in such a child; a program in another language that loads us may have one.)
func TestForkedChild(t *testing.T) {
	d, _ := start(t, "")
	c := open(t, d, 0)
	s := stream(t, c)
	p := alloc(t, c, 1<<20)
	file, err := testenv.Compile("fork", []string{"testdata/fork.c"}, "-shared", "-O1")
	if err != nil {
		t.Fatal(err)
	}
	l := must[*dl.Library](t)(dl.Open(file))
	defer func() { ok(t, l.Close()) }()
	ok(t, s.Fill(p, 4, 1, 1<<18))
	ok(t, c.enter())
	r := must[dl.Func](t)(l.Symbol("in_child")).Call1(uintptr(d.fn[fnMemAlloc]))
	leave()
	wants(t, check(fnMemAlloc, r), ErrUnavailable, "NOT_INITIALIZED", "fork")
	ok(t, s.Fill(p, 4, 2, 1<<18))
	ok(t, s.Synchronize())
	alloc(t, c, 4096)
}
