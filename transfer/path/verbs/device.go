package verbs

import (
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// device is an open adapter with the port and the address that paths use. All endpoints and paths
// of a driver share it; it is closed with the last of them.
type device struct {
	owner *Driver
	ctx   *ibv.Context
	attr  ibv.DeviceAttr
	port  ibv.PortAttr
	gid   ibv.GID
	why   string // why this GID
	raw   [16]byte
	// memory registers what paths read and write.
	memory *ibvmem.Adapter
	// shared is the domain of all paths where the device has memory windows; otherwise each path
	// has its own.
	shared *domain
	noMW   string // why not

	users int // guarded by Driver.mu

	mu    sync.Mutex // guards paths
	paths map[*Path]struct{}
}

// domain is a protection domain with what is registered in it. A queue pair can use all keys of its
// domain, so either the keys are of no use to peers (regions without remote rights, with windows on
// them), or the domain has one peer.
type domain struct {
	dev     *device
	pd      *ibv.PD
	windows bool
	local   *mem.RegCache

	mu      sync.Mutex // guards what follows
	exports map[*path.Export]*exported
}

// exported is an export's own region at the adapter: exactly its bytes, for adapters that check the
// bounds of the region only.
type exported struct {
	register func() (*ibv.MR, error) // once; nil for an export without bytes
	refs     int
}

// openDevice opens what the options name, or the first device with an active port. It holds d.mu.
func openDevice(d *Driver) (dev *device, err error) {
	_, err = d.lib.Open(d.o.Device, func(ctx *ibv.Context) (err error) {
		dev, err = openOne(d, ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("verbs: %w: %w", path.ErrUnavailable, err)
	}
	return dev, nil
}

// openOne makes what paths of an open device share.
func openOne(d *Driver, ctx *ibv.Context) (_ *device, err error) {
	dev := &device{owner: d, ctx: ctx, paths: map[*Path]struct{}{}}
	if dev.attr, err = ctx.Attr(); err != nil {
		return nil, err
	}
	for n := 1; n <= dev.attr.Ports; n++ {
		if d.o.Port != 0 && n != d.o.Port {
			continue
		}
		if dev.port, err = ctx.Port(n); err != nil {
			return nil, err
		}
		if dev.port.State == ibv.PortActive {
			break
		}
	}
	if dev.port.State != ibv.PortActive {
		return nil, fmt.Errorf("device %s: no active port (port %d is %s): set its interface up, or plug the cable in",
			ctx.Name(), max(d.o.Port, 1), dev.port.State)
	}
	want := ibv.GIDWant{For: d.o.For}
	if d.o.GID != nil {
		want.Index = d.o.GID
	}
	if dev.gid, dev.why, err = ctx.ChooseGID(dev.port.Port, want); err != nil {
		return nil, err
	}
	dev.raw = dev.gid.Addr.As16()
	dev.memory = ibvmem.New(ctx, ibvmem.Options{Tree: d.tree})
	switch {
	case d.o.NoWindows:
		dev.noMW = "as configured"
	case !dev.attr.WindowType2B:
		dev.noMW = "the device has no memory windows of type 2B"
	default:
		dev.shared, err = dev.newDomain(true)
	}
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// newDomain makes a protection domain.
func (dev *device) newDomain(windows bool) (*domain, error) {
	pd, err := dev.ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	d := &domain{dev: dev, pd: pd, windows: windows, exports: map[*path.Export]*exported{}}
	if d.local, err = mem.NewRegCache(mem.RegCacheOptions{Name: "verbs " + dev.ctx.Name(),
		Registrar: registrar{pd, dev.memory}}); err != nil {
		return nil, errors.Join(err, pd.Close())
	}
	return d, nil
}

func (d *domain) close() error { return errors.Join(d.local.Close(), d.pd.Close()) }

// domain is that of a new path, which leave gives back.
func (dev *device) domain() (*domain, error) {
	if dev.shared != nil {
		return dev.shared, nil
	}
	return dev.newDomain(false)
}

func (d *domain) leave() error {
	if d == d.dev.shared {
		return nil
	}
	return d.close()
}

func (dev *device) close() error {
	var err error
	if dev.shared != nil {
		err = errors.Join(err, dev.shared.close())
	}
	return errors.Join(err, dev.ctx.Close())
}

// registrar registers local memory for mem.RegCache: what requests of this side read and write. No
// peer can name it.
type registrar struct {
	pd     *ibv.PD
	memory *ibvmem.Adapter
}

func (r registrar) Register(s mem.Span, a mem.Access) (any, error) {
	var access ibv.Access
	if a&mem.WriteAccess != 0 {
		access = ibv.LocalWrite
	}
	mr, err := r.memory.Register(r.pd, s, access)
	return mr, unreachable(err)
}

// unreachable makes a refusal of memory one of a path.
func unreachable(err error) error {
	if errors.Is(err, ibvmem.ErrNoWay) {
		return fmt.Errorf("%w: %w", path.ErrUnreachable, err)
	}
	return err
}

func (r registrar) Deregister(h any) error { return h.(*ibv.MR).Close() }

// pin registers an export, once for all paths of the domain. The caller calls unpin when its
// windows are gone. Without windows the registration itself is what the peer reaches, with its
// rights: the domain has one path then.
func (d *domain) pin(e *path.Export, rights path.Rights) (*ibv.MR, error) {
	d.mu.Lock()
	x := d.exports[e]
	if x == nil {
		x = &exported{register: sync.OnceValues(func() (*ibv.MR, error) { return d.register(e.Span(), rights) })}
		d.exports[e] = x
	}
	x.refs++
	d.mu.Unlock()
	mr, err := x.register()
	if err != nil {
		d.unpin(e)
	}
	return mr, err
}

func (d *domain) register(s mem.Span, rights path.Rights) (*ibv.MR, error) {
	if s.Len == 0 {
		return nil, nil // no request moves a byte
	}
	access := ibv.LocalWrite
	if s.Region.ReadOnly() {
		access = 0
	}
	if d.windows {
		access |= ibv.MWBind
	} else {
		access |= remote(rights)
	}
	mr, err := d.dev.memory.Register(d.pd, s, access)
	return mr, unreachable(err)
}

// unpin ends one use; the last one deregisters.
func (d *domain) unpin(e *path.Export) error {
	d.mu.Lock()
	x := d.exports[e]
	x.refs--
	last := x.refs == 0
	if last {
		delete(d.exports, e)
	}
	d.mu.Unlock()
	if last {
		if mr, _ := x.register(); mr != nil {
			return mr.Close()
		}
	}
	return nil
}

// remote is what a peer with these rights may do.
func remote(r path.Rights) ibv.Access {
	var a ibv.Access
	if r&path.Read != 0 {
		a |= ibv.RemoteRead
	}
	if r&path.Write != 0 {
		a |= ibv.RemoteWrite
	}
	return a
}
