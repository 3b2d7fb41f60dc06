package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// next asks for the lowest number that is free.
const next = -1

// Ids of queues: asked for, chosen, taken, given back, and the one error for each condition.
func TestRxSetIDs(t *testing.T) {
	p := new(toyPort)
	pool := []*mem.Pool{newPool(t, 16)}
	open := map[int]*toyRx{}
	for i, c := range []struct {
		ask, id int
		err     error
		close   bool // the queue with that id first
	}{
		{ask: next, id: 0},
		{ask: 0, err: ErrExists},
		{ask: 2, id: 2},
		{ask: 7, id: 7}, // an id may be larger than the number of queues
		{ask: next, err: ErrInUse},
		{ask: 1, err: ErrInUse},
		{ask: 2, err: ErrExists},
		{ask: 64, err: ErrInvalid},
		{ask: -2, err: ErrInvalid},
		{ask: next, id: 2, close: true}, // the lowest but 0 and 1
		{ask: next, id: 0, close: true},
	} {
		if c.close {
			if err := open[c.id].Close(); err != nil {
				t.Fatal(err)
			}
			if c.id == 2 {
				c.id = 1
			}
		}
		q, err := p.add(RxSpec{ID: Queue(c.ask), Pools: pool}, plainToy)
		if !errors.Is(err, c.err) || err == nil && q.ID() != c.id {
			t.Fatalf("row %d: asked for %d: %v, %v", i, c.ask, q, err)
		}
		if err == nil {
			open[c.id] = q
		}
	}
	last := -1
	for _, q := range p.rx.Live() {
		if q.ID() <= last || p.rx.Find(q.ID()) != q {
			t.Errorf("queue %d behind %d, found %v", q.ID(), last, p.rx.Find(q.ID()))
		}
		last = q.ID()
	}
	if p.rx.Find(5) != nil {
		t.Error("found a queue that is not there")
	}
	live, first := p.rx.End()
	if _, again := p.rx.End(); len(live) != toyMost || !first || again {
		t.Errorf("%d queues, %v, %v", len(live), first, again)
	}
	if _, err := p.add(RxSpec{Pools: pool}, plainToy); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	for _, q := range live {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(p.rx.Live()) != 0 {
		t.Error("queues are live behind the end")
	}
}

// The counts of a port are those of its queues that are and were, whatever comes in between.
func TestRxSetSum(t *testing.T) {
	p := new(toyPort)
	pool := []*mem.Pool{newPool(t, 64)}
	for i := range uint64(4) {
		q := newToy(t, p, RxSpec{ID: Queue(int(i) % 2), Pools: pool}, plainToy)
		p.arrive(q.ID(), i)
		recv(t, q, burst.New(1), i)
		q.Drop(DropBadFrame, 3)
		sum := func() (s RxStats) {
			p.rx.Lock()
			defer p.rx.Unlock()
			p.rx.Sum(&s)
			return s
		}
		before := sum()
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		if after := sum(); after != before || after.Packets != i+1 || after.Drops[DropBadFrame] != 3*(i+1) {
			t.Errorf("%+v before the queue was closed, %+v after", before, after)
		}
	}
	p.rx.Lock()
	defer p.rx.Unlock()
	p.rx.Past().Drops[DropNIC] = 5
	var s RxStats
	if p.rx.Sum(&s); s.Drops[DropNIC] != 5 {
		t.Errorf("%+v", s)
	}
}

// TxID numbers transmit queues in the same way.
func TestTxID(t *testing.T) {
	open := []*toyRx{}
	for _, c := range []struct {
		ask, id int
		err     error
	}{{next, 0, nil}, {0, 0, ErrExists}, {1, 1, nil}, {next, 0, ErrInUse}, {64, 0, ErrInvalid}} {
		id, err := TxID(Queue(c.ask), 2, open)
		if !errors.Is(err, c.err) || err == nil && id != c.id {
			t.Fatalf("asked for %d: %d, %v", c.ask, id, err)
		}
		if err == nil {
			q := new(toyRx)
			q.Start(RxSpec{ID: Queue(id)}, q)
			open = append(open, q)
		}
	}
}

// canned is an engine of which only Capabilities are known.
type canned struct {
	Engine
	can Capabilities
}

func (canned) Name() string                 { return "canned" }
func (c canned) Capabilities() Capabilities { return c.can }

// Every condition of a receive queue's specification has one error, before the port is open and
// when the queue is added.
func TestCheckRx(t *testing.T) {
	one, two := []*mem.Pool{newPool(t, 4)}, []*mem.Pool{newPool(t, 4), newPool(t, 4)}
	host := []mem.Kind{mem.Host}
	all := Capabilities{Memory: host, Split: true, Timestamps: true, HardwareTime: true, Connections: true}
	none := Capabilities{Memory: host}
	for i, c := range []struct {
		spec RxSpec
		can  Capabilities
		err  error
	}{
		{RxSpec{Pools: one, Timestamps: true, HardwareTime: true, Conn: 1}, all, nil},
		{RxSpec{Pools: two, SplitAt: 64}, all, nil},
		{RxSpec{Pools: one, Depth: 512}, none, nil},
		{RxSpec{Pools: one, Timestamps: true, HardwareTime: true}, Capabilities{Memory: host, HardwareTime: true}, nil},
		{RxSpec{}, Capabilities{Memory: host, Pools: PoolsOptional}, nil},
		{RxSpec{}, all, ErrInvalid},
		{RxSpec{Pools: []*mem.Pool{nil}}, all, ErrInvalid},
		{RxSpec{Pools: append(two, one...)}, all, ErrInvalid},
		{RxSpec{Pools: one, Depth: -1}, all, ErrInvalid},
		{RxSpec{Pools: one, Depth: 513}, all, ErrInvalid},
		{RxSpec{Pools: one, SplitAt: 1}, all, ErrInvalid},
		{RxSpec{Pools: two, SplitAt: 65}, all, ErrInvalid},
		{RxSpec{Pools: two, SplitAt: -1}, all, ErrInvalid},
		{RxSpec{Pools: one, Options: 7}, all, ErrInvalid},
		{RxSpec{Pools: two}, none, ErrUnsupported},
		{RxSpec{Pools: one, Conn: 1}, none, ErrUnsupported},
		{RxSpec{Pools: one, Timestamps: true}, none, ErrUnsupported},
		{RxSpec{Pools: one, HardwareTime: true}, Capabilities{Memory: host, Timestamps: true}, ErrUnsupported},
	} {
		spec := c.spec
		c.can.RxDepth = 512
		err := CheckRx(&spec, &c.can)
		c.can.RxQueues = 64
		_, found, failed := Check(canned{can: c.can}, &Ask{Rx: []RxAsk{{c.spec, poolSpecs(c.spec.Pools)}}})
		if told := c.err != nil && c.spec.Options == nil; failed != nil || (len(found) == 1) != told || told &&
			(found[0].Error() != "canned: "+err.Error() || !strings.HasPrefix(found[0].Path, "rx.")) {
			t.Errorf("row %d: before the port is open %v, %v; when the queue is added %v", i, found, failed, err)
		}
		if !errors.Is(err, c.err) {
			t.Errorf("row %d: %v, expected %v", i, err, c.err)
		} else if err == nil && (spec.Depth < 1 || spec.Depth > 512) {
			t.Errorf("row %d: depth %d", i, spec.Depth)
		}
	}
}
