package verbs

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/ibvmem/cardtest"
	"github.com/penstock-io/penstock/internal/testenv/guest"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/path/pathtest"
)

// TestGuestConformance runs the suite on a real kernel, over Soft-RoCE. The machine is emulated, so what only repeats things many
// times is left out.
func TestGuestConformance(t *testing.T) {
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma}) {
		return
	}
	t.Run("Accelerators", softwareDevices)
	t.Run("Meetings", func(t *testing.T) { meetings(t, New(Options{Meet: MeetCM})) })
	for _, c := range []struct {
		name   string
		o      Options
		rails  int
		checks []string
	}{
		{"Windows", Options{}, 1, guestChecks},
		{"Domains", Options{NoWindows: true}, 2, guestChecks},
		{"Unreliable", Options{Transport: UC}, 1, strings.Fields("Notify Fence Wake")},
		{"ConnectionManager", Options{Meet: MeetCM}, cmRails, []string{"Sizes", "Notify", "Close", "PeerGone"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := factory(c.o, c.rails)
			f.Large = 2 << 20
			f.Patience = 3 * time.Minute
			f.Checks = c.checks
			pathtest.Run(t, f)
		})
	}
}

// softwareDevices: Soft-RoCE takes no dma-bufs, and the refusal of such memory says so.
func softwareDevices(t *testing.T) {
	card := cardtest.New(t, cardtest.Options{DMABuf: true})
	mine := card.Region("mine", 4096)
	a, b := dialPair(t, Options{}, path.Config{Exports: new(path.Exports)}, path.Config{Exports: new(path.Exports)})
	defer func() { a.Close(); b.Close() }()
	for what, err := range map[string]error{"ReachesRegion": a.ReachesRegion(mine), "ReachesDevice": a.ReachesDevice(path.Desc{Device: true})} {
		if !errors.Is(err, path.ErrUnreachable) {
			t.Errorf("%s: %v", what, err)
		}
		t.Log(what, err)
	}
	if err := a.ReachesRegion(mine); err == nil || !strings.Contains(err.Error(), "cannot register dma-bufs") {
		t.Errorf("it does not say what is missing: %v", err)
	}
}

// guestChecks are the checks of the suite that an emulated machine gets through in time.
var guestChecks = []string{"Sizes", "Empty", "PartOfRegion", "Window", "Notify", "Visible", "Refusals", "Cancel", "Fence", "FenceRead", "Close", "CloseDelivers",
	"PeerGone", "Quiet", "Wake", "Stats"}

// meeting is what the guests of a pair tell each other.
type meeting struct {
	Addr  string
	Token path.Token
	Key   path.Key
}

func sh(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("/bin/sh", "-ec", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// TestGuestLossyCable joins two machines by a cable that loses packets, more and more, and is cut in the end. Everything arrives until
// then; afterwards both ends say that they are down.
func TestGuestLossyCable(t *testing.T) {
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma, Guests: 2}) {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	m, err := guest.Meet(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	listens := guest.ID() == 1
	const size = 1 << 20
	alloc := func() *mem.Region {
		r, err := mem.Alloc(mem.Options{Size: size})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	local, shown := alloc(), alloc()
	x := new(path.Exports)
	e, err := x.Add(shown.All(), both)
	if err != nil {
		t.Fatal(err)
	}
	d := New(Options{Insecure: true, For: netip.MustParseAddr(guest.Addrs[3-guest.ID()])})
	cfg := path.Config{Exports: x, Secret: make([]byte, path.SecretSize)}
	var theirs meeting
	var p path.Path
	if listens {
		l, err := d.Listen()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		mine := meeting{l.Addr(), newToken(), e.Key()}
		if err := errors.Join(m.Send(mine), m.Recv(&theirs)); err != nil {
			t.Fatal(err)
		}
		if p, err = l.Accept(ctx, mine.Token, cfg); err != nil {
			t.Fatal(err)
		}
	} else {
		if err := errors.Join(m.Recv(&theirs), m.Send(meeting{Key: e.Key()})); err != nil {
			t.Fatal(err)
		}
		if p, err = d.Dial(ctx, path.Offer{Addr: theirs.Addr, Token: theirs.Token}, cfg); err != nil {
			t.Fatal(err)
		}
	}
	defer p.Close()
	if s := p.Capabilities().Security; s != path.SecurityNone {
		t.Errorf("the security of a path to another machine is %v", s)
	}
	w, err := path.NewWaiter()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	// serve takes events until one of this kind has come so many times. A peer that is done keeps serving until the other is, too.
	events := make([]path.Event, 16)
	count := map[path.EventKind]int{}
	var down error
	serve := func(what path.EventKind, n int) {
		t.Helper()
		for count[what] < n {
			k, err := w.Wait(ctx, p, events, 0)
			if err != nil {
				t.Fatalf("waiting for event kind %d: %v; %+v\n%s", what, err, p.Stats(), strings.Join(p.Explain(), "\n"))
			}
			for _, ev := range events[:k] {
				count[ev.Kind]++
				switch {
				case ev.Kind == path.EventDown:
					down = ev.Err
				case ev.Kind == path.EventDone && ev.Err != nil && !errors.Is(ev.Err, path.ErrDown):
					t.Fatalf("operation %d: %v", ev.Token, ev.Err)
				}
			}
			if down != nil && what != path.EventDown {
				t.Fatalf("down: %v", down)
			}
		}
		count[what] -= n
	}
	span := func(r *mem.Region) []path.Copy { return []path.Copy{{Local: r.All(), Key: theirs.Key}} }
	for i, loss := range []string{"0%", "1%", "5%"} {
		sh(t, "tc qdisc replace dev link0 root netem loss "+loss)
		seed := uint64(10*i + guest.ID())
		pathtest.Fill(local.All().Bytes(), seed)
		if n, err := p.Post([]path.Op{{Kind: path.Put, Copies: span(local), Notify: true, Imm: seed}}); n != 1 {
			t.Fatal(err)
		}
		serve(path.EventDone, 1)
		serve(path.EventNotify, 1)
		if at := pathtest.Verify(shown.All().Bytes(), uint64(10*i+3-guest.ID())); at >= 0 {
			t.Fatalf("loss %s: byte %d of what the other side put is wrong", loss, at)
		}
		clear(local.All().Bytes())
		if n, err := p.Post([]path.Op{{Kind: path.Get, Copies: span(local), Notify: true, Imm: seed}}); n != 1 {
			t.Fatal(err)
		}
		serve(path.EventDone, 1)
		serve(path.EventNotify, 1) // the other side has read as well: the next round may write
		if at := pathtest.Verify(local.All().Bytes(), seed); at >= 0 {
			t.Fatalf("loss %s: byte %d of what came back is wrong", loss, at)
		}
	}
	t.Logf("%s", strings.Join(p.Explain(), "\n"))
	sh(t, "tc qdisc replace dev link0 root netem loss 0%")
	if err := m.Barrier("cut"); err != nil {
		t.Fatal(err)
	}
	sh(t, "ip link set link0 down")
	if _, err := p.Post([]path.Op{{Kind: path.Put, Copies: span(local)}}); err != nil {
		t.Fatal(err)
	}
	serve(path.EventDown, 1)
	if !errors.Is(down, path.ErrDown) {
		t.Errorf("down: %v", down)
	}
	t.Logf("down: %v", down)
}
