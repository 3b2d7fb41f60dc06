package tcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

// Name is the driver's name.
const Name = "tcp"

// DefaultStreams is the number of data connections unless path.Config says otherwise.
const DefaultStreams = 1

// Driver makes TCP paths. It implements path.Driver.
type Driver struct{ o Options }

// New makes a driver; bad options show when it listens or dials.
func New(o Options) *Driver { return &Driver{o} }

// Name is "tcp".
func (d *Driver) Name() string { return Name }

// terms are this side's half of a handshake.
func terms(cfg path.Config) (window, streams int, flags uint32, err error) {
	window, streams = cfg.Window, cfg.Streams
	if window == 0 {
		window = path.DefaultWindow
	}
	if streams == 0 {
		streams = DefaultStreams
	}
	switch {
	case cfg.Exports == nil:
		err = errors.New("tcp: config without a table of exports")
	case window < minWindow || window > maxWindow:
		err = fmt.Errorf("tcp: window of %d operations: expected %d to %d", window, minWindow, maxWindow)
	case streams < 1 || streams > maxStreams:
		err = fmt.Errorf("tcp: %d connections: expected 1 to %d", streams, maxStreams)
	}
	if !cfg.NoChecksum {
		flags = helloChecksum
	}
	return window, streams, flags, err
}

// agree joins both halves.
func agree(window int, flags uint32, h *hello) deal {
	return deal{
		window: min(window, int(h.window)),
		crc:    flags&h.flags&helloChecksum != 0,
		frame:  int(min(h.frame, maxFrameBytes)),
		blocks: int(min(h.blocks, maxFrameBlocks)),
	}
}

// unmeasured reports whether a path with these options could want to measure.
func (o *Options) unmeasured(host netip.Addr) bool {
	if o.CongestionControl != CongestionAuto && o.CongestionControl != "" {
		return false
	}
	_, known := verdictFor(host)
	return !known
}

// Dial connects to a listener and presents the offer's token on each connection. It blocks until the path is set up or ctx
// ends. The error wraps ErrUnavailable for an address that is not loopback, and ErrProtocol if the other side is no
// Penstock, speaks another version or does not know the token.
func (d *Driver) Dial(ctx context.Context, offer path.Offer, cfg path.Config) (path.Path, error) {
	addr, err := address(offer.Addr)
	if err != nil {
		return nil, err
	}
	window, streams, flags, err := terms(cfg)
	if err != nil {
		return nil, err
	}
	w, err := newDialWait(ctx)
	if err != nil {
		return nil, err
	}
	defer w.close()
	var fds []int
	fail := func(err error) (path.Path, error) {
		for _, fd := range fds {
			sys.Close(fd)
		}
		return nil, fmt.Errorf("tcp: dial %s: %w", addr, err)
	}
	var answer hello
	all := streams
	var rtt time.Duration
	for i := 0; i < all; i++ {
		fd, err := sys.SocketTCP(addr.Addr().Is6())
		if err != nil {
			return fail(err)
		}
		fds = append(fds, fd)
		if err := d.o.prepare(fd, addr.Addr(), false); err != nil {
			return fail(err)
		}
		if err := w.connect(fd, addr); err != nil {
			return fail(err)
		}
		h := hello{version: version, kind: kindHello, flags: flags, window: uint32(window), token: offer.Token,
			index: uint16(i), count: uint16(streams), frame: maxFrameBytes, blocks: maxFrameBlocks}
		if i == 0 && d.o.unmeasured(addr.Addr()) || i == streams {
			h.flags |= helloProbe
		}
		start := time.Now()
		a, err := w.greet(fd, &h)
		if err != nil {
			return fail(err)
		}
		d.o.again(fd)
		if i == 0 {
			answer, rtt = a, time.Since(start)
			if a.flags&helloProbe != 0 {
				all++
			}
		}
	}
	g := agree(window, flags, &answer)
	g.rtt = rtt
	p, err := newPath(fds, streams, addr, cfg.Exports, g, &d.o)
	if err != nil {
		return nil, fmt.Errorf("tcp: dial %s: %w", addr, err)
	}
	return p, nil
}

// dialWait waits for one socket at a time, or for the end of a context.
type dialWait struct {
	ctx  context.Context
	ep   *sys.Epoll
	bell int
	stop func() bool
	rang chan struct{}
}

func newDialWait(ctx context.Context) (*dialWait, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ep, err := sys.NewEpoll()
	if err != nil {
		return nil, err
	}
	bell, err := sys.Eventfd()
	if err != nil {
		ep.Close()
		return nil, err
	}
	w := &dialWait{ctx: ctx, ep: ep, bell: bell, rang: make(chan struct{})}
	if err := ep.Add(bell, sys.EventIn, 0); err != nil {
		ep.Close()
		sys.Close(bell)
		return nil, err
	}
	w.stop = context.AfterFunc(ctx, func() { sys.Ring(bell); close(w.rang) })
	return w, nil
}

func (w *dialWait) close() {
	if !w.stop() {
		<-w.rang // the bell must not be rung after it was closed
	}
	w.ep.Close()
	sys.Close(w.bell)
}

// ready waits until fd is ready for what is asked, or has failed.
func (w *dialWait) ready(fd int, events uint32) error {
	if err := w.ep.Add(fd, events, 1); err != nil {
		return err
	}
	defer w.ep.Remove(fd)
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		var ev [2]sys.EpollEvent
		n, err := w.ep.Wait(ev[:], -1)
		if err != nil {
			return err
		}
		for _, e := range ev[:n] {
			if e.Tag == 1 {
				return nil
			}
		}
	}
}

func (w *dialWait) connect(fd int, a netip.AddrPort) error {
	err := sys.ConnectTCP(fd, a)
	if !sys.IsErrno(err, sys.EINPROGRESS) {
		return err
	}
	if err := w.ready(fd, sys.EventOut); err != nil {
		return err
	}
	return sys.SocketError(fd)
}

// greet sends a hello and reads the answer.
func (w *dialWait) greet(fd int, h *hello) (hello, error) {
	var b [helloSize]byte
	h.put(b[:])
	var a hello
	if err := w.transfer(fd, b[:], true); err != nil {
		return a, err
	}
	if err := w.transfer(fd, b[:], false); err != nil {
		return a, err
	}
	err := a.parse(b[:])
	switch {
	case errors.Is(err, errVersion) || err == nil && a.status == statusVersion:
		return a, fmt.Errorf("the listener speaks version %d of the data protocol, this side version %d: update the older one: %w", a.version, version, path.ErrProtocol)
	case err != nil:
		return a, fmt.Errorf("answer to the hello: %w: %w", err, path.ErrProtocol)
	case a.kind != kindAnswer:
		return a, fmt.Errorf("answer to the hello is no answer: %w", path.ErrProtocol)
	case a.status == statusToken:
		return a, fmt.Errorf("the listener does not expect this token (used before, expired, or of another listener): %w", path.ErrProtocol)
	case a.status != statusOK:
		return a, fmt.Errorf("the listener refused the hello (status %d): %w", a.status, path.ErrProtocol)
	}
	return a, nil
}

func (w *dialWait) transfer(fd int, b []byte, out bool) error {
	for len(b) > 0 {
		var v [1]sys.Iovec
		v[0].Set(b)
		var n int
		var e sys.Errno
		ev := uint32(sys.EventIn)
		if out {
			n, e = sys.Sendv(fd, v[:], 0)
			ev = sys.EventOut
		} else {
			n, e = sys.Recvv(fd, v[:])
		}
		switch {
		case e == sys.EAGAIN || e == sys.EINPROGRESS: // the latter with TCP_FASTOPEN_CONNECT
			if err := w.ready(fd, ev); err != nil {
				return err
			}
		case e == sys.EINTR:
		case e != 0:
			return fmt.Errorf("during the handshake: %w", e)
		case n == 0:
			return fmt.Errorf("the listener closed the connection during the handshake: %w", path.ErrDown)
		default:
			b = b[n:]
		}
	}
	return nil
}

var (
	_ path.Driver   = (*Driver)(nil)
	_ path.Listener = (*Listener)(nil)
	_ path.Path     = (*Path)(nil)
)
