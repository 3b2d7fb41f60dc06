package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/mem"
)

// PoolUse says whether receive queues take memory of their caller.
type PoolUse uint8

// The uses.
const (
	PoolsNeeded   PoolUse = iota // a queue receives into its pools
	PoolsOptional                // a queue without pools lends memory of the engine
)

// The depth of a receive queue, in packets.
const (
	defaultRxDepth = 1024
	maxRxDepth     = 1 << 24
)

// CheckRx checks what an engine's port is asked for in a receive queue against what the port can
// do, and fills in the Depth where it is 0. Options are the engine's own to check: it clears them,
// or CheckRx refuses them. There is one error for each condition, a *SettingError: it wraps
// ErrInvalid for what no port can do, ErrUnsupported for what this one cannot. Check runs the same
// before a port is open.
func CheckRx(spec *RxSpec, can *Capabilities) error {
	if err := can.checkRx(spec, poolSpecs(spec.Pools)); err != nil {
		return err
	}
	return can.reach(spec.Pools)
}

func (c *Capabilities) checkRx(spec *RxSpec, memory []PoolSpec) *SettingError {
	most := c.RxDepth
	if most <= 0 {
		most = maxRxDepth
	}
	if spec.Depth == 0 {
		spec.Depth = min(defaultRxDepth, most)
	}
	switch {
	case spec.Options != nil:
		return noOptions(spec.Options)
	case spec.Depth < 0 || spec.Depth > most:
		return &SettingError{Path: "depth", Wrong: fmt.Sprintf("depth %d is out of range", spec.Depth),
			Expected: fmt.Sprintf("1 to %d packets", most), Hint: c.RxDepthHint}
	case spec.Conn != 0 && !c.Connections:
		return cannot("", fmt.Sprintf("connection %d: packets of the port belong to none", spec.Conn), "")
	case spec.Timestamps && c.Stream:
		return cannot("rx.timestamps", "a byte stream has no receive times", "ports of datagrams have them")
	case spec.Timestamps && !c.Timestamps && !(spec.HardwareTime && c.HardwareTime):
		return cannot("rx.timestamps", "the port takes no receive times in software",
			"hardware_timestamps: true asks the network card")
	case spec.HardwareTime && !c.HardwareTime:
		return cannot("rx.hardware_timestamps", "the port has no receive times of the network card",
			"timestamps: true asks the kernel")
	case memory == nil:
		return nil
	}
	switch n := len(memory); {
	case n > 2 || slices.Contains(memory, PoolSpec{}) || n == 0 && c.Pools == PoolsNeeded:
		return &SettingError{Path: "memory_regions", Wrong: fmt.Sprintf("%d pools, or a nil one", n),
			Expected: "one pool, or two for header/data split, headers first"}
	case n == 2 && !c.Split:
		return cannot("memory_regions", "two pools: the port does not split headers from payload",
			"one pool takes whole packets")
	case spec.SplitAt != 0 && n != 2:
		return &SettingError{Path: "split_at", Wrong: fmt.Sprintf("split at %d with %d pools", spec.SplitAt, n),
			Expected: "two pools"}
	case n == 2 && (spec.SplitAt < 0 || spec.SplitAt > memory[0].SlotSize):
		return &SettingError{Path: "split_at", Wrong: fmt.Sprintf("split at %d", spec.SplitAt),
			Expected: fmt.Sprintf("0 to %d, the slot of pool %q", memory[0].SlotSize, memory[0].Name)}
	case n == 1 && memory[0].SlotSize < c.MinSlot:
		return &SettingError{Path: "memory_regions", Wrong: fmt.Sprintf("pool %q has slots of %d bytes", memory[0].Name,
			memory[0].SlotSize), Expected: fmt.Sprintf("%d or more, the longest packet of the port", c.MinSlot)}
	case n > 0:
		return c.takes(memory[n-1])
	}
	return nil
}

func cannot(path, wrong, hint string) *SettingError {
	return &SettingError{Path: path, Wrong: wrong, Hint: hint, Err: ErrUnsupported}
}

func noOptions(options any) *SettingError {
	return &SettingError{Wrong: fmt.Sprintf("options of type %T", options), Expected: "none"}
}

// takes says why a queue does not take packets in slots of a pool.
func (c *Capabilities) takes(p PoolSpec) *SettingError {
	if len(c.Strides) == 0 || p.Stride == 0 || p.Kind != mem.Device && slices.Contains(c.Strides, p.Stride) {
		return nil
	}
	return &SettingError{Path: "memory_regions",
		Wrong: fmt.Sprintf("pool %q: its slots are %d bytes apart in memory of kind %v", p.Name, p.Stride, p.Kind),
		Expected: fmt.Sprintf("%s bytes of memory that the kernel reaches",
			strings.Trim(strings.Join(strings.Fields(fmt.Sprint(c.Strides)), " or "), "[]")), Hint: c.PoolsWhy,
		Err: ErrUnsupported}
}

// reach says which of the pools is in memory that a port with these capabilities does not use.
func (c *Capabilities) reach(pools []*mem.Pool) error {
	if slices.Contains(c.Memory, mem.Device) {
		return nil // which of it, the port says: DeviceReacher
	}
	for _, p := range pools {
		if p.Region().All().Bytes() == nil {
			return cannot("memory_regions",
				fmt.Sprintf("pool %q is in memory that the CPU cannot reach, and the port cannot use", p.Name()), "")
		}
	}
	return nil
}
