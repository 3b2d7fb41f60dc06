package transfer

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/control"
)

// otherVersion is a session with a node at the other end of c that speaks only the version after
// those of this package. It returns its end.
func otherVersion(c net.Conn, role control.Role) error {
	s, err := control.New(role, control.Options{VersionMin: control.ProtocolMax + 1,
		VersionMax: control.ProtocolMax + 1,
		Session:    [16]byte{1}, Identity: control.Identity{Node: [16]byte{2}, Instance: 1, Name: "other",
			Host: [16]byte{3}}}, time.Now())
	if err != nil {
		return err
	}
	defer c.Close()
	var buf [4096]byte
	for {
		for out := s.Outgoing(); len(out) > 0; out = s.Outgoing() {
			n, err := c.Write(out)
			if err != nil {
				return err
			}
			s.Sent(n)
		}
		if s.State() == control.Closed || s.State() == control.Failed {
			return s.Err()
		}
		n, err := c.Read(buf[:])
		if err != nil {
			return err
		}
		s.Receive(time.Now(), buf[:n]) // the session keeps its error, and has still to say goodbye
	}
}

// Nodes whose versions of the protocol differ refuse each other in one sentence that names both, at
// both ends and whoever dials.
func TestOtherVersion(t *testing.T) {
	check := func(where, text, dialer, acceptor string) {
		t.Helper()
		if want := "the acceptor speaks version " + acceptor + " of the protocol, the dialer version " +
			dialer; !strings.Contains(text, want) {
			t.Errorf("%s: %s: expected %q", where, text, want)
		}
	}
	if control.ProtocolMin != control.ProtocolMax {
		t.Fatal("this test is for one version; see TestVersionMatrix of package control")
	}
	ours, theirs := fmt.Sprint(control.ProtocolMax), fmt.Sprint(control.ProtocolMax+1)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	end := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = otherVersion(c, control.Acceptor)
		}
		end <- err
	}()
	_, err = open(t, Options{Name: "a"}).Dial(ctx(t), "tcp://"+l.Addr().String())
	if !errors.Is(err, control.Version) || Retriable(err) {
		t.Errorf("the node dials: %v", err)
	} else {
		check("the node dials", err.Error(), ours, theirs)
	}
	if err := <-end; err == nil {
		t.Error("the node dials: no error at the other end")
	} else {
		check("the other end of that", err.Error(), ours, theirs)
	}

	var log lockedBuffer
	b := open(t, Options{Name: "b", Listen: []string{"tcp://127.0.0.1:0"},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	c, err := net.Dial("tcp", strings.TrimPrefix(b.Addrs()[0], "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	if err := otherVersion(c, control.Dialer); !errors.Is(err, control.Version) {
		t.Errorf("the node listens: the dialer got %v", err)
	} else {
		check("the dialer got", err.Error(), theirs, ours)
	}
	// once it is closed it says that
	until(t, "a line in the node's log", func() bool { return strings.Contains(log.String(), "peer refused") })
	check("the node logged", log.String(), theirs, ours)
}
