package main

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

func Example() {
	main()
	// Output:
	// queue 0: 160 packets of 16 flows
	// queue 1: 160 packets of 16 flows
	// queue 2: 160 packets of 16 flows
	// queue 3: 160 packets of 16 flows
}

// The same on a real interface, where another host sends.
func TestInterface(t *testing.T) {
	for _, name := range []string{"afpacket", "xdp"} {
		t.Run(name, func(t *testing.T) { overInterface(t, name) })
	}
}

func overInterface(t *testing.T, name string) {
	n := netns.New(t, netns.Topology{Neighbours: true})
	done := make(chan error, 1)
	var out bytes.Buffer
	go func() {
		done <- n.Hosts[0].Do(func() error { return fanout(t.Context(), &out, "eth0", name, 25) })
	}()
	// fanout does not report that it has begun, so packets come until it ends.
	const ports = 16
	for i := 0; ; i++ {
		c, err := n.Hosts[1].Dial(t.Context(), "udp", fmt.Sprintf("10.77.0.1:%d", 5000+i%ports))
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte("a packet")) // an error reports an earlier packet that no socket took
		c.Close()
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			for i, line := range bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n")) {
				var queue, packets, flows int
				if _, err := fmt.Sscanf(string(line), "queue %d: %d packets of %d flows", &queue, &packets,
					&flows); err != nil || queue != i || packets < 25 || flows == 0 {
					t.Errorf("%q: %v", line, err)
				}
			}
			return
		default:
		}
	}
}
