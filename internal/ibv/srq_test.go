package ibv

import (
	"errors"
	"testing"
)

// testSRQ: two connections that take their receives from one queue.
func testSRQ(t *testing.T, w *world) {
	ctx := w.open(t)
	pd := must(ctx.AllocPD())(t)
	closing(t, pd)
	cq := must(ctx.CreateCQ(CQSpec{Entries: 64}))(t)
	closing(t, cq)
	srq := must(pd.CreateSRQ(SRQSpec{WRs: 16, SGEs: 2}))(t)
	closing(t, srq)
	buf := memory(t, 1<<16)
	mr := must(pd.RegMR(MRSpec{Addr: start(buf), Length: 1 << 16, Access: LocalWrite}))(t)
	closing(t, mr)
	var from, to [2]*end
	for i := range from {
		o := options{}
		from[i] = w.newEnd(t, ctx, o)
		e := &end{ctx: ctx, pd: pd, cq: cq, gid: from[i].gid}
		e.qp = must(pd.CreateQP(QPSpec{Type: RC, SendCQ: cq, RecvCQ: cq, SRQ: srq, SendWRs: 4, SendSGEs: 1}))(t)
		closing(t, e.qp)
		if err := e.qp.Init(InitAttr{}); err != nil {
			t.Fatal(err)
		}
		to[i] = e
		from[i].connect(t, e, o)
		e.connect(t, from[i], o)
	}
	recv := must(NewRecvChain(16, 16))(t)
	defer recv.Close()
	give := func(n int) {
		recv.Reset()
		for i := range n {
			recv.Recv(uint64(100+i), mr.SGE(uint64(i)*64, 64))
		}
		if got, err := srq.PostRecv(recv); got != n || err != nil {
			t.Fatalf("%d of %d: %v", got, n, err)
		}
	}
	message := func(i int) {
		from[i].send.Send(uint64(i), Signaled, from[i].mr.SGE(0, 8))
		from[i].post(t)
		one(t, from[i].wait(t, 1)[0], uint64(i), Success)
		wc := waitCQ(t, cq, 1)[0]
		if wc.Status() != Success || wc.QPN() != to[i].qp.Num() {
			t.Errorf("%v of %#x", wc.Status(), wc.QPN())
		}
	}
	give(6)
	message(0)
	message(1)
	give(2)
	for range 6 {
		message(0)
	}
	if _, err := pd.CreateSRQ(SRQSpec{WRs: 0}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no receives: %v", err)
	}
	if _, err := pd.CreateQP(QPSpec{Type: RC, SendCQ: cq, RecvCQ: cq, SRQ: srq, RecvWRs: 1}); !errors.Is(err,
		ErrInvalid) {
		t.Errorf("two sources of receives: %v", err)
	}
}

// TestXRC: two senders, each with its target, name the queues of one domain by number.
func TestXRC(t *testing.T) {
	w := fakeWorld(t, "")
	ctx := w.open(t)
	x := must(ctx.OpenXRCD())(t)
	closing(t, x)
	r := w.newEnd(t, ctx, options{}) // its queue pair is not used: it has memory, a domain and a completion queue
	var srqs [2]*SRQ
	for i := range srqs {
		srqs[i] = must(r.pd.CreateSRQ(SRQSpec{WRs: 8, SGEs: 1, XRCD: x, CQ: r.cq}))(t)
		closing(t, srqs[i])
	}
	if srqs[0].Number() == srqs[1].Number() {
		t.Errorf("both have the number %d", srqs[0].Number())
	}
	for i := range 2 {
		s := w.newEnd(t, ctx, options{})
		sender := &end{ctx: ctx, pd: s.pd, cq: s.cq, gid: s.gid}
		sender.qp = must(s.pd.CreateQP(QPSpec{Type: XRCSend, SendCQ: s.cq, SendWRs: 8, SendSGEs: 1}))(t)
		closing(t, sender.qp)
		target := &end{ctx: ctx, pd: r.pd, gid: s.gid}
		target.qp = must(r.pd.CreateQP(QPSpec{Type: XRCRecv, XRCD: x}))(t)
		closing(t, target.qp)
		for _, e := range []*end{sender, target} {
			if err := e.qp.Init(InitAttr{Access: RemoteWrite}); err != nil {
				t.Fatal(err)
			}
		}
		sender.connect(t, target, options{})
		target.connect(t, sender, options{})
		for k, srq := range srqs {
			r.recv.Reset()
			r.recv.Recv(uint64(10*i+k), r.mr.SGE(uint64(1000*i+100*k), 64))
			if n, err := srq.PostRecv(r.recv); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			fill(s.buf[:64], byte(10*i+k))
			s.send.Reset()
			s.send.Send(5, Signaled, s.mr.SGE(0, 64))
			if !s.send.ToSRQ(srq.Number()) {
				t.Fatal("no number")
			}
			if n, err := sender.qp.PostSend(s.send); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			one(t, s.wait(t, 1)[0], 5, Success)
			one(t, r.wait(t, 1)[0], uint64(10*i+k), Success)
			sameBytes(t, r.buf[1000*i+100*k:][:64], s.buf[:64])
		}
	}
	if err := x.Close(); !errors.Is(err, ErrInUse) {
		t.Errorf("a domain in use: %v", err)
	}
}

// TestXRCAbsent: a device without it says so.
func TestXRCAbsent(t *testing.T) {
	w := fakeWorld(t, "absent xrc")
	ctx := w.open(t)
	if _, err := ctx.OpenXRCD(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("open: %v", err)
	}
	if a := must(ctx.Attr())(t); a.XRC {
		t.Error("it says that it has XRC")
	}
	e := w.newEnd(t, ctx, options{})
	if _, err := e.pd.CreateQP(QPSpec{Type: XRCSend, SendCQ: e.cq, SendWRs: 1}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("create: %v", err)
	}
}
