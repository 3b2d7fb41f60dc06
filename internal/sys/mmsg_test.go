package sys

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// Headers are made again only where the kernel has written: what it wrote there must not be what
// the next call offers it.
func TestMessagesAgain(t *testing.T) {
	fd, err := SocketUDP(false)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fd)
	if err := Bind(fd, netip.MustParseAddrPort("127.0.0.1:0"), 0); err != nil {
		t.Fatal(err)
	}
	at, err := LocalAddr(fd)
	if err != nil {
		t.Fatal(err)
	}
	m := NewMessages(2, 2, 128)
	for i := range 2 {
		m.SetBuffer(i, make([]byte, 8))
	}
	receive := func(names bool, want int) {
		t.Helper()
		// a new sender each time: old names are wrong ones
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range want {
			if _, err := c.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
		}
		if got, e := m.Recv(fd, 2, names); got != want || e != 0 && e != EAGAIN {
			t.Fatalf("%d datagrams, expected %d: %v", got, want, e)
		}
		for i := range want {
			if a, _ := m.Name(i).AddrPort(); names && a != c.LocalAddr().(*net.UDPAddr).AddrPort() {
				t.Errorf("datagram %d is from %v, expected %v", i, a, c.LocalAddr())
			}
		}
	}
	receive(true, 2)
	if len(m.Control(0)) != 0 {
		t.Errorf("control messages nobody asked for: % x", m.Control(0))
	}
	receive(false, 0)
	receive(true, 2)
	receive(false, 1)
	receive(true, 2)
	if err := SetOption(fd, SolSocket, SoTimestamping, TimestampRxSoftware|TimestampSoftware); err != nil {
		t.Fatal(err)
	}
	// Times come a moment after they are asked for: the kernel turns them on for all of the
	// machine.
	for start := time.Now(); ; {
		receive(true, 2)
		if ParseReceived(m.Control(0)).Time != 0 && ParseReceived(m.Control(1)).Time != 0 {
			break
		}
		if time.Since(start) > time.Minute {
			t.Fatal("no receive times: the kernel was offered no room for them")
		}
	}
}

func TestSameName(t *testing.T) {
	m := NewMessages(2, 2, 0)
	names := []string{"10.0.0.1:7", "10.0.0.2:7", "10.0.0.1:8", "[fe80::1]:7", "[fe81::1]:7", "[fe80::2]:7",
		"[fe80::1:0:0:1]:7", "[fe80::1]:8"}
	for i, a := range names {
		for k, b := range names {
			for at, name := range []string{a, b} {
				m.names[at] = MakeSockAddr(netip.MustParseAddrPort(name), 3)
				m.hdr[at].h.Namelen = m.names[at].len
			}
			if m.SameName(0, 1) != (i == k) {
				t.Errorf("%s and %s: %v", a, b, i != k)
			}
		}
	}
	m.names[1] = MakeSockAddr(netip.MustParseAddrPort("[fe80::1]:7"), 4)
	m.names[0] = MakeSockAddr(netip.MustParseAddrPort("[fe80::1]:7"), 3)
	m.hdr[0].h.Namelen, m.hdr[1].h.Namelen = 28, 28
	if m.SameName(0, 1) {
		t.Error("one address on two interfaces is two senders")
	}
}
