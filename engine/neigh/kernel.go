package neigh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/netlink"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet"
)

// Errors of this package; match them with errors.Is. Both wrap engine errors, so that
// engine.StatusOf knows them.
var (
	ErrNoRoute  = fmt.Errorf("neigh: no route: look at \"ip route get\" for the address: %w", engine.ErrConnect)
	ErrNoAnswer = fmt.Errorf("neigh: no answer: nobody on the link has the address, or the link is down: %w",
		engine.ErrConnect)
)

// Kernel asks the kernel about one network namespace: that of the thread that opened it. Its
// methods may be called from any goroutine. It needs no rights, except that Resolve needs
// CAP_NET_ADMIN to make the kernel ask for a neighbour that it does not know.
type Kernel struct {
	mu     sync.Mutex // one question at a time
	fd     int
	seq    uint32
	buf    []byte
	closed bool
}

// OpenKernel opens a connection to the kernel in the calling thread's network namespace.
func OpenKernel() (*Kernel, error) {
	fd, err := sys.NetlinkRoute(0)
	if err != nil {
		return nil, fmt.Errorf("neigh: %w", err)
	}
	return &Kernel{fd: fd, buf: make([]byte, 64<<10)}, nil
}

// Close ends the connection.
func (k *Kernel) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil
	}
	k.closed = true
	return sys.Close(k.fd)
}

// answerTime is how long an answer of the kernel may take. It comes with the question, except where
// memory is short.
const answerTime = 5000 // ms

// ask sends a question and calls each for every message of the answer; a dump ends with done, other
// answers with the first one.
func (k *Kernel) ask(make func(seq uint32) []byte, dump bool, each func(netlink.Message)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return engine.ErrClosed
	}
	k.seq++
	if err := sys.NetlinkSend(k.fd, make(k.seq)); err != nil {
		return err
	}
	for {
		n, e := sys.NetlinkRecv(k.fd, k.buf)
		if e == sys.EAGAIN {
			if i, err := sys.PollIn(answerTime, k.fd); err != nil || i < 0 {
				return fmt.Errorf("neigh: the kernel does not answer: %w", errors.Join(err, engine.ErrInternal))
			}
			continue
		}
		if e != 0 {
			return e
		}
		if n > len(k.buf) {
			return fmt.Errorf("neigh: an answer of %d bytes: %w", n, errNetlink)
		}
		for m, rest, ok := netlink.Next(k.buf[:n]); ok; m, rest, ok = netlink.Next(rest) {
			switch {
			case m.Seq != k.seq: // of a question that was given up
				continue
			case m.Kind == netlink.Error:
				return kernelError(m)
			case m.Kind == netlink.Done:
				return nil
			}
			each(m)
			if !dump {
				return nil
			}
		}
	}
}

// Link finds an interface by its name. The error wraps engine.ErrNotFound if there is none.
func (k *Kernel) Link(name string) (l Link, err error) {
	if len(name) == 0 || len(name) > 15 {
		return l, fmt.Errorf("neigh: interface %q: expected a name of 1 to 15 bytes: %w", name, engine.ErrInvalid)
	}
	return k.link(fmt.Sprintf("%q", name), func(seq uint32) []byte { return linkRequest(seq, name) })
}

// LinkAt finds an interface by its number, whatever its name is now. The error wraps
// engine.ErrNotFound if there is none.
func (k *Kernel) LinkAt(index int) (Link, error) {
	return k.link(fmt.Sprint("number ", index), func(seq uint32) []byte { return linkAtRequest(seq, index) })
}

func (k *Kernel) link(which string, request func(seq uint32) []byte) (l Link, err error) {
	found := false
	err = k.ask(request, false, func(m netlink.Message) { l, found = parseLink(m) })
	if errors.Is(err, sys.ENODEV) || err == nil && !found {
		return l, fmt.Errorf("neigh: there is no interface %s here: see \"ip link\": %w", which, engine.ErrNotFound)
	}
	if err != nil {
		return l, fmt.Errorf("neigh: interface %s: %w", which, err)
	}
	return l, nil
}

// Addresses are the addresses of an interface.
func (k *Kernel) Addresses(ifindex int) (out []netip.Prefix, err error) {
	err = k.ask(addrRequest, true, func(m netlink.Message) {
		if p, ok := parseAddr(m); ok && p.Interface == ifindex {
			out = append(out, p.Prefix)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("neigh: addresses of interface %d: %w", ifindex, err)
	}
	return out, nil
}

// Route finds the way to dst, by way of one interface unless ifindex is 0. The error wraps
// ErrNoRoute if there is none.
func (k *Kernel) Route(dst netip.Addr, ifindex int) (r Route, err error) {
	if dst = dst.Unmap(); !dst.IsValid() {
		return r, fmt.Errorf("neigh: route to the zero address: %w", engine.ErrInvalid)
	}
	found := false
	err = k.ask(func(seq uint32) []byte {
		return routeRequest(seq, dst.WithZone(""), ifindex)
	}, false, func(m netlink.Message) { r, found = parseRoute(m) })
	if err == nil && found {
		return r, nil
	}
	var e sys.Errno
	if err == nil || errors.As(err, &e) {
		return r, fmt.Errorf("%v: %w (%v)", dst, ErrNoRoute, err)
	}
	return r, fmt.Errorf("neigh: route to %v: %w", dst, err)
}

// Neighbor looks up an entry of the kernel's table. found is false where there is none.
func (k *Kernel) Neighbor(ifindex int, a netip.Addr) (n Neighbor, found bool, err error) {
	err = k.ask(func(seq uint32) []byte {
		return neighborRequest(seq, ifindex, a, false)
	}, false, func(m netlink.Message) { n, found = parseNeighbor(m) })
	if errors.Is(err, sys.ENOENT) {
		return n, false, nil
	}
	return n, found, err
}

// Hop is the next station on the way to a destination.
type Hop struct {
	Route
	Addr netip.Addr // of the next hop
	MAC  packet.MAC
}

// Resolve finds the next hop to dst and its Ethernet address. It makes the kernel ask for it where
// it does not know it, and waits until it is known, the kernel gives up (ErrNoAnswer), or the
// context ends (ErrNoAnswer as well, with the context's error). Multicast and broadcast
// destinations need no answer. The kernel asks for IPv6 neighbours from the interface's link-local
// address, so one without (disable_ipv6, addrgenmode none) resolves none that is not known yet.
// ifindex 0 leaves the interface to the routes.
func (k *Kernel) Resolve(ctx context.Context, dst netip.Addr, ifindex int) (h Hop, err error) {
	dst = dst.Unmap().WithZone("")
	if h.Route, err = k.Route(dst, ifindex); err != nil {
		return h, err
	}
	h.Addr = dst
	if h.Gateway.IsValid() {
		h.Addr = h.Gateway
	}
	if m, ok := packet.MulticastMAC(dst); ok {
		h.MAC = m
		return h, nil
	}
	if h.Multicast {
		h.MAC = packet.BroadcastMAC
		return h, nil
	}
	if h.Local {
		return h, fmt.Errorf("neigh: %v is this host: its packets cannot be sent into a network: %w", dst, ErrNoRoute)
	}
	return h, k.await(ctx, &h)
}

// await waits for the kernel's table to have the neighbour.
func (k *Kernel) await(ctx context.Context, h *Hop) error {
	if n, found, err := k.Neighbor(h.Interface, h.Addr); err != nil {
		return fmt.Errorf("neigh: %v: %w", h.Addr, err)
	} else if found && n.Valid {
		h.MAC = n.MAC
		return nil
	}
	if err := k.ask(func(seq uint32) []byte {
		return neighborRequest(seq, h.Interface, h.Addr, true)
	}, false, func(netlink.Message) {}); err != nil {
		if errors.Is(err, sys.EPERM) {
			return fmt.Errorf("neigh: %v is not known yet, and asking for it needs CAP_NET_ADMIN (or one packet to "+
				"it): %w: %w", h.Addr, err, ErrNoAnswer)
		}
		return fmt.Errorf("neigh: %v: %w", h.Addr, err)
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		n, found, err := k.Neighbor(h.Interface, h.Addr)
		switch {
		case err != nil:
			return fmt.Errorf("neigh: %v: %w", h.Addr, err)
		case found && n.Valid:
			h.MAC = n.MAC
			return nil
		case found && n.Failed:
			return fmt.Errorf("%v: %w", h.Addr, ErrNoAnswer)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%v: %w: %w", h.Addr, ErrNoAnswer, ctx.Err())
		}
	}
}

// LinkWatch receives the kernel's events of interfaces that change, in the network namespace of the
// thread that opened it.
type LinkWatch struct {
	fd  int
	buf []byte
}

// WatchLinks opens a LinkWatch.
func WatchLinks() (*LinkWatch, error) {
	fd, err := sys.NetlinkRoute(sys.NetlinkLinks)
	if err != nil {
		return nil, fmt.Errorf("neigh: %w", err)
	}
	return &LinkWatch{fd, make([]byte, 32<<10)}, nil
}

// FD is the descriptor that becomes readable when Read has something to say, for engine.Reactor.
func (w *LinkWatch) FD() int { return w.fd }

// Read calls each for every change that is there. It does not wait. With lost the kernel has
// dropped some changes: ask a Kernel.
func (w *LinkWatch) Read(each func(Link)) (lost bool) {
	for {
		n, e := sys.NetlinkRecv(w.fd, w.buf)
		switch {
		case e == sys.ENOBUFS:
			lost = true
			continue
		case e != 0:
			return lost
		case n > len(w.buf):
			lost = true
			continue
		}
		for m, rest, ok := netlink.Next(w.buf[:n]); ok; m, rest, ok = netlink.Next(rest) {
			if l, ok := parseLink(m); ok {
				each(l)
			}
		}
	}
}

// Close ends the watch.
func (w *LinkWatch) Close() error { return sys.Close(w.fd) }
