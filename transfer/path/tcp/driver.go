package tcp

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Name is the driver's name.
const Name = "tcp"

// DefaultStreams is the number of data connections unless setup.Config says otherwise, LongStreams
// that over a long link: one connection that loses a packet is slow for many round trips there.
const (
	DefaultStreams = 2
	LongStreams    = 5
	longRoundTrip  = 5 * time.Millisecond
	// redialAfter is how long a connection over a long link may take at least before another one
	// takes its place: the kernel sends a SYN that was lost again after a second only.
	redialAfter = 250 * time.Millisecond
)

// Driver makes TCP paths. It implements setup.Driver.
type Driver struct{ o Options }

// New makes a driver; see Check.
func New(o Options) *Driver { return &Driver{o} }

// Check makes the driver a setup.Checker.
func (d *Driver) Check() error { return d.o.check() }

// Name is "tcp".
func (d *Driver) Name() string { return Name }

// Traits are those of sockets.
func (d *Driver) Traits() setup.Traits {
	return setup.Traits{Encrypts: true, Prior: path.Cost{Latency: 30 * time.Microsecond, BytesPerSec: 3e9}}
}

// What one side takes of memory at most: for each connection, for the records of one that is
// encrypted, for each operation of the window, and once. For a connection the kernel is taken to
// use a quarter of a megabyte; more than that is bounded by its own limits (tcp_mem).
const (
	streamBytes = 256<<10 + 256<<10
	recordBytes = 3 * sealBytes
	opBytes     = 512 + 2*128
	pathBytes   = 384 << 10
)

// Streams makes the driver a setup.StreamCounter.
func (d *Driver) Streams(roundTrip time.Duration) int {
	if roundTrip < longRoundTrip {
		return 0
	}
	return LongStreams
}

// Needs are the connections, what wakes the owner, and the buffers. It makes the driver a
// setup.Estimator.
func (d *Driver) Needs(cfg *setup.Config) setup.Needs {
	window, streams, flags, err := terms(*cfg)
	if err != nil {
		return setup.Needs{}
	}
	each := uint64(streamBytes)
	if flags&helloSealed != 0 {
		each += recordBytes
	}
	return setup.Needs{Descriptors: streams + 2, Memory: uint64(streams)*each + uint64(window)*opBytes + pathBytes}
}

// terms are this side's half of a handshake.
func terms(cfg setup.Config) (window, streams int, flags uint32, err error) {
	window, streams = cmp.Or(cfg.Window, setup.DefaultWindow), cmp.Or(cfg.Streams, DefaultStreams)
	switch {
	case cfg.Exports == nil:
		err = errors.New("tcp: config without a table of exports")
	case window < minWindow || window > maxWindow:
		err = fmt.Errorf("tcp: window of %d operations: expected %d to %d", window, minWindow, maxWindow)
	case streams < 1 || streams > maxStreams:
		err = fmt.Errorf("tcp: %d connections: expected 1 to %d", streams, maxStreams)
	}
	switch {
	case cfg.Secret != nil && len(cfg.Secret) != setup.SecretSize:
		err = fmt.Errorf("tcp: config with a secret of %d bytes: expected %d", len(cfg.Secret), setup.SecretSize)
	case cfg.Secret != nil:
		flags = helloSealed // the records' tags say more than checksums
	case !cfg.NoChecksum:
		flags = helloChecksum
	}
	return window, streams, flags, err
}

// agree joins both halves.
func agree(window int, flags uint32, h *hello) deal {
	return deal{
		window: min(window, int(h.window)),
		crc:    flags&h.flags&helloChecksum != 0,
		sealed: flags&helloSealed != 0,
		frame:  int(min(h.frame, maxFrameBytes)),
		blocks: int(min(h.blocks, maxFrameBlocks)),
	}
}

// Dial connects to a listener and presents the offer's token on each connection. It blocks until
// the path is set up or ctx ends. The error wraps ErrUnavailable for an address beyond loopback
// without a secret, ErrProtocol if the other side is no Penstock, speaks another version, does not
// know the token, or encrypts and this one does not or the other way round, and ErrIntegrity if it
// has another secret or an attacker changed what both said on the way, and ErrUser if another
// user's process is at the other end.
func (d *Driver) Dial(ctx context.Context, offer setup.Offer, cfg setup.Config) (path.Path, error) {
	if offer.Addr == "" {
		return nil, fmt.Errorf("tcp: dial: an offer without an address: %w", path.ErrUnavailable)
	}
	addr, err := address(offer.Addr)
	if err != nil {
		return nil, err
	}
	window, streams, flags, err := terms(cfg)
	if err != nil {
		return nil, err
	}
	sealed := flags&helloSealed != 0
	if err := d.o.permits(addr.Addr(), sealed); err != nil {
		return nil, err
	}
	h := hello{version: version, kind: kindHello, flags: flags, window: uint32(window), token: offer.Token,
		count: uint16(streams), frame: maxFrameBytes, blocks: maxFrameBlocks}
	fds, channels, answer, err := d.join(ctx, addr, h, &cfg)
	if err != nil {
		return nil, fmt.Errorf("tcp: dial %s: %w", addr, err)
	}
	p, err := newPath(fds, addr, cfg.Reach(), agree(window, flags, &answer), channels, &d.o)
	if err != nil {
		return nil, fmt.Errorf("tcp: dial %s: %w", addr, err)
	}
	return p, nil
}

// connection is one of a path that is being dialed.
type connection struct {
	fd     int // -1: none
	answer hello
	ch     *channel
}

// join dials the connections of a path at the same time, so that all of them together take as many
// round trips as one: one for TCP, one for hello and answer. Where one fails the others are given
// up.
func (d *Driver) join(ctx context.Context, addr netip.AddrPort, h hello, cfg *setup.Config) (fds []int,
	channels []*channel, answer hello, err error) {
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conns := make([]connection, h.count)
	var wg sync.WaitGroup
	for i := range conns {
		h, c := h, &conns[i]
		h.index = uint16(i)
		c.fd = -1
		wg.Go(func() {
			if err := d.joinOne(ctx, addr, &h, cfg, c); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err = context.Cause(ctx); err != nil {
		if e := outer.Err(); e != nil && errors.Is(err, context.Cause(outer)) {
			err = e
		}
		for _, c := range conns {
			if c.fd >= 0 {
				sys.Close(c.fd)
			}
		}
		return nil, nil, hello{}, err
	}
	for _, c := range conns {
		fds, channels = append(fds, c.fd), append(channels, c.ch)
	}
	return fds, channels, conns[0].answer, nil
}

// joinOne says hello as soon as there is a connection to a user who is let in, and reads the
// answer.
func (d *Driver) joinOne(ctx context.Context, addr netip.AddrPort, h *hello, cfg *setup.Config, c *connection) error {
	conn, err := d.connect(ctx, addr, cfg.RoundTrip)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if err = sys.OfConn(conn.(*net.TCPConn), func(fd int) (err error) {
		c.fd, err = sys.Dup(fd)
		return err
	}); err != nil {
		return err
	}
	if cfg.Secret == nil {
		if err := checkUser(c.fd, addr, cfg.Users); err != nil {
			return err
		}
	}
	kernel, why := false, ""
	if cfg.Secret != nil {
		if kernel, why, err = d.o.attach(c.fd); err != nil {
			return err
		}
		if kernel {
			h.flags |= helloFixed
		}
		rand.Read(h.nonce[:])
	}
	if c.answer, c.ch, err = greet(conn, h, cfg.Secret, d.o.sealLimit); err != nil {
		return err
	}
	if c.ch != nil {
		c.ch.kernel, c.ch.why = kernel, why
	}
	return nil
}

// connect connects. Over a long link another connection takes the place of one that takes too long,
// once.
func (d *Driver) connect(ctx context.Context, addr netip.AddrPort, roundTrip time.Duration) (net.Conn, error) {
	dialer := net.Dialer{KeepAlive: -1, Control: sys.Control(func(fd int) error {
		return d.o.prepare(fd, addr.Addr())
	})}
	if roundTrip >= longRoundTrip {
		dialer.Timeout = max(4*roundTrip, redialAfter)
	}
	conn, err := dialer.DialContext(ctx, "tcp", addr.String())
	if ne := net.Error(nil); dialer.Timeout > 0 && errors.As(err, &ne) && ne.Timeout() && ctx.Err() == nil {
		dialer.Timeout = 0
		conn, err = dialer.DialContext(ctx, "tcp", addr.String())
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) { // its own words name the address once more
		err = op.Err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) { // the poller saw the context's deadline before the context did
		err = context.DeadlineExceeded
	}
	return conn, err
}

// greet sends a hello and reads the answer. With a secret both sides show each other that they have
// it.
func greet(conn net.Conn, h *hello, secret []byte, limit uint64) (hello, *channel, error) {
	var said, b [helloSize]byte
	h.put(said[:])
	var a hello
	if err := exchange(conn, said[:], b[:]); err != nil {
		return a, nil, err
	}
	if err := a.answers(h, b[:]); err != nil || secret == nil {
		return a, nil, err
	}
	ch, err := newChannel(secret, true, h, said[:], b[:], limit)
	if err != nil {
		return a, nil, err
	}
	ch.fixed = a.flags&helloFixed != 0
	var rec [confirmSize]byte
	if err := exchange(conn, ch.confirm(rec[:]), rec[:]); err != nil {
		return a, nil, err
	}
	if err := ch.confirmed(rec[:]); err != nil {
		return a, nil, fmt.Errorf("the listener is not the peer: %w", err)
	}
	return a, ch, nil
}

// exchange sends what this side has to say and fills heard with what the listener says to it.
func exchange(conn net.Conn, say, heard []byte) error {
	_, err := conn.Write(say)
	if err == nil {
		_, err = io.ReadFull(conn, heard)
	}
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return fmt.Errorf("the listener closed the connection during the handshake: %w", path.ErrDown)
	case err != nil:
		return fmt.Errorf("during the handshake: %w", err)
	}
	return nil
}

// answers reads the answer to a hello and says what is wrong with it.
func (a *hello) answers(h *hello, b []byte) error {
	err := a.parse(b)
	switch {
	case errors.Is(err, errVersion) || err == nil && a.status == statusVersion:
		return fmt.Errorf("the listener speaks version %d of the data protocol, this side version %d: update the "+
			"older one: %w", a.version, version, path.ErrProtocol)
	case err != nil:
		return fmt.Errorf("answer to the hello: %w: %w", err, path.ErrProtocol)
	case a.kind != kindAnswer:
		return fmt.Errorf("answer to the hello is no answer: %w", path.ErrProtocol)
	case a.status == statusToken:
		return fmt.Errorf("the listener does not expect this token (used before, expired, or of another listener): %w",
			path.ErrProtocol)
	case a.status == statusPlain:
		return fmt.Errorf("the listener requires encryption and this side has no secret: give both sides the secret "+
			"of one session: %w", path.ErrProtocol)
	case a.status == statusSealed:
		return fmt.Errorf("this side requires encryption and the listener has no secret: give both sides the secret "+
			"of one session: %w", path.ErrProtocol)
	case a.status == statusUser:
		return fmt.Errorf("the listener does not let the user of this process in: %w: %w", path.ErrUser,
			path.ErrUnavailable)
	case a.status != statusOK:
		return fmt.Errorf("the listener refused the hello (status %d): %w", a.status, path.ErrProtocol)
	case (a.flags^h.flags)&helloSealed != 0:
		return fmt.Errorf("one side encrypts and the other does not (this side %v, the listener %v), and the "+
			"listener did not refuse: %w",
			h.flags&helloSealed != 0, a.flags&helloSealed != 0, path.ErrProtocol)
	}
	return nil
}

var (
	_ setup.Driver   = (*Driver)(nil)
	_ setup.Listener = (*Listener)(nil)

	_ setup.PortDriver = (*Driver)(nil)
	_ setup.Receiver   = (*Listener)(nil)
	_ path.Path        = (*Path)(nil)
)
