package sections

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/tensor/synth"
)

// seed is that of the pattern in payloads: the same for all, so that a receiver in another process
// can check them too.
const seed = 0x70656e73746f636b

// pattern is the first n bytes of what payloads are filled with.
func pattern(n int) []byte {
	p := make([]byte, n)
	synth.Fill(p, seed)
	return p
}

// template makes the packets of a sender.
type template struct {
	heads  [][]byte // of each pair of ports, everything in front of the payload
	turn   int      // whose headers are in frame
	frame  []byte   // headers and payload
	head   int      // length of the headers
	l4     int      // of the UDP header inside, whose checksum is to be computed; 0: none is
	src    netip.Addr
	dst    netip.Addr
	number int // place of our header in the frame, -1: none
	seq    int // place of the file's sequence number, -1: none
	start  uint32
}

// newTemplate makes the packets of a sender whose interface has the address mac. The error says
// which tag or tunnel cannot be done.
func newTemplate(s *Sender, mac packet.MAC) (*template, error) {
	if s.Header == 0 { // a message of a socket
		return &template{heads: [][]byte{nil}, frame: pattern(s.Payload), number: s.Number, seq: -1}, nil
	}
	if s.EthSrc != (packet.MAC{}) {
		mac = s.EthSrc
	}
	t := &template{number: -1, seq: -1, start: s.Start, src: s.Src.Unmap(), dst: s.Dst.Unmap()}
	n := s.Header + s.Payload
	headers := packet.EthernetLen + packet.IPv4Len + packet.UDPLen
	v6 := t.src.Is6()
	if v6 {
		headers += packet.IPv6Len - packet.IPv4Len
	}
	const room = 256 // for tags and tunnels
	buf := make([]byte, room+n)
	payload := buf[room+s.Header:]
	copy(payload, pattern(s.Payload))
	change, err := newTransforms(s.rules)
	if err != nil {
		return nil, err
	}
	for i := range ports(s) {
		clear(buf[:room+s.Header])
		f := packet.UDPFrame{SrcMAC: mac, DstMAC: s.EthDst, Checksum: packet.ChecksumNone,
			Src: netip.AddrPortFrom(t.src, portAt(s.SrcPorts, i)),
			Dst: netip.AddrPortFrom(t.dst, portAt(s.DstPorts, i))}
		if v6 {
			f.Checksum = packet.ChecksumOffload // it is computed for each packet, as it holds another number
		}
		if _, err := f.Fill(buf[room:], n-headers); err != nil {
			return nil, fmt.Errorf("ports %d and %d: %w", f.Src.Port(), f.Dst.Port(), err)
		}
		frame, err := change.do(buf, room)
		if err != nil {
			return nil, fmt.Errorf("ports %d and %d: %w", f.Src.Port(), f.Dst.Port(), err)
		}
		head := append([]byte(nil), frame[:len(frame)-s.Payload]...)
		if i > 0 && len(head) != len(t.heads[0]) {
			return nil, fmt.Errorf("ports %d and %d: the rules make packets of different lengths", f.Src.Port(),
				f.Dst.Port())
		}
		t.heads = append(t.heads, head)
	}
	t.head = len(t.heads[0])
	t.frame = append(append([]byte(nil), t.heads[0]...), payload...)
	if v6 {
		t.l4 = t.head - s.Header + headers - packet.UDPLen
	}
	if s.Number >= 0 {
		t.number = t.head + s.Number
	}
	if s.Sequence >= 0 {
		t.seq = t.head + s.Sequence
	}
	return t, nil
}

// portAt is the port of packet i: a range is gone through from its lower end.
func portAt(r flow.Range, i int) uint16 { return r.Lo + uint16(i%(int(r.Hi)-int(r.Lo)+1)) }

// fill makes frame the n-th packet of its sender.
func (t *template) fill(n uint64, h *stream.Header) {
	if k := int(n % uint64(len(t.heads))); k != t.turn {
		copy(t.frame, t.heads[k])
		t.turn = k
	}
	if t.number >= 0 {
		h.Put(t.frame[t.number:])
	}
	if t.seq >= 0 {
		binary.BigEndian.PutUint32(t.frame[t.seq:], t.start+uint32(n))
	}
	if t.l4 > 0 {
		u := packet.UDP(t.frame[t.l4:])
		u.FillChecksum(t.src, t.dst)
	}
}

// write writes packet i of b, which has room for all of it, as the n-th of its sender.
func (t *template) write(b *burst.Burst, i int, n uint64, h *stream.Header) {
	t.fill(n, h)
	if b.Segments(i) == 2 && b.Role(i, 0) == burst.Header && b.SetLen(i, 0, t.head) {
		copy(b.Bytes(i, 0), t.frame)
		copy(b.Bytes(i, 1), t.frame[t.head:])
		return
	}
	put(b, i, t.frame)
}

// transforms are rules of a tx section, done in software.
type transforms struct{ c *flow.Classifier }

// newTransforms takes rules whose actions only change packets.
func newTransforms(rules []flow.Rule) (*transforms, error) {
	if len(rules) == 0 {
		return &transforms{}, nil
	}
	all := make([]flow.Rule, len(rules))
	for i := range rules {
		all[i] = rules[i].Clone()
		all[i].Actions = append(all[i].Actions, flow.Queue(0)) // rules end with where packets go
	}
	c, err := flow.Compile(all)
	if err != nil {
		return nil, err
	}
	return &transforms{c}, nil
}

// do changes the frame that is buf[off:] as the first rule says that it matches, and returns it.
func (t *transforms) do(buf []byte, off int) ([]byte, error) {
	frame := buf[off:]
	if t.c == nil {
		return frame, nil
	}
	var l packet.Layers
	if why := packet.Parse(frame, &l); why != packet.OK {
		return nil, why.Err()
	}
	d := t.c.Classify(frame, &l)
	if d.Rule < 0 {
		return frame, nil
	}
	r := t.c.Rule(int(d.Rule))
	out, refusal := flow.Transform(r.Actions, buf, off, &l)
	if refusal != flow.Applied {
		return nil, fmt.Errorf("rule %q: %v", r.Name, refusal)
	}
	return out, nil
}
