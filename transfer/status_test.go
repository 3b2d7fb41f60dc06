package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

func TestStatus(t *testing.T) {
	p := newPair(t, Options{})
	export(t, p.b, region(t, 4096), "weights", path.Read|path.Write)
	rem, src := lookup(t, p.ab, "weights"), region(t, 4096)
	for _, name := range paths {
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{name}})
		wait(t, x, err)
		<-p.heard
	}
	got, err := p.ab.Status(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	want := p.b.Snapshot()
	// What moves while we look is set aside; everything else is the same.
	plain := func(s observe.Snapshot) string {
		s.Time, s.Node.UptimeSeconds = time.Time{}, 0
		s.Node.Started = s.Node.Started.UTC().Round(0)
		for i := range s.Peers {
			s.Peers[i].RoundTripSeconds, s.Peers[i].Since = 0, time.Time{}
			for k := range s.Peers[i].Paths {
				x := &s.Peers[i].Paths[k]
				x.Since, x.Cost, x.Counters, x.Explain = time.Time{}, observe.CostStatus{}, observe.PathCounters{}, nil
			}
		}
		for i := range s.Paths {
			s.Paths[i].Counters = observe.PathCounters{}
		}
		b, err := json.MarshalIndent(s, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if a, b := plain(got), plain(want); a != b {
		t.Errorf("the peer got\n%s\nexpected\n%s", a, b)
	}
	if got.Node.Name != "b" || len(got.Peers) != 1 || got.Peers[0].Name != "a" || got.Totals[opPut].Received != 2 ||
		got.Omitted != (observe.Omitted{}) {
		t.Errorf("%+v", got)
	}
	// The other way round: what this side began is in the peer's answer.
	if s, err := p.ba.Status(ctx(t)); err != nil || s.Totals[opPut].Completed != 2 || len(s.Latency) != 2 ||
		s.Latency[0].Count != 1 || s.Latency[0].Histogram != nil {
		t.Errorf("%+v, %v", s, err)
	}
}

// A node with more than fits into one answer says what it left out.
func TestStatusOfManyExports(t *testing.T) {
	p := newPair(t, Options{})
	r := region(t, 4096)
	const many = 700
	for i := range many {
		if _, err := p.b.Export(r.All(), ExportOptions{Name: fmt.Sprintf("%s/%d", strings.Repeat("layer", 40),
			i)}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := p.ab.Status(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Exports) != statusRows || s.Omitted.Exports != many-statusRows || s.Omitted.Peers != 0 {
		t.Errorf("%d exports, omitted %+v", len(s.Exports), s.Omitted)
	}
	if full := p.b.Snapshot(); len(full.Exports) != many || full.Omitted != (observe.Omitted{}) {
		t.Errorf("the node's own snapshot has %d exports, omitted %+v", len(full.Exports), full.Omitted)
	}
	// Into ever smaller answers.
	for _, body := range []int{control.MaxBody, 16 << 10, 8 << 10, control.MinBody} {
		full := p.b.Snapshot()
		for rows, explain := statusRows, true; ; rows /= 2 {
			m, err := observe.Pack(full.Cut(rows, explain), body)
			if errors.Is(err, control.ErrTooLarge) && rows > 0 {
				explain = false
				continue
			}
			if err != nil {
				t.Fatalf("%d bytes: %v", body, err)
			}
			doc, err := m.JSON()
			var back observe.Snapshot
			if err == nil {
				err = json.Unmarshal(doc, &back)
			}
			if err != nil || len(back.Exports)+back.Omitted.Exports != many || len(m.Data) > body {
				t.Errorf("%d bytes: %d rows, omitted %+v, %v", body, len(back.Exports), back.Omitted, err)
			}
			break
		}
	}
}

func TestStatusIsRefused(t *testing.T) {
	p := newPair(t, Options{Anonymous: identity.All &^ identity.Status})
	if s, err := p.ab.Status(ctx(t)); !errors.Is(err, control.NotPermitted) || len(s.Peers) > 0 {
		t.Errorf("%+v, error %v", s, err)
	}
	if s := p.b.Snapshot(); s.Node.Refused != 1 || s.Peers[0].Refused != 1 ||
		s.Peers[0].Rights != (identity.All&^identity.Status).String() {
		t.Errorf("%+v", s.Peers)
	}
}

// Between nodes with certificates the status has the proven names.
func TestStatusOfSecureNodes(t *testing.T) {
	ca := authority(t)
	rights := &policy{by: map[string]identity.Rights{"monitor": identity.Status, "worker": identity.Read}}
	b := open(t, Options{Identity: issue(t, ca, "server"), Policy: rights, Listen: []string{loopback}})
	events := b.Events(t.Context(), 100)
	dial := func(name string) *Peer {
		p, err := open(t, Options{Identity: issue(t, ca, name)}).Dial(ctx(t), b.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	monitor, worker := dial("monitor"), dial("worker")
	if _, err := worker.Status(ctx(t)); !errors.Is(err, control.NotPermitted) {
		t.Errorf("a worker asked for the status: %v", err)
	}
	s, err := monitor.Status(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Peers) != 2 || s.Peers[0].Certificate != "monitor" || s.Peers[1].Certificate != "worker" ||
		s.Peers[1].Security != "encrypted" || s.Peers[1].Rights != "read" {
		t.Errorf("%+v", s.Peers)
	}
	if id := s.Node.Identity; id == nil || id.Name != "server" || id.Accepted != 2 || id.NotAfter.Before(time.Now()) ||
		s.Node.Insecure {
		t.Errorf("%+v", id)
	}
	// Other rules: an event, while there are peers.
	b.opts.Identity.SetRules(everyone(t))
	all := eventsUntil(t, events, observe.EventIdentityReloaded)
	if e := all[len(all)-1]; e.Name != "server" || b.Snapshot().Node.Identity.Loaded == 0 {
		t.Errorf("%+v", e)
	}
}

// A node that talks in the clear beyond this machine says so.
func TestEventOfPlaintext(t *testing.T) {
	n := open(t, Options{Insecure: true})
	s := n.Events(t.Context(), 10)
	c, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Dial(c, "tcp://192.0.2.1:7"); err == nil {
		t.Fatal("somebody is there")
	}
	if e := next(t, s); e.Kind != observe.EventPlaintext || e.Address != "tcp://192.0.2.1:7" || e.Security != "none" ||
		!n.Snapshot().Node.Insecure {
		t.Errorf("%+v", e)
	}
}

// FuzzStatus: whatever a peer answers is an error or a snapshot of bounded size that can be shown.
func FuzzStatus(f *testing.F) {
	full := observe.Snapshot{Node: observe.NodeStatus{Name: "b\x1b[2J", Drivers: []string{"shm"},
		SetupFailures: map[string]uint64{"tcp": 1}}, Exports: make([]observe.ExportStatus, 2),
		Peers: []observe.PeerStatus{{Name: "\xff", Paths: make([]observe.PathStatus, 2),
			Totals: make([]observe.KindTotals, 3)}},
		Transfers: make([]observe.TransferStatus, 2), Totals: make([]observe.KindTotals, 3),
		Latency: make([]observe.Latency, 1)}
	for _, doc := range []string{"{}", "null", `{"peers":[null,{"paths":[{}]}],"time":"x"}`,
		`{"transfers":[{"id":"00"}]}`, "[" + strings.Repeat("{},", 2000) + "{}]"} {
		m, err := control.NewStatusReport([]byte(doc), control.MaxBody)
		if err != nil {
			f.Fatal(err)
		}
		b, _ := control.AppendBody(nil, m)
		f.Add(b)
		m.Deflated, m.Data = false, []byte(doc)
		b, _ = control.AppendBody(nil, m)
		f.Add(b)
	}
	m, err := observe.Pack(full, control.MaxBody)
	if err != nil {
		f.Fatal(err)
	}
	b, _ := control.AppendBody(nil, m)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := observe.Unpack(b)
		if err != nil {
			if !errors.Is(err, control.BadRequest) && !errors.Is(err, path.ErrProtocol) {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		if n := len(s.Exports) + len(s.Peers) + len(s.Transfers) + len(s.Totals) + len(s.Paths) + len(s.Latency) +
			len(s.Setup); n > 1<<15+7 {
			t.Fatalf("%d rows", n)
		}
		if _, err := json.Marshal(s); err != nil && !strings.Contains(err.Error(), "unsupported value") &&
			!strings.Contains(err.Error(), "Time") {
			t.Fatal(err)
		}
		s.Families()
	})
}
