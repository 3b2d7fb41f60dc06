package transfer

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// TestMessageOfOneWhoLeaves: the receiver delivers each message that its sender reported as done,
// also when the sender dialed for this message only and closes at once.
func TestMessageOfOneWhoLeaves(t *testing.T) {
	heard := make(chan Incoming, 1)
	b := open(t, Options{Listen: []string{loopback}, OnTransfer: func(i Incoming) { heard <- i }})
	for i := range uint32(testenv.Rounds(500)) {
		a := open(t, Options{})
		p, err := a.Dial(long(t), b.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		x, err := p.Notify(long(t), []byte("here"), PutOptions{Tag: i})
		waitLong(t, x, err)
		used := x.Explain()
		a.Close()
		select {
		case in := <-heard:
			if in.Tag != i {
				t.Fatalf("message %d came instead of %d", in.Tag, i)
			}
		case <-time.After(guestPatience):
			t.Fatalf("message %d did not come\n%v", i, used)
		}
	}
}
