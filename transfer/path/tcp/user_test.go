package tcp

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

const (
	otherUser = 65533
	userEnv   = "PENSTOCK_TCP_USER"
)

// userMain is a process of another user: "dial ADDR TOKEN" dials a path in the clear, "listen"
// listens and says how many bytes come.
func userMain(role string) {
	f := strings.Fields(role)
	if f[0] == "listen" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		fmt.Println("listens on", l.Addr())
		io.Copy(io.Discard, os.Stdin)
		c, err := l.Accept()
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		b, _ := io.ReadAll(c)
		fmt.Printf("got %d bytes\n", len(b))
		return
	}
	var token setup.Token
	hex.Decode(token[:], []byte(f[2]))
	_, err := New(Options{}).Dial(context.Background(), setup.Offer{Addr: f[1], Token: token},
		setup.Config{Exports: new(path.Exports), Users: path.AnyUser()})
	fmt.Printf("dialed: %v, ErrUser %v\n", err, errors.Is(err, path.ErrUser))
	io.Copy(io.Discard, os.Stdin)
}

func startUser(t *testing.T, role string) *proc.Process {
	t.Helper()
	spec := proc.Self(t, userEnv+"="+role)
	spec.Input = true
	return proc.Start(t, spec.As(t, otherUser))
}

func said(t *testing.T, p *proc.Process, words string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, err := p.WaitLine(ctx, regexp.MustCompile(words+" (.*)"))
	if err != nil {
		t.Fatal(err)
	}
	return m[1]
}

// TestOtherUserKnowsToken has a process of another user show the token of a path in the clear. It
// is refused, and the peer that the path is for still gets it.
func TestOtherUserKnowsToken(t *testing.T) {
	if role := os.Getenv(userEnv); role != "" {
		userMain(role)
		return
	}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := New(Options{Addr: addr}).Listen()
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		tok := newToken()
		ca, cb := configs()
		type result struct {
			p   path.Path
			err error
		}
		accepted := make(chan result, 1)
		go func() {
			p, err := l.Accept(t.Context(), tok, cb)
			accepted <- result{p, err}
		}()
		if got := said(t, startUser(t, fmt.Sprintf("dial %s %x", l.Addr(), tok[:])), "dialed:"); !strings.HasSuffix(got,
			"ErrUser true") {
			t.Errorf("the other user's dial: %s; expected ErrUser", got)
		}
		p, err := New(Options{}).Dial(t.Context(), setup.Offer{Addr: l.Addr(), Token: tok}, ca)
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		if r := <-accepted; r.err != nil {
			t.Error(r.err)
		} else {
			r.p.Close()
		}

		// Who is let in gets in.
		tok = newToken()
		cb.Users = path.TheseUsers(otherUser)
		go func() {
			p, err := l.Accept(t.Context(), tok, cb)
			accepted <- result{p, err}
		}()
		if got := said(t, startUser(t, fmt.Sprintf("dial %s %x", l.Addr(), tok[:])), "dialed:"); !strings.HasPrefix(got,
			"<nil>") {
			t.Errorf("the dial of a user who is let in: %s", got)
		}
		if r := <-accepted; r.err != nil {
			t.Error(r.err)
		} else {
			r.p.Close()
		}
	}
}

// TestOtherUserListens has a process of another user listen where a path is dialed: it is not shown
// the token.
func TestOtherUserListens(t *testing.T) {
	if role := os.Getenv(userEnv); role != "" {
		userMain(role)
		return
	}
	u := startUser(t, "listen")
	ca, _ := configs()
	_, err := New(Options{}).Dial(t.Context(), setup.Offer{Addr: said(t, u, "listens on"), Token: newToken()}, ca)
	if !errors.Is(err, path.ErrUser) {
		t.Errorf("%v, expected ErrUser", err)
	}
	u.Input().Close()
	if got := said(t, u, "got"); got != "0 bytes" {
		t.Errorf("the other user got %s", got)
	}
}
