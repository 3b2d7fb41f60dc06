package transfer

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// askLease asks for a lease by hand.
func askLease(t testing.TB, p *Peer, key path.Key, small bool) control.Staging {
	t.Helper()
	r, err := p.request(ctx(t), &control.Stage{Key: key, Small: small})
	if err != nil {
		t.Fatal(err)
	}
	l, err := control.Parse[control.Staging](r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestHostileStaging: what a peer may not do with slots and with memory of devices is refused,
// nothing moves, and the session goes on.
func TestHostileStaging(t *testing.T) {
	d := newFakeDevice(t, "card of b")
	p := newPair(t, Options{})
	p.ignore(t)
	r, _ := d.region(1 << 20)
	ro, _ := d.region(4096)
	wo, _ := d.region(4096)
	key := export(t, p.b, r, "rw", path.Read|path.Write).Key()
	readable := export(t, p.b, ro, "ro", path.Read).Key()
	writable := export(t, p.b, wo, "wo", path.Write).Key()
	gone := export(t, p.b, wo, "gone", path.Read|path.Write)
	host := export(t, p.b, region(t, 4096), "host", path.Read|path.Write).Key()
	other, err := p.b.Dial(ctx(t), p.b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := p.b.Export(wo.All(), ExportOptions{Rights: path.Read | path.Write, Peer: other})
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	forged := key
	forged.Secret ^= 1
	for _, c := range []struct {
		key  path.Key
		want control.Code
	}{{host, control.BadRequest}, {forged, control.NotFound}, {foreign.Key(), control.NotFound}} {
		if _, err := p.ab.request(ctx(t), &control.Stage{Key: c.key}); !errors.Is(err, c.want) {
			t.Errorf("a lease for %v: %v, expected %v", c.key, err, c.want)
		}
	}
	if n := d.staged.Load(); n != 0 {
		t.Errorf("%d leases are left", n)
	}
	l := askLease(t, p.ab, key, true)
	if _, err := p.ab.request(ctx(t), &control.Stage{Key: key, Small: true}); !errors.Is(err, control.Exists) {
		t.Errorf("a second lease: %v", err)
	}
	n := l.SlotSize
	block := func(k path.Key, off, n uint64) []control.Block { return []control.Block{{Key: k, Off: off, Len: n}} }
	bad := l.Desc.Key
	bad.Secret ^= 1
	moves := d.moves.Load()
	for name, c := range map[string]struct {
		lease  path.Key
		slot   uint32
		blocks []control.Block
		place  []control.Code // nil: it is refused for fetch only
		fetch  []control.Code
	}{
		"unknown lease": {bad, 0, block(key, 0, 1), []control.Code{control.NotFound},
			[]control.Code{control.NotFound}},
		"an export": {key, 0, block(key, 0, 1), []control.Code{control.NotFound},
			[]control.Code{control.NotFound}},
		"slot behind": {l.Desc.Key, l.Slots, block(key, 0, 1), []control.Code{control.BadRequest},
			[]control.Code{control.BadRequest}},
		"highest slot": {l.Desc.Key, ^uint32(0), block(key, 0, 1), []control.Code{control.BadRequest},
			[]control.Code{control.BadRequest}},
		"forged key": {l.Desc.Key, 0, block(forged, 0, 1), []control.Code{control.NotFound},
			[]control.Code{control.NotFound}},
		"revoked": {l.Desc.Key, 0, block(gone.Key(), 0, 1), []control.Code{control.Revoked, control.NotFound},
			[]control.Code{control.Revoked, control.NotFound}},
		"of another peer": {l.Desc.Key, 0, block(foreign.Key(), 0, 1), []control.Code{control.NotFound},
			[]control.Code{control.NotFound}},
		"host memory": {l.Desc.Key, 0, block(host, 0, 1), []control.Code{control.BadRequest},
			[]control.Code{control.BadRequest}},
		"the lease itself": {l.Desc.Key, 0, block(l.Desc.Key, 0, 1), []control.Code{control.BadRequest},
			[]control.Code{control.BadRequest}},
		"behind the end": {l.Desc.Key, 0, block(key, 1<<20, 1), []control.Code{control.BadRequest},
			[]control.Code{control.BadRequest}},
		"offset wraps": {l.Desc.Key, 0, block(key, ^uint64(0), 2), []control.Code{control.BadRequest},
			[]control.Code{control.BadRequest}},
		"length wraps": {l.Desc.Key, 0, append(block(key, 0, 8), block(key, 8, ^uint64(0)-7)...),
			[]control.Code{control.BadRequest}, []control.Code{control.BadRequest}},
		"more than a slot": {l.Desc.Key, 0, append(block(key, 0, n), block(key, 0, 1)...),
			[]control.Code{control.BadRequest}, []control.Code{control.BadRequest}},
		"good, then a bad": {l.Desc.Key, 0, append(block(key, 0, 8), block(forged, 0, 1)...),
			[]control.Code{control.NotFound}, []control.Code{control.NotFound}},
		"for reading only": {l.Desc.Key, 0, block(readable, 0, 1), []control.Code{control.NotPermitted}, nil},
		"for writing only": {l.Desc.Key, 0, block(writable, 0, 1), nil, []control.Code{control.NotPermitted}},
		"empty, and behind": {l.Desc.Key, 0, block(key, 1<<20+1, 0), []control.Code{control.BadRequest},
			[]control.Code{control.BadRequest}},
	} {
		if c.place != nil {
			if _, err := p.ab.request(ctx(t), &control.Place{Lease: c.lease, Slot: c.slot,
				Blocks: c.blocks}); !slices.ContainsFunc(c.place, func(x control.Code) bool {
				return errors.Is(err, x)
			}) {
				t.Errorf("place, %s: %v, expected %v", name, err, c.place)
			}
		}
		if c.fetch != nil {
			if _, err := p.ab.request(ctx(t), &control.Fetch{Lease: c.lease, Slot: c.slot,
				Blocks: c.blocks}); !slices.ContainsFunc(c.fetch, func(x control.Code) bool {
				return errors.Is(err, x)
			}) {
				t.Errorf("fetch, %s: %v, expected %v", name, err, c.fetch)
			}
		}
	}
	if got := d.moves.Load(); got != moves {
		t.Errorf("%d copies for requests that were refused", got-moves)
	}
	// The lease is this peer's alone.
	if _, err := other.request(ctx(t), &control.Place{Lease: l.Desc.Key, Blocks: block(key, 0, 1)}); !errors.Is(err,
		control.NotFound) {
		t.Errorf("a lease of another peer: %v", err)
	}
	other.Import(l.Desc)
	x, err := other.Get(ctx(t), []path.Copy{{Local: region(t, 4096).All(), Key: l.Desc.Key}},
		PutOptions{Paths: []string{"tcp"}})
	if err == nil {
		err = x.Wait(ctx(t))
	}
	if !errors.Is(err, path.ErrKey) {
		t.Errorf("a get from a slot of another peer: %v", err)
	}
	// Nothing of what others left is in the slots.
	p.ab.Import(l.Desc)
	seen := region(t, int(l.Desc.Size))
	x, err = p.ab.Get(ctx(t), []path.Copy{{Local: seen.All(), Key: l.Desc.Key}}, PutOptions{})
	wait(t, x, err)
	for i, b := range seen.All().Bytes() {
		if b != 0 {
			t.Fatalf("byte %d of a fresh lease is %#x", i, b)
		}
	}
	// A slot is in use by one request at a time, and holds the lease.
	open := d.hold()
	done := make(chan error, 1)
	for len(d.begun) > 0 {
		<-d.begun
	}
	go func() {
		_, err := p.ab.request(ctx(t), &control.Place{Lease: l.Desc.Key, Slot: 2, Blocks: block(key, 0, n)})
		done <- err
	}()
	d.awaitCopy(t)
	if _, err := p.ab.request(ctx(t), &control.Fetch{Lease: l.Desc.Key, Slot: 2,
		Blocks: block(key, 0, n)}); !errors.Is(err, control.Busy) {
		t.Errorf("a slot twice: %v", err)
	}
	if _, err := p.ab.request(ctx(t), &control.Unstage{Lease: l.Desc.Key}); !errors.Is(err, control.Busy) {
		t.Errorf("a lease in use was ended: %v", err)
	}
	open()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := p.ab.request(ctx(t), &control.Unstage{Lease: l.Desc.Key}); err != nil {
		t.Error(err)
	}
	if _, err := p.ab.request(ctx(t), &control.Unstage{Lease: l.Desc.Key}); !errors.Is(err, control.NotFound) {
		t.Errorf("a lease was ended twice: %v", err)
	}
	if n := d.staged.Load(); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}

// TestLeasesRunOut: a node lends no more than Options.Staging, and a peer that comes then waits
// until others return theirs.
func TestLeasesRunOut(t *testing.T) {
	d := newFakeDevice(t, "card of b")
	p := newPair(t, Options{Staging: bounce.Least})
	p.ignore(t)
	r, _ := d.region(1 << 20)
	src := region(t, 1<<20)
	x := export(t, p.b, r, "dst", path.Read|path.Write)
	// The large leases of two peers are all that there is: 4 slots of 64 KiB each, of 512 KiB.
	var hogs []*Peer
	var leases []control.Staging
	for range 2 {
		hog, err := p.a.Dial(ctx(t), p.b.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		hogs = append(hogs, hog)
		leases = append(leases, askLease(t, hog, x.Key(), false))
	}
	to := lookup(t, p.ab, "dst").At(0, src.All())
	stuck, err := p.ab.Put(ctx(t), []path.Copy{to}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	canceled, err := p.ab.Put(ctx(t), []path.Copy{to}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	canceled.Cancel()
	if soon(t, canceled.Done(), "the end of a transfer that waits for a lease"); !errors.Is(canceled.Err(),
		path.ErrCanceled) {
		t.Errorf("%v", canceled.Err())
	}
	select {
	case <-stuck.Done():
		t.Errorf("done without a lease: %v", stuck.Err())
	case <-time.After(20 * time.Millisecond):
	}
	if _, err := hogs[0].request(ctx(t), &control.Unstage{Lease: leases[0].Desc.Key}); err != nil {
		t.Fatal(err)
	}
	wait(t, stuck, nil)
	// The other goes with its session.
	hogs[1].Close()
	until(t, "the lease of a session that ended is given back", func() bool { return d.staged.Load() <= 1 })
	// The holder gives one back that it does not use for a while.
	until(t, "a lease that nobody uses is given back", func() bool { return d.staged.Load() == 0 })
	y, err := p.ab.Put(ctx(t), []path.Copy{to}, PutOptions{})
	wait(t, y, err)
}
