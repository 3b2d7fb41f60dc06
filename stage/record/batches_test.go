package record

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/npy"
)

// described owns memory whose packets are batches.
type described struct {
	nobody
	batch *reorder.Batch
}

func (d *described) Describe(burst.Handle) any {
	if d.batch == nil {
		return nil
	}
	return d.batch
}

func kinds(plan string, id int64) *reorder.Batch {
	return &reorder.Batch{Plan: plan, ID: id, PerBatch: 4, Packets: 3, Place: 15, DType: tensor.U8}
}

// What is left of an npy file reads well, with the batches that are in it; a file without any is no
// file. Packets, and batches of another plan, have no place there, and the recorder says so.
func TestBatches(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Options{Name: filepath.Join(dir, "x.npy"), Format: NPY})
	f := newFeed(t)
	d := &described{}
	f.src = burst.NewSource(f.r, f.r.All().Bytes(), d)
	add := func(x *reorder.Batch, n int) {
		d.batch = x
		r.Add(f.burst(frame(n, 60), 0, int64(n)))
	}
	add(nil, 1)
	if err := r.Stats().Err; err == nil || !strings.Contains(err.Error(), "no batch") {
		t.Errorf("a packet: %v", err)
	}
	d.batch = kinds("a", 0)
	if r.Add(f.burst(frame(0, 61), 0, 0)); !strings.Contains(r.Stats().Err.Error(), "61 bytes is no u8[4 15]") {
		t.Errorf("a batch that is too long: %v", r.Stats().Err)
	}
	r.Rotate()
	until(t, "the end of a file", func() bool { return len(listed(t, dir)) == 1 && len(r.free) == chunks })
	for n := range 3 {
		add(kinds("a", int64(n)), n)
		until(t, "the batch in the file", func() bool { return r.Stats().Packets == uint64(n+1) })
		b, err := os.ReadFile(r.Stats().File + partial)
		if err != nil {
			t.Fatal(err)
		}
		x, _, err := npy.ParseNext(append(b, "a part of the next one"...))
		if err != nil || x.Desc.String() != (tensor.Desc{DType: tensor.U8,
			Shape: []int64{int64(n + 1), 4, 15}}).String() ||
			string(x.Bytes()[60*n:]) != string(frame(n, 60)) {
			t.Fatalf("%d batches: %v, %v", n+1, x.Desc, err)
		}
	}
	add(kinds("b", 3), 3)
	err := r.Close(limit(t))
	if s := r.Stats(); s.Packets != 3 || s.Lost[Unreadable] != 3 || s.Files != 1 || err == nil ||
		!strings.Contains(err.Error(), `plans "a" and "b"`) {
		t.Errorf("%v, %+v", err, s)
	}
	if names := listed(t, dir); len(names) != 1 {
		t.Errorf("%v", names)
	}
}

// broken is memory that its device does not copy, or not to the end.
type broken struct{ begin, end error }

func (b *broken) Load(mem.Span, uint64) (mem.Move, error)  { return b, b.begin }
func (b *broken) Store(uint64, mem.Span) (mem.Move, error) { return nil, errors.ErrUnsupported }
func (b *broken) Staging() mem.Provider                    { return b }
func (b *broken) Device() string                           { return "a card" }
func (b *broken) Done() (bool, error)                      { return true, b.end }
func (b *broken) Wait(context.Context) error               { return b.end }

// Allocate implements mem.Provider: there is none, and the recorder takes memory of the process.
func (b *broken) Allocate(mem.Options) (mem.Mapping, error) { return mem.Mapping{}, mem.ErrUnavailable }

// What a device does not copy, at once or in the end, is lost, counted and not in the file.
func TestBrokenDevice(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x")
	r := open(t, Options{Name: name, Format: Raw})
	f, device := newFeed(t), &broken{}
	region, err := mem.AdoptMapping("far", mem.Mapping{Kind: mem.Device, Size: 1 << 12, PageSize: 1 << 12, FD: -1,
		NUMANode: -1, Mover: device})
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	far := burst.NewSource(region, nil, nobody{})
	b := burst.New(4)
	add := func(src *burst.Source) {
		b.Builder().Add(src, burst.Segment{Handle: burst.NoHandle, Len: 100})
	}
	copy(f.r.All().Bytes(), frame(1, 100))
	near := burst.NewSource(f.r, f.r.All().Bytes(), nobody{})
	add(near)
	add(far) // 100 bytes that nobody writes
	r.Add(b)
	device.end = errors.New("it broke")
	r.Add(b)
	device.begin, device.end = device.end, nil
	r.Add(b)
	b.Release()
	err = r.Close(limit(t))
	if s := r.Stats(); err == nil || !strings.Contains(err.Error(), "it broke") || s.Packets != 4 || s.Taken != 4 ||
		s.Lost[Unreadable] != 2 || s.Bounced != 200 {
		t.Errorf("%v, %+v", err, s)
	}
	one := string(frame(1, 100))
	if b, _ := os.ReadFile(name); string(b) != one+string(make([]byte, 100))+one+one {
		t.Errorf("%d bytes: %x", len(b), b)
	}
}
