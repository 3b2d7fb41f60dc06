//go:build dpdk

package dpdk

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// TestTags: frames with one VLAN tag or two arrive as they were sent. The kernel takes the outer
// tag off before net_af_packet sees a frame, and the driver hands it over beside the frame where it
// cannot put it back: into memory that is not DPDK's.
func TestTags(t *testing.T) {
	for _, x := range []struct {
		driver, args string
		memory       MemoryMode
	}{
		{"net_af_packet", ",framesz=1920,framecnt=256,blocksz=61440", MemoryInPlace},
		{"net_af_packet", ",framesz=1920,framecnt=256,blocksz=61440", MemoryLent},
		{"net_af_xdp", "", MemoryAuto},
	} {
		t.Run(x.driver+" "+x.memory.String(), func(t *testing.T) {
			from, into := pool(t), pool(t)
			pair := veth(t, x.driver, x.args, Options{Memory: x.memory}, 0)
			in, err := pair.B.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{into}})
			if err != nil {
				t.Fatal(err)
			}
			out, err := pair.A.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{from}})
			if err != nil {
				t.Fatal(err)
			}
			var sent [][]byte
			for i, tags := range [][]uint16{nil, {0x8100, 0x2fff}, {0x8100, 5, 0x8100, 6}, {0x8100, 7}, nil} {
				f := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
				for _, v := range tags {
					f = binary.BigEndian.AppendUint16(f, v)
				}
				f = binary.BigEndian.AppendUint16(f, 0x88b5) // for experiments (IEEE 802)
				for k := range 100 {
					f = append(f, byte(i+k))
				}
				sent = append(sent, f)
			}
			b := burst.New(8)
			for _, f := range sent {
				if n, err := out.Alloc(b, 1, len(f)); n != 1 || err != nil {
					t.Fatal(n, err)
				}
				copy(b.Bytes(0, 0), f)
				if err := out.Send(b); err != nil {
					t.Fatal(err)
				}
			}
			got := 0
			for end := time.Now().Add(time.Minute); got < len(sent) && time.Now().Before(end); b.Release() {
				if _, err := in.TryRecv(b); err != nil {
					t.Fatal(err)
				}
				for i := range b.Len() {
					if f := b.Bytes(i, 0); got >= len(sent) || !bytes.Equal(f, sent[got]) {
						t.Errorf("frame %d is\n%x, expected\n%x", got, f, sent[min(got, len(sent)-1)])
					}
					got++
				}
			}
			if got != len(sent) {
				t.Errorf("%d frames of %d arrived", got, len(sent))
			}
		})
	}
}
