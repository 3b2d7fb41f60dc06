package ibv

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// GRHLen is how many bytes at the beginning of a received datagram belong to its global routing header, whether there is one (FlagGRH) or not.
const GRHLen = 40

// GRH tells where a datagram came from: answers go to Src.
type GRH struct {
	Src, Dst     netip.Addr // Dst may be a multicast group
	TrafficClass uint8
	HopLimit     uint8
	FlowLabel    uint32 // 0 for IPv4
}

// ParseGRH reads the header of a datagram that was received with FlagGRH. Packets of RoCE v2 over IPv4 have their IP header in the last 20 bytes, and
// anything in those before; which of both it is, is found out as the kernel does it (ib_get_rdma_header_version).
func ParseGRH(b []byte) (GRH, error) {
	if len(b) < GRHLen {
		return GRH{}, fmt.Errorf("ibv: %w: a GRH of %d bytes: expected %d", ErrInvalid, len(b), GRHLen)
	}
	six, four := b[0]>>4 == 6, b[20] == 0x45
	switch {
	case four && (!six || ipChecksum(b[20:40]) == 0xffff):
		return GRH{Src: netip.AddrFrom4([4]byte(b[32:36])), Dst: netip.AddrFrom4([4]byte(b[36:40])), TrafficClass: b[21], HopLimit: b[28]}, nil
	case six:
		w := binary.BigEndian.Uint32(b)
		return GRH{Src: netip.AddrFrom16([16]byte(b[8:24])).Unmap(), Dst: netip.AddrFrom16([16]byte(b[24:40])).Unmap(), TrafficClass: uint8(w >> 20),
			FlowLabel: w & 0xfffff, HopLimit: b[7]}, nil
	}
	return GRH{}, fmt.Errorf("ibv: %w: versions %d and %d where a GRH has 6, or an IPv4 header 4", ErrInvalid, b[0]>>4, b[20]>>4)
}

// ipChecksum is the sum over a header with its checksum: 0xffff where it is right.
func ipChecksum(b []byte) uint32 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return s
}
