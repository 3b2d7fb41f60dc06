package peers

import (
	_ "embed" // the program that streams
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/peers"
)

//go:embed openssl/stream.c
var openSSLStream []byte

// OpenSSLStream compiles the program that [peers.OpenSSL] runs, on first use, and returns its path.
// The error wraps peers.ErrAbsent without OpenSSL's headers.
func OpenSSLStream() (program string, err error) {
	if _, err := os.Stat("/usr/include/openssl/ssl.h"); err != nil {
		p, _ := peers.Get("openssl")
		return "", fmt.Errorf("peers: the headers of OpenSSL are %w: %w; on Debian: %s, or run scripts/deps.sh",
			peers.ErrAbsent, err, p.Install())
	}
	dir, err := os.MkdirTemp("", "openssl-stream")
	if err != nil {
		return "", fmt.Errorf("peers: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "stream.c")
	if err := os.WriteFile(file, openSSLStream, 0o644); err != nil {
		return "", fmt.Errorf("peers: %w", err)
	}
	return testenv.Compile("openssl-stream", []string{file}, "-O2", "-Wall", "-lssl", "-lcrypto")
}
