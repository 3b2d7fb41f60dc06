package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/device"
	"github.com/penstock-io/penstock/bench/sections"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/host/tune"
	"github.com/penstock-io/penstock/internal/accel"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/share"
	root "github.com/penstock-io/penstock/system"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

// Exit statuses; exitStatuses has the words. They do not change their meaning: scripts rely on
// them.
const (
	exitOK           = 0
	exitFailure      = 1
	exitUsage        = 2
	exitNotFound     = 3
	exitNotPermitted = 4
	exitUnreachable  = 5
	exitDisk         = 6
	exitChanged      = 7
	exitExists       = 8
	exitBusy         = 9
	exitUnfit        = 10
	exitInterrupted  = 130
)

// exitStatuses are the statuses in words, for penstock help exit-status.
var exitStatuses = []struct {
	status int
	words  string
}{
	{exitOK, "success; also of a server that a signal ends"},
	{exitFailure, "a failure that has no status of its own: a configuration file with errors, say; of mirror, put " +
		"and rm also: files failed for different reasons, the peer's listing lacks names, or links and devices were " +
		"left out"},
	{exitUsage, "the command line cannot be understood"},
	{exitNotFound, "there is nothing of that name, at the peer or here"},
	{exitNotPermitted, "not permitted: rights, certificates, or an address that needs an identity"},
	{exitUnreachable, "the peer cannot be reached, was lost and did not come back in time, or did not answer in time"},
	{exitDisk, "this machine's disk: full, no permission, not a plain file, or in use by another penstock"},
	{exitChanged, "the content changed while it was moved, or is not what was expected"},
	{exitExists, "something is there already and was not to be overwritten"},
	{exitBusy, "the peer has no room or too much to do: try later"},
	{exitUnfit, "this machine lacks what was asked for: doctor found so, or what a file (run, config check --here, " +
		"bench stream) or a flag needs is not here: a device, a core, an engine, an accelerator, a tool"},
	{exitInterrupted, "interrupted by Ctrl-C or SIGTERM"},
}

// exitRules say which errors mean which status, the first match wins. An error with several causes
// (of a mirror, say) is looked at by errors.Is, which finds any of them.
var exitRules = []struct {
	status int
	match  func(error) bool
}{
	{exitUsage, as[*usageError]},
	{exitUsage, is(bench.ErrOptions, device.ErrOptions, config.ErrGenerate)},
	{exitInterrupted, is(errInterrupted, context.Canceled)},
	{exitUnfit, is(errUnfit, root.ErrMissing, sections.ErrMissing, gpu.ErrUnavailable, accel.ErrDevice)},
	{exitChanged, is(share.ErrChanged, share.ErrDigest, control.Integrity, path.ErrIntegrity)},
	{exitExists, is(share.ErrExists, fs.ErrExist)},
	// A refused certificate comes as an error of the connection, so it is looked for first.
	{exitNotPermitted, refused},
	{exitNotPermitted, as[*tls.CertificateVerificationError]},
	{exitNotPermitted, as[x509.UnknownAuthorityError]},
	{exitNotPermitted, as[x509.HostnameError]},
	{exitNotPermitted, as[x509.CertificateInvalidError]},
	{exitNotPermitted, is(transfer.ErrPlaintext, transfer.ErrSecurity, path.ErrRights, control.NotPermitted)},
	{exitNotPermitted, as[tls.RecordHeaderError]},
	{exitNotPermitted, is(identity.ErrWrongPeer, identity.ErrNoCertificate, identity.ErrUntrusted, identity.ErrExpired,
		identity.ErrNotYetValid,
		identity.ErrDenied, identity.ErrMissing, identity.ErrPermissions, identity.ErrCredentials,
		identity.ErrNotConfirmed)},
	{exitBusy, is(control.Busy, control.OverBudget)},
	{exitNotPermitted, is(share.ErrRefused)},
	{exitDisk, is(share.ErrNoSpace, share.ErrUnsafe, share.ErrSize, share.ErrBusy, sys.ENOSPC, sys.EDQUOT, sys.EROFS, sys.EFBIG)},
	{exitUnreachable, func(err error) bool { // but not an address of one's own that cannot be listened on
		e, ok := errors.AsType[*net.OpError](err)
		return ok && e.Op != "listen"
	}},
	{exitUnreachable, as[*net.DNSError]},
	{exitUnreachable, is(transfer.ErrPeerLost, path.ErrDown, control.Down, control.Shutdown, control.Timeout, context.DeadlineExceeded)},
	{exitUnfit, is(path.ErrUnavailable)},
	{exitNotPermitted, is(tune.ErrRights)},
	{exitNotFound, is(tune.ErrInterface, tune.ErrNothing)},
	{exitNotFound, is(control.NotFound, fs.ErrNotExist)},
	{exitDisk, is(fs.ErrPermission)},
}

// refused reports whether the other side ended a TLS handshake with an alert, which crypto/tls
// marks so.
func refused(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "remote error"
}

// errInterrupted is the cause of a command that a signal ended.
var errInterrupted = errors.New("interrupted")

// exitStatus is the status of a command that ended with err.
func exitStatus(err error) int {
	if err == nil {
		return exitOK
	}
	for _, r := range exitRules {
		if r.match(err) {
			return r.status
		}
	}
	return exitFailure
}

func is(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
}

func as[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
