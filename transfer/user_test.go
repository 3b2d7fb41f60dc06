package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// otherUser is a user who is neither root nor the one that stands for users without a number.
const otherUser = 65533

const userRole = "user "

// runUserChild is a process of another user. It prints one line and ends with its standard input.
//
//	dial ADDR      has a node dial, and prints "refused: ERROR" or "connected to USERS", the peer's principal
//	from IP PORT   connects from an address to 127.0.0.1:PORT and prints how many bytes it is sent before the end
//	serve ADDR     has a node listen that accepts every user, and prints its address
//	strict ADDR    has a node listen, and prints its address
//	greedy ADDR    opens hundreds of connections that say nothing, and all sessions it can get, and prints how many that are
//	squat          listens on 127.0.0.1 and prints the address; when its input ends it accepts a connection and prints how many bytes come
func runUserChild(role string) error {
	c := context.Background()
	f := strings.Fields(role)
	o := Options{Anonymous: identity.All, Paths: []setup.Driver{tcp.New(tcp.Options{})}}
	switch f[0] {
	case "dial":
		o.AllowUID = path.AnyUser()
		n, err := Open(c, o)
		if err != nil {
			return err
		}
		defer n.Close()
		if p, err := n.Dial(c, f[1]); err != nil {
			fmt.Println("refused:", err)
		} else {
			fmt.Println("connected to", p.principal())
		}
	case "from":
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(f[1])}}
		conn, err := d.Dial("tcp", "127.0.0.1:"+f[2])
		if err != nil {
			return err
		}
		b, err := io.ReadAll(conn)
		fmt.Printf("sent %d bytes, %v\n", len(b), err)
	case "greedy":
		for range 2 * setup.MaxPending() {
			conn, err := net.Dial("tcp", strings.TrimPrefix(f[1], "tcp://"))
			if err != nil {
				return err
			}
			defer conn.Close()
		}
		o.AllowUID = path.AnyUser()
		n, err := Open(c, o)
		if err != nil {
			return err
		}
		defer n.Close()
		for lost := 0; err == nil || errors.Is(err, ErrPeerLost) && lost < 20; {
			// behind its own silent connections it may wait too long
			if _, err = n.Dial(c, f[1]); err != nil {
				lost++
			}
		}
		fmt.Println("sessions", len(n.Peers()), err)
	case "serve", "strict":
		o.Listen = f[1:]
		if f[0] == "serve" {
			o.AllowUID = path.AnyUser()
		}
		n, err := Open(c, o)
		if err != nil {
			return err
		}
		defer n.Close()
		fmt.Println("listens on", n.Addrs()[0])
	case "squat":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		fmt.Printf("listens on tcp://%v\n", l.Addr())
		io.Copy(io.Discard, os.Stdin)
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		b, _ := io.ReadAll(conn)
		fmt.Printf("got %d bytes\n", len(b))
		return nil
	}
	io.Copy(io.Discard, os.Stdin)
	return nil
}

// startUser starts such a process, shaped as a user, and returns what its line has behind words.
func startUser(t *testing.T, role string, shape func(proc.Spec) proc.Spec, words string) (*proc.Process, string) {
	t.Helper()
	spec := proc.Self(t, childEnv+"="+userRole+role)
	spec.Input = true
	p := proc.Start(t, shape(spec))
	m, err := p.WaitLine(ctx(t), regexp.MustCompile(words+" (.*)"))
	if err != nil {
		t.Fatal(err)
	}
	return p, m[1]
}

func asOther(t *testing.T) func(proc.Spec) proc.Spec {
	return func(s proc.Spec) proc.Spec { return s.As(t, otherUser) }
}

func abstract(name string) string { return fmt.Sprintf("unix://@penstock-%s-%d", name, os.Getpid()) }

// dialable is an address that leads to a listener on all addresses of this machine.
func dialable(addr string) string { return strings.Replace(addr, "[::]", "127.0.0.1", 1) }

// TestOtherUserDials has processes of other users dial a node of this user: it accepts only users
// that its options let in, on any socket of this machine, whatever Insecure permits beyond it.
func TestOtherUserDials(t *testing.T) {
	root := func(t *testing.T) func(proc.Spec) proc.Spec {
		return func(s proc.Spec) proc.Spec { return s.OwnUsers(t, otherUser) }
	}
	for _, c := range []struct {
		name   string
		listen string
		shape  func(*testing.T) func(proc.Spec) proc.Spec
		o      Options
		in     bool
	}{
		{"Unix", abstract("a"), asOther, Options{}, false},
		{"UnixInsecure", abstract("b"), asOther, Options{Insecure: true}, false},
		{"UnixRootElsewhere", abstract("c"), root, Options{}, false},
		{"UnixAllowed", abstract("d"), asOther, Options{AllowUID: path.TheseUsers(1, otherUser)}, true},
		{"IPv4", loopback, asOther, Options{}, false},
		{"IPv4RootElsewhere", loopback, root, Options{}, false},
		{"IPv4AnotherAllowed", loopback, asOther, Options{AllowUID: path.TheseUsers(65532, 65534)}, false},
		{"IPv4Allowed", loopback, asOther, Options{AllowUID: path.TheseUsers(1, otherUser)}, true},
		{"IPv4Any", loopback, asOther, Options{AllowUID: path.AnyUser()}, true},
		{"IPv6", "tcp://[::1]:0", asOther, Options{}, false},
		{"Mapped", "tcp://[::]:0", asOther, Options{Insecure: true}, false},
		{"MappedAllowed", "tcp://[::]:0", asOther, Options{Insecure: true, AllowUID: path.AnyUser()}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			peers := make(chan *Peer, 1)
			c.o.Listen, c.o.OnPeer = []string{c.listen}, func(p *Peer) { peers <- p }
			n := open(t, c.o)
			_, got := startUser(t, "dial "+dialable(n.Addrs()[0]), c.shape(t), "(?:refused:|connected)")
			if in := strings.HasPrefix(got, "to uid:0"); in != c.in {
				t.Fatalf("the dialer says %q, expected that it gets in: %v", got, c.in)
			}
			if !c.in {
				if len(n.Peers()) != 0 || !strings.Contains(got, "--allow-uid") {
					t.Errorf("%d peers; the dialer says %q, expected the flag that lets it in", len(n.Peers()), got)
				}
				return
			}
			if p := <-peers; p.principal() != fmt.Sprint("uid:", otherUser) {
				t.Errorf("the peer is %s", p.principal())
			}
		})
	}
}

// TestOtherUserDialsFromElsewhere has another user reach a loopback address from an address that is
// none.
func TestOtherUserDialsFromElsewhere(t *testing.T) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	from := ""
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil && !ip.IsLoopback() {
			from = ip.String()
		}
	}
	if from == "" {
		testenv.Missing(t, "an IPv4 address that is not loopback", fmt.Errorf("this machine has %v", addrs))
	}
	n := open(t, Options{Listen: []string{loopback}})
	_, port, _ := strings.Cut(strings.TrimPrefix(n.Addrs()[0], "tcp://"), ":")
	refused := n.Events(ctx(t), 16)
	startUser(t, "from "+from+" "+port, asOther(t), "sent")
	if e := <-refused.C(); e.Kind != observe.EventRefused ||
		!strings.Contains(e.Reason, fmt.Sprint("user ", otherUser)) {
		t.Errorf("%+v, expected that user %d is refused", e, otherUser)
	}
}

// TestOtherUserListens has processes of another user listen where this user dials.
func TestOtherUserListens(t *testing.T) {
	n := open(t, Options{})
	friend := open(t, Options{AllowUID: path.TheseUsers(otherUser)})
	for _, addr := range []string{abstract("listens"), loopback, "tcp://[::1]:0"} {
		_, to := startUser(t, "serve "+addr, asOther(t), "listens on")
		if _, err := n.Dial(ctx(t), to); !errors.Is(err, path.ErrUser) || !errors.Is(err, control.NotPermitted) ||
			Retriable(err) || !strings.Contains(err.Error(), "--allow-uid") {
			t.Errorf("%s: %v, expected ErrUser with the flag that permits it, and no retry", addr, err)
		}
		if p, err := friend.Dial(ctx(t), to); err != nil {
			t.Errorf("%s: %v, although the user is let in", addr, err)
		} else {
			p.Close()
		}
	}
}

// TestSquatter has another user listen, and accept only after the dialer has made up its mind: the
// dialer tells it nothing.
func TestSquatter(t *testing.T) {
	p, to := startUser(t, "squat", asOther(t), "listens on")
	if _, err := open(t, Options{}).Dial(ctx(t), to); !errors.Is(err, path.ErrUser) {
		t.Errorf("%v, expected ErrUser", err)
	}
	p.Input().Close()
	if m, err := p.WaitLine(ctx(t), regexp.MustCompile("got (.*)")); err != nil || m[1] != "0 bytes" {
		t.Errorf("the squatter got %v, %v", m, err)
	}
}

// TestUsersWithoutNumbers has a node in a user namespace that has no numbers, so that all users
// look alike there, its own included.
func TestUsersWithoutNumbers(t *testing.T) {
	for _, addr := range []string{abstract("numbers"), loopback} {
		_, to := startUser(t, "strict "+addr, func(s proc.Spec) proc.Spec { return s.OwnUsers(t, -1) }, "listens on")
		_, got := startUser(t, "dial "+to, asOther(t), "(?:refused:|connected)")
		if !strings.Contains(got, "--allow-uid") {
			t.Errorf("%s: the dialer says %q, expected a refusal", addr, got)
		}
	}
}
