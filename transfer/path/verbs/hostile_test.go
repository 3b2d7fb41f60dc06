package verbs

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
)

// inject sends any bytes on a link, as a peer that has another program would.
func inject(l *queuePair, b []byte) bool {
	if l.p.err != nil || l.index > 0 && l.repl.state != qpUp || len(l.frames) == 0 || l.room() == 0 ||
		l.out.left() <= byeReserve {
		return false
	}
	slot := l.frames[len(l.frames)-1]
	l.frames = l.frames[:len(l.frames)-1]
	n := copy(l.p.arena.slot(int(slot)), b)
	l.out.sent++
	l.sent++
	l.add(request{record: record{kind: kindFrame, work: -1, slot: slot}, sge: l.p.arena.sge(int(slot), n)})
	l.flush(1)
	return true
}

// TestHostilePeer sends frames that are well formed and make no sense, or no sense at all, in
// random order between operations of both sides. The other end stays up or goes down for a reason
// that it says; it does not panic, hang, lose an operation, or write where it was not asked to.
func TestHostilePeer(t *testing.T) {
	// an end that is down answers nothing: the other one's goodbye shall not wait for that
	w := newWorld(t, "timers instant")
	reasons := map[string]int{}
	check := func(rt *rapid.T) {
		r := newRig(t, w, Options{}, 2)
		local, mine := r.B.Region(1<<16), r.B.Region(1<<16)
		e := r.A.Export(r.A.Region(1<<16), both)
		secret := r.B.Export(mine, path.Read)
		pathtest.Fill(mine.All().Bytes(), 4)
		pathtest.Fill(local.All().Bytes(), 5)
		var puts []*pathtest.Result
		for range rapid.OneOf(rapid.IntRange(0, 2), rapid.IntRange(1, 30)).Draw(rt, "frames") {
			f := drawFrame(rt, frameType(rapid.IntRange(1, int(frameEnd)-1).Draw(rt, "type")))
			if rapid.Bool().Draw(rt, "near") { // what could be true
				f.key, f.consumed, f.gen = e.Key(), r.a.ctl.in.freed, rapid.Uint32Range(0, 4).Draw(rt, "generation")
				f.qp = uint8(rapid.IntRange(0, 2).Draw(rt, "near queue pair"))
				if rapid.Bool().Draw(rt, "theirs") {
					f.key = secret.Key()
				}
				for i := range f.grants {
					f.grants[i].gen = rapid.Uint32Range(1, 3).Draw(rt, "queue pair generation")
				}
			}
			b := f.append(nil)
			if rapid.IntRange(0, 9).Draw(rt, "cut") == 0 {
				b = b[:rapid.IntRange(0, len(b)).Draw(rt, "at")]
			}
			l := r.a.qps[rapid.IntRange(0, 2).Draw(rt, "link")]
			if rapid.IntRange(0, 3).Draw(rt, "control") > 0 {
				l = r.a.ctl
			}
			if r.a.err == nil {
				inject(l, b)
			}
			for range rapid.IntRange(0, 3).Draw(rt, "polls") {
				r.B.Poll()
				r.A.Poll()
			}
			if r.B.Down == nil && rapid.Bool().Draw(rt, "put") {
				puts = append(puts, r.B.Post(path.Op{Kind: path.Put,
					Copies: copyTo(local, e, 0, 1+rapid.IntRange(0, 1<<16-1).Draw(rt, "bytes"))})...)
			}
		}
		r.Pump(20)
		if r.B.Down != nil {
			switch {
			case errors.Is(r.B.Down, path.ErrProtocol):
				reasons["protocol"]++
			case errors.Is(r.B.Down, path.ErrDown):
				reasons["down"]++
			}
		} else {
			reasons["up"]++
			r.B.Exports.Revoke(secret)
			fence := r.B.Post(path.Op{Kind: path.Fence, Key: secret.Key()})[0]
			for i := 0; fence.Times == 0 && r.B.Down == nil && i < 10_000; i++ {
				r.B.Poll()
				r.A.Poll()
			}
			if fence.Times == 0 {
				rt.Fatalf("a fence never ends\n%s", r.Dump())
			}
		}
		r.B.Close()
		r.A.Close()
		for _, p := range puts {
			r.B.Drain()
			if p.Times != 1 {
				rt.Fatalf("a put ended %d times", p.Times)
			}
		}
		if i := pathtest.Verify(mine.All().Bytes(), 4); i >= 0 {
			rt.Fatalf("byte %d of an export for reading was written", i)
		}
		if i := pathtest.Verify(local.All().Bytes(), 5); i >= 0 {
			rt.Fatalf("byte %d of local memory was written", i)
		}
	}
	// Few stay up; that none does in a hundred is possible, in two thousand it is not.
	for n := 0; n < 20 && (n == 0 || reasons["up"] == 0 || reasons["protocol"] == 0); n++ {
		rapid.Check(t, check)
	}
	t.Logf("%v", reasons)
	if reasons["up"] == 0 || reasons["protocol"] == 0 {
		t.Errorf("ends: %v; expected that some stay up and some go down", reasons)
	}
}
