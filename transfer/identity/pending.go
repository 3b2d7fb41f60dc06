package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// NewKey makes the key that the next [Join] into a directory asks a certificate for, and returns
// its fingerprint (see [KeyFingerprint]), so that the host can be given it beforehand. A key that
// waits there already stays.
func NewKey(dir string) (fingerprint string, err error) {
	if err := makeDir(dir); err != nil {
		return "", err
	}
	key, err := pendingKey(dir)
	if errors.Is(err, ErrMissing) {
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return "", fmt.Errorf("identity: a new key: %w", err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return "", fmt.Errorf("identity: a new key: %w", err)
		}
		defer clear(der)
		if err := createFile(filepath.Join(dir, PendingFile),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	return KeyFingerprint(&key.PublicKey)
}

// pendingKey is the key of NewKey; without one the error wraps ErrMissing.
func pendingKey(dir string) (*ecdsa.PrivateKey, error) {
	path := filepath.Join(dir, PendingFile)
	b, err := readFile(path, true)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	bs, err := blocks(path, b)
	if err != nil {
		return nil, err
	}
	x, err := x509.ParsePKCS8PrivateKey(bs[0].Bytes)
	if err != nil {
		return nil, fmt.Errorf("identity: %s: %w: %w", path, err, ErrCredentials)
	}
	key, ok := x.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() || len(bs) != 1 {
		return nil, fmt.Errorf("identity: %s: expected one key on P-256: %w; remove it", path, ErrCredentials)
	}
	return key, nil
}

// forgetPending removes the key of NewKey, which has its certificate now.
func forgetPending(dir string) error {
	if err := os.Remove(filepath.Join(dir, PendingFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("identity: %w", err)
	}
	return nil
}
