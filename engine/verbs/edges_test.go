package verbs

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// TestTransfersFull: the watchdog's own request lies in the last place of the device's queue, behind as many transfers as there may be: one
// more is refused, and those before it end.
func TestTransfersFull(t *testing.T) {
	f := onFake(t, "")
	shown := make(chan MemoryEvent, 1)
	local, remote := region(t, 4096), region(t, 4096)
	s, c, id := f.pair(t, Options{}, Options{SendDepth: 2, every: time.Hour, OnMemory: func(e MemoryEvent) { shown <- e }})
	in, out := rx(t, s, engine.RxSpec{Depth: 16}), tx(t, c, engine.TxSpec{})
	put(t, out, 0, "a")
	got(t, in, 1)
	until(t, "it to be over", func() bool { return stats(c).Tx.Packets == 1 })
	m, err := s.Expose(id, remote.All(), RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	<-shown
	k := c.primary.Load()
	write := func() (*Transfer, error) {
		return c.Post(TransferSpec{Op: Write, Conn: k.id, Local: local.All(), Remote: m})
	}
	f.run(t, "drop send *")
	var under []*Transfer
	for range 2 {
		x, err := write()
		if err != nil {
			t.Fatal(err)
		}
		under = append(under, x)
	}
	k.look()
	k.look() // nothing got on since: it asks the device
	k.mu.Lock()
	if n := k.out.flying(); n != 3 {
		t.Errorf("%d requests are under way, expected two transfers and the watchdog's", n)
	}
	k.mu.Unlock()
	if _, err := write(); !errors.Is(err, engine.ErrFull) {
		t.Errorf("a third transfer: %v", err)
	}
	if err := c.CloseConn(k.id); err != nil {
		t.Errorf("the connection is gone: %v", err)
	}
	for _, x := range under {
		if err := ended(t, x, nil); !errors.Is(err, engine.ErrDown) {
			t.Errorf("a transfer of a connection that was closed: %v", err)
		}
	}
}
