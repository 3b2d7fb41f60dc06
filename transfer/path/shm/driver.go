package shm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Driver sets up paths to processes of the same user on this machine. The zero value is ready to
// use.
type Driver struct {
	// NoHelp keeps large puts on the core of the side that posts them. Without it the peer copies a
	// part, for which it is lent the whole local region read-only. It holds for both directions
	// when either side sets it.
	NoHelp bool
}

var (
	_ setup.Driver   = Driver{}
	_ setup.Listener = (*Listener)(nil)
	_ path.Path      = (*Path)(nil)
	_ path.Borrower  = (*Path)(nil)
)

// handshakeTime bounds each handshake: all of it is between two processes that both want it.
const handshakeTime = 5 * time.Second

const addrPrefix = "@penstock-shm-"

// Name is "shm".
func (Driver) Name() string { return "shm" }

// Traits are those of memory that both ends map.
func (Driver) Traits() setup.Traits {
	return setup.Traits{SameHost: true, Whole: true, Borrow: true,
		Prior: path.Cost{Latency: 300 * time.Nanosecond, BytesPerSec: 8e9}}
}

// Needs are those of one side: a socket, what wakes its owner, the packets that wait to be sent,
// and the memory that both sides share. What of the peer's is mapped or lent is charged while the
// path is used, to Config.Principal.
func (Driver) Needs(cfg *setup.Config) setup.Needs {
	window, err := checkConfig(*cfg)
	if err != nil {
		return setup.Needs{}
	}
	return setup.Needs{Descriptors: 3 + 1 + maxOutFDs,
		Memory: uint64(controlBytes(window)) + uint64(window)*opBytes + pathBytes}
}

// What one operation of the window takes at most, a message of MaxMessage bytes included, and what
// a path takes once.
const (
	opBytes   = 1024 + 512
	pathBytes = 64 << 10
)

// Listen opens an abstract unix socket with a random name, which needs no file and vanishes with
// the process.
func (d Driver) Listen() (setup.Listener, error) {
	var r [16]byte
	rand.Read(r[:])
	addr := &net.UnixAddr{Name: addrPrefix + hex.EncodeToString(r[:]), Net: "unixpacket"}
	s, err := net.ListenUnix("unixpacket", addr)
	if err != nil {
		return nil, fmt.Errorf("transfer/path/shm: listen: %w: %w", path.ErrUnavailable, err)
	}
	l := &Listener{driver: d, addr: addr.Name, sock: s, waiters: map[setup.Token]chan *pendingConn{},
		closed: make(chan struct{})}
	l.work.Add(1)
	go l.accept()
	return l, nil
}

// Dial connects to the listener that made the offer. It checks that the kernel says that the
// listener belongs to the same effective user before it shows the token.
func (d Driver) Dial(ctx context.Context, o setup.Offer, cfg setup.Config) (path.Path, error) {
	p, err := d.dial(ctx, o, cfg)
	if err != nil {
		return nil, fmt.Errorf("transfer/path/shm: dial %q: %w", o.Addr, err)
	}
	return p, nil
}

func (d Driver) dial(ctx context.Context, o setup.Offer, cfg setup.Config) (*Path, error) {
	window, err := checkConfig(cfg)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(o.Addr, addrPrefix) || len(o.Addr) > 100 {
		return nil, fmt.Errorf("expected the address of an abstract socket such as %q: %w", addrPrefix+"0123",
			path.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	var dialer net.Dialer
	nc, err := dialer.DialContext(ctx, "unixpacket", o.Addr)
	if err != nil {
		return nil, fmt.Errorf("no listener of this name in this network namespace (has the process ended, or is it "+
			"in another container?): %w: %w", path.ErrUnavailable, err)
	}
	c := nc.(*net.UnixConn)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	pid, uid, err := credentials(c)
	if err != nil {
		return nil, err
	}
	if uid != sys.EffectiveUID() {
		return nil, fmt.Errorf("the listener (process %d) belongs to user id %d, this process to %d: %w", pid, uid,
			sys.EffectiveUID(), path.ErrUnavailable)
	}
	h := hello{token: o.Token, version: Version, flags: d.flags(), window: uint32(window)}
	if _, err := c.Write(h.append(nil)); err != nil {
		return nil, handshakeError(ctx, err)
	}
	b, fds, err := readPacket(c)
	if err != nil {
		return nil, handshakeError(ctx, err)
	}
	defer closeAll(fds)
	w, err := parseWelcome(b)
	if err != nil {
		return nil, err
	}
	if w.status != 0 {
		return nil, w.refusal()
	}
	if int(w.window) > window || len(fds) != 1 {
		return nil, fmt.Errorf("welcome with window %d and %d descriptors, expected at most %d and 1: %w", w.window,
			len(fds), window, path.ErrProtocol)
	}
	ctl, err := openControl(fds[0], int(w.window))
	if err != nil {
		return nil, err
	}
	if _, err = c.Write([]byte(ready)); err != nil {
		err = handshakeError(ctx, err)
	} else {
		err = expectReady(ctx, c)
	}
	if err != nil {
		ctl.unmap()
		return nil, err
	}
	return newPath(c, ctl, cfg, int(w.window), pid, "dialed", w.flags&h.flags&flagHelps != 0)
}

func (d Driver) flags() uint16 {
	if d.NoHelp || runtime.NumCPU() < 2 {
		return 0
	}
	return flagHelps
}

func checkConfig(cfg setup.Config) (window int, err error) {
	if cfg.Exports == nil {
		return 0, errors.New("Config.Exports is nil: give the table of what the peer may reach, which may be empty")
	}
	if cfg.Window < 0 {
		return 0, fmt.Errorf("Config.Window is %d: expected 0 for %d, or up to %d", cfg.Window, setup.DefaultWindow,
			maxWindow)
	}
	if cfg.Window == 0 {
		return setup.DefaultWindow, nil
	}
	return min(cfg.Window, maxWindow), nil
}

func handshakeError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("the handshake was not finished in time: %w", ctx.Err())
	}
	return fmt.Errorf("the peer hung up during the handshake: %w: %w", path.ErrUnavailable, err)
}

// credentials tells who is at the other end, as the kernel recorded it.
func credentials(c *net.UnixConn) (pid, uid int, err error) {
	err = sys.OfConn(c, func(fd int) (err error) {
		pid, uid, err = sys.PeerCred(fd)
		return err
	})
	return pid, uid, err
}

// readPacket reads one packet of the handshake; its descriptors belong to the caller.
func readPacket(c *net.UnixConn) (b []byte, fds []int, err error) {
	b = make([]byte, maxHandshake)
	oob := make([]byte, sys.RightsSpace(sys.MaxPacketFDs))
	n, noob, _, _, err := c.ReadMsgUnix(b, oob)
	if sys.IsErrno(err, sys.ECONNRESET) {
		// The peer closed before it read all that we sent. The kernel reports that first, and then
		// what the peer had to say.
		n, noob, _, _, err = c.ReadMsgUnix(b, oob)
	}
	if err != nil {
		return nil, nil, err
	}
	fds, err = sys.ParseRights(oob[:noob])
	if err != nil {
		return nil, nil, err
	}
	if n == 0 {
		closeAll(fds)
		return nil, nil, errors.New("end of the connection")
	}
	return b[:n], fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		sys.Close(fd)
	}
}
