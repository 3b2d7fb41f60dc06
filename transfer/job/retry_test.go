package job

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/pool"
	"github.com/penstock-io/penstock/transfer/sched"
)

// Every class of error that a job can meet, and whether it is tried again.
func TestRetriable(t *testing.T) {
	code := func(c control.Code) error {
		return fmt.Errorf("transfer: lookup: %w", &control.Error{Code: c, Remote: true})
	}
	lost := func(cause error) error { return fmt.Errorf("%w: peer: %w", transfer.ErrPeerLost, cause) }
	noPath := func(causes ...error) error {
		return fmt.Errorf("transfer: no path: %w", errors.Join(append([]error{path.ErrUnavailable}, causes...)...))
	}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		// The session or the path is gone; another one may work.
		{transfer.ErrPeerLost, true},
		{lost(io.EOF), true},
		{lost(control.ErrDead), true},
		{lost(control.Shutdown), true}, // it may be started again
		{lost(control.Protocol), true}, // a damaged byte looks like that
		{lost(control.NotPermitted), false},
		{lost(control.Version), false},
		{path.ErrDown, true},
		{fmt.Errorf("%w; and going on by another path failed: %w", path.ErrDown, noPath()), true},
		{noPath(errors.New("excluded")), false},
		{noPath(errors.New("excluded"), fmt.Errorf("tcp: %w", refused)), true},
		{noPath(path.ErrUnreachable, path.ErrRights), false},
		{noPath(path.ErrUnreachable, context.DeadlineExceeded), true},
		{path.ErrUnavailable, false}, // missing on this machine
		// Something of it may go better next time.
		{path.ErrIntegrity, true},
		{path.ErrRevoked, true},
		{path.ErrFull, true},
		{path.ErrProtocol, true},
		{errStalled, true},
		{context.DeadlineExceeded, true},
		{os.ErrDeadlineExceeded, true},
		{control.ErrDead, true}, {control.ErrBacklog, true}, {control.ErrPending, true}, {control.ErrUnread, true}, {control.ErrNotReady, true},
		{refused, true}, {net.ErrClosed, true}, {io.EOF, true}, {io.ErrUnexpectedEOF, true},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, true}, // names come and go
		// It would be refused again.
		{path.ErrRights, false},
		{path.ErrBounds, false},
		{path.ErrKey, false},
		{path.ErrTooLarge, false},
		{path.ErrUnreachable, false},
		{path.ErrCanceled, false},
		{context.Canceled, false},
		{transfer.ErrClosed, false},
		{transfer.ErrChanged, false},
		{transfer.ErrPlaintext, false},
		{mem.ErrBounds, false}, {mem.ErrClosed, false},
		{errors.New("unknown"), false},
		// Trust does not come by asking again.
		{&tls.CertificateVerificationError{Err: errors.New("bad")}, false},
		{fmt.Errorf("remote: %w", tls.AlertError(42)), false},
		{lost(&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}), false},
		{x509.UnknownAuthorityError{}, false},
		{lost(x509.HostnameError{Certificate: &x509.Certificate{}}), false},
		// What the peer says.
		{code(control.NotFound), false},
		{code(control.NotPermitted), false},
		{code(control.OverBudget), false},
		{code(control.Busy), true},
		{code(control.TooMany), true},
		{code(control.TooManyBytes), true},
		{&sched.Refusal{Code: control.TooMany, Limit: 2, Used: 2, Asked: 1}, true},
		{&sched.Refusal{Code: control.TooManyBytes, Limit: 10, Used: 8, Asked: 3}, true},
		{&sched.Refusal{Code: control.TooManyBytes, Limit: 10, Asked: 11}, false},
		{&sched.Refusal{Code: control.TooLarge, Limit: 10, Asked: 11}, false},
		{code(control.BadRequest), false},
		{code(control.Unsupported), false},
		{code(control.Canceled), false},
		{code(control.Shutdown), true},
		{code(control.Version), false},
		{code(control.Protocol), true},
		{code(control.Internal), true},
		{code(control.Timeout), true},
		{code(control.Integrity), true},
		{code(control.Revoked), true},
		{code(control.Down), true},
		{code(control.Exists), false},
		{code(control.Code(999)), false}, // of a later version
		// Dials.
		{&pool.DialError{Failed: 1, Last: refused}, true},
		{&pool.DialError{Failed: 1, Last: path.ErrRights}, false},
	} {
		if got := transfer.Retriable(c.err); got != c.want {
			t.Errorf("%v: retriable %v, expected %v", c.err, got, c.want)
		}
	}
}

func TestRetryOptions(t *testing.T) {
	r, err := Retry{}.complete(Retry{})
	if err != nil || r != (Retry{First: pool.DefaultFirst, Max: pool.DefaultMax, Factor: pool.DefaultFactor,
		Attempts: DefaultAttempts, Total: DefaultRetryTotal}) {
		t.Errorf("defaults: %+v, %v", r, err)
	}
	link := Retry{First: time.Second, Max: 3 * time.Second, Factor: 3, Attempts: 4, Total: time.Hour}
	if r, err := (Retry{}).complete(link); err != nil || r != link {
		t.Errorf("of the link: %+v, %v", r, err)
	}
	own := Retry{First: 2 * time.Second, Max: 4 * time.Second, Factor: 1, Attempts: -1, Total: -1}
	if r, err := own.complete(link); err != nil || r != own {
		t.Errorf("of the job: %+v, %v", r, err)
	}
	for _, bad := range []Retry{{First: -1}, {First: 2, Max: 1}, {Factor: 0.5}} {
		if _, err := bad.complete(Retry{}); !errors.Is(err, pool.ErrOptions) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
