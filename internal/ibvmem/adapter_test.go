package ibvmem

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem/cardtest"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/mem"
)

// world is the stand-in for libibverbs with an open device.
type world struct {
	ctx                   *ibv.Context
	pd                    *ibv.PD
	script, report, count dl.Func
}

var library = sync.OnceValues(func() (string, error) { return fake.Build() })

func newWorld(t testing.TB, script string) *world {
	t.Helper()
	file, err := library()
	if errors.Is(err, fake.ErrMissing) {
		testenv.Missing(t, "a C compiler and the headers of libibverbs", err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	l, err := dl.Open(file)
	must(err)
	w := &world{}
	for name, f := range map[string]*dl.Func{"script": &w.script, "report": &w.report, "count": &w.count} {
		*f, err = l.Symbol("penstock_fake_" + name)
		must(err)
	}
	w.do(t, "reset")
	w.do(t, script)
	lib, err := ibv.Load(ibv.Options{Path: file})
	must(err)
	all, err := lib.Devices()
	must(err)
	w.ctx, err = all[0].Open()
	must(err)
	w.pd, err = w.ctx.AllocPD()
	must(err)
	t.Cleanup(func() {
		if err := errors.Join(w.pd.Close(), w.ctx.Close()); err != nil {
			t.Error(err)
		}
		if s := strings.TrimSpace(dl.GoString(w.report.Call0())); s != "" && !strings.HasSuffix(s, "clean") {
			t.Errorf("the stand-in reports: %s", s)
		}
		w.do(t, "reset")
	})
	return w
}

func (w *world) do(t testing.TB, s string) {
	t.Helper()
	c, err := dl.CString(s)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := dl.GoString(w.script.Call1(cAddress(c))); wrong != "" {
		t.Fatalf("script %q: %s", s, wrong)
	}
}

func (w *world) counted(t testing.TB, name string) int {
	t.Helper()
	c, err := dl.CString(name)
	if err != nil {
		t.Fatal(err)
	}
	return int(int64(w.count.Call1(cAddress(c))))
}

// bare is a machine without modules and devices, and peered one with nvidia-peermem.
var (
	bare   = fstest.MapFS{}
	peered = fstest.MapFS{"sys/module/nvidia_peermem": &fstest.MapFile{Mode: fs.ModeDir}}
)

// TestWays: each memory is registered by the way that is there, dma-buf before peer memory.
func TestWays(t *testing.T) {
	const addr = 0x6e00_0000_0000
	for _, c := range []struct {
		name   string
		card   cardtest.Options
		script string
		tree   fs.FS
		way    Way
		want   string // of the refusal
	}{
		{"dma-buf", cardtest.Options{DMABuf: true}, "", bare, DMABuf, ""},
		{"dma-buf of a part of an allocation", cardtest.Options{DMABuf: true, Loose: true, Addr: addr, Around: 70_001}, "", bare, DMABuf, ""},
		{"dma-buf first", cardtest.Options{DMABuf: true, Addr: addr}, "", peered, DMABuf, ""},
		{"peer memory", cardtest.Options{Addr: addr}, "", peered, PeerMemory, ""},
		{"adapter without dma-buf", cardtest.Options{DMABuf: true, Addr: addr}, "absent dmabuf", peered, PeerMemory, ""},
		{"dma-buf refused", cardtest.Options{DMABuf: true, Addr: addr}, "fail ibv_reg_dmabuf_mr 1 ENOMEM", peered, PeerMemory, ""},
		{"no module", cardtest.Options{Addr: addr}, "", bare, None, "modprobe nvidia-peermem"},
		{"no address", cardtest.Options{}, "", peered, None, "has no address"},
		{"no dma-buf", cardtest.Options{}, "", peered, None, "the stand-in card exports none"},
		{"nothing at the adapter", cardtest.Options{DMABuf: true}, "absent dmabuf", bare, None, "mlx5"},
		{"no whole pages", cardtest.Options{DMABuf: true, Loose: true}, "", bare, None, "whole pages of 65536"},
		{"both refused", cardtest.Options{DMABuf: true, Addr: addr},
			"fail ibv_reg_dmabuf_mr * EPERM; fail ibv_reg_mr * ENOMEM", peered, None, "by peer memory: ibv: reg_mr"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, later := "", c.script
			if strings.HasPrefix(c.script, "absent") {
				before, later = c.script, ""
			}
			w := newWorld(t, before)
			if _, err := w.ctx.Attr(); err != nil { // the first registration of a dma-buf is its
				t.Fatal(err)
			}
			card := cardtest.New(t, c.card)
			size := 128 << 10
			if c.card.Loose {
				size = 100_000
			}
			r := card.Region("tensor", size)
			if d := r.Direct().Addr; d != 0 {
				w.do(t, fmt.Sprintf("peer %#x %d 128K", d, card.FD(r)))
			}
			w.do(t, later)
			a := New(w.ctx, Options{Tree: c.tree})
			if way := a.Way(r); way != None {
				t.Errorf("before anything was asked: %v", way)
			}
			mr, err := a.Register(w.pd, r.All(), ibv.LocalWrite)
			if a.Way(r) != c.way {
				t.Errorf("by %v, expected %v: %v", a.Way(r), c.way, err)
			}
			if c.way != None {
				if err != nil {
					t.Fatal(err)
				}
				if mr.Length() != r.Len() { // what is around it in its pages is not the peer's
					t.Errorf("%d bytes are registered, of %d", mr.Length(), r.Len())
				}
				if err := mr.Close(); err != nil {
					t.Error(err)
				}
				if err := errors.Join(a.Check(r), a.Reaches(w.pd, r)); err != nil {
					t.Error(err)
				}
				if s := a.Explain(); len(s) != 1 || !strings.Contains(s[0], c.way.String()) {
					t.Errorf("%q", s)
				}
				return
			}
			for what, err := range map[string]error{"register": err, "reaches": a.Reaches(w.pd, r),
				"check": a.Check(r)} {
				if !errors.Is(err, ErrNoWay) || !strings.Contains(err.Error(), c.want) ||
					!strings.Contains(err.Error(), `region "tensor"`) {
					t.Errorf("%s: %v; expected a refusal with %q", what, err, c.want)
				}
			}
			if s := a.Explain(); len(s) != 1 || !strings.Contains(s[0], c.want) {
				t.Errorf("%q", s)
			}
		})
	}
}

// TestKnownBefore: what files and attributes tell is not tried.
func TestKnownBefore(t *testing.T) {
	w := newWorld(t, "")
	if _, err := w.ctx.Attr(); err != nil {
		t.Fatal(err)
	}
	card := cardtest.New(t, cardtest.Options{})
	r := card.Region("tensor", 4096)
	a := New(w.ctx, Options{Tree: bare})
	bufs, regs := w.counted(t, "ibv_reg_dmabuf_mr"), w.counted(t, "ibv_reg_mr")
	for range 3 {
		if err := a.Check(r); !errors.Is(err, ErrNoWay) {
			t.Error(err)
		}
		if err := a.Reaches(w.pd, r); !errors.Is(err, ErrNoWay) {
			t.Error(err)
		}
		if _, err := a.Register(w.pd, r.All(), 0); !errors.Is(err, ErrNoWay) {
			t.Error(err)
		}
	}
	if b, n := w.counted(t, "ibv_reg_dmabuf_mr"), w.counted(t, "ibv_reg_mr"); b != bufs || n != regs {
		t.Errorf("the device was asked %d and %d times", b-bufs, n-regs)
	}
	// Host memory needs no question at all.
	h, err := mem.Alloc(mem.Options{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := errors.Join(a.Check(h), a.Reaches(w.pd, h)); err != nil || a.Way(h) != Host {
		t.Errorf("%v, %v", a.Way(h), err)
	}
}

// TestTriedOnce: whether the device reaches a region is tried once, and with its first page alone.
func TestTriedOnce(t *testing.T) {
	w := newWorld(t, "")
	card := cardtest.New(t, cardtest.Options{DMABuf: true})
	r := card.Region("tensor", 1<<20)
	a := New(w.ctx, Options{Tree: bare})
	for range 3 {
		if err := a.Reaches(w.pd, r); err != nil {
			t.Fatal(err)
		}
	}
	if n := card.DMABufs(); n != 1 {
		t.Errorf("%d dma-bufs", n)
	}
	// A later refusal is believed.
	w.do(t, "fail ibv_reg_dmabuf_mr 1 ENOMEM")
	if _, err := a.Register(w.pd, r.All(), 0); !errors.Is(err, ErrNoWay) || !errors.Is(err, ibv.ErrNoRoom) {
		t.Errorf("%v", err)
	}
	if err := a.Reaches(w.pd, r); !errors.Is(err, ErrNoWay) || card.DMABufs() != 2 {
		t.Errorf("%v, %d dma-bufs", err, card.DMABufs())
	}
}

// TestForgets: regions that are gone do not stay in the table.
func TestForgets(t *testing.T) {
	w := newWorld(t, "")
	a := New(w.ctx, Options{Tree: bare})
	card := cardtest.New(t, cardtest.Options{})
	for i := range maxAnswers + 10 {
		r := card.Region(fmt.Sprint(i), 4096)
		if err := a.Check(r); !errors.Is(err, ErrNoWay) {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(a.answers); n > 20 {
		t.Errorf("%d regions are remembered", n)
	}
}

// server is the doctor's recording of a server with a GPU, with some lines replaced, and an RDMA
// device of the stand-in's name at its card.
func server(t *testing.T, edits ...string) fs.FS {
	t.Helper()
	b, err := os.ReadFile("../../host/doctor/testdata/server.txt")
	if err != nil {
		t.Fatal(err)
	}
	s := string(b)
	for i := 0; i < len(edits); i += 2 {
		if !strings.Contains(s, edits[i]) {
			t.Fatalf("no %q", edits[i])
		}
		s = strings.ReplaceAll(s, edits[i], edits[i+1])
	}
	s += "/sys/class/infiniband/fake0/device -> ../../../0000:19:00.0\n"
	r, err := host.Parse(strings.NewReader(s))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestNamesWhatIsMissing: refusals name what the machine's files say, and what to do about it; the
// same as the doctor's.
func TestNamesWhatIsMissing(t *testing.T) {
	open := []string{"UNIX x86_64 Kernel Module", "UNIX Open Kernel Module"}
	for _, c := range []struct {
		name  string
		edits []string
		size  int
		want  []string
	}{
		{"modules", nil, 4096, []string{"NVIDIA's open ones", "nvidia-peermem is not loaded", "ACS) of bridge 0000:17:00.0 redirects", "setpci"}},
		{"kernel", append(open, "6.8.0-49-generic", "5.4.0-1-generic"), 4096, []string{"Linux 5.12 or later"}},
		{"IOMMU", []string{"/sys/kernel/iommu_groups/{21-23,40}/type = identity",
			"/sys/kernel/iommu_groups/{21-23,40}/type = DMA"}, 4096,
			[]string{"iommu=pt", "0000:18:00.0 (DMA)", "0000:19:00.0 (DMA)"}},
		{"window", []string{"0x0000203fffffffff", "0x000020200000ffff"}, 64 << 20, []string{"window (BAR) shows", "67108864 bytes", "resizable BAR"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, "")
			card := cardtest.New(t, cardtest.Options{Bus: "0000:18:00.0"})
			r := card.Region("weights", c.size)
			_, err := New(w.ctx, Options{Tree: server(t, c.edits...)}).Register(w.pd, r.All(), 0)
			for _, s := range c.want {
				if err == nil || !strings.Contains(err.Error(), s) {
					t.Errorf("no %q in: %v", s, err)
				}
			}
		})
	}
	w := newWorld(t, "")
	card := cardtest.New(t, cardtest.Options{Bus: "0000:18:00.0", DMABuf: true})
	r := card.Region("weights", 4096)
	a := New(w.ctx, Options{Tree: server(t, open...)})
	if err := a.Reaches(w.pd, r); err != nil {
		t.Fatal(err)
	}
	if s := a.Explain(); len(s) != 1 || !strings.Contains(s[0],
		"by dma-buf; between them: access control (ACS) of bridge 0000:17:00.0") {
		t.Errorf("%q", s)
	}
}
