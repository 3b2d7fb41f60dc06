package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
)

// ErrInvitation is a text that is not an invitation.
var ErrInvitation = errors.New("not an invitation")

// Invitation is what one machine shows and the other types in to be paired: where to go, which
// authority must be there, and a secret that works once. It prints without its secret;
// [Invitation.Code] has it.
type Invitation struct {
	Address string            // host:port
	Root    [sha256.Size]byte // SHA-256 of the authority's certificate
	secret  [16]byte
}

const (
	codeVersion = 1
	codeBytes   = 1 + sha256.Size + 16 + 2 // version, root, secret, check
)

func newInvitation(address string, root *x509.Certificate) Invitation {
	v := Invitation{Address: address, Root: sha256.Sum256(root.Raw)}
	rand.Read(v.secret[:])
	return v
}

// Code is the text that a person carries from one machine to the other: the authority and the
// secret, but not the address. It has 68 characters of base64url over version 1, the 32 bytes of
// Root, the 16 of the secret, and the first 2 of the SHA-256 of all these, which finds typing
// errors.
func (v Invitation) Code() string {
	b := append(make([]byte, 0, codeBytes), codeVersion)
	b = append(b, v.Root[:]...)
	b = append(b, v.secret[:]...)
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(append(b, sum[:2]...))
}

// String is the invitation without its secret.
func (v Invitation) String() string { return v.Address }

// Format writes the invitation without its secret, whatever the verb.
func (v Invitation) Format(f fmt.State, _ rune) { io.WriteString(f, v.String()) }

// LogValue is the invitation without its secret.
func (v Invitation) LogValue() slog.Value { return slog.StringValue(v.String()) }

// ParseInvitation takes the address of a host and a code as [Invitation.Code] wrote it. The error
// wraps [ErrInvitation] and does not repeat the code.
func ParseInvitation(address, code string) (Invitation, error) {
	bad := func(format string, args ...any) (Invitation, error) {
		return Invitation{}, fmt.Errorf("identity: %s; expected the code as the other machine printed it: %w",
			fmt.Sprintf(format, args...), ErrInvitation)
	}
	if err := CheckAddress(address); err != nil {
		return Invitation{}, fmt.Errorf("identity: %w: %w", err, ErrInvitation)
	}
	if want := base64.RawURLEncoding.EncodedLen(codeBytes); len(code) != want {
		return bad("the code has %d characters and not %d", len(code), want)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(code)
	if err != nil || strings.ContainsAny(code, "\r\n") {
		return bad("the code has a character that cannot be in one")
	}
	n := len(b) - 2
	if sum := sha256.Sum256(b[:n]); sum[0] != b[n] || sum[1] != b[n+1] {
		return bad("the code has a typing error")
	}
	if b[0] != codeVersion {
		return bad("the code is of version %d and this program knows version %d", b[0], codeVersion)
	}
	v := Invitation{Address: address}
	copy(v.Root[:], b[1:])
	copy(v.secret[:], b[1+sha256.Size:])
	return v, nil
}

// LooksLikeCode reports whether a text may hold a code, whole or with errors. A program that finds
// one in its arguments, where every user of the machine can see it, refuses it.
func LooksLikeCode(s string) bool {
	if _, after, ok := strings.Cut(s, "#"); ok {
		s = after
	}
	want := base64.RawURLEncoding.EncodedLen(codeBytes)
	if len(s) < want-8 || len(s) > want+8 {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}

// CheckAddress returns nil for HOST:PORT with a host and a port number from 1 to 65535.
func CheckAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("address %q: expected HOST:PORT: %w", clip(addr), err)
	}
	if host == "" || strings.ContainsFunc(host, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune("'\"\\`$#/@", r)
	}) {
		return fmt.Errorf("address %q: expected a name or an address before the port", clip(addr))
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("address %q: port: expected 1 to 65535", clip(addr))
	}
	return nil
}
