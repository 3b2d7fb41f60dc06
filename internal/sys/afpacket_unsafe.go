package sys

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bits of PacketFrame.Status.
const (
	FrameReady         = unix.TP_STATUS_USER
	FrameVLAN          = unix.TP_STATUS_VLAN_VALID
	FrameVLANProtocol  = unix.TP_STATUS_VLAN_TPID_VALID
	FrameChecksumGood  = unix.TP_STATUS_CSUM_VALID
	FrameChecksumLater = unix.TP_STATUS_CSUMNOTREADY
	FrameHardwareTime  = unix.TP_STATUS_TS_RAW_HARDWARE
)

// packetOutgoing is the packet type of what this host sends (PACKET_OUTGOING).
const packetOutgoing = unix.PACKET_OUTGOING

// PacketFrame is what a ring says of a frame.
type PacketFrame struct {
	Status   uint32
	Off      uint64 // of its first byte in the ring's memory
	Len      uint32 // bytes that are there
	Wire     uint32 // bytes that it had
	Time     int64  // nanoseconds since 1970
	TCI      uint16 // of the VLAN tag that is not in the frame any more, with FrameVLAN
	TPID     uint16 // of it, with FrameVLANProtocol
	Outgoing bool   // sent by this host
}

// Status is the status of frame i. Without FrameReady it is the kernel's.
func (r *PacketRing) Status(i uint32) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.mem[r.offset(i)])))
}

// Frame reads frame i, whose status is ready.
func (r *PacketRing) Frame(i uint32, status uint32, f *PacketFrame) {
	off := r.offset(i)
	h := (*unix.Tpacket2Hdr)(unsafe.Pointer(&r.mem[off : off+uint64(unsafe.Sizeof(unix.Tpacket2Hdr{}))+
		unix.SizeofSockaddrLinklayer][0]))
	a := (*unix.RawSockaddrLinklayer)(unsafe.Add(unsafe.Pointer(h), unsafe.Sizeof(*h)))
	f.Status = status
	f.Off = off + uint64(h.Mac)
	f.Len, f.Wire = h.Snaplen, h.Len
	f.Time = int64(h.Sec)*1e9 + int64(h.Nsec)
	f.TCI, f.TPID = h.Vlan_tci, h.Vlan_tpid
	f.Outgoing = a.Pkttype == packetOutgoing
}

// Return gives frame i to the kernel.
func (r *PacketRing) Return(i uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&r.mem[r.offset(i)])), unix.TP_STATUS_KERNEL)
}
