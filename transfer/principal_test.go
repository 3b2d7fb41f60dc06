package transfer

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/penstock-io/penstock/transfer/identity"
)

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	from net.Addr
}

func (c addressed) RemoteAddr() net.Addr { return c.from }

func TestPrincipal(t *testing.T) {
	from := func(s string) net.Conn {
		a, err := net.ResolveTCPAddr("tcp", s)
		if err != nil {
			t.Fatal(err)
		}
		return addressed{from: a}
	}
	for _, c := range []struct {
		peer *Peer
		want string
	}{
		{&Peer{peerConn: peerConn{raw: from("10.0.0.7:1"), tls: new(tls.ConnectionState)},
			peerUser: peerUser{cert: identity.Peer{Name: "gpu-7"}}}, "cert:gpu-7"},
		{&Peer{peerConn: peerConn{raw: from("127.0.0.1:1")}, peerUser: peerUser{user: user{7, true}}}, "uid:7"},
		{&Peer{peerConn: peerConn{raw: addressed{from: &net.UnixAddr{Name: "@", Net: "unix"}}}, peerUser: peerUser{user: user{0, true}}}, "uid:0"},
		{&Peer{peerConn: peerConn{raw: from("10.0.0.7:1")}}, "ip:10.0.0.7/32"},
		{&Peer{peerConn: peerConn{raw: from("[::ffff:10.0.0.7]:1")}}, "ip:10.0.0.7/32"},
		{&Peer{peerConn: peerConn{raw: from("[2001:db8::1:2:3:4]:1")}}, "ip:2001:db8::/64"},
		// of a user without a number here, whom AllowUID lets in
		{&Peer{peerConn: peerConn{raw: from("127.3.2.1:1")}}, "ip:127.0.0.0/8"},
		{&Peer{peerConn: peerConn{raw: from("[::1]:1")}}, "ip:::1/128"},
	} {
		if got := c.peer.principal(); got != c.want {
			t.Errorf("%q, expected %q", got, c.want)
		}
	}
}
