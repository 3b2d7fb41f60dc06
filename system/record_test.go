package system

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/app"
)

const recordText = twoRegions + `
  interfaces:
    - name: loop
      engine: sim
      address: sim://record?loop
      rx: {queues: [{memory_regions: [a]}, {memory_regions: [a]}]}
      tx: {queues: [{memory_regions: [b]}]}
    - {name: server, address: "udp://127.0.0.1:0", rx: {queues: [{memory_regions: [a]}]}, tx: {queues: [{memory_regions: [b]}]}}
  transfers: {}
  applications:
    - {name: keep, kind: sink, interface: loop, record: DIR/a.pcapng, filter: "udp dst port 7 and not outbound", rotate: {size: 1GiB, keep: 2GiB}}
    - {name: both, kind: sink, interface: server, record: DIR/b.pcap, format: pcap, tensor: {name: t, dtype: u8, shape: [2, 4]}}
`

// A sink writes what comes into files, that of frames and that of datagrams, and also into a
// tensor.
func TestRecord(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, strings.ReplaceAll(recordText, "DIR", dir), Options{})
	if got, want := s.Plan().Applications[1].text(), "both: sink server/0, into the tensor t, u8[2 4], into the file "+
		filepath.Join(dir, "b.pcap")+" (pcap)"; got != want {
		t.Errorf("%q, expected %q", got, want)
	}
	const n = 50
	sent := time.Now().UnixNano()
	for i := range uint32(n) {
		sendFrames(t, txOf(t, s, "loop", 0), udpFrame(t, 7, i), udpFrame(t, 8, i))
	}
	addr := s.Interfaces()[1].Port.Info().Address
	client, err := net.Dial("udp", strings.TrimPrefix(addr, "udp://"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range n {
		if _, err := client.Write(binary.BigEndian.AppendUint32(nil, uint32(i))); err != nil {
			t.Fatal(err)
		}
	}
	taken := func(k int) app.Snapshot { return s.Snapshot().Applications[k].Snapshot }
	until(t, "all packets", func() bool { return taken(0).Taken == 2*n && taken(1).Record.Packets == n })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for k, x := range []struct{ file, field string }{{"a-00001.pcapng", "udp.payload"}, {"b.pcap", "data.data"}} {
		snap := taken(k)
		filtered := uint64(n - n*k)
		if snap.Packets != n+filtered || snap.Taken != n+filtered || snap.Record.Filtered != filtered ||
			snap.Record.Packets != n || snap.Record.Files != 1 ||
			snap.Record.File != "" ||
			snap.Record.Lost != nil || snap.Record.Error != "" {
			t.Errorf("%+v, %+v", snap, snap.Record)
		}
		got, err := peers.Dissect(t.Context(), peers.Dissection{File: filepath.Join(dir, x.file),
			Fields:  []string{x.field},
			Options: []string{`uat:user_dlts:"User 0 (DLT=147)","data","0","","0",""`}})
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != n {
			t.Fatalf("%s: %d packets", x.file, len(got))
		}
		for i, p := range got {
			if want := fmt.Sprintf("%08x", i); !strings.HasPrefix(strings.ReplaceAll(p.Fields[0], ":", ""), want) ||
				k == 1 && p.Time.UnixNano() < sent {
				t.Errorf("%s: packet %d at %v has %q, expected %s", x.file, i, p.Time, p.Fields[0], want)
			}
		}
	}
	if snap := taken(1); snap.Tensor.Rows != n {
		t.Errorf("%+v", snap.Tensor)
	}
	// A filter that cannot be compiled is in the plan, with its place and libpcap's words.
	for filter, want := range map[string]string{"udp prot 7": "syntax error", "ifindex 3": "only the kernel"} {
		text := strings.ReplaceAll(strings.ReplaceAll(recordText, "DIR", t.TempDir()),
			"udp dst port 7 and not outbound",
			filter)
		plan, err := MakePlan(mustLoad(t, text), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := plan.Err(); err == nil || !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "test.yaml:15:") {
			t.Errorf("%s: %v", filter, err)
		}
	}
	// A byte stream has no packets.
	text := twoRegions + `
  interfaces: [{name: s, address: "tcp://127.0.0.1:0?listen=1", rx: {queues: [{memory_regions: [a]}]}}]
  applications: [{kind: sink, interface: s, record: ` + filepath.Join(dir, "c") + `}]
`
	if _, err := Open(t.Context(), mustLoad(t, text), Options{}); err == nil ||
		!strings.Contains(err.Error(), "only the format raw can hold") {
		t.Errorf("a stream as pcapng: %v", err)
	}
}

const stageText = twoRegions + `
  interfaces:
    - name: loop
      engine: sim
      address: sim://stage?loop
      rx:
        queues:
          - {memory_regions: [a], stages: [{type: record, record: DIR/s.pcapng, rotate: {packets: 100}}]}
      tx: {queues: [{memory_regions: [b]}]}
    - name: own
      engine: sim
      address: sim://stageown?loop
      rx: {queues: [{memory_regions: [a], stages: [{type: record, record: DIR/o.raw, format: raw, overwrite: true}]}]}
      tx: {queues: [{memory_regions: [b]}]}
  applications: [{name: keep, kind: KIND, interface: loop}]
`

// A filter of a stage that cannot be compiled is in the plan.
func TestStageFilter(t *testing.T) {
	text := strings.ReplaceAll(strings.ReplaceAll(stageText, "KIND", "count"), "format: raw", "filter: udp prot 7")
	plan, err := MakePlan(mustLoad(t, text), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Err(); err == nil || !strings.Contains(err.Error(), `filter "udp prot 7"`) {
		t.Errorf("%v", err)
	}
}

// The stage record writes what any application gets, and what a program takes itself.
func TestRecordStage(t *testing.T) {
	for _, kind := range []string{"count", "sink, record: DIR/k.pcapng", "forward, to: own"} {
		dir := t.TempDir()
		file := func(name string) string { return filepath.Join(dir, name) }
		if err := os.WriteFile(file("o.raw"), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		s := mustOpen(t, strings.ReplaceAll(strings.ReplaceAll(stageText, "KIND", kind), "DIR", dir), Options{})
		const n = 50
		var want []byte
		for i := range uint32(n) {
			sendFrames(t, txOf(t, s, "loop", 0), udpFrame(t, 7, i))
			if kind[0] != 'f' { // what is forwarded goes there
				sendFrames(t, txOf(t, s, "own", 0), udpFrame(t, 7, i))
			}
			want = append(want, udpFrame(t, 7, i)...)
		}
		b, got := burst.New(16), 0
		for ; got < n; b.Release() {
			if err := rxOf(t, s, "own", 0).Recv(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			got += b.Len()
		}
		until(t, "all packets", func() bool { return s.Snapshot().Applications[0].Packets == n })
		recordings := 2
		if kind[0] == 's' {
			recordings++
		}
		if k := s.RotateRecordings(); k != recordings {
			t.Errorf("%s: %d recordings", kind, k)
		}
		until(t, "whole files", func() bool {
			all := s.Snapshot().Interfaces
			return all[0].Rx[0].Stages[0].Record.Files == 1 && all[1].Rx[0].Stages[0].Record.Files == 1
		})
		if b, err := os.ReadFile(file("o.raw")); err != nil || !bytes.Equal(b, want) {
			t.Errorf("%s: %d bytes, expected %d, %v", kind, len(b), len(want), err)
		}
		x := s.Snapshot().Interfaces[0].Rx[0].Stages[0]
		if x.Type != "record" || x.Stats.Packets != n || x.Record.Packets != n ||
			x.Counts[0] != (engine.Count{Name: "written", N: n}) {
			t.Errorf("%s: %+v, %+v", kind, x, x.Record)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		names := []string{"s-00001.pcapng"}
		if kind[0] == 's' {
			names = append(names, "k.pcapng")
		}
		for _, name := range names {
			p, err := peers.Dissect(t.Context(), peers.Dissection{File: file(name), Fields: []string{"udp.payload"}})
			if err != nil || len(p) != n {
				t.Fatalf("%s: %d packets, %v", name, len(p), err)
			}
		}
	}
	for kind, why := range map[string]string{`type: record`: "no record", `type: feed, record: x`: "write type: record",
		`type: record, record: x, ring: 30s, rotate: {packets: 1}`: "a ring is written as one file",
		`type: record, record: x, format: npy`:                     "no plan of rx: reorder",
		`type: record, record: /no/such/x`:                         "no such file"} {
		text := twoRegions + `
  interfaces: [{name: l, engine: sim, address: "sim://x?loop", rx: {queues: [{memory_regions: [a], stages: [{` + kind +
			`}]}]}}]
`
		c, said := config.Load("f.yaml", []byte(text), config.Options{})
		if err := said.Err(); err == nil {
			_, err = Open(t.Context(), c, Options{})
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %v", kind, err)
			}
		} else if !strings.Contains(said.Text([]byte(text)), why) {
			t.Errorf("%s: %s", kind, said.Text([]byte(text)))
		}
	}
}
