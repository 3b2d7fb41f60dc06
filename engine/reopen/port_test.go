package reopen

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// card is a network in memory whose interfaces can be pulled out.
type card struct {
	*sim.Network
	out    atomic.Bool // nothing can be opened
	last   atomic.Pointer[plug]
	opened atomic.Int64
}

// plug is a port of a card.
type plug struct {
	engine.Port
	bell engine.LinkBell
	gone atomic.Bool
}

func (c *card) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	c.opened.Add(1)
	if c.out.Load() {
		return nil, engine.ErrNotFound
	}
	p, err := c.Network.OpenPort(ctx, spec)
	if err != nil {
		return nil, err
	}
	x := &plug{Port: p}
	c.last.Store(x)
	return x, nil
}

func (p *plug) LinkState(w *engine.Waker) engine.LinkState {
	p.bell.Set(w)
	return engine.LinkState{Up: !p.gone.Load(), Gone: p.gone.Load()}
}

// pull pulls the interface out.
func (c *card) pull() {
	c.out.Store(true)
	p := c.last.Load()
	p.gone.Store(true)
	p.bell.Ring()
}

// A port goes on with the interface that comes back: the same queues, rules in their order and with
// their IDs, and all counts.
func TestReopen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, err := sim.NewNetwork(sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if _, err := n.Loop("a"); err != nil {
			t.Fatal(err)
		}
		pool, err := mem.NewPool(mem.PoolOptions{Name: "m", SlotSize: 2048, Slots: 256})
		if err != nil {
			t.Fatal(err)
		}
		c := &card{Network: n}
		var failures atomic.Int64
		p, err := Open(t.Context(), c, engine.PortSpec{Address: "a"},
			Options{Least: time.Second, Most: 4 * time.Second, Failed: func(error) {
				failures.Add(1)
			}})
		if err != nil {
			t.Fatal(err)
		}
		rx, err := p.AddRxQueue(engine.RxSpec{ID: engine.Queue(3), Pools: []*mem.Pool{pool}})
		if err != nil {
			t.Fatal(err)
		}
		tx, err := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})
		if err != nil {
			t.Fatal(err)
		}
		rule := func(text string) flow.Rule {
			r, err := flow.ParseRule(text)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		res, err := p.Rules().Apply(flow.Add(rule("eth dst 02:00:00:00:00:01 -> queue 3")),
			flow.Add(rule("eth dst 02:00:00:00:00:02 -> queue 3")), flow.Add(rule("eth dst 02:00:00:00:00:03 -> drop")))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Rules().Apply(flow.Delete(res.IDs[1]), flow.Move(res.IDs[2], res.IDs[0])); err != nil {
			// now 3, 1
			t.Fatal(err)
		}
		r, b, out := engine.NewRx(rx, engine.Batching{}), burst.New(8), burst.New(1)
		send := func() error {
			if _, err := tx.Alloc(out, 1, 64); err != nil {
				return err
			}
			clear(out.Bytes(0, 0))
			copy(out.Bytes(0, 0), []byte{2, 0, 0, 0, 0, 1})
			return tx.Send(out)
		}
		pass := func() {
			t.Helper()
			if err := errors.Join(send(), r.Recv(t.Context(), b)); err != nil || b.Len() != 1 ||
				b.Flow(0) != res.IDs[0] {
				t.Fatalf("%v, %d packets", err, b.Len())
			}
			b.Release()
		}
		pass()
		told := engine.NewWaker()
		p.LinkState(told)
		came := make(chan error, 1)
		go func() { came <- r.Recv(t.Context(), b) }() // it waits for what comes afterwards
		synctest.Wait()
		c.pull()
		synctest.Wait()
		<-told.C()
		if l := p.LinkState(told); !l.Gone || l.Up || l.Reopened != 0 {
			t.Errorf("away: %+v", l)
		}
		if err := send(); !errors.Is(err, engine.ErrFull) {
			t.Errorf("sending while it is away: %v", err)
		}
		if _, err := p.Rules().Apply(flow.Delete(res.IDs[0])); !errors.Is(err, engine.ErrDown) {
			t.Errorf("changing rules while it is away: %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if failed := failures.Load(); failed != c.opened.Load()-1 || failed < 60/4 || failed > 2*60/4+4 {
			t.Errorf("%d attempts failed in a minute", failed)
		}
		c.out.Store(false)
		time.Sleep(5 * time.Second)
		if l := p.LinkState(told); l.Gone || !l.Up || l.Reopened != 1 {
			t.Errorf("back: %+v", l)
		}
		if err := errors.Join(send(), <-came); err != nil || b.Len() != 1 || b.Flow(0) != res.IDs[0] {
			t.Errorf("%v, %d packets", err, b.Len())
		}
		b.Release()
		list := p.Rules().List()
		if len(list) != 2 || list[0].ID != res.IDs[2] || list[1].ID != res.IDs[0] {
			t.Errorf("%v", list)
		}
		check := func() {
			t.Helper()
			var s engine.PortStats
			var in engine.RxStats
			var sent engine.TxStats
			p.Stats(&s)
			rx.Stats(&in)
			tx.Stats(&sent)
			counts := p.Rules().Stats()
			if s.Rx.Packets != 2 || s.Tx.Packets != 2 || in.Packets != 2 || sent.Packets != 2 ||
				counts.Rules[1].Packets != 2 || counts.Unmatched.Packets != 0 || rx.ID() != 3 {
				t.Errorf("%+v\n%+v\n%+v\n%+v", s, in, sent, counts)
			}
		}
		check()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		check()
		if _, err := rx.TryRecv(b); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := send(); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A port that is closed while its interface is away does not wait for it.
func TestCloseAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, err := sim.NewNetwork(sim.Options{Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		c := &card{Network: n}
		p, err := Open(t.Context(), c, engine.PortSpec{Address: "a"}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		c.pull()
		synctest.Wait()
		if err := errors.Join(p.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
}
