package bench

import (
	"context"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor/synth"
	"github.com/penstock-io/penstock/vec"
)

// VecOptions describe a run of Vec.
type VecOptions struct {
	Conditions
	Sizes  []int         // bytes; nil means 4 KiB to 256 MiB
	Pairs  int           // per size; 0 means paired.MinPairs
	Budget time.Duration // of one sample; 0 means 10 ms
}

// partsMargin is within which two parts of a program are the same: smaller differences are decided by where the linker put
// their code.
const partsMargin = 0.02

// Vec compares vec.Copy with Go's built-in copy, and vec.CopyCRC32C with a copy and a checksum one after the other, as
// interleaved pairs per size. Every destination and every checksum is checked.
func Vec(ctx context.Context, o VecOptions) (*paired.Report, error) {
	if o.Sizes == nil {
		o.Sizes = []int{4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20}
	}
	if o.Pairs == 0 {
		o.Pairs = paired.MinPairs
	}
	if o.Budget == 0 {
		o.Budget = 10 * time.Millisecond
	}
	r := o.Begin("vec", fmt.Sprintf("samples of about %v; before each the source gets new bytes, after it every byte of the destination is "+
		"compared", o.Budget))
	r.Method.Pairs = o.Pairs
	vec.Calibrate()
	r.Notes = append(r.Notes, splitLines(vec.Explain())...)
	for _, size := range o.Sizes {
		if err := o.size(ctx, r, size); err != nil {
			return r.End(err)
		}
	}
	return r.End(nil)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (o *VecOptions) size(ctx context.Context, r *Suite, size int) error {
	src, err := mem.Alloc(mem.Options{Name: "bench source", Size: size})
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := mem.Alloc(mem.Options{Name: "bench destination", Size: size})
	if err != nil {
		return err
	}
	defer dst.Close()
	s, d := src.All().Bytes(), dst.All().Bytes()
	clear(d)
	var crc uint32
	for _, c := range []struct {
		name, peer   string
		ours, theirs func()
		sum          bool
	}{
		{"vec.Copy", "built-in copy", func() { vec.Copy(d, s) }, func() { copy(d, s) }, false},
		{"vec.CopyCRC32C", "copy, then CRC32C", func() { crc = vec.CopyCRC32C(d, s, 0) }, func() { copy(d, s); crc = vec.CRC32C(0, d) }, true},
	} {
		h := shape{what: c.name, size: uint64(size)}
		o.Progress.Say("%s", h.title())
		n := repeats(o.Budget, c.ours)
		contender := func(name string, f func()) paired.Contender {
			return paired.Contender{Name: name, Run: func(context.Context) (paired.Sample, error) {
				seed := rand.Uint64()
				synth.Fill(s, seed)
				t := time.Now()
				for range n {
					f()
				}
				took := time.Since(t)
				if bad, ok := synth.Verify(d, seed, 0); !ok {
					return paired.Sample{}, fmt.Errorf("%w: byte %d of %d is wrong", paired.ErrFailed, bad, size)
				}
				if want := crc32.Checksum(d, castagnoli); c.sum && crc != want {
					return paired.Sample{}, fmt.Errorf("%w: the checksum is %#x: expected %#x", paired.ErrFailed, crc, want)
				}
				return paired.Sample{Value: GBps(uint64(size)*uint64(n), took), Verified: uint64(size)}, nil
			}}
		}
		err := r.Measure(ctx, paired.Plan{Name: h.title(), Unit: paired.GBs, Pairs: o.Pairs, Margin: partsMargin, Ours: contender(c.name, c.ours),
			Theirs: []paired.Contender{contender(c.peer, c.theirs)}}, func(x *paired.Row) error { h.describe(x); return nil })
		if err != nil {
			return err
		}
	}
	return nil
}

// repeats is how often f must be called to last about d; at least once.
func repeats(d time.Duration, f func()) int {
	f()
	for n := 1; ; n *= 4 {
		t := time.Now()
		for range n {
			f()
		}
		if e := time.Since(t); e >= d/8 || n >= 1<<24 {
			return max(1, int(float64(n)*float64(d)/float64(e+1)))
		}
	}
}

// dedupe removes what a list names twice, so that rows have names of their own.
func dedupe[T comparable](list []T) []T {
	var out []T
	for _, v := range list {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}
