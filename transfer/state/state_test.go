package state

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// model is what a transfer is to its user: bytes that come into place once each, and one end.
type model struct {
	placed map[uint64]bool // by local offset
	told   int             // notifications that the peer has
	ended  int
}

func (m *model) place(cs []path.Copy) error {
	for _, c := range cs {
		for k := range c.Local.Len {
			off := c.Local.Off + k
			if c.RemoteOff+k != off/1000*5000+off%1000 { // block i lies at 1000*i here and at 5000*i there
				return fmt.Errorf("the byte at %d goes to %d", off, c.RemoteOff+k)
			}
			if m.placed[off] {
				return fmt.Errorf("byte %d is moved twice", off)
			}
			m.placed[off] = true
		}
	}
	return nil
}

// op is an operation of the channel in the test.
type op struct {
	seg    Segment
	copies []path.Copy
	notify bool
}

// TestPrograms drives random programs of events (operations that are accepted, refused, done, lost
// with their path or out of its reach, digests, cancels, channels that go down) through a Machine
// and compares with the model: no byte is moved twice, an end without an error has every byte in
// place and one notification after them, an end waits for what is outstanding, and there is one.
func TestPrograms(t *testing.T) {
	seen := map[State]bool{}
	program := func(t *rapid.T) {
		var copies []path.Copy
		var bytes uint64
		kind := rapid.SampledFrom([]path.OpKind{path.Put, path.Get, path.Notify}).Draw(t, "kind")
		if kind != path.Notify {
			for i, n := range rapid.SliceOfN(rapid.Uint64Range(0, 40), 0, 6).Draw(t, "blocks") {
				copies = append(copies, path.Copy{Local: mem.Span{Off: uint64(1000 * i), Len: n},
					RemoteOff: uint64(5000 * i)})
				bytes += n
			}
		}
		asked := rapid.SampledFrom([]bool{false, false, true}).Draw(t, "asked")
		if kind == path.Notify {
			asked = false
		}
		silent := kind != path.Notify && bytes > 0 && !asked && rapid.IntRange(0, 3).Draw(t, "silent") == 0
		x := New(kind, copies, bytes, asked, silent)
		m := model{placed: map[uint64]bool{}}
		var out []op
		queued, proving, open := false, false, false // open: the peer's end of a path that went down may still write
		var buf []path.Copy
		follow := func(s Step) {
			queued = s == Queue
			proving = proving || s == Prove
			switch s {
			case Fence:
				if len(out) > 0 {
					t.Fatal("it is fenced while operations are outstanding")
				}
			case Stage:
				if len(out) > 0 || open || x.Err() != nil {
					t.Fatalf("it is staged with %d operations outstanding, error %v", len(out), x.Err())
				}
				x.Resume()
			case End:
				if len(out) > 0 || open {
					t.Fatalf("it ends with %d operations outstanding, the peer's end open %v", len(out), open)
				}
				m.ended++
				x.End()
			}
		}
		// Every program ends: from some point on everything goes well.
		for step, calm := 0, rapid.IntRange(0, 60).Draw(t, "calm after"); x.State() != Ended; step++ {
			if step > 400 {
				t.Fatalf("it does not end: %v, %d outstanding, queued %v", x.State(), len(out), queued)
			}
			seen[x.State()] = true
			well := step >= calm
			switch x.State() {
			case Admitted:
				x.Route()
				follow(x.Next())
				continue
			case Fencing:
				open = false
				if x.Err() != nil {
					m.ended++
					x.End()
					continue
				}
				x.Resume()
				if left := x.Left(); left != bytes-uint64(len(m.placed)) {
					t.Fatalf("%d bytes are left, %d of %d are in place", left, len(m.placed), bytes)
				}
				continue
			}
			event := rapid.IntRange(0, 9).Draw(t, "event")
			switch {
			case queued && (event < 4 || well):
				n := x.Left()
				if !x.Posted() && n > 0 {
					n = rapid.Uint64Range(1, n).Draw(t, "bytes")
					if w := x.Whole(n); w > n || w < n-n/16 {
						t.Fatalf("%d whole bytes of %d", w, n)
					} else if rapid.Bool().Draw(t, "whole") {
						n = w
					}
				}
				before := x.Posted()
				buf = nil
				seg, cs, notify := x.Post(n, &buf)
				if notify && before && len(m.placed) != int(bytes) && kind != path.Notify {
					t.Fatalf("the notification goes with %d of %d bytes in place", len(m.placed), bytes)
				}
				if notify && (asked || silent) {
					t.Fatalf("the notification goes with digests %v, silent %v", asked, silent)
				}
				if !well && rapid.IntRange(0, 3).Draw(t, "accepted") == 0 {
					x.Unpost(seg)
					if !well && rapid.IntRange(0, 3).Draw(t, "refused") == 0 {
						if rapid.Bool().Draw(t, "reach") {
							x.Refuse()
						} else {
							x.Fail(errors.New("refused"))
						}
					}
				} else {
					out = append(out, op{seg, cs, notify})
				}
				follow(x.Next())
			case len(out) > 0 && (event < 7 || well):
				i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
				o := out[i]
				out = append(out[:i:i], out[i+1:]...)
				r := Placed
				if !well {
					r = rapid.SampledFrom([]Result{Placed, Placed, Placed, PathDown, Unreachable, Failed}).Draw(t,
						"result")
				}
				if r == Unreachable && kind == path.Notify || r == Unreachable && o.notify && len(o.copies) == 0 {
					r = Placed
				}
				if r == Placed {
					if err := m.place(o.copies); err != nil {
						t.Fatal(err)
					}
					if o.notify {
						m.told++
					}
				}
				open = open || r == PathDown
				x.Done(o.seg, r, errors.New("refused by the peer"))
				follow(x.Next())
			case proving && (event == 7 || well):
				var err error
				if !well && rapid.IntRange(0, 2).Draw(t, "equal") == 0 {
					err = errors.New("the digests differ")
				}
				proving, asked = false, false
				x.Proved(err)
				follow(x.Next())
			case queued && event == 8:
				x.Fail(path.ErrCanceled)
				follow(x.Next())
			// the path ends between operations
			case event == 9 && (queued || x.State() == Proving) && len(out) == 0 && !proving:
				queued = false
				x.Fence()
			}
		}
		switch {
		case m.ended != 1 || len(out) != 0:
			t.Fatalf("%d ends, %d operations outstanding", m.ended, len(out))
		case x.Err() == nil && len(m.placed) != int(bytes):
			t.Fatalf("it succeeds with %d of %d bytes in place", len(m.placed), bytes)
		case x.Err() == nil && !silent && m.told != 1, silent && m.told != 0:
			t.Fatalf("%d notifications, silent %v", m.told, silent)
		}
	}
	for tries := 0; tries == 0 || len(seen) < int(Ended) && tries < 20; tries++ {
		// with -short a check has 20 programs, in which a state may not come
		rapid.Check(t, program)
	}
	for s := range State(Ended) {
		if !seen[s] {
			t.Errorf("no program comes to %v", s)
		}
	}
}

// TestTable reads the diagram's claims off the table: every state but the last has a way to the
// end, and none leads back from it.
func TestTable(t *testing.T) {
	if table[Ended] != 0 {
		t.Error("a transfer that has ended goes on")
	}
	reach := set(Ended)
	for range states {
		for s := range State(states) {
			if table[s]&reach != 0 {
				reach |= set(s)
			}
		}
	}
	if reach != 1<<states-1 {
		t.Errorf("only %b reach the end", reach)
	}
	for s := range State(states) {
		if s.String() == "" {
			t.Errorf("state %d has no name", s)
		}
	}
}

// What ends with a block is posted from the caller's list; only a block that is cut is described
// again.
func TestWholeBlocks(t *testing.T) {
	list := make([]path.Copy, 103)
	for i := range list {
		list[i] = path.Copy{Local: mem.Span{Off: uint64(i) * 10, Len: 10}, RemoteOff: uint64(i) * 10}
	}
	list[100].Local.Len, list[101].Local.Len = 1000, 0
	x := New(path.Put, list, 100*10+1000+10, false, false)
	x.Route()
	for _, c := range []struct {
		room, want uint64
		from, end  int // of the list; 0, 0: described again
	}{
		{505, 500, 0, 50},
		{300, 300, 50, 80},
		{600, 600, 0, 0}, // cuts the large block: 20 blocks would be less than fifteen sixteenths
		{600, 600, 0, 0}, // the rest of it
		{600, 10, 101, 103},
	} {
		n := x.Whole(min(c.room, x.Left()))
		if n != c.want {
			t.Fatalf("%d bytes for %d, expected %d", n, c.room, c.want)
		}
		var buf []path.Copy
		_, got, _ := x.Post(n, &buf)
		if whole := buf == nil; whole != (c.end > 0) {
			t.Fatalf("%d bytes: described again: %v", n, !whole)
		}
		if c.end > 0 && (len(got) != c.end-c.from || &got[0] != &list[c.from]) {
			t.Errorf("%d bytes: %d blocks, expected %d to %d of the list", n, len(got), c.from, c.end)
		}
	}
	if !x.Posted() {
		t.Errorf("%d bytes are left", x.Left())
	}
}

// A peer may know a transfer as complete only when its notification was outstanding at the end of
// the path.
func TestDoubt(t *testing.T) {
	list := []path.Copy{{Local: mem.Span{Len: 8}}}
	for _, c := range []struct {
		first uint64 // bytes of the first operation
		want  bool
	}{{8, true}, {4, false}} {
		x := New(path.Put, list, 8, false, false)
		x.Route()
		var buf []path.Copy
		seg, _, notify := x.Post(c.first, &buf)
		if notify != c.want {
			t.Fatalf("%d bytes: notify %v", c.first, notify)
		}
		x.Done(seg, PathDown, nil)
		if x.Next() != Fence || x.Doubt() != c.want || x.State() != Fencing {
			t.Errorf("%d bytes: doubt %v in %v", c.first, x.Doubt(), x.State())
		}
		if x.Resume(); x.Doubt() || x.Left() != 8 {
			t.Errorf("%d bytes: it is not as new: doubt %v, %d left", c.first, x.Doubt(), x.Left())
		}
	}
}
