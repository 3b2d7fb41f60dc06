package main

import (
	"errors"
	"io"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
)

func Example() {
	main()
	// Output:
	// decode: request 1, 60 tokens in blocks [3 7 1 40]
	// decode: request 2, 20 tokens in blocks [0 2]
}

// A block beyond the decode node's cache is refused before a byte moves.
func TestBounds(t *testing.T) {
	at, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- decode(t.Context(), io.Discard, "tcp://127.0.0.1:0", 1, func(addr string) { at <- addr })
	}()
	addr := <-at
	if err := prefill(t.Context(), addr, request{ID: 1, Blocks: []uint64{0, blocks}}, []uint64{0, 1}); !errors.Is(err,
		path.ErrBounds) {
		t.Errorf("%v, expected one about bounds", err)
	}
	if err := prefill(t.Context(), addr, request{ID: 2, Tokens: 5, Blocks: []uint64{blocks - 1}},
		[]uint64{0}); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
