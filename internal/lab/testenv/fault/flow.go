package fault

import (
	"errors"
	"sync/atomic"
)

// Why a flow does not go on.
var (
	errCut     = errors.New("cut")
	errStopped = errors.New("stopped while it was stalled")
)

// flow is one direction of a stream under a script. One goroutine uses it; gate and ended may be
// touched by others.
type flow struct {
	dir   Direction
	s     *script
	rec   *recorder
	gate  *gate
	ended atomic.Bool // half-closed: what comes is thrown away
	end   func()      // called once when it is half-closed by a rule

	damage, bits, skip, twice uint64 // bytes that are to be corrupted, dropped, repeated
	buf                       []byte
}

func newFlow(p *Plan, conn int, d Direction, rec *recorder, end func()) *flow {
	return &flow{dir: d, s: p.script(Bytes, conn, d), rec: rec, gate: newGate(), end: end}
}

// due carries out what is due at this position. It waits while the flow is stalled, until stop is
// closed.
func (f *flow) due(stop <-chan struct{}) error {
	for {
		if !f.gate.wait(stop) {
			return errStopped
		}
		_, e, ok := f.s.step(0)
		if !ok {
			return nil
		}
		if f.ended.Load() {
			continue
		}
		f.rec.add(e)
		switch e.Kind {
		case Cut:
			return errCut
		case Stall, Delay:
			f.gate.close(e.For)
		case Corrupt:
			f.damage, f.bits = e.N, e.Bits
		case Drop:
			f.skip = e.N
		case Duplicate:
			f.twice = e.N
		case HalfClose:
			f.ended.Store(true)
			f.end()
		}
	}
}

// take lets the first bytes of b pass, up to the next event: n of them, as out, which is valid
// until the next call. Nothing may be due. It may change b.
func (f *flow) take(b []byte) (out []byte, n int) {
	k, _, _ := f.s.step(uint64(len(b)))
	n = int(k)
	out = b[:n]
	if f.ended.Load() {
		return nil, n
	}
	for i := 0; i < n && f.damage > 0; i++ {
		out[i] ^= 1 << (f.bits & 7)
		f.bits = f.bits>>3 | f.bits<<61
		f.damage--
	}
	if s := min(f.skip, uint64(len(out))); s > 0 {
		out = out[s:]
		f.skip -= s
	}
	if s := min(f.twice, uint64(len(out))); s > 0 {
		f.buf = append(append(f.buf[:0], out[:s]...), out...)
		out = f.buf
		f.twice -= s
	}
	f.rec.passed(f.dir, len(out))
	return out, n
}
