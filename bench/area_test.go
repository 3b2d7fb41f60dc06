package bench

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/penstock-io/penstock/bench/paired"
)

// Whatever byte is wrong, wherever the message is stale: verify says so.
func TestAreaFindsEveryWrongByte(t *testing.T) {
	for _, slot := range []uint64{8, 64, 4096} {
		a := newArea(slot, 3)
		b := make([]byte, a.len())
		a.fill(b)
		for i := range a.Stamps {
			a.stamp(b, i, uint64(i)+7)
		}
		if n, err := a.verify(b); err != nil || n != a.len() {
			t.Fatalf("slots of %d: %d, %v", slot, n, err)
		}
		for i := range b {
			b[i] ^= 0x10
			if _, err := a.verify(b); !errors.Is(err, paired.ErrFailed) {
				t.Fatalf("slots of %d: byte %d is wrong: %v", slot, i, err)
			}
			b[i] ^= 0x10
		}
		a.Stamps[1]++ // the message before the last is there
		if _, err := a.verify(b); !errors.Is(err, paired.ErrFailed) {
			t.Errorf("slots of %d: stale message: %v", slot, err)
		}
	}
	if _, err := (area{Slot: 8, Stamps: make([]uint64, 2)}).verify(make([]byte, 15)); err == nil {
		t.Error("memory that is too small passed")
	}
}

func TestAreaBlocks(t *testing.T) {
	order := rand.Perm(16)
	a := newArea(16*32, 2)
	src, dst := make([]byte, a.len()), make([]byte, a.len())
	a.scatter(src, order)
	for s := range a.Stamps {
		for i, to := range order {
			copy(a.at(dst, s)[to*32:][:32], a.at(src, s)[i*32:])
		}
		a.stamp(dst, s, 5)
	}
	if _, err := a.verify(dst); err != nil {
		t.Fatal(err)
	}
	// The other way: blocks of a linear area in that order.
	a.fill(src)
	for s := range a.Stamps {
		for i, to := range order {
			copy(a.at(dst, s)[i*32:][:32], a.at(src, s)[to*32:])
		}
	}
	if _, err := a.verifyBlocks(dst, order); err != nil {
		t.Fatal(err)
	}
	for i := range dst {
		dst[i]++
		if _, err := a.verifyBlocks(dst, order); !errors.Is(err, paired.ErrFailed) {
			t.Fatalf("byte %d is wrong: %v", i, err)
		}
		dst[i]--
	}
}

func TestMessage(t *testing.T) {
	b := make([]byte, 64)
	writeMessage(b, 9)
	if !messageIs(b, 9) || messageIs(b, 10) {
		t.Fatal("message is not itself")
	}
	for i := range b {
		b[i] ^= 1
		if messageIs(b, 9) {
			t.Errorf("byte %d is wrong", i)
		}
		b[i] ^= 1
	}
}
