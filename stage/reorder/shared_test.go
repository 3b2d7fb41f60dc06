package reorder

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// TestShared: packets of one plan come by three queues, each with a goroutine of its own, and every
// batch leaves whole by the first, in order.
func TestShared(t *testing.T) {
	const queues, per, batches = 3, 16, 200
	plan, err := Share(Plan{Name: "shared", Flows: []uint32{7}, Sequence: Field{0, 32}, PerBatch: per, Offset: 8,
		Window: 64, Pool: newPool(t, "batches", per*4, 128)})
	if err != nil {
		t.Fatal(err)
	}
	var feeds [queues]*feed
	var stages [queues]*Stage
	for i := range queues {
		feeds[i] = newFeed(t, 64)
		if stages[i], err = NewShared(feeds[i], engine.StageSpec{}, plan); err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	var got []result
	passed := 0
	const chunk = per * 20 // no queue is further ahead than the window
	for from := uint32(0); from < per*batches; from += chunk {
		for n := from; n < from+chunk; n++ { // each queue keeps the order, and some packets pass
			f := feeds[r.IntN(queues)]
			f.put(n, binary.BigEndian.AppendUint32(nil, n*3))
			if n%50 == 0 {
				f.queued = append(f.queued, packet{flow: 9, data: []byte("passes")})
			}
		}
		var all sync.WaitGroup
		var mu sync.Mutex // of what was received
		for i := range queues {
			all.Go(func() {
				b := burst.New(8)
				for n := 1; n > 0; {
					var err error
					if n, err = stages[i].TryRecv(b); err != nil {
						t.Errorf("queue %d: %v", i, err)
					}
					mu.Lock()
					for k := range b.Len() {
						if x := Of(b, k); x != nil && i == 0 {
							got = append(got, result{*x, bytes.Clone(b.Bytes(k, 0))})
						} else if x != nil {
							t.Errorf("a batch leaves by queue %d", i)
						} else {
							passed++
						}
					}
					mu.Unlock()
					b.Release()
					n += len(feeds[i].queued)
				}
			})
		}
		all.Wait()
		more, _, _ := drain(t, stages[0], 8)
		got = append(got, more...)
	}
	if len(got) != batches || passed != per*batches/50 {
		t.Fatalf("%d batches of %d, %d packets passed; %+v", len(got), batches, passed, stages[0].Plans())
	}
	for i, x := range got {
		if x.ID != int64(i) || !x.Whole() {
			t.Fatalf("batch %d is %+v", i, x.Batch)
		}
		for k := range per {
			if v := binary.BigEndian.Uint32(x.data[k*4:]); v != uint32(i*per+k)*3 {
				t.Fatalf("batch %d has %d at place %d", i, v, k)
			}
		}
	}
	if n := stages[1].Plans(); n != nil {
		t.Errorf("the second stage counts the plan as well: %+v", n)
	}
	for _, s := range stages {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if !plan.Closed() {
		t.Error("the plan is open behind its stages")
	}
}

// TestSharedEnds: another stage wakes the one by which batches leave; when that one ends, what is
// open leaves, and what comes later is dropped.
func TestSharedEnds(t *testing.T) {
	plan, err := Share(Plan{Name: "shared", Flows: []uint32{7}, Sequence: Field{0, 32}, PerBatch: 2, Offset: 8,
		Pool: newPool(t, "batches", 8, 16)})
	if err != nil {
		t.Fatal(err)
	}
	a, b := newFeed(t, 64), newFeed(t, 64)
	home, err := NewShared(a, engine.StageSpec{}, plan)
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewShared(b, engine.StageSpec{}, plan)
	if err != nil {
		t.Fatal(err)
	}
	w := engine.NewWaker()
	if home.Arm(w) {
		t.Fatal("there is something where nothing is")
	}
	four := []byte("four")
	b.put(0, four)
	b.put(1, four)
	b.put(2, four)
	if got, _, _ := drain(t, other, 4); got != nil {
		t.Fatalf("batches leave by the other: %+v", got)
	}
	select {
	case <-w.C():
	default:
		t.Fatal("no wake for a batch that is whole")
	}
	a.ended = engine.ErrDown
	got, _, err := drain(t, home, 4)
	if len(got) != 2 || !got[0].Whole() || got[1].Packets != 1 || !errors.Is(err, engine.ErrDown) {
		t.Fatalf("%+v, %v", got, err)
	}
	b.put(3, four)
	_, _, _ = drain(t, other, 4)
	if n := home.Plans()[0].Drops[engine.DropClosed]; n != 1 {
		t.Errorf("%d packets were dropped as closed, expected 1", n)
	}
	if _, err := NewShared(b, engine.StageSpec{}, plan); !errors.Is(err, ErrPlan) {
		t.Errorf("a stage of a plan that was closed: %v", err)
	}
	if err := errors.Join(other.Close(), home.Close()); err != nil {
		t.Error(err)
	}
}
