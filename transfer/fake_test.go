package transfer

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// fakeDriver is a real driver under another name, whose paths a test can disturb.
type fakeDriver struct {
	setup.ListenDriver
	name   string
	cost   path.Cost // the prior, unless zero
	dial   func(ctx context.Context) error
	dialed func() // called when a path was dialed, before the dialer gets it
	listen error
	// in the place of listen, which is the real one
	opens func(listen func() (setup.Listener, error)) (setup.Listener, error)
	// what its paths say of themselves, if they are to say something else than they are
	level *path.Security
	post  func(p path.Path, ops []path.Op) (int, error)
	poll  func(p path.Path, events []path.Event) int
	dials atomic.Int64

	reaches func(r *mem.Region) error // not nil: its paths are path.DeviceReachers, for local memory
}

// over puts a fake on top of transfer/path/tcp.
func over(name string) *fakeDriver {
	return &fakeDriver{ListenDriver: tcp.New(tcp.Options{}), name: name}
}

func (d *fakeDriver) Name() string { return d.name }

func (d *fakeDriver) Traits() setup.Traits {
	t := d.ListenDriver.Traits()
	t.Devices = d.reaches != nil
	if d.cost != (path.Cost{}) {
		t.Prior = d.cost
	}
	if d.level != nil {
		t.Encrypts = *d.level == path.SecurityEncrypted
	}
	return t
}

func (d *fakeDriver) Listen() (setup.Listener, error) {
	if d.listen != nil {
		return nil, d.listen
	}
	listen := d.ListenDriver.Listen
	if d.opens != nil {
		listen = func() (setup.Listener, error) { return d.opens(d.ListenDriver.Listen) }
	}
	l, err := listen()
	return fakeListener{l, d}, err
}

func (d *fakeDriver) Dial(ctx context.Context, o setup.Offer, cfg setup.Config) (path.Path, error) {
	d.dials.Add(1)
	if d.dial != nil {
		if err := d.dial(ctx); err != nil {
			return nil, err
		}
	}
	p, err := d.ListenDriver.Dial(ctx, o, cfg)
	if err == nil && d.dialed != nil {
		d.dialed()
	}
	return d.wrap(p, err)
}

func (d *fakeDriver) wrap(p path.Path, err error) (path.Path, error) {
	if err != nil {
		return nil, err
	}
	if d.reaches != nil {
		return &directPath{fakePath{p, d}}, nil
	}
	return &fakePath{p, d}, nil
}

// directPath reaches memory of devices, or says that it does.
type directPath struct{ fakePath }

func (p *directPath) ReachesRegion(r *mem.Region) error { return p.d.reaches(r) }

func (p *directPath) ReachesDevice(path.Desc) error { return path.ErrUnreachable }

type fakeListener struct {
	setup.Listener
	d *fakeDriver
}

func (l fakeListener) Accept(ctx context.Context, token setup.Token, cfg setup.Config) (path.Path, error) {
	return l.d.wrap(l.Listener.Accept(ctx, token, cfg))
}

type fakePath struct {
	path.Path
	d *fakeDriver
}

func (p *fakePath) Name() string { return p.d.name }

func (p *fakePath) Capabilities() path.Capabilities {
	c := p.Path.Capabilities()
	if p.d.level != nil {
		c.Security = *p.d.level
	}
	return c
}

func (p *fakePath) Post(ops []path.Op) (int, error) {
	if p.d.post != nil {
		return p.d.post(p.Path, ops)
	}
	return p.Path.Post(ops)
}

func (p *fakePath) Poll(events []path.Event) int {
	if p.d.poll != nil {
		return p.d.poll(p.Path, events)
	}
	return p.Path.Poll(events)
}

// addsUp checks that the parts of a transfer's time make its total.
func addsUp(t testing.TB, x *Transfer) {
	t.Helper()
	e := x.Explain().Times
	if sum := e.Parse + e.Register + e.Open + e.Queue + e.Transfer + e.Complete; sum != e.Total || e.Total <= 0 {
		t.Errorf("the parts add up to %v, the total is %v\n%v", sum, e.Total, x.Explain())
	}
	for _, d := range []int64{int64(e.Parse), int64(e.Register), int64(e.Open), int64(e.Queue), int64(e.Transfer),
		int64(e.Complete)} {
		if d < 0 {
			t.Errorf("a part is negative: %+v", e)
		}
	}
}
