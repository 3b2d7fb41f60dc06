package accel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/gpu/opencl"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor/synth"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	if child() {
		return
	}
	goleak.VerifyTestMain(m)
}

// opened is the device under test; it must be left without a region.
func opened(t *testing.T, o Options) *Accelerator {
	t.Helper()
	a, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func onPoCL(t *testing.T) Options {
	platform := peers.PoCL(t)
	return Options{Table: gpu.Table{{Name: "opencl", Open: func() (*gpu.Runtime, error) {
		return opencl.Open(opencl.Options{Platform: platform})
	}}}}
}

// each runs f on the runtimes that CI has.
func onEach(t *testing.T, f func(t *testing.T, a *Accelerator)) {
	t.Run("host", func(t *testing.T) { f(t, opened(t, Options{Runtime: "host"})) })
	t.Run("pocl", func(t *testing.T) { f(t, opened(t, onPoCL(t))) })
}

func alloc(t *testing.T, a *Accelerator, kind mem.Kind, size int) *mem.Region {
	t.Helper()
	r, err := a.Alloc("test", kind, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// draw fills a span with the pattern of a seed.
func draw(ctx context.Context, s mem.Span, seed uint64) error {
	return Write(ctx, s, func(b []byte, off uint64) error {
		synth.FillAt(b, seed, off)
		return nil
	})
}

// holds checks the pattern of a seed, and reports whether a kernel saw the same.
func holds(ctx context.Context, a *Accelerator, s mem.Span, seed uint64) (bool, error) {
	next := uint64(0)
	byKernel, err := a.Inspect(ctx, s, func(b []byte, off uint64) error {
		if off != next {
			return fmt.Errorf("bytes from %d, expected from %d", off, next)
		}
		next += uint64(len(b))
		if bad, ok := synth.Verify(b, seed, off); !ok {
			return fmt.Errorf("byte %d is wrong", off+uint64(bad))
		}
		return nil
	})
	if err == nil && next != s.Len {
		err = fmt.Errorf("%d bytes of %d were shown", next, s.Len)
	}
	return byKernel, err
}

// The memory of a device cannot be touched, is written and read piece by piece, and its kernels see
// the same bytes.
func TestBytesOfADevice(t *testing.T) {
	onEach(t, func(t *testing.T, a *Accelerator) {
		if !a.StandIn() {
			t.Errorf("%s is taken for a card", a)
		}
		r := alloc(t, a, mem.Device, 2*Piece+12345)
		if r.All().Bytes() != nil || r.Mover() == nil || r.Mover().Device() != a.Device() {
			t.Fatalf("the CPU reaches it as %d bytes; %v", len(r.All().Bytes()), r.Mover())
		}
		small := rapid.Uint64Range(0, 300)
		around := func(n uint64) *rapid.Generator[uint64] { return rapid.Uint64Range(n-2, n+2) }
		rapid.Check(t, func(t *rapid.T) {
			size := rapid.OneOf(small, small, around(sumPiece), around(2*sumPiece), around(Piece),
				around(2*Piece)).Draw(t, "size")
			s, err := r.Span(rapid.Uint64Range(0, min(7, r.Len()-size)).Draw(t, "off"), size)
			if err != nil {
				t.Fatal(err)
			}
			seed := rapid.Uint64().Draw(t, "seed")
			if err := draw(t.Context(), s, seed); err != nil {
				t.Fatal(err)
			}
			byKernel, err := holds(t.Context(), a, s, seed)
			if err != nil || !byKernel {
				t.Fatalf("by a kernel %v: %v", byKernel, err)
			}
		})
	})
}

// What lies beside a span stays as it was.
func TestWriteStaysInItsSpan(t *testing.T) {
	onEach(t, func(t *testing.T, a *Accelerator) {
		r := alloc(t, a, mem.Device, 3000)
		whole, err := r.Span(0, 3000)
		if err != nil {
			t.Fatal(err)
		}
		if err := draw(t.Context(), whole, 1); err != nil {
			t.Fatal(err)
		}
		inner, _ := r.Span(1001, 999)
		if err := draw(t.Context(), inner, 2); err != nil {
			t.Fatal(err)
		}
		want := make([]byte, 3000)
		synth.Fill(want, 1)
		synth.Fill(want[1001:2000], 2)
		err = Read(t.Context(), whole, func(b []byte, off uint64) error {
			if !bytes.Equal(b, want) || off != 0 {
				return errors.New("other bytes")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// Host and pinned memory is shown as it is, without an accelerator too.
func TestBytesOfTheHost(t *testing.T) {
	onEach(t, func(t *testing.T, a *Accelerator) {
		plain, err := mem.Alloc(mem.Options{Size: Piece + 5})
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close()
		for _, r := range []*mem.Region{plain, alloc(t, a, mem.HostPinned, Piece+5)} {
			if err := draw(t.Context(), r.All(), 3); err != nil {
				t.Fatal(err)
			}
			if bad, ok := synth.Verify(r.All().Bytes(), 3, 0); !ok {
				t.Errorf("%s: byte %d is wrong", r.Kind(), bad)
			}
			byKernel, err := holds(t.Context(), a, r.All(), 3)
			if err != nil || byKernel && r == plain {
				t.Errorf("%s: %v, %v", r.Kind(), byKernel, err)
			}
			if byKernel, err := holds(t.Context(), nil, r.All(), 3); err != nil || byKernel {
				t.Errorf("%s without an accelerator: %v, %v", r.Kind(), byKernel, err)
			}
			r.All().Bytes()[Piece+2] ^= 1
			if _, err := holds(t.Context(), a, r.All(), 3); err == nil {
				t.Errorf("%s: a wrong byte was not found", r.Kind())
			}
		}
	})
}

// liar is a Mover that brings one byte wrong.
type liar struct {
	mem.Mover
	at uint64
}

func (l liar) Load(dst mem.Span, off uint64) (mem.Move, error) {
	m, err := l.Mover.Load(dst, off)
	if err == nil {
		err = m.Wait(context.Background())
	}
	if err == nil && l.at >= off && l.at-off < dst.Len {
		dst.Bytes()[l.at-off] ^= 0x10
	}
	return done{}, err
}

type done struct{}

func (done) Done() (bool, error)        { return true, nil }
func (done) Wait(context.Context) error { return nil }

// Inspect finds a Mover that brings other bytes than the kernels see, also where it does not know
// what they should be.
func TestDisagreement(t *testing.T) {
	onEach(t, func(t *testing.T, a *Accelerator) {
		r := alloc(t, a, mem.Device, Piece+100)
		if err := draw(t.Context(), r.All(), 4); err != nil {
			t.Fatal(err)
		}
		for _, at := range []uint64{0, sumPiece, Piece + 99} {
			x, err := mem.AdoptMapping("lies", mem.Mapping{Kind: mem.Device, Size: r.Len(), PageSize: 4096, FD: -1,
				NUMANode: -1, Mover: liar{r.Mover(), at}, Handle: gpumem.Memory(r)})
			if err != nil {
				t.Fatal(err)
			}
			byKernel, err := a.Inspect(t.Context(), x.All(), func([]byte, uint64) error { return nil })
			if !byKernel || !errors.Is(err, ErrDisagree) {
				t.Errorf("byte %d: %v, %v", at, byKernel, err)
			}
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// The error of a callback, and the end of a context, end it.
func TestBrokenOff(t *testing.T) {
	a := opened(t, Options{Runtime: "host"})
	r := alloc(t, a, mem.Device, 3*Piece)
	boom, calls := errors.New("boom"), 0
	f := func(b []byte, off uint64) error {
		calls++
		if off > 0 {
			return boom
		}
		return nil
	}
	if err := Read(t.Context(), r.All(), f); err != boom && !errors.Is(err, boom) || calls != 2 {
		t.Errorf("read: %v after %d calls", err, calls)
	}
	calls = 0
	if err := Write(t.Context(), r.All(), f); !errors.Is(err, boom) || calls != 2 {
		t.Errorf("write: %v after %d calls", err, calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls = 0
	err := Write(ctx, r.All(), func([]byte, uint64) error { calls++; cancel(); return nil })
	if err != nil && !errors.Is(err, context.Canceled) || calls > 3 {
		t.Errorf("canceled: %v after %d calls", err, calls)
	}
	closed, err := a.Alloc("closed", mem.Device, 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Read(t.Context(), closed.All(), f); !errors.Is(err, mem.ErrClosed) {
		t.Errorf("closed memory: %v", err)
	}
}

// Open says which runtimes it passed over and why, and replaces none that was asked for by name; a
// stand-in says that it is one.
func TestChoice(t *testing.T) {
	a := opened(t, Options{Table: gpu.Table{
		{Name: "cuda", Open: func() (*gpu.Runtime, error) { return nil, fmt.Errorf("%w: broken card", gpu.ErrUnavailable) }},
		{Name: "host", Open: func() (*gpu.Runtime, error) { return host.Open(host.Options{Devices: 2}) }},
	}, Device: 1})
	for _, want := range []string{"host 1: ", "a stand-in for a card", "no cuda (", "broken card"} {
		if !strings.Contains(a.String(), want) {
			t.Errorf("no %q in %q", want, a)
		}
	}
	if _, err := Open(Options{Runtime: "host", Device: 1}); !errors.Is(err, ErrDevice) ||
		!strings.Contains(err.Error(), "host 0: ") {
		t.Errorf("a second device: %v", err)
	}
	if _, err := Open(Options{Runtime: "host", Device: -1}); !errors.Is(err, ErrDevice) {
		t.Errorf("device -1: %v", err)
	}
	if _, err := Open(Options{Runtime: "vulkan"}); !errors.Is(err, gpu.ErrArgument) {
		t.Errorf("an unknown runtime: %v", err)
	}
	if _, err := Open(Options{Runtime: "cuda", Table: gpu.Table{{Name: "cuda", Open: func() (*gpu.Runtime, error) {
		return nil, gpu.ErrUnavailable
	}}}}); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("a runtime that is not here: %v", err)
	}
	r, err := a.Alloc("left", mem.Device, 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("close with a region: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}
