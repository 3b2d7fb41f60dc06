package pcap

import (
	"encoding/binary"
	"time"

	"github.com/penstock-io/penstock/packet"
)

// A Format is a format of capture files.
type Format uint8

// The formats.
const (
	PcapNG Format = iota
	Pcap
)

// SnapLen is the snap length in the files: libpcap refuses a larger one.
const SnapLen = 262144

// A Link is a link type (tcpdump.org/linktypes.html).
type Link uint16

// The link types.
const (
	Ethernet Link = 1
	User0    Link = 147 // what the users of the file agreed on: here datagrams without headers
)

// A Direction says which way a packet went.
type Direction uint8

// The directions, as in the option epb_flags.
const (
	Unknown Direction = iota
	Inbound
	Outbound
)

// An Interface is where the packets of a file come from. Empty fields are left out.
type Interface struct {
	Link   Link // required
	Name   string
	MAC    packet.MAC
	Speed  uint64 // bits per second
	Filter string // in libpcap's language, that all packets have passed
	OS     string // of the machine
	Writer string // the program that writes the file
}

// A Packet is a packet of a file, without its bytes.
type Packet struct {
	Time      int64 // nanoseconds since 1970
	Captured  int   // bytes in the file
	Length    int   // bytes that the packet had, at least Captured
	Direction Direction
	// Dropped is the number of packets that were lost between the packet before and this one, and
	// Why are the reasons.
	Dropped uint64
	Why     string
}

// Statistics are the counts of packets of an interface, at the end of a capture.
type Statistics struct {
	Start, End                   time.Time
	Received, Dropped            uint64 // by the interface
	Accepted, DroppedByOS, Given uint64 // that passed the filter; lost behind it; written
}

// Block types and options of pcapng.
const (
	sectionBlock    = 0x0a0d0d0a
	interfaceBlock  = 1
	packetBlock     = 6
	statisticsBlock = 5

	optEnd     = 0
	optComment = 1

	sectionOS, sectionWriter                       = 3, 4
	ifName, ifMAC, ifSpeed                         = 2, 6, 8
	ifResolution, ifFilter, ifOS                   = 9, 11, 12
	packetFlags, packetDropped                     = 2, 4
	statStart, statEnd                             = 2, 3
	statReceived, statDropped, statAccepted        = 4, 5, 6
	statDroppedByOS, statGiven                     = 7, 8
	byteOrder, pcapNanoseconds              uint32 = 0x1a2b3c4d, 0xa1b23c4d

	maxComment = 1024
)

var (
	le32 = binary.LittleEndian.AppendUint32
	le16 = binary.LittleEndian.AppendUint16
	le64 = binary.LittleEndian.AppendUint64
)

// AppendHeader appends what a file begins with.
func (f Format) AppendHeader(b []byte, i *Interface) []byte {
	if f == Pcap {
		b = le32(b, pcapNanoseconds)
		b = le16(le16(b, 2), 4) // the version
		b = le32(le32(b, 0), 0) // time zone and accuracy, which all writers leave 0
		return le32(le32(b, SnapLen), uint32(i.Link))
	}
	start := len(b)
	b = le32(le32(le32(b, sectionBlock), 0), byteOrder)
	b = le64(le16(le16(b, 1), 0), 1<<64-1) // the version; a section of unknown length
	b = text(b, sectionOS, i.OS)
	b = text(b, sectionWriter, i.Writer)
	b = endBlock(le32(b, optEnd), start)

	start = len(b)
	b = le32(le32(b, interfaceBlock), 0)
	b = le32(le16(le16(b, uint16(i.Link)), 0), SnapLen)
	b = text(b, ifName, i.Name)
	if i.MAC != (packet.MAC{}) {
		b = option(b, ifMAC, i.MAC[:])
	}
	if i.Speed > 0 {
		b = le64(le16(le16(b, ifSpeed), 8), i.Speed)
	}
	b = option(b, ifResolution, []byte{9}) // 10⁻⁹ s
	if i.Filter != "" {
		b = text(b, ifFilter, "\x00"+i.Filter) // 0: an expression of libpcap
	}
	b = text(b, ifOS, i.OS)
	return endBlock(le32(b, optEnd), start)
}

// Size is the number of bytes that a packet takes in a file.
func (f Format) Size(p *Packet) int {
	if f == Pcap {
		return 16 + p.Captured
	}
	n := 32 + padded(p.Captured)
	if o := p.options(); o > 0 {
		n += o + 4
	}
	return n
}

func (p *Packet) options() (n int) {
	if p.Direction != Unknown {
		n += 8
	}
	if p.Dropped > 0 {
		n += 12
	}
	if p.Why != "" {
		n += 4 + padded(min(len(p.Why), maxComment))
	}
	return n
}

// AppendPacket appends what is before the bytes of a packet. The caller appends these, and calls
// EndPacket.
func (f Format) AppendPacket(b []byte, p *Packet) []byte {
	if f == Pcap {
		b = le32(le32(b, uint32(p.Time/1e9)), uint32(p.Time%1e9))
	} else {
		b = le32(le32(le32(b, packetBlock), uint32(f.Size(p))), 0)
		b = le32(le32(b, uint32(uint64(p.Time)>>32)), uint32(p.Time))
	}
	return le32(le32(b, uint32(p.Captured)), uint32(p.Length))
}

// EndPacket appends what is behind the bytes of a packet.
func (f Format) EndPacket(b []byte, p *Packet) []byte {
	if f == Pcap {
		return b
	}
	b = pad(b, p.Captured)
	if p.Direction != Unknown {
		b = le32(le16(le16(b, packetFlags), 4), uint32(p.Direction))
	}
	if p.Dropped > 0 {
		b = le64(le16(le16(b, packetDropped), 8), p.Dropped)
	}
	b = text(b, optComment, p.Why[:min(len(p.Why), maxComment)])
	if p.options() > 0 {
		b = le32(b, optEnd)
	}
	return le32(b, uint32(f.Size(p)))
}

// AppendStatistics appends what a file ends with.
func (f Format) AppendStatistics(b []byte, s *Statistics) []byte {
	if f == Pcap {
		return b
	}
	start := len(b)
	b = le32(le32(le32(b, statisticsBlock), 0), 0)
	b = when(b, s.End)
	for _, o := range []struct {
		code uint16
		t    time.Time
	}{{statStart, s.Start}, {statEnd, s.End}} {
		b = when(le16(le16(b, o.code), 8), o.t)
	}
	for k, n := range []uint64{s.Received, s.Dropped, s.Accepted, s.DroppedByOS, s.Given} {
		b = le64(le16(le16(b, uint16(statReceived+k)), 8), n)
	}
	return endBlock(le32(b, optEnd), start)
}

// when appends a time: its high word comes first.
func when(b []byte, t time.Time) []byte {
	ns := uint64(t.UnixNano())
	return le32(le32(b, uint32(ns>>32)), uint32(ns))
}

// endBlock appends the length of the block that begins at start, and puts it into its beginning.
func endBlock(b []byte, start int) []byte {
	n := uint32(len(b) - start + 4)
	binary.LittleEndian.PutUint32(b[start+4:], n)
	return le32(b, n)
}

// text appends an option, or nothing for an empty one.
func text(b []byte, code uint16, s string) []byte {
	if s == "" {
		return b
	}
	s = s[:min(len(s), maxComment)]
	return pad(append(le16(le16(b, code), uint16(len(s))), s...), len(s))
}

func option(b []byte, code uint16, v []byte) []byte {
	return pad(append(le16(le16(b, code), uint16(len(v))), v...), len(v))
}

func padded(n int) int { return (n + 3) &^ 3 }

// pad appends zeros behind n bytes, up to a multiple of four.
func pad(b []byte, n int) []byte {
	return append(b, make([]byte, padded(n)-n)...)
}
