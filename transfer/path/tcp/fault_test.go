package tcp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// faultSeeds is how many random plans a test runs.
const faultSeeds = 24

// disturbed are faults that TCP lets through: what an ordinary network, a dying peer or a broken
// middlebox does.
var disturbed = []fault.Kind{fault.Cut, fault.Stall, fault.Delay, fault.Short, fault.Corrupt, fault.Duplicate,
	fault.HalfClose}

// faulty connects two ends through proxies under a plan; a dials. Either both ends are there, or an
// error says why not.
func faulty(t testing.TB, d *fault.ProxyDriver, ca, cb setup.Config) (pa, pb path.Path, err error) {
	t.Helper()
	l, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tok := newToken()
	var wg sync.WaitGroup
	var accErr error
	wg.Go(func() {
		if pb, accErr = l.Accept(ctx, tok, cb); accErr != nil {
			cancel() // no Accept answers the dialer any more
		}
	})
	pa, err = d.Dial(ctx, setup.Offer{Addr: l.Addr(), Token: tok}, ca)
	if err != nil {
		cancel()
	}
	wg.Wait()
	if err != nil || accErr != nil {
		for _, p := range []path.Path{pa, pb} {
			if p != nil {
				p.Close()
			}
		}
		return nil, nil, fmt.Errorf("dial: %w; accept: %w", err, accErr)
	}
	return pa, pb, nil
}

// traffic posts small operations of all kinds from both ends and drives them until each has ended.
// It returns how many succeeded and failed. pathtest's pair checks that none ends twice.
func traffic(t testing.TB, p *pathtest.Pair, sums bool) (good, bad int) {
	t.Helper()
	const slot, slots = 24 << 10, 24
	type job struct {
		r    *pathtest.Result
		side *pathtest.Side
		op   path.Op
		to   []byte // where the bytes of a put or get must be
		seed uint64
	}
	var jobs []job
	for k, s := range p.Sides() {
		local, remote := s.Region(slot*slots), s.Other().Region(slot*slots)
		key := s.Other().Export(remote, path.Read|path.Write).Key()
		for i := range uint64(slots) {
			n := []uint64{1, 700, 5000, slot}[i%4]
			lo := mem.Span{Region: local, Off: i * slot, Len: n}
			re := mem.Span{Region: remote, Off: i * slot, Len: n}
			j := job{side: s, seed: 1000*uint64(k+1) + i*10_000, to: re.Bytes()}
			from := lo.Bytes()
			j.op = path.Op{Kind: path.Put, Notify: i%3 == 0, Imm: i, Msg: []byte("m")}
			if i%2 == 1 {
				j.op.Kind, j.to, from = path.Get, from, j.to
			}
			pathtest.Fill(from, j.seed)
			j.op.Copies = []path.Copy{{Local: lo, Key: key, RemoteOff: i * slot}}
			jobs = append(jobs, j)
		}
	}
	for i := range jobs {
		jobs[i].r = jobs[i].side.Post(jobs[i].op)[0]
	}
	p.Drive("the end of every operation", func() bool {
		for i := range jobs {
			if jobs[i].r.Times == 0 {
				return false
			}
		}
		return true
	})
	for _, j := range jobs {
		switch {
		case j.r.Err == nil:
			good++
			if at := pathtest.Verify(j.to, j.seed); sums && at >= 0 {
				t.Errorf("side %s: operation kind %d succeeded with byte %d of %d wrong", j.side.Name, j.op.Kind, at,
					len(j.to))
			}
		case errors.Is(j.r.Err, path.ErrDown), errors.Is(j.r.Err, path.ErrIntegrity),
			errors.Is(j.r.Err, path.ErrProtocol):
			bad++
		default:
			t.Errorf("side %s: operation kind %d ended with %v", j.side.Name, j.op.Kind, j.r.Err)
		}
	}
	return good, bad
}

// Under faults of every kind each operation ends once, what succeeds has the right bytes, and
// nothing hangs.
func TestFaultsOnTheWire(t *testing.T) {
	var good, bad int
	var counts fault.Counts
	for seed := range uint64(faultSeeds) {
		plan := fault.Random(fault.Bytes, seed, 300_000, disturbed...)
		for i := range plan.Rules { // the handshake has a test of its own
			plan.Rules[i].At.N += 2 * (helloSize + confirmSize)
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Logf("plan %q", plan)
			o := Options{CongestionControl: CongestionSystem}
			d, err := fault.NewProxyDriver(New(o), plan)
			if err != nil {
				t.Fatal(err)
			}
			f := pathtest.Factory{New: func(t testing.TB, ca, cb setup.Config) (path.Path, path.Path) {
				ca.Streams, cb.Streams = 1+int(seed%3), 1+int(seed%3)
				if seed%2 == 1 {
					ca.Secret, cb.Secret = aSecret(), aSecret()
				}
				pa, pb, err := faulty(t, d, ca, cb)
				if err != nil {
					t.Fatal(err)
				}
				return pa, pb
			}}
			p := pathtest.NewPair(t, f, 16)
			g, b := traffic(t, p, true)
			good, bad = good+g, bad+b
			for k, n := range d.Counts() {
				counts[k] += n
			}
			t.Logf("%d good, %d bad, %v", g, b, d.Counts())
		})
	}
	t.Logf("%d good, %d bad, %v", good, bad, counts)
	for _, k := range disturbed {
		if counts[k] == 0 {
			t.Errorf("no %v in %d seeds", k, faultSeeds)
		}
	}
	if good == 0 || bad == 0 {
		t.Errorf("%d operations succeeded, %d failed: expected both", good, bad)
	}
}

// A handshake that is disturbed ends with an error on both sides, or with a path.
func TestFaultsInTheHandshake(t *testing.T) {
	made, failed := 0, 0
	for seed := range uint64(faultSeeds) {
		plan := fault.Random(fault.Bytes, seed, 2*helloSize+confirmSize, fault.Cut, fault.Stall, fault.Short,
			fault.Corrupt, fault.HalfClose, fault.Refuse)
		d, err := fault.NewProxyDriver(New(Options{CongestionControl: CongestionSystem}), plan)
		if err != nil {
			t.Fatal(err)
		}
		ca, cb := configs()
		ca.Streams = 1 + int(seed%2)
		if seed%4 < 2 {
			ca.Secret, cb.Secret = aSecret(), aSecret()
		}
		before := countFiles(t)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			pa, pb, err := faulty(t, d, ca, cb)
			if err != nil {
				t.Logf("plan %q: %v", plan, err)
				failed++
				return
			}
			made++
			pa.Close()
			pb.Close()
		})
		if n := countFiles(t); n > before {
			t.Errorf("plan %q: %d descriptors before, %d after", plan, before, n)
		}
	}
	if made == 0 || failed == 0 {
		t.Errorf("%d paths were set up, %d were not: expected both", made, failed)
	}
}

func countFiles(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// Without checksums damage passes, which shows that the damage of the tests above is real.
func TestDamageWithoutChecksum(t *testing.T) {
	d, err := fault.NewProxyDriver(New(Options{CongestionControl: CongestionSystem}), fault.Plan{Seed: 1,
		Rules: []fault.Rule{{Kind: fault.Corrupt, Dir: fault.Up, At: fault.Exactly(helloSize + headerSize + 1000)}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, sums := range []bool{true, false} {
		p := pathtest.NewPair(t, pathtest.Factory{New: func(t testing.TB, ca, cb setup.Config) (path.Path, path.Path) {
			ca.NoChecksum = !sums
			pa, pb, err := faulty(t, d, ca, cb)
			if err != nil {
				t.Fatal(err)
			}
			return pa, pb
		}}, 0)
		local, remote := p.A.Region(64<<10), p.B.Region(64<<10)
		pathtest.Fill(local.All().Bytes(), 3)
		e := p.A.Do(path.Op{Kind: path.Put, Copies: []path.Copy{{Local: local.All(),
			Key: p.B.Export(remote, path.Write).Key()}}})
		if sums && !errors.Is(e.Err, path.ErrIntegrity) {
			t.Errorf("with checksums: %v", e.Err)
		}
		if at := pathtest.Verify(remote.All().Bytes(), 3); !sums && (e.Err != nil || at < 0) {
			t.Errorf("without checksums: %v, first wrong byte %d", e.Err, at)
		}
	}
}
