//go:build dpdk

package dpdk

import (
	"testing"

	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/packet/burst"
)

// TestChecksumFlags: of what a driver says of checksums, only two values mean that they are good.
func TestChecksumFlags(t *testing.T) {
	const l3None = cdpdk.ChecksumsMask &^ cdpdk.ChecksumL4Mask
	const good3, good4 = cdpdk.ChecksumsGood &^ cdpdk.ChecksumL4Mask, cdpdk.ChecksumsGood & cdpdk.ChecksumL4Mask
	const bad4 = cdpdk.ChecksumL4Mask &^ good4
	for mbuf, want := range map[uint64]burst.Flags{
		0: 0, cdpdk.HashValid: 0, good3 | good4: burst.ChecksumGood, good3: 0, good4: 0, good3 | bad4: 0,
		l3None | good4:               0,
		good3 | cdpdk.ChecksumL4None: burst.ChecksumPartial, cdpdk.ChecksumL4None: burst.ChecksumPartial,
	} {
		if got := checksumFlags(mbuf); got != want {
			t.Errorf("flags %#x: %#x, want %#x", mbuf, got, want)
		}
	}
}
