package verbs

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/gpu/cuda"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fakecuda "github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
)

// cards are providers of the memory of two CUDA devices of the fake driver.
func cards(t *testing.T, script string) (all []*gpumem.Provider, f *fakecuda.Control) {
	t.Helper()
	library, err := fakecuda.Build()
	if err != nil {
		if _, missing := testenv.Tool("gcc", "gcc libc6-dev"); missing != nil {
			testenv.Missing(t, "a C compiler", missing)
		}
		t.Fatal(err)
	}
	if f, err = fakecuda.Load(library); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Restart(), f.Script(script)); err != nil {
		t.Fatal(err)
	}
	rt, err := cuda.Open(cuda.Options{Library: library})
	if err != nil {
		t.Fatal(err)
	}
	closing := func(c interface{ Close() error }) {
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closing(rt)
	for _, d := range rt.Devices()[:2] {
		c, err := d.Open()
		if err != nil {
			t.Fatal(err)
		}
		closing(c)
		p, err := gpumem.New(c, gpumem.Options{})
		if err != nil {
			t.Fatal(err)
		}
		closing(p)
		all = append(all, p)
	}
	return all, f
}

// cudaRegion is a region of a card with this content.
func cudaRegion(t *testing.T, p *gpumem.Provider, name string, content []byte) *mem.Region {
	t.Helper()
	r, err := mem.Alloc(mem.Options{Name: name, Kind: mem.Device, Size: len(content), Provider: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	src, err := mem.Adopt("source", content, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	m, err := r.Mover().Store(0, src.All())
	if err == nil {
		err = m.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// content is what a card's region holds.
func content(t *testing.T, r *mem.Region) []byte {
	t.Helper()
	b := make([]byte, r.Len())
	dst, err := mem.Adopt("destination", b, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	m, err := r.Mover().Load(dst.All(), 0)
	if err == nil {
		err = m.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCUDAMemory moves bytes between the memories of two CUDA devices with regions of package
// gpumem, both stand-ins of this process: put and get, by dma-buf, with the driver's flush where
// the device says that it takes one. What the driver does not offer is refused with its reason.
func TestCUDAMemory(t *testing.T) {
	const size = 2 << 20
	for _, c := range []struct {
		script  string
		flushes bool
		refused string
	}{
		{"", false, ""},
		{"device 1 attribute GPU_DIRECT_RDMA_WRITES_ORDERING 0", true, ""},
		{"device 1 attribute DMA_BUF_SUPPORTED 0", false, "open kernel modules"},
		{"device 1 attribute GPU_DIRECT_RDMA_SUPPORTED 0", false, "no GPUDirect RDMA"},
	} {
		t.Run(c.script, func(t *testing.T) {
			w := newWorld(t, "mode wire")
			providers, f := cards(t, c.script)
			want, zeros := make([]byte, size), make([]byte, size)
			pathtest.Fill(want, 8)
			from, to := cudaRegion(t, providers[0], "from", want), cudaRegion(t, providers[1], "to", zeros)
			r := newAccelRig(t, w, bare, Options{}, 1)
			x := r.B.Export(to, both)
			put := path.Op{Kind: path.Put, Copies: copyTo(from, x, 4000, 1_000_000), Notify: true}
			if c.refused != "" {
				if ev := r.A.Do(put); !errors.Is(ev.Err, path.ErrUnreachable) {
					t.Errorf("%v", ev.Err)
				}
				if s := strings.Join(r.b.Explain(), "\n"); !strings.Contains(s, c.refused) {
					t.Errorf("no %q in:\n%s", c.refused, s)
				}
				return
			}
			r.A.MustDo(put)
			copy(zeros[4000:], want[4000:1_004_000])
			if !bytes.Equal(content(t, to), zeros) {
				t.Error("what was put is not in the device's memory, or more than that")
			}
			// outlives no path, and is registered by none at the end
			back := cudaRegion(t, providers[0], "back", make([]byte, size))
			r.A.MustDo(path.Op{Kind: path.Get, Copies: copyTo(back, x, 0, size)})
			if !bytes.Equal(content(t, back), zeros) {
				t.Error("what was got is not in the device's memory")
			}
			if n := f.Calls("cuFlushGPUDirectRDMAWrites"); (n > 0) != c.flushes {
				t.Errorf("%d flushes", n)
			}
		})
	}
}
