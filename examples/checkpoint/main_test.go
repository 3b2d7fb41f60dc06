package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func Example() {
	main()
	// Output: 3 of 3 receivers have 1048576 bytes with the same SHA-256
}

// A receiver without room gets nothing, is named in the error, and does not keep the others from
// theirs.
func TestSend(t *testing.T) {
	file := filepath.Join(t.TempDir(), "w")
	weights := bytes.Repeat([]byte("weights "), 1<<15)
	if err := os.WriteFile(file, weights, 0o600); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	at, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- receive(t.Context(), &got, "tcp://127.0.0.1:0", 1<<20, func(addr string) { at <- addr })
	}()
	large := <-at
	small := make(chan string, 1)
	go receive(t.Context(), io.Discard, "tcp://127.0.0.1:0", 4096, func(addr string) { small <- addr })
	var out bytes.Buffer
	if err := send(t.Context(), &out, file, []string{<-small, large}); err == nil ||
		out.String() != fmt.Sprintf("1 of 2 receivers have %d bytes with the same SHA-256\n", len(weights)) {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	sum := sha256.Sum256(weights)
	if want := fmt.Sprintf("received w: %d bytes, SHA-256 %x...\n", len(weights), sum[:4]); got.String() != want {
		t.Errorf("%q, expected %q", got.String(), want)
	}
}
