package sys

import (
	"net"
	"os"
	"testing"
	"time"
)

// A connection over loopback has a round trip, and next to nothing is added to the patience with
// it; what is no connection has none.
func TestRoundTrip(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, c := range []net.Conn{d, a} {
		if p := PatienceOf(time.Second, c); p <= time.Second || p > 21*time.Second {
			t.Errorf("%v", p)
		}
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if p := Patience(time.Second, int(f.Fd())); p != time.Second {
		t.Errorf("of a file: %v", p)
	}
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	if p := PatienceOf(time.Second, x); p != time.Second {
		t.Errorf("of a pipe: %v", p)
	}
}
