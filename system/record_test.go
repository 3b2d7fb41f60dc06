package system

import (
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/peers"
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
    - {name: keep, kind: sink, interface: loop, record: DIR/a.pcapng, rotate: {size: 1GiB, keep: 2GiB}}
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
		sendFrames(t, txOf(t, s, "loop", 0), udpFrame(t, 7, i))
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
	until(t, "all packets", func() bool { return taken(0).Taken == n && taken(1).Record.Packets == n })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for k, x := range []struct{ file, field string }{{"a-00001.pcapng", "udp.payload"}, {"b.pcap", "data.data"}} {
		snap := taken(k)
		if snap.Packets != n || snap.Taken != n || snap.Record.Packets != n || snap.Record.Files != 1 ||
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
