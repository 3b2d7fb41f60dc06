package transfer

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/pool"
	"github.com/penstock-io/penstock/transfer/sched"
)

// Retry says how often a job tries again, and how long it waits before. The zero value means the
// defaults.
//
// The n-th wait in a row is a random time between nothing and First×Factor^(n-1), at most Max
// ([pool.Backoff]). The first failure after progress is tried again at once if a session or a path
// was lost, since setting it up again takes its time anyway. Progress is a piece that was verified:
// it sets both limits back. So a job over a bad link goes on as long as it gets somewhere, and ends
// all the same, for it has a bounded number of pieces.
type Retry struct {
	First  time.Duration // 0: 50 ms
	Max    time.Duration // 0: 5 s
	Factor float64       // 0: 2
	// Attempts is how many may fail in a row without progress, dials that fail included; 0 means
	// 32, of which the waits add up to about a minute, in which a server can be restarted. A
	// negative number is no limit.
	Attempts int
	// Total is how long a job goes on after the last progress, or after the first session without
	// any was lost; 0 means 2 minutes, a negative time no limit. A session that lives may take as
	// long as it likes (see JobOptions.Stall).
	Total time.Duration
}

// The defaults of Retry.
const (
	DefaultAttempts   = 32
	DefaultRetryTotal = 2 * time.Minute
)

// complete fills what is 0 from other, then from the defaults, and checks the result.
func (r Retry) complete(other Retry) (Retry, error) {
	r.First, r.Max, r.Factor = cmp.Or(r.First, other.First), cmp.Or(r.Max, other.Max), cmp.Or(r.Factor, other.Factor)
	r.Attempts = cmp.Or(r.Attempts, other.Attempts, DefaultAttempts)
	r.Total = cmp.Or(r.Total, other.Total, DefaultRetryTotal)
	b := r.backoff()
	r.First, r.Max, r.Factor = b.First, b.Max, b.Factor
	if err := b.Validate(); err != nil {
		return r, fmt.Errorf("transfer: retry: %w", err)
	}
	return r, nil
}

func (r Retry) backoff() pool.Backoff {
	return pool.Backoff{First: r.First, Max: r.Max, Factor: r.Factor}.WithDefaults()
}

// Retriable reports whether what failed with err may succeed when it is tried again on a new
// session or path: a lost peer, a path that is down or could not be set up, damaged bytes, a busy
// peer, a revoked export (its name may stand for another one now), no answer in time, a node that
// is shutting down (it may be started again), and errors of the network. Not retriable are missing
// rights, bounds, unknown names, cancellation, a certificate that is not accepted, bad requests,
// and everything unknown.
func Retriable(err error) bool {
	// These say no, whatever else the error wraps. A lost peer wraps why it was lost.
	if err == nil || untrusted(err) || isOneOf(err, ErrClosed, ErrFailed, ErrPlaintext, ErrSecurity, ErrChanged,
		errNoWay, control.NotPermitted, control.Version, path.ErrRights, path.ErrCanceled) {
		return false
	}
	if isOneOf(err, ErrPeerLost, path.ErrDown, path.ErrIntegrity, path.ErrRevoked, path.ErrFull) {
		return true
	}
	if parts := joined(err); parts != nil { // why each path could not be taken: one that may work again is enough
		return slices.ContainsFunc(parts, Retriable)
	}
	var code control.Code
	if errors.As(err, &code) {
		switch code {
		case control.TooMany, control.TooManyBytes: // passes, unless it alone is beyond the limit
			var r *sched.Refusal
			return !errors.As(err, &r) || r.Asked <= r.Limit
		case control.Busy, control.Shutdown, control.Internal, control.Timeout, control.Integrity, control.Revoked,
			control.Down,
			control.Protocol:
			return true
		}
		return false
	}
	if isOneOf(err, context.Canceled, path.ErrBounds, path.ErrKey, path.ErrTooLarge, path.ErrUnreachable) {
		return false
	}
	if isOneOf(err, path.ErrProtocol, control.ErrDead, control.ErrBacklog, control.ErrPending, control.ErrUnread,
		control.ErrNotReady,
		context.DeadlineExceeded, os.ErrDeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe,
		net.ErrClosed) {
		return true
	}
	return isA[net.Error](err) // connection refused, reset, no route, timeouts
}

// joined returns the errors that err joins, or wraps together; nil if it wraps one at most.
func joined(err error) []error {
	for err != nil {
		if j, ok := err.(interface{ Unwrap() []error }); ok {
			return j.Unwrap()
		}
		err = errors.Unwrap(err)
	}
	return nil
}

// untrusted reports whether a TLS handshake failed because one side does not accept the other's
// certificate.
func untrusted(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		// how crypto/tls marks an alert of the other side
		return true
	}
	return isA[*tls.CertificateVerificationError](err) || isA[tls.AlertError](err) ||
		isA[x509.UnknownAuthorityError](err) ||
		isA[x509.HostnameError](err) || isA[x509.CertificateInvalidError](err)
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
