package mem

import (
	"errors"
	"math"
	"strings"
	"testing"
)

type noFlush struct{}

func (noFlush) Flush() error { return nil }

// TestDirect: a region says how other devices reach it, and why there is no dma-buf of it, in the
// Provider's words where it has any.
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
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.want) ||
				errors.Is(err, why) != (c.m.Direct.NoDMABuf != nil) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	r := adopt(Mapping{DMABuf: func(off int64, n uint64) (int, error) { return int(off) + int(n), nil }})
	if fd, err := r.DMABuf(1024, 1000); fd != 2024 || err != nil || r.HasDMABuf() != nil {
		t.Errorf("%d, %v, %v", fd, err, r.HasDMABuf())
	}
	for _, part := range []struct {
		off int64
		n   uint64
	}{{4096, 1}, {0, 4097}, {-1, 1}, {1, math.MaxUint64}, {math.MinInt64, 1}, {math.MaxInt64, 1}} {
		if _, err := r.DMABuf(part.off, part.n); !errors.Is(err, ErrBounds) {
			t.Errorf("%d from %d on: %v", part.n, part.off, err)
		}
	}
	r = adopt(Mapping{Direct: Direct{Before: 100, After: 50}, DMABuf: func(off int64, n uint64) (int, error) {
		return int(off) + int(n), nil
	}})
	if fd, err := r.DMABuf(-100, 100+4096+50); fd != 4146 || err != nil {
		t.Errorf("with what is around it: %d, %v", fd, err)
	}
	for _, part := range []struct {
		off int64
		n   uint64
	}{{-101, 1}, {-100, 4247}, {4146, 1}, {4147, 0}, {0, math.MaxUint64}} {
		if _, err := r.DMABuf(part.off, part.n); !errors.Is(err, ErrBounds) {
			t.Errorf("%d from %d on, with what is around it: %v", part.n, part.off, err)
		}
	}
}
