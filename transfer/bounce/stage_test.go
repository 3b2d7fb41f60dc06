package bounce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

var errCard = errors.New("the card is lost")

// card is memory that only its Mover reaches; copies end at once.
type card struct {
	b    []byte
	left *atomic.Int64 // copies until one fails
}

func (c card) Device() string             { return "a card" }
func (c card) Staging() mem.Provider      { return nil } // it pins nothing
func (c card) Done() (bool, error)        { return true, nil }
func (c card) Wait(context.Context) error { return nil }

func (c card) Load(dst mem.Span, off uint64) (mem.Move, error) {
	copy(dst.Bytes(), c.b[off:])
	return c.end()
}

func (c card) Store(off uint64, src mem.Span) (mem.Move, error) {
	copy(c.b[off:], src.Bytes())
	return c.end()
}

func (c card) end() (mem.Move, error) {
	if c.left.Add(-1) == 0 {
		return nil, errCard
	}
	return c, nil
}

func (c card) region(t *testing.T) *mem.Region {
	r, err := mem.AdoptMapping("card", mem.Mapping{Kind: mem.Device, Size: uint64(len(c.b)), PageSize: 4096, FD: -1,
		NUMANode: -1, Mover: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func host(t *testing.T, size int) (*mem.Region, []byte) {
	r, err := mem.Alloc(mem.Options{Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r, r.All().Bytes()[:size]
}

// world is two sides, without anything between them: requests are calls, and the path is a copy.
type world struct {
	t    *testing.T
	far  path.Key // the device export
	mem  *mem.Region
	to   *Peer
	lent map[path.Key]mem.Span // exports of the other side
	next uint32
	hold atomic.Int64 // exports that are kept
	kind path.OpKind
}

type export struct {
	w *world
	d path.Desc
}

func (x *export) Desc() path.Desc { return x.d }

func (x *export) Revoke(context.Context) error {
	delete(x.w.lent, x.d.Key)
	return nil
}

func (w *world) Ask(q control.Query) (*control.Response, error) {
	var b control.Body
	var err error
	switch q := q.(type) {
	case *control.Stage:
		b, err = w.to.Stage(q)
	case *control.Unstage:
		b, err = w.to.Unstage(q)
	case *control.Place:
		b, err = w.to.Place(q)
	case *control.Fetch:
		b, err = w.to.Fetch(q)
	}
	if err != nil {
		return nil, err
	}
	wire, err := control.AppendBody(nil, b)
	return &control.Response{Body: wire}, err
}

func (w *world) Device(b control.Block, want path.Rights) (mem.Span, func(), error) {
	if b.Key != w.far {
		return mem.Span{}, nil, path.ErrKey
	}
	s := w.mem.All()
	if want != 0 {
		var err error
		if s, err = s.Sub(b.Off, b.Len); err != nil {
			return s, nil, err
		}
	}
	w.hold.Add(1)
	return s, func() { w.hold.Add(-1) }, nil
}

func (w *world) Lend(s mem.Span) (Export, error) {
	w.next++
	d := path.Desc{Key: path.Key{Index: w.next, Secret: 7}, Size: s.Len, Rights: path.Read | path.Write}
	w.lent[d.Key] = s
	return &export{w, d}, nil
}

// ends counts what became of pieces.
type ends struct {
	*world
	bytes  atomic.Uint64
	failed atomic.Int64
	staged atomic.Uint64
}

// moved is a piece that the Wait of it moves.
type moved struct {
	e *ends
	p *Piece
}

func (e *ends) Move(p *Piece) Move { return moved{e, p} }

func (m moved) Ended() bool { return false }

func (m moved) Wait(ctx context.Context) error {
	e, p := m.e, m.p
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, c := range p.Copies {
		there, ok := e.lent[c.Key]
		if !ok {
			return path.ErrKey
		}
		there, err := there.Sub(c.RemoteOff, c.Local.Len)
		if err != nil {
			return err
		}
		if e.kind == path.Put {
			copy(there.Bytes(), c.Local.Bytes())
		} else {
			copy(c.Local.Bytes(), there.Bytes())
		}
	}
	return nil
}

func (e *ends) Ended(p *Piece, err error) {
	if err != nil {
		e.failed.Add(1)
		return
	}
	e.bytes.Add(p.Bytes)
	for _, c := range []Copied{p.Local, p.Remote} {
		if c.Slot > 0 {
			e.staged.Add(p.Bytes)
		}
	}
}

// TestCarry puts and gets scattered blocks between memories of hosts and cards by way of slots,
// with cards that are lost now and then: without an error the bytes are there, and in either case
// everything is given back.
func TestCarry(t *testing.T) {
	const size = 900 << 10
	for _, kind := range []path.OpKind{path.Put, path.Get} {
		for _, where := range []string{"here", "there", "both"} {
			for _, lost := range []int64{-1, 1, 5, 12} { // the copy that fails, of either side
				t.Run(fmt.Sprintf("%d/%s/%d", kind, where, lost), func(t *testing.T) {
					r := rand.New(rand.NewPCG(uint64(lost), size))
					newMemory := func() *Memory {
						m, err := New(Least, errors.New("closed"))
						if err != nil {
							t.Fatal(err)
						}
						return m
					}
					ours, theirs := newMemory(), newMemory()
					var left atomic.Int64
					left.Store(lost)
					w := &world{t: t, kind: kind, far: path.Key{Index: 1 << 20}, lent: map[path.Key]mem.Span{}}
					var local *mem.Region
					lb, rb := make([]byte, size), make([]byte, size)
					if where == "there" {
						local, lb = host(t, size)
					} else {
						local = card{lb, &left}.region(t)
					}
					far := map[path.Key]bool{}
					if where == "here" {
						var s *mem.Region
						s, rb = host(t, size)
						w.lent[w.far] = s.All()
					} else {
						w.mem = card{rb, &left}.region(t)
						far[w.far] = true
					}
					for i := range lb {
						lb[i], rb[i] = byte(r.Uint32()), byte(r.Uint32())
					}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					w.to = NewPeer(ctx, theirs, w)
					p := NewPeer(ctx, ours, w)
					// The other side has the blocks in another order.
					var copies []path.Copy
					var offs []uint64
					for off := uint64(0); off < size; {
						n := min(1+r.Uint64N(200<<10), size-off)
						s, err := local.Span(off, n)
						if err != nil {
							t.Fatal(err)
						}
						copies, offs = append(copies, path.Copy{Local: s, Key: w.far}), append(offs, off)
						off += n
					}
					at := uint64(0)
					for _, k := range r.Perm(len(copies)) {
						copies[k].RemoteOff = at
						at += copies[k].Local.Len
					}
					e := &ends{world: w}
					err := p.Carry(ctx, Work{Kind: kind, Copies: copies, Bytes: size, Far: far, Blocks: 3,
						Plain: 64 << 10}, e)
					if lost > 0 {
						if !errors.Is(err, errCard) && !errors.Is(err, control.Internal) || e.failed.Load() == 0 {
							t.Errorf("a card is lost: %v, %d pieces failed", err, e.failed.Load())
						}
					} else {
						sides := uint64(1)
						if where == "both" {
							sides = 2
						}
						if err != nil || e.bytes.Load() != size || e.staged.Load() != sides*size {
							t.Errorf("%v, %d bytes in place, %d by way of slots", err, e.bytes.Load(), e.staged.Load())
						}
						for i, c := range copies {
							if n := c.Local.Len; !bytes.Equal(lb[offs[i]:offs[i]+n], rb[c.RemoteOff:c.RemoteOff+n]) {
								t.Fatalf("block %d has other bytes", i)
							}
						}
					}
					for _, m := range []*Memory{ours, theirs} {
						if err := m.Verify(); err != nil {
							t.Error(err)
						}
					}
					cancel()
					p.End()()
					w.to.End()()
					if theirs.lent != 0 || w.hold.Load() != 0 || len(w.lent) > 1 {
						t.Errorf("%d bytes are lent, %d exports are kept, of %d", theirs.lent, w.hold.Load(),
							len(w.lent))
					}
					for _, m := range []*Memory{ours, theirs} {
						if err := m.Close(); err != nil {
							t.Error(err)
						}
					}
					if err := p.Carry(t.Context(), Work{}, e); err == nil || err.Error() != "closed" {
						t.Errorf("after the end: %v", err)
					}
				})
			}
		}
	}
}
