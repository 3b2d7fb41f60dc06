package cm

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/internal/sys"
)

// standIn is the stand-in for both libraries. It has one state for the whole process, which each
// test begins with.
type standIn struct {
	world
	script, report, count dl.Func
}

var loaded = sync.OnceValues(func() (*standIn, error) {
	path, err := verbs.Build()
	if err != nil {
		return nil, err
	}
	f := &standIn{world: world{host: "192.0.2.1", device: "fake0"}}
	if f.l, err = Load(Options{Path: path}); err != nil {
		return nil, err
	}
	if f.v, err = ibv.Load(ibv.Options{Path: path}); err != nil {
		return nil, err
	}
	for name, to := range map[string]*dl.Func{"script": &f.script, "report": &f.report, "count": &f.count} {
		if *to, err = f.l.lib.Symbol("penstock_fake_" + name); err != nil {
			return nil, err
		}
	}
	return f, nil
})

// onFake is the stand-in with a script. When the test ends nothing may be left, and no rule may
// have been broken.
func onFake(t testing.TB, script string) *standIn {
	t.Helper()
	f, err := loaded()
	if errors.Is(err, verbs.ErrMissing) || errors.Is(err, ErrUnavailable) {
		testenv.Missing(t, "the headers of libibverbs and librdmacm", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.run(t, "reset")
	f.run(t, script)
	t.Cleanup(func() { f.clean(t) })
	return f
}

// run adds lines to the script.
func (f *standIn) run(t testing.TB, lines string) {
	t.Helper()
	b, err := dl.Alloc(len(lines) + 1)
	must(t, err)
	defer dl.Free(b)
	copy(b, lines)
	if wrong := dl.GoString(f.script.Call1(dl.Address(b))); wrong != "" {
		t.Fatalf("script %q: %s", lines, wrong)
	}
}

// called is how often a function was called.
func (f *standIn) called(t testing.TB, name string) int {
	t.Helper()
	b, err := dl.Alloc(len(name) + 1)
	must(t, err)
	defer dl.Free(b)
	copy(b, name)
	return int(int64(f.count.Call1(dl.Address(b))))
}

// clean demands that nothing is left, and that no rule was broken.
func (f *standIn) clean(t testing.TB) {
	t.Helper()
	if s := strings.TrimSpace(dl.GoString(f.report.Call0())); s != "" && !t.Failed() {
		t.Errorf("the stand-in reports:\n%s", s)
	}
}

// TestConnections is what TestGuestConnections asks of a kernel, without one.
func TestConnections(t *testing.T) {
	f := onFake(t, "gid 0 5 2001:db8::7 v2")
	connections(t, f.world, map[string]string{"IPv4": f.host, "IPv6": "2001:db8::7"})
}

// made is a connection between two devices, and what both ends of it need.
type made struct {
	sc, cc         *Channel
	lis, id, other *ID // other is the one that was accepted
}

// connect makes a connection as far as it goes, and says which step failed, and how.
func (f *standIn) connect(t *testing.T) (m made, step string, err error) {
	t.Helper()
	fail := func(s string, e error) bool {
		if e != nil && err == nil {
			step, err = s, e
		}
		return err != nil
	}
	event := func(c *Channel, typ EventType) Event {
		for deadline := time.Now().Add(patience); ; {
			for _, from := range []*Channel{c, m.sc, m.cc} { // a failure may show at the other end
				ev, ok, e := from.Next()
				if fail("next", e) || ok && fail("event", ev.Err) {
					return ev
				}
				if ok {
					if from != c || ev.Type != typ {
						fail("event", fmt.Errorf("%s, expected %s", ev.Type, typ))
					}
					return ev
				}
			}
			if time.Now().After(deadline) {
				fail("event", errors.New("none came"))
				return Event{}
			}
			if _, e := sys.PollIn(1000, m.sc.FD(), m.cc.FD()); e != nil {
				t.Fatal(e)
			}
		}
	}
	close := func() {
		for _, c := range []*Channel{m.sc, m.cc} {
			if c != nil {
				must(t, c.Close())
			}
		}
	}
	t.Cleanup(close)
	var e error
	if m.sc, e = f.l.Open(); fail("open", e) {
		return
	}
	if m.cc, e = f.l.Open(); fail("open", e) {
		return
	}
	if m.lis, e = m.sc.NewIDAt(RC, netip.MustParseAddrPort("192.0.2.1:0")); fail("listener", e) ||
		fail("listen", m.lis.Listen(4)) {
		return
	}
	if m.id, e = m.cc.NewID(); fail("id", e) {
		return
	}
	if fail("resolve", m.id.ResolveAddress(netip.MustParseAddrPort("192.0.2.2:0"), m.lis.Local(), patience)) ||
		event(m.cc, AddressResolved).ID == nil {
		return
	}
	if fail("route", m.id.ResolveRoute(patience)) || event(m.cc, RouteResolved).ID == nil ||
		fail("connect", m.id.Connect(Params{QPN: 17})) {
		return
	}
	if m.other = event(m.sc, ConnectRequest).ID; m.other == nil || fail("accept", m.other.Accept(Params{QPN: 18})) {
		return
	}
	if event(m.cc, ConnectResponse).ID == nil || fail("establish", m.id.Establish()) {
		return
	}
	event(m.sc, Established)
	return
}

// TestCallsFail: each call fails, in its turn; the error says which it was, nothing stays behind,
// and the next try works.
func TestCallsFail(t *testing.T) {
	f := onFake(t, "")
	for _, call := range []string{"rdma_create_event_channel", "rdma_create_id", "rdma_bind_addr", "rdma_listen",
		"rdma_resolve_addr", "rdma_resolve_route", "rdma_connect",
		"rdma_get_cm_event", "rdma_accept", "rdma_establish"} {
		t.Run(call, func(t *testing.T) {
			for k := 1; ; k++ {
				f.run(t, fmt.Sprintf("reset; fail %s %d ENOBUFS", call, k))
				t.Run(fmt.Sprint(k), func(t *testing.T) {
					_, step, err := f.connect(t)
					failed := f.called(t, call) >= k
					var e *Error
					if failed && (!errors.Is(err, sys.ENOBUFS) || !errors.As(err, &e) || "rdma_"+e.Op != call) ||
						!failed && err != nil {
						t.Errorf("at %q: %v", step, err)
					}
				})
				f.clean(t)
				if f.called(t, call) < k {
					if k == 1 {
						t.Error("it is never called")
					}
					return
				}
			}
		})
	}
}

// TestEventsFail: what fails later is an event with its error, at the ID that asked.
func TestEventsFail(t *testing.T) {
	f := onFake(t, "")
	for _, c := range []struct {
		script string
		kind   error
		errno  sys.Errno
	}{
		{"fail cm_address 1 EHOSTUNREACH", ErrAddress, sys.EHOSTUNREACH},
		{"fail cm_route 1 EINVAL", ErrRoute, sys.EINVAL},
		{"fail cm_connect 1 EIO", ErrConnect, sys.EIO},
		{"fail cm_accept 1 ETIMEDOUT", ErrRejected, 0},
		{"cable 1 cut", ErrAddress, sys.ETIMEDOUT},
	} {
		t.Run(c.script, func(t *testing.T) {
			f.run(t, "reset; "+c.script)
			_, _, err := f.connect(t)
			var e *Error
			if !errors.Is(err, c.kind) || !errors.As(err, &e) || e.Errno != c.errno {
				t.Errorf("%v", err)
			}
		})
		f.clean(t)
	}
}

// TestSilentPeer: the connection manager reports a peer that goes without a word when its time is
// over.
func TestSilentPeer(t *testing.T) {
	f := onFake(t, "")
	m, step, err := f.connect(t)
	if err != nil {
		t.Fatal(step, err)
	}
	f.run(t, "cable 0 cut")
	must(t, m.id.Disconnect())
	if ev, ok, err := m.cc.Next(); ok || err != nil {
		t.Errorf("%+v, %v before the time is over", ev, err)
	}
	f.run(t, "cm expire")
	if ev := want(t, m.cc, Disconnected); ev.ID != m.id || !errors.Is(ev.Err, sys.ETIMEDOUT) {
		t.Errorf("%+v", ev)
	}
	if ev, ok, err := m.sc.Next(); ok || err != nil {
		t.Errorf("%+v, %v at the side that the peer does not reach", ev, err)
	}

	// A request beyond the backlog is not answered.
	f.run(t, "cable 0 mend")
	lis, err := m.sc.NewIDAt(RC, netip.MustParseAddrPort("192.0.2.1:0"))
	must(t, err)
	must(t, lis.Listen(1))
	at := lis.Local()
	ids := map[*ID]bool{}
	for range 3 {
		id := newID(t, m.cc)
		resolve(t, m.cc, id, netip.AddrPort{}, at)
		must(t, id.Connect(Params{QPN: 5}))
		ids[id] = true
	}
	ask := want(t, m.sc, ConnectRequest)
	f.run(t, "cm expire")
	for range 3 {
		if ev := want(t, m.cc, Unreachable); !ids[ev.ID] || !errors.Is(ev.Err, ErrUnreachable) ||
			!errors.Is(ev.Err, sys.ETIMEDOUT) {
			t.Errorf("%+v", ev)
		}
	}
	if ev := want(t, m.sc, Rejected); ev.ID != ask.ID || ev.Status != 4 {
		t.Errorf("%+v at the side that was asked", ev)
	}
	if err := ask.ID.Accept(Params{QPN: 6}); !errors.Is(err, ErrState) {
		t.Errorf("accepting who has given up: %v", err)
	}
}

// TestDeviceRemoved: all IDs on the device get the event, and can be closed.
func TestDeviceRemoved(t *testing.T) {
	f := onFake(t, "")
	m, step, err := f.connect(t)
	if err != nil {
		t.Fatal(step, err)
	}
	f.run(t, "cm remove 0")
	heard := map[*ID]bool{}
	for range 2 {
		ev := want(t, m.sc, DeviceRemoved)
		if heard[ev.ID] = true; !errors.Is(ev.Err, ErrGone) {
			t.Errorf("%+v", ev)
		}
	}
	if !heard[m.lis] || !heard[m.other] {
		t.Error("the listener, or the connection, has not heard of it")
	}
	if err := m.other.Disconnect(); err == nil {
		t.Error("a removed device carries a goodbye")
	}
	must(t, m.other.Close())
	want(t, m.cc, Disconnected)
	f.run(t, "cm addr_change; cm timewait")
	for _, typ := range []EventType{AddressChanged, TimeWaitExit} {
		if ev := want(t, m.cc, typ); ev.ID != m.id || ev.Err != nil {
			t.Errorf("%+v", ev)
		}
	}
}

// TestCloseWaits: an ID that is closed while a goroutine is between getting an event and giving it
// back waits for that, and its other events are dropped.
func TestCloseWaits(t *testing.T) {
	f := onFake(t, "")
	for range 50 {
		m, step, err := f.connect(t)
		if err != nil {
			t.Fatal(step, err)
		}
		for range 20 {
			f.run(t, "cm timewait")
		}
		var wg sync.WaitGroup
		for _, c := range []*Channel{m.sc, m.cc} {
			wg.Go(func() {
				for {
					ev, ok, err := c.Next()
					if err != nil || !ok {
						return
					}
					if ev.ID == nil {
						t.Error("an event without an ID")
					}
				}
			})
		}
		for _, id := range []*ID{m.id, m.other, m.lis} {
			wg.Go(func() {
				if err := id.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if m.id.Local().IsValid() {
			t.Error("a closed ID has an address")
		}
		for _, c := range []*Channel{m.sc, m.cc} {
			if ev, ok, err := c.Next(); ok || err != nil {
				t.Errorf("%+v, %v of IDs that are closed", ev, err)
			}
			if n := len(c.ids); n > 0 {
				t.Errorf("%d IDs are still known", n)
			}
		}
		must(t, errors.Join(m.sc.Close(), m.cc.Close()))
	}
}

// TestUnheardRequest: a listener that closes before a caller has taken the event of a request
// rejects that request.
func TestUnheardRequest(t *testing.T) {
	f := onFake(t, "")
	sc, cc := channel(t, f.l), channel(t, f.l)
	lis, at := listener(t, sc, f.host)
	id := newID(t, cc)
	resolve(t, cc, id, netip.AddrPort{}, at)
	must(t, id.Connect(Params{QPN: 3}))
	must(t, lis.Close())
	if ev := want(t, cc, Rejected); ev.ID != id || !errors.Is(ev.Err, ErrRejected) {
		t.Errorf("%+v", ev)
	}
}

// TestOrphan: Next gives up a request that comes while its listener is being closed. That rejects
// it, and nothing of it stays.
func TestOrphan(t *testing.T) {
	f := onFake(t, "")
	sc, cc := channel(t, f.l), channel(t, f.l)
	lis, at := listener(t, sc, f.host)
	id := newID(t, cc)
	resolve(t, cc, id, netip.AddrPort{}, at)
	must(t, id.Connect(Params{QPN: 3}))
	sc.mu.Lock()
	delete(sc.ids, lis.handle) // as far as Close has come when it waits for the library
	sc.mu.Unlock()
	if ev, ok, err := sc.Next(); ok || err != nil {
		t.Errorf("%+v, %v", ev, err)
	}
	if ev := want(t, cc, Rejected); ev.ID != id {
		t.Errorf("%+v", ev)
	}
	must(t, lis.Close())
}

// TestChannelWaits: a channel is not destroyed while an ID of it is being, which waits for an event
// that a goroutine has not given back.
func TestChannelWaits(t *testing.T) {
	f := onFake(t, "")
	c := channel(t, f.l)
	id := newID(t, c)
	must(t, id.Bind(netip.AddrPortFrom(netip.MustParseAddr(f.host), 0)))
	f.run(t, "cm timewait")
	at, err := dl.Alloc(8)
	must(t, err)
	defer dl.Free(at)
	if errno := c.l.call(c.l.f.getEvent, c.handle, dl.Address(at)); errno != 0 {
		t.Fatal(errno)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := id.Close(); err != nil {
			t.Error(err)
		}
	})
	for f.called(t, "rdma_destroy_id") == 0 {
		time.Sleep(time.Millisecond) // nothing shows that it waits
	}
	wg.Go(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	for range 50 { // it has the time to be wrong
		if f.called(t, "rdma_destroy_event_channel") > 0 {
			t.Error("the channel is destroyed before its ID")
			break
		}
		time.Sleep(time.Millisecond)
	}
	c.l.f.ackEvent.Call1(*dl.At[uintptr](dl.Address(at)))
	wg.Wait()
	if n := f.called(t, "rdma_destroy_event_channel"); n != 1 {
		t.Errorf("the channel was destroyed %d times", n)
	}
}
