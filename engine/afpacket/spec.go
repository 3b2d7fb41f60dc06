package afpacket

import (
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
)

// Spec describes the engine.
var Spec = engine.Spec{
	Name: Name, Doc: "Whole frames on any network interface, through rings of the kernel (AF_PACKET).",
	New: func() engine.Engine { return New() },
	Options: append([]engine.Option{
		{Key: "frames", Type: engine.Int, Min: 2, Max: 1 << 20, Unit: "frames", Default: "4096", Field: "Frames", Doc: "Frames of each receive ring."},
		{Key: "frame_size", Type: engine.Bytes, Min: 0, Max: 1 << 20, Default: "0B", Field: "FrameSize",
			Doc: "Room for one packet in the ring, a multiple of 16; 0: enough for the MTU."},
		{Key: "blocks", Type: engine.Bytes, Min: 0, Max: 1 << 30, Default: "0B", Field: "Blocks",
			Doc: "In place of frames, a ring of this size for packets of any length, which come in blocks, up to 40 " +
				"ms late."},
		{Key: "fanout", Type: engine.Word, Words: []string{"none", "hash", "cpu", "rollover"}, Default: "none",
			Field: "Fanout", Doc: "How packets are shared among several sockets."},
		{Key: "sockets", Type: engine.Int, Min: 1, Max: 64, Unit: "sockets", Default: "1", Field: "Sockets", Doc: "How many sockets share them."},
		{Key: "direction", Type: engine.Word, Words: []string{"in", "out", "both"}, Default: "in", Field: "Direction",
			Doc: "Frames to receive: those from outside, those that this host sends, or both. With out and both the " +
				"port has no transmit queues."},
		{Key: "promiscuous", Type: engine.Bool, Default: "false", Field: "Promiscuous", Doc: "Also frames for other MAC addresses."},
		{Key: "filter", Type: engine.Text, List: true, Field: "Filter", Parse: parseFilter,
			Doc: "A classic BPF program that sees each frame first: instructions of four numbers, as `tcpdump -ddd` " +
				"prints them: `[\"40 0 0 12\", \"21 0 1 2048\", ...]`."},
		{Key: "qdisc_bypass", Type: engine.Bool, Default: "false", Field: "QdiscBypass", Doc: "Sends past the queueing discipline."},
		{Key: "send_buffer", Type: engine.Bytes, Min: 0, Max: 1 << 30, Default: "0B", Field: "SendBuffer",
			Asks: "send_buffer_bytes", Doc: "Buffer of the kernel for what is sent; 0: as the system has it."},
		{Key: "keep_truncated", Of: engine.OfRx, Type: engine.Bool, Default: "false", Field: "KeepTruncated",
			Doc: "Delivers packets that were longer than their room, cut off, instead of dropping them."},
	}, pace.Settings...),
	PortOptions:  func(string) any { return new(Options) },
	RxOptions:    func() any { return new(RxOptions) },
	TxOptions:    func() any { return new(pace.Options) },
	Capabilities: (*Engine).Capabilities(nil),
	Needs:        engine.Needs{Interface: true, Frames: true, Capabilities: []string{"CAP_NET_RAW"}},
	Rings:        func(packets int) engine.Settings { return engine.Settings{"frames": fmt.Sprint(packets)} },
}

// resolve returns the address and the options of a port, with the defaults filled in.
func resolve(spec engine.PortSpec) (engine.Address, Options, error) {
	return engine.ReadPort(&Spec, &spec, (*Options).complete)
}

// parseFilter reads an instruction: its code, both jumps and its operand.
func parseFilter(s string) (any, error) {
	var i FilterInstruction
	var more string
	if n, err := fmt.Sscanf(s+" .", "%d %d %d %d %s", &i.Op, &i.JT, &i.JF, &i.K, &more); n != 5 || err != nil ||
		more != "." {
		return nil, fmt.Errorf("expected four numbers, such as \"40 0 0 12\"")
	}
	return i, nil
}
