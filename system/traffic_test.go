package system

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// until waits for a condition.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// udpFrame makes a frame of 64 bytes for a UDP port, with a number in it.
func udpFrame(t testing.TB, port uint16, number uint32) []byte {
	t.Helper()
	f := packet.UDPFrame{SrcMAC: packet.MAC{2, 0x77, 0, 0, 0, 0}, DstMAC: packet.MAC{2, 0x77, 0, 0, 0, 1},
		Src: netip.MustParseAddrPort("198.18.0.1:9"), Dst: netip.AddrPortFrom(netip.MustParseAddr("198.18.0.2"), port)}
	b := make([]byte, 64)
	payload := len(b) - f.HeaderLen()
	binary.BigEndian.PutUint32(b[f.HeaderLen():], number)
	if _, err := f.Fill(b, payload); err != nil {
		t.Error(err)
	}
	return b
}

func numberOf(frame []byte) uint32 { return binary.BigEndian.Uint32(frame[packet.EthernetLen+28:]) }

// sendFrames sends frames, and waits for room.
func sendFrames(t testing.TB, q engine.TxQueue, frames ...[]byte) {
	t.Helper()
	b := burst.New(1)
	for _, f := range frames {
		until(t, "a descriptor", func() bool { n, _ := q.Alloc(b, 1, len(f)); return n == 1 })
		copy(b.Bytes(0, 0), f)
		if err := q.Send(b); err != nil {
			t.Fatal(err)
		}
	}
}

// traffic is numbered packets of one flow, of which each has to come once. So many are under way
// that no queue can be full.
type traffic struct {
	t              *testing.T
	sent, received atomic.Uint32
	stop           chan struct{} // ends the sender
	once           sync.Once
	sender         sync.WaitGroup
	cancel         context.CancelFunc // ends the receiver
	receiver       sync.WaitGroup
}

// startTraffic sends packets for a UDP port until the end of the test, or finish, and receives them
// as those of a flow. The kernel changes the order of what a thread sends over a veth pair while it
// moves from one processor to another: ordered says whether it has to be kept.
func startTraffic(t *testing.T, tx engine.TxQueue, rx *engine.Rx, port uint16, flow uint32, ordered bool) *traffic {
	x := &traffic{t: t, stop: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	x.cancel = cancel
	x.sender.Go(func() {
		b := burst.New(1)
		for ; ; runtime.Gosched() {
			select {
			case <-x.stop:
				return
			default:
			}
			if x.sent.Load()-x.received.Load() >= 64 {
				continue
			}
			f := udpFrame(t, port, x.sent.Load())
			if n, _ := tx.Alloc(b, 1, len(f)); n == 0 {
				continue
			}
			copy(b.Bytes(0, 0), f)
			x.sent.Add(1)
			if err := tx.Send(b); err != nil {
				t.Error(err)
				return
			}
		}
	})
	x.receiver.Go(func() {
		b := burst.New(64)
		defer b.Release()
		seen := map[uint32]bool{}
		for next := uint32(0); ; {
			if err := rx.Recv(ctx, b); err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				return
			}
			for i := range b.Len() {
				n := numberOf(b.Bytes(i, 0))
				if seen[n] || b.Flow(i) != flow || ordered && n != next {
					t.Errorf("packet %d of flow %d, expected %d of flow %d; seen before: %v", n, b.Flow(i), next, flow,
						seen[n])
				}
				seen[n] = true
				next++
			}
			b.Release()
			x.received.Store(next)
		}
	})
	t.Cleanup(x.end)
	return x
}

// end ends it in any case.
func (x *traffic) end() {
	x.once.Do(func() { close(x.stop) })
	x.sender.Wait()
	x.cancel()
	x.receiver.Wait()
}

// pass waits until a packet has come that was sent after the call.
func (x *traffic) pass() {
	x.t.Helper()
	from := x.sent.Load() + 1 // one may be between its number and its Send
	until(x.t, "packets to come through", func() bool { return x.received.Load() > from })
}

// finish waits for the last packet, and returns how many there were.
func (x *traffic) finish() uint32 {
	x.t.Helper()
	x.once.Do(func() { close(x.stop) })
	x.sender.Wait()
	until(x.t, "the last packets", func() bool { return x.received.Load() >= x.sent.Load() })
	x.end()
	return x.sent.Load()
}
