package shm

import (
	"encoding/binary"
	"fmt"

	"github.com/penstock-io/penstock/transfer/path"
)

// Packets on the socket of a path that is set up. A doorbell is one byte; every other packet has
// packetSize bytes, little-endian:
//
//	0   type
//	1   status (attached) or rights
//	2   reserved, 0
//	4   id: of the attach request, or of the region
//	8   key, in its wire form
//	24  size in bytes
//	32  where the export begins in the memfd (attached), else 0
//
// Numbers here are only ever compared with what this side knows already; see checkSealed.
const packetSize = 40

type packetType uint8

const (
	packetBell     packetType = 'b' // wake up
	packetAttach   packetType = 'a' // hand me the export key; answered by attached with the same id
	packetAttached packetType = 'A' // status; when 0: size, rights, and the memfd
	packetRevoke   packetType = 'r' // unmap the export key; answered by letgo
	packetLetGo    packetType = 'l' // the export key is not mapped any more
	packetRegion   packetType = 's' // memfd of a local region to help copying from, read-only; id, size
	packetForget   packetType = 'f' // unmap region id
	packetBye      packetType = 'q' // this side closed the path and has unmapped everything it could write to
)

// Statuses of packetAttached.
const (
	statusOK uint8 = iota
	statusKey
	statusRevoked
	statusUnreachable
	statusFailed
	statusRights
	statuses
)

var (
	errKey     = fmt.Errorf("transfer/path/shm: the peer knows no such export: %w", path.ErrKey)
	errPartial = fmt.Errorf("transfer/path/shm: the peer's export is a part of a region or has no sealed memfd, and "+
		"its owner does not let shared memory hand over the whole region: %w", path.ErrUnreachable)
	errRights = fmt.Errorf("transfer/path/shm: refused by the peer: %w", path.ErrRights)
	errNoFile = fmt.Errorf("transfer/path/shm: the peer could not hand over the memory (it has no descriptor left, "+
		"or no /proc): %w", path.ErrUnreachable)
)

func statusError(s uint8) error {
	switch s {
	case statusKey:
		return errKey
	case statusRevoked:
		return errRevoked
	case statusUnreachable:
		return errPartial
	case statusRights:
		return errRights
	}
	return errNoFile
}

type packet struct {
	kind packetType
	arg  uint8 // status or rights
	id   uint32
	key  path.Key
	size uint64
	off  uint64 // only in packetAttached

	rights path.Rights // only in packetAttached; travels in the reserved bytes
}

func (p *packet) encode(b *[packetSize]byte) {
	*b = [packetSize]byte{}
	b[0], b[1], b[2] = byte(p.kind), p.arg, byte(p.rights)
	binary.LittleEndian.PutUint32(b[4:], p.id)
	p.key.Append(b[8:8])
	binary.LittleEndian.PutUint64(b[24:], p.size)
	binary.LittleEndian.PutUint64(b[32:], p.off)
}

// parsePacket checks everything that can be checked without knowing the state of the path.
func parsePacket(b []byte) (p packet, err error) {
	if len(b) == 1 && packetType(b[0]) == packetBell {
		p.kind = packetBell
		return p, nil
	}
	if len(b) != packetSize {
		return p, fmt.Errorf("packet of %d bytes, expected %d: %w", len(b), packetSize, path.ErrProtocol)
	}
	p = packet{kind: packetType(b[0]), arg: b[1], rights: path.Rights(b[2]), id: binary.LittleEndian.Uint32(b[4:]),
		key: path.ParseKey(b[8:]), size: binary.LittleEndian.Uint64(b[24:]), off: binary.LittleEndian.Uint64(b[32:])}
	ok := b[3] == 0 && (p.off == 0 || p.kind == packetAttached && p.arg == statusOK)
	switch p.kind {
	case packetAttach, packetRevoke, packetLetGo, packetForget, packetBye:
		ok = ok && p.arg == 0 && p.rights == 0 && p.size == 0
	case packetRegion:
		ok = ok && p.arg == 0 && p.rights == 0 && p.size > 0 && p.size <= maxMapping
	case packetAttached:
		ok = ok && p.arg < statuses
		if p.arg == statusOK {
			ok = ok && p.rights != 0 && p.rights&^(path.Read|path.Write) == 0 && p.size > 0 && p.size <= maxMapping &&
				p.off <= maxMapping
		} else {
			ok = ok && p.rights == 0 && p.size == 0
		}
	default:
		return p, fmt.Errorf("packet of unknown type %#x: %w", b[0], path.ErrProtocol)
	}
	if !ok {
		return p, fmt.Errorf("packet of type %q with impossible fields: %w", b[0], path.ErrProtocol)
	}
	return p, nil
}

// maxMapping keeps sizes well inside an int and the address space.
const maxMapping = 1 << 47

// wantFDs is the number of descriptors that must come with the packet.
func (p *packet) wantFDs() int {
	if p.kind == packetRegion || p.kind == packetAttached && p.arg == statusOK {
		return 1
	}
	return 0
}
