package job

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// card is memory that the CPU cannot address. Its copies are over when they return.
type card []byte

// onCard makes such memory. Make it before the nodes that use it: when they are closed no lease of
// it may be left. The bytes are its own: look at them only while nothing moves.
func onCard(t *testing.T, size int) (*mem.Region, card) {
	t.Helper()
	m := make(card, size)
	r, err := mem.AdoptMapping("card", mem.Mapping{Kind: mem.Device, Size: uint64(size), PageSize: 4096, FD: -1,
		NUMANode: -1, Mover: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		soon(t, r.Unmapped(), "the return of the last lease")
	})
	return r, m
}

func (m card) Device() string        { return "card" }
func (m card) Staging() mem.Provider { return mem.Pages }

func (m card) Load(dst mem.Span, off uint64) (mem.Move, error) {
	copy(dst.Bytes(), m[off:])
	return moved{}, nil
}

func (m card) Store(off uint64, src mem.Span) (mem.Move, error) {
	copy(m[off:], src.Bytes())
	return moved{}, nil
}

type moved struct{}

func (moved) Done() (bool, error)        { return true, nil }
func (moved) Wait(context.Context) error { return nil }

// Fan-outs and jobs move memory of devices, at both sides, as they move other memory.
func TestDeviceMemory(t *testing.T) {
	const size = 1 << 20
	src, sb := onCard(t, size)
	dst0, b0 := onCard(t, size)
	dst1, b1 := onCard(t, size)
	c := newCrowd(t, 2, nil)
	export(t, c.nodes[0], dst0, "w", path.Read|path.Write)
	export(t, c.nodes[1], dst1, "w", path.Read|path.Write)
	random := rand.NewChaCha8([32]byte{21})
	t.Run("fan-out", func(t *testing.T) {
		random.Read(sb)
		targets := c.named("w", src.All())
		targets[0] = Target{Peer: c.peers[0], Copies: []path.Copy{lookup(t, c.peers[0], "w").At(0, src.All())}}
		f, err := PutAll(ctx(t), targets, FanoutOptions{Put: transfer.PutOptions{Digest: true}})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Wait(ctx(t)); err != nil || !bytes.Equal(b0, sb) || !bytes.Equal(b1, sb) {
			t.Errorf("other bytes arrived, or %v", err)
		}
		for i, l := range f.Legs() {
			if e := l.Explain(); e.Local.Bytes != size || e.Remote.Bytes != size {
				t.Errorf("target %d: %v", i, e)
			}
		}
	})
	l := link(t, c.a, c.nodes[0].Addrs()[0], LinkOptions{})
	for _, name := range paths {
		t.Run("job/"+name, func(t *testing.T) {
			o := Options{Piece: 100_000, Transfer: transfer.PutOptions{Paths: []string{name}}}
			random.Read(b0)
			clear(sb)
			j, err := l.Fetch(ctx(t), "w", src.All(), o)
			if waitJob(t, j, err); !bytes.Equal(sb, b0) {
				t.Error("the bytes did not come")
			}
			random.Read(sb)
			j, err = l.Store(ctx(t), "w", src.All(), o)
			if waitJob(t, j, err); !bytes.Equal(b0, sb) {
				t.Error("the bytes did not arrive")
			}
		})
	}
}
