package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/tensor/synth"
)

// VecOptions describe a run of Vec.
type VecOptions struct {
	Conditions
	Sizes  []int         // bytes; nil means 4 KiB to 256 MiB
	Pairs  int           // per size; 0 means paired.MinPairs
	Budget time.Duration // of one sample; 0 means 10 ms
}

// partsMargin is within which two parts of a program are the same: smaller differences are decided
// by where the linker put their code.
const partsMargin = 0.02

// Vec compares each kernel of package vec, and conversions of package convert, with the plain way
// to do the same, as interleaved pairs per size, and for sizes that no cache holds also with what a
// copy or a read of as many bytes of memory takes. Every result is checked.
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
	r := o.Begin("vec", fmt.Sprintf("samples of about %v; before each the source gets new bytes, after it every byte "+
		"of the result is "+
		"compared; \"memory\" is the rate at which an operation would run whose reads and writes took as long as "+
		"those of a copy, or of a read, in the same round", o.Budget))
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

func (o *VecOptions) size(ctx context.Context, r *Suite, size int) error {
	var buf vecBuffers
	for name, at := range map[string]*[]byte{"source": &buf.src, "second source": &buf.other, "destination": &buf.dst} {
		m, err := mem.Alloc(mem.Options{Name: "bench " + name, Size: size})
		if err != nil {
			return err
		}
		defer m.Close()
		*at = m.All().Bytes()[:size]
		clear(*at)
	}
	synth.Fill(buf.other, 1)
	for _, op := range vecOps {
		if err := o.op(ctx, r, op, &buf, size); err != nil {
			return err
		}
	}
	return nil
}

// op measures one operation.
func (o *VecOptions) op(ctx context.Context, r *Suite, op vecOp, buf *vecBuffers, size int) error {
	h := shape{what: op.name, size: uint64(size)}
	o.Progress.Say("%s", h.title())
	op.fill(buf, 1)
	n := repeats(o.Budget, func() { op.ours(buf) })
	contender := func(name string, f func(*vecBuffers), part float64,
		check func(*vecBuffers, uint64) error) paired.Contender {
		return paired.Contender{Name: name, Run: func(context.Context) (paired.Sample, error) {
			seed := rand.Uint64()
			op.fill(buf, seed)
			t := time.Now()
			for range n {
				f(buf)
			}
			took := time.Since(t)
			if err := check(buf, seed); err != nil {
				return paired.Sample{}, fmt.Errorf("%w: %s of %d bytes: %w", paired.ErrFailed, name, size, err)
			}
			return paired.Sample{Value: GBps(uint64(size)*uint64(n), took) * part, Verified: uint64(size)}, nil
		}}
	}
	theirs := []paired.Contender{contender(op.peer, op.theirs, 1, op.check)}
	if CopyCeilingHolds(uint64(size)) && op.reads+op.writes > 0 {
		memory := contender("memory, read", func(b *vecBuffers) { b.sum = readAll(b.src) }, 1/op.reads, checkRead)
		if op.writes > 0 {
			memory = contender("memory, copied", func(b *vecBuffers) {
				vec.Copy(b.dst, b.src)
			}, 2/(op.reads+op.writes), checkCopy)
		}
		theirs = append(theirs, memory)
	}
	return r.Measure(ctx, paired.Plan{Name: h.title(), Unit: paired.GBs, Pairs: o.Pairs, Margin: partsMargin,
		Ours:   contender(op.name, op.ours, 1, op.check),
		Theirs: theirs}, func(x *paired.Row) error { h.describe(x); return nil })
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
