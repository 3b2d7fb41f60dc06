package path

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
)

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
