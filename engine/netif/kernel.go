package netif

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/netlink"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet"
)

// Numbers of rtnetlink (linux/rtnetlink.h, linux/if.h).
const (
	rtmNewLink, rtmDelLink, rtmGetLink = 16, 17, 18
	rtmNewAddr, rtmGetAddr             = 20, 22

	linkUp, linkLowerUp = 1, 1 << 16
)

// native is the byte order of netlink.
var native = binary.NativeEndian

// link is what the kernel says of an interface.
type link struct {
	index int
	name  string
	mac   packet.MAC // zero where it has none of six bytes
	mtu   int        // bytes, L3 and up
	up    bool       // switched on, and its cable is plugged in
	gone  bool       // it was removed
}

// kernel asks the kernel about the network namespace of the thread that opened it. Any goroutine
// may ask.
type kernel struct {
	mu sync.Mutex // one question at a time
	fd int
}

func openKernel() (*kernel, error) {
	fd, err := sys.NetlinkRouteAsk()
	if err != nil {
		return nil, fmt.Errorf("netif: %w", err)
	}
	return &kernel{fd: fd}, nil
}

func (k *kernel) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return sys.Close(k.fd)
}

func (k *kernel) ask(req []byte, each func(netlink.Message)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return sys.NetlinkAsk(k.fd, req, each)
}

// link finds an interface by its name. The error wraps engine.ErrNotFound if there is none.
func (k *kernel) link(name string) (l link, err error) {
	if len(name) == 0 || len(name) > 15 {
		return l, fmt.Errorf("netif: interface %q: expected a name of 1 to 15 bytes: %w", name, engine.ErrInvalid)
	}
	return k.find(fmt.Sprintf("%q", name), linkRequest(name))
}

// linkAt finds an interface by its number, whatever its name is now. The error wraps
// engine.ErrNotFound if there is none.
func (k *kernel) linkAt(index int) (link, error) {
	b := append(netlink.Begin(nil, rtmGetLink, 0, 0), make([]byte, 16)...)
	native.PutUint32(b[len(b)-12:], uint32(index))
	return k.find(fmt.Sprint("number ", index), netlink.End(b))
}

func (k *kernel) find(which string, request []byte) (l link, err error) {
	found := false
	err = k.ask(request, func(m netlink.Message) { l, found = parseLink(m) })
	if errors.Is(err, sys.ENODEV) || err == nil && !found {
		return l, fmt.Errorf("netif: there is no interface %s here: see \"ip link\": %w", which, engine.ErrNotFound)
	}
	if err != nil {
		return l, fmt.Errorf("netif: interface %s: %w", which, err)
	}
	return l, nil
}

// addresses are the addresses of an interface.
func (k *kernel) addresses(index int) (out []netip.Prefix, err error) {
	err = k.ask(addrRequest(), func(m netlink.Message) {
		if at, p, ok := parseAddr(m); ok && at == index {
			out = append(out, p)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("netif: addresses of interface %d: %w", index, err)
	}
	return out, nil
}

// linkWatch receives the kernel's events of interfaces that change, in the network namespace of the
// thread that opened it.
type linkWatch struct {
	fd  int
	buf []byte
}

func watchLinks() (*linkWatch, error) {
	fd, err := sys.NetlinkRoute(sys.NetlinkLinks)
	if err != nil {
		return nil, fmt.Errorf("netif: %w", err)
	}
	return &linkWatch{fd, make([]byte, 32<<10)}, nil
}

// read calls each for every change that is there. It does not wait. With lost the kernel has
// dropped some changes: ask.
func (w *linkWatch) read(each func(link)) (lost bool) {
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

func (w *linkWatch) close() error { return sys.Close(w.fd) }

func parseLink(m netlink.Message) (l link, ok bool) {
	if m.Kind != rtmNewLink && m.Kind != rtmDelLink || len(m.Body) < 16 {
		return l, false
	}
	l.index = int(int32(native.Uint32(m.Body[4:])))
	flags := native.Uint32(m.Body[8:])
	l.up = flags&linkUp != 0 && flags&linkLowerUp != 0
	l.gone = m.Kind == rtmDelLink && m.Body[0] == 0 // other families say that it left a bridge
	if m.Kind == rtmDelLink && !l.gone {
		return l, false
	}
	for kind, v := range netlink.Attributes(m.Body[16:]) {
		switch {
		case kind == 1 && len(v) == 6:
			l.mac = packet.MAC(v)
		case kind == 3 && len(v) > 1:
			l.name = string(v[:len(v)-1])
		case kind == 4 && len(v) == 4:
			l.mtu = int(native.Uint32(v))
		}
	}
	return l, true
}

// parseAddr reads an address, and the number of the interface that has it.
func parseAddr(m netlink.Message) (index int, p netip.Prefix, ok bool) {
	if m.Kind != rtmNewAddr || len(m.Body) < 8 {
		return 0, p, false
	}
	var a, local netip.Addr
	for kind, v := range netlink.Attributes(m.Body[8:]) {
		switch kind {
		case 1:
			a, _ = netip.AddrFromSlice(v)
		case 2:
			local, _ = netip.AddrFromSlice(v)
		}
	}
	if local.IsValid() { // of a point-to-point link, the other one is the peer's
		a = local
	}
	p = netip.PrefixFrom(a, int(m.Body[1]))
	return int(native.Uint32(m.Body[4:])), p, p.IsValid()
}

func linkRequest(name string) []byte {
	b := append(netlink.Begin(nil, rtmGetLink, 0, 0), make([]byte, 16)...)
	return netlink.End(netlink.AppendAttribute(b, 3, append([]byte(name), 0)))
}

func addrRequest() []byte {
	return netlink.End(append(netlink.Begin(nil, rtmGetAddr, sys.NetlinkDump, 0), make([]byte, 8)...))
}
