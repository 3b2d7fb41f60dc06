package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"testing"
)

func Example() {
	main()
	// Output: client: put 1048576 bytes and got them back
}

// The server reports the put with its message, and the client returns an error when the server is
// gone.
func TestServe(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	said, out := io.Pipe()
	at, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- serve(ctx, out, "tcp://127.0.0.1:0", func(addr string) { at <- addr }) }()
	addr := <-at
	if err := use(t.Context(), io.Discard, addr); err != nil {
		t.Error(err)
	}
	if line, err := bufio.NewReader(said).ReadString('\n'); err != nil ||
		line != "server: 1048576 bytes of client: hello\n" {
		t.Errorf("%q, %v", line, err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := use(t.Context(), io.Discard, addr); err == nil {
		t.Error("a program that is gone was reached")
	}
}
