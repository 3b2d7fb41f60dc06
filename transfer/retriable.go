package transfer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"slices"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

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
	if isA[*net.AddrError](err) || isOneOf(err, context.Canceled, path.ErrBounds, path.ErrKey, path.ErrTooLarge,
		path.ErrUnreachable) {
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
