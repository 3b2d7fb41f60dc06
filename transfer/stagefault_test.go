package transfer

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// stagedPair is a pair of nodes, and memory of a device of each, with little staging memory so that
// transfers have many pieces.
type stagedPair struct {
	*pair
	da, db   *fakeDevice
	src, dst []byte
	local    path.Copy // all of a's memory to all of b's
	x        *Export
}

func newStagedPair(t testing.TB, size int, o Options) *stagedPair {
	p := &stagedPair{da: newFakeDevice(t, "card of a"), db: newFakeDevice(t, "card of b")}
	if o.Staging == 0 {
		o.Staging = bounce.Least
	}
	p.pair = newPair(t, o)
	p.ignore(t)
	src, sb := p.da.region(size)
	dst, rb := p.db.region(size)
	p.src, p.dst = sb, rb
	fillBytes(sb, 3)
	p.x = export(t, p.b, dst, "dst", path.Read|path.Write)
	p.local = lookup(t, p.ab, "dst").At(0, src.All())
	return p
}

// hold has copies of the device not end until open is called.
func (d *fakeDevice) hold() (open func()) {
	gate := make(chan struct{})
	d.mu.Lock()
	d.gate = gate
	d.mu.Unlock()
	return func() {
		d.mu.Lock()
		d.gate = nil
		d.mu.Unlock()
		close(gate)
	}
}

// failing has copies from number n on fail.
func (d *fakeDevice) failing(n int64) {
	d.mu.Lock()
	d.fail = func(k int64, _ bool) error {
		if k >= n {
			return errLost
		}
		return nil
	}
	d.mu.Unlock()
}

func (d *fakeDevice) awaitCopy(t testing.TB) {
	t.Helper()
	select {
	case <-d.begun:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s: no copy began", d.name)
	}
}

// idleStaging checks that no piece has a slot, of this node or of a peer.
func idleStaging(t testing.TB, n *Node) {
	t.Helper()
	if err := n.staging.Verify(); err != nil {
		t.Errorf("%s: %v", n.Name(), err)
	}
}

// TestDeviceLost: a card that is lost in the middle ends the transfer once, with what it said, and
// everything is given back; other memory of the same nodes goes on.
func TestDeviceLost(t *testing.T) {
	for _, kind := range []path.OpKind{path.Put, path.Get} {
		for _, remote := range []bool{false, true} {
			p := newStagedPair(t, 3<<20, Options{})
			lost := p.da
			if remote {
				lost = p.db
			}
			lost.failing(17)
			x, err := p.ab.begin(ctx(t), kind, []path.Copy{p.local}, PutOptions{Paths: []string{"tcp"}})
			if err != nil {
				t.Fatal(err)
			}
			var ends atomic.Int64
			x.OnDone(func(*Transfer) { ends.Add(1) })
			soon(t, x.Done(), "the end of the transfer")
			err = x.Err()
			if remote && !errors.Is(err, control.Internal) || !remote && !errors.Is(err, errLost) ||
				!strings.Contains(err.Error(), lost.name) || !strings.Contains(err.Error(), errLost.Error()) {
				t.Errorf("kind %v, at the peer: %v: %v", kind, remote, err)
			}
			if p.da.live.Load() != 0 || p.db.live.Load() != 0 {
				t.Errorf("copies are under way after the end")
			}
			if e := x.Explain(); e.Moved == 0 || e.Moved >= x.Bytes() {
				t.Errorf("%d bytes are in place: %v", e.Moved, e)
			}
			if k := p.a.Snapshot().Totals[kind-path.Put]; k.Begun != 1 || k.Running != 0 ||
				k.Completed+k.Canceled != 0 {
				t.Errorf("%+v", k)
			}
			idleStaging(t, p.a)
			idleStaging(t, p.b)
			lost.failing(1 << 40)
			x, err = p.ab.Put(ctx(t), []path.Copy{p.local}, PutOptions{})
			wait(t, x, err)
			if !bytes.Equal(p.src, p.dst) {
				t.Error("another transfer brought other bytes")
			}
		}
	}
}

// TestStagedCancel: a canceled transfer ends when nothing moves any more, and not before.
func TestStagedCancel(t *testing.T) {
	for _, kind := range []path.OpKind{path.Put, path.Get} {
		for _, remote := range []bool{false, true} {
			p := newStagedPair(t, 3<<20, Options{})
			d := p.da
			if remote {
				d = p.db
			}
			open := d.hold()
			x, err := p.ab.begin(ctx(t), kind, []path.Copy{p.local}, PutOptions{})
			if err != nil {
				t.Fatal(err)
			}
			d.awaitCopy(t)
			x.Cancel()
			select {
			case <-x.Done():
				t.Errorf("kind %v, at the peer: %v: it is over while a copy is under way", kind, remote)
			case <-time.After(20 * time.Millisecond):
			}
			open()
			soon(t, x.Done(), "the end of a canceled transfer")
			if !errors.Is(x.Err(), path.ErrCanceled) || p.da.live.Load()+p.db.live.Load() != 0 {
				t.Errorf("%v, %d and %d copies under way", x.Err(), p.da.live.Load(), p.db.live.Load())
			}
			idleStaging(t, p.a)
			idleStaging(t, p.b)
		}
	}
}

// TestStagedRevoke: a revocation waits for the copies that are under way, and none begins after it.
func TestStagedRevoke(t *testing.T) {
	for _, kind := range []path.OpKind{path.Put, path.Get} {
		p := newStagedPair(t, 3<<20, Options{})
		open := p.db.hold()
		x, err := p.ab.begin(ctx(t), kind, []path.Copy{p.local}, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.db.awaitCopy(t)
		revoked := make(chan error, 1)
		go func() { revoked <- p.x.Revoke(context.Background()) }()
		select {
		case err := <-revoked:
			open()
			t.Fatalf("revoked while a copy was under way: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		open()
		if err := <-revoked; err != nil {
			t.Error(err)
		}
		if n := p.db.live.Load(); n != 0 {
			t.Errorf("%d copies are under way after the revocation", n)
		}
		before := p.db.moves.Load()
		soon(t, x.Done(), "the end of a transfer with what was revoked")
		if err := x.Err(); !errors.Is(err, path.ErrRevoked) && !errors.Is(err, path.ErrKey) {
			t.Errorf("%v", err)
		}
		if n := p.db.moves.Load(); n != before {
			t.Errorf("%d copies began after the revocation", n-before)
		}
		idleStaging(t, p.a)
	}
}

// TestStagedSessionLost: a session is gone only when nothing moves for it any more, at either side.
func TestStagedSessionLost(t *testing.T) {
	p := newStagedPair(t, 3<<20, Options{})
	open := p.db.hold()
	x, err := p.ab.Put(ctx(t), []path.Copy{p.local}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.db.awaitCopy(t)
	p.ab.raw.Close()
	soon(t, x.Done(), "the end of a transfer whose session is lost")
	if !errors.Is(x.Err(), ErrPeerLost) {
		t.Errorf("%v", x.Err())
	}
	select {
	case <-p.ba.Gone():
		t.Error("the session is gone while a copy is under way for it")
	case <-time.After(20 * time.Millisecond):
	}
	open()
	soon(t, p.ba.Gone(), "the end of the session")
	if n := p.db.live.Load(); n != 0 {
		t.Errorf("%d copies are under way for a session that is gone", n)
	}
	idleStaging(t, p.a)
	if n := p.db.staged.Load(); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}

// TestStagedFailover: pieces whose path goes down go on by another one, and the transfer is one
// that changed its path once.
func TestStagedFailover(t *testing.T) {
	for _, kind := range []path.OpKind{path.Put, path.Get} {
		bad := over("bad")
		bad.cost = path.Cost{Latency: 1, BytesPerSec: 1e12, Measured: true}
		var posts atomic.Int64
		bad.post = func(p path.Path, ops []path.Op) (int, error) {
			if posts.Add(int64(len(ops))) > 9 {
				p.Close()
			}
			return p.Post(ops)
		}
		p := newStagedPair(t, 3<<20, Options{Paths: []setup.Driver{bad, tcp.New(tcp.Options{})}})
		if kind == path.Get {
			fillBytes(p.dst, 9)
		}
		bad.dials.Store(0)
		x, err := p.ab.begin(ctx(t), kind, []path.Copy{p.local}, PutOptions{})
		wait(t, x, err)
		if !bytes.Equal(p.src, p.dst) {
			t.Error("other bytes arrived")
		}
		e := x.Explain()
		if e.Path != "tcp" || len(e.Failovers) == 0 || e.Failovers[0].From != "bad" {
			t.Errorf("%v", e)
		}
		if k := p.a.Snapshot().Totals[kind-path.Put]; k.Completed != 1 || k.Failovers == 0 ||
			k.Failovers > uint64(len(e.Failovers)) || k.Bytes != 3<<20 {
			t.Errorf("%+v\n%v", k, e)
		}
		idleStaging(t, p.a)
		idleStaging(t, p.b)
	}
}

// TestStagingMemory: a node that gets only a few slots works with these, and one that gets none
// says so.
func TestStagingMemory(t *testing.T) {
	p := newStagedPair(t, 1<<20, Options{})
	p.da.room.Store(2)
	x, err := p.ab.Put(ctx(t), []path.Copy{p.local}, PutOptions{})
	wait(t, x, err)
	if !bytes.Equal(p.src, p.dst) || p.da.staged.Load() > 2 {
		t.Errorf("%d slots", p.da.staged.Load())
	}
	idleStaging(t, p.a)

	p = newStagedPair(t, 1<<20, Options{})
	p.da.room.Store(0)
	x, err = p.ab.Put(ctx(t), []path.Copy{p.local}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if soon(t, x.Done(), "the end"); x.Err() == nil || !strings.Contains(x.Err().Error(), "no pinned memory left") {
		t.Errorf("without memory here: %v", x.Err())
	}
	idleStaging(t, p.a)
	p = newStagedPair(t, 1<<20, Options{})
	p.db.room.Store(0)
	x, err = p.ab.Put(ctx(t), []path.Copy{p.local}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if soon(t, x.Done(), "the end"); !errors.Is(x.Err(), control.OverBudget) ||
		!strings.Contains(x.Err().Error(), "no pinned memory left") {
		t.Errorf("without memory at the peer: %v", x.Err())
	}
	idleStaging(t, p.a)
	if n := p.db.staged.Load(); n != 0 {
		t.Errorf("%d leases are left", n)
	}
	if _, err := Open(ctx(t), Options{Staging: 1000}); err == nil {
		t.Error("a node with 1000 bytes for staging")
	}
}

// TestSmallPassesLarge: a small transfer does not wait for slots that a large one has.
func TestSmallPassesLarge(t *testing.T) {
	p := newStagedPair(t, 3<<20, Options{})
	small := p.a.staging.SmallSlot()
	gate := make(chan struct{})
	p.db.mu.Lock()
	p.db.fail = func(int64, bool) error { return nil }
	p.db.slow = func(bytes uint64) <-chan struct{} {
		if bytes > small {
			return gate
		}
		return nil
	}
	p.db.mu.Unlock()
	large, err := p.ab.Put(ctx(t), []path.Copy{p.local}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.db.awaitCopy(t)
	one := p.local
	one.Local.Len = small
	for range 20 {
		x, err := p.ab.Put(ctx(t), []path.Copy{one}, PutOptions{})
		wait(t, x, err)
	}
	select {
	case <-large.Done():
		t.Error("the large one is over")
	default:
	}
	close(gate)
	wait(t, large, nil)
}
