//go:build dpdk

package dpdk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// ethernet is a frame of that many bytes with VLAN tags, whose other bytes follow from i.
func ethernet(i, size, tags int) []byte {
	f := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	for range tags {
		f = append(f, 0x81, 0, 0, 7)
	}
	f = append(f, 0x88, 0xb5) // for experiments (IEEE 802)
	for k := len(f); k < size; k++ {
		f = append(f, byte(i+k))
	}
	return f
}

// give sends each frame by itself.
func give(t *testing.T, q engine.TxQueue, frames [][]byte) {
	t.Helper()
	b := burst.New(1)
	for _, f := range frames {
		if n, err := q.Alloc(b, 1, len(f)); n != 1 || err != nil {
			t.Fatalf("Alloc of %d bytes: %d, %v", len(f), n, err)
		}
		copy(b.Bytes(0, 0), f)
		if err := q.Send(b); err != nil {
			t.Fatal(err)
		}
	}
}

// expect receives these frames and no others.
func expect(t *testing.T, q engine.RxQueue, frames [][]byte) {
	t.Helper()
	b := burst.New(64)
	for end := time.Now().Add(time.Minute); len(frames) > 0 && time.Now().Before(end); b.Release() {
		if _, err := q.TryRecv(b); err != nil {
			t.Fatal(err)
		}
		for i := range b.Len() {
			if f := b.Bytes(i, 0); len(frames) == 0 || !bytes.Equal(f, frames[0]) {
				t.Fatalf("a frame of %d bytes came, which is not the next of %d: % x", len(f), len(frames),
					f[:min(len(f), 32)])
			}
			frames = frames[1:]
		}
	}
	if len(frames) > 0 {
		t.Errorf("%d frames did not come, the next of them has %d bytes", len(frames), len(frames[0]))
	}
}

// TestPcap: net_pcap writes what a queue sends into a file, byte for byte, and a queue receives
// what is in it, in its slots.
func TestPcap(t *testing.T) {
	from, into := pool(t), pool(t)
	file := filepath.Join(t.TempDir(), "frames.pcap")
	a := openPort(t, engine.PortSpec{TxQueues: 1, Address: fmt.Sprintf("dpdk://net_pcap%d,tx_pcap=%s", names.Add(1),
		file)}, Options{})
	out, err := a.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{from}})
	if err != nil {
		t.Fatal(err)
	}
	var frames [][]byte
	for size := 14; size <= 1514; size += 25 {
		frames = append(frames, ethernet(len(frames), size, 0))
	}
	give(t, out, frames)
	if err := out.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 24 || binary.LittleEndian.Uint32(all[20:]) != 1 {
		t.Fatalf("the file has no header of Ethernet frames: % x", all[:min(len(all), 24)])
	}
	rest := all[24:]
	for i, f := range frames {
		if len(rest) < 16+len(f) || int(binary.LittleEndian.Uint32(rest[8:])) != len(f) ||
			!bytes.Equal(rest[16:16+len(f)], f) {
			t.Fatalf("record %d is not the frame of %d bytes", i, len(f))
		}
		rest = rest[16+len(f):]
	}
	if len(rest) > 0 {
		t.Errorf("%d bytes behind the last record", len(rest))
	}

	b := openPort(t, engine.PortSpec{RxQueues: 1, Address: fmt.Sprintf("dpdk://net_pcap%d,rx_pcap=%s", names.Add(1),
		file)}, Options{})
	in, err := b.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{into}})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, in, frames)
	var s engine.PortStats
	if b.Stats(&s); s.Rx.Copied != 0 || s.Rx.Packets != uint64(len(frames)) {
		t.Errorf("%+v", s)
	}
}

// TestLongerThanMTU: a frame that only its VLAN tags make longer than the MTU leaves, and another
// one is dropped: net_pcap would be asked again and again for one that the kernel refuses, and
// those behind it would wait for ever.
func TestLongerThanMTU(t *testing.T) {
	from, into := pool(t), pool(t)
	pair := veth(t, "net_pcap", "", Options{}, 0)
	in, err := pair.B.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{into}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := pair.A.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{from}})
	if err != nil {
		t.Fatal(err)
	}
	most, tagged, short := ethernet(1, 1514, 0), ethernet(2, 1518, 1), ethernet(3, 100, 0)
	give(t, out, [][]byte{most, ethernet(4, 1515, 0), tagged, ethernet(5, 1519, 1), short})
	expect(t, in, [][]byte{most, tagged, short})
	var s engine.TxStats
	if out.Stats(&s); s.Drops[engine.DropTooLong] != 2 || s.Drops.Total() != 2 {
		t.Errorf("drops: %v", &s.Drops)
	}
}
