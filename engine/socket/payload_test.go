package socket

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
)

// With MaxPayload longer datagrams are dropped where they come, and cannot be sent, allocated or
// forwarded.
func TestMaxPayloadUDP(t *testing.T) {
	open := func(address string, o UDPOptions) engine.Port {
		t.Helper()
		p, err := New().OpenPort(t.Context(), engine.PortSpec{Address: address, Options: o})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	short := open("udp://127.0.0.1:0", UDPOptions{MaxPayload: 100})
	in := newReader(t, short, engine.RxSpec{})
	out := newWriter(t, open("udp://127.0.0.1:0?remote="+strings.TrimPrefix(short.Info().Address, "udp://"),
		UDPOptions{}), engine.TxSpec{})
	out.send(0, strings.Repeat("a", 101), strings.Repeat("b", 100))
	if b := in.more(); b.Len() != 1 || b.PacketLen(0) != 100 || b.Bytes(0, 0)[0] != 'b' {
		t.Errorf("%d packets", b.Len())
	}
	if d := in.drops(); d[engine.DropTooLong] != 1 || d.Total() != 1 {
		t.Errorf("dropped: %v", &d)
	}
	back := newWriter(t, open("udp://127.0.0.1:0?remote="+strings.TrimPrefix(short.Info().Address, "udp://"),
		UDPOptions{MaxPayload: 100}), engine.TxSpec{})
	if n, err := back.q.Alloc(back.b, 1, 101); n != 0 || !errors.Is(err, engine.ErrInvalid) &&
		!errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("%d, %v", n, err)
	}
	// What was received elsewhere and is longer is counted.
	long := open("udp://127.0.0.1:0", UDPOptions{})
	rx := newReader(t, long, engine.RxSpec{})
	newWriter(t, open("udp://127.0.0.1:0?remote="+strings.TrimPrefix(long.Info().Address, "udp://"), UDPOptions{}),
		engine.TxSpec{}).send(0, strings.Repeat("c", 101))
	if n, err := back.q.Forward(rx.more()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := back.q.Send(rx.b); err != nil {
		t.Fatal(err)
	}
	if s := back.drained(); s.Packets != 0 || s.Drops[engine.DropTooLong] != 1 {
		t.Errorf("%+v", s)
	}
	for _, o := range []UDPOptions{{MaxPayload: -1}, {MaxPayload: 1, GRO: true}} {
		if _, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "udp://127.0.0.1:0",
			Options: o}); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// With MaxPayload no packet of a stream brings more, and the stream is whole.
func TestMaxPayloadTCP(t *testing.T) {
	s, c, _ := tcpPair(t, "127.0.0.1:0", TCPOptions{MaxPayload: 100}, TCPOptions{})
	in, out := newReader(t, s, engine.RxSpec{}), newWriter(t, c, engine.TxSpec{})
	text := strings.Repeat("0123456789", 100)
	out.send(0, text)
	got := ""
	for len(got) < len(text) {
		b := in.more()
		for i := range b.Len() {
			if b.PacketLen(i) > 100 {
				t.Errorf("a packet of %d bytes", b.PacketLen(i))
			}
			f := make([]byte, b.PacketLen(i))
			b.CopyTo(f, i)
			got += string(f)
		}
	}
	if got != text {
		t.Error("the bytes are not those that were sent")
	}
	if _, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "tcp://127.0.0.1:0?listen=1",
		Options: TCPOptions{MaxPayload: -1}}); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
}
