package transfer

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics/prom"
	"github.com/penstock-io/penstock/transfer/account"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// The operations as Totals has them.
const (
	opPut = iota
	opGet
)

// sums are what a test counted itself, by kind of transfer.
type sums struct {
	begun, completed, canceled, failed, rejected map[string]uint64
	bytes, partial                               map[string]uint64
}

func newSums() *sums {
	m := func() map[string]uint64 { return map[string]uint64{} }
	return &sums{m(), m(), m(), m(), m(), m(), m()}
}

// enter counts a transfer that has ended.
func (s *sums) enter(x *Transfer) {
	e := x.Explain()
	s.begun[e.Kind]++
	switch err := x.Err(); {
	case err == nil:
		s.completed[e.Kind]++
		s.bytes[e.Kind] += e.Moved
	case isCanceled(err):
		s.canceled[e.Kind]++
		s.partial[e.Kind] += e.Moved
	default:
		s.failed[e.Kind]++
		s.partial[e.Kind] += e.Moved
	}
}

func isCanceled(err error) bool { return strings.Contains(err.Error(), path.ErrCanceled.Error()) }

// agrees compares a snapshot with what was counted.
func (s *sums) agrees(t *testing.T, when string, all []observe.KindTotals) {
	t.Helper()
	if len(all) != 3 {
		t.Fatalf("%s: %d kinds", when, len(all))
	}
	for _, k := range all {
		var failures, rejected uint64
		for _, n := range k.Failures {
			failures += n
		}
		for _, n := range k.Rejected {
			rejected += n
		}
		want := observe.KindTotals{Kind: k.Kind, Begun: s.begun[k.Kind], Completed: s.completed[k.Kind],
			Canceled: s.canceled[k.Kind], Failed: s.failed[k.Kind],
			Bytes: s.bytes[k.Kind], Partial: s.partial[k.Kind]}
		got := observe.KindTotals{Kind: k.Kind, Begun: k.Begun, Running: k.Running, Completed: k.Completed,
			Canceled: k.Canceled, Failed: k.Failed, Bytes: k.Bytes, Partial: k.Partial}
		if fmt.Sprint(got) != fmt.Sprint(want) || failures != k.Failed || rejected != s.rejected[k.Kind] {
			t.Errorf("%s: the snapshot says\n%+v\nthe transfers\n%+v\nfailures by reason %v, %d calls were rejected",
				when, k, want, k.Failures, s.rejected[k.Kind])
		}
	}
}

// grows checks that no counter of a later snapshot is below an earlier one.
func grows(t *testing.T, a, b *observe.Snapshot) {
	t.Helper()
	for i, x := range a.Totals {
		y := b.Totals[i]
		for what, n := range map[string][2]uint64{"begun": {x.Begun, y.Begun}, "completed": {x.Completed, y.Completed},
			"failed":   {x.Failed, y.Failed},
			"canceled": {x.Canceled, y.Canceled}, "bytes": {x.Bytes, y.Bytes}, "partial": {x.Partial, y.Partial}} {
			if n[1] < n[0] {
				t.Errorf("%s of %s went from %d to %d", what, x.Kind, n[0], n[1])
			}
		}
		if y.Begun != y.Running+y.Completed+y.Canceled+y.Failed || y.Running > y.Begun {
			t.Errorf("%+v does not add up", y)
		}
	}
	for _, x := range a.Paths {
		for _, y := range b.Paths {
			if x.Path == y.Path && (y.Counters.BytesPut < x.Counters.BytesPut ||
				y.Counters.OpsDone < x.Counters.OpsDone || y.Opened < x.Opened) {
				t.Errorf("%+v became %+v", x, y)
			}
		}
	}
	if b.Node.Refused < a.Node.Refused || b.Node.PeersTotal < a.Node.PeersTotal {
		t.Errorf("%+v became %+v", a.Node, b.Node)
	}
}

// Under faults of every kind each transfer is counted once, with its bytes, whatever became of it
// and of its peer, and the counters never go back.
func TestSnapshotAddsUp(t *testing.T) {
	const workers, each, slot = 4, 12, 40_000
	var good, bad uint64
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			data := fault.Random(fault.Bytes, seed, 400_000, wireFaults...)
			d, err := fault.NewProxyDriver(tcp.New(tcp.Options{CongestionControl: tcp.CongestionSystem}), data)
			if err != nil {
				t.Fatal(err)
			}
			p := newPair(t, Options{Paths: []setup.Driver{d}, HeartbeatEvery: 200 * time.Millisecond,
				DeadAfter: time.Second})
			p.ignore(t)
			local, remote := region(t, workers*slot), region(t, workers*slot)
			export(t, p.b, remote, "memory", path.Read|path.Write)
			rem := lookup(t, p.ab, "memory")

			stop := make(chan struct{})
			var watch sync.WaitGroup
			watch.Go(func() {
				last := p.a.Snapshot()
				for {
					next := p.a.Snapshot()
					grows(t, &last, &next)
					last = next
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
					}
				}
			})
			s := newSums()
			var mu sync.Mutex
			var wg sync.WaitGroup
			for w := range uint64(workers) {
				wg.Go(func() {
					c := ctx(t)
					for i := range uint64(each) {
						kind := path.OpKind(1 + (w+i)%3)
						span := mem.Span{Region: local, Off: w * slot, Len: []uint64{0, 1, 900, slot}[i%4]}
						var x *Transfer
						var err error
						switch kind {
						case path.Put:
							x, err = p.ab.Put(c, []path.Copy{rem.At(w*slot, span)}, PutOptions{})
						case path.Get:
							x, err = p.ab.Get(c, []path.Copy{rem.At(w*slot, span)}, PutOptions{})
						default:
							x, err = p.ab.Notify(c, []byte("hello"), PutOptions{})
						}
						if err != nil {
							mu.Lock()
							s.rejected[account.KindName(kind)]++
							mu.Unlock()
							continue
						}
						if i%5 == 4 {
							x.Cancel()
						}
						<-x.Done()
						mu.Lock()
						s.enter(x)
						mu.Unlock()
						if w == 0 && i == each/2 && seed%2 == 1 {
							p.ab.Close() // the others go on with a peer that is lost
						}
					}
				})
			}
			wg.Wait()
			if _, err := p.ab.Put(ctx(t), []path.Copy{{Local: mem.Span{Region: local, Off: 1 << 40, Len: 1}}},
				PutOptions{}); err == nil {
				t.Error("a put outside its region was taken")
			}
			s.rejected["put"]++
			close(stop)
			watch.Wait()
			now := p.a.Snapshot()
			s.agrees(t, "after the last transfer", now.Totals)
			var latencies uint64
			for _, l := range now.Latency {
				latencies += l.Count
			}
			if now.Node.TransfersRunning != 0 || len(now.Transfers) != 0 ||
				latencies != s.completed["put"]+s.completed["get"]+s.completed["notify"] {
				t.Errorf("%d latencies of %v, still running: %+v", latencies, s.completed, now.Transfers)
			}
			p.a.Close()
			then := p.a.Snapshot()
			grows(t, &now, &then)
			s.agrees(t, "after the end of the node", then.Totals)
			if len(then.Peers) != 0 || then.Node.PeersTotal != 1 {
				t.Errorf("peers after the end: %+v, %d in all", then.Peers, then.Node.PeersTotal)
			}
			good += s.completed["put"] + s.completed["get"]
			bad += s.failed["put"] + s.failed["get"] + s.rejected["get"]
		})
	}
	if good == 0 || bad == 0 {
		t.Errorf("%d completed, %d not: expected both", good, bad)
	}
}

// What a snapshot says of a quiet node with two paths and an export.
func TestSnapshot(t *testing.T) {
	p := newPair(t, Options{})
	dst, src := region(t, 4096), region(t, 4096)
	export(t, p.b, dst, "weights", path.Read|path.Write)
	rem := lookup(t, p.ab, "weights")
	for _, name := range paths {
		for range 3 {
			x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{name}})
			wait(t, x, err)
			<-p.heard
		}
	}
	if _, err := p.ab.Lookup(ctx(t), "nothing"); err == nil {
		t.Fatal("found nothing")
	}
	a, b := p.a.Snapshot(), p.b.Snapshot()
	if x := b.Exports; len(x) != 1 || x[0] != (observe.ExportStatus{Name: "weights", Bytes: 4096, Rights: "read+write",
		Whole: true, Generation: 1}) {
		t.Errorf("exports: %+v", x)
	}
	if b.Node.Name != "b" || b.Node.Refused != 1 || b.Node.PeersTotal != 1 || len(b.Node.Addresses) != 1 ||
		b.Node.Addresses[0] != p.b.Addrs()[0] {
		t.Errorf("node: %+v", b.Node)
	}
	if len(a.Peers) != 1 || len(b.Peers) != 1 {
		t.Fatalf("peers: %+v, %+v", a.Peers, b.Peers)
	}
	ab, ba := a.Peers[0], b.Peers[0]
	if ab.Name != "b" || ba.Name != "a" || ab.Address != p.b.Addrs()[0] || ab.Security != "same host" || !ab.SameHost ||
		ba.Refused != 1 || ab.ID != 1 {
		t.Errorf("%+v\n%+v", ab, ba)
	}
	if ab.BytesOut != 6*4096 || ab.BytesIn != 0 || ba.BytesIn != 3*4096 { // over shm the sender places the bytes itself
		t.Errorf("bytes: out %d, in %d; at the other side in %d", ab.BytesOut, ab.BytesIn, ba.BytesIn)
	}
	if len(ab.Paths) != 2 || len(ba.Paths) != 2 || ab.Paths[0].Path != "shm" || ab.Paths[1].Path != "tcp" ||
		ab.Paths[1].ID != ba.Paths[1].ID {
		t.Fatalf("paths: %+v\n%+v", ab.Paths, ba.Paths)
	}
	for _, x := range ab.Paths {
		if x.Counters.BytesPut != 3*4096 || x.InFlight != 0 || x.Window <= 0 || len(x.Explain) == 0 ||
			x.Cost.BytesPerSecond <= 0 || x.Proof == "" {
			t.Errorf("path: %+v", x)
		}
	}
	if len(a.Latency) != 2 || len(a.Setup) != 2 {
		t.Fatalf("latency: %+v, set-up: %+v", a.Latency, a.Setup)
	}
	for _, l := range append(a.Latency, a.Setup...) {
		if l.Count != 3 && l.Kind == "put" || l.Min <= 0 || l.Min > l.P50 || l.P50 > l.Max ||
			l.Histogram.Count != l.Count {
			t.Errorf("latency: %+v", l)
		}
	}
	if k := b.Totals[opPut]; k.Kind != "put" || k.Received != 6 || k.Begun != 0 {
		t.Errorf("received: %+v", k)
	}
	// The snapshot shares nothing with the node: it is the same after everything changed.
	before, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
	wait(t, x, err)
	p.ab.Close()
	if after, err := json.Marshal(a); err != nil || string(after) != string(before) {
		t.Errorf("the snapshot changed: %v", err)
	}
	var back observe.Snapshot
	if err := json.Unmarshal(before, &back); err != nil {
		t.Fatal(err)
	}
	if again, err := json.Marshal(back); err != nil || string(again) != string(before) {
		t.Errorf("the JSON form does not survive: %v\n%s\n%s", err, before, again)
	}
}

// A transfer shows in the snapshot from its begin to its end.
func TestSnapshotOfTransfers(t *testing.T) {
	d := over("fake")
	hold := make(chan struct{})
	d.dial = func(ctx context.Context) error {
		select {
		case <-hold:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	p := newPair(t, Options{Paths: []setup.Driver{d}})
	export(t, p.b, region(t, 4096), "x", path.Write)
	rem, src := lookup(t, p.ab, "x"), region(t, 4096)
	var all []*Transfer
	for range 3 {
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	s := p.a.Snapshot()
	if len(s.Transfers) != 3 || s.Node.TransfersRunning != 3 || s.Peers[0].Transfers != 3 ||
		s.Totals[opPut].Running != 3 {
		t.Fatalf("%+v", s.Transfers)
	}
	for i, x := range s.Transfers {
		if x.ID != all[i].ID() || x.Kind != "put" || x.Bytes != 4096 || x.Moved != 0 || x.Path != "" || x.Peer != "b" ||
			x.PeerID != 1 || x.AgeSeconds <= 0 {
			t.Errorf("%+v", x)
		}
	}
	all[1].Cancel() // from the middle of the list
	<-all[1].Done()
	if s := p.a.Snapshot(); len(s.Transfers) != 2 || s.Transfers[0].ID != all[0].ID() ||
		s.Transfers[1].ID != all[2].ID() {
		t.Errorf("%+v", s.Transfers)
	}
	close(hold)
	for _, i := range []int{0, 2} {
		wait(t, all[i], nil)
	}
	if s := p.a.Snapshot(); len(s.Transfers) != 0 || s.Totals[opPut].Completed != 2 || s.Totals[opPut].Canceled != 1 {
		t.Errorf("%+v", s.Totals)
	}
}

// A path that cannot be set up is counted, and the transfer that took another instead.
func TestSnapshotOfFallbacks(t *testing.T) {
	bad := over("bad")
	bad.cost = path.Cost{Latency: 1, BytesPerSec: 1e15}
	bad.dial = func(context.Context) error { return path.ErrUnavailable }
	p := newPair(t, Options{Paths: []setup.Driver{bad, tcp.New(tcp.Options{})}})
	export(t, p.b, region(t, 4096), "x", path.Write)
	rem, src := lookup(t, p.ab, "x"), region(t, 4096)
	x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
	wait(t, x, err)
	s := p.a.Snapshot()
	if k := s.Totals[opPut]; k.Fallbacks != 1 || k.Failovers != 0 || s.Node.SetupFailures["bad"] != 1 {
		t.Errorf("%+v, %v", k, s.Node.SetupFailures)
	}
}

// The metrics of a node that was busy keep Prometheus' rules, over HTTP and read by its own parser.
func TestMetrics(t *testing.T) {
	p := newPair(t, Options{})
	export(t, p.b, region(t, 4096), "x", path.Write)
	rem, src := lookup(t, p.ab, "x"), region(t, 4096)
	for _, name := range paths {
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{name}})
		wait(t, x, err)
	}
	if _, err := p.ab.Put(ctx(t), []path.Copy{{Local: src.All()}}, PutOptions{}); err == nil {
		t.Fatal("a key that does not exist was taken")
	}
	second, err := p.a.Dial(ctx(t), p.b.Addrs()[0]) // a second connection of the same name
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range p.a.Metrics() {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
	}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(prom.New(p.a.Metrics))
	if problems, err := testutil.GatherAndLint(r); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %+v", err, problems)
	}
	srv := httptest.NewServer(prom.Handler(p.a.Metrics))
	defer srv.Close()
	if err := testutil.ScrapeAndCompare(srv.URL, strings.NewReader(`
# HELP penstock_bytes_total Payload that this side sent or received, by path: its own operations and the peers' that it took part in.
# TYPE penstock_bytes_total counter
penstock_bytes_total{direction="in",path="shm"} 0
penstock_bytes_total{direction="out",path="shm"} 4096
penstock_bytes_total{direction="in",path="tcp"} 0
penstock_bytes_total{direction="out",path="tcp"} 4096
# HELP penstock_transfers_active Transfers that this node began and that have not ended.
# TYPE penstock_transfers_active gauge
penstock_transfers_active{kind="put"} 0
penstock_transfers_active{kind="get"} 0
penstock_transfers_active{kind="notify"} 0
# HELP penstock_transfers_total Transfers that this node began and that have ended, each counted once.
# TYPE penstock_transfers_total counter
penstock_transfers_total{kind="put",outcome="completed"} 2
penstock_transfers_total{kind="put",outcome="failed"} 0
penstock_transfers_total{kind="put",outcome="canceled"} 0
penstock_transfers_total{kind="get",outcome="completed"} 0
penstock_transfers_total{kind="get",outcome="failed"} 0
penstock_transfers_total{kind="get",outcome="canceled"} 0
penstock_transfers_total{kind="notify",outcome="completed"} 0
penstock_transfers_total{kind="notify",outcome="failed"} 0
penstock_transfers_total{kind="notify",outcome="canceled"} 0
# HELP penstock_transfers_rejected_total Calls that failed before a transfer began, by reason.
# TYPE penstock_transfers_rejected_total counter
penstock_transfers_rejected_total{kind="put",reason="unknown_export"} 1
# HELP penstock_peer_connections Connections to peers of this name.
# TYPE penstock_peer_connections gauge
penstock_peer_connections{peer="b"} 2
`), "penstock_bytes_total", "penstock_transfers_active", "penstock_transfers_total",
		"penstock_transfers_rejected_total", "penstock_peer_connections"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(r, "penstock_transfer_latency_seconds",
		"penstock_path_setup_seconds"); err != nil || n != 4 {
		t.Errorf("%d histograms, %v", n, err)
	}
	second.Close()
}

// A transfer whose path goes down under it is one transfer that was completed, with one failover.
func TestSnapshotOfFailover(t *testing.T) {
	s := newTwoPaths(t, 2*PieceSize+12345)
	events := s.a.Events(t.Context(), 100)
	l := nodeChannel(t, s.a, "alpha")
	x := s.putPart(t, 1)
	l.shut(errCut)
	s.check(t, x, "beta", 1)
	now := s.a.Snapshot()
	if k := now.Totals[opPut]; k.Begun != 1 || k.Completed != 1 || k.Bytes != x.Bytes() || k.Partial != 0 ||
		k.Failovers != 1 || k.Fallbacks != 0 {
		t.Errorf("%+v", k)
	}
	if len(now.Paths) != 2 || now.Paths[0].Path != "alpha" || now.Paths[0].Up != 0 || now.Paths[0].Opened != 1 ||
		now.Paths[1].Up != 1 {
		t.Errorf("%+v", now.Paths)
	}
	// What went over the path that is gone still counts for its peer.
	if p := now.Peers[0]; p.BytesOut != now.Paths[0].Counters.BytesPut+now.Paths[1].Counters.BytesPut ||
		len(p.Paths) != 1 {
		t.Errorf("%+v", p)
	}
	var found bool
	for _, e := range eventsUntil(t, events, observe.EventTransferEnded) {
		if e.Kind == observe.EventTransferFailedOver {
			found = e.Transfer == x.ID() && e.Path == "beta" && strings.Contains(e.Reason, "alpha")
		}
	}
	if !found {
		t.Error("no event of the failover")
	}
}

func TestSnapshotOfRetries(t *testing.T) {
	n := open(t, Options{})
	n.Retried(path.Get)
	n.Retried(path.Get)
	if s := n.Snapshot(); s.Totals[opGet].Retries != 2 || s.Totals[opPut].Retries != 0 || s.Totals[opGet].Begun != 0 {
		t.Errorf("%+v", s.Totals)
	}
}

// docs/observability.md names every metric, kind of event, reason and field.
func TestObservabilityDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	need := func(what string) {
		if !strings.Contains(doc, "`"+what+"`") && !strings.Contains(doc, "`"+what+"[]`") {
			t.Errorf("docs/observability.md does not name %s", what)
		}
	}
	s := observe.Snapshot{Node: observe.NodeStatus{Identity: &observe.IdentityStatus{}}}
	for _, f := range s.Families() {
		need(f.Name)
	}
	need("penstock_export_dropped_total") // of metrics/prom
	for k := observe.EventPeerUp; !strings.HasPrefix(k.String(), "event("); k++ {
		need(k.String())
	}
	for _, v := range []any{s, s.Node, *s.Node.Identity, observe.ExportStatus{}, observe.PeerStatus{},
		observe.PathStatus{}, observe.TransferStatus{}, observe.KindTotals{}, observe.PathTotals{}, observe.Event{}} {
		for f := range reflect.TypeOf(v).Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
				need(name)
			}
		}
	}
}

// What was in place of a transfer that failed, or was canceled, is in the totals.
func TestSnapshotOfPartialTransfers(t *testing.T) {
	s := newTwoPaths(t, 4*PieceSize+12345) // more than is outstanding when the first piece is in place
	for _, how := range []string{"cut", "canceled"} {
		before := s.a.Snapshot().Totals[opPut]
		x := s.putPart(t, PieceSize)
		if how == "cut" {
			s.cut.Store(true)
			nodeChannel(t, s.a, "alpha").shut(errCut)
		} else {
			x.Cancel()
		}
		s.mode.Store(well)
		<-x.Done()
		s.cut.Store(false)
		k := s.a.Snapshot().Totals[opPut]
		moved, ended := x.Explain().Moved, k.Failed-before.Failed
		if how == "canceled" {
			ended = k.Canceled - before.Canceled
		}
		if moved == 0 || k.Partial-before.Partial != moved || k.Bytes != before.Bytes || ended != 1 {
			t.Errorf("%s after %d bytes (%v): %+v", how, moved, x.Err(), k)
		}
	}
}
