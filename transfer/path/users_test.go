package path

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
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/internal/sys"
)

const dialEnv = "PENSTOCK_TEST_DIAL"

func TestMain(m *testing.M) {
	if to := os.Getenv(dialEnv); to != "" {
		os.Exit(dialChild(to))
	}
	os.Exit(m.Run())
}

// dialChild connects to a network and address, and keeps the connection until its input ends.
func dialChild(to string) int {
	network, address, _ := strings.Cut(to, " ")
	c, err := net.Dial(network, address)
	fmt.Println("dialed", err)
	io.Copy(io.Discard, os.Stdin)
	if err != nil {
		return 1
	}
	c.Close()
	return 0
}

// TestAcceptOwnUser has a process of another user connect first.
func TestAcceptOwnUser(t *testing.T) {
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": "@"} {
		t.Run(network, func(t *testing.T) {
			l, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			spec := proc.Self(t, dialEnv+"="+network+" "+l.Addr().String())
			spec.Input = true
			other := proc.Start(t, spec.As(t, 65533))
			if _, err := other.WaitLine(ctx, regexp.MustCompile("dialed <nil>")); err != nil {
				t.Fatal(err)
			}
			own, err := net.Dial(network, l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer own.Close()
			c, err := Users{}.Accept(l)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if uid, err := UserAt(c); err != nil || uid != os.Geteuid() {
				t.Errorf("the connection is of user %d, %v: expected %d", uid, err, os.Geteuid())
			}
		})
	}
}

func TestUsers(t *testing.T) {
	own, gone := os.Geteuid(), fmt.Errorf("test: %w", sys.ENOTCONN)
	for _, c := range []struct {
		users string
		uid   int
		err   error
		want  error
	}{
		{"", own, nil, nil},
		{"", own + 1, nil, ErrUser},
		{"", own, sys.ErrNoOwner, ErrUser},
		{"", own, gone, ErrDown},
		{fmt.Sprint(own + 2), own, nil, nil},
		{fmt.Sprintf("%d,%d", own+2, own+1), own + 1, nil, nil},
		{fmt.Sprint(own + 2), own + 1, nil, ErrUser},
		{fmt.Sprint(own + 2), own + 2, sys.ErrNoOwner, ErrUser},
		{"any", own + 1, nil, nil},
		{"any", 0, sys.ErrNoOwner, nil},
	} {
		u, err := ParseUsers(c.users)
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Permit(c.uid, c.err); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("users %q, user %d, %v: %v, expected %v", c.users, c.uid, c.err, err, c.want)
		}
	}
	for _, bad := range []string{"root", "-1", "1,", ",", "1, 2", "any,1", "4294967296"} {
		if u, err := ParseUsers(bad); err == nil {
			t.Errorf("%q is read as %v", bad, u)
		}
	}
}
