package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// silent is a listener whose queue is full: the kernel drops each SYN.
func silent(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := sys.OfConn(l.(*net.TCPListener), func(fd int) error { return sys.ListenTCP(fd, 0) }); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return l
}

// TestLostSYN: over a long link a connection whose SYN gets no answer makes room for another one,
// once. The first one is there for a quarter of a second, in which this process may get no
// processor: then the test dials again.
func TestLostSYN(t *testing.T) {
	l := silent(t)
	to := fmt.Sprintf(":%04X", l.Addr().(*net.TCPAddr).Port)
	for try := 1; ; try++ {
		n, err := sockets(t, l.Addr().String(), to)
		if n >= 2 {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a dial to a listener that answers nothing, canceled: %v", err)
			}
			return
		}
		if try == 12 {
			t.Fatalf("%d dials: one socket each: %v", try, err)
		}
	}
}

// sockets dials until two sockets have sent a SYN, or for five seconds, and returns how many did
// and the error of the dial.
func sockets(t *testing.T, addr, to string) (int, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	cfg, _ := configs()
	cfg.Streams, cfg.RoundTrip = 1, longRoundTrip
	dialed := make(chan error, 1)
	go func() {
		p, err := New(Options{}).Dial(ctx, setup.Offer{Addr: addr, Token: newToken()}, cfg)
		if err == nil {
			p.Close()
		}
		dialed <- err
	}()
	from := map[string]bool{}
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
			return len(from), err
		default:
			runtime.Gosched()
		}
	}
	cancel()
	return len(from), <-dialed
}

// TestDialEndsByItsContext: the error of a dial is that of its context, whichever part of it ends
// first.
func TestDialEndsByItsContext(t *testing.T) {
	offer := setup.Offer{Addr: silent(t).Addr().String(), Token: newToken()}
	cfg, _ := configs()
	cfg.Streams = 4
	for range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		if _, err := New(Options{}).Dial(ctx, offer, cfg); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("with a deadline: %v", err)
		}
		cancel()
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("of the caller"))
	if _, err := New(Options{}).Dial(ctx, offer, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled with a cause: %v", err)
	}
}
