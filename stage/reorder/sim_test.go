package reorder

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/mem"
	frame "github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

const (
	simHeaders = frame.EthernetLen + frame.IPv4Len + frame.UDPLen
	simOffset  = simHeaders + 4 // behind the sequence number
)

// tap notes the sequence numbers of what comes, in the order in which the stage gets them.
type tap struct {
	engine.Receiver
	numbers []uint32
}

func (x *tap) TryRecv(b *burst.Burst) (int, error) {
	had := b.Len()
	n, err := x.Receiver.TryRecv(b)
	for i := had; i < b.Len(); i++ {
		x.numbers = append(x.numbers, binary.BigEndian.Uint32(b.Bytes(i, 0)[simHeaders:]))
	}
	return n, err
}

// Over a network that loses, repeats and overtakes, through a poller, the stage makes the batches
// that the model makes of what came, and each packet that was sent is accounted for: placed, lost
// on the wire, late, or, of those that the wire made twice, a duplicate.
func TestSim(t *testing.T) {
	seeds := 40
	if testing.Short() {
		seeds = 8
	}
	var late, dup, lost uint64
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			m, c := throughSim(t, uint64(seed))
			late, dup, lost = late+m.late, dup+m.dup, lost+c
		})
	}
	if late == 0 || dup == 0 || lost == 0 {
		t.Errorf("%d late, %d duplicate, %d lost: the network was too kind", late, dup, lost)
	}
}

func throughSim(t *testing.T, seed uint64) (m model, lost uint64) {
	const per, window, count, size = 16, 4, 1500, 12
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	n, err := sim.NewNetwork(sim.Options{Seed: seed})
	check(err)
	cable, err := n.Link("a", "b")
	check(err)
	// A packet each microsecond; those that are late are up to three windows behind.
	length := simOffset + size
	check(cable.SetFaultsFrom("a", sim.Faults{Loss: 0.03, Duplicate: 0.03, Rate: uint64(length) * 8 * 1e6,
		Delay: 50 * time.Microsecond, Reorder: 0.1, ReorderBy: time.Duration(1+seed*7%170) * time.Microsecond}))
	a, err := n.OpenPort(t.Context(), engine.PortSpec{Address: "a"})
	check(err)
	b, err := n.OpenPort(t.Context(), engine.PortSpec{Address: "b"})
	check(err)
	txPool, rxPool, batches := newPool(t, "sent", 256, 512), newPool(t, "received", 256, 1024),
		newPool(t, "batches", per*size, 64)
	tx, err := a.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{txPool}})
	check(err)
	rx, err := b.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{rxPool}})
	check(err)
	in := &tap{Receiver: rx}
	s, err := New(in, engine.StageSpec{Queue: "q"}, Plan{Name: "p", Flows: []uint32{0},
		Sequence: Field{simHeaders * 8, 32}, PerBatch: per, Offset: simOffset, Window: window, Pool: batches})
	check(err)
	p, err := engine.NewPoller(engine.PollerOptions{Mode: engine.Event, CPU: engine.Unpinned})
	check(err)
	defer func() {
		p.Close()
		if err := errors.Join(s.Close(), a.Close(), n.Close()); err != nil {
			t.Error(err)
		}
	}()
	polled, err := p.Add(s, engine.PollOptions{})
	check(err)
	var got []result
	inbox := burst.New(64)
	take := func() {
		for i := range inbox.Len() {
			x := Of(inbox, i)
			r := result{*x, bytes.Clone(inbox.Bytes(i, 0))}
			r.Present = slices.Clone(x.Present)
			got = append(got, r)
		}
		inbox.Release()
	}

	head := frame.UDPFrame{SrcMAC: a.Info().MAC, DstMAC: b.Info().MAC, Src: netip.MustParseAddrPort("10.0.0.1:1"),
		Dst: netip.MustParseAddrPort("10.0.0.2:2")}
	start := -uint32(seed%3) * 44 * per // some begin again at 0
	out := burst.New(64)
	for sent := 0; sent < count; {
		k, err := tx.Alloc(out, min(64, count-sent), length)
		check(err)
		for i := range k {
			f := out.Bytes(i, 0)
			number := start + uint32(sent+i)
			binary.BigEndian.PutUint32(f[simHeaders:], number)
			copy(f[simOffset:], payloadOf(int64(number/per), int(number%per)))
			_, err := head.Fill(f, len(f)-simHeaders)
			check(err)
		}
		check(tx.Send(out))
		sent += k
		time.Sleep(64 * time.Microsecond)
		synctest.Wait()
		_, err = polled.TryRecv(inbox)
		check(err)
		take()
	}
	time.Sleep(time.Second) // of virtual time: all that is under way comes
	synctest.Wait()
	wire := n.Ledger()
	check(b.Close())

	for err = error(nil); err == nil; take() {
		err = polled.Recv(t.Context(), inbox)
	}
	if !errors.Is(err, engine.ErrClosed) {
		t.Fatal(err)
	}
	m = model{per: per, window: window, open: map[int64]map[int64]bool{}, had: map[int64]map[int64]bool{}}
	for _, number := range in.numbers {
		m.packet(int64(number-start)/per, int64(number%per))
	}
	m.end()
	if len(got) != len(m.left) {
		t.Fatalf("seed %d: %d batches, want %d", seed, len(got), len(m.left))
	}
	placed := uint64(0)
	for i, x := range got {
		placed += uint64(x.Packets)
		had := m.had[m.left[i]]
		if x.ID-got[0].ID != m.left[i]-m.left[0] || x.Packets != len(had) {
			t.Fatalf("seed %d: batch %d is %+v, want number %d with %d packets", seed, i, x.Batch, m.left[i], len(had))
		}
		for place := range per {
			want := make([]byte, size)
			if had[int64(place)] {
				want = payloadOf(int64((start/per+uint32(m.left[i]))&(1<<32/per-1)), place)
			}
			if x.Has(place) != had[int64(place)] || !bytes.Equal(x.data[place*size:][:size], want) {
				t.Fatalf("seed %d: batch %d, place %d: %x, want %x", seed, i, place, x.data[place*size:][:size], want)
			}
		}
	}
	c := s.Plans()[0]
	if c.Placed != placed || c.Drops[engine.DropLate] != m.late || c.Drops[engine.DropDuplicate] != m.dup ||
		c.Drops.Total() != m.late+m.dup || c.Lost != m.lost {
		t.Fatalf("seed %d: %+v, want %d placed, %d late, %d duplicate, %d lost", seed, c, placed, m.late, m.dup, m.lost)
	}
	if wire.Sent != count || wire.Sent+wire.Made != placed+wire.Drops.Total()+m.late+m.dup {
		t.Fatalf("seed %d: %d sent and %d made twice, %d placed, %d lost, %d late, %d duplicate", seed, wire.Sent,
			wire.Made, placed, wire.Drops.Total(), m.late, m.dup)
	}
	return m, wire.Drops.Total()
}
