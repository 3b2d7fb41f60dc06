package verbs

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibv/cm"
	"github.com/penstock-io/penstock/internal/rdma"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

// Name is the driver's name.
const Name = "verbs"

// Options choose the adapter and shape the paths. The zero value takes the first device with an active port.
type Options struct {
	Library string     // file of libibverbs; "" is the system's
	Device  string     // name such as "mlx5_0"; "" is the first that can be used
	Port    int        // of the device, from 1; 0 is the first that is active
	GID     *int       // index in the port's table of addresses; nil leaves the choice to the path
	For     netip.Addr // an address of a peer, for which the GID is chosen; not valid: any
	// Rails is the number of data queue pairs of a path unless path.Config.Streams says otherwise; 0 means DefaultRails. Both sides have the same.
	Rails int
	Depth int // requests in the queue of a rail; 0 means DefaultDepth
	// Transport is what carries puts. A listener whose Transport is AnyTransport takes the dialer's; otherwise both sides have the same.
	Transport Transport
	// Initiators bounds the queue pairs by which all paths with DC of a device send; for their control there are a quarter as many more. 0 means
	// DefaultInitiators.
	Initiators int
	// Timeout is how long the adapter waits for an acknowledgement before it sends again: 4.096 µs × 2^Timeout, 6 times; 0 means DefaultTimeout.
	Timeout int
	Piece   uint64 // bytes that one request moves at most; 0 lets the path find out
	Signal  uint64 // the path signals one request in this many; 0 lets the path find out
	Tune    Tuning // between which values the path looks for those that are not given
	// Meet is how a listener of this driver meets its dialers.
	Meet Meet
	// NoInline has the adapter fetch also what is small, NoWindows has each peer in a protection domain of its own.
	NoInline, NoWindows bool
	// Insecure permits peers on other machines. RDMA is not encrypted: every host on the way can read and change what travels.
	Insecure bool

	cm    string        // file of librdmacm, "": the system's. For tests.
	mlx5  string        // file of libmlx5, ""  is the system's. For tests.
	looks time.Duration // between two looks whether links get on; 0: rdma.WatchEvery. For tests.
}

// The values that the zero Options stand for.
const (
	DefaultRails   = 1
	DefaultDepth   = 256
	DefaultTimeout = 14 // 67 ms
)

// retries is how often an adapter sends again what the peer does not acknowledge. Soft-RoCE takes the 7 that fits into the field for "for ever".
const retries = 6

// maxDepth bounds Options.Depth.
const maxDepth = 8192

func (o *Options) depth() int {
	if o.Depth == 0 {
		return DefaultDepth
	}
	return o.Depth
}

// ring is the depth as a power of two.
func (o *Options) ring() int {
	n := 1
	for n < o.depth() {
		n *= 2
	}
	return n
}

func (o *Options) initiators() int {
	if o.Initiators == 0 {
		return DefaultInitiators
	}
	return o.Initiators
}

func (o *Options) timeout() uint8 {
	if o.Timeout == 0 {
		return DefaultTimeout
	}
	return uint8(o.Timeout)
}

func (o *Options) watch() time.Duration {
	if o.looks == 0 {
		return rdma.WatchEvery
	}
	return o.looks
}

// inlines are the sizes to ask for, the best first.
func (o *Options) inlines() []int {
	if o.NoInline {
		return []int{0}
	}
	return []int{220, 128, 64, 0}
}

func (o *Options) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("verbs: "+format+": %w", append(args, path.ErrUnavailable)...)
	}
	switch {
	case o.Depth != 0 && (o.Depth < 4*keepSmall || o.Depth > maxDepth):
		return bad("Options.Depth is %d: expected 0 for %d, or %d to %d", o.Depth, DefaultDepth, 4*keepSmall, maxDepth)
	case o.Rails < 0 || o.Rails > maxRails:
		return bad("Options.Rails is %d: expected 0 for %d, or up to %d", o.Rails, DefaultRails, maxRails)
	case o.Timeout < 0 || o.Timeout > 31:
		return bad("Options.Timeout is %d: expected 0 for %d, or up to 31", o.Timeout, DefaultTimeout)
	case o.Transport > DC:
		return bad("Options.Transport is %s: expected AnyTransport, RC, UC or DC", o.Transport)
	case o.Initiators < 0 || o.Initiators > MaxInitiators:
		return bad("Options.Initiators is %d: expected 0 for %d, or up to %d", o.Initiators, DefaultInitiators, MaxInitiators)
	case o.Meet > MeetCM:
		return bad("Options.Meet is %d: expected MeetAuto, MeetUD or MeetCM", o.Meet)
	case o.Port < 0:
		return bad("Options.Port is %d: expected 0 for the first active one, or a number from 1", o.Port)
	case o.Piece > 1<<30:
		return bad("Options.Piece is %d: expected at most %d", o.Piece, 1<<30)
	case o.Signal > keepSmall:
		return bad("Options.Signal is %d: expected at most %d", o.Signal, keepSmall)
	}
	return o.Tune.check()
}

// Driver makes paths over RDMA. It implements path.Driver. The device is open while a listener or a path of the driver is.
type Driver struct {
	o    Options
	tree fs.FS // the machine's files, nil: this machine's; tests have others

	mu      sync.Mutex // guards what follows, and the device's count of users
	lib     rdma.Library
	manager *cm.Library
	dev     *device
}

var (
	_ path.Driver   = (*Driver)(nil)
	_ path.Prober   = (*Driver)(nil)
	_ path.Listener = (*Listener)(nil)
	_ path.Path     = (*Path)(nil)

	_ path.DeviceReacher = (*Path)(nil)
)

// New makes a driver; for bad options see Check, a missing device shows when it listens or dials.
func New(o Options) *Driver { return &Driver{o: o, lib: rdma.Library{Path: o.Library}} }

// Check is that of the Options; it makes the driver a path.Checker.
func (d *Driver) Check() error { return d.o.check() }

// Name is "verbs".
func (d *Driver) Name() string { return Name }

// Traits are those of an adapter that has no encryption. Shared memory comes before it, sockets behind it, until both were measured.
func (d *Driver) Traits() path.Traits {
	return path.Traits{Devices: true, Prior: path.Cost{Latency: 5 * time.Microsecond, BytesPerSec: 6e9}}
}

// Probe opens the device and closes it again. It makes the driver a path.Prober.
func (d *Driver) Probe() error {
	dev, err := d.device()
	if err != nil {
		return err
	}
	return dev.put()
}

// device is the open device, one use more.
func (d *Driver) device() (*device, error) {
	if err := d.o.check(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dev == nil {
		dev, err := openDevice(d)
		if err != nil {
			return nil, err
		}
		if d.o.Transport == DC { // who asks for it learns at once whether it can be had
			if _, err := dev.openDynamic(); err != nil {
				return nil, errors.Join(err, dev.close())
			}
		}
		d.dev = dev
	}
	d.dev.users++
	return d.dev, nil
}

// put ends one use.
func (dev *device) put() error {
	d := dev.owner
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev.users--; dev.users > 0 {
		return nil
	}
	d.dev = nil
	return dev.close()
}

// way is how this side reaches a peer.
func (dev *device) way(p *params) ibv.Address {
	a := ibv.Address{Port: uint8(dev.port.Port), DGID: netip.AddrFrom16(p.gid), SGIDIndex: uint8(dev.gid.Index), LID: p.lid}
	if dev.port.Link == ibv.LinkEthernet {
		a.LID = 0
	}
	return a
}

func mtuOf(n uint8) ibv.MTU { return ibv.MTU(n) }

// permits refuses peers beyond this machine unless the options permit what is not encrypted.
func (dev *device) permits(gid [16]byte) error {
	if gid == dev.raw || dev.owner.o.Insecure {
		return nil
	}
	return fmt.Errorf("verbs: the peer at %s is not on this machine, and RDMA is not encrypted: say Insecure to permit it: %w",
		netip.AddrFrom16(gid), path.ErrUnavailable)
}

func randomPSN() uint32 { return uint32(random64()) & (1<<24 - 1) }

func random64() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails (Go 1.24)
	return binary.BigEndian.Uint64(b[:])
}

// terms are what a configuration asks for.
func (d *Driver) terms(cfg path.Config) (window, rails int, err error) {
	window, rails = cfg.Window, cfg.Streams
	if window == 0 {
		window = path.DefaultWindow
	}
	if rails == 0 {
		if rails = d.o.Rails; rails == 0 {
			rails = DefaultRails
		}
	}
	switch {
	case cfg.Exports == nil:
		err = errors.New("verbs: Config.Exports is nil: give the table of what the peer may reach, which may be empty")
	case window < 1:
		err = fmt.Errorf("verbs: Config.Window is %d: expected 0 for %d, or up to %d", cfg.Window, path.DefaultWindow, maxWindow)
	case rails < 1:
		err = fmt.Errorf("verbs: Config.Streams is %d: expected 0 for %d, or up to %d", cfg.Streams, DefaultRails, maxRails)
	case cfg.Secret != nil && len(cfg.Secret) != path.SecretSize:
		err = fmt.Errorf("verbs: Config.Secret has %d bytes: expected %d", len(cfg.Secret), path.SecretSize)
	}
	return min(window, maxWindow), min(rails, maxRails), err
}

const (
	helloFirst = 20 * time.Millisecond // until a hello is repeated; then twice as long each time
	helloMost  = 400 * time.Millisecond
	// handshakeTime bounds a handshake, for a caller whose context has no end.
	handshakeTime = 20 * time.Second
)

// Dial sets up the path that was offered: it repeats its hello until the listener answers.
func (d *Driver) Dial(ctx context.Context, o path.Offer, cfg path.Config) (path.Path, error) {
	at, byCM, err := parseCMAddress(o.Addr)
	to := place{gid: at.Addr().As16()}
	if !byCM {
		to, err = parseAddress(o.Addr)
	}
	if err != nil {
		return nil, err
	}
	window, rails, err := d.terms(cfg)
	if err != nil {
		return nil, err
	}
	dev, err := d.device()
	if err != nil {
		return nil, err
	}
	if err := dev.permits(to.gid); err != nil {
		return nil, errors.Join(err, dev.put())
	}
	p, err := newPath(dev, cfg, &d.o, window, rails, max(d.o.Transport, RC))
	if err != nil {
		return nil, err // which has given the device back
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	h := hello{token: o.Token, nonce: p.nonce, params: p.params(window)}
	if byCM {
		err = p.meetCM(ctx, at, &h, cfg.Secret)
	} else {
		err = p.meet(ctx, to, &h, cfg.Secret)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: dial %s: %w", o.Addr, err), p.abandon())
	}
	return p, nil
}

// abandon gives up a path that was never handed out.
func (p *Path) abandon() error {
	p.err, p.closed = errClosed, true
	return errors.Join(p.dismantle(), p.release())
}

// meet exchanges hello and welcome by datagrams and begins the connections.
func (p *Path) meet(ctx context.Context, to place, h *hello, secret []byte) error {
	u, err := openUD(p.dev, 16)
	if err != nil {
		return err
	}
	defer u.close()
	h.udQPN, h.udQKey = u.qp.Num(), u.qkey
	if err := u.send(&params{gid: to.gid, lid: to.lid, udQPN: to.qpn, udQKey: to.qkey}, h.append(nil, secret)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, u.wake)
	defer stop()
	pause := helloFirst
	for next := time.Now().Add(pause); ; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("no answer: the listener is gone, the network does not carry RoCE (UDP port 4791) between the two, or no Accept waits for this path: %w", err)
		}
		b, err := u.receive(time.Until(next))
		if err != nil {
			return err
		}
		if b == nil {
			if time.Until(next) <= 0 {
				if err := u.again(h.append(nil, secret)); err != nil {
					return err
				}
				pause = min(2*pause, helloMost)
				next = time.Now().Add(pause)
			}
			continue
		}
		var w welcome
		if w.parse(b) != nil || w.nonce != h.nonce || !sealed(b, secret) {
			continue // not for us, or not from whom we asked
		}
		if w.status != statusWelcome {
			return w.refusal()
		}
		return p.welcomed(ctx, h, &w)
	}
}

// welcomed connects to a listener that took the hello.
func (p *Path) welcomed(ctx context.Context, h *hello, w *welcome) error {
	if int(w.rails) != len(p.rails) {
		return malformed("the listener has %d rails and this side %d", w.rails, len(p.rails))
	}
	if w.transport() != p.transport {
		return malformed("the listener has %s and this side %s", w.transport(), p.transport)
	}
	if err := p.dev.permits(w.gid); err != nil {
		return err
	}
	if err := p.start(w.params); err != nil {
		return err
	}
	return p.greet(ctx, h.nonce)
}

// greet sends the first frame of the control connection: the listener's end begins with it.
func (p *Path) greet(ctx context.Context, nonce uint64) error {
	p.hello = nonce
	p.control()
	return p.until(ctx, func() bool { return p.hello == 0 && p.ctl.tail == p.ctl.head })
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
			return fmt.Errorf("the other side does not begin: %w", err)
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
