package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"
)

func Example() {
	main()
	// Output: 1000 packets came back
}

// A real client of the server on a real socket, at an address of this process's own.
func TestUDP(t *testing.T) {
	pid := os.Getpid()
	self := fmt.Sprintf("127.%d.%d.%d:5001", pid>>16&127+1, pid>>8&255, pid&255)
	e, err := open(t.Context(), "socket", "udp://"+self)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, e) }()

	c, err := net.Dial("udp", self)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute)) // against hanging
	for i := range 100 {
		if _, err := fmt.Fprintf(c, "packet %d", i); err != nil {
			t.Fatal(err)
		}
		var b [100]byte
		if n, err := c.Read(b[:]); err != nil || string(b[:n]) != fmt.Sprintf("packet %d", i) {
			t.Fatalf("%q, %v", b[:n], err)
		}
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := e.close(); err != nil {
		t.Error(err)
	}
}
