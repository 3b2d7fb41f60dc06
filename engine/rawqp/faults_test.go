package rawqp

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// What a port cannot be opened for says why, and what else there is.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		script, address string
		want            error
		text            string
	}{
		{"", "fake0", ErrNoRaw, "mlx5"},
		{"raw on; fail ibv_create_qp * EPERM", "fake0", ErrCapability, "setcap cap_net_raw+ep"},
		{"raw on; link infiniband", "fake0", ErrNoRaw, "LINK_TYPE_P1=2"},
		{"raw on", "eth7", engine.ErrNotFound, "fake1 (port 1: "},
		{"raw on; fail ibv_create_qp * ENOMEM", "fake0", engine.ErrUnavailable, "fake0"},
		{"raw on; fail ibv_open_device * EACCES", "fake0", engine.ErrUnavailable, "run as root"},
	} {
		f := onStand(t, c.script)
		_, err := f.eng.OpenPort(t.Context(), engine.PortSpec{Address: c.address})
		if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%q: %v, expected %q of %v", c.script, err, c.text, c.want)
		}
		if a := f.eng.Available(); (a == nil) != (c.want == engine.ErrNotFound) || a != nil &&
			!errors.Is(a, engine.ErrUnavailable) {
			t.Errorf("%q: Available says %v", c.script, a)
		}
	}
	if err := New("/nowhere/libibverbs.so.1").Available(); !errors.Is(err, engine.ErrUnavailable) ||
		!strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("without the library: %v", err)
	}
	if err := refusal("rxe0", fmt.Errorf("create_qp: %w", ibv.ErrUnsupported)); !strings.Contains(err.Error(),
		"Soft-RoCE has none") {
		t.Error(err)
	}
	f := onStand(t, "raw on; absent flows")
	p := f.port(t, engine.PortSpec{Address: "fake0"})
	if _, err := p.AddRxQueue(engine.RxSpec{Depth: 4, Pools: []*mem.Pool{pool(t, 2048, 8)}}); !errors.Is(err,
		engine.ErrUnsupported) {
		t.Errorf("a device without steering rules: %v", err)
	}
}

// Every call that making a queue takes fails once; nothing is left of it, and it works afterwards.
func TestSetupFails(t *testing.T) {
	for _, call := range []string{"ibv_create_cq", "ibv_create_qp", "ibv_modify_qp", "ibv_create_comp_channel",
		"ibv_reg_mr", "ibv_create_flow", "ibv_query_qp"} {
		for n := 1; n <= 3; n++ {
			t.Run(fmt.Sprint(call, n), func(t *testing.T) { setupFails(t, call, n) })
		}
	}
}

func setupFails(t *testing.T, call string, n int) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	e.f.do(t, fmt.Sprintf("fail %s %d ENOMEM", call, n))
	slots := pool(t, 2048, 64)
	spec := engine.RxSpec{Depth: 8, Pools: []*mem.Pool{slots}}
	q, err := e.b.AddRxQueue(spec)
	if err != nil {
		if s := slots.Stats(); s.InUse != 0 {
			t.Fatalf("%s %d: %d slots are out after %v", call, n, s.InUse, err)
		}
		e.f.do(t, "reset; raw on")
		if q, err = e.b.AddRxQueue(spec); err != nil {
			t.Fatalf("%s %d, and then: %v", call, n, err)
		}
	} else if n == 1 {
		t.Errorf("%s fails, and a queue can be made", call)
	}
	f := udp(t, 5, 20)
	e.send(f)
	e.wants(q.(*rxQueue), f)
}

// A rule that the card refuses changes nothing on an isolated port; elsewhere this process does its
// work.
func TestRuleRefused(t *testing.T) {
	for _, isolated := range []bool{true, false} {
		t.Run(fmt.Sprint("isolated ", isolated), func(t *testing.T) { ruleRefused(t, isolated) })
	}
}

func ruleRefused(t *testing.T, isolated bool) {
	e := newEnds(t, "", Options{}, engine.PortSpec{Isolated: isolated})
	first, second := e.rx(engine.RxSpec{ID: engine.Queue(0)}), e.rx(engine.RxSpec{ID: engine.Queue(1)})
	e.apply(flow.Add(rule(t, "name a udp dst 1 -> queue 1")), flow.Add(rule(t, "name b udp dst 2 -> queue 0")))
	id := e.b.Rules().List()[0].ID
	for n := 1; n <= 2; n++ {
		e.f.do(t, fmt.Sprintf("fail ibv_create_flow %d EINVAL", n))
		_, err := e.b.Rules().Apply(flow.Replace(id, rule(t, "name a udp dst 1 -> queue 0")),
			flow.Add(rule(t, "name c udp dst 3 -> queue 1")), flow.Delete(id+1))
		if isolated != errors.Is(err, engine.ErrUnsupported) {
			t.Fatalf("isolated %v: %v", isolated, err)
		}
		one, two, three := udp(t, 1, 10), udp(t, 2, 20), udp(t, 3, 30)
		e.send(one, two, three)
		if !isolated {
			e.wants(first, one, two)
			e.wants(second, three)
			break
		}
		e.wants(second, one)
		e.wants(first, two)
	}
}

// Rules are in force when Apply returns: a goroutine that deals out frames by the rules from before
// is done by then.
func TestRulesInForce(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	e.rx(engine.RxSpec{})
	drop := flow.Add(rule(t, "udp dst 1 -> drop"))
	done := make(chan error)
	e.b.cq.mu.Lock() // as one that deals out
	go func() {
		_, err := e.b.Rules().Apply(drop)
		done <- err
	}()
	select {
	case err := <-done:
		e.b.cq.mu.Unlock()
		t.Fatalf("Apply returned before: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	e.b.cq.mu.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A queue pair that fails flushes, is made ready again, and goes on; what was lost is counted.
func TestRevived(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	q := e.rx(engine.RxSpec{})
	f := udp(t, 5, 20)
	for _, kill := range []string{
		fmt.Sprintf("kill 1 %d", q.qp.Num()), "status recv 1 LOC_PROT_ERR",
		fmt.Sprintf("kill 0 %d", e.tx.(*txQueue).qp.Num()), "status send 1 LOC_QP_OP_ERR",
		"fail ibv_post_send 1 EIO",
	} {
		e.f.do(t, kill)
		e.send(f) // this one may be lost
		before := burst.NewSegmented(64, 64)
		until(t, "frames to come again after "+kill, func() bool {
			if _, err := q.TryRecv(before); err != nil {
				t.Fatal(err)
			}
			before.Release()
			e.send(f)
			n, err := q.TryRecv(before)
			if err != nil {
				t.Fatal(err)
			}
			before.Release()
			return n > 0
		})
	}
	var tx, rx engine.PortStats
	e.a.Stats(&tx)
	e.b.Stats(&rx)
	if tx.Tx.Drops.Total() < 2 || tx.Tx.Queued != 0 {
		t.Errorf("the sender: %+v", tx.Tx)
	}
	if rx.Rx.Drops[engine.DropBadFrame] != 1 {
		t.Errorf("the receiver: %v", &rx.Rx.Drops)
	}
}

// What the device will never tell of is taken back, and counted.
func TestFault(t *testing.T) {
	for _, lost := range []int{0, 2} {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			e := newEnds(t, "mode pump", Options{}, engine.PortSpec{})
			r := e.rx(engine.RxSpec{})
			q := e.tx.(*txQueue)
			f := udp(t, 5, 20)
			for range 5 {
				if n, err := q.Alloc(e.out, 1, len(f)); n != 1 {
					t.Fatal(err)
				}
				copy(e.out.Bytes(0, 0), f)
				if err := q.Send(e.out); err != nil {
					t.Fatal(err)
				}
			}
			q.mu.Lock()
			if q.flying() != 5 {
				t.Errorf("the device has %d frames, expected 5", q.flying())
			}
			for range lost { // completions that are lost
				q.tail++
				q.posts[(q.tail-1)%uint64(len(q.posts))].n = 0
				q.out.Reserve(1)
			}
			q.fault()
			q.mu.Unlock()
			var s engine.TxStats
			if q.Stats(&s); s.Drops[engine.DropDown] != uint64(5+lost) || s.Packets != 0 {
				t.Errorf("%d sent, drops: %v", s.Packets, &s.Drops)
			}
			if free := q.out.Free(); free != q.spec.Depth {
				t.Errorf("%d of %d descriptors are free", free, q.spec.Depth)
			}
			e.f.do(t, "mode post")
			e.send(f)
			e.wants(r, f)
		})
	}
}

// A device that takes a part of a chain alone, and cannot be brought back to work, keeps no memory
// and no descriptor: there is nothing later that would give them back.
func TestFaultIsTheLast(t *testing.T) {
	e := newEnds(t, "", Options{SendDepth: 4}, engine.PortSpec{})
	slots := pool(t, 2048, 64)
	q := e.sender(engine.TxSpec{Depth: 16, Pools: []*mem.Pool{slots}}).(*txQueue)
	q.mu.Lock()
	q.depth, q.posts = 8, make([]posted, 8) // more than the queue pair holds
	q.mu.Unlock()
	e.f.do(t, "fail ibv_modify_qp * EIO")
	if n, err := q.Alloc(e.out, 6, 60); n != 6 {
		t.Fatal(err)
	}
	if err := q.Send(e.out); err != nil {
		t.Fatal(err)
	}
	var s engine.TxStats
	if q.Stats(&s); s.Drops[engine.DropDown] != 6 || s.Packets != 0 || s.Queued != 0 || q.out.Free() != 16 {
		t.Errorf("%d of 16 descriptors are free: %+v", q.out.Free(), s)
	}
	if n := slots.Stats().InUse; n != 0 {
		t.Errorf("%d slots are out", n)
	}
	if e.a.Info().Up {
		t.Error("the port is up")
	}
}

// A device that fails ends the queues of its port with the reason, and closes.
func TestDeviceFails(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	q := e.rx(engine.RxSpec{})
	w := engine.NewWaker()
	if q.Arm(w) {
		t.Fatal("ready, and nothing has come")
	}
	told := engine.NewWaker()
	if l := e.b.LinkState(told); !l.Up || l.Gone {
		t.Errorf("%+v", l)
	}
	e.f.do(t, "event 1 DEVICE_FATAL; event 0 DEVICE_FATAL")
	<-w.C()
	<-told.C()
	if l := e.b.LinkState(told); l.Up || !l.Gone {
		t.Errorf("%+v", l)
	}
	if _, err := q.TryRecv(burst.New(4)); !errors.Is(err, engine.ErrDown) {
		t.Errorf("receiving: %v", err)
	}
	until(t, "the sender to know", func() bool { return !e.a.Info().Up })
	e.send(udp(t, 5, 20))
	var s engine.PortStats
	if e.a.Stats(&s); s.Tx.Drops[engine.DropDown] != 1 || e.b.Info().Up {
		t.Errorf("drops: %v", &s.Tx.Drops)
	}
}

// Frames without a receive are the card's losses; those without memory say so.
func TestDry(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	q := e.rx(engine.RxSpec{Depth: 4})
	f := udp(t, 5, 20)
	for range 10 {
		e.send(f)
	}
	var s engine.PortStats
	if e.b.Stats(&s); s.Drops[engine.DropNIC] != 6 {
		t.Errorf("drops: %v", &s.Drops)
	}
	e.take(q)
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	e.rx(engine.RxSpec{Depth: 4, Pools: []*mem.Pool{pool(t, 2048, 4)}})
	q = e.b.rx.Live()[0]
	for range 4 {
		e.send(f)
	}
	held := e.take(q)
	e.send(f)
	if e.b.Stats(&s); s.Drops[engine.DropNoBuffers] != 1 || s.Drops[engine.DropNIC] != 6 {
		t.Errorf("drops: %v", &s.Drops)
	}
	held.Release()
	e.take(q)
	e.send(f)
	e.wants(q, f)
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	// A pool that is smaller than the queue is deep: all of it is in the card, and no
	// request to it failed since.
	e.rx(engine.RxSpec{Depth: 8, Pools: []*mem.Pool{pool(t, 2048, 4)}})
	for i := range 6 {
		e.send(f)
		if e.b.Stats(&s); s.Drops[engine.DropNoBuffers] != 1+uint64(max(i-3, 0)) || s.Drops[engine.DropNIC] != 6 {
			t.Errorf("drops of a pool that is too small, after %d frames: %v", i+1, &s.Drops)
		}
	}
}

// An owner that takes no more than its burst holds also posts receives again: else the card would
// run dry under load.
func TestFullBurst(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	q := e.rx(engine.RxSpec{Depth: 8})
	f := udp(t, 5, 20)
	b := burst.New(4)
	for range 20 {
		for range 4 {
			e.send(f)
		}
		if n, err := q.TryRecv(b); n != 4 || err != nil {
			t.Fatal(n, err)
		}
		b.Release()
	}
	var s engine.PortStats
	if e.b.Stats(&s); s.Drops.Total() != 0 {
		t.Errorf("drops: %v", &s.Drops)
	}
}
