package afpacket

import (
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
)

// Fanout is how the kernel shares a port's packets among several sockets.
type Fanout uint8

// The ways (man 7 packet, PACKET_FANOUT).
const (
	FanoutNone     Fanout = iota
	FanoutHash            // by the flow: packets of one flow stay together and in order
	FanoutCPU             // by the processor that received them
	FanoutRollover        // the first socket, and the next one when its ring is full
)

// Direction says which frames of the interface a port receives.
type Direction uint8

// The directions. A frame of this host's has the flag burst.Outgoing.
const (
	DirectionIn  Direction = iota // what comes from outside
	DirectionOut                  // what this host sends
	DirectionBoth
)

// FilterInstruction is an instruction of the classic BPF, as tcpdump -dd prints them.
type FilterInstruction = sys.FilterInstruction

// Options are the options of a port, given as engine.PortSpec.Options. The zero value is right for
// most.
type Options struct {
	// Frames is the number of frames in each receive ring, 0 for 4096. The ring is memory of the
	// kernel's that is pinned: Frames times FrameSize bytes. A receive queue may not have a greater
	// Depth.
	Frames int
	// FrameSize is the room for one packet in the ring with what the kernel notes about it, in
	// bytes, a multiple of 16; 0 is enough for the interface's MTU with two VLAN tags. What the
	// kernel put together (GRO, or a local sender's segmentation offload) can have 64 KiB: it is
	// cut off, unless this is 66048 or "ethtool -K IF gro off" and the sender's "tso off gso off"
	// prevent it.
	FrameSize int
	// Blocks, unless it is 0, is the size of a ring in which packets of any length lie one behind
	// the other, in place of Frames and FrameSize. The kernel hands packets over in blocks, up to
	// 40 ms late, with far fewer wake-ups: for recording.
	Blocks int
	// Fanout shares packets among Sockets sockets with a ring each, 1 to 64, which are dealt out to
	// the receive queues. Packets that no rule matches go to the queue that has their socket, then,
	// in place of the first queue.
	Fanout  Fanout
	Sockets int
	// Direction is which frames the port receives. One that receives what this host sends has no
	// transmit queues: it would receive what they send.
	Direction Direction
	// Promiscuous makes the interface take frames for other MAC addresses while the port is open.
	Promiscuous bool
	// Filter is a program that the kernel runs on each frame first; what it refuses (returns 0)
	// never reaches the port, and is counted nowhere. A stripped VLAN tag is not in the frame that
	// it sees.
	Filter []FilterInstruction
	// QdiscBypass sends straight to the device, past the queueing discipline. Faster where there is
	// one; what finds the device's ring full comes back as such and is tried again.
	QdiscBypass bool
	// SendBuffer is the kernel's buffer in bytes for what is sent and not yet gone; 0 leaves the
	// system's default.
	SendBuffer int
}

func (o *Options) complete() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("afpacket: %s: %w", fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	if o.Frames == 0 {
		o.Frames = 4096
	}
	if o.Sockets == 0 {
		o.Sockets = 1
	}
	switch {
	case o.Frames < 2 || o.Frames > 1<<20:
		return bad("ring of %d frames: expected 2 to %d", o.Frames, 1<<20)
	case o.FrameSize != 0 && (o.FrameSize < 128 || o.FrameSize > 1<<20 || o.FrameSize%16 != 0):
		return bad("frames of %d bytes: expected a multiple of 16 from 128 to %d", o.FrameSize, 1<<20)
	case o.Blocks < 0 || o.Blocks > 1<<30:
		return bad("blocks of %d bytes: expected at most %d", o.Blocks, 1<<30)
	case o.Sockets < 1 || o.Sockets > 64:
		return bad("%d sockets: expected 1 to 64", o.Sockets)
	case o.Sockets > 1 && o.Fanout == FanoutNone:
		return bad("%d sockets without a way to share: expected a Fanout", o.Sockets)
	case o.Fanout > FanoutRollover:
		return bad("fan-out %d: expected hash, CPU or rollover", o.Fanout)
	case o.Direction > DirectionBoth:
		return bad("direction %d: expected in, out or both", o.Direction)
	case len(o.Filter) > maxFilter:
		return bad("a filter of %d instructions: expected at most %d", len(o.Filter), maxFilter)
	case o.SendBuffer < 0:
		return bad("send buffer of %d bytes: expected 0 or more", o.SendBuffer)
	}
	return nil
}

func (f Fanout) mode() int {
	switch f {
	case FanoutCPU:
		return sys.FanoutCPU
	case FanoutRollover:
		return sys.FanoutRollover
	}
	return sys.FanoutHash
}

// RxOptions are the options of a receive queue, given as engine.RxSpec.Options.
type RxOptions struct {
	// KeepTruncated delivers packets that were longer than a frame of the ring or a slot of the
	// pool, with the flag burst.Truncated, instead of dropping them as engine.DropTooLong.
	KeepTruncated bool
}
