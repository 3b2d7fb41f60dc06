package observe

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestEventText(t *testing.T) {
	for k := EventKind(1); k < eventKinds; k++ {
		e := Event{Kind: k, Transfer: NewID(1, 2), Peer: "p"}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var back Event
		if err := json.Unmarshal(b, &back); err != nil || back != e ||
			!strings.Contains(string(b), `"`+k.String()+`"`) {
			t.Errorf("%s becomes %+v: %v", b, back, err)
		}
	}
	if EventKind(200).String() != "event(200)" || new(EventKind).UnmarshalText([]byte("event(200)")) == nil ||
		new(EventKind).UnmarshalText(nil) == nil {
		t.Error("unknown kinds")
	}
	for _, bad := range []string{"", "00", strings.Repeat("0", 31) + "x", strings.Repeat("0", 34)} {
		if new(ID).UnmarshalText([]byte(bad)) == nil {
			t.Errorf("%q is an id", bad)
		}
	}
}

func TestBus(t *testing.T) {
	var b Bus
	b.Emit(Event{Kind: EventPeerUp})
	s := b.Subscribe(t.Context(), 0)
	for range 3 {
		b.Emit(Event{Kind: EventPeerUp})
	}
	if !b.On() || b.Missed()[EventPeerUp] != 2 || s.Missed()[EventPeerUp] != 2 || (<-s.C()).Missed != 0 {
		t.Errorf("missed %v and %v", b.Missed(), s.Missed())
	}
	b.Emit(Event{Kind: EventPeerDown})
	if e := <-s.C(); e.Kind != EventPeerDown || e.Missed != 2 {
		t.Errorf("%+v", e)
	}
	b.Close()
	if _, ok := <-s.C(); ok || b.On() {
		t.Error("a closed bus brings events")
	}
	if _, ok := <-b.Subscribe(t.Context(), 1).C(); ok {
		t.Error("a closed bus takes subscribers")
	}
}

func TestDurations(t *testing.T) {
	d := NewDurations([]string{"put", "get"}, "b", "a")
	d.Record(0, "b", time.Millisecond)
	d.Record(1, "b", -1)
	d.Record(1, "a", time.Second)
	d.Record(1, "no such path", time.Second)
	var got []string
	for _, l := range d.Latencies() {
		got = append(got, fmt.Sprintf("%s %s %d %.0f", l.Kind, l.Path, l.Count, 1e3*l.Max))
	}
	if s := strings.Join(got, ", "); s != "get a 1 1000, get b 1 0, put b 1 1" {
		t.Error(s)
	}
}

func TestCut(t *testing.T) {
	s := Snapshot{Exports: make([]ExportStatus, 5), Transfers: make([]TransferStatus, 3), Peers: make([]PeerStatus, 4)}
	for i := range s.Peers {
		s.Peers[i].Paths = make([]PathStatus, 6)
		for k := range s.Peers[i].Paths {
			s.Peers[i].Paths[k].Explain = []string{"because"}
		}
	}
	c := s.Cut(4, false)
	if c.Omitted != (Omitted{Exports: 1, Paths: 8, Explain: 16}) || len(c.Exports) != 4 || len(c.Transfers) != 3 ||
		len(c.Peers) != 4 || len(c.Peers[3].Paths) != 4 {
		t.Errorf("%+v", c.Omitted)
	}
	if len(s.Peers[0].Paths) != 6 || s.Peers[3].Paths[0].Explain == nil || s.Omitted != (Omitted{}) {
		t.Error("the original changed")
	}
}

// However many peers with whatever names, the series are bounded and valid.
func TestMetricsOfManyPeers(t *testing.T) {
	s := Snapshot{}
	for i := range 3 * maxPeerSeries {
		s.Peers = append(s.Peers, PeerStatus{Name: fmt.Sprintf("\xff\x1b%s%d", strings.Repeat("x", i%200), i),
			BytesIn: 1})
	}
	s.Peers = append(s.Peers, s.Peers[0])
	for _, f := range s.Families() {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
		if strings.HasPrefix(f.Name, "penstock_peer_") && f.Name != "penstock_peer_bytes_total" &&
			len(f.Samples) != maxPeerSeries {
			t.Errorf("%s: %d samples", f.Name, len(f.Samples))
		}
	}
}
