package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// alignedBytes returns zeroed heap memory that starts on a cache line.
func alignedBytes(n int) []byte {
	b := make([]byte, n+shareAlign)
	for i := range shareAlign {
		if checkAligned("", b[i:]) == nil {
			return b[i : i+n : i+n]
		}
	}
	panic("unreachable: one of 64 neighbours is aligned")
}

// sharedPair returns both sides over fresh memory, with tickets from start on.
func sharedPair(tb interface{ Fatal(...any) }, cells, size int, start uint64) (*SharedWriter, *SharedReader, []byte) {
	mem := alignedBytes(SharedSize(cells, size))
	wordAt(mem, sharedTail).Store(start)
	wordAt(mem, sharedHead).Store(start)
	w, err := newSharedWriter(mem, size, start)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := newSharedReader(mem, size, start)
	if err != nil {
		tb.Fatal(err)
	}
	return w, r, mem
}

func TestSharedIsAQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := CellAlign * rapid.IntRange(1, 3).Draw(t, "lines per cell")
		cells := 1 << rapid.IntRange(0, 4).Draw(t, "log2 cells")
		w, r, _ := sharedPair(t, cells, size, starts.Draw(t, "start"))
		if w.Cap() != cells || r.Cap() != cells {
			t.Fatalf("Cap %d and %d, want %d", w.Cap(), r.Cap(), cells)
		}
		var model []byte
		next := byte(0)
		fill := func(n int) []byte {
			b := make([]byte, n*size)
			for i := range b {
				next = next*5 + 113
				b[i] = next
			}
			return b
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if r.Ready() != (len(model) > 0) {
					t.Fatalf("Ready %v with %d bytes", r.Ready(), len(model))
				}
			},
			"Put": func(t *rapid.T) {
				c := fill(1)
				ok, err := w.Put(c)
				if err != nil || ok != (len(model) < cells*size) {
					t.Fatalf("Put with %d of %d cells: %v, %v", len(model)/size, cells, ok, err)
				}
				if ok {
					model = append(model, c...)
				}
			},
			"PutBatch": func(t *rapid.T) {
				src := fill(rapid.IntRange(0, 2*cells).Draw(t, "n"))
				n, err := w.PutBatch(src)
				if want := min(len(src)/size, cells-len(model)/size); err != nil || n != want {
					t.Fatalf("PutBatch: %d, %v, want %d", n, err, want)
				}
				model = append(model, src[:n*size]...)
			},
			"Get": func(t *rapid.T) {
				dst := make([]byte, size)
				ok, err := r.Get(dst)
				if err != nil || ok != (len(model) > 0) {
					t.Fatalf("Get with %d bytes: %v, %v", len(model), ok, err)
				}
				if ok {
					if !bytes.Equal(dst, model[:size]) {
						t.Fatalf("Get returned % x, want % x", dst, model[:size])
					}
					model = model[size:]
				}
			},
			"GetBatch": func(t *rapid.T) {
				dst := make([]byte, size*rapid.IntRange(0, 2*cells).Draw(t, "n"))
				n, err := r.GetBatch(dst)
				want := min(len(dst), len(model))
				if err != nil || n*size != want {
					t.Fatalf("GetBatch: %d, %v, want %d", n, err, want/size)
				}
				if !bytes.Equal(dst[:want], model[:want]) {
					t.Fatalf("GetBatch returned % x, want % x", dst[:want], model[:want])
				}
				model = model[want:]
			},
		})
	})
}

func TestSharedRefusesBadMemory(t *testing.T) {
	size := SharedSize(8, 64)
	if size != 256+8*64 {
		t.Fatalf("SharedSize(8, 64) = %d", size)
	}
	for _, bad := range [][2]int{{0, 64}, {-8, 64}, {3, 64}, {MaxSharedCells * 2, 64}, {8, 0}, {8, 63}, {8, -64}, {8, MaxCellSize + 64}} {
		if n := SharedSize(bad[0], bad[1]); n != 0 {
			t.Errorf("SharedSize(%d, %d) = %d, want 0", bad[0], bad[1], n)
		}
	}
	good := alignedBytes(size + 64)
	for _, c := range []struct {
		what string
		mem  []byte
		cell int
		want string
	}{
		{"nothing", nil, 64, "do not make a ring"},
		{"indices only", good[:256], 64, "do not make a ring"},
		{"one byte short", good[:size-1], 64, "do not make a ring"},
		{"9 cells", good[:size+64], 64, "do not make a ring"},
		{"odd cell", good[:size], 65, "cell size 65"},
		{"no cell", good[:size], 0, "cell size 0"},
		{"8 bytes off a line", good[8 : size+8], 64, "starts 8 bytes after"},
	} {
		if _, err := NewSharedWriter(c.mem, c.cell); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: writer: %v", c.what, err)
		}
		if _, err := NewSharedReader(c.mem, c.cell); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: reader: %v", c.what, err)
		}
	}
	w, r, _ := sharedPair(t, 8, 64, 0)
	if _, err := w.Put(make([]byte, 63)); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("Put of 63 bytes: %v", err)
	}
	if _, err := w.PutBatch(make([]byte, 65)); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("PutBatch of 65 bytes: %v", err)
	}
	if ok, err := w.Put(make([]byte, 64)); !ok || err != nil {
		t.Errorf("Put after refused calls: %v, %v", ok, err)
	}
	if _, err := r.Get(make([]byte, 128)); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("Get of 128 bytes: %v", err)
	}
	if _, err := r.GetBatch(make([]byte, 1)); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("GetBatch of 1 byte: %v", err)
	}
	if ok, err := r.Get(make([]byte, 64)); !ok || err != nil {
		t.Errorf("Get after refused calls: %v, %v", ok, err)
	}
}

// TestSharedLayout pins the bytes: the two processes may run different builds.
func TestSharedLayout(t *testing.T) {
	w, r, mem := sharedPair(t, 4, 64, 0)
	for i := range byte(5) {
		w.Put(bytes.Repeat([]byte{i + 1}, 64))
		if i == 0 {
			r.Get(make([]byte, 64))
		}
	}
	want := make([]byte, 256+4*64)
	binary.NativeEndian.PutUint64(want[0:], 5)
	binary.NativeEndian.PutUint64(want[128:], 1)
	for i, c := range []byte{5, 2, 3, 4} {
		copy(want[256+64*i:], bytes.Repeat([]byte{c}, 64))
	}
	if !bytes.Equal(mem, want) {
		t.Errorf("memory is % x\nwant % x", mem, want)
	}
}

// TestSharedRefusesImpossibleIndices writes every kind of wrong index and expects
// ErrCorrupt, at once and for ever; and that possible ones are not refused.
func TestSharedRefusesImpossibleIndices(t *testing.T) {
	const cells = 8
	cell := make([]byte, 64)
	for _, start := range []uint64{0, 1 << 40, math.MaxUint64 - 3} {
		for d := -2*cells - 1; d <= 2*cells+1; d++ {
			// The reader has got 2 and knows of 5; the peer claims start+d.
			w, r, mem := sharedPair(t, cells, 64, start)
			w.PutBatch(make([]byte, 5*64))
			r.GetBatch(make([]byte, 2*64))
			r.GetBatch(nil)
			wordAt(mem, sharedTail).Store(start + uint64(d))
			n, err := r.GetBatch(make([]byte, cells*64))
			if possible := d >= 5 && d <= 2+cells; possible {
				if err != nil || n != d-2 {
					t.Errorf("start %#x: tail %+d: %d, %v, want %d cells", start, d, n, err, d-2)
				}
			} else {
				if n != 0 || !errors.Is(err, ErrCorrupt) {
					t.Errorf("start %#x: tail %+d: %d, %v, want ErrCorrupt", start, d, n, err)
				}
				wordAt(mem, sharedTail).Store(start + 5)
				if _, err := r.Get(cell); !errors.Is(err, ErrCorrupt) || !r.Ready() {
					t.Errorf("start %#x: tail %+d: a corrupt ring came back to life: %v", start, d, err)
				}
			}

			// The writer has put 8 and knows that 2 were got; the peer claims start+d.
			w, r, mem = sharedPair(t, cells, 64, start)
			w.PutBatch(make([]byte, 3*64))
			r.GetBatch(make([]byte, 2*64))
			w.PutBatch(make([]byte, 7*64)) // full: looks at head
			wordAt(mem, sharedHead).Store(start + uint64(d))
			n, err = w.PutBatch(make([]byte, cells*64))
			if possible := d >= 2 && d <= 10; possible {
				if err != nil || n != d-2 {
					t.Errorf("start %#x: head %+d: %d, %v, want %d cells", start, d, n, err, d-2)
				}
			} else {
				if n != 0 || !errors.Is(err, ErrCorrupt) {
					t.Errorf("start %#x: head %+d: %d, %v, want ErrCorrupt", start, d, n, err)
				}
				wordAt(mem, sharedHead).Store(start + 10)
				if _, err := w.Put(cell); !errors.Is(err, ErrCorrupt) {
					t.Errorf("start %#x: head %+d: a corrupt ring came back to life: %v", start, d, err)
				}
			}

			// The writer has put 5 and knows that 3 were got: there is room, so a
			// head that went back a little would not overfill the ring.
			w, r, mem = sharedPair(t, cells, 64, start)
			w.PutBatch(make([]byte, 3*64))
			r.GetBatch(make([]byte, 3*64))
			w.PutBatch(make([]byte, (cells+1)*64)) // more than fits: looks at head
			w.ticket -= cells - 2                  // as if only two had been given
			wordAt(mem, sharedHead).Store(start + uint64(d))
			n, err = w.PutBatch(make([]byte, 2*cells*64))
			if possible := d >= 3 && d <= 5; possible {
				if err != nil || n != cells-(5-d) {
					t.Errorf("start %#x: head %+d with room: %d, %v, want %d cells", start, d, n, err, cells-(5-d))
				}
			} else if n != 0 || !errors.Is(err, ErrCorrupt) {
				t.Errorf("start %#x: head %+d with room: %d, %v, want ErrCorrupt", start, d, n, err)
			}
		}
	}
}
