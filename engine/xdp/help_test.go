package xdp

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// newPool makes a pool whose slots the kernel can use in place if size is 2048 or 4096.
func newPool(t testing.TB, size, n int) *mem.Pool {
	t.Helper()
	return carve(t, nil, 0, size, n)
}

// carve makes a pool in a part of a region.
func carve(t testing.TB, r *mem.Region, at, size, n int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: "test", SlotSize: size, Slots: n, Region: r, Offset: at})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s := p.Stats(); s.InUse > 0 || s.Rejected > 0 {
			t.Errorf("%d slots are out, %d were released twice", s.InUse, s.Rejected)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func addRx(t testing.TB, p *Port, spec engine.RxSpec) *rxQueue {
	t.Helper()
	q, err := p.AddRxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() }) // before its pool
	return q.(*rxQueue)
}

func addTx(t testing.TB, p *Port, spec engine.TxSpec) *txQueue {
	t.Helper()
	q, err := p.AddTxQueue(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() })
	return q.(*txQueue)
}

// udp makes a frame of that many bytes for a port, with a number in it.
func udp(t testing.TB, port uint16, size int, number uint32) []byte {
	t.Helper()
	f := packet.UDPFrame{SrcMAC: packet.MAC{2, 0x77, 0, 0, 0, 0}, DstMAC: packet.MAC{2, 0x77, 0, 0, 0, 1},
		Src: netip.MustParseAddrPort("198.18.0.1:9"), Dst: netip.AddrPortFrom(netip.MustParseAddr("198.18.0.2"), port)}
	b := make([]byte, size)
	payload := size - f.HeaderLen()
	for i := range payload {
		b[f.HeaderLen()+i] = byte(i)
	}
	if payload >= 4 {
		binary.BigEndian.PutUint32(b[f.HeaderLen():], number)
	}
	if _, err := f.Fill(b, payload); err != nil {
		t.Fatal(err)
	}
	return b
}

// send sends frames, one after the other, and returns when they have left.
func send(t testing.TB, q engine.TxQueue, frames ...[]byte) {
	t.Helper()
	b := burst.NewSegmented(1, 16)
	for _, f := range frames {
		until(t, "a descriptor", func() bool { n, _ := q.Alloc(b, 1, len(f)); return n == 1 })
		left := f
		for k := range b.Segments(0) {
			left = left[copy(b.Bytes(0, k), left):]
		}
		if err := q.Send(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// receive receives n packets, calls see for each, and returns their bytes.
func receive(t testing.TB, q engine.RxQueue, n int, see func(b *burst.Burst, i int)) (out [][]byte) {
	t.Helper()
	b := burst.NewSegmented(32, 256)
	until(t, "packets", func() bool {
		if _, err := q.TryRecv(b); err != nil {
			t.Fatalf("%v after %d of %d packets", err, len(out), n)
		}
		for i := range b.Len() {
			f := make([]byte, b.PacketLen(i))
			b.CopyTo(f, i)
			out = append(out, f)
			if see != nil {
				see(b, i)
			}
		}
		b.Release()
		return len(out) >= n
	})
	if len(out) > n {
		t.Fatalf("%d packets, expected %d", len(out), n)
	}
	return out
}
