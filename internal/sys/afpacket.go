package sys

import (
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"
)

// Names of options of packet sockets (man 7 packet, linux/if_packet.h).
const (
	SolPacket            = unix.SOL_PACKET
	PacketIgnoreOutgoing = unix.PACKET_IGNORE_OUTGOING
	PacketQdiscBypass    = unix.PACKET_QDISC_BYPASS
	PacketTimestamp      = unix.PACKET_TIMESTAMP

	PacketStampHardware = unix.SOF_TIMESTAMPING_RAW_HARDWARE
)

// Modes of PacketFanout.
const (
	FanoutHash     = unix.PACKET_FANOUT_HASH
	FanoutCPU      = unix.PACKET_FANOUT_CPU
	FanoutRollover = unix.PACKET_FANOUT_ROLLOVER
)

// Error numbers of packet sockets.
const (
	ENXIO = unix.ENXIO
)

// PacketSocket makes a socket for whole frames that receives nothing until it is bound to a
// protocol. EPERM: CAP_NET_RAW is missing.
func PacketSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return fd, callError("socket", "AF_PACKET", err)
}

// BindPacket binds a packet socket to an interface, for all protocols, or, without receive, for
// sending only. When a socket that received is bound again for sending, nothing more arrives once
// this returns.
func BindPacket(fd, ifindex int, receive bool) error {
	a := &unix.SockaddrLinklayer{Ifindex: ifindex}
	if receive {
		a.Protocol = bits.ReverseBytes16(unix.ETH_P_ALL)
	}
	return callError("bind", fmt.Sprintf("AF_PACKET to interface %d", ifindex), unix.Bind(fd, a))
}

// PacketPromiscuous makes the interface take frames for other MAC addresses as long as the socket
// is open.
func PacketPromiscuous(fd, ifindex int) error {
	m := &unix.PacketMreq{Ifindex: int32(ifindex), Type: unix.PACKET_MR_PROMISC}
	return callError("setsockopt", "PACKET_ADD_MEMBERSHIP",
		unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, m))
}

// PacketFanout makes a bound socket a member of the fan-out group id of its network namespace.
func PacketFanout(fd int, id uint16, mode int) error {
	return SetOption(fd, unix.SOL_PACKET, unix.PACKET_FANOUT, int(id)|mode<<16)
}

// NewPacketFanout makes a bound socket the first member of a new fan-out group of its network
// namespace, and returns the group's id, which no other process has (Linux 4.12). The group ends
// with its last member.
func NewPacketFanout(fd, mode int) (id uint16, err error) {
	if err := SetOption(fd, unix.SOL_PACKET, unix.PACKET_FANOUT,
		(mode|unix.PACKET_FANOUT_FLAG_UNIQUEID)<<16); err != nil {
		return 0, err
	}
	v, err := unix.GetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_FANOUT)
	return uint16(v), callError("getsockopt", "PACKET_FANOUT", err)
}

// PacketStatistics takes the counts since the last call: frames that passed the filter, and of them
// those that found no room.
func PacketStatistics(fd int) (packets, drops uint32, err error) {
	s, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, 0, callError("getsockopt", "PACKET_STATISTICS", err)
	}
	return s.Packets, s.Drops, nil
}

// FilterInstruction is an instruction of the classic BPF (struct sock_filter).
type FilterInstruction struct {
	Op     uint16
	JT, JF uint8
	K      uint32
}

// AttachFilter makes the socket take only what the program accepts; what it refuses is counted
// nowhere. At least one instruction.
func AttachFilter(fd int, program []FilterInstruction) error {
	f := make([]unix.SockFilter, len(program))
	for i, p := range program {
		f[i] = unix.SockFilter{Code: p.Op, Jt: p.JT, Jf: p.JF, K: p.K}
	}
	p := &unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	return callError("setsockopt", "SO_ATTACH_FILTER",
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, p))
}

// PacketRing is the memory of a receive ring that the kernel fills frame by frame (TPACKET_V2).
type PacketRing struct {
	mem       []byte
	frames    uint32
	frameSize uint32
	perBlock  uint32
	blockSize uint32
}

// NewPacketRing makes a ring of at least so many frames of frameSize bytes, a multiple of 16, and
// maps it. headroom bytes are kept in front of each packet.
func NewPacketRing(fd, frames, frameSize, headroom int) (*PacketRing, error) {
	if err := SetOption(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
		return nil, err
	}
	if headroom > 0 {
		if err := SetOption(fd, unix.SOL_PACKET, unix.PACKET_RESERVE, headroom); err != nil {
			return nil, err
		}
	}
	block := PageSize
	for block < 16*frameSize && block < 1<<18 || block < frameSize {
		block *= 2
	}
	per := block / frameSize
	blocks := max(1, (frames+per-1)/per)
	req := &unix.TpacketReq{Block_size: uint32(block), Block_nr: uint32(blocks), Frame_size: uint32(frameSize),
		Frame_nr: uint32(per * blocks)}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, req); err != nil {
		return nil, callError("setsockopt", fmt.Sprintf("PACKET_RX_RING of %d blocks of %d bytes", blocks, block), err)
	}
	b, err := Mmap(fd, 0, block*blocks, ProtRead|ProtWrite, MapShared|MapPopulate)
	if err != nil {
		return nil, err
	}
	return &PacketRing{b, uint32(per * blocks), uint32(frameSize), uint32(per), uint32(block)}, nil
}

// Frames is the number of frames.
func (r *PacketRing) Frames() uint32 { return r.frames }

// Memory is the whole mapping, for Munmap in the end.
func (r *PacketRing) Memory() []byte { return r.mem }

// offset is where frame i begins.
func (r *PacketRing) offset(i uint32) uint64 {
	return uint64(i/r.perBlock)*uint64(r.blockSize) + uint64(i%r.perBlock)*uint64(r.frameSize)
}

// Room is the part of the ring's memory that frame i may use for its packet.
func (r *PacketRing) Room(i uint32) (from, to uint64) {
	off := r.offset(i)
	return off + 64, off + uint64(r.frameSize)
}
