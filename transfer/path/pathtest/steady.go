package pathtest

import (
	"reflect"
	"runtime"
	"testing"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/lab/testenv/scope"
	"github.com/penstock-io/penstock/transfer/path"
)

// wantGrown checks that no counter went back.
func wantGrown(t testing.TB, before, after path.Stats) {
	t.Helper()
	b, a := reflect.ValueOf(before), reflect.ValueOf(after)
	for i := range b.NumField() {
		if b.Field(i).Kind() == reflect.Uint64 && a.Field(i).Uint() < b.Field(i).Uint() {
			t.Errorf("Stats.%s went back from %d to %d", b.Type().Field(i).Name, b.Field(i).Uint(), a.Field(i).Uint())
		}
	}
}

func checkStats(t testing.TB, f Factory) {
	p := newPair(t, f)
	want := map[*Side]*path.Stats{p.A: {}, p.B: {}}
	for i, s := range p.Sides() {
		w, peer := want[s], want[s.Other()]
		l := p.direction(s, 1<<20)
		for k := range 20 + 10*i {
			n := uint64(k * k * 100)
			put, get := l.op(path.Put, l.copyOf(0, 0, int(n))),
				l.op(path.Get, l.copyOf(0, 0, int(n/2)), l.copyOf(int(n/2), 0, 3))
			put.Notify = k%2 == 0
			before := s.Path.Stats()
			s.MustDo(put)
			s.MustDo(get)
			s.MustDo(path.Op{Kind: path.Notify})
			wantGrown(t, before, s.Path.Stats())
			w.OpsDone += 3
			w.BytesPut += put.Bytes()
			w.BytesGot += get.Bytes()
			w.NotifySent += 1 + uint64(1-k%2)
			peer.NotifyReceived += 1 + uint64(1-k%2)
			peer.BytesPlaced += put.Bytes()
			peer.BytesServed += get.Bytes()
		}
		for range 3 {
			before := s.Path.Stats().OpsPosted
			bad := l.op(path.Put, l.copyOf(0, 0, 10))
			bad.Copies[0].Key.Secret++
			wantErr(t, "put with a forged key", s.Do(bad).Err, path.ErrKey)
			if s.Path.Stats().OpsPosted != before { // accepted, and failed later
				w.OpsFailed++
			}
		}
	}
	p.Drive("all notifications", func() bool {
		return len(p.A.Notices) >= int(want[p.A].NotifyReceived) && len(p.B.Notices) >= int(want[p.B].NotifyReceived)
	})
	for _, s := range p.Sides() {
		got, w := s.Path.Stats(), want[s]
		for _, c := range []struct {
			name      string
			got, want uint64
		}{
			{"OpsPosted", got.OpsPosted, w.OpsDone + w.OpsFailed},
			{"OpsDone", got.OpsDone, w.OpsDone},
			{"OpsFailed", got.OpsFailed, w.OpsFailed},
			{"BytesPut", got.BytesPut, w.BytesPut},
			{"BytesGot", got.BytesGot, w.BytesGot},
			{"NotifySent", got.NotifySent, w.NotifySent},
			{"NotifyReceived", got.NotifyReceived, w.NotifyReceived},
			{"Corrupt", got.Corrupt, 0},
		} {
			if c.got != c.want {
				t.Errorf("side %s: Stats.%s = %d, expected %d", s.Name, c.name, c.got, c.want)
			}
		}
		// One-sided paths do not see what the peer did, or only the part that they helped with.
		oneSided := s.Path.Capabilities().OneSided
		for _, c := range []struct {
			name      string
			got, want uint64
		}{{"BytesPlaced", got.BytesPlaced, w.BytesPlaced}, {"BytesServed", got.BytesServed, w.BytesServed}} {
			if c.got > c.want || !oneSided && c.got != c.want {
				t.Errorf("side %s: Stats.%s = %d, expected %d", s.Name, c.name, c.got, c.want)
			}
		}
	}
}

// checkLeaks sets paths up and closes them, over and over. As after every check, no goroutine and
// no descriptor may be left.
func checkLeaks(t testing.TB, f Factory) {
	for i := range 20 {
		scope.Run(t, func(t testing.TB) {
			p := newPair(t, f)
			for _, s := range p.Sides() {
				l := p.direction(s, 1<<20)
				l.roundTrip(t, path.Put, margin, margin, 100_000, 1)
				if i%2 == 1 {
					s.Post(l.op(path.Get, l.copyOf(0, 0, 1<<20))) // still outstanding at Close
				}
			}
			if i%4 < 2 {
				p.A.Close()
				p.B.Drain()
			}
		})
		if t.Failed() {
			return
		}
	}
}

// checkAllocations counts allocations of Post, Poll and Arm on both sides in steady state.
func checkAllocations(t testing.TB, f Factory) {
	if f.Verifies && invariants.Enabled {
		t.Log("not counted: with -tags invariants the path's own checks allocate")
		return
	}
	const blocks = 1024
	p := newPair(t, f)
	for _, s := range p.Sides() {
		o := s.Other()
		l := p.direction(s, blocks*4096)
		list := make([]path.Copy, blocks)
		for i := range list {
			list[i] = l.copyOf(i*4096, (blocks-1-i)*4096, 4096)
		}
		notify := l.op(path.Put, l.copyOf(0, 0, 64))
		notify.Notify, notify.Msg = true, message(1, 100)
		for _, c := range []struct {
			name    string
			op      path.Op
			notices int
		}{
			{"put of 64 bytes", l.op(path.Put, l.copyOf(0, 0, 64)), 0},
			{"get of 64 bytes", l.op(path.Get, l.copyOf(0, 0, 64)), 0},
			{"put of 256 KiB", l.op(path.Put, l.copyOf(0, 0, 256<<10)), 0},
			{"get of 256 KiB", l.op(path.Get, l.copyOf(0, 0, 256<<10)), 0},
			{"notification", path.Op{Kind: path.Notify, Msg: message(1, path.MaxMessage)}, 1},
			{"put with notification", notify, 1},
			{"put of 1,024 blocks", l.op(path.Put, list...), 0},
			{"get of 1,024 blocks", l.op(path.Get, list...), 0},
		} {
			ops := []path.Op{c.op}
			events := make([]path.Event, 8)
			hung := false
			once := func() {
				n, _ := s.Path.Post(ops)
				done, notices := 0, c.notices
				hung = hung || n != 1
				for i := 0; (done < 1 || notices > 0) && !hung; i++ {
					for _, e := range events[:s.Path.Poll(events)] {
						if e.Kind == path.EventDone {
							done++
						}
					}
					for _, e := range events[:o.Path.Poll(events)] {
						if e.Kind == path.EventNotify {
							notices--
						}
					}
					s.Path.Arm()
					o.Path.Arm()
					if hung = i == 100_000_000; i%256 == 255 {
						runtime.Gosched()
					}
				}
			}
			for range 50 {
				once()
			}
			// The runtime allocates now and then by itself; what the path allocates, it allocates
			// every time.
			least := 1e9
			for range 5 {
				if least = min(least, testing.AllocsPerRun(50, once)); least == 0 {
					break
				}
			}
			if hung {
				t.Fatalf("%s: never completed\n%s", c.name, p.Dump())
			}
			if least != 0 {
				t.Errorf("side %s: %s: %v allocations per operation; expected none", s.Name, c.name, least)
			}
		}
	}
}
