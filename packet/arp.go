package packet

import (
	"encoding/binary"
	"net/netip"
)

// ARPOp is the operation of an ARP packet.
type ARPOp uint16

// The operations of RFC 826.
const (
	ARPRequest ARPOp = 1
	ARPReply   ARPOp = 2
)

// ARP is a view of an ARP packet for IPv4 over Ethernet (RFC 826).
type ARP []byte

// Valid reports whether the packet is complete and is about IPv4 over Ethernet. After that no
// method panics.
func (a ARP) Valid() bool {
	return len(a) >= ARPLen && binary.BigEndian.Uint64(a)>>16 == 0x0001_0800_0604
}

// Op returns the operation.
func (a ARP) Op() ARPOp { return ARPOp(binary.BigEndian.Uint16(a[6:])) }

// SenderMAC returns the Ethernet address of the sender.
func (a ARP) SenderMAC() MAC { return MAC(a[8:14]) }

// SenderIP returns the IPv4 address of the sender.
func (a ARP) SenderIP() netip.Addr { return netip.AddrFrom4([4]byte(a[14:18])) }

// TargetMAC returns the Ethernet address of the target: zero in a request.
func (a ARP) TargetMAC() MAC { return MAC(a[18:24]) }

// TargetIP returns the IPv4 address of the target.
func (a ARP) TargetIP() netip.Addr { return netip.AddrFrom4([4]byte(a[24:28])) }

// SetOp sets the operation.
func (a ARP) SetOp(op ARPOp) { binary.BigEndian.PutUint16(a[6:], uint16(op)) }

// SetSenderMAC sets the Ethernet address of the sender.
func (a ARP) SetSenderMAC(m MAC) { copy(a[8:14], m[:]) }

// SetSenderIP sets the IPv4 address of the sender; zero when it is not IPv4.
func (a ARP) SetSenderIP(ip netip.Addr) { put4(a[14:], ip) }

// SetTargetMAC sets the Ethernet address of the target.
func (a ARP) SetTargetMAC(m MAC) { copy(a[18:24], m[:]) }

// SetTargetIP sets the IPv4 address of the target; zero when it is not IPv4.
func (a ARP) SetTargetIP(ip netip.Addr) { put4(a[24:], ip) }

func put4(b []byte, a netip.Addr) {
	var v [4]byte
	if a.Is4() {
		v = a.As4()
	}
	copy(b, v[:])
}

// ARPHeader is the content of an ARP packet for IPv4 over Ethernet.
type ARPHeader struct {
	Op        ARPOp // 0: ARPRequest
	SenderMAC MAC
	SenderIP  netip.Addr
	TargetMAC MAC // zero in a request
	TargetIP  netip.Addr
}

// Len returns 28.
func (h *ARPHeader) Len() int { return ARPLen }

// Fill writes the packet at the beginning of b and returns its length. Errors: ErrRoom, ErrAddress.
func (h *ARPHeader) Fill(b []byte) (int, error) {
	if len(b) < ARPLen {
		return 0, ErrRoom
	}
	if !h.SenderIP.Is4() || !h.TargetIP.Is4() {
		return 0, ErrAddress
	}
	binary.BigEndian.PutUint64(b, 0x0001_0800_0604<<16|uint64(max(h.Op, ARPRequest)))
	a := ARP(b)
	a.SetSenderMAC(h.SenderMAC)
	a.SetSenderIP(h.SenderIP)
	a.SetTargetMAC(h.TargetMAC)
	a.SetTargetIP(h.TargetIP)
	return ARPLen, nil
}

// Answer turns a request into the reply of the host mac at the address asked for. The Ethernet
// header in front of it is the caller's.
func (a ARP) Answer(mac MAC) {
	ip, asker, askerMAC := a.TargetIP(), a.SenderIP(), a.SenderMAC()
	a.SetOp(ARPReply)
	a.SetSenderMAC(mac)
	a.SetSenderIP(ip)
	a.SetTargetMAC(askerMAC)
	a.SetTargetIP(asker)
}
