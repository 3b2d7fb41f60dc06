package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/penstock-io/penstock/internal/budget"
	"github.com/penstock-io/penstock/transfer/path"
)

// Code says why something was refused or ended: in Goodbye, Response and Complete. A Code is an
// error itself, so that errors.Is(err, control.NotFound) finds it in an [Error]. Codes of later
// versions are kept as they are.
type Code uint16

const (
	OK           Code = iota // no error
	NotFound                 // no export, path or transfer of that name or id
	NotPermitted             // rights, security floor, or an unknown peer
	OverBudget               // memory, exports or transfers beyond what the node was given
	Busy                     // too much at once: try later
	BadRequest               // malformed or contradictory
	Unsupported              // unknown method, path or feature
	Canceled                 // by one of the two sides
	Shutdown                 // the node is going away in order
	Version                  // no common version of the protocol
	Protocol                 // the other side broke the protocol
	Internal                 // a fault of this node
	Timeout                  // no answer in time
	Integrity                // bytes were damaged on the way
	Revoked                  // the export was revoked
	Down                     // the path or the session went down first
	Exists                   // the name or id is taken
	TooMany                  // transfers at once, beyond a limit: try later
	TooManyBytes             // bytes of transfers at once, beyond a limit: try later
	TooLarge                 // a single transfer is larger than is taken
	DType                    // a tensor of a type that is not taken
	OverRate                 // what was asked for cannot be held to a rate
)

var codeNames = [...]string{"ok", "not found", "not permitted", "over budget", "busy", "bad request", "unsupported",
	"canceled", "shutdown", "version", "protocol violation", "internal error", "timeout", "integrity check failed",
	"revoked", "down", "exists", "too many transfers", "too many bytes", "transfer too large",
	"type of tensor not taken",
	"beyond the rate"}

func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint16(c))
}

func (c Code) Error() string { return c.String() }

// Error is a code with a text for people. It matches its code with errors.Is.
type Error struct {
	Code   Code
	Text   string
	Remote bool // the peer said it
}

func (e *Error) Error() string {
	s := e.Code.String()
	if e.Text != "" {
		s += ": " + e.Text
	}
	if e.Remote {
		s = "peer: " + s
	}
	return s
}

// Unwrap makes the error match its code.
func (e *Error) Unwrap() error { return e.Code }

// Is makes a code, and with it each error that wraps one, also match the error of package path or
// context that means the same: so a transfer's error matches alike on both sides.
func (c Code) Is(target error) bool {
	for _, s := range same {
		if s.code == c && s.err == target {
			return true
		}
	}
	return false
}

// same pairs codes with the errors that other packages use for the same thing. The first match
// counts.
var same = []struct {
	err  error
	code Code
}{
	{path.ErrCanceled, Canceled},
	{path.ErrRevoked, Revoked},
	{path.ErrKey, NotFound},
	{path.ErrRights, NotPermitted},
	{path.ErrIntegrity, Integrity},
	{path.ErrProtocol, Protocol},
	{path.ErrDown, Down},
	{path.ErrBounds, BadRequest},
	{path.ErrTooLarge, BadRequest},
	{path.ErrUnreachable, Unsupported},
	{path.ErrUnavailable, Unsupported},
	{path.ErrFull, Busy},
	{budget.ErrOver, Busy},
	{context.Canceled, Canceled},
	{context.DeadlineExceeded, Timeout},
}

// Errorf makes an error of this node.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// AsError gives the code and text under which the peer gets err: the code of an *Error, a Code or a
// known error inside it (those of package path, context.Canceled, context.DeadlineExceeded),
// otherwise Internal. It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok {
		return e
	}
	var c Code
	if !errors.As(err, &c) || c == OK {
		c = Internal
		for _, s := range same {
			if errors.Is(err, s.err) {
				c = s.code
				break
			}
		}
	}
	return &Error{Code: c, Text: strings.TrimPrefix(err.Error(), c.String()+": ")}
}

// Errors of a session that concern its caller; match them with errors.Is.
var (
	ErrDead     = errors.New("peer is silent: taken for dead")         // nothing received for Session.Silence
	ErrBacklog  = errors.New("too many bytes wait to be written")      // nothing was queued; write Outgoing first
	ErrPending  = errors.New("too many requests wait for an answer")   // nothing was queued
	ErrUnread   = errors.New("too many messages wait to be taken")     // nothing was consumed; call Next first
	ErrNotReady = errors.New("session is not ready")                   // before the handshake or after the end
	ErrTooLarge = errors.New("message exceeds the negotiated maximum") // nothing was queued
)

// clip makes a text fit to be sent: valid UTF-8, at most max bytes.
func clip(s string, max int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= max {
		return s
	}
	n := max
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
