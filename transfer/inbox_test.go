package transfer

import (
	"testing"

	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/path"
)

// A node whose inbox was full takes puts again while its application receives the messages one by
// one, long before it has received all that wait.
func TestFullInboxTakesPutsAgain(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{Window: 16})
			take := make(chan struct{})
			p.b.opts.OnTransfer = func(i Incoming) {
				if i.Kind == path.Notify {
					<-take
				}
			}
			x := export(t, p.b, region(t, 4096), "dst", path.Write)
			defer x.Revoke(ctx(t))
			rem, src := lookup(t, p.ab, "dst"), region(t, 4096)
			const count = 4 * inbox.Max
			defer close(take)
			for range count {
				if _, err := p.ab.Notify(ctx(t), []byte("x"), PutOptions{Paths: []string{name}}); err != nil {
					t.Fatal(err)
				}
			}
			full := func() bool {
				ch := channelOf(t, p.ba, name)
				ch.mu.Lock()
				defer ch.unlock()
				return ch.muted && p.ba.inbox.Len() >= inbox.Max
			}
			until(t, "a full inbox", full)
			receive := func(k int) {
				for range k {
					select {
					case take <- struct{}{}:
					case <-ctx(t).Done():
						t.Fatal("the application gets no message")
					}
				}
			}
			receive(128) // more than came before the first one was received
			until(t, "a full inbox again", full)
			put, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())},
				PutOptions{Paths: []string{name}, Priority: PriorityHigh})
			if err != nil {
				t.Fatal(err)
			}
			receive(inbox.Max / 2)
			wait(t, put, nil)
		})
	}
}
