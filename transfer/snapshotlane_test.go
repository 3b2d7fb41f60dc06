package transfer

import (
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
)

// slowToExplain is a path whose explanation takes its time.
type slowToExplain struct {
	path.Path
	asked          atomic.Bool
	entered, leave chan struct{}
}

func (p *slowToExplain) Explain() []string {
	if !p.asked.Swap(true) {
		close(p.entered)
		<-p.leave
	}
	return p.Path.Explain()
}

// TestPutDuringSnapshot begins a put while a snapshot holds the channel: it is not left lying.
func TestPutDuringSnapshot(t *testing.T) {
	b := open(t, Options{Listen: []string{loopback}})
	a := open(t, Options{})
	p, err := a.Dial(ctx(t), b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	x, err := p.Notify(ctx(t), nil, PutOptions{Paths: []string{"tcp"}})
	wait(t, x, err)
	ch := nodeChannel(t, a, "tcp")
	slow := &slowToExplain{entered: make(chan struct{}), leave: make(chan struct{})}
	ch.mu.Lock()
	slow.Path, ch.p = ch.p, slow
	ch.unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Snapshot()
	}()
	soon(t, slow.entered, "the snapshot at the channel")
	x, err = p.Notify(ctx(t), nil, PutOptions{Paths: []string{"tcp"}})
	close(slow.leave)
	<-done
	wait(t, x, err)
}
