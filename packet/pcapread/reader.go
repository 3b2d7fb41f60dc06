package pcapread

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/penstock-io/penstock/packet/pcap"
)

// MaxPacket is the length of the longest packet that is read, in bytes.
const MaxPacket = pcap.SnapLen

// lastSecond is the last one whose nanoseconds since 1970 fit into an int64.
const lastSecond = math.MaxInt64/1_000_000_000 - 1

// A Packet is a packet of a file.
type Packet struct {
	Data   []byte    // until the next call of Next
	Length int       // bytes that the packet had, at least len(Data)
	Link   pcap.Link // what Data begins with
	// Time is in nanoseconds since 1970. Timed says that the file has it; else it is that of the
	// packet before.
	Time   int64
	Timed  bool
	File   string
	Number uint64 // in the file, from 1
}

// A Reader reads one file.
type Reader struct {
	next func() ([]byte, gopacket.CaptureInfo, error)
	ng   *pcapgo.NgReader // nil: the file is one of pcap
	p    Packet
}

// Open reads the beginning of a file. The name is for errors.
func Open(name string, in io.Reader) (*Reader, error) {
	r := &Reader{p: Packet{File: name}}
	b := bufio.NewReaderSize(in, 1<<18)
	magic, err := b.Peek(4)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	switch m := string(magic); m {
	case "\x0a\x0d\x0d\x0a":
		r.ng, err = pcapgo.NewNgReader(&blocks{r: b, order: binary.LittleEndian},
			pcapgo.NgReaderOptions{WantMixedLinkType: true})
		if err == nil {
			r.next = r.ng.ZeroCopyReadPacketData
		}
	case "\xd4\xc3\xb2\xa1", "\x4d\x3c\xb2\xa1", "\xa1\xb2\xc3\xd4", "\xa1\xb2\x3c\x4d":
		var x *pcapgo.Reader
		if x, err = pcapgo.NewReader(b); err == nil {
			x.SetSnaplen(MaxPacket) // some files say 0
			r.next, r.p.Link = x.ZeroCopyReadPacketData, pcap.Link(x.LinkType())
		}
	default:
		return nil, fmt.Errorf("%s: expected a capture file, pcap or pcapng, not one that begins with %x", name, magic)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: the beginning of the file: %w", name, cut(err))
	}
	return r, nil
}

// cut says of the end of a file that it came too soon.
func cut(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("the file is cut here: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// Next reads a packet, which is valid until the next call. The error is io.EOF behind the last
// packet; others say where in the file they are.
func (r *Reader) Next() (*Packet, error) {
	b, ci, err := r.next()
	if err == io.EOF && ci.CaptureLength == 0 {
		return nil, err
	}
	r.p.Number++
	if err == nil {
		err = r.take(b, &ci)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: packet %d: %w", r.p.File, r.p.Number, cut(err))
	}
	return &r.p, nil
}

func (r *Reader) take(b []byte, ci *gopacket.CaptureInfo) error {
	p := &r.p
	if r.ng != nil {
		i, err := r.ng.Interface(ci.InterfaceIndex)
		if err != nil {
			return err
		}
		if x := i.TimestampResolution; x.Binary() || x.Exponent() > 19 {
			return fmt.Errorf("interface %d has times of 2^-%d or 10^-%[2]d s: expected 10^-1 to 10^-19: editcap "+
				"writes "+
				"the file anew", ci.InterfaceIndex, x.Exponent())
		}
		p.Link = pcap.Link(ci.AncillaryData[0].(layers.LinkType))
	}
	if p.Timed = !ci.Timestamp.IsZero(); p.Timed {
		if s := ci.Timestamp.Unix(); s < 0 || s > lastSecond {
			return fmt.Errorf("expected a time from 1970 to 2262, not second %d", s)
		}
		p.Time = ci.Timestamp.UnixNano()
	}
	if p.Data, p.Length = b, ci.Length; len(b) > MaxPacket || len(b) > p.Length {
		return fmt.Errorf("%d bytes of a packet of %d: expected at most %d, and no more than the packet had", len(b),
			p.Length, MaxPacket)
	}
	return nil
}

// A Merger reads several files as one, by time. A packet keeps its place in its own file.
type Merger struct {
	files []*Reader
	heads []*Packet // of each file; nil: not read yet
}

// Merge makes a Merger of files.
func Merge(files ...*Reader) *Merger {
	return &Merger{files: files, heads: make([]*Packet, len(files))}
}

// Next is as Reader.Next.
func (m *Merger) Next() (*Packet, error) {
	best := -1
	for i := 0; i < len(m.files); i++ {
		if m.heads[i] == nil {
			p, err := m.files[i].Next()
			if err == io.EOF {
				m.files, m.heads = append(m.files[:i:i], m.files[i+1:]...), append(m.heads[:i:i], m.heads[i+1:]...)
				i--
				continue
			}
			if err != nil {
				return nil, err
			}
			m.heads[i] = p
		}
		if best < 0 || m.heads[i].Time < m.heads[best].Time {
			best = i
		}
	}
	if best < 0 {
		return nil, io.EOF
	}
	p := m.heads[best]
	m.heads[best] = nil
	return p, nil
}
