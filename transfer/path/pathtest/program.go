package pathtest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/scope"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// programOps is how many operations each side performs in one random program.
const programOps = 400

// checkProgram runs random programs of all kinds of operations in both directions at once, each
// side owned by a goroutine that sleeps between events, and compares all memory with a model. A
// seed stands for the same program on every path.
//
// A side's operations touch its own local memory and the peer's exports only, so each side has a
// model of its own and the two need not agree on an order. Operations of one side that are under
// way together never conflict.
func checkProgram(t testing.TB, f Factory) {
	for _, seed := range seeds(t) {
		runProgram(t, f, seed)
		if t.Failed() {
			t.Logf("the seed of this program is %d; run it again with %s=%[1]d", seed, SeedEnv)
			return
		}
	}
}

type actor struct {
	s        *Side
	seed     uint64
	rng      *rand.Rand
	memories []*mem.Region // 0: local; then the peer's exports
	keys     []path.Key    // of memories[1:]
	model    [][]byte
	pending  map[uint64]*flying
	sent     map[uint64]bool // imms of notifications that the peer must receive
	finished *atomic.Int32
	waiter   *path.Waiter
	other    *actor
}

// flying is an operation under way: what it uses and what may come of it.
type flying struct {
	uses   []use
	bad    bool
	notify bool
	imm    uint64
	bytes  uint64
}

type use struct {
	memory int
	off, n uint64
	write  bool
}

func (u use) conflicts(v use) bool {
	return u.memory == v.memory && (u.write || v.write) && u.off < v.off+v.n && v.off < u.off+u.n
}

func runProgram(t testing.TB, f Factory, seed uint64) {
	// The pair's own cleanup checks the rest, once per program.
	scope.Run(t, func(t testing.TB) {
		p := NewPair(t, f, 24)
		var finished atomic.Int32
		var actors [2]*actor
		for i, s := range p.Sides() {
			a := &actor{s: s, seed: seed, rng: rand.New(rand.NewPCG(seed, uint64(i))), pending: map[uint64]*flying{},
				sent: map[uint64]bool{}, finished: &finished}
			a.memories = []*mem.Region{s.Region(2 << 20)}
			for _, size := range []int{1 << 20, 3 * 4096, 600_000} {
				r := s.Other().Region(size)
				a.memories = append(a.memories, r)
				a.keys = append(a.keys, s.Other().Export(r, path.Read|path.Write).Key())
			}
			for k, r := range a.memories {
				Fill(r.All().Bytes(), seed+uint64(10*i+k))
				a.model = append(a.model, bytes.Clone(r.All().Bytes()))
			}
			var err error
			if a.waiter, err = path.NewWaiter(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { a.waiter.Close() })
			actors[i] = a
		}
		actors[0].other, actors[1].other = actors[1], actors[0]
		ctx, cancel := context.WithTimeout(t.Context(), 3*p.f.Patience)
		defer cancel()
		if !p.both(func(i int, _ *Side) bool { return actors[i].run(ctx) }) {
			return
		}
		for _, a := range actors {
			p.Drive("the peer's last notifications", func() bool { return len(a.other.s.Notices) >= len(a.sent) })
			for _, n := range a.other.s.take() {
				if !a.sent[n.Imm] {
					t.Errorf("side %s: notification with imm %#x: never sent, or received twice", a.other.s.Name, n.Imm)
				}
				delete(a.sent, n.Imm)
				if !bytes.Equal(n.Msg, message(n.Imm, messageLen(n.Imm))) {
					t.Errorf("side %s: notification with imm %#x: wrong message of %d bytes", a.other.s.Name, n.Imm,
						len(n.Msg))
				}
			}
			if len(a.sent) > 0 {
				t.Errorf("side %s: %d notifications of completed operations never arrived", a.other.s.Name, len(a.sent))
			}
			for k := range a.memories {
				if i := different(a.memories[k].All().Bytes(), a.model[k]); i >= 0 {
					t.Errorf("side %s: memory %d (0: local, others: the peer's exports) differs from the model at "+
						"byte %d of %d", a.s.Name, k, i, len(a.model[k]))
				}
			}
		}
	})
}

func messageLen(imm uint64) int { return int(imm>>20) % (path.MaxMessage + 1) }

// run performs the side's part, then serves the peer until it has finished, too.
func (a *actor) run(ctx context.Context) bool {
	// However it ends, the peer must not wait for ever.
	defer func() {
		a.finished.Add(1)
		a.other.waiter.Interrupt()
	}()
	var batch []path.Op
	for left := programOps; left > 0 || len(batch) > 0 || len(a.pending) > 0; {
		if len(batch) == 0 {
			for range min(left, 1+a.rng.IntN(5)) {
				if op, ok := a.invent(); ok {
					batch = append(batch, op)
				}
				left--
			}
		}
		n := 0
		if len(batch) > 0 {
			n = a.s.post(batch)
			for token := range a.pending {
				if r := a.s.ops[token]; r.Times > 0 { // refused at once, or its end is known already
					a.land(token, r)
				}
			}
			batch = batch[n:]
		}
		if len(a.pending) > 0 && a.rng.IntN(25) == 0 {
			a.s.Path.Cancel(a.s.next - uint64(a.rng.IntN(4)))
		}
		if len(a.pending) > len(batch) && (n == 0 || a.rng.IntN(4) == 0 && left == 0) {
			// those of the batch are not posted yet
			if !a.wait(ctx) {
				return false
			}
		}
	}
	a.finished.Add(1)
	a.other.waiter.Interrupt()
	for a.finished.Load() < 2 {
		if !a.wait(ctx) {
			return false
		}
	}
	return true
}

// wait sleeps until there is an event, and records it.
func (a *actor) wait(ctx context.Context) bool {
	var events [9]path.Event
	spin := time.Duration(a.rng.IntN(2)) * 20 * time.Microsecond
	n, err := a.waiter.Wait(ctx, a.s.Path, events[:1+a.rng.IntN(len(events))], spin)
	if err != nil {
		a.s.t.Errorf("side %s: %d operations under way, and no event: %v\n%s", a.s.Name, len(a.pending), err,
			a.s.dumpAlone())
		return false
	}
	a.s.record(events[:n])
	for _, e := range events[:n] {
		if e.Kind == path.EventDone && a.pending[e.Token] != nil {
			a.land(e.Token, a.s.ops[e.Token])
		}
	}
	if a.s.Down != nil {
		a.s.t.Errorf("side %s: %v", a.s.Name, a.s.Down)
		return false
	}
	runtime.Gosched()
	return true
}

// invent makes the next operation and applies it to the model. ok is false when nothing was found
// that does not conflict with operations under way.
func (a *actor) invent() (op path.Op, ok bool) {
	fl := &flying{}
	switch r := a.rng.IntN(100); {
	case r < 15:
		op.Kind = path.Notify
	case r < 60:
		op.Kind = path.Put
	default:
		op.Kind = path.Get
	}
	if op.Kind != path.Notify {
		op.Notify = a.rng.IntN(4) == 0
		fl.bad = a.rng.IntN(20) == 0
		blocks := 1 + a.rng.IntN(8)
		if a.rng.IntN(20) == 0 { // whole batches, whatever a path takes for one, and one more or less
			blocks = 32<<a.rng.IntN(4) + a.rng.IntN(3) - 1
		}
		if fl.bad {
			blocks = 1 // nothing of it may be done
		}
		for range blocks {
			a.addBlock(&op, fl)
		}
		if len(op.Copies) == 0 {
			return op, false
		}
		if fl.bad {
			op.Copies[0].Key.Secret ^= 1 << 50
		} else {
			a.apply(&op)
		}
	}
	op, _ = a.s.fresh(op)
	op.Imm = mix(a.seed ^ op.Token<<8 ^ uint64(len(a.s.Name[0:1]))<<60 ^ uint64(a.s.Name[0]))
	if fl.notify = op.Kind == path.Notify || op.Notify; fl.notify {
		op.Msg = message(op.Imm, messageLen(op.Imm))
	}
	fl.imm, fl.bytes = op.Imm, op.Bytes()
	a.pending[op.Token] = fl
	return op, true
}

func (a *actor) addBlock(op *path.Op, fl *flying) {
	n := uint64(a.rng.IntN(200))
	switch r := a.rng.IntN(20); {
	case r < 2:
		n = uint64(a.rng.IntN(300_000))
	case r < 8:
		n = uint64(a.rng.IntN(10_000))
	}
	for range 8 {
		m := 1 + a.rng.IntN(len(a.memories)-1)
		n = min(n, a.memories[m].Len())
		local := use{0, a.rng.Uint64N(a.memories[0].Len() - n + 1), n, op.Kind == path.Get}
		remote := use{m, a.rng.Uint64N(a.memories[m].Len() - n + 1), n, op.Kind == path.Put}
		if a.free(local, fl) && a.free(remote, fl) {
			fl.uses = append(fl.uses, local, remote)
			op.Copies = append(op.Copies, path.Copy{Local: mem.Span{Region: a.memories[0], Off: local.off, Len: n},
				Key: a.keys[m-1], RemoteOff: remote.off})
			return
		}
		n /= 2
	}
}

func (a *actor) free(u use, fl *flying) bool {
	for _, v := range fl.uses {
		if u.conflicts(v) {
			return false
		}
	}
	for _, x := range a.pending {
		for _, v := range x.uses {
			if u.conflicts(v) {
				return false
			}
		}
	}
	return true
}

func (a *actor) apply(op *path.Op) {
	for _, c := range op.Copies {
		m := 1
		for a.keys[m-1] != c.Key {
			m++
		}
		local, remote := a.model[0][c.Local.Off:][:c.Local.Len], a.model[m][c.RemoteOff:][:c.Local.Len]
		if op.Kind == path.Put {
			copy(remote, local)
		} else {
			copy(local, remote)
		}
	}
}

// land takes note of how an operation ended.
func (a *actor) land(token uint64, r *Result) {
	fl := a.pending[token]
	delete(a.pending, token)
	switch {
	case fl.bad:
		if !errors.Is(r.Err, path.ErrKey) && !errors.Is(r.Err, path.ErrCanceled) {
			a.s.t.Errorf("side %s: operation with a forged key: error %v", a.s.Name, r.Err)
		}
	case r.Err == nil:
		if r.Bytes != fl.bytes {
			a.s.t.Errorf("side %s: EventDone says %d bytes, the operation had %d", a.s.Name, r.Bytes, fl.bytes)
		}
		if fl.notify {
			a.sent[fl.imm] = true
		}
	case errors.Is(r.Err, path.ErrCanceled):
		// Its destination is undefined, but from now on it must not change: the model takes what is
		// there.
		for _, u := range fl.uses {
			if u.write {
				copy(a.model[u.memory][u.off:u.off+u.n], a.memories[u.memory].All().Bytes()[u.off:])
			}
		}
	default:
		a.s.t.Errorf("side %s: operation failed: %v", a.s.Name, r.Err)
	}
}
