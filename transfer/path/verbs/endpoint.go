package verbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// descriptionSize is the size in bytes of a description on the wire.
const descriptionSize = 6 + 16 + 2 + 4 + 2 + 2 + 4 + 8*(maxQPs+1)

var magic = [4]byte{'P', 'V', 'R', 'B'}

// flagDevices, in description.flags: the adapter may reach memory of accelerators.
const flagDevices = 1

// maxWindow bounds Config.Window.
const maxWindow = 4096

// qpAddress is one queue pair as the other side must know it: its number and its first sequence
// number, 24 bits each.
type qpAddress struct{ qpn, psn uint32 }

func (a qpAddress) valid() bool { return a.qpn < 1<<24 && a.psn < 1<<24 }

// description is what one end says of itself, all that the other one needs to connect its queue
// pairs. The session carries it.
type description struct {
	gid      [16]byte // address of the port
	lid      uint16   // the same on InfiniBand
	window   uint32
	ctlDepth uint16 // receives of the control queue pair
	msgDepth uint16 // receives of each data queue pair
	dataQPs  uint8  // data queue pairs
	mtu      uint8  // as in enum ibv_mtu
	reads    uint8  // RDMA reads that it serves at once
	flags    uint8
	control  qpAddress
	data     [maxQPs]qpAddress
}

func (d *description) append(b []byte) []byte {
	b = put16(append(b, magic[:]...), version)
	b = append(b, d.gid[:]...)
	b = put16(b, d.lid)
	b = put32(b, d.window)
	b = put16(b, d.ctlDepth)
	b = put16(b, d.msgDepth)
	b = append(b, d.dataQPs, d.mtu, d.reads, d.flags)
	b = put32(put32(b, d.control.qpn), d.control.psn)
	for _, r := range d.data {
		b = put32(put32(b, r.qpn), r.psn)
	}
	return b
}

// parse reads what append wrote. The peer wrote it: what is out of range is ErrProtocol, another
// version ErrUnavailable.
func (d *description) parse(b []byte) error {
	if len(b) < 6 || [4]byte(b[:4]) != magic {
		return malformed("%d bytes that are no description of an endpoint", len(b))
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != version {
		return fmt.Errorf("the peer speaks version %d of the protocol of verbs paths, this side version %d: %w", v,
			version, path.ErrUnavailable)
	}
	if len(b) != descriptionSize {
		return malformed("a description of %d bytes: expected %d", len(b), descriptionSize)
	}
	b = b[6:]
	copy(d.gid[:], b)
	d.lid, d.window = binary.BigEndian.Uint16(b[16:]), binary.BigEndian.Uint32(b[18:])
	d.ctlDepth, d.msgDepth = binary.BigEndian.Uint16(b[22:]), binary.BigEndian.Uint16(b[24:])
	d.dataQPs, d.mtu, d.reads, d.flags = b[26], b[27], b[28], b[29]
	b = b[30:]
	d.control = qpAddress{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
	ok := d.control.valid()
	for i := range d.data {
		c := b[8*(i+1):]
		d.data[i] = qpAddress{binary.BigEndian.Uint32(c), binary.BigEndian.Uint32(c[4:])}
		ok = ok && d.data[i].valid()
	}
	switch {
	case !ok:
		return malformed("a queue pair or sequence number of more than 24 bits")
	case d.dataQPs < 1 || d.dataQPs > maxQPs:
		return malformed("%d queue pairs: expected 1 to %d", d.dataQPs, maxQPs)
	case d.window < 1 || d.window > maxWindow:
		return malformed("a window of %d: expected 1 to %d", d.window, maxWindow)
	case d.ctlDepth <= 2*plainReserve || d.msgDepth < 2:
		return malformed("%d and %d receives: expected more than %d and 2 or more", d.ctlDepth, d.msgDepth,
			2*plainReserve)
	case d.mtu < 1 || d.mtu > 5:
		return malformed("an MTU with the number %d: expected 1 to 5", d.mtu)
	}
	return nil
}

// describe is what this side says of itself.
func (p *Path) describe() description {
	dev := p.dev
	d := description{gid: dev.raw, lid: dev.port.LID, window: uint32(p.window), ctlDepth: ctlDepth, msgDepth: msgDepth,
		dataQPs: uint8(len(p.data)),
		mtu:     uint8(dev.port.ActiveMTU), reads: uint8(min(dev.attr.MaxRdAtomic, 16)),
		control: qpAddress{p.ctl.qp.Num(), p.ctl.psn}}
	for i, l := range p.data {
		d.data[i] = qpAddress{l.qp.Num(), l.psn}
	}
	if dev.memory.Able() {
		d.flags |= flagDevices
	}
	return d
}

// greeting is the state of the first frame of the control connection, which the side that asked for
// the path sends: the other side learns by it that both ends are connected.
type greeting uint8

const (
	greeted      greeting = iota // it was sent, or came
	sendsHello                   // it is to be sent
	expectsHello                 // it has to come before anything else
)

// Endpoint is one end of a path: its queue pairs exist and have receives.
type Endpoint struct {
	p    *Path
	self []byte
}

// Endpoint makes one end of a path. With a peer its queue pairs are connected to those of the peer
// at once, so that nothing that the peer sends finds them unprepared. See setup.EndpointDriver.
func (d *Driver) Endpoint(cfg setup.Config, peer []byte) (setup.Endpoint, error) {
	window, qps, err := d.terms(cfg)
	if err != nil {
		return nil, err
	}
	var theirs description
	if peer != nil {
		if err := theirs.parse(peer); err != nil {
			return nil, fmt.Errorf("verbs: %w", err)
		}
		if cfg.Streams == 0 {
			qps = int(theirs.dataQPs)
		}
		if int(theirs.dataQPs) != qps {
			return nil, fmt.Errorf("verbs: the peer wants %d queue pairs and this side %d: %w", theirs.dataQPs, qps,
				path.ErrUnavailable)
		}
	}
	dev, err := d.device()
	if err != nil {
		return nil, err
	}
	if peer != nil {
		if err := dev.permits(theirs.gid); err != nil {
			return nil, errors.Join(err, dev.put())
		}
	}
	p, err := newPath(dev, cfg, &d.o, window, qps)
	if err != nil {
		return nil, err // which has given the device back
	}
	own := p.describe()
	p.greeting = sendsHello
	if peer != nil {
		p.greeting = expectsHello
		if err := p.start(theirs); err != nil {
			return nil, errors.Join(fmt.Errorf("verbs: connect to %s: %w", dev.way(&theirs).DGID, err), p.abandon())
		}
	}
	return &Endpoint{p, own.append(nil)}, nil
}

// Description is a version, the address of the adapter, and number and first sequence number of
// each queue pair.
func (e *Endpoint) Description() []byte { return e.self }

// Connect connects the queue pairs, if Endpoint has not, and waits for the first frame. See
// setup.Endpoint.
func (e *Endpoint) Connect(ctx context.Context, peer []byte) (path.Path, error) {
	p := e.p
	if err := p.connectTo(ctx, peer); err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: %w", err), p.abandon())
	}
	return p, nil
}

func (p *Path) connectTo(ctx context.Context, peer []byte) error {
	if p.greeting == expectsHello {
		return p.until(ctx, func() bool { return p.greeting == greeted })
	}
	var d description
	if err := d.parse(peer); err != nil {
		return err
	}
	if int(d.dataQPs) != len(p.data) {
		return malformed("the peer has %d queue pairs and this side %d", d.dataQPs, len(p.data))
	}
	if err := p.dev.permits(d.gid); err != nil {
		return err
	}
	if err := p.start(d); err != nil {
		return err
	}
	p.control()
	return p.until(ctx, func() bool { return p.greeting == greeted && p.ctl.tail == p.ctl.head && !p.ctl.repl.failed })
}

// Close gives everything back. See setup.Endpoint.
func (e *Endpoint) Close() error { return e.p.abandon() }

// abandon gives up a path that was never handed out.
func (p *Path) abandon() error {
	p.err, p.closed = errClosed, true
	return errors.Join(p.dismantle(), p.release())
}

// until serves the path until cond holds, before it has an owner.
func (p *Path) until(ctx context.Context, cond func() bool) error {
	wake, err := sys.Eventfd()
	if err != nil {
		return err
	}
	defer sys.Close(wake)
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { sys.Ring(wake); close(over) })
	defer func() {
		if !stop() {
			<-over
		}
	}()
	for !cond() && p.err == nil {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the peer at %s does not begin: it is gone, or the network does not carry RoCE (UDP "+
				"port 4791) between the two: %w", p.dev.way(&p.peer).DGID, err)
		}
		if !p.Arm() {
			if _, err := sys.PollIn(-1, wake, p.FD()); err != nil {
				return err
			}
		}
		p.Poll(nil)
	}
	if cond() { // it may have ended again since: its owner learns that by EventDown
		return nil
	}
	return p.err
}
