package verbs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/path/pathtest"
)

// asleep drives both ends, each of which sleeps until its descriptor says that there is something to do.
func (r *rig) asleep(t *testing.T, cond func() bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !cond(); {
		if time.Now().After(until) {
			t.Fatalf("nothing more happens\n%s", r.Dump())
		}
		if r.A.Poll()+r.B.Poll() > 0 {
			continue
		}
		ready := r.a.Arm()
		if r.b.Arm() || ready {
			continue
		}
		slept := time.Now()
		if i, err := sys.PollIn(30_000, r.a.FD(), r.b.FD()); err != nil || i < 0 && time.Since(slept) >= 30*time.Second { // else a signal came
			t.Fatalf("both ends sleep, and neither is woken: %v\n%s", err, r.Dump())
		}
	}
}

// TestLossOfPieces: what the network loses is written again, with pieces that get through; each notification comes once, behind its bytes, and
// no rail is replaced for it.
func TestLossOfPieces(t *testing.T) {
	for _, loss := range []int{1, 5, 30} {
		t.Run(fmt.Sprint(loss), func(t *testing.T) {
			w := newWorld(t, fmt.Sprintf("mode wire; loss %d%%", loss))
			r := newRig(t, w, Options{Transport: UC}, 2)
			const size, puts = 3<<20 + 17, 6
			local := r.A.Region(size)
			pathtest.Fill(local.All().Bytes(), 3)
			var remote [puts][]byte
			wrong := ""
			for i := range puts {
				e := r.B.Export(r.B.Region(size), both)
				remote[i] = e.Span().Bytes()
				r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, size>>(3*i)), Notify: true, Imm: uint64(i)})
			}
			checked := 0
			r.asleep(t, func() bool {
				for ; checked < len(r.B.Notices); checked++ {
					i := r.B.Notices[checked].Imm
					if n := size >> (3 * i); string(remote[i][:n]) != string(local.All().Bytes()[:n]) {
						wrong = fmt.Sprintf("notification %d came before its bytes", i)
					}
				}
				return checked >= puts
			})
			r.Pump(50)
			if wrong != "" || len(r.B.Notices) != puts {
				t.Errorf("%d notifications of %d; %s", len(r.B.Notices), puts, wrong)
			}
			if r.a.rewritten == 0 || r.a.replaced != 0 || r.b.replaced != 0 {
				t.Errorf("%d pieces written again, %d and %d rails replaced: expected some, and none: %v, %v", r.a.rewritten, r.a.replaced, r.b.replaced, r.a.why, r.b.why)
			}
			said := strings.Join(r.a.Explain(), "\n")
			for _, want := range []string{"4: 1 for control (RC), 2 for puts (UC), 1 for gets (RC)", fmt.Sprintf("written again: %d", r.a.rewritten)} {
				if !strings.Contains(said, want) {
					t.Errorf("Explain does not say %q:\n%s", want, said)
				}
			}
			if loss >= 5 && r.a.pieceLimit() >= pieceFirst {
				t.Errorf("pieces of %d bytes with a loss of %d %%", r.a.pieceLimit(), loss)
			}
			t.Logf("%s", said)
		})
	}
}

// TestLostTail loses everything that was sent, so that no later number shows it: the ends that sleep are woken, and find out.
func TestLostTail(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{Transport: UC}, 1)
	local := r.A.Region(4096)
	pathtest.Fill(local.All().Bytes(), 3)
	e := r.B.Export(r.B.Region(4096), both)
	r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)})
	w.do(t, "loss 100%")
	put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
	w.do(t, "loss 0")
	r.asleep(t, func() bool { return put.Times > 0 })
	if put.Err != nil || pathtest.Verify(e.Span().Bytes(), 3) >= 0 || r.a.probed == 0 || r.a.rewritten != 1 || r.a.replaced != 0 {
		t.Errorf("%v; %d questions, %d pieces written again, %d rails replaced", put.Err, r.a.probed, r.a.rewritten, r.a.replaced)
	}
}

// TestSilence: a rail on which nothing gets through is replaced, and the operation ends well; a peer that is gone is noticed.
func TestSilence(t *testing.T) {
	t.Run("Rail", func(t *testing.T) {
		w := newWorld(t, "")
		r := newRig(t, w, Options{Transport: UC}, 1)
		local := r.A.Region(4096)
		e := r.B.Export(r.B.Region(4096), both)
		r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)})
		w.do(t, "loss 100%")
		put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096), Notify: true})[0]
		r.asleep(t, func() bool { return r.a.replaced > 0 })
		w.do(t, "loss 0")
		r.asleep(t, func() bool { return put.Times > 0 && len(r.B.Notices) > 0 })
		if put.Err != nil || len(r.B.Notices) != 1 {
			t.Errorf("%v, %d notifications", put.Err, len(r.B.Notices))
		}
	})
	t.Run("Peer", func(t *testing.T) {
		w := newWorld(t, "")
		r := newRig(t, w, Options{Transport: UC}, 1)
		local := r.A.Region(4096)
		e := r.B.Export(r.B.Region(4096), both)
		r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)})
		w.do(t, "timers instant; cable 0 cut")
		put := r.A.Post(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 4096)})[0]
		r.asleep(t, func() bool { return r.A.Down != nil })
		if put.Times != 1 || !errors.Is(put.Err, path.ErrDown) {
			t.Errorf("the put ended %d times: %v", put.Times, put.Err)
		}
		w.do(t, "cable 0 mend")
	})
}

// number sends any number on a rail, whose end does not know of it.
func number(l *link, no uint32) {
	if l.qp == nil || l.rail.state != railUp || l.room() == 0 {
		return
	}
	l.add(request{record: record{kind: kindProbe, work: -1, slot: -1, local: -1, no: no}})
	l.flush(1)
}

// TestLateNumber: a number that comes a second time shows a network that does not keep the order. Its bytes may have landed behind others, so
// the path does not go on.
func TestLateNumber(t *testing.T) {
	for no, want := range map[uint32]string{0: "late or twice", 5000: "at most"} {
		t.Run(want, func(t *testing.T) {
			w := newWorld(t, "timers instant")
			r := newRig(t, w, Options{Transport: UC}, 1)
			local := r.A.Region(4096)
			e := r.B.Export(r.B.Region(4096), both)
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1)})
			number(r.a.rails[0], no)
			r.asleep(t, func() bool { return r.B.Down != nil })
			if !errors.Is(r.B.Down, path.ErrProtocol) || !strings.Contains(r.B.Down.Error(), want) {
				t.Errorf("number %d: %v; expected %q", no, r.B.Down, want)
			}
		})
	}
}

// TestTransports: a listener that asks for nothing takes what the dialer has; others refuse what they do not have, and say so.
func TestTransports(t *testing.T) {
	w := newWorld(t, "")
	for _, c := range []struct {
		dials, listens, want Transport // want 0: refused
	}{{AnyTransport, AnyTransport, RC}, {DC, AnyTransport, DC}, {DC, DC, DC}, {DC, UC, 0}, {RC, DC, 0}, {UC, AnyTransport, UC}, {UC, UC, UC}, {RC, UC, 0}, {AnyTransport, UC, 0}, {UC, RC, 0}} {
		t.Run(c.dials.String()+" to "+c.listens.String(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			l, err := New(Options{Library: w.lib, mlx5: w.lib, Transport: c.listens}).Listen()
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			tok := newToken()
			cfg := path.Config{Rights: path.Read | path.Write, Exports: new(path.Exports), Streams: maxRails} // with UC one of them is for gets
			got := make(chan path.Path, 1)
			go func() {
				p, _ := l.Accept(ctx, tok, cfg)
				got <- p
			}()
			p, err := New(Options{Library: w.lib, mlx5: w.lib, Transport: c.dials}).Dial(ctx, path.Offer{Addr: l.Addr(), Token: tok}, cfg)
			if err != nil {
				cancel()
			}
			q := <-got
			if c.want == 0 {
				if err == nil || !strings.Contains(err.Error(), c.listens.String()+" (Options.Transport)") {
					t.Errorf("%v; expected a refusal that names both", err)
				}
				return
			}
			if err != nil || q == nil {
				t.Fatal(err)
			}
			if is := q.(*Path).transport; is != c.want || p.(*Path).transport != is {
				t.Errorf("%s and %s: expected %s", p.(*Path).transport, is, c.want)
			}
			p.Close()
			q.Close()
		})
	}
}

// BenchmarkPut is a put until its completion, both ends polled by one goroutine.
func BenchmarkPut(b *testing.B) {
	for _, transport := range []Transport{RC, UC, DC} {
		for _, size := range []int{8, 64 << 10} {
			b.Run(fmt.Sprintf("%s/%d", transport, size), func(b *testing.B) {
				w := newWorld(b, "")
				r := newRig(b, w, Options{Transport: transport}, 1)
				e := r.B.Export(r.B.Region(size), both)
				ops := []path.Op{{Kind: path.Put, Copies: copyTo(r.A.Region(size), e, 0, size)}}
				events := make([]path.Event, 4)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					r.a.Post(ops)
					for done := false; !done; {
						for _, e := range events[:r.a.Poll(events)] {
							done = done || e.Kind == path.EventDone
						}
						r.b.Poll(nil)
					}
				}
			})
		}
	}
}

// TestShortShots: the tuner of the inline threshold learns of short writes over UC too, whose end the adapter and the peer both tell.
func TestShortShots(t *testing.T) {
	w := newWorld(t, "")
	r := newRig(t, w, Options{Transport: UC}, 1)
	local := r.A.Region(4096)
	e := r.B.Export(r.B.Region(4096), both)
	const n = 4 * shortEvery
	for range n {
		r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 8)})
	}
	if got := r.a.inlineTuner.done; got != n/shortEvery || r.a.short.under != 0 {
		t.Errorf("of %d short writes it was told of %d, and %d are under way", n, got, r.a.short.under)
	}
}
