package verbs

import (
	"context"
	"errors"
	"io/fs"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/mem"
)

// Engine opens ports of RDMA connections. Make it with New; any goroutine may use it.
type Engine struct {
	path string
	tree fs.FS  // the machine's files, nil: this machine's; tests have others
	cm   string // file of librdmacm, "": the system's

	mu  sync.Mutex
	lib *ibv.Library // nil until it is needed
}

// New makes an Engine. library is the file of libibverbs, "" for the one that the system has.
func New(library string) *Engine { return &Engine{path: library} }

var _ engine.Engine = (*Engine)(nil)

// Name implements engine.Engine: it is "rdma".
func (*Engine) Name() string { return "rdma" }

// library loads libibverbs, once.
func (e *Engine) library() (*ibv.Library, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lib != nil {
		return e.lib, nil
	}
	l, err := ibv.Load(ibv.Options{Path: e.path})
	if err != nil {
		return nil, failed(engine.ErrUnavailable, "%v", err)
	}
	e.lib = l
	return l, nil
}

// devices are the RDMA devices of this machine, at least one.
func (e *Engine) devices() ([]*ibv.Device, error) {
	l, err := e.library()
	if err != nil {
		return nil, err
	}
	all, err := l.Devices()
	switch {
	case err != nil:
		return nil, failed(engine.ErrUnavailable, "%v", err)
	case len(all) == 0:
		return nil, failed(engine.ErrUnavailable, "there is no RDMA device: load the module of the card (mlx5_ib, irdma, bnxt_re), or for any network interface, "+
			"in software and slower: rdma link add rxe0 type rxe netdev IF")
	}
	return all, nil
}

// Available implements engine.Engine: libibverbs is there, and it finds a device.
func (e *Engine) Available() error {
	_, err := e.devices()
	return err
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
		Connections: true, RxQueues: maxQueues, TxQueues: maxQueues, Split: true, Chains: true, Pacing: true, SendAt: true, SendAtIn: "software",
		ZeroCopyForward: true, ExactDrops: true, Lossless: true, Memory: []mem.Kind{mem.Host, mem.Huge, mem.Device},
	}
}

// OpenPort implements engine.Engine. Options are nil, an Options or a pointer to one.
func (e *Engine) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	a, err := parseAddress(spec.Address)
	if err != nil {
		return nil, err
	}
	var o Options
	switch given := spec.Options.(type) {
	case nil:
	case Options:
		o = given
	case *Options:
		if given == nil {
			return nil, failed(engine.ErrNil, "port %q: options", spec.Address)
		}
		o = *given
	default:
		return nil, invalid("port %q: options of type %T: expected verbs.Options", spec.Address, spec.Options)
	}
	if spec.Isolated {
		return nil, failed(engine.ErrUnsupported, "port %q: a connection brings what its peer sends, and has no rules: Isolated must be false", spec.Address)
	}
	if a.device != "" {
		o.Device = a.device
	}
	if a.gid != 0 {
		o.GID = a.gid
	}
	if a.how != nil {
		o.Transport = *a.how
	}
	if a.by != nil {
		o.Connect = *a.by
	}
	if err := o.complete(); err != nil {
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
