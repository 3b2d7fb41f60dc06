package bounce_test

import (
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/bounce"
	"github.com/penstock-io/penstock/mem"
)

// shallow is a port whose transmit queues have few descriptors, whatever is asked for.
type shallow struct{ engine.Port }

func (s shallow) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	spec.Depth = 4
	return s.Port.AddTxQueue(spec)
}

// A full queue of the engine is no matter of the sender: it does not count as if Alloc had found no
// descriptors.
func TestFullIsNotTheSenders(t *testing.T) {
	l := newLine(t, bounce.Options{Bursts: 4, Packets: 8})
	tx, err := bounce.New(shallow{l.b.Port}, bounce.Options{Bursts: 4, Packets: 8}).AddTxQueue(engine.TxSpec{Depth: 64,
		Pools: []*mem.Pool{newCard(t, false).pool(t, "device", 2048, 64)}})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	for range 20 {
		if n, err := tx.Alloc(l.out, 30, 100); n != 30 || err != nil {
			t.Fatal(n, err)
		}
		if err := tx.Send(l.out); err != nil {
			t.Fatal(err)
		}
		if err := tx.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var s engine.TxStats
	if tx.Stats(&s); s.Full != 0 || s.NoBuffers != 0 || s.Queued != 0 || s.Drops.Total() != 0 {
		t.Errorf("%+v", s)
	}
}
