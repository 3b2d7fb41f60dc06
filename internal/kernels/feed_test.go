package kernels_test

import (
	"encoding/binary"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/mem/ring"
)

// TestFeedSameAsReference runs the kernels that rings feed on PoCL and in Go, on the same rings:
// every byte of rings, payload, rows and the control block is the same afterwards. Rings of results
// are smaller than what comes, so that claimed descriptors are kept for the next launch, which goes
// on where the launch before has left: every packet has one result, in order.
func TestFeedSameAsReference(t *testing.T) {
	b := newBench(t)
	const room, before = 256, 1 << 40 // bytes of a packet; the tag of results that are there before the first launch
	for _, x := range []struct {
		p       *gpu.Program
		packet  func(*rapid.T) []byte
		param   func(*rapid.T) uint64
		weights func(*rapid.T) []byte
	}{
		{kernels.FeedParse, anyFrame, func(*rapid.T) uint64 { return 0 }, rules},
		{kernels.FeedEcho, anyFrame, func(*rapid.T) uint64 { return 0 }, func(*rapid.T) []byte { return nil }},
		{kernels.FeedPower, func(t *rapid.T) []byte { return content(t, rapid.IntRange(0, 60).Draw(t, "bytes")) },
			func(t *rapid.T) uint64 {
				return kernels.PowerParam(rapid.Uint32Range(0, 5).Draw(t, "channels"),
					rapid.Uint32Range(0, 9).Draw(t, "skip"))
			}, func(*rapid.T) []byte { return nil }},
		{kernels.FeedGemm, func(t *rapid.T) []byte { return floats(t, rapid.SampledFrom([]int{3, 3, 3, 2, 0}).Draw(t, "k")) },
			func(t *rapid.T) uint64 {
				return kernels.GemmParam(3, rapid.Uint32Range(0, 5).Draw(t, "m"))
			}, func(t *rapid.T) []byte { return floats(t, 12) }},
	} {
		t.Run(x.p.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				groups, slots := rapid.Uint32Range(1, 3).Draw(t, "groups"), 1<<rapid.IntRange(1, 4).Draw(t, "slots")
				size := ring.DescriptorsSize(slots)
				in, out, payload := aligned(int(groups)*size), aligned(int(groups)*size),
					make([]byte, 0, int(groups)*slots*room)
				for r := range int(groups) {
					from, err := ring.NewDescriptors(in[r*size:][:size], uint64(cap(payload)))
					if err != nil {
						t.Fatal(err)
					}
					to, err := ring.NewDescriptors(out[r*size:][:size], uint64(cap(payload)))
					if err != nil {
						t.Fatal(err)
					}
					for range rapid.IntRange(0, slots).Draw(t, "results before") {
						if _, err := to.Publish([]ring.Desc{{Tag: before}}); err != nil {
							t.Fatal(err)
						}
					}
					for i := range rapid.IntRange(0, slots).Draw(t, "packets") {
						p := x.packet(t)
						p = p[:min(len(p), room)]
						d := ring.Desc{Off: uint64(len(payload)), Len: uint64(len(p)), Time: 7, Tag: uint64(i), Flow: 1,
							Hash: 2, Source: 3, Flags: ring.DescFrame}
						if rapid.IntRange(0, 20).Draw(t, "void") == 0 {
							d.Len, d.Flags = 0, ring.DescVoid
						}
						payload = append(payload, p...)
						if n, err := from.Publish([]ring.Desc{d}); n != 1 || err != nil {
							t.Fatal(n, err)
						}
					}
				}
				payload = payload[:cap(payload)]
				w := x.weights(t)
				weights := aligned(kernels.WeightsHeader + 2*len(w))
				binary.LittleEndian.PutUint64(weights, 3)
				binary.LittleEndian.PutUint64(weights[8:], 3)
				copy(weights[kernels.WeightsHeader+len(w):], w)
				control := aligned(int(driver.ControlSize(groups)))
				c, err := driver.NewControl(control, groups)
				if err != nil {
					t.Fatal(err)
				}
				g := gpu.Grid{Groups: groups, Group: rapid.SampledFrom([]uint32{1, 7}).Draw(t, "group")}
				rowLen := rapid.SampledFrom([]int{0, 16, 64}).Draw(t, "row")
				param, rows := x.param(t), make([]byte, int(groups)*slots*rowLen+1)
				next := make([]uint64, groups) // the tag of each ring's next result
				for launch := 0; ; launch++ {
					c.Begin(rapid.Uint32Range(0, 3).Draw(t, "passes"), 1)
					after := b.same(t, x.p, g, control, in, out, uint32(slots), groups, payload, uint64(len(payload)),
						rows, uint64(rowLen), weights, uint64(len(w)), param)
					for i, now := range [][]byte{control, in, out, payload, rows} {
						copy(now, after[i])
					}
					if launch == 3 {
						break
					}
					for r := range int(groups) {
						from, err := ring.AttachDescriptors(in[r*size:][:size])
						if err != nil {
							t.Fatal(err)
						}
						if kept := binary.LittleEndian.Uint32(control[128*(1+r)+
							64:]); from.Stats().Claimed != uint64(kept) {
							t.Fatalf("launch %d of ring %d has left %d descriptors claimed, and keeps %d", launch, r,
								from.Stats().Claimed, kept)
						}
						to, err := ring.AttachDescriptors(out[r*size:][:size])
						if err != nil {
							t.Fatal(err)
						}
						got := make([]ring.Desc, rapid.IntRange(1, slots).Draw(t, "results taken"))
						ticket, n, err := to.Claim(got)
						if err != nil {
							t.Fatal(err)
						}
						for _, d := range got[:n] {
							if d.Tag == before {
								continue
							}
							if d.Tag != next[r] {
								t.Fatalf("result %d of ring %d is in the place of %d", d.Tag, r, next[r])
							}
							next[r]++
						}
						to.Release(ticket, n)
					}
				}
			})
		})
	}
}

// anyFrame is UDP or TCP, or nearly.
func anyFrame(t *rapid.T) []byte {
	f := frame(t)
	if rapid.IntRange(0, 3).Draw(t, "tcp") == 0 {
		for at := 14; at < len(f) && at < 30; at++ {
			if f[at] == 17 {
				f[at] = 6
			}
		}
	}
	if len(f) >= 34 && f[12] == 8 && rapid.Bool().Draw(t, "right checksum") {
		n := int(f[14]&15) * 4
		if f[24], f[25] = 0, 0; n >= 20 && 14+n <= len(f) {
			sum := uint32(0)
			for i := 0; i < n; i += 2 {
				sum += uint32(f[14+i])<<8 | uint32(f[15+i])
			}
			for sum>>16 != 0 {
				sum = sum&0xffff + sum>>16
			}
			binary.BigEndian.PutUint16(f[24:], ^uint16(sum))
		}
	}
	return f
}

func rules(t *rapid.T) (w []byte) {
	for range rapid.IntRange(0, 3).Draw(t, "rules") {
		for _, v := range []uint32{rapid.SampledFrom([]uint32{0, 6, 17}).Draw(t, "proto"),
			rapid.Uint32Range(0, 800).Draw(t, "low"), rapid.Uint32Range(700, 65535).Draw(t, "high"), 99} {
			w = binary.LittleEndian.AppendUint32(w, v)
		}
	}
	return w
}

func floats(t *rapid.T, n int) (b []byte) {
	for range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(rapid.Float32Range(-1e6, 1e6).Draw(t, "x")))
	}
	return b
}
