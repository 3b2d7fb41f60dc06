package transfer

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func candidate(t testing.TB, x *Transfer, name string) Candidate {
	t.Helper()
	for _, c := range x.Explain().Candidates {
		if c.Path == name {
			return c
		}
	}
	t.Fatalf("%q is not among the candidates:\n%v", name, x.Explain())
	return Candidate{}
}

func TestSlowPathIsRankedBelow(t *testing.T) {
	slow, fast := over("slow"), over("fast")
	p := newPair(t, Options{Paths: []setup.Driver{slow, fast}})
	export(t, p.b, region(t, 4096), "dst", path.Write)
	rem, src := lookup(t, p.ab, "dst"), region(t, 4096)
	for name, d := range map[string]time.Duration{"slow": 5 * time.Second, "fast": time.Microsecond} {
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{name}})
		wait(t, x, err)
		l, err := p.ab.openedChannel(name)
		if err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		for range 10 {
			l.cost.Observe(64, d, clock())
		}
		l.unlock()
	}
	for i := range 10 {
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
		wait(t, x, err)
		addsUp(t, x)
		e := x.Explain()
		if e.Path != "fast" || e.Why != "lowest expected time for this size" {
			t.Errorf("transfer %d went %v", i, e)
		}
		if s, f := candidate(t, x, "slow"), candidate(t, x, "fast"); !s.Usable || s.Estimate <= f.Estimate ||
			!strings.Contains(s.Reason, "measured") {
			t.Errorf("slow %+v, fast %+v", s, f)
		}
	}
	// The caller can insist.
	x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{"slow"}})
	wait(t, x, err)
	if e := x.Explain(); e.Path != "slow" || candidate(t, x, "fast").Usable {
		t.Errorf("went %v", e)
	}
}

func TestFallbackIsAnnounced(t *testing.T) {
	broken := errors.New("the cable is cut")
	for _, side := range []string{"dial", "listen"} {
		t.Run(side, func(t *testing.T) {
			log := &lockedBuffer{}
			first, second := over("first"), over("second")
			if side == "dial" {
				first.dial = func(context.Context) error { return broken }
			} else {
				first.listen = broken
			}
			p := newPair(t, Options{Paths: []setup.Driver{first, second},
				Logger: slog.New(slog.NewTextHandler(log, nil))})
			export(t, p.b, region(t, 64), "dst", path.Write)
			rem, src := lookup(t, p.ab, "dst"), region(t, 64)
			for i := range 3 {
				x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
				wait(t, x, err)
				c := candidate(t, x, "first")
				if e := x.Explain(); e.Path != "second" || c.Usable || !strings.Contains(c.Reason, broken.Error()) {
					t.Errorf("transfer %d went %v; first: %+v", i, e, c)
				}
			}
			if !strings.Contains(log.String(), "path not set up") || !strings.Contains(log.String(), broken.Error()) {
				t.Errorf("the fallback was not announced: %s", log)
			}
		})
	}
}

func TestNoPathIsUsable(t *testing.T) {
	one, two := errors.New("reason one"), errors.New("reason two")
	first, second := over("first"), over("second")
	first.dial = func(context.Context) error { return one }
	second.dial = func(context.Context) error { return two }
	p := newPair(t, Options{Paths: []setup.Driver{first, second}})
	export(t, p.b, region(t, 64), "dst", path.Write)
	rem, src := lookup(t, p.ab, "dst"), region(t, 64)
	for range 2 { // the second time the failures are remembered
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		err = x.Wait(ctx(t))
		if !errors.Is(err, path.ErrUnavailable) || !errors.Is(err, one) || !errors.Is(err, two) {
			t.Errorf("ended with %v", err)
		}
		if e := x.Explain(); e.Path != "" || len(e.Candidates) != 2 || e.Candidates[0].Usable ||
			e.Candidates[1].Usable {
			t.Errorf("explained as %v", e)
		}
		addsUp(t, x)
	}
	x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{"carrier pigeon"}})
	if err == nil {
		err = x.Wait(ctx(t))
	}
	if !errors.Is(err, path.ErrUnavailable) {
		t.Errorf("a path that does not exist: %v", err)
	}
}

// A transfer can be canceled while its path is still being set up, by both means.
func TestCancelBeforeThereIsAChannel(t *testing.T) {
	d := over("never")
	dialing := make(chan struct{}, 8)
	d.dial = func(c context.Context) error {
		dialing <- struct{}{}
		<-c.Done()
		return c.Err()
	}
	p := newPair(t, Options{Paths: []setup.Driver{d}})
	export(t, p.b, region(t, 64), "dst", path.Write)
	rem, src := lookup(t, p.ab, "dst"), region(t, 64)
	c, cancel := context.WithCancel(ctx(t))
	x, err := p.ab.Put(c, []path.Copy{rem.At(0, src.All())}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	y, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-dialing
	cancel()
	if !y.Cancel() {
		t.Error("Cancel says that the transfer had ended")
	}
	for _, x := range []*Transfer{x, y} {
		soon(t, x.Done(), "the end of a canceled transfer")
		if !errors.Is(x.Err(), path.ErrCanceled) {
			t.Errorf("ended with %v", x.Err())
		}
		addsUp(t, x)
	}
	src.Close()
	soon(t, src.Unmapped(), "the return of the leases")
}
