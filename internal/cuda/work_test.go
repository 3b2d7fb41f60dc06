package cuda

import (
	"errors"
	"testing"
)

// What is said of the calls' errors: kind, call, result, subject and advice.
func TestErrors(t *testing.T) {
	d, f := start(t, "")
	c := open(t, d, 0)
	for _, e := range []struct {
		result string
		kind   error
		code   Result
	}{
		{"OUT_OF_MEMORY", ErrOutOfMemory, 2}, {"NO_DEVICE", ErrUnavailable, 100},
		{"DEVICE_UNAVAILABLE", ErrUnavailable, 46}, {"ECC_UNCORRECTABLE", ErrLost, 214},
		{"ILLEGAL_ADDRESS", ErrLost, 700}, {"LAUNCH_FAILED", ErrLost, 719}, {"NO_BINARY_FOR_GPU", ErrArch, 209}, {"UNSUPPORTED_PTX_VERSION", ErrDriver, 222},
		{"SYSTEM_DRIVER_MISMATCH", ErrDriver, 803}, {"NOT_SUPPORTED", ErrUnsupported, 801}, {"INVALID_VALUE", nil, 1}, {"UNKNOWN", nil, 999},
	} {
		if err := f.Script("fail cuMemAlloc CUDA_ERROR_" + e.result); err != nil {
			t.Fatal(err)
		}
		_, err := c.Alloc(4096)
		var ce *Error
		if !errors.As(err, &ce) || ce.Result != e.code || ce.Call != "cuMemAlloc_v2" || ce.Detail != "4096 bytes" {
			t.Errorf("%s: %v", e.result, err)
			continue
		}
		for _, k := range []error{ErrOutOfMemory, ErrUnavailable, ErrLost, ErrArch, ErrDriver, ErrUnsupported} {
			if errors.Is(err, k) != (k == e.kind) {
				t.Errorf("%s: is %v: %v", e.result, k, errors.Is(err, k))
			}
		}
	}
	if s := Result(12345).String(); s != "CUDA result 12345, which is newer than this program" {
		t.Error(s)
	}
}

// An error in a kernel comes later and stays.
func TestLostDevice(t *testing.T) {
	d, f := start(t, "")
	dev := must[*Device](t)(d.Device(0))
	c := must[*Context](t)(dev.Retain())
	s := must[*Stream](t)(c.NewStream(0))
	p := must[Pointer](t)(c.Alloc(4096))
	ok(t, f.Script("sticky cuMemsetD32Async CUDA_ERROR_ILLEGAL_ADDRESS"))
	ok(t, s.Fill(p, 4, 1, 1024))
	wants(t, s.Synchronize(), ErrLost, "CUDA_ERROR_ILLEGAL_ADDRESS", "start again")
	_, err := c.Alloc(1)
	wants(t, err, ErrLost)
	wants(t, s.Fill(p, 4, 1, 1024), ErrLost)
	wants(t, errors.Join(c.Free(p)), ErrLost)
	_, err = s.Done()
	wants(t, err, ErrLost)
	allowed[t] = f.Violations()
	// The other device goes on.
	other := must[*Context](t)(must[*Device](t)(d.Device(1)).Retain())
	p = must[Pointer](t)(other.Alloc(4096))
	ok(t, errors.Join(other.Free(p), other.Release()))
	// What the lost one had is given back with its context, though each call has the error.
	wants(t, s.Close(), ErrLost)
	if err := c.Release(); err != nil && !errors.Is(err, ErrLost) {
		t.Error(err)
	}
}

// Without making the context current, the same calls are refused and reported: the fake would have
// noticed.
func TestTheFakeNoticesAWrongThread(t *testing.T) {
	d, f := start(t, "")
	c := open(t, d, 0)
	over := make(chan error)
	go func() {
		// The thread of this goroutine may have had a context before: take it away, as on a new
		// thread.
		ok(t, c.enter())
		d.fn[fnCtxSetCurrent].Call1(0)
		r := d.fn[fnCtxSynchronize].Call0()
		leave()
		over <- check(fnCtxSynchronize, r)
	}()
	wants(t, <-over, nil, "INVALID_CONTEXT")
	if f.Violations() != 1 {
		t.Errorf("%d violations", f.Violations())
	}
	allowed[t] = 1
}

func TestReleased(t *testing.T) {
	d, f := start(t, "")
	dev := must[*Device](t)(d.Device(0))
	if must[bool](t)(dev.Active()) {
		t.Error("active before anybody came")
	}
	a, b := must[*Context](t)(dev.Retain()), must[*Context](t)(dev.Retain())
	ok(t, a.Release())
	ok(t, a.Release())
	if !must[bool](t)(dev.Active()) {
		t.Error("not active although b is open")
	}
	before := f.Calls("cuMemAlloc_v2")
	_, err := a.Alloc(1)
	wants(t, err, ErrLost, "released")
	if f.Calls("cuMemAlloc_v2") != before {
		t.Error("the driver was called")
	}
	p := must[Pointer](t)(b.Alloc(1))
	ok(t, b.Free(p))
	ok(t, b.Release())
	if must[bool](t)(dev.Active()) {
		t.Error("active after everybody left")
	}
}
