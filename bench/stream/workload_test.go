package stream

import (
	"encoding/binary"
	"math"
	"math/cmplx"
	"testing"

	"github.com/penstock-io/penstock/packet"
)

// The transform is the one that its definition says, of every block of the payload.
func TestFFTIsTheTransform(t *testing.T) {
	const n = 64
	p := pattern(2*4*n+30, 5, FFT) // two transforms of 128 do not fit: one does
	w := newWorker(FFT, len(p), false)
	if len(w.in) != 128 {
		t.Fatalf("transforms of %d", len(w.in))
	}
	w.do(p, p)
	for k := range w.out {
		var want complex128
		for i := range w.in {
			re, im := int16(binary.LittleEndian.Uint16(p[4*i:])), int16(binary.LittleEndian.Uint16(p[4*i+2:]))
			want += complex(float64(re), float64(im)) * cmplx.Rect(1, -2*math.Pi*float64(k*i)/128)
		}
		if cmplx.Abs(w.out[k]-want) > 1e-6*32768 {
			t.Fatalf("coefficient %d is %v, want %v", k, w.out[k], want)
		}
	}
	if w.sum != math.Float64bits(real(w.out[1])) {
		t.Error("the result is not in the sum")
	}
	// A payload of three of the largest: three transforms.
	p = pattern(3*4*maxFFT, 6, FFT)
	w = newWorker(FFT, len(p), false)
	w.do(p, p)
	var each uint64
	for i := range 3 {
		one := newWorker(FFT, 4*maxFFT, false)
		q := p[i*4*maxFFT:][:4*maxFFT]
		one.do(q, q)
		each += one.sum
	}
	if w.sum != each {
		t.Error("not all blocks were transformed")
	}
}

func TestGEMMIsTheProduct(t *testing.T) {
	p := pattern(5*4*tile+12, 7, GEMM)
	w := newWorker(GEMM, len(p), false)
	if w.rows != 5 {
		t.Fatalf("%d rows", w.rows)
	}
	w.do(p, p)
	w.do(p, p) // what was there before does not count
	for i := range w.rows {
		for j := range tile {
			want := 0.0
			for k := range tile {
				want += float64(math.Float32frombits(binary.LittleEndian.Uint32(p[4*(i*tile+k):]))) * float64(weight(k,
					j))
			}
			if got := float64(w.c[i*tile+j]); math.Abs(got-want) > 1e-4 {
				t.Fatalf("row %d, column %d: %v, want %v", i, j, got, want)
			}
		}
	}
}

func TestOtherWork(t *testing.T) {
	p := pattern(101, 8, Checksum)
	w := newWorker(Checksum, len(p), false)
	w.do(p, p)
	if w.sum != uint64(packet.Checksum(p)) || w.sum == 0 {
		t.Error("checksum")
	}
	w = newWorker(Touch, len(p), false)
	if w.do(p, p); w.sum != binary.BigEndian.Uint64(p) {
		t.Error("touch")
	}
	w = newWorker(NoWork, len(p), false)
	if w.do(p, p); w.sum != 0 {
		t.Error("none")
	}
	for i, name := range Workloads() {
		got, err := ParseWorkload(name)
		if err != nil || got != Workload(i) || got.String() != name {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		// The smallest size is enough.
		p := pattern(PayloadLen(got.MinSize())-HeaderLen, 1, got)
		w := newWorker(got, len(p), false)
		w.do(pattern(64, 1, got), p)
		if (got == FFT || got == GEMM) && w.sum == 0 {
			t.Errorf("%s does nothing with a packet of %d bytes", name, got.MinSize())
		}
	}
	if _, err := ParseWorkload("sort"); err == nil {
		t.Error("an unknown workload")
	}
}

func TestWorkDoesNotAllocate(t *testing.T) {
	for _, kind := range []Workload{Touch, Checksum, FFT, GEMM} {
		for _, size := range []int{512, MaxSize} {
			p := pattern(PayloadLen(size)-HeaderLen, 1, kind)
			w := newWorker(kind, len(p), false)
			if n := testing.AllocsPerRun(20, func() { w.do(p, p) }); n != 0 {
				t.Errorf("%v of %d bytes: %v allocations", kind, size, n)
			}
		}
	}
}
