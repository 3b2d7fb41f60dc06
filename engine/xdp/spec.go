package xdp

import (
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
)

// Spec describes the engine.
var Spec = engine.Spec{
	Name: Name, Doc: "Whole frames past the kernel's network stack (AF_XDP), into and from the pools themselves.",
	New: func() engine.Engine { return New() },
	Options: append([]engine.Option{
		{Key: "queues", Type: engine.Int, List: true, Min: 0, Max: 4095, Field: "Queues", Asks: "queues",
			Doc: "Queues of the device to take; without it all. Packets of the others stay with the kernel."},
		{Key: "bind", Type: engine.Word, Words: []string{"auto", "zerocopy", "copy"}, Default: "auto", Field: "Bind",
			Asks: "zero_copy", AsksFor: "zerocopy", Doc: "`auto` copies only where the driver cannot do without."},
		{Key: "attach", Type: engine.Word, Words: []string{"auto", "native", "generic"}, Default: "auto",
			Field: "Attach", Asks: "native", AsksFor: "native",
			Doc: "Where the program runs: in the driver, or in the kernel's receive path."},
		{Key: "ring", Type: engine.Int, Min: 64, Max: maxRing, Unit: "entries", Default: "2048", Field: "Ring",
			Doc: "Entries of the rings of each queue of the device, a power of two."},
		{Key: "spare", Type: engine.Int, Min: -1, Max: 1 << 20, Unit: "UMEM frames", Default: "2048", Zero: -1,
			Field: "Spare", Doc: "Chunks for packets that are not in the port's memory; 0 or -1 for none."},
		{Key: "busy_poll", Type: engine.Time, Min: 0, Max: 1e9, Default: "0s", Field: "BusyPoll", Asks: "busy_poll",
			Doc: "How long receiving does the card's work itself; 0 leaves that to interrupts."},
		{Key: "busy_budget", Type: engine.Int, Min: 0, Max: 1<<16 - 1, Unit: "packets", Default: "0",
			Field: "BusyBudget", Doc: "Packets that busy polling takes at once; 0: as the kernel has it."},
		{Key: "chains", Type: engine.Bool, Default: "true", Field: "!NoChains", Asks: "chains",
			Doc: "Packets longer than a slot are chains of slots. `false`: some drivers have zero-copy only then."},
		{Key: "hardware_time", Type: engine.Bool, Default: "false", Field: "HardwareTime",
			Follows: "rx.hardware_timestamps", Doc: "Asks the card for the time at which it received each packet."},
		{Key: "leave_card", Type: engine.Bool, Default: "false", Field: "LeaveCard",
			Doc: "Changes nothing on the card itself: no n-tuple rules, no table of RSS."},
		{Key: "wait", Type: engine.Time, Min: 1, Max: 3600e9, Default: "5s", Field: "Wait",
			Doc: "How long opening waits for a queue of the interface that another socket has, or had."},
	}, pace.Settings...),
	TxOptions:    func() any { return new(pace.Options) },
	PortOptions:  func(string) any { return new(Options) },
	Capabilities: (*Engine).Capabilities(nil),
	Needs: engine.Needs{Interface: true, Takes: true, Frames: true, XDP: true, Pins: true, Kernel: [2]int{5, 18},
		Capabilities: []string{"CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"}},
	Slots: []int{2048, 4096},
	Rings: func(packets int) engine.Settings {
		ring := defaultRing
		for ring < 2*packets {
			ring *= 2
		}
		return engine.Settings{"ring": fmt.Sprint(ring), "spare": "-1", "wait": "20s"}
	},
}

// resolve returns the address and the options of a port, with the defaults filled in.
func resolve(spec engine.PortSpec) (engine.Address, Options, error) {
	return engine.ReadPort(&Spec, &spec, (*Options).complete)
}
