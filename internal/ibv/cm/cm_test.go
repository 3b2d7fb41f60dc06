package cm

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// load is the library of this machine.
func load(t *testing.T) *Library {
	t.Helper()
	l, err := Load(Options{})
	if errors.Is(err, dl.ErrNotFound) { // a library without one of the functions is a fault here
		testenv.Missing(t, "librdmacm", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestUnavailable(t *testing.T) {
	for _, path := range []string{"/nowhere/librdmacm.so.1", "libc.so.6"} {
		if l, err := Load(Options{Path: path}); l != nil || !errors.Is(err, ErrUnavailable) ||
			!strings.Contains(err.Error(), "librdmacm") {
			t.Errorf("%s: %v", path, err)
		}
	}
	c, err := load(t).Open()
	if err == nil {
		c.Close()
		return // this machine has RDMA; the guest's tests go on from here
	}
	var e *Error
	if !errors.Is(err, ErrUnavailable) || !errors.As(err, &e) || e.Errno == 0 ||
		!strings.Contains(err.Error(), "rdma_") {
		t.Errorf("%v: expected an error that says what to do", err)
	}
	t.Log(err)
}

// Each event that ends something badly is an error of its kind, with the kernel's number or the
// peer's reason; the others are none.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		t      EventType
		status int
		kind   error
		errno  sys.Errno
		reason int
	}{
		{AddressError, -110, ErrAddress, sys.ETIMEDOUT, 0},
		{RouteError, -22, ErrRoute, sys.EINVAL, 0},
		{ConnectError, -5, ErrConnect, sys.EIO, 0},
		{Unreachable, -110, ErrUnreachable, sys.ETIMEDOUT, 0},
		{Unreachable, 0, ErrUnreachable, 0, 0},
		{Rejected, 28, ErrRejected, 0, 28},
		{Rejected, 8, ErrRefused, 0, 8},
		{Rejected, 77, ErrRejected, 0, 77},
		{Rejected, -111, ErrRejected, 111, 0},
		{DeviceRemoved, 0, ErrGone, 0, 0},
		{Unreachable, 1, ErrRefused, 0, 1},
		{Unreachable, 2, ErrRejected, 0, 2},
		{Unreachable, 9, ErrRejected, 0, 9},
	} {
		err := failure(c.t, c.status)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, c.kind) || e.Errno != c.errno || e.Reason != c.reason {
			t.Errorf("%s, status %d: %v", c.t, c.status, err)
		}
		if c.errno != 0 && !errors.Is(err, c.errno) {
			t.Errorf("%v does not wrap its number", err)
		}
	}
	for t8 := EventType(0); t8 < 16; t8++ {
		bad := failure(t8, 0) != nil
		want := t8 == AddressError || t8 == RouteError || t8 == ConnectError || t8 == Unreachable || t8 == Rejected ||
			t8 == DeviceRemoved
		if bad != want {
			t.Errorf("%s with status 0: %v", t8, failure(t8, 0))
		}
	}
	if err := failure(TimeWaitExit, -19); err == nil || !errors.Is(err, sys.ENODEV) {
		t.Errorf("an event with an error number: %v", err)
	}
}

// What is wrong is refused before any call, with what was expected.
func TestArguments(t *testing.T) {
	ok := Params{QPN: 17}
	for name, p := range map[string]Params{
		"no queue pair":   {},
		"large number":    {QPN: 1 << 24},
		"retries":         {QPN: 1, RetryCount: 8},
		"RNR retries":     {QPN: 1, RNRRetryCount: 8},
		"too much of all": {QPN: 1, PrivateData: make([]byte, MaxConnectData+1)},
	} {
		if err := (&ID{}).Connect(p); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ok.check("connect", MaxConnectData); err != nil {
		t.Error(err)
	}
	if err := (&ID{}).Accept(Params{QPN: 1, PrivateData: make([]byte, MaxAcceptData+1)}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if err := (&ID{}).Reject(make([]byte, MaxRejectData+1)); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if err := (&ID{}).SetACKTimeout(32); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// Parameters go into the library's structure and come out of it the same.
func TestParams(t *testing.T) {
	for _, p := range []Params{
		{},
		{PrivateData: []byte("private"), ResponderResources: 1, InitiatorDepth: 2, FlowControl: true, RetryCount: 3, RNRRetryCount: 4, QPN: 0x123456},
		{PrivateData: make([]byte, MaxAcceptData), SRQ: true, ResponderResources: Agreed},
	} {
		b, err := newBlock(p)
		if err != nil {
			t.Fatal(err)
		}
		got := dl.At[cmParams](b.address()).params()
		if string(got.PrivateData) != string(p.PrivateData) {
			t.Errorf("private data %q became %q", p.PrivateData, got.PrivateData)
		}
		got.PrivateData, p.PrivateData = nil, nil
		if got.ResponderResources != p.ResponderResources || got.InitiatorDepth != p.InitiatorDepth ||
			got.FlowControl != p.FlowControl ||
			got.RetryCount != p.RetryCount || got.RNRRetryCount != p.RNRRetryCount || got.SRQ != p.SRQ ||
			got.QPN != p.QPN {
			t.Errorf("%+v became %+v", p, got)
		}
		b.free()
	}
}
