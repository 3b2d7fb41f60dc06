package ibv

import (
	"errors"
	"strings"
	"testing"
)

func testAttributes(t *testing.T, w *world) {
	ctx := w.open(t)
	a := must(ctx.Attr())(t)
	if a.Ports < 1 || a.MaxQPWR < 16 || a.MaxSGE < 1 || a.MaxCQE < 16 ||
		a.MaxRdAtomic < 1 || a.Atomics > AtomicGlobal || !a.Extended {
		t.Errorf("%+v", a)
	}
	p := must(ctx.Port(1))(t)
	if p.State != PortActive || p.Link != LinkEthernet || p.ActiveMTU.Bytes() < 256 || p.ActiveMTU > p.MaxMTU ||
		p.GIDs < 1 || p.MaxMessage < 1<<20 ||
		p.Width < 1 || p.Speed < 1e9 {
		t.Errorf("%+v", p)
	}
	var e *Error
	if _, err := ctx.Port(77); !errors.As(err, &e) || !strings.Contains(err.Error(), "no port 77") {
		t.Errorf("port 77: %v", err)
	}
	if _, err := ctx.Port(0); !errors.Is(err, ErrInvalid) {
		t.Errorf("port 0: %v", err)
	}
	gids := must(ctx.GIDs(1))(t)
	if len(gids) == 0 {
		t.Fatal("no GIDs")
	}
	old := must(ctx.gidsOneByOne(p))(t)
	if len(old) != len(gids) {
		t.Fatalf("%d GIDs at once, %d one by one", len(gids), len(old))
	}
	for i, g := range gids {
		// The fake has no sysfs, where types and interfaces are.
		if old[i].Index != g.Index || old[i].Addr != g.Addr || !w.fake &&
			(old[i].Type != g.Type || old[i].Netdev != g.Netdev) {
			t.Errorf("%v at once, %v one by one", g, old[i])
		}
		if !w.fake && (g.Netdev == "" || g.Type < GIDRoCEv1) {
			t.Errorf("%v", g)
		}
	}
	if ctx.CompVectors() < 1 || ctx.Name() != w.device ||
		!strings.HasSuffix(ctx.Device().Path(), "/infiniband/"+w.device) {
		t.Errorf("%d vectors, %s, %s", ctx.CompVectors(), ctx.Name(), ctx.Device().Path())
	}
}

// TestAttributesOfFake: the numbers that the fake is known to have, where they are.
func TestAttributesOfFake(t *testing.T) {
	w := fakeWorld(t, "limit max_sge 3; limit max_srq_sge 6")
	ctx := w.open(t)
	a := must(ctx.Attr())(t)
	if a.MaxSGE != 3 || a.MaxSRQSGE != 6 || a.Ports != 1 || a.ClockKHz != 1000000 ||
		a.TimestampMask != ^uint64(0) || a.DMABuf != nil || !a.WindowType2B || !a.XRC {
		t.Errorf("%+v", a)
	}
	p := must(ctx.Port(1))(t)
	if p.ActiveMTU != MTU1024 || p.MaxMTU != MTU4096 || p.Width != 4 || p.Speed != 100e9 || p.MaxMessage != 1<<30 ||
		p.GIDs != 16 {
		t.Errorf("%+v", p)
	}
	w.script(t, "link infiniband")
	if p := must(ctx.Port(1))(t); p.Link != LinkInfiniBand || p.LID != 1 {
		t.Errorf("%+v", p)
	}
}

// TestOldLibrary: devices without the extended attributes, and what is not known then.
func TestOldLibrary(t *testing.T) {
	w := fakeWorld(t, "absent ex; absent dmabuf; absent atomics; absent srq")
	ctx := w.open(t)
	a := must(ctx.Attr())(t)
	if a.Extended || a.TimestampMask != 0 || a.MaxQPWR == 0 || a.Atomics != AtomicNone || a.MaxSRQ != 0 ||
		!errors.Is(a.DMABuf, ErrUnsupported) {
		t.Errorf("%+v", a)
	}
	for _, f := range []string{"ibv_alloc_pd", "ibv_dealloc_pd"} {
		if n := w.count(t, f); n != 1 {
			t.Errorf("%s was called %d times to find out about dma-bufs", f, n)
		}
	}
	if _, err := ctx.Attr(); err != nil {
		t.Fatal(err)
	}
	if n := w.count(t, "ibv_query_device"); n != 1 {
		t.Errorf("the device was asked %d times", n)
	}
}

func TestInfiniBand(t *testing.T) {
	w := fakeWorld(t, "link infiniband")
	a, b := w.pair(t, options{})
	a.send.Write(1, Signaled, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(0, 8))
	a.post(t)
	one(t, a.wait(t, 1)[0], 1, Success)
}

func TestMTU(t *testing.T) {
	for n, want := range map[int]MTU{0: 0, 255: 0, 256: MTU256, 511: MTU256, 1024: MTU1024, 1500: MTU1024,
		4095: MTU2048, 4096: MTU4096, 9000: MTU4096} {
		if got := MTUOf(n); got != want {
			t.Errorf("%d bytes: %v", n, got)
		}
	}
	if MTU(0).Bytes() != 0 || MTU(6).Bytes() != 0 || MTU2048.Bytes() != 2048 || MTU4096.String() != "4096" {
		t.Error("the sizes")
	}
}

// TestStatuses: every status says what it is, and every failure what usually causes it.
func TestStatuses(t *testing.T) {
	seen := map[string]bool{}
	for s := range Status(len(statuses)) {
		if s.Name() == "" || seen[s.Name()] && s.Name() != "" || s != Success && s.Cause() == "" {
			t.Errorf("status %d: %q, %q", uint32(s), s.Name(), s.Cause())
		}
		seen[s.Name()] = true
	}
	if TMRndvIncomplete != Status(len(statuses)-1) {
		t.Errorf("%d statuses", len(statuses))
	}
	if s := Status(99).String(); s != "status 99" {
		t.Error(s)
	}
}
