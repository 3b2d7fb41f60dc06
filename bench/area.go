package bench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/tensor/synth"
)

const stampSize = 8

func newArea(slot uint64, slots int) area {
	return area{Seed: rand.Uint64(), Slot: slot, Stamps: make([]uint64, slots)}
}

func (a area) len() uint64 { return a.Slot * uint64(len(a.Stamps)) }

// at is the part of b that is slot i.
func (a area) at(b []byte, i int) []byte { return b[uint64(i)*a.Slot:][:a.Slot:a.Slot] }

// stamp marks slot i as holding message n.
func (a area) stamp(b []byte, i int, n uint64) {
	a.Stamps[i] = n
	if a.Slot >= stampSize {
		binary.LittleEndian.PutUint64(b[uint64(i)*a.Slot:], n^a.Seed)
	}
}

// fill writes what verify expects.
func (a area) fill(b []byte) {
	synth.Fill(b[:a.len()], a.Seed)
	for i, n := range a.Stamps {
		a.stamp(b, i, n)
	}
}

// scatter writes what verify expects at the place that each block will be copied to: block i of
// slot s lies at i, and belongs to order[i]. All blocks have the same size.
func (a area) scatter(b []byte, order []int) {
	block := a.Slot / uint64(len(order))
	for s := range a.Stamps {
		slot := a.at(b, s)
		for i, to := range order {
			synth.FillAt(slot[uint64(i)*block:][:block], a.Seed, uint64(s)*a.Slot+uint64(to)*block)
		}
	}
}

// verify checks every byte of the area and returns how many there were.
func (a area) verify(b []byte) (uint64, error) {
	if uint64(len(b)) < a.len() || len(a.Stamps) == 0 {
		return 0, fmt.Errorf("bench: area of %d bytes in memory of %d", a.len(), len(b))
	}
	for i, n := range a.Stamps {
		slot, skip := a.at(b, i), uint64(0)
		if a.Slot >= stampSize {
			skip = stampSize
			if got := binary.LittleEndian.Uint64(slot) ^ a.Seed; got != n {
				return 0, fmt.Errorf("%w: slot %d of %d: message %d is not there: its stamp is %#x", paired.ErrFailed,
					i, len(a.Stamps), n, got)
			}
		}
		if bad, ok := synth.Verify(slot[skip:], a.Seed, uint64(i)*a.Slot+skip); !ok {
			return 0, fmt.Errorf("%w: slot %d of %d: byte %d of message %d is wrong", paired.ErrFailed, i,
				len(a.Stamps), uint64(bad)+skip, n)
		}
	}
	return a.len(), nil
}

// verifyBlocks is verify for memory whose slots hold their blocks in another order: block i is what
// verify expects at order[i].
func (a area) verifyBlocks(b []byte, order []int) (uint64, error) {
	block := a.Slot / uint64(len(order))
	for s, n := range a.Stamps {
		slot := a.at(b, s)
		for i, to := range order {
			p, skip := slot[uint64(i)*block:][:block], uint64(0)
			if to == 0 {
				skip = stampSize
				if got := binary.LittleEndian.Uint64(p) ^ a.Seed; got != n {
					return 0, fmt.Errorf("%w: slot %d: message %d is not there: its stamp is %#x", paired.ErrFailed, s,
						n, got)
				}
			}
			if bad, ok := synth.Verify(p[skip:], a.Seed, uint64(s)*a.Slot+uint64(to)*block+skip); !ok {
				return 0, fmt.Errorf("%w: slot %d, block %d: byte %d is wrong", paired.ErrFailed, s, i,
					uint64(bad)+skip)
			}
		}
	}
	return a.len(), nil
}

// A small message of the ping-pong is its number and words that follow from it, so that either side
// can check every byte of every message while the clock runs.
func writeMessage(b []byte, n uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], messageWord(n, i))
	}
}

func messageIs(b []byte, n uint64) bool {
	for i := 0; i+8 <= len(b); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) != messageWord(n, i) {
			return false
		}
	}
	return true
}

func messageWord(n uint64, i int) uint64 {
	return n*0x9e3779b97f4a7c15 + uint64(i+1)*0xd1b54a32d192ed03
}
