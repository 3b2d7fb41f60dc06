package tcp

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/transfer/path/seal"
)

// TestNothingBesideTheBlock has a sender who knows the keys cut payload into records as it likes,
// pad them, change keys in between and damage the last one: no byte beside the block is ever
// written, and what counts as placed is right.
func TestNothingBesideTheBlock(t *testing.T) {
	const size, guard = 1 << 18, 0xee
	b := newNode(t, size, 32, 1, false)
	mem := b.region.All().Bytes()
	secret, err := seal.Derive(aSecret(), "guard", nil)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		w, _ := seal.NewSealer(secret, seal.Options{Limit: 4096})
		o, _ := seal.NewOpener(secret, seal.Options{Limit: 4096})
		x := newCore(b.reach, 32, 1, false, maxFrameBytes, maxFrameBlocks)
		x.trash = b.trash
		s := x.streams[0]
		s.rx = &recordIn{open: o}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 3))
		for i := range mem {
			mem[i] = guard
		}
		n := rapid.SampledFrom([]int{1, 2, 100, 4095, 4096, 16383, 16384, 16385, 50_000, 100_000}).Draw(rt, "n")
		off := rng.IntN(size - n)
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(i*7 + 1)
		}
		stream := frame(header{typ: framePut, key: b.export.Key(), where: uint64(off), op: 1, payload: uint32(n)}, nil,
			payload, nil)
		damaged := rapid.Bool().Draw(rt, "damaged")
		var failed error
		sent := 0
		for sent < len(stream) && failed == nil {
			rec := make([]byte, seal.MaxRecord+seal.UpdateSize)
			if k := 0; rng.IntN(4) == 0 {
				if k, err = w.Update(rec); err != nil {
					rt.Fatal(err)
				}
				s.rx.w += copy(s.rx.space(), rec[:k])
				failed = x.unseal(s)
			}
			k := min(1+rng.IntN(seal.MaxContent), len(stream)-sent)
			copy(rec[seal.HeaderSize:], stream[sent:sent+k])
			c, typ := k, seal.Data
			if pad := rng.IntN(300); rng.IntN(2) == 0 && k+1+pad <= seal.MaxContent {
				rec[seal.HeaderSize+k] = byte(seal.Data) // its type, and zeros behind it
				clear(rec[seal.HeaderSize+k+1 : seal.HeaderSize+k+1+pad])
				c, typ = k+1+pad, 0
			}
			if w.Due(c) {
				u, err := w.Update(rec[seal.HeaderSize+seal.MaxContent:])
				if err != nil {
					rt.Fatal(err)
				}
				s.rx.w += copy(s.rx.space(), rec[seal.HeaderSize+seal.MaxContent:][:u])
				failed = x.unseal(s)
			}
			m := w.Seal(rec, typ, c)
			sent += k
			last := sent == len(stream)
			if last && damaged {
				rec[m-1-rng.IntN(m-seal.HeaderSize)] ^= 1
			}
			s.rx.w += copy(s.rx.space(), rec[:m])
			if err := x.unseal(s); err != nil {
				failed = err
			}
		}
		if damaged != (failed != nil) {
			rt.Fatalf("damaged %v: %v", damaged, failed)
		}
		for i, v := range mem {
			if inside := i >= off && i < off+n; !inside && v != guard {
				rt.Fatalf("byte %d was written, the block is %d + %d", i, off, n)
			} else if inside && !damaged && v != payload[i-off] {
				rt.Fatalf("byte %d of the block is wrong", i-off)
			}
		}
		if want := uint64(n); damaged && x.st.BytesPlaced != 0 || !damaged && x.st.BytesPlaced != want {
			rt.Fatalf("%d bytes count as placed of %d", x.st.BytesPlaced, want)
		}
	})
}
