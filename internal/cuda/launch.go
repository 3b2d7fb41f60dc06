package cuda

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/dl"
)

// Launch is a kernel with its arguments in memory that the driver reads at each Run, so that Run
// allocates nothing. One goroutine uses it at a time; launches that are in a stream keep the
// arguments that they had.
type Launch struct {
	f     *Function
	mem   []byte // pointers to the values, then the values, 8 bytes each
	sizes []int
	args  [11]uintptr // of the driver's call, kept so that no call allocates them
}

// Dim is a number of blocks, or of threads in a block, in three dimensions. 0 is 1 for Y and Z.
type Dim struct{ X, Y, Z uint32 }

// NewLaunch prepares launches of f, whose parameters have these sizes in bytes, each 1 to 8. All
// arguments are 0. The caller closes it.
func (f *Function) NewLaunch(sizes ...int) (*Launch, error) {
	for i, n := range sizes {
		if n < 1 || n > 8 {
			return nil, fmt.Errorf("cuda: launch of %s: parameter %d has %d bytes: expected 1 to 8", f.name, i, n)
		}
	}
	mem, err := dl.Alloc(max(1, 16*len(sizes)))
	if err != nil {
		return nil, fmt.Errorf("cuda: %w: %w", ErrOutOfMemory, err)
	}
	l := &Launch{f: f, mem: mem, sizes: append([]int(nil), sizes...)}
	for i := range sizes {
		put(mem, 8*i, address(mem, l.at(i)))
	}
	return l, nil
}

// at is where argument i is.
func (l *Launch) at(i int) int { return 8 * (len(l.sizes) + i) }

// Set gives argument i the low bytes of v: a Pointer, an integer, the bits of a float. It allocates
// nothing.
func (l *Launch) Set(i int, v uint64) { put(l.mem, l.at(i), v) } // little-endian on all machines that CUDA runs on

// Get is the argument's bytes as Set left them.
func (l *Launch) Get(i int) uint64 { return get[uint64](l.mem, l.at(i)) }

// Run queues the kernel in the stream with grid blocks of block threads, and shared bytes of
// dynamic shared memory for each block. It allocates nothing.
func (l *Launch) Run(s *Stream, grid, block Dim, shared uint32) error {
	return l.run(fnLaunchKernel, s, grid, block, shared)
}

// RunTogether is Run for kernels whose blocks wait for each other: all are on the device at once,
// or the launch is refused.
func (l *Launch) RunTogether(s *Stream, grid, block Dim, shared uint32) error {
	return l.run(fnLaunchCooperative, s, grid, block, shared)
}

func (l *Launch) run(op fn, s *Stream, grid, block Dim, shared uint32) error {
	c := l.f.c
	if err := c.enter(); err != nil {
		return err
	}
	// A cooperative launch has no last argument, and passes over it.
	l.args = [11]uintptr{l.f.h, uintptr(grid.X), uintptr(max(1, grid.Y)), uintptr(max(1, grid.Z)), uintptr(block.X),
		uintptr(max(1, block.Y)),
		uintptr(max(1, block.Z)), uintptr(shared), s.h, dl.Address(l.mem), 0}
	r := c.d.fn[op].Call(l.args[:]...)
	leave()
	if int32(r) == 0 {
		return nil
	}
	return l.failed(op, r, grid, block, shared)
}

func (l *Launch) failed(op fn, r uintptr, grid, block Dim, shared uint32) error {
	return about(check(op, r), "%s with %v blocks of %v threads and %d bytes of shared memory", l.f.name, grid, block,
		shared)
}

// Close gives back the memory of the arguments. A second Close does nothing.
func (l *Launch) Close() {
	dl.Free(l.mem)
	l.mem = nil
}
