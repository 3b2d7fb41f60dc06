//go:build dpdk && invariants

package dpdk

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// TestRefusals has each function of DPDK refuse what it is asked, from the beginning of a port's
// life, from its first queue and from its end on. Whatever comes of it, no slot is missing, and the
// next port works.
func TestRefusals(t *testing.T) {
	defer cdpdk.Refuse(-1, 0)
	failed := 0
	for n := range cdpdk.Refusals {
		for _, from := range []string{"open", "queues", "close"} {
			cdpdk.Refuse(-1, 0)
			refuse := func(now string) {
				if now == from {
					cdpdk.Refuse(n, syscall.EIO)
				}
			}
			slots, err := mem.NewPool(mem.PoolOptions{Name: "refused", SlotSize: 2048, Slots: 256})
			if err != nil {
				t.Fatal(err)
			}
			refuse("open")
			p, err := New().OpenPort(t.Context(), engine.PortSpec{Address: fmt.Sprintf("dpdk://net_null%d",
				names.Add(1)), Options: Options{EAL: eal}})
			if err != nil {
				failed++
				if err := slots.Close(); err != nil {
					t.Errorf("function %d from %s: %v", n, from, err)
				}
				continue
			}
			refuse("queues")
			b := burst.New(8)
			rx, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{slots}, Depth: 64})
			if err == nil {
				if _, err := rx.TryRecv(b); err != nil {
					t.Errorf("function %d from %s: %v", n, from, err)
				}
				b.Release()
			} else {
				failed++
			}
			tx, err := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{slots}, Depth: 64})
			if err == nil {
				if k, err := tx.Alloc(b, 8, 100); err != nil || k != 8 {
					t.Errorf("function %d from %s: %d packets: %v", n, from, k, err)
				}
				if err := tx.Send(b); err != nil {
					t.Errorf("function %d from %s: %v", n, from, err)
				}
			} else {
				failed++
			}
			refuse("close")
			if err := p.Close(); err != nil {
				failed++
			}
			if err := slots.Close(); err != nil {
				t.Errorf("function %d from %s: %v", n, from, err)
			}
		}
	}
	if failed < 12 {
		t.Errorf("%d refusals were noticed", failed)
	}
}
