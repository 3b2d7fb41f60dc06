package enginetest

import (
	"slices"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// steering is what checkRules works with: three receive queues, and a sender for each class.
type steering struct {
	r       *rig
	t       testing.TB
	rules   engine.Rules
	rx      []*receiver
	senders []*sender
	sent    int
	flow    uint32 // the last one seen
}

// checkRules adds, changes and deletes rules while the port runs.
func checkRules(t testing.TB, h Harness) {
	r := newRig(t, h)
	if !r.caps.Rules || !r.caps.Frames || r.caps.RxQueues < 3 {
		t.Log("not asked: Capabilities.Rules is false, or there are no frames or too few queues")
		return
	}
	if r.B.Rules() == nil {
		t.Fatal("Capabilities.Rules is true, and Port.Rules is nil")
	}
	x := &steering{r: r, t: t}
	x.rules = r.B.Rules()
	for id := range 3 {
		v := r.rx(r.B, engine.RxSpec{ID: engine.Queue(id), Depth: 128}, 512)
		v.gaps = true
		v.see = func(b *burst.Burst, i int, _ record) { x.flow = b.Flow(i) }
		x.rx = append(x.rx, v)
	}
	first := r.tx(r.A, engine.TxSpec{Depth: 64}, 256)
	for id := range uint16(5) {
		x.senders = append(x.senders, first.as(id, id))
	}
	x.to(1, 0, 0)
	one := x.apply(flow.Add(classRule(1, 1))).IDs[0]
	x.to(1, 1, one)
	x.to(2, 0, 0)
	x.apply(flow.Replace(one, classRule(1, 2)))
	x.to(1, 2, one)

	// A batch with a bad change is no change at all.
	before := len(r.B.Rules().List())
	for _, good := range []flow.Change{flow.Add(classRule(2, 1)), flow.Delete(one),
		flow.Replace(one, classRule(1, 1))} {
		if _, err := x.rules.Apply(good, flow.Delete(1<<23)); err == nil {
			t.Error("a batch that deletes a rule which is not there: no error")
		}
		if n := len(r.B.Rules().List()); n != before {
			t.Errorf("%d rules before a batch that was refused, %d after it", before, n)
		}
	}
	x.to(1, 2, one)
	x.to(2, 0, 0)

	// Several in one batch; drop; the higher priority wins.
	drop := classRule(3, 0)
	drop.Actions = []flow.Action{{Kind: flow.Drop}}
	high := classRule(1, 0)
	high.Priority = 5
	ids := x.apply(flow.Add(drop), flow.Add(high), flow.Add(classRule(2, 1))).IDs
	x.to(3, -1, 0)
	x.to(1, 0, ids[1])
	x.to(2, 1, ids[2])
	if d := r.dropped(); d[engine.DropRule] == 0 && !h.Lossy {
		t.Errorf("packets that a rule drops are not counted as DropRule: %v", &d)
	}
	x.apply(flow.Delete(ids[1]), flow.Delete(ids[0]), flow.Delete(ids[2]))
	x.to(3, 0, 0)
	x.to(1, 2, one)

	// All senders of a class are spread, each to one queue.
	spread := classRule(4, 0)
	spread.Actions = []flow.Action{flow.Spread(0, 1, 2)}
	x.apply(flow.Add(spread))
	var used [3]bool
	for id := range uint16(24) {
		s := x.senders[0].as(100+id, 4)
		queue := -1
		for range 2 {
			at := x.send(s)
			if len(at) > 1 || queue >= 0 && len(at) == 1 && at[0] != queue {
				t.Fatalf("packets of one flow came to queues %d and %v", queue, at)
			}
			for _, queue = range at {
				used[queue] = true
			}
		}
	}
	if used != [3]bool{true, true, true} {
		t.Errorf("24 flows were spread over 3 queues, and used these: %v", used)
	}
	x.underLoad(one)
	// A rule that names a queue which is not there any more.
	x.apply(flow.Replace(one, classRule(1, 1)))
	x.to(1, 1, one)
	if err := x.rx[1].q.Close(); err != nil {
		t.Fatal(err)
	}
	dead := x.rx[1]
	x.rx[1] = nil
	x.to(1, -1, 0)
	if d := r.dropped(); d[engine.DropNoQueue] == 0 && !h.Lossy {
		t.Errorf("packets for a queue that is closed are not counted as DropNoQueue: %v", &d)
	}
	x.rx[0].n += dead.n // it cannot be asked any more
	r.balance(x.sent, x.rx[0], x.rx[2])
	x.remembered(one)
}

// remembered closes the port and demands that its rules keep what they counted, of which there is
// some for one.
func (x *steering) remembered(one uint32) {
	counted := func() map[uint32]flow.Count {
		all := map[uint32]flow.Count{}
		for _, r := range x.rules.Stats().Rules {
			all[r.ID] = r.Count
		}
		return all
	}
	before := counted()
	if before[one].Packets == 0 || before[one].Bytes == 0 {
		x.t.Errorf("rule %d took packets, and counts %+v", one, before[one])
	}
	if err := x.r.B.Close(); err != nil {
		x.t.Fatalf("closing a port with rules: %v", err)
	}
	after := counted()
	for id, n := range before {
		if now := after[id]; now.Packets < n.Packets || now.Bytes < n.Bytes {
			x.t.Errorf("rule %d counted %+v, and %+v after Close", id, n, now)
		}
	}
}

func (x *steering) apply(changes ...flow.Change) flow.Result {
	x.t.Helper()
	res, err := x.rules.Apply(changes...)
	if err != nil {
		x.t.Fatalf("changing rules: %v", err)
	}
	if len(res.IDs) != len(changes) {
		x.t.Fatalf("%d ids for %d changes", len(res.IDs), len(changes))
	}
	return res
}

// send sends a burst and returns the queues to which it came.
func (x *steering) send(s *sender) (at []int) {
	x.t.Helper()
	var before [3]int
	for i, v := range x.rx {
		if v != nil {
			before[i] = v.n
		}
	}
	lost, n := x.r.lost(), 6
	s.burstOf(n, x.r.minRecord()+20)
	x.sent += n
	x.r.eventually("a burst to arrive", func() error {
		got := 0
		for i, v := range x.rx {
			if v != nil {
				v.quietly()
				got += v.n - before[i]
			}
		}
		if uint64(got)+x.r.lost()-lost < uint64(n) {
			return engine.ErrNotReady
		}
		return nil
	})
	for i, v := range x.rx {
		if v != nil && v.n > before[i] {
			at = append(at, i)
		}
	}
	return at
}

// to sends packets of a class and demands them in one queue, with the id of the rule that sent them
// there; queue -1 is nowhere.
func (x *steering) to(class uint16, queue int, id uint32) {
	x.t.Helper()
	at := x.send(x.senders[class])
	for tries := 0; x.r.h.Lossy && len(at) == 0 && queue >= 0 && tries < 100; tries++ {
		at = x.send(x.senders[class])
	}
	switch {
	case queue < 0 && len(at) > 0 || queue >= 0 && !slices.Equal(at, []int{queue}):
		x.t.Fatalf("packets of class %d came to queues %v, expected %d", class, at, queue)
	case queue >= 0 && x.flow != id:
		x.t.Fatalf("packets of class %d have flow %d, expected %d", class, x.flow, id)
	}
}

// underLoad changes a rule again and again while its packets are on their way: each arrives in one
// queue or the other.
func (x *steering) underLoad(id uint32) {
	t := x.t
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(done)
		for i := uint16(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := x.rules.Apply(flow.Replace(id, classRule(1, 1+i&1))); err != nil {
				done <- err
				return
			}
			x.r.breathe()
		}
	}()
	lost := x.r.lost()
	for range 50 {
		for _, queue := range x.send(x.senders[1]) {
			if queue == 0 {
				t.Error("packets came to queue 0 while their rule changed between 1 and 2")
			}
		}
	}
	close(stop)
	x.r.ends("changing rules under load", done)
	if n := x.r.lost() - lost; n > 0 && !x.r.h.Lossy {
		t.Errorf("%d packets were dropped while their rule changed: %v", n, x.r.dropped())
	}
}
