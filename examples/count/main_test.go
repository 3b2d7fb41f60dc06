package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
)

func Example() {
	main()
	// Output: 1000 packets, 100000 bytes, dropped: none
}

// The same over a real socket that sends to itself, at an address of this process's own.
func TestUDP(t *testing.T) {
	pid := os.Getpid()
	self := fmt.Sprintf("127.%d.%d.%d:5000", pid>>16&127+1, pid>>8&255, pid&255)
	var out bytes.Buffer
	if err := count(t.Context(), &out, "udp://"+self+"?remote="+self, "", 300, true); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasPrefix(got, "300 packets, 30000 bytes, dropped: none") {
		t.Error(got)
	}
}

func TestErrors(t *testing.T) {
	if err := count(t.Context(), nil, "sim://", "", 1, true); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := count(ctx, nil, "sim://count?loop", "", 1, true); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
