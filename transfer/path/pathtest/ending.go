package pathtest

import (
	"slices"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
)

// amounts are how many times both sides are polled before something interferes with a large
// operation.
var amounts = []int{0, 1, 5, 40}

// checkUnchanged polls both sides for a while and does other work, during which memory that is no
// longer in use must not change.
func checkUnchanged(t testing.TB, p *Pair, what string, memory, want []byte, other direction) {
	t.Helper()
	p.Pump(100)
	other.roundTrip(t, path.Put, margin, margin, 100_000, 9)
	other.roundTrip(t, path.Get, margin, margin, 100_000, 10)
	p.Pump(100)
	if i := different(memory, want); i >= 0 {
		t.Fatalf("%s: byte %d was written afterwards", what, i)
	}
}

func checkCancel(t testing.TB, f Factory) {
	p := newPair(t, f)
	for _, s := range p.Sides() {
		l, other := p.direction(s, f.Large), p.direction(s, 1<<20)
		Fill(l.here, 1)
		Fill(l.there, 1)
		if s.Path.Cancel(123_456_789) {
			t.Error("Cancel of an unknown token returned true")
		}
		for _, kind := range bothKinds {
			src, dst := l.ends(kind)
			for i, k := range amounts {
				Fill(src, uint64(i+2))
				queued := l.op(path.Put, other.copyOf(0, 0, 1<<20))
				r := s.Post(l.op(kind, l.copyOf(0, 0, f.Large)), queued)
				p.Pump(k)
				wasDone := [2]bool{r[0].Times > 0, r[1].Times > 0}
				for j := range r {
					if got := s.Path.Cancel(s.next - uint64(1-j)); got == wasDone[j] {
						t.Errorf("Cancel returned %v for an operation whose EventDone was polled: %v", got, wasDone[j])
					}
				}
				s.Path.Cancel(s.next) // again: allowed, and nothing more happens
				p.Drive("the end of canceled operations", func() bool { return r[0].Times > 0 && r[1].Times > 0 })
				for j := range r {
					if r[j].Err != nil {
						wantErr(t, "canceled operation", r[j].Err, path.ErrCanceled)
					}
				}
				if r[0].Err == nil {
					wantFill(t, "operation that was faster than its cancellation", dst, uint64(i+2))
				}
				// The source changes now: a late write would bring the new bytes.
				want := slices.Clone(dst)
				Fill(src, 99)
				checkUnchanged(t, p, "destination of a canceled operation", dst, want, other)
				if s.Path.Cancel(s.next - 1) {
					t.Error("Cancel of an operation that had ended returned true")
				}
			}
		}
	}
}

// checkFence revokes an export while the peer writes into it.
func checkFence(t testing.TB, f Factory) {
	p := newPair(t, f)
	for _, s := range p.Sides() {
		o := s.Other()
		other := p.direction(s, 1<<20)
		for _, k := range amounts {
			l := p.direction(s, f.Large)
			Fill(l.here, 1)
			put := s.Post(l.op(path.Put, l.copyOf(0, 0, f.Large)))[0]
			p.Pump(k)
			o.Exports.Revoke(l.export)
			fence := o.Post(path.Op{Kind: path.Fence, Key: l.export.Key()})[0]
			p.Drive("a fence", func() bool { return fence.Times > 0 })
			if fence.Err != nil {
				t.Fatalf("fence: %v\n%s", fence.Err, p.Dump())
			}
			want := slices.Clone(l.there)
			Fill(l.here, 2)
			p.Drive("a put into a revoked export", func() bool { return put.Times > 0 })
			if put.Err != nil {
				wantErr(t, "put into a revoked export", put.Err, path.ErrRevoked, path.ErrKey)
			} else if i := Verify(want, 1); i >= 0 {
				t.Errorf("put that succeeded before the fence: byte %d is wrong", i)
			}
			checkUnchanged(t, p, "memory behind a fence", l.there, want, other)
			wantErr(t, "put after the fence", s.Do(l.op(path.Put, l.copyOf(0, 0, 100))).Err, path.ErrRevoked,
				path.ErrKey)

			// Now the memory can be given back.
			o.Exports.Retire(l.export)
			if n := l.remote.Leases(); n != 0 {
				t.Errorf("%d leases on a region whose only export was fenced and retired", n)
			}
			if err := l.remote.Close(); err != nil {
				t.Error(err)
			}
			select {
			case <-l.remote.Unmapped():
			default:
				t.Error("the region is still mapped after fence, Retire and Close")
			}
			wantErr(t, "put into an export that is gone", s.Do(l.op(path.Put, l.copyOf(0, 0, 100))).Err,
				path.ErrRevoked, path.ErrKey)
			other.roundTrip(t, path.Put, margin, margin, 5000, 3)
		}
		// An export that the peer never used, and one of which nothing is under way.
		for range 3 {
			l := p.direction(s, 4096)
			o.Exports.Revoke(l.export)
			o.MustDo(path.Op{Kind: path.Fence, Key: l.export.Key()})
			o.Exports.Retire(l.export)
		}
	}
}

// checkFenceRead revokes an export while the peer reads it, and then writes secrets into the
// memory.
func checkFenceRead(t testing.TB, f Factory) {
	const before, secret = 0x11, 0x22
	p := newPair(t, f)
	for _, s := range p.Sides() {
		o := s.Other()
		for _, k := range amounts {
			l := p.direction(s, f.Large)
			setAll(l.here, 0)
			setAll(l.there, before)
			get := s.Post(l.op(path.Get, l.copyOf(0, 0, f.Large)))[0]
			p.Pump(k)
			o.Exports.Revoke(l.export)
			o.MustDo(path.Op{Kind: path.Fence, Key: l.export.Key()})
			setAll(l.there, secret)
			p.Drive("a get from a revoked export", func() bool { return get.Times > 0 })
			p.Pump(100)
			if get.Err != nil {
				wantErr(t, "get from a revoked export", get.Err, path.ErrRevoked, path.ErrKey)
			}
			for i, b := range l.here {
				if b == secret || get.Err == nil && b != before {
					t.Fatalf("get from a revoked export (error %v): byte %d is %#x: it was read after the fence",
						get.Err, i, b)
				}
			}
			o.Exports.Retire(l.export)
		}
	}
}

// checkClose closes one end while operations of both sides are outstanding.
func checkClose(t testing.TB, f Factory) {
	for _, k := range amounts {
		for _, aborter := range []int{0, 1} {
			p := NewPair(t, f, 8)
			s := p.Sides()[aborter]
			o := s.Other()
			var directions [2]direction
			for i, x := range []*Side{s, o} {
				directions[i] = p.direction(x, f.Large)
				Fill(directions[i].here, 1)
				for range 2 {
					x.Post(directions[i].op(path.Put, directions[i].copyOf(0, 0, f.Large)),
						directions[i].op(path.Put, directions[i].copyOf(0, 0, 10)),
						path.Op{Kind: path.Notify})
				}
				// A get into memory that no put reads: the first page of the peer's own export.
				get := path.Copy{Local: directions[i].local.All(), Key: directions[i].export.Key()}
				get.Local.Len = 0
				x.Post(path.Op{Kind: path.Get, Copies: []path.Copy{get}})
			}
			p.Pump(k)
			s.Close()
			mine := directions[1].there // the other side's puts go here
			want := slices.Clone(mine)
			s.Drain()
			Fill(directions[1].here, 2)
			o.Drain()
			p.Pump(100)
			if string(mine) != string(want) {
				t.Errorf("the peer wrote after Close had returned")
			}
			for _, x := range []*Side{s, o} {
				for token, r := range x.ops {
					if r.Times != 1 {
						t.Errorf("side %s: operation %d had %d EventDones by EventDown", x.Name, token, r.Times)
					} else if r.Err != nil {
						wantErr(t, "operation outstanding at Close", r.Err, path.ErrDown)
					}
				}
				wantDown(t, x)
			}
			if t.Failed() {
				return
			}
		}
	}
}

// wantDown checks what a path does once it is down.
func wantDown(t testing.TB, s *Side) {
	t.Helper()
	n, err := s.Path.Post([]path.Op{{Kind: path.Notify, Token: 1 << 60}})
	if n != 0 {
		t.Errorf("side %s: Post accepted an operation after EventDown", s.Name)
	}
	wantErr(t, "Post after EventDown", err, path.ErrDown)
	if s.Path.Cancel(1 << 60) {
		t.Errorf("side %s: Cancel found an operation after EventDown", s.Name)
	}
	for range 3 {
		s.Path.Arm()
		s.Poll()
	}
	s.Path.Stats()
	s.Path.Explain()
	s.Path.FD()
}

// checkCloseDelivers closes right after notifications have completed: completion is proof, so the
// peer must see them.
func checkCloseDelivers(t testing.TB, f Factory) {
	for range 20 {
		p := NewPair(t, f, 16)
		var ops []path.Op
		for i := range 10 {
			ops = append(ops, path.Op{Kind: path.Notify, Imm: imm(i), Msg: message(imm(i), 500)})
		}
		results := p.A.Post(ops...)
		p.Drive("notifications", func() bool { return p.A.pending == 0 })
		p.A.Close()
		p.B.Drain()
		if len(p.B.Notices) != len(ops) {
			t.Fatalf("%d notifications completed before Close, the peer received %d", len(ops), len(p.B.Notices))
		}
		for i, n := range p.B.Notices {
			if results[i].Err != nil || n.Imm != imm(i) || Verify(n.Msg, imm(i)) >= 0 {
				t.Errorf("notification %d before Close is wrong", i)
			}
		}
	}
}

// checkPeerGone closes one end, which is never polled again; the other side finds out by itself.
func checkPeerGone(t testing.TB, f Factory) {
	for _, busy := range []bool{false, true} {
		p := newPair(t, f)
		for _, s := range p.Sides() {
			l := p.direction(s, f.Large)
			l.roundTrip(t, path.Put, margin, margin, 5000, 1)
			if busy {
				s.Post(l.op(path.Put, l.copyOf(0, 0, f.Large)))
				l.side.Path.Poll(nil)
			}
		}
		p.A.Close()
		done := make(chan bool)
		go func() { done <- p.B.park(nil, func() bool { return p.B.Down != nil }) }()
		<-done
		if t.Failed() {
			return
		}
		if p.B.pending != 0 {
			t.Errorf("%d operations without an EventDone after EventDown", p.B.pending)
		}
		wantDown(t, p.B)
	}
}
