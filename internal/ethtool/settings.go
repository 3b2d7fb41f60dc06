package ethtool

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
)

// Channels are a device's channels: each is an interrupt with a receive queue, a transmit queue or,
// combined, one of both.
type Channels struct {
	Rx, Tx, Other, Combined             int // that are in use
	MaxRx, MaxTx, MaxOther, MaxCombined int // that the device can have; SetChannels takes no notice
}

// RxQueues is how many receive queues that makes.
func (c Channels) RxQueues() int { return c.Rx + c.Combined }

// TxQueues is how many transmit queues that makes.
func (c Channels) TxQueues() int { return c.Tx + c.Combined }

// Channels asks for the channels.
func (d *Device) Channels() (c Channels, err error) {
	w, err := d.words("channels", cmdChannels, 8)
	if err != nil {
		return c, err
	}
	return Channels{MaxRx: int(w[0]), MaxTx: int(w[1]), MaxOther: int(w[2]), MaxCombined: int(w[3]),
		Rx: int(w[4]), Tx: int(w[5]), Other: int(w[6]), Combined: int(w[7])}, nil
}

// SetChannels changes how many channels there are. A table of RSS that names a queue which would be
// gone makes the kernel refuse.
func (d *Device) SetChannels(c Channels) error {
	what := fmt.Sprintf("channels rx %d tx %d other %d combined %d", c.Rx, c.Tx, c.Other, c.Combined)
	for _, n := range []int{c.Rx, c.Tx, c.Other, c.Combined} {
		if n < 0 || n > 1<<16 {
			return d.wrap(what, sys.EINVAL)
		}
	}
	return d.setWords(what, cmdSetChannels, []uint32{0, 0, 0, 0, uint32(c.Rx), uint32(c.Tx), uint32(c.Other),
		uint32(c.Combined)})
}

// Rings are the lengths of a device's descriptor rings, in descriptors per queue.
type Rings struct {
	Rx, Mini, Jumbo, Tx             int
	MaxRx, MaxMini, MaxJumbo, MaxTx int // SetRings takes no notice
}

// Rings asks for the lengths of the rings.
func (d *Device) Rings() (r Rings, err error) {
	w, err := d.words("rings", cmdRings, 8)
	if err != nil {
		return r, err
	}
	return Rings{MaxRx: int(w[0]), MaxMini: int(w[1]), MaxJumbo: int(w[2]), MaxTx: int(w[3]),
		Rx: int(w[4]), Mini: int(w[5]), Jumbo: int(w[6]), Tx: int(w[7])}, nil
}

// SetRings changes the lengths. Drivers round them, so ask again for what came of it.
func (d *Device) SetRings(r Rings) error {
	what := fmt.Sprintf("rings rx %d tx %d", r.Rx, r.Tx)
	for _, n := range []int{r.Rx, r.Mini, r.Jumbo, r.Tx} {
		if n < 0 || n > 1<<24 {
			return d.wrap(what, sys.EINVAL)
		}
	}
	return d.setWords(what, cmdSetRings, []uint32{0, 0, 0, 0, uint32(r.Rx), uint32(r.Mini), uint32(r.Jumbo),
		uint32(r.Tx)})
}

// Coalesce is when a device interrupts: after so many microseconds or frames, whichever is first.
// Adaptive lets the driver choose.
type Coalesce struct {
	RxMicros, RxFrames     int
	TxMicros, TxFrames     int
	AdaptiveRx, AdaptiveTx bool

	rest [22]uint32 // all of it, for SetCoalesce
}

// Places in struct ethtool_coalesce behind the command.
const (
	coalesceRxMicros, coalesceRxFrames = 0, 1
	coalesceTxMicros, coalesceTxFrames = 4, 5
	coalesceAdaptiveRx                 = 9
	coalesceAdaptiveTx                 = 10
)

// Coalesce asks for the coalescing of interrupts.
func (d *Device) Coalesce() (c Coalesce, err error) {
	w, err := d.words("coalescing", cmdCoalesce, len(c.rest))
	if err != nil {
		return c, err
	}
	copy(c.rest[:], w)
	c.RxMicros, c.RxFrames = int(w[coalesceRxMicros]), int(w[coalesceRxFrames])
	c.TxMicros, c.TxFrames = int(w[coalesceTxMicros]), int(w[coalesceTxFrames])
	c.AdaptiveRx, c.AdaptiveTx = w[coalesceAdaptiveRx] != 0, w[coalesceAdaptiveTx] != 0
	return c, nil
}

// SetCoalesce changes the coalescing. c comes from Coalesce: what this type has no name for stays
// as it was then.
func (d *Device) SetCoalesce(c Coalesce) error {
	what := fmt.Sprintf("coalescing rx %d us tx %d us adaptive rx %t tx %t", c.RxMicros, c.TxMicros, c.AdaptiveRx,
		c.AdaptiveTx)
	for _, n := range []int{c.RxMicros, c.RxFrames, c.TxMicros, c.TxFrames} {
		if n < 0 || int64(n) > 1<<31 {
			return d.wrap(what, sys.EINVAL)
		}
	}
	w := c.rest[:]
	w[coalesceRxMicros], w[coalesceRxFrames] = uint32(c.RxMicros), uint32(c.RxFrames)
	w[coalesceTxMicros], w[coalesceTxFrames] = uint32(c.TxMicros), uint32(c.TxFrames)
	w[coalesceAdaptiveRx], w[coalesceAdaptiveTx] = one(c.AdaptiveRx), one(c.AdaptiveTx)
	return d.setWords(what, cmdSetCoalesce, w)
}

func one(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Timestamps is what a device can say of when packets came and went (kernel:
// networking/timestamping.rst).
type Timestamps struct {
	HardwareRx, HardwareTx bool
	SoftwareRx, SoftwareTx bool
	Clock                  int    // number of the PTP clock of the hardware's times, /dev/ptpN; -1: none
	RxFilters              uint32 // bit n: the hardware can do HWTSTAMP_FILTER n; bit 1: it can stamp every packet
}

// StampsAll reports whether the hardware can stamp every packet that it receives.
func (t Timestamps) StampsAll() bool { return t.HardwareRx && t.RxFilters>>1&1 != 0 }

// Timestamps asks what the device can say of times.
func (d *Device) Timestamps() (t Timestamps, err error) {
	w, err := d.words("timestamps", cmdTimestamps, 10)
	if err != nil {
		return t, err
	}
	bit := func(n int) bool { return w[0]>>n&1 != 0 }
	return Timestamps{HardwareTx: bit(0), SoftwareTx: bit(1), HardwareRx: bit(2), SoftwareRx: bit(3),
		Clock: int(int32(w[1])), RxFilters: w[6]}, nil
}

// Speed is the speed of the link in bits per second, 0 where the driver does not know it: the link
// is down, or is only software.
func (d *Device) Speed() (uint64, error) {
	const header = 48 // struct ethtool_link_settings, before the masks
	b := make([]byte, header)
	if err := d.do("speed", cmdLinkSettings, b); err != nil {
		return 0, err
	}
	n := -int(int8(b[15])) // the kernel says how many words its masks have, as a negative number
	if n <= 0 {
		return 0, d.wrap("speed", fmt.Errorf("masks of %d words: %w", n, ErrMalformed))
	}
	b = make([]byte, header+3*4*n)
	b[15] = byte(n)
	if err := d.do("speed", cmdLinkSettings, b); err != nil {
		return 0, err
	}
	mbits := native.Uint32(b[4:])
	if mbits == 0xffffffff || mbits == 0xffff { // unknown; the second in drivers with the older interface
		return 0, nil
	}
	return uint64(mbits) * 1e6, nil
}
