package fault

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/transfer/path/pathtest"
)

// patience turns a hang into a failure; nothing is measured.
const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pattern(n int) []byte {
	b := make([]byte, n)
	pathtest.Fill(b, 1)
	return b
}

// between starts a proxy in front of a listening socket of this process, and checks that both leave
// nothing behind.
func between(t *testing.T, network, plan string) (*Proxy, net.Listener) {
	t.Helper()
	files := openFiles(t)
	at := "127.0.0.1:0"
	if network == "unix" {
		at = "@" + t.Name() + fmt.Sprint(os.Getpid())
	}
	l, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewProxy(network, l.Addr().String(), parse(t, plan))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if n := openFiles(t); n > files {
			t.Errorf("%d descriptors before, %d after", files, n)
		}
	})
	return p, l
}

func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// connect makes a connection through a proxy and returns both ends.
func connect(t *testing.T, p *Proxy, l net.Listener) (client, server net.Conn) {
	t.Helper()
	client, err := net.Dial(p.network, p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	for _, c := range []net.Conn{client, server} {
		c.SetDeadline(time.Now().Add(patience))
	}
	return client, server
}

func TestProxyCarries(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			p, l := between(t, network, "short every=~3000")
			client, server := connect(t, p, l)
			data := pattern(1 << 20)
			var wg sync.WaitGroup
			for _, c := range []net.Conn{client, server} {
				wg.Go(func() {
					c.Write(data)
					closeWrite(c)
				})
				wg.Go(func() {
					if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, data) {
						t.Errorf("%d bytes, %v", len(got), err)
					}
				})
			}
			wg.Wait()
			<-p.Links()[0].Done()
			if l := p.Links()[0].Log(); l.Up != 1<<20 || l.Down != 1<<20 || l.Counts[Short] == 0 {
				t.Errorf("log: %d up, %d down, %v", l.Up, l.Down, l.Counts)
			}
		})
	}
}

// Each fault is seen at the other end, in the direction that the plan says.
func TestProxyFaults(t *testing.T) {
	data := pattern(100_000)
	isReset := func(err error) bool { return errors.Is(err, syscall.ECONNRESET) }
	for plan, check := range map[string]func(got []byte, err error) bool{
		"": func(got []byte, err error) bool { return bytes.Equal(got, data) && err == nil },
		"cut at=5000": func(got []byte, err error) bool {
			return bytes.HasPrefix(data, got) && len(got) <= 5000 && isReset(err)
		},
		"halfclose at=5000": func(got []byte, err error) bool { return bytes.Equal(got, data[:5000]) && err == nil },
		"corrupt at=7 n=1": func(got []byte, err error) bool {
			return len(got) == len(data) && got[7] != data[7] && bytes.Equal(got[8:], data[8:])
		},
		"drop at=9 n=3": func(got []byte, err error) bool {
			return bytes.Equal(got, append(bytes.Clone(data[:9]), data[12:]...))
		},
		"duplicate at=9 n=3": func(got []byte, err error) bool {
			return bytes.Equal(got, append(bytes.Clone(data[:12]), data[9:]...))
		},
		"delay every=~30000 for=1ms; stall at=50 for=2ms": func(got []byte, err error) bool {
			return bytes.Equal(got, data) && err == nil
		},
	} {
		for _, dir := range []Direction{Up, Down} {
			t.Run(fmt.Sprintf("%s/%v", plan, dir), func(t *testing.T) {
				full := parse(t, plan)
				for i := range full.Rules {
					full.Rules[i].Dir = dir
				}
				p, l := between(t, "tcp", full.String())
				client, server := connect(t, p, l)
				from, to := client, server
				if dir == Down {
					from, to = server, client
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					from.Write(data) // fails under a cut
					closeWrite(from)
				})
				got, err := io.ReadAll(to)
				if !check(got, err) {
					t.Errorf("%d bytes came, %v", len(got), err)
				}
				closeWrite(to)
				wg.Wait()
				<-p.Links()[0].Done()
				log := p.Links()[0].Log()
				for _, r := range full.Rules {
					if log.Counts[r.Kind] == 0 {
						t.Errorf("no %v in the log: %v", r.Kind, log.Counts)
					}
				}
				for _, e := range log.Events {
					if e.Dir != dir {
						t.Errorf("event %v in the wrong direction", e)
					}
				}
			})
		}
	}
}

// The same plan does the same to the same bytes, although the kernel cuts them differently each
// time.
func TestProxyRepeats(t *testing.T) {
	data := pattern(200_000)
	for seed := range uint64(5) {
		plan := Random(Bytes, seed, 200_000, Corrupt, Drop, Duplicate, Short)
		for i := range plan.Rules {
			plan.Rules[i].Dir, plan.Rules[i].Every = Up, About(10_000)
		}
		var first []byte
		var firstLog Log
		for run := range 2 {
			p, l := between(t, "tcp", plan.String())
			client, server := connect(t, p, l)
			go func() {
				client.Write(data)
				closeWrite(client)
			}()
			got, err := io.ReadAll(server)
			if err != nil {
				t.Fatal(err)
			}
			server.Close()
			<-p.Links()[0].Done()
			log := p.Links()[0].Log()
			if run == 0 {
				first, firstLog = got, log
			} else if !bytes.Equal(first, got) || !reflect.DeepEqual(firstLog, log) {
				t.Errorf("plan %q: two runs differ: %v and %v", plan, firstLog.Counts, log.Counts)
			}
		}
		if firstLog.Counts.Total() == 0 {
			t.Errorf("plan %q did nothing", plan)
		}
	}
}

func TestProxyByHand(t *testing.T) {
	p, l := between(t, "tcp", "")
	client, server := connect(t, p, l)
	one := make([]byte, 1)
	say := func(from, to net.Conn) {
		t.Helper()
		if _, err := from.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(to, one); err != nil {
			t.Fatal(err)
		}
	}
	say(client, server)
	p.Stall(Up)
	client.Write([]byte("late"))
	say(server, client) // the other direction flows; what was sent into the stall has not come
	server.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := server.Read(one); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes came through a stall, %v", n, err)
	}
	server.SetReadDeadline(time.Now().Add(patience))
	p.Resume(Up)
	if b := make([]byte, 4); true {
		if _, err := io.ReadFull(server, b); err != nil || string(b) != "late" {
			t.Fatalf("after the stall: %q, %v", b, err)
		}
	}
	p.HalfClose(Down)
	if _, err := client.Read(one); err != io.EOF {
		t.Errorf("after the half-close: %v", err)
	}
	say(client, server)
	p.Cut()
	if _, err := server.Read(one); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the cut: %v", err)
	}
	if c := p.Counts(); c[Stall] != 1 || c[HalfClose] != 1 || c[Cut] != 1 || c.Total() != 3 {
		t.Errorf("counted %v", c)
	}
	p.Refuse(true)
	if c, err := net.Dial("tcp", p.Addr()); err == nil {
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Read(one); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a refused connection: %v", err)
		}
		c.Close()
	}
	p.Refuse(false)
	client, server = connect(t, p, l)
	say(server, client)
}

func TestProxyRefusesAsPlanned(t *testing.T) {
	p, l := between(t, "tcp", "refuse conn=1; cut conn=3 at=1")
	// The reset may come before Dial returns.
	c, err := net.Dial("tcp", p.Addr())
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the first connection: %v", err)
	}
	for number := 2; number <= 3; number++ {
		client, server := connect(t, p, l)
		client.Write([]byte("abc"))
		if n, err := io.ReadFull(server, make([]byte, 3)); (err == nil) != (number == 2) {
			t.Errorf("connection %d: %d bytes, %v", number, n, err)
		}
	}
}

// What breaks at one end, breaks at the other.
func TestProxyPassesTheEndOn(t *testing.T) {
	p, l := between(t, "tcp", "")
	client, server := connect(t, p, l)
	client.(*net.TCPConn).SetLinger(0)
	client.Close()
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the server sees %v of a reset", err)
	}
	l.Close()
	c, err := net.Dial("tcp", p.Addr())
	if err == nil {
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
	}
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection without a server: %v", err)
	}
}

func TestProxyPlansAreChecked(t *testing.T) {
	for network, plan := range map[string]string{"tcp": "reorder", "udp": ""} {
		if _, err := NewProxy(network, "127.0.0.1:1", parse(t, plan)); err == nil {
			t.Errorf("%s %q: no error", network, plan)
		}
	}
}
