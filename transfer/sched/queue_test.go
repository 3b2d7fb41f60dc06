package sched

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

const (
	quantum = 1 << 16
	all     = ^uint64(0) // classes
)

// work is an item with its size, as the model knows it.
type work struct {
	it    Item[int]
	left  uint64
	class int
	flow  *testFlow
}

type testFlow struct {
	f     Flow[int]
	class int
	want  []int // items in order
}

// Whatever is pushed, removed, put back and served in whatever order: everything is served once, in
// the order of its flow, never more than granted, and the queue refers to nothing when it is empty.
func TestQueueAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		classes := rapid.IntRange(1, 3).Draw(t, "classes")
		weights := make([]uint64, classes)
		for i := range weights {
			weights[i] = rapid.Uint64Range(1, 20).Draw(t, "weight")
		}
		q := New[int](quantum, weights...)
		flows := make([]*testFlow, rapid.IntRange(1, 8).Draw(t, "flows"))
		for i := range flows {
			flows[i] = &testFlow{class: i % classes}
		}
		var made []*work
		check := func() {
			n, busy := 0, 0
			for _, f := range flows {
				n += len(f.want)
				if len(f.want) > 0 {
					busy++
				}
				k := 0
				for it := f.f.head; it != nil; it = it.next {
					if k >= len(f.want) || it.Value != f.want[k] || !it.Queued() {
						t.Fatalf("item %d of a flow is %d, expected %v", k, it.Value, f.want)
					}
					k++
				}
				if k != len(f.want) {
					t.Fatalf("%d items in a flow, expected %d", k, len(f.want))
				}
			}
			if q.Len() != n || q.Flows() != busy {
				t.Fatalf("%d items of %d flows, expected %d of %d", q.Len(), q.Flows(), n, busy)
			}
			if n == 0 {
				for _, f := range flows {
					if f.f.Active() {
						t.Fatal("the empty queue refers to a flow")
					}
				}
			}
			seen := 0
			q.Each(func(*Item[int]) { seen++ })
			if seen != n {
				t.Fatalf("Each met %d of %d", seen, n)
			}
		}
		serve := func(t *rapid.T) {
			it, grant := q.Next(all)
			if it == nil {
				if q.Len() > 0 {
					t.Fatalf("nothing to serve with %d items", q.Len())
				}
				return
			}
			if again, g := q.Next(all); again != it || g != grant {
				t.Fatal("asking twice gives two answers")
			}
			w := made[it.Value]
			if w.flow.want[0] != it.Value {
				t.Fatalf("item %d is not the first of its flow (%v)", it.Value, w.flow.want)
			}
			if (grant == Unlimited) != (q.Flows() == 1) || grant < quantum {
				t.Fatalf("granted %d with %d flows", grant, q.Flows())
			}
			n := min(grant, w.left)
			c := q.Took(it, n)
			if (c == 0) != (grant == Unlimited) {
				t.Fatalf("charged %d with a grant of %d", c, grant)
			}
			whole := n == w.left
			if whole {
				q.Remove(it)
				w.flow.want = w.flow.want[1:]
			}
			w.left -= n
			if rapid.IntRange(0, 9).Draw(t, "refuse") == 0 { // the path did not take it
				w.left += n
				if whole {
					q.PushFront(&w.flow.f, w.class, it, c)
					w.flow.want = append([]int{it.Value}, w.flow.want...)
				} else {
					q.Refund(it, c)
				}
				if next, _ := q.Next(all); q.Flows() == 1 && next != it {
					t.Fatal("what was put back is not the head")
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"push": func(t *rapid.T) {
				f := flows[rapid.IntRange(0, len(flows)-1).Draw(t, "flow")]
				w := &work{left: rapid.Uint64Range(0, 4*quantum).Draw(t, "bytes"), class: f.class, flow: f}
				w.it.Value = len(made)
				made = append(made, w)
				f.want = append(f.want, w.it.Value)
				q.Push(&f.f, f.class, &w.it)
			},
			"serve": serve,
			"remove": func(t *rapid.T) {
				if len(made) == 0 {
					return
				}
				w := made[rapid.IntRange(0, len(made)-1).Draw(t, "item")]
				for i, v := range w.flow.want {
					if v == w.it.Value {
						w.flow.want = append(w.flow.want[:i:i], w.flow.want[i+1:]...)
					}
				}
				q.Remove(&w.it)
				if w.it.Queued() {
					t.Fatal("removed, but queued")
				}
			},
			"drop": func(t *rapid.T) {
				f := flows[rapid.IntRange(0, len(flows)-1).Draw(t, "flow")]
				q.Drop(&f.f)
				if f.f.Active() && len(f.want) == 0 {
					t.Fatal("dropped, but active")
				}
			},
		})
		for i := 0; q.Len() > 0; i++ {
			if i > 100000 {
				t.Fatal("it does not end")
			}
			serve(t)
		}
		check()
	})
}

// backlogged is a flow that always has work, in operations of a size of its own.
type backlogged struct {
	f       Flow[int]
	it      Item[int]
	class   int
	size    func() uint64
	charged int64
	served  int
}

// Flows of one class that always have work get the same, whatever the sizes of their operations,
// and classes get by weight.
func TestFairnessBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		classes := rapid.IntRange(1, 4).Draw(t, "classes")
		weights := make([]uint64, classes)
		for i := range weights {
			weights[i] = rapid.Uint64Range(1, 32).Draw(t, "weight")
		}
		q := New[int](quantum, weights...)
		var flows []*backlogged
		for i := range rapid.IntRange(2, 12).Draw(t, "flows") {
			most := rapid.SampledFrom([]uint64{0, 1, 512, 4096, quantum - 1, quantum}).Draw(t, "most")
			b := &backlogged{class: i % classes}
			seed := uint64(i) + 1
			b.size = func() uint64 {
				seed = seed*6364136223846793005 + 1442695040888963407
				return (seed >> 33) % (most + 1)
			}
			b.it.Value = i
			flows = append(flows, b)
			q.Push(&b.f, b.class, &b.it)
		}
		newcomer := rapid.Bool().Draw(t, "newcomers")
		const q2 = quantum + OpCost
		total := make([]int64, classes)
		for step := range 3000 {
			if newcomer && step%3 == 0 { // one that is there for one operation only
				f, it := &Flow[int]{}, &Item[int]{Value: -1}
				q.Push(f, step%classes, it)
			}
			it, _ := q.Next(all)
			if it.Value < 0 {
				c := it.flow.class
				n := q.Took(it, quantum)
				for i := range q.classes {
					if &q.classes[i] == c {
						total[i] += int64(n)
					}
				}
				q.Remove(it)
				continue
			}
			b := flows[it.Value]
			n := int64(q.Took(it, b.size()))
			b.charged += n
			b.served++
			total[b.class] += n
			// It has the next one ready at once, sometimes as an item of its own.
			if step%2 == 0 {
				again := &Item[int]{Value: it.Value}
				q.Push(&b.f, b.class, again)
				q.Remove(it)
			}
			for _, x := range flows {
				for _, y := range flows {
					if x.class == y.class && x.charged-y.charged > 3*q2 {
						t.Fatalf("step %d: two flows of class %d got %d and %d, more than %d apart", step, x.class,
							x.charged, y.charged, 3*q2)
					}
				}
			}
			for i, x := range total {
				for k, y := range total {
					if i >= len(flows) || k >= len(flows) {
						continue // without a flow that always has work
					}
					v, w := float64(weights[i]), float64(weights[k])
					if d := float64(x)/v - float64(y)/w; d > q2/v+q2/w+1 {
						t.Fatalf("step %d: classes of weights %v and %v got %d and %d: %v apart", step, v, w, x, y, d)
					}
				}
			}
		}
	})
}

// Whatever others do, one flow of the lowest class with one large item is served: all of it, within
// a number of bytes that the weights say.
func TestNobodyStarves(t *testing.T) {
	for _, how := range []string{"many large", "ever new flows", "empty operations", "higher class"} {
		t.Run(how, func(t *testing.T) {
			q := New[int](quantum, 16, 4, 1)
			victim, item := &Flow[int]{}, &Item[int]{Value: 1}
			class := 1
			if how == "higher class" {
				class = 2
			}
			q.Push(victim, class, item)
			const large = 64 * quantum
			left, others := uint64(large), uint64(0)
			var fill []*Flow[int]
			for range 8 {
				fill = append(fill, &Flow[int]{})
			}
			for step := 0; left > 0; step++ {
				switch how {
				case "many large":
					for _, f := range fill {
						if f.head == nil {
							q.Push(f, 1, &Item[int]{})
						}
					}
				case "ever new flows":
					if q.Flows() <= 16 { // more are not let in
						q.Push(&Flow[int]{}, 1, &Item[int]{})
					}
				case "empty operations":
					q.Push(fill[step%8], 1, &Item[int]{})
				case "higher class":
					q.Push(&Flow[int]{}, 0, &Item[int]{})
				}
				it, grant := q.Next(all)
				if it == item {
					n := min(grant, left)
					q.Took(it, n)
					left -= n
					continue
				}
				n := uint64(quantum)
				if how == "empty operations" {
					n = 0
				}
				others += uint64(q.Took(it, n))
				if step%3 == 0 && how == "many large" { // it goes on
					continue
				}
				q.Remove(it)
			}
			// many large: 8 others. ever new: 16 others and 2Q of newcomers for each turn. empty: 8
			// others. higher: 16 to 1.
			most := map[string]uint64{"many large": 8 + 1, "ever new flows": 3 * (16 + 1), "empty operations": 8 + 1,
				"higher class": 16 + 1}[how]
			if others > most*(large+8*quantum) {
				t.Errorf("%d bytes of others went before %d of its own", others, large)
			}
		})
	}
}

// A small item that comes while large ones are under way is served next, after at most the
// operation under way.
func TestNewcomerGoesFirst(t *testing.T) {
	q := New[int](quantum, 4, 2)
	for range 10 {
		q.Push(&Flow[int]{}, 0, &Item[int]{Value: 1})
	}
	for range 100 {
		it, _ := q.Next(all)
		q.Took(it, quantum)
	}
	small := &Item[int]{Value: 2}
	q.Push(&Flow[int]{}, 0, small)
	for step := 0; ; step++ {
		it, _ := q.Next(all)
		if it == small {
			break
		}
		q.Took(it, quantum)
		if step > 2 {
			t.Fatal("a newcomer waits for all others")
		}
	}
	q.Remove(small)
	// One of another class is served next too, since that class had nothing to do.
	low := &Item[int]{Value: 3}
	q.Push(&Flow[int]{}, 1, low)
	it, _ := q.Next(all)
	q.Took(it, quantum)
	if next, _ := q.Next(all); it != low && next != low {
		t.Error("a class that had rested waits")
	}
}

// A class that cannot go on is passed over, and makes good a little of what it missed.
func TestNextPassesOver(t *testing.T) {
	q := New[int](quantum, 1, 1)
	a, b := &Item[int]{Value: 1}, &Item[int]{Value: 2}
	q.Push(&Flow[int]{}, 0, a)
	q.Push(&Flow[int]{}, 1, b)
	for range 100 {
		it, grant := q.Next(2)
		if it != b || grant != quantum {
			t.Fatal("a class that is passed over was served")
		}
		q.Took(it, quantum)
	}
	if it, _ := q.Next(0); it != nil {
		t.Fatal("no class may go on, but one did")
	}
	row := 0
	for ; ; row++ {
		it, _ := q.Next(all)
		if it == b {
			break
		}
		q.Took(it, quantum)
	}
	if row < lag || row > lag+1 {
		t.Errorf("%d in a row make good what was missed, expected about %d", row, lag)
	}
}

func TestQueueAllocatesNothing(t *testing.T) {
	q := New[int](quantum, 4, 2, 1)
	flows, items := make([]Flow[int], 64), make([]Item[int], 64)
	step := func() {
		for i := range flows {
			q.Push(&flows[i], i%3, &items[i])
		}
		for q.Len() > 0 {
			it, _ := q.Next(all)
			c := q.Took(it, 4096)
			q.Refund(it, c)
			q.Took(it, 4096)
			q.Remove(it)
		}
	}
	step()
	if n := testing.AllocsPerRun(100, step); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkQueue(b *testing.B) {
	for _, n := range []int{1, 100, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			q := New[int](quantum, 4, 2, 1)
			flows, items := make([]Flow[int], n), make([]Item[int], n)
			for i := range flows {
				q.Push(&flows[i], i%3, &items[i])
			}
			b.ReportAllocs()
			for b.Loop() {
				it, _ := q.Next(all)
				q.Took(it, quantum)
			}
		})
	}
}
