package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// copied is memory that the CPU cannot address and copies all the same, as that of another process.
type copied struct {
	b    []byte
	fail error
	call func() // in a copy; may be nil
	here int    // copies by the goroutine of a test of this file
}

func (m *copied) move(to, from []byte) (mem.Move, error) {
	if bytes.Contains(debug.Stack(), []byte("transfer.TestStagedHere")) {
		m.here++
	}
	if m.call != nil {
		m.call()
	}
	if m.fail != nil {
		return nil, m.fail
	}
	copy(to, from)
	over := make(chan struct{})
	close(over)
	return &fakeMove{over: over}, nil
}

func (m *copied) Load(dst mem.Span, off uint64) (mem.Move, error) {
	return m.move(dst.Bytes(), m.b[off:])
}
func (m *copied) Store(off uint64, src mem.Span) (mem.Move, error) {
	return m.move(m.b[off:off+src.Len], src.Bytes())
}
func (m *copied) Device() string        { return "another process" }
func (m *copied) Staging() mem.Provider { return mem.Pages }

func (m *copied) region(t *testing.T) *mem.Region {
	t.Helper()
	r, err := mem.AdoptMapping("theirs", mem.Mapping{Kind: mem.Foreign, Size: uint64(len(m.b)), PageSize: 4096, FD: -1,
		NUMANode: -1, Mover: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		select {
		case <-r.Unmapped():
		default:
			t.Errorf("%d leases are left", r.Leases())
		}
	})
	return r
}

// Once there is a slot, the goroutine that begins a transfer of one piece stages it, both ways,
// over paths that end it at once and others.
func TestStagedHere(t *testing.T) {
	for _, name := range paths {
		for _, size := range []int{1, 4097, 1 << 20} {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				p := newPair(t, Options{})
				p.ignore(t)
				m := &copied{b: make([]byte, size+10)}
				r := m.region(t)
				dst := region(t, size+10)
				export(t, p.b, dst, "dst", path.Read|path.Write)
				far := lookup(t, p.ab, "dst")
				half := uint64(size) / 2
				one, _ := r.Span(3, half)
				two, _ := r.Span(3+half, uint64(size)-half)
				list := []path.Copy{far.At(5, one), far.At(5+half, two)}
				for round := range 4 {
					fillBytes(m.b, uint64(round))
					m.here = 0
					x, err := p.ab.Put(ctx(t), list, PutOptions{Paths: []string{name}, Msg: []byte("m")})
					wait(t, x, err)
					if !bytes.Equal(dst.All().Bytes()[5:5+size], m.b[3:3+size]) {
						t.Fatal("the bytes did not arrive")
					}
					want := append([]byte(nil), m.b...)
					clear(m.b[3 : 3+size])
					y, err := p.ab.Get(ctx(t), list, PutOptions{Paths: []string{name}})
					wait(t, y, err)
					if !bytes.Equal(m.b, want) {
						t.Fatal("the bytes did not come back")
					}
					for _, x := range []*Transfer{x, y} {
						addsUp(t, x)
						if e := x.Explain(); e.Path != name || e.Staged != uint64(size) || e.Moved != uint64(size) ||
							e.Pieces != 1 && size < 1<<20 || e.Local.Device != "another process" {
							t.Errorf("%+v", e)
						}
					}
					if round > 0 && m.here == 0 { // a get over tcp ends, and is stored, elsewhere
						t.Error("all was copied by other goroutines")
					}
				}
			})
		}
	}
}

// A copy that fails ends the transfer and leaves nothing, also when it is canceled meanwhile.
func TestStagedHereFails(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{})
			p.ignore(t)
			m := &copied{b: make([]byte, 4096)}
			r := m.region(t)
			export(t, p.b, region(t, 4096), "dst", path.Read|path.Write)
			list := []path.Copy{lookup(t, p.ab, "dst").At(0, r.All())}
			o := PutOptions{Paths: []string{name}}
			for range 2 { // the second one finds a slot
				x, err := p.ab.Put(ctx(t), list, o)
				wait(t, x, err)
			}
			m.fail = errLost
			for what, begin := range map[string]func(context.Context, []path.Copy, PutOptions) (*Transfer,
				error){"put": p.ab.Put, "get": p.ab.Get} {
				x, err := begin(ctx(t), list, o)
				if err == nil {
					err = x.Wait(ctx(t))
				}
				if !errors.Is(err, errLost) {
					t.Errorf("%s: %v, expected %v", what, err, errLost)
				}
				c, cancel := context.WithCancel(ctx(t))
				m.call = cancel
				x, err = begin(c, list, o)
				if err == nil {
					err = x.Wait(ctx(t))
				}
				if !errors.Is(err, errLost) && !errors.Is(err, path.ErrCanceled) {
					t.Errorf("%s that is canceled: %v", what, err)
				}
				m.call = nil
			}
			m.fail = nil
			x, err := p.ab.Put(ctx(t), list, o)
			wait(t, x, err)
		})
	}
}
