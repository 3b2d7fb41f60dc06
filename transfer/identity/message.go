package identity

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// The protocol of pairing, version 1, runs inside one TLS 1.3 connection. docs/pairing.md has its
// messages.

const pairALPN = "penstock-pair/1"

// ErrMessage is a message of the pairing protocol that breaks its rules.
var ErrMessage = errors.New("not a message of the pairing protocol")

type messageType uint8

const (
	messageJoin    messageType = 1 // joiner: proof, certificate request
	messageWelcome messageType = 2 // host: proof, certificate, roots
	messageRefuse  messageType = 3 // host: reason
	messageDone    messageType = 4 // joiner: it has written its files; host: it knows, and this is the end
	messageWait    messageType = 5 // host: the proof is right, wait for confirmation
)

type refusal uint8

const (
	refusedCode        refusal = 1 // the proof is wrong
	refusedOver        refusal = 2 // the code was used
	refusedName        refusal = 3 // a node of this name has a certificate already
	refusedOther       refusal = 4 // the host waits for another name
	refusedDenied      refusal = 5 // the host's rules deny this name
	refusedMalformed   refusal = 6
	refusedInternal    refusal = 7 // something at the host failed
	refusedUnconfirmed refusal = 8 // the host did not confirm the machine
	refusedRival       refusal = 9 // another machine that knows the code is being confirmed
)

// String is why the host refuses a machine, in its own words.
func (r refusal) String() string {
	switch r {
	case refusedOver:
		return "the code was used by another machine"
	case refusedName:
		return "a node of this name has a certificate already (--for permits a new one)"
	case refusedOther:
		return "another name is expected (--for)"
	case refusedDenied:
		return "the rules deny this name"
	case refusedUnconfirmed:
		return "its key was not confirmed"
	case refusedRival:
		return "another machine that knows the code is being confirmed"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

const (
	messageHead = 8
	maxMessage  = 16 << 10 // bytes of a body
	maxRequest  = 4 << 10  // bytes of a certificate request
	maxRoots    = 16
	proofSize   = sha256.Size
)

var messageMagic = [4]byte{'p', 'n', 'p', 'r'}

func appendMessage(b []byte, t messageType, body []byte) []byte {
	b = append(b, messageMagic[:]...)
	b = append(b, 1, byte(t))
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	return append(b, body...)
}

// readMessage reads one message. At most maxMessage bytes are allocated, whatever the peer says.
func readMessage(r io.Reader) (messageType, []byte, error) {
	var head [messageHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	if [4]byte(head[:4]) != messageMagic || head[4] != 1 {
		return 0, nil, fmt.Errorf("identity: the head of a message: %w", ErrMessage)
	}
	n := int(binary.BigEndian.Uint16(head[6:]))
	t := messageType(head[5])
	if n > maxBody(t) {
		return 0, nil, fmt.Errorf("identity: message %d with %d bytes, expected at most %d: %w", t, n, maxBody(t),
			ErrMessage)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return t, body, nil
}

func maxBody(t messageType) int {
	switch t {
	case messageJoin:
		return proofSize + maxRequest
	case messageWelcome:
		return maxMessage
	case messageRefuse:
		return 1
	case messageWait:
		return 4
	}
	return 0
}

// join is what the joiner says first.
type join struct {
	proof   [proofSize]byte
	request []byte // a certificate request in DER (RFC 2986)
}

func (m join) encode() []byte { return append(m.proof[:], m.request...) }

func parseJoin(body []byte) (join, error) {
	var m join
	if len(body) <= proofSize || len(body) > proofSize+maxRequest {
		return m, fmt.Errorf("identity: a join of %d bytes: %w", len(body), ErrMessage)
	}
	copy(m.proof[:], body)
	m.request = body[proofSize:]
	return m, nil
}

// welcome is what the host says to a joiner that it takes.
type welcome struct {
	proof [proofSize]byte
	host  string   // the host's name
	certs [][]byte // DER: the node's, then 1 to maxRoots roots
}

// payload is what the proof covers.
func (m welcome) payload() []byte {
	b := append([]byte{byte(len(m.host))}, m.host...)
	b = append(b, byte(len(m.certs)))
	for _, c := range m.certs {
		b = binary.BigEndian.AppendUint16(b, uint16(len(c)))
		b = append(b, c...)
	}
	return b
}

func (m welcome) encode() ([]byte, error) {
	if err := CheckName(m.host); err != nil {
		return nil, fmt.Errorf("identity: the host's name: %w: %w", err, ErrMessage)
	}
	if len(m.certs) < 2 || len(m.certs) > 1+maxRoots {
		return nil, fmt.Errorf("identity: %d certificates, expected a node's and 1 to %d roots: %w", len(m.certs),
			maxRoots, ErrMessage)
	}
	b := append(m.proof[:], m.payload()...)
	if len(b) > maxMessage {
		return nil, fmt.Errorf("identity: the certificates are too large for pairing (%d bytes, at most %d): %w",
			len(b), maxMessage, ErrMessage)
	}
	return b, nil
}

func parseWelcome(body []byte) (welcome, error) {
	var m welcome
	bad := func(what string) (welcome, error) {
		return welcome{}, fmt.Errorf("identity: a welcome with %s: %w", what, ErrMessage)
	}
	if len(body) < proofSize+1 || len(body) > maxMessage {
		return bad("a wrong size")
	}
	copy(m.proof[:], body)
	size := int(body[proofSize])
	b := body[proofSize+1:]
	if size > MaxName || size >= len(b) || CheckName(string(b[:size])) != nil {
		return bad("a wrong name of the host")
	}
	m.host = string(b[:size])
	n := int(b[size])
	b = b[size+1:]
	if n < 2 || n > 1+maxRoots {
		return bad("a wrong number of certificates")
	}
	for range n {
		if len(b) < 2 {
			return bad("a certificate missing")
		}
		size := int(binary.BigEndian.Uint16(b))
		if size == 0 || size > len(b)-2 {
			return bad("a certificate cut off")
		}
		m.certs = append(m.certs, b[2:2+size])
		b = b[2+size:]
	}
	if len(b) != 0 {
		return bad("bytes after the last certificate")
	}
	return m, nil
}

// knock is what a joiner offers as an application protocol beside the real one, so that its first
// bytes show that it knows the code. They are in the clear and prove nothing: they keep callers
// that only know the port from taking the joiner's place.
func (v Invitation) knock() string {
	h := hmac.New(sha256.New, v.secret[:])
	io.WriteString(h, "penstock pair 1 knock\x00")
	return hex.EncodeToString(h.Sum(nil))
}

// proof shows that its sender knows the secret, on this TLS connection and no other, and covers
// what it says: HMAC-SHA256 with the secret over the direction, the connection's exported key (RFC
// 8446 section 7.5, RFC 9266's idea), and the hash of the payload. The secret itself never travels.
func (v Invitation) proof(cs tls.ConnectionState, direction string, payload []byte) ([proofSize]byte, error) {
	bind, err := cs.ExportKeyingMaterial("EXPORTER-penstock-pair-1", nil, 32)
	if err != nil {
		return [proofSize]byte{}, fmt.Errorf("identity: %w", err)
	}
	h := hmac.New(sha256.New, v.secret[:])
	io.WriteString(h, "penstock pair 1 "+direction+"\x00")
	h.Write(bind)
	sum := sha256.Sum256(payload)
	h.Write(sum[:])
	return [proofSize]byte(h.Sum(nil)), nil
}
