package ibv

import (
	"errors"
	"net/netip"
	"testing"
)

const grh = GRHLen

// datagrams are two ends for datagrams, ready to send.
func (w *world) datagrams(t *testing.T) (a, b *end, toB *AH) {
	t.Helper()
	ctx := w.open(t)
	o := options{qp: QPSpec{Type: UD, Inline: 32}}
	a, b = w.newEnd(t, ctx, o), w.newEnd(t, ctx, o)
	for i, e := range []*end{a, b} {
		if err := e.qp.ReadyToReceive(RTRAttr{}); err != nil {
			t.Fatal(err)
		}
		if err := e.qp.ReadyToSend(RTSAttr{PSN: uint32(i)}); err != nil {
			t.Fatal(err)
		}
	}
	toB = must(a.pd.CreateAH(AHSpec{To: Address{DGID: b.gid.Addr, SGIDIndex: uint8(a.gid.Index)}}))(t)
	closing(t, toB)
	return a, b, toB
}

func testDatagrams(t *testing.T, w *world) {
	a, b, ah := w.datagrams(t)
	fill(a.buf[:1000], 4)
	b.postRecv(t, 5, b.mr.SGE(0, grh+1000))
	a.send.SendImm(1, Signaled, 99, a.mr.SGE(0, 1000))
	if !a.send.To(ah, b.qp.Num(), qkey) {
		t.Fatal("no address")
	}
	a.post(t)
	one(t, a.wait(t, 1)[0], 1, Success)
	wc := b.wait(t, 1)[0]
	one(t, wc, 5, Success)
	if wc.Len() != grh+1000 || wc.SrcQP() != a.qp.Num() || wc.Flags() != FlagGRH|FlagImm || wc.Imm() != 99 {
		t.Errorf("%d bytes from %#x, flags %v, value %d", wc.Len(), wc.SrcQP(), wc.Flags(), wc.Imm())
	}
	sameBytes(t, b.buf[grh:grh+1000], a.buf[:1000])

	// Inline, and two to two receivers in one chain.
	toA := must(a.pd.CreateAH(AHSpec{To: Address{DGID: a.gid.Addr, SGIDIndex: uint8(a.gid.Index)}}))(t)
	defer toA.Close()
	b.postRecv(t, 6, b.mr.SGE(0, grh+100))
	a.postRecv(t, 7, a.mr.SGE(2000, grh+100))
	a.send.Send(2, Signaled|Inline, a.put(8100, []byte("to b")))
	a.send.To(ah, b.qp.Num(), qkey)
	a.send.Send(3, Signaled|Inline, a.put(8200, []byte("to myself")))
	a.send.To(toA, a.qp.Num(), qkey)
	a.post(t)
	wc = b.wait(t, 1)[0]
	one(t, wc, 6, Success)
	if string(b.buf[grh:wc.Len()]) != "to b" {
		t.Errorf("%q", b.buf[grh:wc.Len()])
	}
	for range 3 {
		wc = a.wait(t, 1)[0]
		if wc.Status() != Success {
			t.Error(wc.Err())
		}
		if wc.Opcode() == OpRecv && string(a.buf[2000+grh:2000+wc.Len()]) != "to myself" {
			t.Errorf("%q", a.buf[2000+grh:2000+wc.Len()])
		}
	}

	// Without a receive it is dropped, and that is no error.
	a.send.Send(8, Signaled, a.mr.SGE(0, 4))
	a.send.To(ah, b.qp.Num(), qkey)
	a.post(t)
	one(t, a.wait(t, 1)[0], 8, Success)

	// Nor does it arrive with a wrong key. What comes after it does; the one before may have been
	// on its way for so long.
	for range 3 {
		b.postRecv(t, 9, b.mr.SGE(0, grh+100))
	}
	a.send.Send(10, Signaled|Inline, a.put(8300, []byte("wrong")))
	a.send.To(ah, b.qp.Num(), qkey+1)
	a.send.Send(11, Signaled|Inline, a.put(8400, []byte("right")))
	a.send.To(ah, b.qp.Num(), qkey)
	a.post(t)
	a.wait(t, 2)
	for text := ""; text != "right"; {
		wc = b.wait(t, 1)[0]
		one(t, wc, 9, Success)
		if text = string(b.buf[grh:wc.Len()]); text == "wrong" {
			t.Error("it arrived with a wrong key")
		}
	}
}

// testDatagramRefused: what datagrams cannot do. On the fake it is refused at post; Soft-RoCE takes
// some of it and fails the request.
func testDatagramRefused(t *testing.T, w *world) {
	a, b, ah := w.datagrams(t)
	if w.fake {
		a.send.Write(1, Signaled, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(0, 8))
		a.send.To(ah, b.qp.Num(), qkey)
		if n, err := a.qp.PostSend(a.send); n != 0 || !errors.Is(err, ErrInvalid) {
			t.Errorf("a write: %d, %v", n, err)
		}
		a.send.Reset()
	}
	mtu := must(a.ctx.Port(1))(t).ActiveMTU.Bytes()
	b.postRecv(t, 2, b.mr.SGE(0, uint32(grh+mtu+1)))
	a.send.Send(3, Signaled, a.mr.SGE(0, uint32(mtu+1)))
	a.send.To(ah, b.qp.Num(), qkey)
	// More than a packet is not sent, and that is no error either (C10-93.1.1 of the
	// specification).
	a.post(t)
	a.wait(t, 1)
	quiet(t, b.cq)

	if a.send.Reset(); a.send.To(ah, 1, 1) || a.send.ToSRQ(1) {
		t.Error("an address without a request")
	}
	if err := ah.Close(); err != nil {
		t.Fatal(err)
	}
	a.send.Send(4, 0)
	if a.send.To(ah, b.qp.Num(), qkey) || a.send.To(nil, 1, 1) {
		t.Error("a closed address was taken")
	}
	if _, err := a.pd.CreateAH(AHSpec{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("an address that no host has: %v", err)
	}
	if _, err := a.pd.CreateAH(AHSpec{To: Address{DGID: netip.MustParseAddr("::ffff:10.0.0.1"),
		FlowLabel: 1 << 20}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a flow label of 21 bits: %v", err)
	}
}
