package ethtool

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
)

// Commands of linux/ethtool.h for what is only read.
const (
	cmdPause     = 0x12
	cmdCounters  = 0x1d
	stringsStats = 1
)

// Pause is whether a device obeys and sends pause frames of IEEE 802.3x. Priority flow control
// (802.1Qbb) is another thing, which cards count among their counters.
type Pause struct {
	Auto   bool // negotiated with the other end
	Rx, Tx bool // it stops when the other end asks; it asks the other end to stop
}

// Pause asks for the pause frames.
func (d *Device) Pause() (Pause, error) {
	w, err := d.words("pause frames", cmdPause, 3)
	if err != nil {
		return Pause{}, err
	}
	return Pause{Auto: w[0] != 0, Rx: w[1] != 0, Tx: w[2] != 0}, nil
}

// Counters are the driver's own counters by the names that it gives them; of two with one name, the
// last.
func (d *Device) Counters() (map[string]uint64, error) {
	names, err := d.strings("counters", stringsStats)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, d.wrap("counters", sys.EOPNOTSUPP)
	}
	// The kernel writes as many as the driver has by now, whatever the length in the request:
	// queues may come in between, so there is room for as many as any driver has.
	b := make([]byte, 8+8*2*mostStrings)
	native.PutUint32(b[4:], uint32(len(names)))
	if err := d.do("counters", cmdCounters, b); err != nil {
		return nil, err
	}
	if n := native.Uint32(b[4:]); int(n) != len(names) { // names and values would not belong together
		return nil, d.wrap("counters", fmt.Errorf("%d names and %d values: %w", len(names), n, ErrMalformed))
	}
	out := make(map[string]uint64, len(names))
	for i, n := range names {
		if n != "" {
			out[n] = native.Uint64(b[8+8*i:])
		}
	}
	return out, nil
}
