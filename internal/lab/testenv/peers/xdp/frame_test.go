package xdp

import (
	"errors"
	"testing"
)

// A frame is right as it was made, with its addresses exchanged and with another number, and with
// no other change.
func TestFrame(t *testing.T) {
	for _, size := range []int{56, 61, 64, 1400, 8900} {
		f := make([]byte, size)
		MakeFrame(f, 7)
		if seq, err := CheckFrame(f, size); err != nil || seq != 7 {
			t.Fatalf("%d: %d, %v", size, seq, err)
		}
		SwapMACs(f)
		Stamp(f, 1<<60)
		if seq, err := CheckFrame(f, size); err != nil || seq != 1<<60 {
			t.Errorf("%d: %d, %v", size, seq, err)
		}
		for at := range f {
			if at >= stampAt && at < stampAt+8 {
				continue
			}
			// Of 56 bytes nothing follows from the slot's number.
			if size == 56 && at >= originAt && at < originAt+4 {
				continue
			}
			f[at] ^= 4
			if _, err := CheckFrame(f, size); !errors.Is(err, ErrFrame) {
				t.Errorf("%d: byte %d may be anything: %v", size, at, err)
			}
			f[at] ^= 4
		}
		if _, err := CheckFrame(f, size+1); !errors.Is(err, ErrFrame) {
			t.Errorf("%v", err)
		}
	}
}
