package sim

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"go.uber.org/goleak"
)

// TestMain fails the run when a goroutine or memory is left.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left := mem.LeakReport(); code == 0 && len(left) > 0 {
			fmt.Println(left)
			code = 1
		}
		if left := burst.Leaks(); code == 0 && len(left) > 0 {
			fmt.Println(left)
			code = 1
		}
		os.Exit(code)
	}))
}

// end is one port with a queue in each direction.
type end struct {
	port engine.Port
	tx   engine.TxQueue
	rx   engine.RxQueue
	b    *burst.Burst
}

// newEnd opens a port with a pool of its own of that many slots for each queue.
func newEnd(t testing.TB, n *Network, name string, slots int) *end {
	t.Helper()
	e := &end{port: open(t, n, name), b: burst.NewSegmented(64, 128)}
	e.tx = addTx(t, e.port, engine.TxSpec{Pools: []*mem.Pool{pool(t, name+" tx", 2048, slots)}})
	e.rx = addRx(t, e.port, engine.RxSpec{Pools: []*mem.Pool{pool(t, name+" rx", 2048, slots)}, Timestamps: true})
	return e
}

// udp makes a frame of a datagram between ports of two hosts that have the addresses 10.0.0.<from>
// and 10.0.0.<to>.
func udp(from, to byte, src, dst uint16, payload string) []byte {
	f := packet.UDPFrame{SrcMAC: packet.MAC{2, 0, 0, 0, 0, from}, DstMAC: packet.MAC{2, 0, 0, 0, 0, to},
		Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, from}), src),
		Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, to}), dst)}
	b := make([]byte, f.HeaderLen()+len(payload))
	copy(b[f.HeaderLen():], payload)
	if _, err := f.Fill(b, len(payload)); err != nil {
		panic(err)
	}
	return b
}

// send sends frames as one burst.
func (e *end) send(t testing.TB, frames ...[]byte) {
	t.Helper()
	for len(frames) > 0 {
		k := min(len(frames), e.b.Cap())
		if n, err := e.tx.Alloc(e.b, k, 0); n != k {
			t.Fatalf("Alloc of %d: %d, %v", k, n, err)
		}
		for i, f := range frames[:k] {
			if !e.b.SetLen(i, 0, len(f)) {
				t.Fatalf("no room for a frame of %d bytes", len(f))
			}
			copy(e.b.Bytes(i, 0), f)
		}
		if err := e.tx.Send(e.b); err != nil {
			t.Fatal(err)
		}
		frames = frames[k:]
	}
}

// got takes what has come and returns it as text.
func (e *end) got(t testing.TB) []string {
	t.Helper()
	return take(t, e.rx, func(b *burst.Burst, i int) string {
		data := make([]byte, b.PacketLen(i))
		b.CopyTo(data, i)
		return string(data)
	})
}

// payloads is got, the UDP payloads only.
func (e *end) payloads(t testing.TB) (out []string) {
	t.Helper()
	for _, s := range e.got(t) {
		out = append(out, s[min(len(s), 42):])
	}
	return out
}

func take[T any](t testing.TB, q engine.RxQueue, see func(b *burst.Burst, i int) T) (out []T) {
	t.Helper()
	b := burst.NewSegmented(64, 128)
	for {
		n, err := q.TryRecv(b)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			out = append(out, see(b, i))
		}
		b.Release()
		if n == 0 {
			return out
		}
	}
}

func equal(t testing.TB, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s: %s, expected %s", what, g, w)
	}
}

func balanced(t testing.TB, n *Network) *Ledger {
	t.Helper()
	l := n.Ledger()
	if err := l.Err(); err != nil {
		t.Errorf("%v\n%v", err, l)
	}
	return l
}

func stats(p engine.Port) (s engine.PortStats) {
	p.Stats(&s)
	return s
}
