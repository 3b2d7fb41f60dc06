package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

func TestExitStatus(t *testing.T) {
	partial := func(err error) error { return &share.PartialError{Name: "x", Partial: "x.partial", Err: err} }
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{errors.New("whatever"), exitFailure},
		{&usageError{errors.New("x")}, exitUsage},
		{&control.Error{Code: control.NotFound, Remote: true}, exitNotFound},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}, exitNotFound},
		{errNothing, exitNotFound},
		{&control.Error{Code: control.NotPermitted, Remote: true}, exitNotPermitted},
		{path.ErrRights, exitNotPermitted},
		{fmt.Errorf("x: %w", share.ErrRefused), exitNotPermitted},
		{transfer.ErrPlaintext, exitNotPermitted},
		{transfer.ErrSecurity, exitNotPermitted},
		{fmt.Errorf("TLS handshake: %w", identity.ErrWrongPeer), exitNotPermitted},
		{fmt.Errorf("x: %w", tls.RecordHeaderError{Msg: "x"}), exitNotPermitted},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, exitNotPermitted},
		{&tls.CertificateVerificationError{Err: errors.New("x")}, exitNotPermitted},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", sys.ECONNREFUSED)}, exitUnreachable},
		{&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", sys.ENOENT)}, exitUnreachable},
		{&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", sys.EACCES)}, exitUnreachable},
		{&net.OpError{Op: "listen", Err: errors.New("address already in use")}, exitFailure},
		{partial(fmt.Errorf("x: %w", transfer.ErrPeerLost)), exitUnreachable},
		{context.DeadlineExceeded, exitUnreachable},
		{partial(share.ErrNoSpace), exitDisk},
		{share.ErrUnsafe, exitDisk},
		{share.ErrBusy, exitDisk},
		{&fs.PathError{Op: "open", Path: "x", Err: sys.ENOSPC}, exitDisk},
		{&fs.PathError{Op: "open", Path: "x", Err: sys.EACCES}, exitDisk},
		{&fs.PathError{Op: "open", Path: "x", Err: sys.EROFS}, exitDisk},
		{share.ErrChanged, exitChanged},
		{fmt.Errorf("x: %w", share.ErrDigest), exitChanged},
		{&control.Error{Code: control.Integrity}, exitChanged},
		{fmt.Errorf("x: %w", share.ErrExists), exitExists},
		{&control.Error{Code: control.Busy, Remote: true}, exitBusy},
		{&control.Error{Code: control.OverBudget, Remote: true}, exitBusy},
		{farDisk(share.ErrNoSpace), exitBusy},
		{farDisk(share.ErrBusy), exitBusy},
		{farDisk(share.ErrExists), exitExists},
		{context.Canceled, exitInterrupted},
		{partial(fmt.Errorf("%w: %w", errInterrupted, transfer.ErrPeerLost)), exitInterrupted},
		{partially(partial(share.ErrNoSpace)), exitDisk},
	} {
		if got := exitStatus(c.err); got != c.want {
			t.Errorf("%v: %d, expected %d", c.err, got, c.want)
		}
	}
}

// Each status has words, and they are what help and docs/cli.md print.
func TestExitStatusesAreDocumented(t *testing.T) {
	words := map[int]bool{}
	for _, x := range exitStatuses {
		words[x.status] = true
	}
	for _, r := range exitRules {
		if !words[r.status] {
			t.Errorf("status %d has no words", r.status)
		}
	}
	docs, err := os.ReadFile("../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	plain := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	out, _ := run(t, 0, "", "help", "exit-status")
	fits(t, "help exit-status", out)
	for _, x := range exitStatuses {
		line := plain(strconv.Itoa(x.status) + " " + x.words)
		if !strings.Contains(plain(out), line) || !strings.Contains(plain(string(docs)), line) {
			t.Errorf("%q is not in both the help and docs/cli.md", line)
		}
	}
}

// An interrupted command says so whatever its error is, and one that ended well has ended well.
func TestInterruption(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if err := errors.New("x"); interruption(ctx, err) != err {
		t.Error("nothing was interrupted")
	}
	cancel()
	if err := interruption(ctx, nil); err != nil {
		t.Error(err)
	}
	wrapped := fmt.Errorf("share: list: %w", context.Canceled)
	for _, err := range []error{context.Canceled, wrapped} {
		if err := interruption(ctx, err); err != errInterrupted {
			t.Error(err)
		}
	}
	if err := interruption(ctx, &worded{"x", wrapped}); err.Error() != "interrupted: x" {
		t.Error(err)
	}
	err := interruption(ctx, errors.New("x"))
	if !errors.Is(err, errInterrupted) || err.Error() != "interrupted: x" || interruption(ctx, err) != err {
		t.Error(err)
	}
}
