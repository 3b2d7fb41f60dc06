package netns

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/sys"
)

// tcpFrame is a frame of a TCP stream over IPv4 that the device is to cut into segments.
func tcpFrame(seq uint32, segment int, payload []byte) []byte {
	b := make([]byte, sys.TapHeader+ethernetLen+20+32, sys.TapHeader+ethernetLen+20+32+len(payload))
	b[0], b[gsoType] = 1, gsoTCPv4
	binary.NativeEndian.PutUint16(b[gsoSize:], uint16(segment))
	ip := b[sys.TapHeader+ethernetLen:]
	ip[0], ip[9] = 0x45, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(payload)))
	binary.BigEndian.PutUint16(ip[4:], 65530)
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(ip[10:], ^sum16(ip[:20]))
	tcp := ip[20:]
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12], tcp[13] = 8<<4, 1|8|16|128
	return append(b, payload...)
}

func testWire(s LinkSpec) *wire {
	s.MAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	return newWire(s, &emulated{end: make(chan struct{})})
}

// TestSegmentsLost has segments of a stream lost: what arrives is the others, each once, in order,
// at its place in the stream, with headers that say so.
func TestSegmentsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		segment := rapid.IntRange(1, 1460).Draw(t, "segment")
		payload := make([]byte, rapid.IntRange(1, 30*segment).Draw(t, "bytes"))
		for i := range payload {
			payload[i] = byte(i * 31 >> 3)
		}
		spec := LinkSpec{Loss: rapid.Float64Range(0, 1).Draw(t, "loss"), Seed: rapid.Uint64().Draw(t, "seed"),
			Rate: rapid.Uint64Range(0, 1e9).Draw(t, "rate"), Delay: time.Second}
		w, now, seq := testWire(spec), time.Now(), rapid.Uint32().Draw(t, "seq")
		frames := w.admit(now, tcpFrame(seq, segment, payload))
		packets := (len(payload) + segment - 1) / segment
		arrived, at := 0, now.Add(spec.Delay)
		var last uint32
		for i, f := range frames {
			if f.at.Before(at) {
				t.Fatalf("frame %d at %v, the one before at %v", i, f.at, at)
			}
			at = f.at
			ip := f.b[sys.TapHeader+ethernetLen:]
			tcp := ip[20:]
			got := tcp[32:]
			off := binary.BigEndian.Uint32(tcp[4:]) - seq
			if i > 0 && off < last || int(off)%segment != 0 || !bytes.Equal(got, payload[off:int(off)+len(got)]) {
				t.Fatalf("frame %d has %d bytes at %d behind %d", i, len(got), off, last)
			}
			last = off + uint32(len(got))
			n := (len(got) + segment - 1) / segment
			arrived += n
			if int(binary.BigEndian.Uint16(ip[2:])) != len(ip) || sum16(ip[:20]) != 0xffff ||
				binary.BigEndian.Uint16(ip[4:]) != uint16(65530+int(off)/segment) {
				t.Fatalf("frame %d: IP header %x", i, ip[:20])
			}
			if begins, ends := tcp[13]&128 != 0, tcp[13]&9 != 0; begins != (off == 0) ||
				ends != (int(last) == len(payload)) {
				t.Fatalf("frame %d, bytes %d to %d of %d: TCP flags %x", i, off, last, len(payload), tcp[13])
			}
			if whole := packets == n; !whole && (f.b[gsoType] != 0) != (n > 1) {
				t.Fatalf("frame %d of %d packets: GSO type %d", i, n, f.b[gsoType])
			}
		}
		if lost := int(w.lost.Load() + w.overflowed.Load()); arrived+lost != packets || int(w.sent.Load()) != packets {
			t.Fatalf("%d packets arrived and %d were lost, of %d", arrived, lost, packets)
		}
	})
}

// TestWire sends packets over a link by a clock of its own, and counts.
func TestWire(t *testing.T) {
	packet, now := make([]byte, sys.TapHeader+1000), time.Now()
	send := func(w *wire, n int) (at []time.Duration) {
		for range n {
			for _, f := range w.admit(now, packet) {
				at = append(at, f.at.Sub(now))
			}
		}
		return at
	}
	if at := send(testWire(LinkSpec{Delay: 20 * time.Millisecond}), 3); !slices.Equal(at,
		[]time.Duration{20e6, 20e6, 20e6}) {
		t.Errorf("with a delay of 20 ms packets arrive after %v", at)
	}
	if at := send(testWire(LinkSpec{Delay: time.Millisecond, Rate: 8e6}), 3); !slices.Equal(at,
		[]time.Duration{2e6, 3e6, 4e6}) {
		t.Errorf("three packets of 1 ms at a delay of 1 ms arrive after %v", at)
	}
	w := testWire(LinkSpec{Rate: 8e6, Queue: 4000})
	if at := send(w, 10); len(at) != 5 || w.overflowed.Load() != 5 {
		t.Errorf("%d packets pass a queue of four, %d are counted as lost there", len(at), w.overflowed.Load())
	}
	lossy := func(seed uint64) (*wire, []time.Duration) {
		w := testWire(LinkSpec{Loss: 0.01, Seed: seed})
		return w, send(w, 100_000)
	}
	w, _ = lossy(1)
	if n := w.lost.Load(); n < 800 || n > 1200 { // six standard deviations
		t.Errorf("%d of 100,000 packets were lost at 1 %%", n)
	}
	if again, _ := lossy(1); again.lost.Load() != w.lost.Load() {
		t.Errorf("%d packets lost, and %d with the same seed", w.lost.Load(), again.lost.Load())
	}
}

// TestEmulated sends a stream over a link that loses packets, which TCP repairs, and cuts it:
// neither host sees more than silence.
func TestEmulated(t *testing.T) {
	n := New(t, Topology{Link: LinkSpec{Delay: 2 * time.Millisecond, Loss: 0.02, Rate: 1e9, Seed: 7}})
	a, b := n.Hosts[0], n.Hosts[1]
	for _, addr := range []string{a.Link().IPv4.String(), "[" + a.Link().IPv6.String() + "]"} {
		l, err := a.Listen(ctx(t), "tcp", addr+":0")
		if err != nil {
			t.Fatal(err)
		}
		want := make([]byte, 4<<20)
		for i := range want {
			want[i] = byte(i * 13 >> 5)
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				c.Write(want)
				c.Close()
			}
		}()
		c, err := b.Dial(ctx(t), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: %d bytes, %v", addr, len(got), err)
		}
		c.Close()
		l.Close()
	}
	if s := a.Link().Counts(); s.Lost == 0 || s.Sent < 2*(4<<20)/1500 {
		t.Errorf("%+v", s)
	}
	// without a socket there the host answers that the port is closed
	there, err := a.ListenPacket(ctx(t), "udp", a.Link().IPv4.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if err := a.Link().Down(); err != nil {
		t.Fatal(err)
	}
	u, err := b.Dial(ctx(t), "udp", there.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for b.Link().Counts().Cut == 0 {
		if _, err := u.Write([]byte("x")); err != nil {
			t.Fatalf("the host sees the cut: %v", err)
		}
	}
	if err := a.Link().Up(); err != nil {
		t.Fatal(err)
	}
	cut := b.Link().Counts()
	for b.Link().Counts().Sent < cut.Sent+100 {
		if _, err := u.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if c := b.Link().Counts(); c.Cut > cut.Cut+1 { // one may have been on its way
		t.Errorf("%+v after Up, %+v before", c, cut)
	}
}

// TestEmulatedIsAPair refuses what the emulator does not carry.
func TestEmulatedIsAPair(t *testing.T) {
	for _, top := range []Topology{{Hosts: 3, Link: LinkSpec{Loss: 0.1}}, {Link: LinkSpec{Delay: 1, Queues: 2}},
		{Link: LinkSpec{Loss: 1.5}}} {
		if n, err := Open(top); err == nil {
			n.Close()
			t.Errorf("%+v was opened", top)
		}
	}
}
