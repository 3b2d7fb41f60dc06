package accel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
)

// ErrDisagree is wrapped by the error of Inspect when the kernels of the device see other bytes
// than the CPU reads back.
var ErrDisagree = errors.New("the device sees other bytes than the CPU reads back")

// sumPiece is how many bytes one group of the kernel sums; Piece is a multiple.
const sumPiece = 64 << 10

// sumPieces is how many pieces are summed by one launch.
const sumPieces = Piece / sumPiece

// Inspect is Read that also has a kernel of the device sum the bytes (RFC 1071, in pieces of 64
// KiB) and compares: what was read back must be what kernels see. It reports whether it did; memory
// that kernels do not reach, and all memory on a nil Accelerator, is only read. s is of host memory
// or of this Accelerator.
func (a *Accelerator) Inspect(ctx context.Context, s mem.Span, f func(b []byte, off uint64) error) (byKernel bool,
	err error) {
	k, err := a.summer(s.Region)
	if err != nil || k == nil {
		return false, errors.Join(err, Read(ctx, s, f))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	m := gpumem.Memory(s.Region)
	return true, Read(ctx, s, func(b []byte, off uint64) error {
		for len(b) > 0 { // host memory comes at once
			n := min(len(b), Piece)
			if err := k.compare(ctx, m, s.Off+off, b[:n]); err != nil {
				return fmt.Errorf("accel: %s: region %q: %w", a.Device(), s.Region.Name(), err)
			}
			if err := f(b[:n:n], off); err != nil {
				return err
			}
			b, off = b[n:], off+uint64(n)
		}
		return nil
	})
}

// summer is what sums memory of r on the device, made when it is first needed; nil where kernels do
// not reach r, or the device takes none of ours.
func (a *Accelerator) summer(r *mem.Region) (*summer, error) {
	if a == nil {
		return nil, nil
	}
	m := gpumem.Memory(r)
	if m == nil || m.Kind() == gpu.PinnedMemory {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sum == nil {
		s, err := newSummer(a.ctx)
		if errors.Is(err, gpu.ErrArch) || errors.Is(err, gpu.ErrUnsupported) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		a.sum = s
	}
	return a.sum, nil
}

// summer runs kernels.Checksum.
type summer struct {
	stream *gpu.Stream
	module *gpu.Module
	kernel *gpu.Kernel
	table  *gpu.Memory // of pieces
	sums   *gpu.Memory
	pieces []byte // as table
	result []byte // as sums
}

func newSummer(c *gpu.Context) (s *summer, err error) {
	s = &summer{pieces: make([]byte, sumPieces*kernels.PieceBytes), result: make([]byte, sumPieces*4)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.module, err = c.Load(kernels.Checksum); err != nil {
		return s, err
	}
	if s.kernel, err = s.module.Kernel("checksum"); err != nil {
		return s, err
	}
	if s.stream, err = c.NewStream(gpu.StreamOptions{Name: "accel sums"}); err != nil {
		return s, err
	}
	if s.table, err = c.Alloc(gpu.MemoryOptions{Name: "accel pieces", Size: uint64(len(s.pieces))}); err != nil {
		return s, err
	}
	s.sums, err = c.Alloc(gpu.MemoryOptions{Name: "accel sums", Size: uint64(len(s.result))})
	return s, err
}

func (s *summer) close() (err error) {
	if s == nil {
		return nil
	}
	if s.stream != nil {
		err = s.stream.Close()
	}
	for _, m := range []*gpu.Memory{s.table, s.sums} {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
	}
	if s.module != nil {
		err = errors.Join(err, s.module.Close())
	}
	return err
}

// compare sums the bytes of m from off on the device and holds them to b, at most Piece bytes.
func (s *summer) compare(ctx context.Context, m *gpu.Memory, off uint64, b []byte) error {
	count := (len(b) + sumPiece - 1) / sumPiece
	for i := range count {
		at := i * sumPiece
		binary.LittleEndian.PutUint64(s.pieces[i*kernels.PieceBytes:], off+uint64(at))
		binary.LittleEndian.PutUint64(s.pieces[i*kernels.PieceBytes+8:], uint64(min(sumPiece, len(b)-at)))
	}
	table, err := s.table.Span(0, uint64(count*kernels.PieceBytes))
	if err != nil {
		return err
	}
	sums, err := s.sums.Span(0, uint64(count*4))
	if err != nil {
		return err
	}
	call, err := s.kernel.Prepare(gpu.Buffer(sums), gpu.Buffer(m.All()), gpu.U64(m.Size()), gpu.Buffer(table),
		gpu.U32(uint32(count)))
	if err != nil {
		return err
	}
	err = s.stream.Write(table, s.pieces[:count*kernels.PieceBytes])
	if err == nil {
		err = s.stream.Launch(call, gpu.Grid{Groups: uint32(count), Group: 64})
	}
	if err == nil {
		err = s.stream.Read(s.result[:count*4], sums)
	}
	// The call may be closed only when its launch is over, whatever else failed.
	if err := errors.Join(err, s.stream.Wait(context.WithoutCancel(ctx)), call.Close()); err != nil {
		return err
	}
	for i := range count {
		at := i * sumPiece
		want := uint32(packet.Sum(0).Add(b[at:min(at+sumPiece, len(b))]).Fold())
		if got := binary.LittleEndian.Uint32(s.result[i*4:]); got != want {
			return fmt.Errorf("bytes %d to %d: %w: sums %#x and %#x", off+uint64(at),
				off+uint64(min(at+sumPiece, len(b))), ErrDisagree, got, want)
		}
	}
	return nil
}
