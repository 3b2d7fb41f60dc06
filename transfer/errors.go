package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// Errors of this package; match them with errors.Is. Errors of paths and of the peer
// (control.Error) come through as well. The package comment says which one comes when.
var (
	ErrChanged   = errors.New("transfer: the content behind the name changed")
	ErrClosed    = errors.New("transfer: closed by this side")
	ErrContext   = invariants.ErrContext // a nil context; builds with -tags invariants panic instead
	ErrFailed    = errors.New("transfer: node has failed, close it and open a new one")
	ErrPeerLost  = errors.New("transfer: peer is lost")
	ErrPlaintext = errors.New("no protection beyond this machine")
	ErrSecurity  = errors.New("below the security floor")
	ErrNoRights  = errors.New("no peer has rights there")
)

// own are errors that say something about what was asked for, or about its bytes. The loss of the
// session changes nothing about them.
var own = []error{ErrClosed, ErrContext, ErrFailed, ErrPlaintext, ErrSecurity, ErrChanged, path.ErrIntegrity,
	path.ErrRights, path.ErrBounds, path.ErrKey, path.ErrRevoked,
	path.ErrTooLarge, path.ErrCanceled}

// ofSession reports whether an error can come from the end of the session.
func ofSession(err error) bool {
	return err != nil && !isOneOf(err, own...)
}

func isOneOf(err error, of ...error) bool {
	return slices.ContainsFunc(of, func(e error) bool { return errors.Is(err, e) })
}

// outcome makes the error with which something ends that was asked of the peer out of what was seen
// of it: the rule of the package comment. canceled is why the caller ended it, if it did; named are
// the exports that it names.
func (p *Peer) outcome(err, canceled error, named ...path.Key) error {
	switch lost := p.Err(); {
	case err == nil:
		return nil
	case lost != nil && canceled == nil && errors.Is(err, context.Canceled): // by the loss, not by the caller
		return lost
	case lost != nil && !errors.Is(err, lost) && ofSession(err):
		err = fmt.Errorf("%w (%w)", lost, err)
	case errors.Is(err, path.ErrKey) && !errors.Is(err, path.ErrRevoked) && p.knew(named):
		err = fmt.Errorf("%w (%w)", path.ErrRevoked, err)
	}
	if canceled != nil && !errors.Is(err, canceled) {
		err = fmt.Errorf("%w: %w", err, canceled)
	}
	return err
}

// verdict is outcome for an error of a path. It first asks the peer for a sign of life: when a
// process dies, a path of it may be seen to go down before the session is. It ends with ctx.
func (p *Peer) verdict(ctx context.Context, err error, named ...path.Key) error {
	if ofSession(err) {
		p.request(ctx, &control.Delivered{}) // whatever the answer says
	}
	return p.outcome(err, nil, named...)
}

// endOf is why ctx ended: its error, and the cause that was given to it.
func endOf(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	switch {
	case cause == nil || errors.Is(err, cause):
		return err
	case errors.Is(cause, err):
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// CanceledBy is the error of a transfer or job that ctx ended: it wraps path.ErrCanceled, the error
// of ctx, and its cause.
func CanceledBy(ctx context.Context) error { return fmt.Errorf("%w: %w", path.ErrCanceled, endOf(ctx)) }

// remote is an export of the peer that this node knows.
type remote struct {
	path.Desc
	named bool // by the peer itself, so that it was there
}

// maxRevoked bounds what is remembered of exports that the peer has revoked.
const maxRevoked = 1 << 16

// forgetRemote ends the use of an export that the peer has revoked. The mutex is held.
func (p *Peer) forgetRemote(k path.Key) {
	if _, ok := p.remotes[k]; !ok {
		return
	}
	delete(p.remotes, k)
	p.changed()
	if len(p.revokedTo) >= maxRevoked {
		clear(p.revokedTo)
	}
	p.revokedTo[k.Index] = max(p.revokedTo[k.Index], k.Epoch)
}

// knew reports whether one of the keys was an export of the peer, as the peer itself has said.
func (p *Peer) knew(keys []path.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range keys {
		if p.remotes[k].named || p.wasRevoked(k) {
			return true
		}
	}
	return false
}

// wasRevoked reports whether the peer has revoked an export that this node knew: no key has an
// index and an epoch of another one, and epochs grow. The mutex is held.
func (p *Peer) wasRevoked(k path.Key) bool {
	epoch, ok := p.revokedTo[k.Index]
	_, known := p.remotes[k]
	return ok && !known && k.Epoch <= epoch
}
