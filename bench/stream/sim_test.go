package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"go.uber.org/goleak"
)

// simCell is a cell of the simulator.
func simCell(size, burst int) cell {
	return cell{Engine: "sim", Protocol: "udp", Size: size, Burst: burst, Queues: 1, Flows: 1, Seed: 42}
}

// virtual runs f in virtual time with both ends on a cable with those faults in the direction of
// the packets.
func virtual(t *testing.T, c cell, f sim.Faults, do func(t *testing.T, g *rig, cable *sim.Link, net *sim.Network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n, err := sim.NewNetwork(sim.Options{Seed: 7})
		if err != nil {
			t.Fatal(err)
		}
		cable, err := n.Link("from", "to")
		if err == nil {
			err = cable.SetFaultsFrom("from", f)
		}
		if err != nil {
			t.Fatal(err)
		}
		g := openBoth(t, c, &place{address: "from", engine: n}, &place{address: "to", engine: n}, 2)
		g.settle = 20 * time.Millisecond
		do(t, g, cable, n)
		l := n.Ledger()
		if err := l.Err(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(g.close(), n.Close()); err != nil {
			t.Error(err)
		}
	})
}

// openBoth opens both ends in this process.
func openBoth(t *testing.T, c cell, from, to *place, senders int) *rig {
	t.Helper()
	if err := c.check(); err != nil {
		t.Fatal(err)
	}
	k := newClock()
	h, at, err := openFar(t.Context(), to, &c, k)
	if err != nil {
		t.Fatal(err)
	}
	n, err := openNear(t.Context(), from, at, &c, k, senders)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{cell: c, c: k, far: h, near: n, timed: true, settle: 50 * time.Millisecond}
}

func (g *rig) must(t *testing.T, o order) *Trial {
	t.Helper()
	x, err := g.trial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if x.Sent != x.Received+x.Lost {
		t.Fatalf("sent %d, received %d, lost %d", x.Sent, x.Received, x.Lost)
	}
	return x
}

// wire is the ledger of the direction of the packets.
func wire(t *testing.T, n *sim.Network) *sim.Entry {
	t.Helper()
	l := n.Ledger()
	e := l.Find("wire", "from>to")
	if e == nil {
		t.Fatalf("no wire:\n%v", l)
	}
	return e
}

// Lost and duplicated packets are exactly those that the simulator has lost and duplicated.
func TestCountsAreExact(t *testing.T) {
	c := simCell(256, 8)
	c.Queues, c.Flows = 3, 2
	virtual(t, c, sim.Faults{Loss: 0.03, Duplicate: 0.02, Delay: time.Millisecond},
		func(t *testing.T, g *rig, _ *sim.Link, n *sim.Network) {
			var before sim.Entry
			for range 3 {
				x := g.must(t, order{rate: 20000, duration: 500 * time.Millisecond})
				e := wire(t, n)
				if lost := e.Drops[engine.DropInjected] - before.Drops[engine.DropInjected]; x.Lost != lost ||
					lost == 0 {
					t.Errorf("lost %d, the wire %d", x.Lost, lost)
				}
				if x.Duplicates != e.Made-before.Made || x.Duplicates == 0 {
					t.Errorf("%d duplicates, the wire made %d", x.Duplicates, e.Made-before.Made)
				}
				if x.Sent != e.In-before.In || x.Sent < 9900 || x.Sent > 10100 || !x.Complete {
					t.Errorf("sent %d, the wire got %d; want 10000", x.Sent, e.In-before.In)
				}
				if x.Damaged+x.Foreign+x.Stale+x.Reordered != 0 || x.Arrived != x.Received+x.Duplicates ||
					x.Checked != (x.Received+x.Duplicates)*uint64(PayloadLen(256)) {
					t.Errorf("%+v", x.Counts)
				}
				if x.Latency.Count != x.Received {
					t.Errorf("%d latencies of %d packets", x.Latency.Count, x.Received)
				}
				sum := uint64(0)
				for q, n := range x.Queues {
					if sum += n; n < x.Arrived/4 {
						t.Errorf("queue %d got %d of %d", q, n, x.Arrived)
					}
				}
				if len(x.Queues) != 3 || sum != x.Arrived {
					t.Errorf("queues: %v of %d", x.Queues, x.Arrived)
				}
				before = *e
			}
		})
}

// Packets that others have passed are counted as reordered, and none else.
func TestReorderIsCounted(t *testing.T) {
	virtual(t, simCell(64, 1), sim.Faults{Reorder: 0.05, ReorderBy: 300 * time.Microsecond},
		func(t *testing.T, g *rig, _ *sim.Link, n *sim.Network) {
			x := g.must(t, order{rate: 10000, duration: time.Second})
			// No packet passes one that is late among the last three.
			if w := wire(t, n).Reordered; x.Reordered > w || x.Reordered+3 < w || w < 300 || x.Lost != 0 ||
				x.Duplicates != 0 {
				t.Errorf("%d reordered, the wire %d; %+v", x.Reordered, w, x.Counts)
			}
		})
}

// Wrong bytes are found wherever they are behind the addresses, and what is damaged is not
// received.
func TestDamageIsFound(t *testing.T) {
	virtual(t, simCell(9000, 4), sim.Faults{Corrupt: 0.1}, func(t *testing.T, g *rig, _ *sim.Link, n *sim.Network) {
		x := g.must(t, order{rate: 5000, duration: time.Second})
		w := wire(t, n).Corrupted
		// A bit in the 42 bytes before the Header, of 8996, goes unnoticed or to no queue.
		if x.Damaged+x.Foreign > w || float64(x.Damaged+x.Foreign) < 0.98*float64(w) || w < 400 ||
			x.Lost < x.Damaged+x.Foreign {
			t.Errorf("%d damaged, %d foreign, %d lost; the wire damaged %d", x.Damaged, x.Foreign, x.Lost, w)
		}
	})
}

// The search finds the rate of a bottleneck, and the trials account for what it drops.
func TestSearchFindsABottleneck(t *testing.T) {
	const size, rate = 512, 20000 // packets per second
	virtual(t, simCell(size, 4), sim.Faults{Rate: rate * 8 * (size - fcsLen), Queue: 16},
		func(t *testing.T, g *rig, _ *sim.Link, n *sim.Network) {
			f, err := Search(t.Context(), SearchOptions{Low: 100, High: 50000, Resolution: 0.01},
				func(ctx context.Context, rate float64) (Outcome, error) {
					x, err := g.trial(ctx, order{rate: rate, duration: 100 * time.Millisecond})
					if err != nil {
						return Outcome{}, err
					}
					return judged(x), nil
				})
			// The queue of 16 frames lets a trial of 2000 be faster by so much.
			if err != nil || f.Limit != ByLoss || f.Rate < rate-500 || f.Rate > rate*(1+16.0/2000)+500 {
				t.Errorf("%+v, %v; want %d packets/s", f, err, rate)
			}
			before := wire(t, n).Drops[engine.DropQueueFull]
			x := g.must(t, order{rate: 40000, duration: 200 * time.Millisecond})
			if lost := wire(t, n).Drops[engine.DropQueueFull] - before; x.Lost != lost ||
				math.Abs(float64(x.Lost)/float64(x.Sent)-0.5) > 0.01 {
				t.Errorf("lost %d of %d at twice the rate, the wire %d", x.Lost, x.Sent, lost)
			}
			var sum tally
			sum.add(x)
			if want := fmt.Sprintf("queue-full %d", x.Lost); !strings.Contains(strings.Join(sum.remarks(), "; "),
				want) {
				t.Errorf("%q; want %s", sum.remarks(), want)
			}
			// A burst fits when the queue holds all of it.
			longest, _, err := BackToBack(t.Context(), 1000,
				func(ctx context.Context, packets uint64) (Outcome, error) {
					x, err := g.trial(ctx, order{packets: packets, duration: 50 * time.Millisecond})
					if err != nil {
						return Outcome{}, err
					}
					return judged(x), nil
				})
			if err != nil || longest != 16 {
				t.Errorf("longest burst %d, %v; want 16", longest, err)
			}
		})
}

// Latency is the delay of the wire; there and back it is twice.
func TestLatencyIsTheDelay(t *testing.T) {
	const delay = 3 * time.Millisecond
	for _, back := range []bool{false, true} {
		c := simCell(128, 1)
		c.Reflect = back
		virtual(t, c, sim.Faults{Delay: delay}, func(t *testing.T, g *rig, cable *sim.Link, n *sim.Network) {
			want := delay
			if back {
				if err := cable.SetFaultsFrom("to", sim.Faults{Delay: 2 * delay, Loss: 0.1}); err != nil {
					t.Fatal(err)
				}
				want = 3 * delay
			}
			x := g.must(t, order{rate: 1000, duration: time.Second})
			if x.Latency.Min != uint64(want) || x.Latency.Max != uint64(want) || x.Latency.Count != x.Received ||
				!x.Timed {
				t.Errorf("latency %d to %d ns of %d packets; want %d", x.Latency.Min, x.Latency.Max, x.Latency.Count,
					want)
			}
			l := n.Ledger()
			if lost := l.Find("wire", "to>from").Drops[engine.DropInjected]; x.LostFar != 0 || x.Lost != lost ||
				(lost > 50) != back {
				t.Errorf("lost %d, of them %d there; the way back lost %d", x.Lost, x.LostFar, lost)
			}
		})
	}
}

// A sender that was held up sends late, and its packets count as late from when they were due:
// nothing is left out.
func TestStallsCount(t *testing.T) {
	c := simCell(128, 1)
	virtual(t, c, sim.Faults{}, func(t *testing.T, g *rig, _ *sim.Link, _ *sim.Network) {
		const stall = 100 * time.Millisecond
		x0 := g.near.gens[0].streams[0]
		x0.tx = &stalling{TxQueue: x0.tx, at: 100, d: stall}
		x := g.must(t, order{rate: 1000, duration: time.Second})
		if x.Sent != 1000 || x.Lost != 0 || !x.Complete {
			t.Errorf("sent %d, lost %d", x.Sent, x.Lost)
		}
		// Packets 100 to 199 were due during the stall.
		if late := 1000 - x.Latency.Counts[0]; late < 99 || late > 101 || x.Latency.Max != uint64(stall) ||
			x.Behind < stall-time.Millisecond {
			t.Errorf("%d packets are late, by up to %d ns; behind by %v", late, x.Latency.Max, x.Behind)
		}
	})
}

// stalling is a queue that once waits before it sends.
type stalling struct {
	engine.TxQueue
	at, n int
	d     time.Duration
}

func (s *stalling) Send(b burstOf) error {
	if s.n++; s.n == s.at+1 {
		<-time.After(s.d)
	}
	return s.TxQueue.Send(b)
}

// A rate is kept to the packet, whatever the burst.
func TestScheduleIsExact(t *testing.T) {
	for _, burst := range []int{1, 7, 32, 512} {
		virtual(t, simCell(64, burst), sim.Faults{}, func(t *testing.T, g *rig, _ *sim.Link, _ *sim.Network) {
			x := g.must(t, order{rate: 12345, duration: 400 * time.Millisecond})
			if d := int64(x.Sent) - 4938; d < -int64(burst) || d > int64(burst) || x.Lost != 0 ||
				math.Abs(x.Offered()-12345) > 2.5*float64(burst)+3 {
				t.Errorf("burst %d: sent %d in %v", burst, x.Sent, x.Took)
			}
		})
	}
}

// Packets of a trial before are not counted in the next.
func TestStalePackets(t *testing.T) {
	virtual(t, simCell(64, 1), sim.Faults{Delay: 100 * time.Millisecond},
		func(t *testing.T, g *rig, _ *sim.Link, _ *sim.Network) {
			x := g.must(t, order{rate: 1000, duration: 50 * time.Millisecond}) // settles before they come
			if x.Received != 0 || x.Lost != x.Sent {
				t.Fatalf("%+v", x.Counts)
			}
			stale := x.Sent
			g.settle = 200 * time.Millisecond
			x = g.must(t, order{rate: 1000, duration: 50 * time.Millisecond})
			if x.Stale != stale || x.Lost != 0 {
				t.Errorf("%+v", x.Counts)
			}
		})
}

// A cut cable is loss, and no hang; a closed port is an error.
func TestDeadEnds(t *testing.T) {
	virtual(t, simCell(64, 8), sim.Faults{}, func(t *testing.T, g *rig, cable *sim.Link, _ *sim.Network) {
		cable.SetUp(false)
		x := g.must(t, order{rate: 1000, duration: 100 * time.Millisecond})
		if x.Lost != x.Sent || x.Sent == 0 {
			t.Errorf("%+v", x)
		}
		cable.SetUp(true)
		g.far.(*localReceiver).ports[0].Close()
		if _, err := g.trial(t.Context(), order{rate: 1000, duration: 100 * time.Millisecond}); !errors.Is(err,
			engine.ErrClosed) {
			t.Errorf("the receiver's port is closed: %v", err)
		}
		g.near.ports[0].Close()
		if _, err := g.trial(t.Context(), order{rate: 1000, duration: 100 * time.Millisecond}); !errors.Is(err,
			engine.ErrClosed) {
			t.Errorf("the sender's port is closed: %v", err)
		}
	})
}

// An engine that takes no packets any more is an error after a while.
func TestStuckSender(t *testing.T) {
	virtual(t, simCell(64, 8), sim.Faults{}, func(t *testing.T, g *rig, _ *sim.Link, _ *sim.Network) {
		x := g.near.gens[0].streams[0]
		x.tx = &full{x.tx}
		began := time.Now()
		_, err := g.trial(t.Context(), order{duration: 100 * time.Millisecond})
		if !errors.Is(err, engine.ErrFull) || time.Since(began) > stuckFor+time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err = g.trial(ctx, order{duration: 100 * time.Millisecond}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

type full struct{ engine.TxQueue }

func (*full) Alloc(burstOf, int, int) (int, error) { return 0, engine.ErrFull }

// The loops allocate nothing for a packet: a trial of ten times as many costs the same.
func TestPacketsDoNotAllocate(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithInvariants, "with -tags invariants each burst notes who has it")
	n, err := sim.NewNetwork(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.Link("from", "to"); err != nil {
		t.Fatal(err)
	}
	c := simCell(512, 16)
	c.Workload, c.Reflect = FFT, true
	g := openBoth(t, c, &place{address: "from", engine: n}, &place{address: "to", engine: n}, 1)
	defer func() {
		if err := g.close(); err != nil {
			t.Error(err)
		}
	}()
	cost := func(packets uint64) float64 {
		return testing.AllocsPerRun(5, func() { g.must(t, order{packets: packets, duration: 10 * time.Millisecond}) })
	}
	cost(1000)
	if few, many := cost(100), cost(5000); many > few+40 {
		t.Errorf("trials of 100 packets: %v allocations, of 5000: %v", few, many)
	}
}

func TestMain(m *testing.M) {
	serveRole()
	goleak.VerifyTestMain(m)
}
