package transfer

import (
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

	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/pool"
	"github.com/penstock-io/penstock/transfer/sched"
)

// Retry says how often a job tries again, and how long it waits before. The zero value means the defaults.
//
// The n-th wait in a row is a random time between nothing and First×Factor^(n-1), at most Max ([pool.Backoff]). The first failure
// after progress is tried again at once if a session or a path was lost, since setting it up again takes its time anyway.
// Progress is a piece that was verified: it sets both limits back. So a job over a bad link goes on as long as it gets
// somewhere, and ends all the same, for it has a bounded number of pieces.
type Retry struct {
	First  time.Duration // 0: 50 ms
	Max    time.Duration // 0: 5 s
	Factor float64       // 0: 2
	// Attempts is how many may fail in a row without progress, dials that fail included; 0 means 32, of which the waits add up
	// to about a minute, in which a server can be restarted. A negative number is no limit.
	Attempts int
	// Total is how long a job goes on after the last progress, or after the first session without any was lost; 0 means 2 minutes,
	// a negative time no limit. A session that lives may take as long as it likes (see JobOptions.Stall).
	Total time.Duration
}

// The defaults of Retry.
const (
	DefaultAttempts   = 32
	DefaultRetryTotal = 2 * time.Minute
)

// complete fills what is 0 from other, then from the defaults, and checks the result.
func (r Retry) complete(other Retry) (Retry, error) {
	if r.First == 0 {
		r.First = other.First
	}
	if r.Max == 0 {
		r.Max = other.Max
	}
	if r.Factor == 0 {
		r.Factor = other.Factor
	}
	if r.Attempts == 0 {
		r.Attempts = other.Attempts
	}
	if r.Attempts == 0 {
		r.Attempts = DefaultAttempts
	}
	if r.Total == 0 {
		r.Total = other.Total
	}
	if r.Total == 0 {
		r.Total = DefaultRetryTotal
	}
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

// Retriable reports whether what failed with err may succeed when it is tried again on a new session or path: a lost peer, a
// path that is down or could not be set up, damaged bytes, a busy peer, a revoked export (its name may stand for another one
// now), no answer in time, a node that is shutting down (it may be started again), and errors of the network. Not retriable are
// missing rights, bounds, unknown names, cancellation, a certificate that is not accepted, bad requests, and everything unknown.
func Retriable(err error) bool {
	if err == nil {
		return false
	}
	// These say no, whatever else the error wraps. A lost peer wraps why it was lost.
	for _, never := range []error{ErrClosed, ErrFailed, ErrPlaintext, ErrSecurity, ErrChanged, errNoWay, control.NotPermitted, control.Version, path.ErrRights, path.ErrCanceled} {
		if errors.Is(err, never) {
			return false
		}
	}
	if untrusted(err) {
		return false
	}
	for _, again := range []error{ErrPeerLost, path.ErrDown, path.ErrIntegrity, path.ErrRevoked, path.ErrFull} {
		if errors.Is(err, again) {
			return true
		}
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
		case control.Busy, control.Shutdown, control.Internal, control.Timeout, control.Integrity, control.Revoked, control.Down,
			control.Protocol:
			return true
		}
		return false
	}
	for _, never := range []error{context.Canceled, path.ErrBounds, path.ErrKey, path.ErrTooLarge, path.ErrUnreachable} {
		if errors.Is(err, never) {
			return false
		}
	}
	for _, again := range []error{path.ErrProtocol, control.ErrDead, control.ErrBacklog, control.ErrPending, control.ErrUnread, control.ErrNotReady,
		context.DeadlineExceeded, os.ErrDeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed} {
		if errors.Is(err, again) {
			return true
		}
	}
	var ne net.Error // connection refused, reset, no route, timeouts
	return errors.As(err, &ne)
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

// untrusted reports whether a TLS handshake failed because one side does not accept the other's certificate.
func untrusted(err error) bool {
	var verify *tls.CertificateVerificationError
	var alert tls.AlertError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" { // how crypto/tls marks an alert of the other side
		return true
	}
	return errors.As(err, &verify) || errors.As(err, &alert) || errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &invalid)
}
