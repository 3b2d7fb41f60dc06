package verbs

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibv/cm"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

// Meet is how two ends find each other. The listener's choice goes with its address: a dialer takes whichever was offered.
type Meet uint8

// The ways to meet.
const (
	MeetAuto Meet = iota // by datagrams; by the connection manager where the device has no queue pairs for datagrams
	MeetUD               // by datagrams
	MeetCM               // by the connection manager (librdmacm); needs an adapter on Ethernet whose address is an IP address
)

// The connection manager carries 56 bytes with a request, so that a hello is a short one there: the address of the dialer is known,
// depths are those of the version, sequence numbers come from the nonce, and there are at most three rails. The acceptance carries a
// welcome as it is. The manager's own connection ends with that; it was never one of queue pairs.
const (
	cmRails     = 3
	cmMACSize   = 16
	cmHelloSize = 2 + 16 + 4 + 2 + 4 + 3*(1+cmRails) + cmMACSize
	cmWords     = 100 // of a refusal
	cmMark      = 'V'
)

// cmSeal is the code of a message whose peer is known by its address, cut to half: zeros where there is no secret.
func cmSeal(b []byte, gid [16]byte, nonce uint64, secret []byte) []byte {
	if secret == nil {
		return make([]byte, cmMACSize)
	}
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("penstock verbs cm 1"))
	m.Write(gid[:])
	m.Write(put64(nil, nonce))
	m.Write(b)
	return m.Sum(nil)[:cmMACSize]
}

// cmPSN is the first sequence number of a dialer's queue pair.
func cmPSN(nonce uint64, link int) uint32 {
	return uint32((nonce*0x9e3779b97f4a7c15 + uint64(link)*0xbf58476d1ce4e5b9) >> 40)
}

// cmKey is the key of a dialer's first DC targets, which has as many random bits as the nonce there.
func cmKey(nonce uint64, link int) uint32 {
	return uint32((uint64(uint32(nonce))*0x9e3779b97f4a7c15 + uint64(link)*0xbf58476d1ce4e5b9) >> 32)
}

func put24(b []byte, v uint32) []byte { return append(b, byte(v>>16), byte(v>>8), byte(v)) }

func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// appendCM writes a hello for the connection manager. The nonce has 32 bits, and the sequence numbers are those of cmPSN.
func (h *hello) appendCM(b, secret []byte) []byte {
	from := len(b)
	b = append(b, cmMark, version)
	b = append(b, h.token[:]...)
	b = put32(b, uint32(h.nonce))
	b = put16(b, uint16(h.window))
	b = append(b, h.rails, h.mtu, h.reads, h.flags)
	b = put24(b, h.control.qpn)
	for _, r := range h.rail[:cmRails] {
		b = put24(b, r.qpn)
	}
	return append(b, cmSeal(b[from:], h.gid, 0, secret)...)
}

// parseCM reads one that came from an address. The caller, which knows the secret of the token, checks the code.
func (h *hello) parseCM(b []byte, gid [16]byte) error {
	if len(b) < cmHelloSize || b[0] != cmMark {
		return malformed("not a request of this protocol")
	}
	if b[1] != version {
		return malformed("the other side speaks version %d, this one %d", b[1], version)
	}
	*h = hello{token: path.Token(b[2:18]), nonce: uint64(binary.BigEndian.Uint32(b[18:]))}
	h.params = params{gid: gid, window: uint32(binary.BigEndian.Uint16(b[22:])), ctlDepth: ctlDepth, msgDepth: msgDepth, rails: b[24], mtu: b[25], reads: b[26], flags: b[27]}
	if h.rails > cmRails {
		return malformed("%d rails: expected at most %d", h.rails, cmRails)
	}
	second := cmPSN
	if h.transport() == DC {
		second = cmKey
	}
	h.control = endpoint{get24(b[28:]), second(h.nonce, 0)}
	for i := range int(h.rails) {
		h.rail[i] = endpoint{get24(b[31+3*i:]), second(h.nonce, i+1)}
	}
	return h.params.parse(h.params.append(nil)) // the same bounds as those of a long one
}

// cmSealed checks the code of a hello.
func cmSealed(b []byte, gid [16]byte, secret []byte) bool {
	n := cmHelloSize - cmMACSize
	return hmac.Equal(cmSeal(b[:n], gid, 0, secret), b[n:cmHelloSize])
}

// appendRefusal writes why a hello is refused, as short as a rejection of the connection manager must be.
func (w *welcome) appendRefusal(b []byte, gid [16]byte, secret []byte) []byte {
	from := len(b)
	words := w.words[:min(len(w.words), cmWords)]
	b = put16(append(b, cmMark, version), w.status)
	b = append(append(b, byte(len(words))), words...)
	return append(b, cmSeal(b[from:], gid, w.nonce, secret)...)
}

// parseRefusal reads a refusal of a hello that the dialer at that address sent with that nonce; false: it is none.
func (w *welcome) parseRefusal(b []byte, gid [16]byte, nonce uint64, secret []byte) bool {
	if len(b) < 5 || b[0] != cmMark || b[1] != version {
		return false
	}
	n := 5 + int(b[4])
	if b[4] > cmWords || len(b) < n+cmMACSize || !hmac.Equal(cmSeal(b[:n], gid, nonce, secret), b[n:n+cmMACSize]) {
		return false
	}
	*w = welcome{nonce: nonce, status: binary.BigEndian.Uint16(b[2:]), words: string(b[5:n])}
	return w.status != statusWelcome
}

const cmPrefix = "cm/"

// parseCMAddress reads the address of a listener at the connection manager; false: it is an address of another kind.
func parseCMAddress(s string) (a netip.AddrPort, is bool, err error) {
	rest, is := strings.CutPrefix(s, cmPrefix)
	if !is {
		return a, false, nil
	}
	if a, err = netip.ParseAddrPort(rest); err != nil || a.Port() == 0 || a.Addr().Zone() != "" || len(s) > 80 {
		return a, true, fmt.Errorf("verbs: address %.80q: expected cm/IP:PORT such as cm/192.0.2.1:7471: %w", s, path.ErrUnavailable)
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), true, nil
}

// cmChannel opens the connection manager, and gives the address that this side has there.
func (dev *device) cmChannel() (*cm.Channel, netip.Addr, error) {
	a := dev.gid.Addr.Unmap()
	if dev.port.Link != ibv.LinkEthernet || !a.IsValid() || a.IsLinkLocalUnicast() || a.IsUnspecified() {
		return nil, a, fmt.Errorf("the connection manager needs an IP address that is not link-local, and this side has %s (%v): give its interface one: %w",
			dev.gid.Addr, dev.port.Link, path.ErrUnavailable)
	}
	d := dev.owner
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.manager == nil {
		l, err := cm.Load(cm.Options{Path: d.o.cm})
		if err != nil {
			return nil, a, fmt.Errorf("%w: %w", path.ErrUnavailable, err)
		}
		d.manager = l
	}
	c, err := d.manager.Open()
	if err != nil {
		return nil, a, fmt.Errorf("%w: %w", path.ErrUnavailable, err)
	}
	return c, a, nil
}

// on says whether a connection of the manager is at this device.
func (dev *device) on(id *cm.ID) error {
	if name, port := id.Device(); name != dev.ctx.Name() || port != dev.port.Port {
		return fmt.Errorf("the connection manager leads to device %q port %d, and not to %s port %d: %w", name, port, dev.ctx.Name(), dev.port.Port, path.ErrUnavailable)
	}
	return nil
}

// cmParams go with what the manager carries. Its connection has no queue pair, but it wants a number that is no other's: that of the
// control connection.
func cmParams(data []byte, qpn uint32) cm.Params {
	return cm.Params{PrivateData: data, ResponderResources: 1, InitiatorDepth: 1, RetryCount: retries, RNRRetryCount: 6, QPN: qpn}
}

// desk is where a listener takes the requests of the connection manager.
type desk struct {
	channel *cm.Channel
	id      *cm.ID // listens
	bell    int
}

func openDesk(dev *device) (_ *desk, err error) {
	d := &desk{bell: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	var addr netip.Addr
	if d.channel, addr, err = dev.cmChannel(); err != nil {
		return nil, err
	}
	if d.bell, err = sys.Eventfd(); err != nil {
		return nil, err
	}
	if d.id, err = d.channel.NewID(); err != nil {
		return nil, err
	}
	if err = d.id.Bind(netip.AddrPortFrom(addr, 0)); err != nil {
		return nil, err
	}
	if err = dev.on(d.id); err != nil {
		return nil, err
	}
	return d, d.id.Listen(64)
}

// serve takes requests until Close.
func (d *desk) serve(l *Listener) {
	for {
		ev, ok, err := d.channel.Next()
		switch {
		case err != nil:
			return
		case ok && ev.Type == cm.ConnectRequest:
			l.visit(ev.ID, ev.Params.PrivateData)
			continue
		case ok:
			if ev.ID != d.id { // it has its answer, or is gone: nothing more is said on it
				ev.ID.Close()
			}
			continue
		}
		if i, err := sys.PollIn(-1, d.bell, d.channel.FD()); err != nil || i == 0 {
			return
		}
	}
}

func (d *desk) wake() { sys.Ring(d.bell) }

// close ends what is left there, too.
func (d *desk) close() (err error) {
	if d.channel != nil {
		err = d.channel.Close()
	}
	if d.bell >= 0 {
		err = errors.Join(err, sys.Close(d.bell))
	}
	return err
}

// visit looks at a request: the hello of a dialer that an Accept waits for is kept or answered, everything else is rejected without a reason.
func (l *Listener) visit(id *cm.ID, data []byte) {
	gid := id.Remote().Addr().As16()
	var h hello
	if h.parseCM(data, gid) == nil {
		if mine, again := l.take(&h, func(secret []byte) bool { return cmSealed(data, gid, secret) }, id); mine {
			if again != nil {
				again(id)
			}
			return
		}
	}
	id.Close()
}

// meetCM asks the listener at the connection manager until it answers.
func (p *Path) meetCM(ctx context.Context, to netip.AddrPort, h *hello, secret []byte) error {
	if len(p.rails) > cmRails {
		return fmt.Errorf("%d rails, and a request of the connection manager has room for %d: ask for fewer, or have the listener meet by datagrams: %w",
			len(p.rails), cmRails, path.ErrUnavailable)
	}
	c, from, err := p.dev.cmChannel()
	if err != nil {
		return err
	}
	defer c.Close() // and with it the manager's connection: the paths' own are another matter
	bell, err := sys.Eventfd()
	if err != nil {
		return err
	}
	defer sys.Close(bell)
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { sys.Ring(bell); close(over) })
	defer func() {
		if !stop() {
			<-over
		}
	}()
	h.nonce = uint64(uint32(h.nonce))
	for i, l := range p.links {
		if l.seat == nil { // a target has its key, which follows from the nonce, already
			l.psn = cmPSN(h.nonce, i)
		}
	}
	h.params = p.params(int(h.window))
	data := h.appendCM(nil, secret)
	for pause := helloFirst; ; pause = min(2*pause, helloMost) {
		w, err := p.askCM(ctx, c, bell, netip.AddrPortFrom(from, 0), to, data, h.nonce, secret)
		if err != nil {
			return err
		}
		if w != nil {
			return p.welcomed(ctx, h, w)
		}
		if _, err := sys.PollIn(int(pause/time.Millisecond), bell); err != nil {
			return err
		}
	}
}

// askCM sends one request. nil without an error: the listener does not take it now.
func (p *Path) askCM(ctx context.Context, c *cm.Channel, bell int, from, to netip.AddrPort, data []byte, nonce uint64, secret []byte) (_ *welcome, err error) {
	id, err := c.NewID()
	if err != nil {
		return nil, err
	}
	keep := false
	defer func() {
		if !keep {
			err = errors.Join(err, id.Close())
		}
	}()
	if err := id.ResolveAddress(from, to, handshakeTime); err != nil {
		return nil, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("no answer: the listener is gone, or no Accept waits for this path: %w", err)
		}
		ev, ok, err := c.Next()
		if err != nil {
			return nil, err
		}
		if !ok {
			if _, err := sys.PollIn(-1, bell, c.FD()); err != nil {
				return nil, err
			}
			continue
		}
		if ev.ID != id {
			continue
		}
		w := new(welcome)
		switch ev.Type {
		case cm.AddressResolved:
			if err := p.dev.on(id); err != nil {
				return nil, err
			}
			err = id.ResolveRoute(handshakeTime)
		case cm.RouteResolved:
			err = id.Connect(cmParams(data, p.ctl.num()))
		case cm.Rejected:
			if w.parseRefusal(ev.Params.PrivateData, p.dev.raw, nonce, secret) {
				err = w.refusal()
				break
			}
			return nil, nil // too early, or too late
		case cm.Unreachable:
			return nil, nil
		case cm.ConnectResponse:
			b := ev.Params.PrivateData
			b = b[:min(len(b), welcomeSize-maxWords)] // behind it are zeros
			if w.parse(b) != nil || w.nonce != nonce || w.status != statusWelcome || !sealed(b, secret) {
				return nil, nil // not from whom we asked
			}
			keep = true
			return w, id.Establish()
		default:
			err = ev.Err
		}
		if err != nil {
			return nil, err
		}
	}
}
