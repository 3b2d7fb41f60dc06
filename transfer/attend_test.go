package transfer

import (
	"sync"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
)

// Goroutines that wait serve a channel by turns. Afterwards the loop has it again: what the peer
// sends arrives although no goroutine waits.
func TestAttend(t *testing.T) {
	back := make(chan Incoming, 1)
	p := newPair(t, Options{OnTransfer: func(i Incoming) { back <- i }})
	p.ignore(t)
	const each = 200
	src, dst := region(t, 4<<10), region(t, 4<<10)
	fill(src, 3)
	export(t, p.b, dst, "dst", path.Write)
	rem := lookup(t, p.ab, "dst")
	o := PutOptions{Paths: []string{"tcp"}}
	for range 20 {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range each / 20 {
					x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, o)
					if err == nil {
						err = x.Wait(ctx(t))
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		p.ab.mu.Lock()
		ch := p.ab.channels["tcp"].ch
		p.ab.mu.Unlock()
		ch.mu.Lock()
		attended, muted := ch.attended.Load(), ch.muted
		ch.mu.Unlock()
		if attended || muted {
			t.Fatalf("no goroutine waits, and the channel is attended: %v, muted: %v", attended, muted)
		}
		x, err := p.ba.Notify(ctx(t), []byte("hello"), o)
		wait(t, x, err)
		select {
		case <-back:
		case <-ctx(t).Done():
			t.Fatal("a notification did not arrive")
		}
	}
}
