package tcp

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path/setup"
)

// TestLostSYN: over a long link a connection whose SYN gets no answer makes room for another one, once.
func TestLostSYN(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// With a full queue the kernel drops each SYN.
	if err := sys.OfConn(l.(*net.TCPListener), func(fd int) error { return sys.ListenTCP(fd, 0) }); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg, _ := configs()
	cfg.Streams, cfg.RoundTrip = 1, longRoundTrip
	dialed := make(chan error, 1)
	go func() {
		p, err := New(Options{}).Dial(ctx, setup.Offer{Addr: l.Addr().String(), Token: newToken()}, cfg)
		if err == nil {
			p.Close()
		}
		dialed <- err
	}()
	to := fmt.Sprintf(":%04X", l.Addr().(*net.TCPAddr).Port)
	from := map[string]bool{} // the sockets that sent a SYN
	for len(from) < 2 {
		b, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[2], to) && f[3] == "02" { // SYN_SENT
				from[f[1]] = true
			}
		}
		select {
		case err := <-dialed:
			t.Fatalf("after %d connections: %v", len(from), err)
		default:
			runtime.Gosched()
		}
	}
	cancel()
	if err := <-dialed; err == nil {
		t.Error("a dial to a listener that answers nothing succeeded")
	}
}
