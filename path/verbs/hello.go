package verbs

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/path"
)

// Two ends find each other by datagrams (UD), unless the offer is one of the connection manager (meetcm.go): the dialer sends a hello with the token of the offer until a welcome comes. Both
// hold what a reliable connection needs of the other side. Whatever is not a hello with a token that an Accept waits for gets no
// answer at all.

// Sizes in bytes of the datagrams, which need an MTU of 512 or more; only that of 256 is smaller.
const (
	helloSize   = 8 + 16 + 8 + paramsSize + macSize
	paramsSize  = 16 + 2 + 4 + 4 + 4 + 2 + 2 + 4 + 8*(maxRails+1)
	macSize     = sha256.Size
	welcomeSize = 8 + 8 + 2 + paramsSize + 1 + maxWords + macSize // at most
	minMTU      = 512
)

var magic = [4]byte{'P', 'V', 'R', 'B'}

const (
	typHello   = 1
	typWelcome = 2
)

// flagDevices, in params.flags: the adapter may reach memory of accelerators.
const flagDevices = 1

// flagUC, in params.flags: all rails but the last, which is for gets, are unreliable connections.
const flagUC = 1 << 7

// flagDC, in params.flags: all endpoints are DC targets with their keys.
const flagDC = 1 << 6

func (p *params) transport() Transport {
	switch {
	case p.flags&flagUC != 0:
		return UC
	case p.flags&flagDC != 0:
		return DC
	}
	return RC
}

// endpoint is one queue pair as the other side must know it, or a DC target: then psn is its key.
type endpoint struct{ qpn, psn uint32 }

// params are what one side says of itself.
type params struct {
	gid      [16]byte
	lid      uint16
	udQPN    uint32
	udQKey   uint32
	window   uint32
	ctlDepth uint16 // receives of the control queue pair
	msgDepth uint16 // receives of each rail
	rails    uint8
	mtu      uint8 // as in enum ibv_mtu
	reads    uint8 // RDMA reads that it serves at once
	flags    uint8
	control  endpoint
	rail     [maxRails]endpoint
}

// hello is the dialer's datagram.
type hello struct {
	token path.Token
	nonce uint64 // tells repetitions of one call of Dial from another call
	params
}

// welcome is the answer.
type welcome struct {
	nonce  uint64
	status uint16 // 0: welcome; else words say why not
	params
	words string
}

const (
	statusWelcome = iota
	statusRefused
	statusBusy
)

func (p *params) append(b []byte) []byte {
	b = append(b, p.gid[:]...)
	b = put16(b, p.lid)
	b = put32(b, p.udQPN)
	b = put32(b, p.udQKey)
	b = put32(b, p.window)
	b = put16(b, p.ctlDepth)
	b = put16(b, p.msgDepth)
	b = append(b, p.rails, p.mtu, p.reads, p.flags)
	b = put32(put32(b, p.control.qpn), p.control.psn)
	for _, r := range p.rail {
		b = put32(put32(b, r.qpn), r.psn)
	}
	return b
}

func (p *params) parse(b []byte) error {
	copy(p.gid[:], b)
	p.lid = binary.BigEndian.Uint16(b[16:])
	p.udQPN, p.udQKey = binary.BigEndian.Uint32(b[18:]), binary.BigEndian.Uint32(b[22:])
	p.window = binary.BigEndian.Uint32(b[26:])
	p.ctlDepth, p.msgDepth = binary.BigEndian.Uint16(b[30:]), binary.BigEndian.Uint16(b[32:])
	p.rails, p.mtu, p.reads, p.flags = b[34], b[35], b[36], b[37]
	b = b[38:]
	p.control = endpoint{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
	t := p.transport()
	ok := p.control.valid(t) && p.udQPN < 1<<24
	for i := range p.rail {
		c := b[8*(i+1):]
		p.rail[i] = endpoint{binary.BigEndian.Uint32(c), binary.BigEndian.Uint32(c[4:])}
		ok = ok && p.rail[i].valid(t)
	}
	switch {
	case !ok:
		return malformed("a queue pair or sequence number of more than 24 bits")
	case p.flags&(flagUC|flagDC) == flagUC|flagDC:
		return malformed("two transports at once")
	case p.rails < 1 || p.rails > maxRails:
		return malformed("%d rails: expected 1 to %d", p.rails, maxRails)
	case p.window < 1 || p.window > maxWindow:
		return malformed("a window of %d: expected 1 to %d", p.window, maxWindow)
	case p.ctlDepth <= 2*plainReserve || p.msgDepth < 2:
		return malformed("%d and %d receives: expected more than %d and 2 or more", p.ctlDepth, p.msgDepth, 2*plainReserve)
	case p.mtu < 1 || p.mtu > 5:
		return malformed("an MTU with the number %d: expected 1 to 5", p.mtu)
	}
	return nil
}

func (e endpoint) valid(t Transport) bool { return e.qpn < 1<<24 && (e.psn < 1<<24 || t == DC) }

// seal adds the code that shows that the sender has the secret of the session; zeros where there is none.
func seal(b, secret []byte) []byte {
	if secret == nil {
		return append(b, make([]byte, macSize)...)
	}
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("penstock verbs 1"))
	m.Write(b)
	return m.Sum(b)
}

// sealed checks the last bytes of a datagram.
func sealed(b, secret []byte) bool {
	n := len(b) - macSize
	return n >= 0 && hmac.Equal(seal(b[:n:n], secret)[n:], b[n:])
}

func begin(b []byte, typ byte) []byte {
	b = append(b, magic[:]...)
	return append(put16(b, version), typ, 0)
}

// begins checks magic, version and type.
func begins(b []byte, typ byte) error {
	if len(b) < 8 || [4]byte(b[:4]) != magic || b[6] != typ {
		return malformed("not a datagram of this protocol")
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != version {
		return malformed("the other side speaks version %d, this one %d", v, version)
	}
	return nil
}

func (h *hello) append(b, secret []byte) []byte {
	b = begin(b, typHello)
	b = append(b, h.token[:]...)
	b = put64(b, h.nonce)
	return seal(h.params.append(b), secret)
}

// parse reads a hello. The caller, which knows the secret of the token, checks its seal.
func (h *hello) parse(b []byte) error {
	if err := begins(b, typHello); err != nil {
		return err
	}
	if len(b) != helloSize {
		return malformed("a hello of %d bytes: expected %d", len(b), helloSize)
	}
	copy(h.token[:], b[8:])
	h.nonce = binary.BigEndian.Uint64(b[24:])
	return h.params.parse(b[32:])
}

func (w *welcome) append(b, secret []byte) []byte {
	b = begin(b, typWelcome)
	b = put64(b, w.nonce)
	b = put16(b, w.status)
	b = w.params.append(b)
	words := w.words[:min(len(w.words), maxWords)]
	b = append(b, byte(len(words)))
	return seal(append(b, words...), secret)
}

func (w *welcome) parse(b []byte) error {
	if err := begins(b, typWelcome); err != nil {
		return err
	}
	const fixed = welcomeSize - maxWords
	if len(b) < fixed || len(b) != fixed+int(b[18+paramsSize]) || b[18+paramsSize] > maxWords {
		return malformed("a welcome of %d bytes, which is not what it says", len(b))
	}
	w.nonce, w.status = binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint16(b[16:])
	w.words = string(b[19+paramsSize : len(b)-macSize])
	if w.status != statusWelcome {
		return nil
	}
	return w.params.parse(b[18:])
}

// refusal is the error that a refused dialer returns. The words come from the peer, so they are quoted.
func (w *welcome) refusal() error {
	return fmt.Errorf("the listener refused: %q: %w", w.words, path.ErrUnavailable)
}

// place is where a listener is: what an Offer carries.
type place struct {
	gid  [16]byte
	lid  uint16
	qpn  uint32
	qkey uint32
	mtu  uint8 // as in enum ibv_mtu
}

func (a place) String() string {
	return fmt.Sprintf("%s/%d/%d/%#x/%d", netip.AddrFrom16(a.gid), a.lid, a.qpn, a.qkey, a.mtu)
}

const addressForm = "GID/LID/queue pair/key/MTU such as fe80::1/0/17/0x1234/5"

// parseAddress reads what String wrote.
func parseAddress(s string) (a place, err error) {
	bad := func(what string) (place, error) {
		return place{}, fmt.Errorf("verbs: address %.80q: %s: expected %s: %w", s, what, addressForm, path.ErrUnavailable)
	}
	f := strings.Split(s, "/")
	if len(f) != 5 || len(s) > 120 {
		return bad("it has not five parts")
	}
	ip, err := netip.ParseAddr(f[0])
	if err != nil || ip.Zone() != "" {
		return bad("the GID is no address")
	}
	a.gid = ip.As16()
	for i, w := range []struct {
		bits int
		max  uint64
		to   func(uint64)
	}{
		{16, 1<<16 - 1, func(v uint64) { a.lid = uint16(v) }}, {32, 1<<24 - 1, func(v uint64) { a.qpn = uint32(v) }},
		{32, 1<<32 - 1, func(v uint64) { a.qkey = uint32(v) }}, {8, 5, func(v uint64) { a.mtu = uint8(v) }},
	} {
		v, err := strconv.ParseUint(f[i+1], 0, w.bits)
		if err != nil || v > w.max {
			return bad(fmt.Sprintf("%.20q is out of range", f[i+1]))
		}
		w.to(v)
	}
	if a.mtu == 0 {
		return bad("the MTU is 0")
	}
	return a, nil
}

const maxWindow = 4096
