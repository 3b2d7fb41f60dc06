package sched

import (
	"errors"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
	"pgregory.net/rapid"
)

// Over a long time exactly rate*time+burst bytes pass, to the byte; in between never more.
func TestRateIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSec := rapid.Uint64Range(1, 20e9).Draw(t, "rate")
		burst := rapid.Uint64Range(128, 1<<24).Draw(t, "burst") // more than comes in a few nanoseconds
		start := rapid.Int64Range(0, 1<<40).Draw(t, "start")
		r := NewRate(&Limits{Rate: perSec, Burst: burst}, start)
		now, passed := start, uint64(0)
		for range 300 {
			n := rapid.Uint64Range(1, burst/2).Draw(t, "n")
			now += int64(Reserve(now, n, r))
			passed += n
			// passed <= burst + rate * elapsed, and what waits has no more than one nanosecond of
			// slack.
			most := new(big.Int).Mul(new(big.Int).SetUint64(perSec), big.NewInt(now-start))
			most.Div(most, big.NewInt(1e9)).Add(most, new(big.Int).SetUint64(burst))
			if new(big.Int).SetUint64(passed).Cmp(most) > 0 {
				t.Fatalf("%d bytes after %d ns, at most %v", passed, now-start, most)
			}
			slack := new(big.Int).SetUint64(passed + perSec/1e9 + 1)
			if now > start && slack.Cmp(most) < 0 {
				t.Fatalf("only %d bytes after %d ns of waiting, %v may", passed, now-start, most)
			}
		}
	})
}

// Reservations are served in the order of asking, also a large one beside small ones that come
// again and again; together they keep to the limit.
func TestReserve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSec := rapid.Uint64Range(1000, 1e9).Draw(t, "rate")
		shared := NewRate(&Limits{Rate: perSec, Burst: 4096}, 0)
		limits := [2][]*Rate{{shared}, {shared}}
		if rapid.Bool().Draw(t, "own") {
			limits[0] = []*Rate{NewRate(&Limits{Rate: perSec/2 + 1, Burst: 4096}, 0), shared}
		}
		ask := [2]uint64{1, rapid.Uint64Range(1, 100_000).Draw(t, "n")}
		var next [2]int64 // when each may go
		var got [2]uint64
		last := int64(0)
		for step := range 200 {
			who := 0
			if next[1] < next[0] || next[1] == next[0] && step%2 == 1 {
				who = 1
			}
			now := next[who]
			if now < last {
				t.Fatal("time goes back")
			}
			last = now
			got[who] += ask[who]
			next[who] = now + int64(Reserve(now, ask[who], limits[who]...))
			if sum := float64(got[0] + got[1]); sum > float64(perSec)*float64(now)/1e9+4096+2*float64(ask[1])+2 {
				t.Fatalf("%v bytes after %d ns", sum, now)
			}
		}
		if got[0] == 0 || got[1] == 0 {
			t.Errorf("one got nothing: %v", got)
		}
	})
	a := NewRate(&Limits{Rate: 1e9, Burst: 1000}, 0)
	b := NewRate(&Limits{Rate: 1000, Burst: 1000}, 0)
	if Reserve(0, 1000, a, b) != 0 {
		t.Fatal("a full bucket makes wait")
	}
	if w := Reserve(0, 1000, a, b); w != time.Second {
		t.Errorf("waits %v", w)
	}
	if w := Reserve(0, 500, a, b); w != 1500*time.Millisecond {
		t.Errorf("who comes later waits %v", w)
	}
	if Reserve(0, 1) != 0 {
		t.Error("no limit limits")
	}
	// More than the burst passes when the bucket is full, and is paid for.
	c := NewRate(&Limits{Rate: 1000, Burst: 100}, 0)
	if w := Reserve(0, 1100, c); w != 0 {
		t.Errorf("a large operation waits %v", w)
	}
	if w := Reserve(0, 100, c); w != 1100*time.Millisecond {
		t.Errorf("what follows it waits %v", w)
	}
	if w := c.Spend(0, 900); w != 2001*time.Millisecond {
		t.Errorf("after what has passed already the next byte waits %v", w)
	}
}

func TestRateAtItsLargest(t *testing.T) {
	if r := NewRate(&Limits{Rate: MaxRate}, 0); r.Burst() != maxBurst {
		t.Errorf("a burst of %d bytes", r.Burst())
	}
}

// Counts are those of a naive model, whatever is admitted, refused and given back, at a node with
// three peers.
func TestAccountAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(whose string) Limits {
			return Limits{Transfers: rapid.IntRange(0, 6).Draw(t, whose),
				Bytes:   rapid.Uint64Range(0, 100).Draw(t, whose),
				Largest: rapid.Uint64Range(0, 50).Draw(t, whose), Memory: rapid.Uint64Range(0, 100).Draw(t, whose)}
		}
		limits := []Limits{draw("node"), draw("a"), draw("b"), draw("c")}
		accounts := []*Account{NewAccount("node", limits[0], nil)}
		for i := 1; i < 4; i++ {
			accounts = append(accounts, NewAccount("peer", limits[i], accounts[0]))
		}
		model := make([]Use, 4)
		type held struct {
			g     Grant
			who   int
			bytes uint64
		}
		var all []*held
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				for i, a := range accounts {
					if u := a.Use(); u.Transfers != model[i].Transfers || u.Bytes != model[i].Bytes ||
						u.Memory != model[i].Memory {
						t.Fatalf("account %d has %+v, expected %+v", i, u, model[i])
					}
				}
			},
			"admit": func(t *rapid.T) {
				who, n := rapid.IntRange(1, 3).Draw(t, "who"), rapid.Uint64Range(0, 60).Draw(t, "bytes")
				var want error
				for _, i := range []int{who, 0} {
					if l := limits[i]; want == nil && l.Largest > 0 && n > l.Largest {
						want = ErrTooLarge
					} else if want == nil && l.Bytes > 0 && n > l.Bytes {
						want = ErrTooManyBytes
					}
				}
				for _, i := range []int{who, 0} {
					if l := limits[i]; want == nil && l.Transfers > 0 && model[i].Transfers >= l.Transfers {
						want = ErrTooMany
					} else if want == nil && l.Bytes > 0 && model[i].Bytes+n > l.Bytes {
						want = ErrTooManyBytes
					}
				}
				g, err := accounts[who].Admit(n, tensor.Invalid)
				if !errors.Is(err, want) || g.Held() != (want == nil) {
					t.Fatalf("%d bytes: %v, expected %v", n, err, want)
				}
				if want == nil {
					all = append(all, &held{g, who, n})
					for _, i := range []int{who, 0} {
						model[i].Transfers++
						model[i].Bytes += n
					}
				}
			},
			"memory": func(t *rapid.T) {
				who, n := rapid.IntRange(1, 3).Draw(t, "who"), rapid.Uint64Range(0, 60).Draw(t, "bytes")
				fits := true
				for _, i := range []int{who, 0} {
					fits = fits && (limits[i].Memory == 0 || model[i].Memory+n <= limits[i].Memory)
				}
				g, err := accounts[who].Memory(n)
				if fits != (err == nil) || err != nil && !errors.Is(err, ErrMemory) {
					t.Fatalf("%d bytes of memory: %v", n, err)
				}
				if fits {
					all = append(all, &held{g, who, n})
					model[who].Memory += n
					model[0].Memory += n
				}
			},
			"release": func(t *rapid.T) {
				if len(all) == 0 {
					return
				}
				k := rapid.IntRange(0, len(all)-1).Draw(t, "grant")
				h := all[k]
				all = slices.Delete(all, k, k+1)
				moved := h.g.Move()
				memory := moved.memory
				h.g.Release() // holds nothing
				moved.Release()
				moved.Release() // nor does it now
				for _, i := range []int{h.who, 0} {
					if memory {
						model[i].Memory -= h.bytes
					} else {
						model[i].Transfers--
						model[i].Bytes -= h.bytes
					}
				}
			},
		})
	})
}

func TestRefusalsSayWhat(t *testing.T) {
	node := NewAccount("this node", Limits{Transfers: 1, DTypes: []tensor.DType{tensor.F32}}, nil)
	a := NewAccount(`peer "x"`, Limits{Bytes: 100, Largest: 60, Memory: 10}, node)
	g, err := a.Admit(50, tensor.Invalid)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err         error
		is          error
		code        control.Code
		limit, used uint64
		text        string
	}{
		{second(a.Admit(1, tensor.Invalid)), ErrTooMany, control.TooMany, 1, 1,
			"too many transfers: 1 transfers asked for, 1 of 1 in use (limit of this node)"},
		{second(a.Admit(51, tensor.Invalid)), ErrTooManyBytes, control.TooManyBytes, 100, 50,
			`too many bytes: 51 bytes asked for, 50 of 100 in use (limit of peer "x")`},
		{second(a.Admit(61, tensor.Invalid)), ErrTooLarge, control.TooLarge, 60, 0,
			`transfer too large: a transfer of 61 bytes, at most 60 are taken (limit of peer "x")`},
		{second(a.Memory(11)), ErrMemory, control.OverBudget, 10, 0, `over budget: 11 bytes asked for, 0 of 10 in use (limit of peer "x")`},
		{second(a.Admit(1, tensor.BF16)), ErrDType, control.DType, 0, 0,
			"type of tensor not taken: a tensor of bf16, expected one of [f32] (limit of this node)"},
	} {
		var r *Refusal
		if !errors.As(c.err, &r) || !errors.Is(c.err, c.is) || r.Code != c.code || r.Limit != c.limit ||
			r.Used != c.used || r.Error() != c.text {
			t.Errorf("%v (%+v), expected %s", c.err, r, c.text)
		}
		// The error that the peer gets matches there as it does here.
		if e := control.AsError(c.err); e.Code != c.code ||
			!errors.Is(&control.Error{Code: e.Code, Remote: true}, c.is) {
			t.Errorf("%v is told as %v", c.err, e)
		}
	}
	g.Release()
	if u := node.Use(); u.Transfers != 0 || u.Bytes != 0 {
		t.Errorf("%+v", u)
	}
}

func second[T any](_ T, err error) error { return err }

func TestLimitsCheck(t *testing.T) {
	for _, l := range []Limits{{Transfers: -1}, {Rate: 1 << 58}, {Rate: 1, Burst: 1 << 41}, {Burst: 1},
		{DTypes: []tensor.DType{250}}} {
		if l.Check() == nil {
			t.Errorf("%+v was accepted", l)
		}
	}
	if err := (&Limits{Transfers: 1, Rate: 1, Burst: 1, DTypes: []tensor.DType{tensor.U8}}).Check(); err != nil {
		t.Error(err)
	}
}

// Many goroutines take and give back; nothing is lost, nothing goes beyond the limit.
func TestAccountIsSafe(t *testing.T) {
	node := NewAccount("node", Limits{Transfers: 5, Bytes: 500}, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		a := NewAccount("peer", Limits{Transfers: 2}, node)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for k := range 2000 {
				g, err := a.Admit(uint64(i*k)%200, tensor.Invalid)
				if u := node.Use(); u.Transfers > 5 || u.Bytes > 500 {
					t.Errorf("%+v", u)
				}
				if err == nil {
					g.Release()
				}
			}
			if u := a.Use(); u.Transfers != 0 || u.Bytes != 0 {
				t.Errorf("%+v", u)
			}
		}()
	}
	wg.Wait()
	if u := node.Use(); u.Transfers != 0 || u.Bytes != 0 {
		t.Errorf("%+v", u)
	}
}

func TestAdmitAllocatesNothing(t *testing.T) {
	a := NewAccount("peer", Limits{Transfers: 5, Bytes: 500}, NewAccount("node", Limits{}, nil))
	if n := testing.AllocsPerRun(100, func() {
		g, _ := a.Admit(7, tensor.Invalid)
		g.Release()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
