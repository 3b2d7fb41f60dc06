package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Sizes of keys in bytes, for TLS_AES_128_GCM_SHA256.
const (
	SecretSize = sha256.Size
	KeySize    = 16
	IVSize     = 12
)

// Secret is a traffic secret (RFC 8446 section 7.1): all keys of one direction of one connection
// come from it. It prints as a word, not as its bytes.
type Secret struct{ b [SecretSize]byte }

// String hides the secret.
func (Secret) String() string { return "seal.Secret(hidden)" }

// GoString hides the secret.
func (Secret) GoString() string { return "seal.Secret(hidden)" }

// Derive makes a traffic secret from what two ends share. label names what it is for: two uses of
// one shared secret, the two directions of a connection among them, need different labels.
// transcript is what both ends said before, or its hash: ends that disagree about it get different
// secrets. shared must have at least 16 bytes that an attacker cannot guess.
func Derive(shared []byte, label string, transcript []byte) (Secret, error) {
	if len(shared) < 16 {
		return Secret{}, fmt.Errorf("seal: a shared secret of %d bytes: expected at least 16", len(shared))
	}
	if n := len("tls13 ") + len(label); n > 255 || len(label) == 0 {
		return Secret{}, fmt.Errorf("seal: a label of %d bytes: expected 1 to %d", len(label), 255-len("tls13 "))
	}
	prk, err := hkdf.Extract(sha256.New, shared, nil)
	if err != nil {
		return Secret{}, fmt.Errorf("seal: %w", err)
	}
	h := sha256.Sum256(transcript)
	var s Secret
	err = expandLabel(s.b[:], prk, label, h[:])
	return s, err
}

// expandLabel is HKDF-Expand-Label of RFC 8446 section 7.1.
func expandLabel(out, secret []byte, label string, context []byte) error {
	info := binary.BigEndian.AppendUint16(nil, uint16(len(out)))
	info = append(info, byte(len("tls13 ")+len(label)))
	info = append(append(info, "tls13 "...), label...)
	info = append(append(info, byte(len(context))), context...)
	b, err := hkdf.Expand(sha256.New, secret, string(info), len(out))
	if err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	copy(out, b)
	clear(b)
	return nil
}

// Keys are the record key and IV of a secret (RFC 8446 section 7.3), as an implementation outside
// this package needs them.
func (s Secret) Keys() (key [KeySize]byte, iv [IVSize]byte, err error) {
	if err = expandLabel(key[:], s.b[:], "key", nil); err == nil {
		err = expandLabel(iv[:], s.b[:], "iv", nil)
	}
	return key, iv, err
}

// Next is the secret after a key update (RFC 8446 section 7.2).
func (s Secret) Next() (Secret, error) {
	var n Secret
	err := expandLabel(n.b[:], s.b[:], "traffic upd", nil)
	return n, err
}

// half is what both directions have: the key in use, and how much of it was used.
type half struct {
	secret Secret
	aead   cipher.AEAD
	iv     [IVSize]byte
	nonce  [IVSize]byte
	seq    uint64
	limit  uint64 // blocks for each key
	used   uint64 // blocks under this key
	keys   uint64 // how many keys came before
}

// start begins a direction with its traffic secret.
func (h *half) start(s Secret, o Options) (err error) {
	if h.limit, err = o.limit(); err != nil {
		return err
	}
	return h.init(s)
}

// Seq is the number of the next record under this key.
func (h *half) Seq() uint64 { return h.seq }

// Updates is how often the key was changed.
func (h *half) Updates() uint64 { return h.keys }

func (h *half) init(s Secret) error {
	key, iv, err := s.Keys()
	if err != nil {
		return err
	}
	b, err := aes.NewCipher(key[:])
	clear(key[:])
	if err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	aead, err := cipher.NewGCM(b)
	if err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	h.secret, h.aead, h.iv, h.seq, h.used = s, aead, iv, 0, 0
	return nil
}

func (h *half) update() error {
	s, err := h.secret.Next()
	if err != nil {
		return err
	}
	h.keys++
	return h.init(s)
}

// next is the nonce of the next record (RFC 8446 section 5.3).
func (h *half) next() []byte {
	h.nonce = h.iv
	n := binary.BigEndian.Uint64(h.nonce[4:])
	binary.BigEndian.PutUint64(h.nonce[4:], n^h.seq)
	h.seq++
	return h.nonce[:]
}

// Blocks is what a record with n bytes of content costs its key: the blocks of 16 bytes that are
// encrypted with it, one for the tag and one for the lengths.
func Blocks(n int) uint64 { return uint64(n+1+15)/16 + 2 }
