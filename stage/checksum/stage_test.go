package checksum_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
)

// The stage keeps the promises of all stages.
func TestStage(t *testing.T) {
	frame := func(p []byte, n int) int {
		h := packet.UDPFrame{Src: netip.MustParseAddrPort("10.0.0.1:7"), Dst: netip.MustParseAddrPort("10.0.0.2:8")}
		binary.BigEndian.PutUint32(p[h.HeaderLen():], uint32(n))
		if _, err := h.Fill(p[:h.HeaderLen()+100], 100); err != nil {
			t.Fatal(err)
		}
		return h.HeaderLen() + 100
	}
	enginetest.CheckStage(t, enginetest.StageHarness{
		Open:  func(t testing.TB, from engine.Receiver, _ *mem.Pool) engine.Stage { return open(t, from) },
		Frame: frame,
		Bad: func(p []byte) int {
			n := frame(p, 1)
			p[n-1] ^= 1
			return n
		},
	})
}
