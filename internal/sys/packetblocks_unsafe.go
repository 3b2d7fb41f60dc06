package sys

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PacketBlocks is the memory of a receive ring that the kernel fills block by block (TPACKET_V3):
// packets of any length lie one behind the other. One goroutine at a time reads packets; any one
// gives blocks back.
type PacketBlocks struct {
	mem    []byte
	blocks uint32
	at     uint64 // the packet that Frame reads
}

// packetBlock is the size of a block: twice the longest packet that the kernel makes, but for BIG
// TCP.
const packetBlock = 1 << 17

// NewPacketBlocks makes a ring of that many bytes, but two blocks at least, and maps it. The kernel
// hands a block over when it is full, or some milliseconds after its first packet.
func NewPacketBlocks(fd, bytes int, timeout time.Duration) (*PacketBlocks, error) {
	if err := SetOption(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return nil, err
	}
	n, frame := max(bytes/packetBlock, 2), 2048 // which the kernel asks for, and does not use
	req := &unix.TpacketReq3{Block_size: packetBlock, Block_nr: uint32(n), Frame_size: uint32(frame),
		Frame_nr: uint32(packetBlock / frame * n), Retire_blk_tov: uint32(timeout.Milliseconds())}
	if err := unix.SetsockoptTpacketReq3(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, req); err != nil {
		return nil, callError("setsockopt", fmt.Sprintf("PACKET_RX_RING of %d blocks of %d bytes", n, packetBlock), err)
	}
	b, err := Mmap(fd, 0, packetBlock*n, ProtRead|ProtWrite, MapShared|MapPopulate)
	if err != nil {
		return nil, err
	}
	return &PacketBlocks{mem: b, blocks: uint32(n)}, nil
}

// Blocks is the number of blocks.
func (r *PacketBlocks) Blocks() uint32 { return r.blocks }

// Memory is the whole mapping, for Munmap in the end.
func (r *PacketBlocks) Memory() []byte { return r.mem }

// header is what the kernel says of a block, behind its version and the offset of private data.
func (r *PacketBlocks) header(i uint32) *unix.TpacketHdrV1 {
	return (*unix.TpacketHdrV1)(unsafe.Pointer(&r.mem[uint64(i)*packetBlock+8]))
}

// Ready reports whether the kernel has handed block i over.
func (r *PacketBlocks) Ready(i uint32) bool {
	return atomic.LoadUint32(&r.header(i).Block_status)&unix.TP_STATUS_USER != 0
}

// Open goes to the first packet of block i, which is ready, and returns how many packets it has.
func (r *PacketBlocks) Open(i uint32) uint32 {
	h := r.header(i)
	r.at = uint64(i)*packetBlock + uint64(h.Offset_to_first_pkt)
	return h.Num_pkts
}

// Frame reads the packet.
func (r *PacketBlocks) Frame(f *PacketFrame) {
	h := r.packet()
	a := (*unix.RawSockaddrLinklayer)(unsafe.Add(unsafe.Pointer(h), unsafe.Sizeof(*h)))
	f.Status = h.Status
	f.Off = r.at + uint64(h.Mac)
	f.Len, f.Wire = h.Snaplen, h.Len
	f.Time = int64(h.Sec)*1e9 + int64(h.Nsec)
	f.TCI, f.TPID = uint16(h.Hv1.Vlan_tci), h.Hv1.Vlan_tpid
	f.Outgoing = a.Pkttype == packetOutgoing
}

func (r *PacketBlocks) packet() *unix.Tpacket3Hdr {
	return (*unix.Tpacket3Hdr)(unsafe.Pointer(&r.mem[r.at : r.at+uint64(unsafe.Sizeof(unix.Tpacket3Hdr{}))+
		unix.SizeofSockaddrLinklayer][0]))
}

// Advance goes to the next packet of the block.
func (r *PacketBlocks) Advance() { r.at += uint64(r.packet().Next_offset) }

// Return gives block i to the kernel.
func (r *PacketBlocks) Return(i uint32) {
	atomic.StoreUint32(&r.header(i).Block_status, unix.TP_STATUS_KERNEL)
}
