package engine

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/mem"
)

// PoolUse says whether receive queues take memory of their caller.
type PoolUse uint8

// The uses.
const (
	PoolsNeeded   PoolUse = iota // a queue receives into its pools
	PoolsOptional                // a queue without pools lends memory of the engine
	PoolsRefused                 // the engine owns all memory, and lends it
)

// The depth of a receive queue, in packets.
const (
	defaultRxDepth = 1024
	maxRxDepth     = 1 << 24
)

// CheckRx checks what an engine's port is asked for in a receive queue against what the port can do, and fills in the Depth where it is 0. most
// is the greatest depth, 0 for no limit of the engine's own. Options are the engine's own to check: it clears them, or CheckRx refuses them. There
// is one error for each condition: ErrInvalid for what no port can do, ErrUnsupported for what this one cannot.
func CheckRx(spec *RxSpec, can *Capabilities, most int) error {
	if most <= 0 {
		most = maxRxDepth
	}
	if spec.Depth == 0 {
		spec.Depth = min(defaultRxDepth, most)
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrInvalid)
	}
	cannot := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrUnsupported)
	}
	switch n := len(spec.Pools); {
	case spec.Options != nil:
		return bad("options of type %T: expected none", spec.Options)
	case spec.Depth < 0 || spec.Depth > most:
		return bad("depth of %d packets: expected 1 to %d", spec.Depth, most)
	case n > 2 || slices.Contains(spec.Pools, nil):
		return bad("%d pools, or a nil one: expected one pool, or two for header/data split, headers first", n)
	case n == 0 && can.Pools == PoolsNeeded:
		return bad("no pool: expected one pool, or two for header/data split, headers first")
	case n > 0 && can.Pools == PoolsRefused:
		return cannot("pool %q: %s", spec.Pools[0].Name(), can.PoolsWhy)
	case n == 2 && !can.Split:
		return cannot("two pools: the port does not split headers from payload")
	case spec.SplitAt != 0 && n != 2:
		return bad("split at %d with %d pools: expected two", spec.SplitAt, n)
	case n == 2 && (spec.SplitAt < 0 || spec.SplitAt > spec.Pools[0].SlotSize()):
		return bad("split at %d: expected 0 to %d, the slot of the header pool", spec.SplitAt, spec.Pools[0].SlotSize())
	case spec.Conn != 0 && !can.Connections:
		return cannot("connection %d: packets of the port belong to none", spec.Conn)
	case spec.Timestamps && !can.Timestamps && !(spec.HardwareTime && can.HardwareTime):
		return cannot("receive times: the port has none")
	case spec.HardwareTime && !can.HardwareTime:
		return cannot("receive times of the hardware: the port has none")
	}
	for _, pool := range spec.Pools {
		if err := CheckMemory(pool, can); err != nil {
			return err
		}
	}
	return nil
}

// CheckMemory says whether a port with these capabilities uses memory of the pool's kind: nil, or an error that wraps ErrUnsupported.
func CheckMemory(pool *mem.Pool, can *Capabilities) error {
	r := pool.Region()
	switch {
	case slices.Contains(can.Memory, mem.Device):
		return nil // which of it, the port says: DeviceReacher
	case r.All().Bytes() == nil:
		return fmt.Errorf("pool %q is in memory that the CPU cannot reach, and the port cannot use: %w", pool.Name(), ErrUnsupported)
	}
	return nil
}
