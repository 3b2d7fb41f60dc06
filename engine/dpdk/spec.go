package dpdk

import (
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/flow"
	"github.com/penstock-io/penstock/mem"
)

// Name is the name of the engine in configurations.
const Name = "dpdk"

// Spec describes the engine.
var Spec = engine.Spec{
	Name: Name, Doc: "Whole frames by drivers in user space (DPDK), on any card or virtual device that has one.",
	New:     func() engine.Engine { return New() },
	Schemes: []string{"dpdk"},
	Options: append([]engine.Option{
		{Key: "cores", Type: engine.Text, Field: "Cores", Doc: "Cores of EAL's own threads, as a list: `2-3,5`; without it those of the process."},
		{Key: "memory", Type: engine.Bytes, Min: 1 << 20, Max: maxMemory, Default: "256MiB", Field: "Heap", Doc: "DPDK's own memory."},
		{Key: "huge", Type: engine.Word, Words: []string{"auto", "on", "off"}, Default: "auto", Field: "Huge", Doc: "Whether DPDK's own memory comes from huge pages."},
		{Key: "file_prefix", Type: engine.Text, Field: "FilePrefix", Doc: "Tells processes with DPDK apart; without it one is made."},
		{Key: "drivers", Type: engine.Text, List: true, Field: "Drivers", Doc: "Files or folders of poll-mode drivers, besides those that libdpdk finds."},
		{Key: "log", Type: engine.Word, Words: logLevels[1:], Default: "warning", Field: "Log", Doc: "The least level of DPDK's log that errors carry."},
		{Key: "buffers", Type: engine.Word, Words: []string{"auto", "in_place", "lent"}, Default: "auto", Field: "Buffers", Doc: "Where packets lie: in the slots of pools, or in memory of DPDK that is lent or copied from."},
		{Key: "promiscuous", Type: engine.Bool, Default: "false", Field: "Promiscuous", Doc: "Takes frames for other stations too."},
		{Key: "rss", Type: engine.Word, Words: []string{"none", "ip", "ports"}, Default: "none", Field: "RSS", Doc: "How the card spreads what no rule matches over the receive queues."},
		{Key: "rss_key", Type: engine.Text, Field: "RSSKey", Doc: "The key of that hash, hexadecimal; without it the driver's."},
	}, pace.Settings...),
	TxOptions:    func() any { return new(pace.Options) },
	PortOptions:  func(string) any { return new(Options) },
	Capabilities: (*Engine)(nil).Capabilities(),
	Needs:        engine.Needs{Interface: true, VFIO: true, Pins: true, Capabilities: []string{"CAP_IPC_LOCK"}},
}

const maxQueues = 64

// Engine opens ports of DPDK. It has no state of its own.
type Engine struct{}

// New makes the engine.
func New() *Engine { return &Engine{} }

// Name implements engine.Engine.
func (*Engine) Name() string { return Name }

// Capabilities implements engine.Engine.
func (*Engine) Capabilities() engine.Capabilities {
	can := flow.Software
	can.Engine, can.Queues = "DPDK", maxQueues
	return engine.Capabilities{
		Frames: true, RxQueues: maxQueues, TxQueues: maxQueues,
		RxQueuesHint: "the driver says how many there are",
		Rules:        true, RulesIn: "software", Steering: &can,
		Split: true, Chains: true, Hash: true, Timestamps: true,
		Pacing: true, SendAt: true, SendAtIn: "software", TxChecksum: "device", TxSegmentation: "software",
		ZeroCopyForward: true,
		Memory:          []mem.Kind{mem.Host, mem.Huge, mem.HostPinned},
		MemoryUse:       engine.UseRegistered,
		Pools:           engine.PoolsOptional,
		PoolsWhy:        "a queue without pools lends memory of DPDK",
		MinSlot:         headroom + 64,
		Notes: []string{
			"receiving is polling: a reader looks again after a pause, or always with a spin",
			"a packet begins 128 bytes behind the beginning of its slot",
			"header/data split copies each packet once, in software (RxStats.Copied)",
			"no packet stays with the kernel: a card that DPDK has is taken from it",
			"a queue that is added to a running port, or closed, stops it for a moment",
		},
	}
}

// headroom is what a driver leaves free in front of a packet (RTE_PKTMBUF_HEADROOM).
const headroom = 128

// settle is the address and the options of a port, complete.
func settle(spec engine.PortSpec) (engine.Address, Options, error) {
	a, o, err := engine.ReadPort(&Spec, &spec, (*Options).complete)
	if err == nil && a.Where == "" {
		err = &engine.SettingError{Engine: Name, Address: spec.Address, Wrong: "it names no device", Expected: "a place on the PCI bus, or a virtual device such as dpdk://net_ring0"}
	}
	if err == nil && spec.Isolated {
		err = engine.CannotIsolate(Name, &spec, "DPDK takes the whole device from the kernel")
	}
	return a, o, err
}

// PortCapabilities implements engine.Checker.
func (e *Engine) PortCapabilities(spec engine.PortSpec) (engine.Capabilities, error) {
	a, o, err := settle(spec)
	c := e.Capabilities()
	o.limit(&c, a.Where)
	return c, err
}

// limit says in c what the memory of a port is, as far as its address says it.
func (o *Options) limit(c *engine.Capabilities, where string) {
	ok, why := external(where)
	if o.Buffers == BuffersLent {
		ok, why = false, "buffers: lent says so"
	}
	if !ok && o.Buffers != BuffersInPlace {
		c.MemoryUse, c.MinSlot = engine.UseCopied, 0
		c.Notes = append(c.Notes, "packets are copied into the pools of a queue, and not for a queue without pools: "+why)
	}
}
