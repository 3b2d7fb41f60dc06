package dpdk

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/flow"
	"github.com/penstock-io/penstock/mem"
)

const (
	// maxQueues is the most queues of a port in either direction.
	maxQueues = 64
	// headroom is what a driver leaves free in front of a packet (RTE_PKTMBUF_HEADROOM).
	headroom = 128
)

// Engine opens ports of DPDK. It has no state: what DPDK keeps is the process's.
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

// CheckPort implements engine.Checker: the build, the options, and that the card is there and may be opened. It does not start DPDK, which
// nothing could stop again.
func (e *Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, _, err := settle(spec)
	if err != nil {
		return "", err
	}
	if err := e.Available(); err != nil {
		return "", err
	}
	return findDevice(&a)
}

// findDevice replaces an interface in the address by its card, and says what of the machine keeps the device from being opened.
func findDevice(a *engine.Address) (holds string, err error) {
	device, more, _ := strings.Cut(a.Where, ",")
	if virtual.MatchString(device) {
		return "device " + device, nil
	}
	card := cardOf(a.Where)
	if card == "" {
		if _, err := os.Stat("/sys/class/net/" + device); err != nil {
			return "", fmt.Errorf("dpdk: address %q: there is no interface %s: %w", a.Text, device, engine.ErrNotFound)
		}
		return "", &engine.SettingError{Engine: Name, Address: a.Text, Wrong: fmt.Sprintf("the interface %s has no card on the PCI bus", device),
			Expected: fmt.Sprintf("dpdk://net_af_xdp0,iface=%s or dpdk://net_af_packet0,iface=%s, which go through the kernel", device, device)}
	}
	if _, err := os.Stat("/sys/bus/pci/devices/" + card); err != nil {
		return "", fmt.Errorf("dpdk: address %q: there is no card at %s: %w: \"lspci -D\" lists them", a.Text, card, engine.ErrNotFound)
	}
	a.Where = card
	if more != "" {
		a.Where += "," + more
	}
	return "device " + card, nil
}
