package enginetest

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// asked is a packet with requests, and what has to arrive.
type asked struct {
	name string
	// frame makes the packet of that payload, with rubbish where its checksums belong; head is the
	// length of its headers.
	frame   func(payload []byte) (p []byte, head int)
	payload int
	size    int // of segments, 0 for none
}

// checkRequests sends packets that ask for checksums and to be cut, and demands that they arrive
// with right checksums and as the right segments.
func checkRequests(t testing.TB, h Harness) {
	r := newRig(t, h)
	if r.caps.TxChecksum == "" || r.caps.Stream {
		return
	}
	s, v := r.line(r.A, r.B, 64)
	cases := []asked{{"payload", func(p []byte) ([]byte, int) {
		return p, 0
	}, 1000, 300}, {"short payload", func(p []byte) ([]byte, int) { return p, 0 }, 200, 300}}
	if r.caps.Frames {
		cases = []asked{{"UDP, checksums", s.udp, 333, 0}, {"UDP", s.udp, 1000, 300},
			{"UDP, one segment", s.udp, 300, 300},
			{"TCP, checksums", s.tcp, 101, 0}, {"TCP", s.tcp, 1201, 400}}
	}
	for _, clone := range []bool{false, true} { // then the bytes of another consumer are not written
		shares, other := burst.NewShares(64), r.burst(4)
		for _, c := range cases {
			payload := make([]byte, c.payload)
			pattern(payload, uint64(c.payload))
			frame, head := c.frame(payload)
			before := r.lost()
			s.alloc(s.b, 1, len(frame))
			put(s.b, 0, frame)
			b := s.b
			if clone {
				if !shares.Clone(s.b, other) {
					t.Fatal("no clone")
				}
				if n, err := s.q.Forward(other); n != 1 || err != nil {
					t.Fatalf("Forward of a clone: %d, %v", n, err)
				}
				b = other
			}
			b.SetConn(0, s.conn)
			if c.size > 0 {
				b.SetSegmentSize(0, c.size)
			} else {
				b.Ask(0, burst.ChecksumIPv4|burst.ChecksumL4)
			}
			if err := s.q.Send(b); err != nil {
				t.Fatalf("%s: Send: %v", c.name, err)
			}
			v.asked(&c, frame[:head], payload, before)
			if clone {
				if n := s.b.CopyTo(v.data, 0); !bytes.Equal(v.data[:n], frame) {
					t.Fatalf("%s: the bytes of the packet have changed for the other consumer, at %d", c.name,
						differ(v.data[:n], frame))
				}
				s.b.Release()
			}
		}
	}
	v.quiet()
}

// asked receives what c becomes.
func (v *receiver) asked(c *asked, head, payload []byte, before uint64) {
	t := v.r.t
	t.Helper()
	size := c.size
	if size == 0 {
		size = len(payload)
	}
	parts := slices.Collect(slices.Chunk(payload, size))
	for k := 0; k < len(parts); {
		var stop func() error
		if v.r.h.Lossy {
			stop = func() error {
				if v.r.lost() >= before+uint64(len(parts)-k) {
					return nil
				}
				return engine.ErrNotReady
			}
		}
		n, err := v.someOr(v.b, stop)
		if err != nil {
			t.Fatalf("%s: TryRecv: %v", c.name, err)
		}
		if n == 0 {
			return // lost
		}
		for i := range n {
			p := v.data[:v.b.CopyTo(v.data, i)]
			got, ok := p, true
			if len(head) > 0 {
				got, ok = v.correct(c, p)
			}
			at := k
			for ok && v.r.h.Lossy && at < len(parts)-1 && !bytes.Equal(got, parts[at]) {
				at++
			}
			switch {
			case ok && at < len(parts) && bytes.Equal(got, parts[at]):
				v.number(c, head, p, at, len(parts), size)
				k = at + 1
			case !v.r.h.Noise:
				t.Fatalf("%s: packet %d of %d has a payload of %d bytes, which is not what was sent", c.name, k,
					len(parts), len(got))
			}
		}
		v.b.Release()
		if v.r.h.Lossy && k > 0 && v.r.lost() > before {
			return
		}
	}
}

// correct returns the payload of a frame whose checksums are right; ok is false for one that is not
// of the check.
func (v *receiver) correct(c *asked, p []byte) (payload []byte, ok bool) {
	t := v.r.t
	t.Helper()
	var l packet.Layers
	if why := packet.Parse(p, &l); why != packet.OK || l.DstPort != portBase+askedPort {
		return p, false
	}
	if l.IPVersion == 4 && !packet.IPv4(p[l.L3:]).ChecksumOK() {
		t.Fatalf("%s: the checksum of the IPv4 header is wrong", c.name)
	}
	body, src, dst := p[l.L4:l.End], l.Src(p), l.Dst(p)
	if l.Proto == packet.ProtoUDP && (!packet.UDP(body).ChecksumOK(src, dst) || packet.UDP(body).Checksum() == 0) ||
		l.Proto == packet.ProtoTCP && !packet.TCP(body).ChecksumOK(src, dst) {
		t.Fatalf("%s: the checksum of %v is wrong", c.name, l.Proto)
	}
	return p[l.Payload:l.End], true
}

// number compares what counts segments in the headers of segment k of n.
func (v *receiver) number(c *asked, head, p []byte, k, n, size int) {
	t := v.r.t
	t.Helper()
	var l packet.Layers
	if len(head) == 0 || packet.Parse(p, &l) != packet.OK || l.Proto != packet.ProtoTCP {
		return
	}
	was, is := packet.TCP(head[l.L4:]), packet.TCP(p[l.L4:l.End])
	if want := was.Seq() + uint32(k*size); is.Seq() != want {
		t.Fatalf("%s: segment %d has the sequence number %d, want %d", c.name, k, is.Seq(), want)
	}
	want := packet.TCPAck
	if k == 0 {
		want |= packet.TCPCwr
	}
	if k == n-1 {
		want |= packet.TCPPsh | packet.TCPFin
	}
	if is.Flags() != want || is.Ack() != was.Ack() || !bytes.Equal(is.Options(), was.Options()) {
		t.Fatalf("%s: segment %d of %d has the flags %#x, want %#x, or another header than it was sent with", c.name, k,
			n, is.Flags(), want)
	}
}

// askedPort is the class of these packets.
const askedPort = 3

// udp makes a frame with wrong checksums.
func (s *sender) udp(payload []byte) (p []byte, head int) {
	f := s.full.frame
	f.Src, f.Dst = netip.AddrPortFrom(addrA, portBase+askedPort), netip.AddrPortFrom(addrB, portBase+askedPort)
	f.Checksum = packet.ChecksumOffload
	head = f.HeaderLen()
	p = append(make([]byte, head), payload...)
	if _, err := f.Fill(p, len(payload)); err != nil {
		s.r.t.Fatal(err)
	}
	return s.spoil(p), head
}

// tcp makes a frame with wrong checksums and all flags that segments do not share.
func (s *sender) tcp(payload []byte) (p []byte, head int) {
	f := s.full.frame
	tcp := packet.TCPHeader{SrcPort: portBase + askedPort, DstPort: portBase + askedPort, Seq: 1<<32 - 500, Ack: 77,
		Window: 100,
		Flags:  packet.TCPAck | packet.TCPPsh | packet.TCPFin | packet.TCPCwr, Options: []byte{1, 1, 1, 1}}
	eth, ip := packet.EthernetHeader{Dst: f.DstMAC, Src: f.SrcMAC, Type: packet.EtherTypeIPv4},
		packet.IPv4Header{Src: addrA, Dst: addrB, Proto: packet.ProtoTCP}
	head = packet.EthernetLen + packet.IPv4Len + tcp.Len()
	p = append(make([]byte, head), payload...)
	_, e1 := eth.Fill(p)
	_, e2 := ip.Fill(p[packet.EthernetLen:], tcp.Len()+len(payload))
	_, e3 := tcp.Fill(p[packet.EthernetLen+packet.IPv4Len:])
	if e1 != nil || e2 != nil || e3 != nil {
		s.r.t.Fatal(e1, e2, e3)
	}
	return s.spoil(p), head
}

// spoil puts rubbish where the checksums belong.
func (s *sender) spoil(p []byte) []byte {
	var l packet.Layers
	packet.Parse(p, &l)
	if l.IPVersion == 4 {
		p[l.L3+10], p[l.L3+11] = 0xab, 0xcd
	}
	if l.Proto == packet.ProtoUDP {
		packet.UDP(p[l.L4:l.End]).SetChecksum(0xabcd)
	} else {
		packet.TCP(p[l.L4:l.End]).SetChecksum(0xabcd)
	}
	return p
}
