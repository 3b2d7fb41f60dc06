package app

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/tensor"
)

// card is a device, whose memory the processor does not reach, and slots of it and of the host for
// packets.
type card struct {
	t         testing.TB
	ctx       *gpu.Context
	pool, own *mem.Pool // of the device and of the host
	srcs      map[*mem.Pool]*burst.Source
}

func newCard(t testing.TB) *card {
	t.Helper()
	c := &card{t: t}
	later := func(err error, closes func() error) {
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := closes(); err != nil {
				t.Error(err)
			}
		})
	}
	rt, err := host.Open(host.Options{})
	later(err, rt.Close)
	c.ctx, err = rt.Devices()[0].Open()
	later(err, c.ctx.Close)
	p, err := gpumem.New(c.ctx, gpumem.Options{Opaque: true})
	later(err, p.Close)
	c.pool, err = mem.NewPool(mem.PoolOptions{Name: "device", SlotSize: 256, Slots: 64,
		Memory: mem.Options{Kind: mem.Device, Provider: p}})
	later(err, c.pool.Close)
	c.own, err = mem.NewPool(mem.PoolOptions{Name: "host", SlotSize: 256, Slots: 64})
	later(err, c.own.Close)
	c.srcs = map[*mem.Pool]*burst.Source{c.pool: burst.PoolSource(c.pool), c.own: burst.PoolSource(c.own)}
	return c
}

// add adds a packet of these parts, the first one in host memory, where it has bytes, and the
// others in the device's.
func (c *card) add(b *burst.Burst, parts ...string) (i int) {
	c.t.Helper()
	for k, part := range parts {
		pool := c.pool
		if k == 0 {
			if pool = c.own; part == "" {
				continue
			}
		}
		slot, err := pool.Get()
		if err != nil {
			c.t.Fatal(err)
		}
		g := burst.Segment{Handle: slot.Handle(), Off: pool.Offset(slot.Handle()), Len: uint32(len(part))}
		if k == 0 {
			copy(slot.Bytes(), part)
		} else {
			from, err := mem.Alloc(mem.Options{Name: "part", Size: len(part)})
			if err != nil {
				c.t.Fatal(err)
			}
			copy(from.All().Bytes(), part)
			move, err := pool.Region().Mover().Store(g.Off, mem.Span{Region: from, Len: uint64(len(part))})
			if err == nil {
				err = move.Wait(c.t.Context())
			}
			if err = errors.Join(err, from.Close()); err != nil {
				c.t.Fatal(err)
			}
		}
		if src := c.srcs[pool]; k == 0 || k == 1 && parts[0] == "" {
			i = b.Builder().Add(src, g)
		} else if !b.Builder().AddSegment(src, g) {
			c.t.Fatal("no room for a segment")
		}
	}
	return i
}

// batches owns packets of which each is a batch.
type batches struct{ pool *mem.Pool }

func (o batches) Reclaim(handles []burst.Handle) { o.pool.PutBatch(handles) }
func (o batches) Describe(burst.Handle) any      { return new(reorder.Batch) }

// What lies in memory of a device becomes rows of a tensor, each byte copied once by the device:
// rows whose numbers are on the host, rows of several parts, short ones, and bytes of a stream; a
// number that is on the device is refused, and after a copy that failed nothing is published.
func TestSinkDevice(t *testing.T) {
	c := newCard(t)
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{4, 8}}
	sinkOf := func(o Tensor, stream bool) (*sink, *reader) {
		o.Node, o.Name, o.Desc = newNode(t), "t", d
		x, err := newSink(o, false, stream)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { x.Close() })
		return x.(*sink), newReader(t, o.Node, "t", d)
	}
	check := func(r *reader, generation uint64, want string) {
		t.Helper()
		if g, got, err := r.get(); err != nil || g != generation || string(got) != want {
			t.Fatalf("generation %d: %q, %v, want %d: %q", g, got, err, generation, want)
		}
	}

	numbered, r := sinkOf(Tensor{Width: 4, Strip: 4}, false)
	b := burst.NewSegmented(16, 64)
	row := func(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }
	c.add(b, row(2), "ccc", "c", "cccc")
	c.add(b, row(0), "aaaaaaaa")
	c.add(b, row(3)+"dd", "ddd") // short
	c.add(b, row(1), "bbbb", "bbbb")
	c.add(b, row(5), "eeeeeeee") // of the next tensor
	if err := numbered.Consume(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	b.Release() // slots are free as soon as Consume returns
	check(r, 1, "aaaaaaaabbbbbbbbccccccccddddd\x00\x00\x00")
	var s Snapshot
	if numbered.Report(&s); s.Tensor.Bytes != 37 || s.Tensor.Rows != 5 || s.Tensor.Short != 1 || s.Tensor.Filled != 1 {
		t.Errorf("%+v", s.Tensor)
	}
	c.add(b, "", row(6)+"ffffffff")
	if err := numbered.Consume(t.Context(), b); !errors.Is(err, engine.ErrUnsupported) ||
		!strings.Contains(err.Error(), "the number of the row is in memory of an accelerator") {
		t.Error(err)
	}
	b.Release()

	stream, r := sinkOf(Tensor{}, true)
	text := bytes.Repeat([]byte("0123456789"), 4) // a tensor and 8 bytes of the next one
	c.add(b, "", string(text[:20]), string(text[20:]))
	if err := stream.Consume(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	b.Release()
	check(r, 1, string(text[:32]))

	frames, _ := sinkOf(Tensor{Offset: Headers}, false)
	frames.frames = true
	c.add(b, "", "a frame")
	if err := frames.Consume(t.Context(), b); !errors.Is(err, engine.ErrUnsupported) ||
		!strings.Contains(err.Error(), "the header is in memory") {
		t.Error(err)
	}
	b.Release()

	frames, r = sinkOf(Tensor{Offset: Headers}, false)
	frames.frames = true
	c.srcs[c.pool] = burst.NewSource(c.pool.Region(), nil, batches{c.pool})
	for _, x := range []string{"aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd"} { // batches have no headers
		c.add(b, "", x)
	}
	if err := frames.Consume(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	b.Release()
	check(r, 1, "aaaaaaaabbbbbbbbccccccccdddddddd")

	lost, _ := sinkOf(Tensor{}, false)
	for range 4 {
		c.add(b, "", "12345678")
	}
	c.lose()
	if err := lost.Consume(t.Context(), b); !errors.Is(err, gpu.ErrDeviceLost) {
		t.Error(err)
	}
	b.Release()
	if lost.flush(); lost.published.Load() != 0 {
		t.Error("a tensor was published whose bytes did not come")
	}
}

// lose has the device fail.
func (c *card) lose() {
	broken := &gpu.Program{Name: "broken", Kernels: []gpu.Signature{{Name: "broken"}},
		Go: map[string]gpu.GoFunc{"broken": func(gpu.Grid, []gpu.GoArg) {
			panic("broken")
		}}}
	m, err := c.ctx.Load(broken)
	if err != nil {
		c.t.Fatal(err)
	}
	defer m.Close()
	k, err := m.Kernel("broken")
	if err != nil {
		c.t.Fatal(err)
	}
	call, err := k.Prepare()
	if err != nil {
		c.t.Fatal(err)
	}
	defer call.Close()
	s, err := c.ctx.NewStream(gpu.StreamOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer s.Close()
	if err := s.Launch(call, gpu.Grid{Groups: 1, Group: 1}); err != nil {
		c.t.Fatal(err)
	}
	if err := s.Wait(c.t.Context()); !errors.Is(err, gpu.ErrDeviceLost) {
		c.t.Fatal(err)
	}
}
