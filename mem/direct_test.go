package mem

import (
	"errors"
	"strings"
	"testing"
)

type noFlush struct{}

func (noFlush) Flush() error { return nil }

// TestDirect: a region says how other devices reach it, and why there is no dma-buf of it, in the Provider's words where it has any.
func TestDirect(t *testing.T) {
	adopt := func(m Mapping) *Region {
		m.Kind, m.PageSize, m.FD, m.Bytes, m.Size = Device, 4096, -1, make([]byte, 4096), 4096
		r, err := AdoptMapping("card", m)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	why := errors.New("the driver has none")
	d := Direct{Addr: 1 << 40, Bus: "0000:18:00.0", NoDMABuf: why, Flush: noFlush{}}
	if r := adopt(Mapping{Direct: d}); r.Direct() != d {
		t.Errorf("%+v", r.Direct())
	}
	for name, c := range map[string]struct {
		m    Mapping
		want string
	}{
		"with a reason": {Mapping{Direct: d}, "the driver has none"},
		"without":       {Mapping{}, "kind device has no dma-buf"},
	} {
		r := adopt(c.m)
		_, err := r.DMABuf(0, 4096)
		for _, err := range []error{err, r.HasDMABuf()} {
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.want) || errors.Is(err, why) != (c.m.Direct.NoDMABuf != nil) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	r := adopt(Mapping{DMABuf: func(off, n uint64) (int, error) { return int(off + n), nil }})
	if fd, err := r.DMABuf(1024, 1000); fd != 2024 || err != nil || r.HasDMABuf() != nil {
		t.Errorf("%d, %v, %v", fd, err, r.HasDMABuf())
	}
	if _, err := r.DMABuf(4096, 1); !errors.Is(err, ErrBounds) {
		t.Errorf("%v", err)
	}
}
