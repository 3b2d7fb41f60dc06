package shm

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// What its sender counts as delivered is reported, also when the receiver closes before it has
// looked; what comes later fails.
func TestNotificationsBeforeClose(t *testing.T) {
	a, b := connect(t, Driver{}, setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)},
		setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
	defer a.Close()
	const n = 40
	done := map[uint64]error{}
	var ev [8]path.Event
	reap := func() {
		for k := a.Poll(ev[:]); k > 0; k = a.Poll(ev[:]) {
			for _, e := range ev[:k] {
				if e.Kind == path.EventDone {
					done[e.Token] = e.Err
				}
			}
		}
	}
	post := func(i uint64) error {
		_, err := a.Post([]path.Op{{Kind: path.Notify, Token: i, Imm: i, Msg: []byte{byte(i)}}})
		return err
	}
	for i := range uint64(n) {
		if err := post(i); err != nil {
			t.Fatal(err)
		}
	}
	reap()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	late := post(n) // before this side knows
	reap()
	if late == nil {
		late = done[n]
	}
	if !errors.Is(late, path.ErrDown) {
		t.Errorf("a notification to a closed path: %v", late)
	}
	next := uint64(0)
	for down := false; !down; {
		for _, e := range ev[:b.Poll(ev[:])] {
			switch {
			case e.Kind == path.EventDown:
				down = true
			case down || e.Kind != path.EventNotify || e.Imm != next || len(e.Msg) != 1 || e.Msg[0] != byte(next):
				t.Fatalf("after %d notifications: %+v", next, e)
			default:
				next++
			}
		}
	}
	good := uint64(0)
	for i := range uint64(n) {
		if err, ok := done[i]; ok && err == nil {
			good++
		}
	}
	if good != n || next != n {
		t.Errorf("%d notifications counted as delivered, %d reported", good, next)
	}
}

// A peer that closes while a large put is offered to it: the put ends with the path, and nothing is
// copied into memory that is not mapped any more.
func TestPeerGoneAsAJobIsOffered(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	if !u.p.helps {
		testenv.Missing(t, "two processors: one helps the other", fmt.Errorf("there is %d", runtime.NumCPU()))
	}
	local, remote := u.region(helpBytes), u.region(helpBytes)
	op := put(local.All(), export(t, u.qx, remote, path.Write).Key(), 0)
	if e := u.do(op); e.Err != nil || len(u.p.regions) != 1 {
		t.Fatalf("%+v, %d regions lent", e, len(u.p.regions))
	}
	u.q.ownParked.Swap(shut) // what Close does first, before anything is on the socket
	op.Token = 7
	if _, err := u.p.Post([]path.Op{op}); err != nil {
		t.Fatal(err)
	}
	var ev [4]path.Event
	n := u.p.Poll(ev[:])
	if n != 2 || ev[0].Kind != path.EventDone || ev[0].Token != 7 || !errors.Is(ev[0].Err, path.ErrDown) ||
		ev[1].Kind != path.EventDown {
		t.Fatalf("%+v", ev[:n])
	}
}

// A peer leaves garbage in the ring and is gone: the path reports its end all the same. What cannot
// be read any more is not waited for.
func TestGarbageInTheRingOfAPeerThatIsGone(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	wordAt(u.q.ctl.mem, ringsAt+128).Store(1 << 40)
	u.q.Close()
	u.p.look = true // so that it reads the peer's last packet before it looks into the ring
	var ev [4]path.Event
	for range 100 {
		for _, e := range ev[:u.p.Poll(ev[:])] {
			if e.Kind == path.EventDown {
				return
			}
		}
	}
	t.Error("the path does not report its end")
}

// A path that goes down inside a Post while its owner sleeps says so by its descriptor: the socket,
// which would have, is closed.
func TestDownInsideAPostWhileAsleep(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	for u.p.Arm() {
		u.p.Poll(u.buf[:])
	}
	u.q.Close()
	u.p.ticks, u.p.lastLook = 1, time.Time{}
	if n, err := u.p.Post([]path.Op{{Kind: path.Notify}}); n != 0 || !errors.Is(err, path.ErrDown) {
		t.Fatalf("%d operations accepted, %v", n, err)
	}
	if ready, err := sys.PollIn(0, u.p.FD()); ready != 0 || err != nil {
		t.Errorf("the descriptor is silent although there is an event (%v)", err)
	}
	for down := false; !down; {
		for _, e := range u.buf[:u.p.Poll(u.buf[:])] {
			down = down || e.Kind == path.EventDown
		}
	}
	u.p.Poll(u.buf[:])
	if ready, err := sys.PollIn(0, u.p.FD()); ready == 0 || err != nil {
		t.Errorf("the descriptor stays readable behind the last event (%v)", err)
	}
}
