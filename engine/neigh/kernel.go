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

// Errors of this package; match them with errors.Is. Both wrap engine.ErrConnect.
var (
	ErrNoRoute  = fmt.Errorf("neigh: no route: look at \"ip route get\" for the address: %w", engine.ErrConnect)
	ErrNoAnswer = fmt.Errorf("neigh: no answer: no host on the link has the address, or the link is down: %w",
		engine.ErrConnect)
)

// Kernel asks the kernel about one network namespace: that of the thread that opened it. Its
// methods may be called from any goroutine. It needs no rights, except that Resolve needs
// CAP_NET_ADMIN to make the kernel ask for a neighbour that it does not know.
type Kernel struct {
	mu     sync.Mutex // one question at a time
	fd     int
	closed bool
}

// OpenKernel opens a connection to the kernel in the calling thread's network namespace.
func OpenKernel() (*Kernel, error) {
	fd, err := sys.NetlinkRouteAsk()
	if err != nil {
		return nil, fmt.Errorf("neigh: %w", err)
	}
	return &Kernel{fd: fd}, nil
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

func (k *Kernel) ask(req []byte, each func(netlink.Message)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return engine.ErrClosed
	}
	return sys.NetlinkAsk(k.fd, req, each)
}

// Route finds the way to dst, by way of one interface unless ifindex is 0. The error wraps
// ErrNoRoute if there is none.
func (k *Kernel) Route(dst netip.Addr, ifindex int) (r Route, err error) {
	if dst = dst.Unmap(); !dst.IsValid() {
		return r, fmt.Errorf("neigh: route to the zero address: %w", engine.ErrInvalid)
	}
	found := false
	err = k.ask(routeRequest(dst.WithZone(""), ifindex), func(m netlink.Message) { r, found = parseRoute(m) })
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
	err = k.ask(neighborRequest(ifindex, a, false), func(m netlink.Message) { n, found = parseNeighbor(m) })
	if errors.Is(err, sys.ENOENT) {
		return n, false, nil
	}
	return n, found, err
}

// Hop is the next node on the way to a destination.
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
	if err := k.ask(neighborRequest(h.Interface, h.Addr, true), func(netlink.Message) {}); err != nil {
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
