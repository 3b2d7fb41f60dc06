package dpdk

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/flow"
)

// maxQueues is the most queues of a port in either direction.
const maxQueues = 256

// Engine opens ports of DPDK. It has no state: what DPDK keeps is the process's.
type Engine struct{}

// New makes the engine.
func New() *Engine { return &Engine{} }

// Name implements engine.Engine.
func (*Engine) Name() string { return Name }

// Capabilities implements engine.Engine.
func (*Engine) Capabilities() engine.Capabilities {
	return engine.Capabilities{
		Frames: true, RxQueues: maxQueues, TxQueues: maxQueues, RxQueuesHint: "the driver has fewer in general",
		Rules: true, RulesIn: "software",
		Split: true, Chains: true, Timestamps: true, HardwareTime: true, Hash: true,
		Pacing: true, SendAt: true, SendAtIn: "software", TxChecksum: "device", TxSegmentation: "software",
		ZeroCopyForward: true,
		Memory:          []mem.Kind{mem.Host, mem.Huge},
		MemoryUse:       engine.UseRegistered,
		Pools:           engine.PoolsOptional,
		PoolsWhy:        "a queue without pools lends packets in memory of DPDK's",
		Notes: []string{
			"checksums that the driver of a port does not compute are computed in software",
			"header/data split is the card's at a place that split_at says, where its driver has buffer split; else " +
				"it copies each packet, in software (RxStats.Copied)",
			"rates of whole Mbit/s are kept by cards that limit them, sending at a time is that of cards that do; " +
				"the rest is software's",
			"receiving is polling: a reader looks again after a pause, or always with a spin",
		},
	}
}

// PortCapabilities implements engine.Checker.
func (*Engine) PortCapabilities(spec engine.PortSpec) (engine.Capabilities, error) {
	a, _, err := resolve(&spec)
	if err == nil && spec.Isolated && driver(a.Where) == "net_af_xdp" {
		err = engine.CannotIsolate(Name, &spec, "net_af_xdp takes all packets of its queue from the kernel")
	}
	c := (*Engine)(nil).Capabilities()
	c.HardwareTime = !strings.HasPrefix(a.Where, "net_") // no virtual device has them
	can := flow.Software
	can.Engine, can.Queues = "DPDK", maxQueues
	c.Steering = &can
	return c, err
}

// CheckPort implements engine.Checker: the build, the options, and that the card is there and may
// be opened. It does not start DPDK, which nothing could stop again.
func (e *Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, _, err := resolve(&spec)
	if err != nil {
		return "", err
	}
	if err := e.Available(); err != nil {
		return "", err
	}
	return findDevice(&a)
}

// findDevice replaces an interface in the address by its card, and says what of the machine keeps
// the device from being opened.
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
		return "", &engine.SettingError{Engine: Name, Address: a.Text,
			Wrong:    fmt.Sprintf("the interface %s has no card on the PCI bus", device),
			Expected: fmt.Sprintf("dpdk://net_af_xdp0,iface=%s or dpdk://net_af_packet0,iface=%s, which go through the kernel", device, device)}
	}
	if _, err := os.Stat("/sys/bus/pci/devices/" + card); err != nil {
		return "", fmt.Errorf("dpdk: address %q: there is no card at %s: %w: \"lspci -D\" lists them", a.Text, card,
			engine.ErrNotFound)
	}
	a.Where = card
	if more != "" {
		a.Where += "," + more
	}
	return "device " + card, nil
}
