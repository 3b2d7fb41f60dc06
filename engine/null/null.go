package null

import (
	"context"
	"errors"
	"slices"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
)

// Name is the name of the engine in configurations.
const Name = "null"

const (
	maxQueues   = 64
	defaultSize = 64
	minSize     = packet.EthernetLen + packet.IPv4Len + packet.UDPLen
	maxSize     = 1<<16 - 1
)

// Engine opens ports. It has no state.
type Engine struct{}

// New makes the engine.
func New() *Engine { return &Engine{} }

// Name implements engine.Engine.
func (*Engine) Name() string { return Name }

// Available implements engine.Engine: it needs nothing.
func (*Engine) Available() error { return nil }

// Capabilities implements engine.Engine.
func (*Engine) Capabilities() engine.Capabilities { return capabilities(0) }

// capabilities are those of a port that receives packets of that many bytes.
func capabilities(size int) engine.Capabilities {
	return engine.Capabilities{
		Frames: true, RxQueues: maxQueues, TxQueues: maxQueues, Chains: true,
		TxChecksum: "software", TxSegmentation: "software", ZeroCopyForward: true,
		Memory: []mem.Kind{mem.Host, mem.Huge}, MemoryUse: engine.UseInPlace,
		ExactDrops: true,
		MaxPacket:  maxSize,
		MinSlot:    size,
		Notes:      []string{"no network: packets are made in memory, and what is sent is dropped"},
	}
}

// PortCapabilities implements engine.Checker.
func (*Engine) PortCapabilities(spec engine.PortSpec) (engine.Capabilities, error) {
	o, err := resolve(spec)
	return capabilities(o.Size), err
}

// CheckPort implements engine.Checker. Any number of ports is open at a time.
func (*Engine) CheckPort(_ context.Context, spec engine.PortSpec) (holds string, err error) {
	_, err = resolve(spec)
	return "", err
}

// OpenPort implements engine.Engine. spec.Address is null:// or null://?size=N, with the size of
// received packets in bytes.
func (*Engine) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o, err := resolve(spec)
	if err != nil {
		return nil, err
	}
	return &Port{spec: spec, size: o.Size}, nil
}

// Port is an open port. It implements engine.Port.
type Port struct {
	spec engine.PortSpec
	size int

	// rx are the receive queues. Its lock also guards the next fields.
	rx     engine.RxSet[*rxQueue]
	txs    []*txQueue
	gone   []*txQueue // the last that were closed
	pastTx engine.TxStats
}

// Name implements engine.Port.
func (p *Port) Name() string {
	if p.spec.Name != "" {
		return p.spec.Name
	}
	return p.spec.Address
}

// Info implements engine.Port.
func (p *Port) Info() engine.PortInfo {
	return engine.PortInfo{Engine: Name, Address: p.spec.Address, MAC: mac, MTU: maxSize - packet.EthernetLen, Up: true,
		NUMA: -1}
}

// Capabilities implements engine.Port.
func (p *Port) Capabilities() engine.Capabilities { return capabilities(p.size) }

// Rules implements engine.Port: there are none.
func (*Port) Rules() engine.Rules { return nil }

// Stats implements engine.Port.
func (p *Port) Stats(s *engine.PortStats) {
	p.rx.Lock()
	defer p.rx.Unlock()
	*s = engine.PortStats{Tx: p.pastTx}
	p.rx.Sum(&s.Rx)
	engine.SumTx(&s.Tx, p.txs, p.gone)
}

// Close implements engine.Port.
func (p *Port) Close() error {
	rxs, _ := p.rx.End()
	var errs []error
	for _, q := range rxs {
		errs = append(errs, q.Close())
	}
	p.rx.Lock()
	txs := slices.Clone(p.txs)
	p.rx.Unlock()
	for _, q := range txs {
		errs = append(errs, q.Close())
	}
	return errors.Join(errs...)
}
