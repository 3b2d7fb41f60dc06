package stream

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
	"gonum.org/v1/gonum/dsp/fourier"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
)

// Workload is what the receiver does with each packet besides checking its bytes.
type Workload uint8

// The workloads.
const (
	NoWork   Workload = iota
	Touch             // reads the headers, by packet.Parse where there are any
	Checksum          // the Internet checksum of the payload
	// the payload as int16 pairs (I, Q): Fourier transforms of the largest power of two of them
	// that fits
	FFT
	GEMM // the payload as rows of 16 float32, multiplied by a constant matrix of 16 times 16
)

var workloadNames = []string{"none", "touch", "checksum", "fft", "gemm"}

func (w Workload) String() string {
	if int(w) < len(workloadNames) {
		return workloadNames[w]
	}
	return fmt.Sprintf("workload %d", uint8(w))
}

// Workloads are the names of all.
func Workloads() []string { return slices.Clone(workloadNames) }

// ParseWorkload finds a workload by its name.
func ParseWorkload(name string) (Workload, error) {
	if i := slices.Index(workloadNames, name); i >= 0 {
		return Workload(i), nil
	}
	return 0, fmt.Errorf("%w: stream: workload %q: expected one of %s", engine.ErrInvalid, name,
		strings.Join(workloadNames, ", "))
}

const (
	tile   = 16 // columns of a row of GEMM, and of its constant matrix
	maxFFT = 2048
	minFFT = 16
)

// MinSize is the smallest packet that a workload can do something with, as a frame.
func (w Workload) MinSize() int {
	base := MinSize // the Header leaves nothing
	switch w {
	case FFT:
		return base + 4*minFFT
	case GEMM:
		return base + 4*tile
	}
	return base
}

// worker does the workload of one receiving goroutine. It allocates when it is made, and never
// again.
type worker struct {
	kind   Workload
	frames bool
	layers packet.Layers
	sum    uint64 // of all results, so that the compiler keeps the work

	fft      *fourier.CmplxFFT
	in, out  []complex128
	rows     int
	a, b, c  []float32
	multiply gonum.Implementation
}

// newWorker makes one for payloads of n bytes behind the Header. frames says that packets begin
// with Ethernet.
func newWorker(kind Workload, n int, frames bool) *worker {
	w := &worker{kind: kind, frames: frames}
	switch kind {
	case FFT:
		if k := n / 4; k >= minFFT {
			k = min(1<<(bits.Len(uint(k))-1), maxFFT)
			w.fft, w.in, w.out = fourier.NewCmplxFFT(k), make([]complex128, k), make([]complex128, k)
		}
	case GEMM:
		if w.rows = n / (4 * tile); w.rows > 0 {
			w.a, w.b, w.c = make([]float32, w.rows*tile), make([]float32, tile*tile), make([]float32, w.rows*tile)
			for i := range w.b {
				w.b[i] = weight(i/tile, i%tile)
			}
		}
	}
	return w
}

// weight is the constant matrix of GEMM.
func weight(row, column int) float32 { return float32((row*tile+column)%7-3) / 4 }

// do works on a packet: what it begins with, and its payload behind the Header.
func (w *worker) do(begin, payload []byte) {
	switch w.kind {
	case Touch:
		if w.frames {
			packet.Parse(begin, &w.layers)
			w.sum += uint64(w.layers.DstPort)
		} else {
			w.sum += binary.BigEndian.Uint64(begin)
		}
	case Checksum:
		w.sum += uint64(packet.Checksum(payload))
	case FFT:
		w.transform(payload)
	case GEMM:
		w.product(payload)
	}
}

// transform does one transform after the other until less than one is left.
func (w *worker) transform(p []byte) {
	if w.fft == nil {
		return
	}
	for n := 4 * len(w.in); len(p) >= n; p = p[n:] {
		for i := range w.in {
			w.in[i] = complex(float64(int16(binary.LittleEndian.Uint16(p[4*i:]))),
				float64(int16(binary.LittleEndian.Uint16(p[4*i+2:]))))
		}
		w.fft.Coefficients(w.out, w.in)
		w.sum += math.Float64bits(real(w.out[1]))
	}
}

func (w *worker) product(p []byte) {
	if w.rows == 0 || len(p) < 4*len(w.a) {
		return
	}
	for i := range w.a {
		w.a[i] = math.Float32frombits(binary.LittleEndian.Uint32(p[4*i:]))
	}
	w.multiply.Sgemm(blas.NoTrans, blas.NoTrans, w.rows, tile, tile, 1, w.a, tile, w.b, tile, 0, w.c, tile)
	w.sum += uint64(math.Float32bits(w.c[0]))
}
