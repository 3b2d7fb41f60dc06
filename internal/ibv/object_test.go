package ibv

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/dl"
)

// TestClosingOrder: what is used does not close, and says who uses it. Afterwards everything
// closes, also twice.
func TestClosingOrder(t *testing.T) {
	w := fakeWorld(t, "")
	ctx := w.open(t)
	pd := must(ctx.AllocPD())(t)
	ch := must(ctx.CreateChannel())(t)
	cq := must(ctx.CreateCQ(CQSpec{Entries: 8, Channel: ch}))(t)
	srq := must(pd.CreateSRQ(SRQSpec{WRs: 4, SGEs: 1}))(t)
	qp := must(pd.CreateQP(QPSpec{Type: RC, SendCQ: cq, RecvCQ: cq, SRQ: srq, SendWRs: 4, SendSGEs: 1}))(t)
	mr := must(pd.RegMR(MRSpec{Addr: start(memory(t, 4096)), Length: 4096}))(t)
	mw := must(pd.AllocMW())(t)
	g, _, _ := must3(ctx.ChooseGID(1, GIDWant{}))(t)
	ah := must(pd.CreateAH(AHSpec{Address{DGID: g.Addr}}))(t)
	for _, c := range []struct {
		what interface{ Close() error }
		user string
	}{{ctx, "protection domain"}, {pd, "shared receive queue"}, {ch, "completion queue"}, {cq, "queue pair"},
		{srq, "queue pair"}} {
		if err := c.what.Close(); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "close "+c.user) {
			t.Errorf("%T: %v", c.what, err)
		}
	}
	if err := pd.Close(); !strings.Contains(err.Error(), "and 4 others first") {
		t.Errorf("%v", err)
	}
	for range 2 {
		for _, c := range []interface{ Close() error }{ah, mw, mr, qp, srq, cq, ch, pd, ctx} {
			if err := c.Close(); err != nil {
				t.Errorf("%T: %v", c, err)
			}
		}
	}
	if n := len(ctx.tree.byAddr); n != 0 {
		t.Errorf("%d closed objects are still registered", n)
	}
	// Closed, everything says so and nothing is called.
	send, recv := must(NewSendChain(1, 1))(t), must(NewRecvChain(1, 1))(t)
	defer send.Close()
	defer recv.Close()
	second := func(_ any, err error) error { return err }
	if _, ok := send.BindMW(1, 0, mw, 1, Window{MR: mr}); ok {
		t.Error("a window that is closed")
	}
	for name, err := range map[string]error{
		"attr": second(ctx.Attr()), "port": second(ctx.Port(1)), "gids": second(ctx.GIDs(1)),
		"pd": second(ctx.AllocPD()), "channel": second(ctx.CreateChannel()),
		"cq": second(ctx.CreateCQ(CQSpec{Entries: 1})), "xrcd": second(ctx.OpenXRCD()),
		"mr": second(pd.RegMR(MRSpec{Addr: 1, Length: 1})),
		"mw": second(pd.AllocMW()), "srq": second(pd.CreateSRQ(SRQSpec{WRs: 1})),
		"ah": second(pd.CreateAH(AHSpec{Address{DGID: g.Addr}})),
		"qp": second(pd.CreateQP(QPSpec{Type: RC, SendCQ: cq, RecvCQ: cq})), "poll": second(cq.Poll(make([]WC, 1))),
		"arm":  cq.Arm(false),
		"send": second(qp.PostSend(send)), "recv": second(qp.PostRecv(recv)), "srq recv": second(srq.PostRecv(recv)),
		"state": second(qp.State()), "query": second(qp.Query()), "err": qp.Err(),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := ch.Next(); !errors.Is(err, ErrClosed) {
		t.Errorf("next: %v", err)
	}
	if _, _, err := ctx.NextAsync(); !errors.Is(err, ErrClosed) {
		t.Errorf("next event: %v", err)
	}
	cq.Ack()
	var never QP
	if err := never.Close(); err != nil {
		t.Errorf("never made: %v", err)
	}
	if _, err := never.PostSend(send); !errors.Is(err, ErrClosed) {
		t.Errorf("never made: %v", err)
	}
}

// TestForeigners: objects of another device or domain are refused before any call.
func TestForeigners(t *testing.T) {
	w := fakeWorld(t, "")
	one, two := w.open(t), w.openNamed(t, "fake1")
	a, b := w.newEnd(t, one, options{event: true}), w.newEnd(t, two, options{event: true})
	srq := must(b.pd.CreateSRQ(SRQSpec{WRs: 4, SGEs: 1}))(t)
	closing(t, srq)
	for name, f := range map[string]func() error{
		"send queue": func() error {
			_, err := a.pd.CreateQP(QPSpec{Type: RC, SendCQ: b.cq, RecvCQ: a.cq})
			return err
		},
		"receive queue": func() error {
			_, err := a.pd.CreateQP(QPSpec{Type: RC, SendCQ: a.cq, RecvCQ: b.cq})
			return err
		},
		"shared queue": func() error {
			_, err := a.pd.CreateQP(QPSpec{Type: RC, SendCQ: a.cq, RecvCQ: a.cq, SRQ: srq})
			return err
		},
		"channel":  func() error { _, err := one.CreateCQ(CQSpec{Entries: 1, Channel: b.channel}); return err },
		"no queue": func() error { _, err := a.pd.CreateQP(QPSpec{Type: RC, SendCQ: a.cq}); return err },
		"no type":  func() error { _, err := a.pd.CreateQP(QPSpec{SendCQ: a.cq, RecvCQ: a.cq}); return err },
		"negative": func() error {
			_, err := a.pd.CreateQP(QPSpec{Type: RC, SendCQ: a.cq, RecvCQ: a.cq, SendWRs: -1})
			return err
		},
		"XRC domain": func() error { _, err := a.pd.CreateQP(QPSpec{Type: XRCRecv}); return err },
		"XRC receives": func() error {
			_, err := a.pd.CreateQP(QPSpec{Type: XRCSend, SendCQ: a.cq, RecvWRs: 1})
			return err
		},
		"vector":        func() error { _, err := one.CreateCQ(CQSpec{Entries: 1, Vector: 99}); return err },
		"entries":       func() error { _, err := one.CreateCQ(CQSpec{}); return err },
		"half of XRC":   func() error { _, err := a.pd.CreateSRQ(SRQSpec{WRs: 1, CQ: a.cq}); return err },
		"empty chain":   func() error { _, err := NewSendChain(0, 1); return err },
		"negative room": func() error { _, err := NewRecvChain(1, -1); return err },
	} {
		if err := f(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := a.pd.CreateQP(QPSpec{Type: RawPacket, SendCQ: a.cq, RecvCQ: a.cq, SendWRs: 1,
		SendSGEs: 1}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("raw packets: %v", err)
	}
	if _, err := a.pd.CreateQP(QPSpec{Type: RC, SendCQ: a.cq, RecvCQ: a.cq, SendWRs: 1 << 20,
		SendSGEs: 1}); err == nil || !strings.Contains(err.Error(), "MaxQPWR") {
		t.Errorf("too large: %v", err)
	}
}

// TestManyAtOnce: several goroutines make, use and close their own objects of one device.
func TestManyAtOnce(t *testing.T) {
	w := fakeWorld(t, "mode wire")
	ctx := w.open(t)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 10 {
				t.Run("", func(t *testing.T) {
					a, b := w.newEnd(t, ctx, options{}), w.newEnd(t, ctx, options{})
					a.connect(t, b, options{})
					b.connect(t, a, options{})
					fill(a.buf[:512], byte(g*16+i))
					a.send.Write(uint64(g), Signaled, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(0, 512))
					a.post(t)
					one(t, a.wait(t, 1)[0], uint64(g), Success)
					sameBytes(t, b.buf[:512], a.buf[:512])
					if _, _, err := ctx.NextAsync(); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	wg.Wait()
}

// TestForeignLayout: a structure that is another one than expected is an error, before anything of
// it is used.
func TestForeignLayout(t *testing.T) {
	w := fakeWorld(t, "")
	ctx := w.open(t)
	code := must(executableNow())(t)
	if err := checkContext(ctx.h, ctx.c.device, code); err != nil {
		t.Fatal(err)
	}
	type copied struct {
		x cExtended
		c cContext
	}
	for name, c := range map[string]struct {
		spoil func(v *copied)
		says  string
	}{
		"device":   {func(v *copied) { v.c.device++ }, "ibv_context.device"},
		"vectors":  {func(v *copied) { v.c.numCompVectors = -5 }, "num_comp_vectors"},
		"fd":       {func(v *copied) { v.c.asyncFD = 1 << 20 }, "descriptors"},
		"no op":    {func(v *copied) { v.c.ops.postSend = 0 }, "post_send"},
		"data op":  {func(v *copied) { v.c.ops.pollCQ = dl.Func(ctx.h) }, "poll_cq"},
		"odd op":   {func(v *copied) { v.c.ops.allocMW = 5 }, "alloc_mw"},
		"old":      {func(v *copied) { v.c.abiCompat = 0 }, "abi_compat"},
		"short":    {func(v *copied) { v.x.sz = 8 }, "verbs_context.sz"},
		"long":     {func(v *copied) { v.x.sz = 1 << 40 }, "verbs_context.sz"},
		"odd":      {func(v *copied) { v.x.sz += 3 }, "verbs_context.sz"},
		"data ext": {func(v *copied) { v.x.createQPEx = dl.Func(ctx.h) }, "create_qp_ex"},
	} {
		v, err := newTemp[copied]()
		if err != nil {
			t.Fatal(err)
		}
		*v.v = copied{*ctx.x, *ctx.c}
		at := v.p() + sizeOf[cExtended]()
		if err := checkContext(at, ctx.c.device, code); err != nil {
			t.Errorf("a copy: %v", err)
		}
		c.spoil(v.v)
		if err := checkContext(at, ctx.c.device, code); !errors.Is(err, ErrLayout) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		v.free()
	}
	// A library that is older has less before the context: what is not there is not looked at.
	v, err := newTemp[copied]()
	if err != nil {
		t.Fatal(err)
	}
	defer v.free()
	*v.v = copied{*ctx.x, *ctx.c}
	v.v.x.sz = sizeOf[cContext]() + 64 // up to create_qp_ex
	v.v.x.queryPort, v.v.x.queryDeviceEx = 5, 5
	if x := extended(v.p() + sizeOf[cExtended]()); x.queryPortFn() != 0 || x.queryDeviceExFn() != 0 ||
		x.createQPExFn() == 0 || x.closeXRCDFn() == 0 {
		t.Errorf("%#x %#x %#x %#x", x.queryPortFn(), x.queryDeviceExFn(), x.createQPExFn(), x.closeXRCDFn())
	}
	if err := checkContext(v.p()+sizeOf[cExtended](), ctx.c.device, code); err != nil {
		t.Errorf("an old one: %v", err)
	}
	if err := w.lib.checkDevice(ctx.c.device + 8); !errors.Is(err, ErrLayout) {
		t.Errorf("not a device: %v", err)
	}
	if err := w.lib.checkDevice(3); !errors.Is(err, ErrLayout) {
		t.Errorf("not an address: %v", err)
	}
}

// TestCloseWhileAsked: a queue pair that is closed while others ask for its state, or change it,
// answers or is closed; the library is asked for nothing that it has destroyed.
func TestCloseWhileAsked(t *testing.T) {
	w := fakeWorld(t, "")
	ctx := w.open(t)
	pd := must(ctx.AllocPD())(t)
	closing(t, pd)
	cq := must(ctx.CreateCQ(CQSpec{Entries: 4}))(t)
	closing(t, cq)
	for range 300 {
		qp := must(pd.CreateQP(QPSpec{Type: RC, SendCQ: cq, RecvCQ: cq, SendWRs: 1, RecvWRs: 1, SendSGEs: 1,
			RecvSGEs: 1}))(t)
		begun := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			close(begun)
			for {
				_, err := qp.State()
				if err == nil {
					err = qp.Reset()
				}
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
		<-begun
		if err := qp.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
}

// TestForeignDomains: objects of XRC are of one device, too, and open.
func TestForeignDomains(t *testing.T) {
	w := fakeWorld(t, "")
	own, other := w.open(t), w.openNamed(t, "fake1")
	pd := must(own.AllocPD())(t)
	closing(t, pd)
	newCQ := func(c *Context) *CQ { return must(c.CreateCQ(CQSpec{Entries: 4}))(t) }
	cq, foreign, gone := newCQ(own), newCQ(other), newCQ(own)
	closing(t, cq)
	closing(t, foreign)
	here, there, shut := must(own.OpenXRCD())(t), must(other.OpenXRCD())(t), must(own.OpenXRCD())(t)
	closing(t, here)
	closing(t, there)
	if err := errors.Join(gone.Close(), shut.Close()); err != nil {
		t.Fatal(err)
	}
	shared := func(x *XRCD, q *CQ) func() error {
		return func() error {
			_, err := pd.CreateSRQ(SRQSpec{WRs: 4, SGEs: 1, XRCD: x, CQ: q})
			return err
		}
	}
	receive := func(x *XRCD) func() error {
		return func() error {
			_, err := pd.CreateQP(QPSpec{Type: XRCRecv, XRCD: x})
			return err
		}
	}
	for name, c := range map[string]struct {
		do   func() error
		want error
	}{
		"buffers, domain elsewhere":        {shared(there, cq), ErrInvalid},
		"buffers, closed domain":           {shared(shut, cq), ErrClosed},
		"buffers, queue of another device": {shared(here, foreign), ErrInvalid},
		"buffers, closed queue":            {shared(here, gone), ErrClosed},
		"receive, domain elsewhere":        {receive(there), ErrInvalid},
		"receive, closed domain":           {receive(shut), ErrClosed},
	} {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
