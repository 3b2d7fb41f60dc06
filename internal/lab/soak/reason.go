package soak

import (
	"context"
	"errors"
	"net"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

// reasons are the ways in which a transfer may fail here, the more specific first. Damaged bytes
// and broken protocols are not among them: nothing here damages anything.
var reasons = []struct {
	err  error
	name string
}{
	{path.ErrCanceled, "canceled"},
	{path.ErrRevoked, "revoked"},
	{path.ErrRights, "not permitted"},
	{identity.ErrDenied, "denied"},
	{sched.ErrTooMany, "too many"},
	{sched.ErrTooManyBytes, "too many bytes"},
	{sched.ErrTooLarge, "too large"},
	{path.ErrKey, "unknown key"},
	{transfer.ErrPeerLost, "peer lost"},
	{transfer.ErrClosed, "node closed"},
	{control.ErrNotReady, "peer lost"},
	{path.ErrDown, "path down"},
	{mem.ErrBudget, "over budget"},
	{context.DeadlineExceeded, "timeout"},
	{context.Canceled, "given up"},
	{fault.ErrInjected, "injected"},
}

var codes = map[control.Code]string{
	control.NotFound: "not found", control.OverBudget: "over budget", control.Busy: "busy",
	control.Canceled: "canceled",
	control.Shutdown: "shutting down", control.Timeout: "timeout", control.Revoked: "revoked",
	control.Down: "path down",
}

// reason names why something failed: "" for success, "?" for what must not happen.
func reason(err error) string {
	if err == nil {
		return ""
	}
	var c *control.Error
	if errors.As(err, &c) && c.Remote {
		return "peer: " + c.Code.String() // the peer itself reports why it failed there
	}
	if alert := (*net.OpError)(nil); errors.As(err, &alert) && alert.Op == "remote error" {
		// of TLS: the other side denies the certificate
		return "denied"
	}
	if errors.Is(err, job.ErrGaveUp) {
		return "gave up"
	}
	if errors.Is(err, transfer.ErrSecurity) { // of at least one path
		return "security floor"
	}
	if errors.Is(err, path.ErrUnavailable) { // for many reasons, such as a token that expired while a worker was frozen
		return "no path"
	}
	if errors.Is(err, path.ErrIntegrity) || errors.Is(err, path.ErrProtocol) {
		return "?"
	}
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	if c != nil {
		if name, ok := codes[c.Code]; ok {
			return name
		}
	}
	return "?"
}
