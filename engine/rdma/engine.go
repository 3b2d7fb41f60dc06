package rdma

import (
	"context"
	"errors"
	"io/fs"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/mem"
)

// Engine opens ports of RDMA connections. Make it with New; any goroutine may use it.
type Engine struct {
	lib  rdmadev.Library
	tree fs.FS  // the machine's files, nil: this machine's; tests have others
	cm   string // file of librdmacm, "": the system's
}

// New makes an Engine. library is the file of libibverbs, "" for the one that the system has.
func New(library string) *Engine { return &Engine{lib: rdmadev.Library{Path: library}} }

var _ engine.Engine = (*Engine)(nil)

// Name implements engine.Engine: it is "rdma".
func (*Engine) Name() string { return "rdma" }

// Available implements engine.Engine: libibverbs is there, and it finds a device.
func (e *Engine) Available() error {
	if _, err := e.lib.Devices(); err != nil {
		return failed(engine.ErrUnavailable, "%v", err)
	}
	return nil
}

// Capabilities implements engine.Engine.
func (*Engine) Capabilities() engine.Capabilities {
	c := capabilities()
	c.Notes = []string{"ExactDrops is true with RC, the default: with UC and UD messages may be lost on the wire"}
	return c
}

// capabilities are those that ports of reliable connections have.
func capabilities() engine.Capabilities {
	return engine.Capabilities{
		RxDepth:     maxDepth,
		Connections: true, RxQueues: maxQueues, TxQueues: maxQueues, Split: true, Chains: true, Pacing: true,
		SendAt: true, SendAtIn: "software",
		TxChecksum: "device", TxSegmentation: "software",
		ZeroCopyForward: true, ExactDrops: true, Lossless: true, Memory: []mem.Kind{mem.Host, mem.Huge, mem.Device},
		MemoryUse: engine.UseRegistered,
	}
}

// OpenPort implements engine.Engine. Options are nil, an Options or a pointer to one.
func (e *Engine) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	a, o, err := resolve(spec)
	if err != nil {
		return nil, err
	}
	if spec.Name == "" {
		spec.Name = spec.Address
	}
	p, err := e.open(spec.Name, a, o)
	if err != nil {
		return nil, err
	}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}
