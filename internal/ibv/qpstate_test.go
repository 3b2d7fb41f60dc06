package ibv

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// states are those that a queue pair can be brought to.
var states = []QPState{QPReset, QPInit, QPReadyToReceive, QPReadyToSend, QPError}

// step asks for one transition.
func (e *end) step(to QPState, peer *end) error {
	switch to {
	case QPReset:
		return e.qp.Reset()
	case QPInit:
		if e.qp.spec.Type == UD {
			return e.qp.Init(InitAttr{QKey: qkey})
		}
		return e.qp.Init(InitAttr{Access: everything})
	case QPReadyToReceive:
		return e.qp.ReadyToReceive(RTRAttr{To: Address{DGID: peer.gid.Addr, SGIDIndex: uint8(e.gid.Index)},
			RemoteQPN: peer.qp.Num(), PSN: 7, PathMTU: MTU1024,
			MaxDestRdAtomic: 1, MinRNRTimer: 12})
	case QPReadyToSend:
		return e.qp.ReadyToSend(RTSAttr{PSN: 7, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 1})
	}
	return e.qp.Err()
}

// ways are how to come to each state from the reset one.
var ways = map[QPState][]QPState{
	QPReset: {}, QPInit: {QPInit}, QPReadyToReceive: {QPInit, QPReadyToReceive},
	QPReadyToSend: {QPInit, QPReadyToReceive, QPReadyToSend},
	QPError:       {QPInit, QPError},
}

// legalPairs is the specification once more, written as it is read: which states may follow.
var legalPairs = map[QPState]string{
	QPReset: "reset init", QPInit: "reset init rtr err", QPReadyToReceive: "reset rts err",
	QPReadyToSend: "reset rts err",
	QPError:       "reset err",
}

var short = map[QPState]string{QPReset: "reset", QPInit: "init", QPReadyToReceive: "rtr", QPReadyToSend: "rts",
	QPError: "err"}

// testTransitions walks all pairs of states, for all types: the legal ones happen, the others are
// errors before any call.
func testTransitions(t *testing.T, w *world) {
	for _, typ := range []QPType{RC, UC, UD} {
		ctx := w.open(t)
		peer := w.newEnd(t, ctx, options{qp: QPSpec{Type: typ}})
		e := w.newEnd(t, ctx, options{qp: QPSpec{Type: typ}})
		for _, from := range states {
			for _, to := range states {
				name := fmt.Sprintf("%v: %v to %v", typ, from, to)
				if err := e.qp.Reset(); err != nil {
					t.Fatal(name, err)
				}
				for _, s := range ways[from] {
					if err := e.step(s, peer); err != nil {
						t.Fatal(name, s, err)
					}
				}
				if s, err := e.qp.State(); s != from || err != nil {
					t.Fatalf("%s: it is in state %v, %v", name, s, err)
				}
				calls := w.calls(t, "ibv_modify_qp")
				err := e.step(to, peer)
				legal := slices.Contains(strings.Fields(legalPairs[from]), short[to])
				switch {
				case legal && err != nil:
					t.Errorf("%s: %v", name, err)
				case !legal && (!errors.Is(err, ErrState) || !strings.Contains(err.Error(), from.String()) ||
					!strings.Contains(err.Error(), to.String())):
					t.Errorf("%s: %v", name, err)
				case !legal && w.calls(t, "ibv_modify_qp") != calls:
					t.Errorf("%s: the library was asked", name)
				}
				want := from
				if legal {
					want = to
				}
				if s, err := e.qp.State(); s != want || err != nil {
					t.Errorf("%s: afterwards %v, %v", name, s, err)
				}
			}
		}
	}
}

// calls is how often the fake was called; always the same elsewhere.
func (w *world) calls(t testing.TB, name string) int {
	if !w.fake {
		return 0
	}
	return w.count(t, name)
}

// TestTransitionsComplete: the table of the package has every pair.
func TestTransitionsComplete(t *testing.T) {
	for from := range QPUnknown {
		for to := range QPUnknown {
			legal := slices.Contains(transitions[from], to)
			want := slices.Contains(strings.Fields(legalPairs[from]), short[to])
			if from == QPSQError || from == QPSQDrained {
				want = to == QPReset || to == QPReadyToSend || to == QPError
			}
			if legal != want {
				t.Errorf("%v to %v: %t", from, to, legal)
			}
		}
	}
}

// TestStateByItself: a transition finds that a queue pair has failed by itself, and the error says
// so.
func TestStateByItself(t *testing.T) {
	w := fakeWorld(t, "")
	a, b := w.pair(t, options{})
	a.send.Write(1, Signaled, b.mr.Addr(), b.mr.RKey()+1, a.mr.SGE(0, 8))
	a.post(t)
	one(t, a.wait(t, 1)[0], 1, RemAccessErr)
	err := a.qp.ReadyToSend(RTSAttr{}) // known to be ready to send
	if !errors.Is(err, ErrState) || !strings.Contains(err.Error(), `went into "error" by itself`) {
		t.Errorf("once more: %v", err)
	}
	if err := a.qp.ReadyToSend(RTSAttr{}); !errors.Is(err, ErrState) ||
		!strings.Contains(err.Error(), `in state "error"`) {
		t.Errorf("and again: %v", err)
	}
	if err := a.qp.Reset(); err != nil {
		t.Error(err)
	}
}

// testQuery: what was set is what the device tells.
func testQuery(t *testing.T, w *world) {
	a, b := w.pair(t, options{})
	q := must(a.qp.Query())(t)
	if q.State != QPReadyToSend || q.RemoteQPN != b.qp.Num() || q.SQPSN != 0x123 || q.Timeout != 14 ||
		q.RetryCount != 7 || q.RNRRetry != 7 || q.Port != 1 ||
		q.To.DGID != b.gid.Addr || int(q.To.SGIDIndex) != a.gid.Index ||
		q.PathMTU != must(a.ctx.Port(1))(t).ActiveMTU || q.MaxDestRdAtomic != 4 ||
		q.MaxRdAtomic != 4 || q.MinRNRTimer != 1 || q.SendWRs < 32 {
		t.Errorf("%+v", q)
	}
}

// TestBadAttributes: the package refuses impossible attributes before any call.
func TestBadAttributes(t *testing.T) {
	w := fakeWorld(t, "")
	ctx := w.open(t)
	e := w.newEnd(t, ctx, options{})
	good := RTRAttr{To: Address{DGID: e.gid.Addr}, RemoteQPN: 5, PathMTU: MTU1024}
	before := w.count(t, "ibv_modify_qp")
	for name, err := range map[string]error{
		"qkey":     e.qp.Init(InitAttr{QKey: 1}),
		"access":   e.qp.Init(InitAttr{Access: 1 << 6}),
		"mtu":      e.qp.ReadyToReceive(with(good, func(a *RTRAttr) { a.PathMTU = 9 })),
		"no mtu":   e.qp.ReadyToReceive(with(good, func(a *RTRAttr) { a.PathMTU = 0 })),
		"qpn":      e.qp.ReadyToReceive(with(good, func(a *RTRAttr) { a.RemoteQPN = 1 << 24 })),
		"no qpn":   e.qp.ReadyToReceive(with(good, func(a *RTRAttr) { a.RemoteQPN = 0 })),
		"psn":      e.qp.ReadyToReceive(with(good, func(a *RTRAttr) { a.PSN = 1 << 24 })),
		"rnr":      e.qp.ReadyToReceive(with(good, func(a *RTRAttr) { a.MinRNRTimer = 32 })),
		"no peer":  e.qp.ReadyToReceive(with(good, func(a *RTRAttr) { a.To = Address{} })),
		"level":    e.qp.ReadyToReceive(with(good, func(a *RTRAttr) { a.To.SL = 16 })),
		"rts psn":  e.qp.ReadyToSend(RTSAttr{PSN: 1 << 24}),
		"timeout":  e.qp.ReadyToSend(RTSAttr{Timeout: 32}),
		"retries":  e.qp.ReadyToSend(RTSAttr{RetryCount: 8}),
		"rnrretry": e.qp.ReadyToSend(RTSAttr{RNRRetry: 8}),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := w.count(t, "ibv_modify_qp"); n != before {
		t.Errorf("%d calls", n-before)
	}
	// What only the device knows is its answer, with a hint.
	if err := e.qp.ReadyToReceive(with(good, func(a *RTRAttr) {
		a.To.SGIDIndex = 200
	})); err == nil || !strings.Contains(err.Error(), "GID index") {
		t.Errorf("a GID that there is not: %v", err)
	}
}

func with[T any](v T, f func(*T)) T {
	f(&v)
	return v
}
