package gpucard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	gpucuda "github.com/penstock-io/penstock/gpu/cuda"
	"github.com/penstock-io/penstock/internal/accel"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor/synth"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

// loserEnv makes a process that loses its device in the middle of a transfer.
const loserEnv = "PENSTOCK_GPU_TEST_LOSER"

// end is one node with an accelerator of its own.
type end struct {
	node *transfer.Node
	a    *accel.Accelerator
}

// pair is two nodes that are connected.
type pair struct {
	here, there end
	peer        *transfer.Peer // there, as seen here
}

func newEnd(ctx context.Context, device int) (e end, err error) {
	open := func() (*gpu.Runtime, error) { return gpucuda.Open(gpucuda.Options{Library: library()}) }
	if e.a, err = accel.Open(accel.Options{Device: device, Table: gpu.Table{{Name: "cuda", Open: open}}}); err != nil {
		return e, err
	}
	e.node, err = transfer.Open(ctx, transfer.Options{Anonymous: identity.All, Listen: []string{"tcp://127.0.0.1:0"}})
	return e, err
}

// newPair opens the nodes, the second one on the last device that there is. close takes everything
// back, whatever err is.
func newPair(ctx context.Context) (p *pair, err error) {
	p = &pair{}
	if p.here, err = newEnd(ctx, 0); err != nil {
		return p, err
	}
	last := len(p.here.a.Context().Device().Runtime().Devices()) - 1
	if p.there, err = newEnd(ctx, last); err != nil {
		return p, err
	}
	p.peer, err = p.here.node.Dial(ctx, p.there.node.Addrs()[0])
	return p, err
}

func (p *pair) close() (err error) {
	for _, e := range []end{p.here, p.there} {
		if e.node != nil {
			err = errors.Join(err, e.node.Close())
		}
		if e.a != nil {
			err = errors.Join(err, e.a.Close())
		}
	}
	return err
}

// alloc is memory of a kind; the caller closes it.
func (e end) alloc(k mem.Kind, size int) (*mem.Region, error) {
	if k == mem.Host {
		return mem.Alloc(mem.Options{Size: size})
	}
	return e.a.Alloc("transfer", k, size)
}

// move begins a put or a get and waits for its end.
func (p *pair) move(ctx context.Context, kind path.OpKind, copies []path.Copy, over ...string) (transfer.Explanation,
	error) {
	begin := p.peer.Put
	if kind == path.Get {
		begin = p.peer.Get
	}
	t, err := begin(ctx, copies, transfer.PutOptions{Paths: over})
	if err != nil {
		return transfer.Explanation{}, err
	}
	err = t.Wait(ctx)
	return t.Explain(), err
}

func fill(ctx context.Context, s mem.Span, seed uint64) error {
	return accel.Write(ctx, s, func(b []byte, off uint64) error {
		synth.FillAt(b, seed, off)
		return nil
	})
}

func holds(ctx context.Context, a *accel.Accelerator, s mem.Span, seed uint64) error {
	_, err := a.Inspect(ctx, s, func(b []byte, off uint64) error {
		if bad, ok := synth.Verify(b, seed, off); !ok {
			return fmt.Errorf("byte %d is wrong", off+uint64(bad))
		}
		return nil
	})
	return err
}

// Transfers to, from and between memories of cards, over the paths that every machine has: each
// byte is read back, and summed by a kernel of the card.
func TestTransfer(t *testing.T) {
	if !card(t) {
		return
	}
	t.Run("Bytes", func(t *testing.T) {
		p, err := newPair(t.Context())
		defer func() {
			if err := p.close(); err != nil {
				t.Error(err)
			}
		}()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range [][2]mem.Kind{{mem.Device, mem.Device}, {mem.Device, mem.Host}, {mem.Host, mem.Device},
			{mem.HostPinned, mem.Device}, {mem.HostPinned, mem.HostPinned}} {
			t.Run(k[0].String()+" "+k[1].String(), func(t *testing.T) {
				for _, over := range []string{"tcp", "shm"} {
					for _, size := range []uint64{1, 4097, 9<<20 + 3} {
						if err := p.roundTrip(t.Context(), k[0], k[1], over, size); err != nil {
							t.Errorf("%d bytes over %s: %v", size, over, err)
						}
					}
				}
			})
		}
	})
	// A device that is lost while bytes move: in a process of its own, which is of no use for the
	// card afterwards.
	t.Run("Lost", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), loserEnv+"=1")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != "lost" {
			t.Fatalf("the process that loses its device: %v, %q\n%s", err, out, stderr.String())
		}
		e, err := newEnd(t.Context(), 0)
		if err != nil {
			t.Fatalf("the device afterwards: %v", err)
		}
		if err := errors.Join(e.node.Close(), e.a.Close()); err != nil {
			t.Error(err)
		}
	})
}

// roundTrip puts a pattern there, and gets it back to another place.
func (p *pair) roundTrip(ctx context.Context, local, remote mem.Kind, over string, size uint64) (err error) {
	var all []*mem.Region
	defer func() {
		for _, r := range all {
			err = errors.Join(err, r.Close())
		}
	}()
	alloc := func(e end, k mem.Kind) *mem.Region {
		r, aerr := e.alloc(k, int(size)+100)
		if err = errors.Join(err, aerr); aerr == nil {
			all = append(all, r)
		}
		return r
	}
	src, dst, back := alloc(p.here, local), alloc(p.there, remote), alloc(p.here, local)
	if err != nil {
		return err
	}
	x, err := p.there.node.Export(dst.All(), transfer.ExportOptions{Name: "memory", Rights: path.Read | path.Write})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Revoke(ctx)) }()
	r, err := p.peer.Lookup(ctx, "memory")
	if err != nil {
		return err
	}
	span := func(r *mem.Region, off uint64) mem.Span { return mem.Span{Region: r, Off: off, Len: size} }
	if err := errors.Join(fill(ctx, span(src, 5), size), fill(ctx, dst.All(), 1),
		fill(ctx, back.All(), 2)); err != nil {
		return err
	}
	if e, err := p.move(ctx, path.Put, []path.Copy{r.At(7, span(src, 5))}, over); err != nil || e.Path != over {
		return fmt.Errorf("put over %q: %w", e.Path, err)
	}
	if err := holds(ctx, p.there.a, span(dst, 7), size); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	if e, err := p.move(ctx, path.Get, []path.Copy{r.At(7, span(back, 31))}, over); err != nil || e.Path != over {
		return fmt.Errorf("get over %q: %w", e.Path, err)
	}
	if err := holds(ctx, p.here.a, span(back, 31), size); err != nil {
		return fmt.Errorf("get: %w", err)
	}
	for what, s := range map[string]mem.Span{"before": {Region: dst, Len: 7},
		"before what came back": {Region: back, Len: 31}} {
		seed := map[*mem.Region]uint64{dst: 1, back: 2}[s.Region]
		if err := holds(ctx, nil, s, seed); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

// loser is the process that loses its device.
func loser() {
	if os.Getenv(loserEnv) == "" {
		return
	}
	if err := lose(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("lost")
	os.Exit(0)
}

func lose(ctx context.Context) (err error) {
	p, err := newPair(ctx)
	if err != nil {
		return errors.Join(err, p.close())
	}
	const size = 64 << 20
	var all []*mem.Region
	for _, m := range []struct {
		e end
		k mem.Kind
	}{{p.here, mem.Device}, {p.here, mem.Host}, {p.there, mem.Host}} {
		r, err := m.e.alloc(m.k, size)
		if err != nil {
			return err
		}
		all = append(all, r)
	}
	dev, host, dst := all[0], all[1], all[2]
	if _, err := p.there.node.Export(dst.All(), transfer.ExportOptions{Name: "memory",
		Rights: path.Read | path.Write}); err != nil {
		return err
	}
	r, err := p.peer.Lookup(ctx, "memory")
	if err != nil {
		return err
	}
	copies := func(m *mem.Region) []path.Copy { return []path.Copy{r.At(0, mem.Span{Region: m, Len: size})} }
	if _, err := p.move(ctx, path.Put, copies(dev), "tcp"); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	c := p.here.a.Context()
	fault, err := faulty(c)
	if err != nil {
		return err
	}
	t, err := p.peer.Put(ctx, copies(dev), transfer.PutOptions{Paths: []string{"tcp"}})
	if err != nil {
		return err
	}
	if err := fault(); err != nil && !errors.Is(err, gpu.ErrDeviceLost) {
		return err
	}
	// It may have been faster than the loss; it ends in any case.
	if err := t.Wait(ctx); err != nil && !errors.Is(err, gpu.ErrDeviceLost) {
		return fmt.Errorf("the transfer under way: %w", err)
	}
	for _, kind := range []path.OpKind{path.Put, path.Get} {
		if _, err := p.move(ctx, kind, copies(dev), "tcp"); !errors.Is(err, gpu.ErrDeviceLost) {
			return fmt.Errorf("a transfer of a lost device: %w", errors.Join(err, errors.New("expected another error")))
		}
		// The session and host memory are as good as before.
		if _, err := p.move(ctx, kind, copies(host), "tcp"); err != nil {
			return fmt.Errorf("host memory afterwards: %w", err)
		}
	}
	for _, r := range all {
		if cerr := r.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
	}
	if err := errors.Join(err, p.close()); err != nil {
		return err
	}
	if left := mem.LeakReport(); len(left) > 0 {
		return fmt.Errorf("left behind: %v", left)
	}
	return nil
}

// faulty prepares a kernel that writes to nowhere; the function runs it and waits for the device's
// end.
func faulty(c *gpu.Context) (func() error, error) {
	m, err := c.Load(kernels.Fill)
	if err != nil {
		return nil, err
	}
	k, err := m.Kernel("fill")
	if err != nil {
		return nil, err
	}
	dst, err := c.Alloc(gpu.MemoryOptions{Name: "victim", Size: 4096})
	if err != nil {
		return nil, err
	}
	call, err := k.Prepare(gpu.Buffer(dst.All()), gpu.U64(1<<45), gpu.U64(4096), gpu.U64(1))
	if err != nil {
		return nil, err
	}
	s, err := c.NewStream(gpu.StreamOptions{Name: "fault"})
	if err != nil {
		return nil, err
	}
	return func() error {
		err := s.Launch(call, gpu.Grid{Groups: 1, Group: 64})
		if err == nil {
			if err = s.Wait(context.Background()); err == nil {
				err = errors.New("a write to nowhere was done")
			}
		}
		// The end of the device is what is wanted; closing says nothing of it.
		return errors.Join(err, s.Close(), call.Close(), m.Close(), dst.Close())
	}, nil
}
