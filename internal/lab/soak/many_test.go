package soak

import (
	"context"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// An acknowledgement may fail although its peer lives. That must not look like a transfer that does
// not end.
func TestFanWithoutAcknowledgements(t *testing.T) {
	w := &worker{c: config{Name: "w0.1", MaxBytes: 1 << 20, Peers: make([]string, 3)}, out: io.Discard}
	open := func(o transfer.Options) *transfer.Node {
		n, err := transfer.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		return n
	}
	memory := func(size uint64) *mem.Region {
		r, err := mem.Alloc(mem.Options{Name: "test", Size: int(size)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	size := uint64(0)
	for _, s := range partShare {
		size += partSize(w.c.MaxBytes, s)
	}
	a, src := open(transfer.Options{}), memory(2*w.c.MaxBytes)
	peers := map[int]*transfer.Remote{}
	for i := range 2 {
		// it acknowledges nothing
		b := open(transfer.Options{Anonymous: identity.All, Listen: []string{"tcp://127.0.0.1:0"}})
		if _, err := b.Export(memory(size).All(), transfer.ExportOptions{Name: inName(0),
			Rights: path.Read | path.Write}); err != nil {
			t.Fatal(err)
		}
		p, err := a.Dial(t.Context(), b.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		if peers[i+1], err = p.Lookup(t.Context(), inName(0)); err != nil {
			t.Fatal(err)
		}
	}
	for seed := range uint64(8) {
		h := &host{w: w, name: "w0.1/1", n: a, links: map[int]*link{}, acks: map[string]chan struct{}{},
			ids: map[observe.ID]bool{}}
		h.ledger.mine, h.ledger.told = map[observe.ID]bool{}, map[observe.ID]bool{}
		h.moving, h.stop = context.WithCancel(t.Context())
		h.living, h.end = context.WithCancel(t.Context())
		for i, r := range peers {
			h.links[i] = &link{peer: r.Peer, to: "b", in: r, parts: make([]part, len(partShare))}
		}
		m := &mover{h: h, r: rand.New(rand.NewPCG(seed, 4)), src: src}
		over := make(chan struct{})
		go func() {
			m.fan()
			close(over)
		}()
		begun := func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return len(h.acks) == len(peers)
		}
		for end := time.Now().Add(30 * time.Second); ; <-time.After(time.Millisecond) {
			select {
			case <-over: // all failed: security that no path has
			default:
				if !begun() || h.inflight.Load() > 0 {
					if time.Now().Before(end) {
						continue
					}
					t.Errorf("seed %d: %d legs did not end", seed, h.inflight.Load())
				}
			}
			break
		}
		h.stop() // ends the waits for acknowledgements
		h.end()
		<-over
	}
}
