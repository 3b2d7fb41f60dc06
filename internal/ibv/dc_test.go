package ibv

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/internal/dl"
)

// dcWorld is an initiator, and what targets of the same device need.
type dcWorld struct {
	w    *world
	dc   *DC
	pd   *PD
	cq   *CQ // of the initiator
	rcq  *CQ // of the targets
	srq  *SRQ
	buf  []byte
	mr   *MR
	gid  GID
	mtu  MTU
	ah   *AH
	spec DCInitiatorSpec
	i    *DCInitiator
}

func newDC(t *testing.T, script string) *dcWorld {
	t.Helper()
	w := fakeWorld(t, script)
	ctx := w.open(t)
	d := &dcWorld{w: w}
	d.dc = must(ctx.OpenDC(Options{Path: w.lib.lib.Name()}))(t)
	closing(t, d.dc)
	d.pd = must(ctx.AllocPD())(t)
	closing(t, d.pd)
	d.cq, d.rcq = must(ctx.CreateCQ(CQSpec{Entries: 64}))(t), must(ctx.CreateCQ(CQSpec{Entries: 64}))(t)
	closing(t, d.cq)
	closing(t, d.rcq)
	d.srq = must(d.pd.CreateSRQ(SRQSpec{WRs: 64, SGEs: 1}))(t)
	closing(t, d.srq)
	d.buf = memory(t, 1<<16)
	d.mr = must(d.pd.RegMR(MRSpec{Addr: start(d.buf), Length: 1 << 16, Access: everything}))(t)
	closing(t, d.mr)
	d.gid, _, _ = must3(ctx.ChooseGID(1, GIDWant{}))(t)
	port := must(ctx.Port(1))(t)
	d.mtu = port.ActiveMTU
	to := Address{DGID: d.gid.Addr, SGIDIndex: uint8(d.gid.Index)}
	if port.Link == LinkInfiniBand {
		to.LID = port.LID
	}
	d.ah = must(d.pd.CreateAH(AHSpec{To: to}))(t)
	closing(t, d.ah)
	d.spec = DCInitiatorSpec{CQ: d.cq, WRs: 16, SGEs: 2, Inline: 64, PathMTU: d.mtu, Timeout: 14, RetryCount: 7, RNRRetry: 7, ReadsLimit: 4, Atomics: true}
	d.i = must(d.dc.CreateInitiator(d.pd, d.spec))(t)
	closing(t, d.i)
	return d
}

func (d *dcWorld) targetSpec(key uint64, access Access) DCTargetSpec {
	return DCTargetSpec{SRQ: d.srq, CQ: d.rcq, Key: key, Access: access, SGIDIndex: uint8(d.gid.Index), PathMTU: d.mtu, MinRNRTimer: 12}
}

func (d *dcWorld) target(t *testing.T, key uint64, access Access) DCAddress {
	t.Helper()
	target := must(d.dc.CreateTarget(d.pd, d.targetSpec(key, access)))(t)
	closing(t, target)
	return DCAddress{AH: d.ah, Target: target.Num(), Key: key}
}

// do posts requests and checks their completions.
func (d *dcWorld) do(t *testing.T, want Status, reqs ...DCRequest) {
	t.Helper()
	for i := range reqs {
		reqs[i].ID, reqs[i].Flags = uint64(100+i), reqs[i].Flags|Signaled
		reqs[i].RemoteAddr, reqs[i].RKey = reqs[i].RemoteAddr+d.mr.Addr(), d.mr.RKey()
	}
	if err := d.i.Post(reqs); err != nil {
		t.Fatal(err)
	}
	for i, wc := range waitCQ(t, d.cq, len(reqs)) {
		one(t, wc, uint64(100+i), want)
		if wc.QPN() != d.i.Num() {
			t.Errorf("completion of queue pair %#x", wc.QPN())
		}
	}
}

// Every kind of request, to another target each time, in one batch.
func TestDCRequests(t *testing.T) {
	d := newDC(t, "")
	a, b := d.target(t, 0xfeedfacecafef00d, everything), d.target(t, 0, everything)
	if a.Target == b.Target || a.Target == 0 || a.Target == d.i.Num() {
		t.Fatalf("targets %#x and %#x of initiator %#x", a.Target, b.Target, d.i.Num())
	}
	fill(d.buf[:8192], 1)
	recv := must(NewRecvChain(4, 4))(t)
	defer recv.Close()
	for i := range 4 {
		recv.Recv(uint64(i), d.mr.SGE(40000+uint64(i)*1000, 1000))
	}
	if n, err := d.srq.PostRecv(recv); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	*dl.At[uint64](start(d.buf) + 60000) = 7
	d.do(t, Success,
		DCRequest{Op: DCWrite, To: a, RemoteAddr: 10000, SGEs: []SGE{d.mr.SGE(0, 3000)}},
		DCRequest{Op: DCRead, To: b, RemoteAddr: 3000, SGEs: []SGE{d.mr.SGE(20000, 100), d.mr.SGE(20100, 2000)}},
		DCRequest{Op: DCWrite, To: b, RemoteAddr: 30000, Inline: []byte("inline")},
		DCRequest{Op: DCWrite, To: b, RemoteAddr: 30100, Flags: Inline, SGEs: []SGE{{Addr: d.mr.Addr() + 200, Length: 50, LKey: 12345}}},
		DCRequest{Op: DCSend, To: a, SGEs: []SGE{d.mr.SGE(100, 900)}},
		DCRequest{Op: DCSendImm, To: b, Imm: 0x11223344, SGEs: []SGE{d.mr.SGE(500, 10), d.mr.SGE(510, 10)}},
		DCRequest{Op: DCWriteImm, To: a, RemoteAddr: 31000, Imm: 5, SGEs: []SGE{d.mr.SGE(0, 8)}},
		DCRequest{Op: DCFetchAdd, To: a, RemoteAddr: 60000, Operand: 5, SGEs: []SGE{d.mr.SGE(61000, 8)}},
		DCRequest{Op: DCCmpSwap, To: b, RemoteAddr: 60000, Operand: 12, Swap: 99, SGEs: []SGE{d.mr.SGE(61008, 8)}},
	)
	sameBytes(t, d.buf[10000:13000], d.buf[:3000])
	sameBytes(t, d.buf[20000:22100], d.buf[3000:5100])
	sameBytes(t, d.buf[30000:30006], []byte("inline"))
	sameBytes(t, d.buf[30100:30150], d.buf[200:250])
	sameBytes(t, d.buf[40000:40900], d.buf[100:1000])
	sameBytes(t, d.buf[41000:41020], d.buf[500:520])
	sameBytes(t, d.buf[31000:31008], d.buf[:8])
	if old, older, now := *dl.At[uint64](start(d.buf) + 61000), *dl.At[uint64](start(d.buf) + 61008), *dl.At[uint64](start(d.buf) + 60000); old != 7 || older != 12 || now != 99 {
		t.Errorf("atomics found %d and %d and left %d", old, older, now)
	}
	for i, wc := range waitCQ(t, d.rcq, 3) {
		one(t, wc, uint64(i), Success)
		to := []DCAddress{a, b, a}[i]
		if wc.QPN() != to.Target || i > 0 && wc.Imm() != []uint32{0, 0x11223344, 5}[i] {
			t.Errorf("receive %d is of target %#x, immediate value %#x", i, wc.QPN(), wc.Imm())
		}
	}
}

// One initiator reaches 1000 targets, each with a key of its own; what the device has is as many targets, one initiator, and one way.
func TestDCThousandTargets(t *testing.T) {
	d := newDC(t, "")
	const n = 1000
	var to [n]DCAddress
	seen := map[uint32]bool{}
	for i := range to {
		to[i] = d.target(t, uint64(i)*0x9e3779b97f4a7c15, RemoteWrite)
		if seen[to[i].Target] {
			t.Fatalf("two targets have number %#x", to[i].Target)
		}
		seen[to[i].Target] = true
	}
	qps := d.w.count(t, "ibv_create_qp")
	for i := 0; i < n; i += 10 {
		var reqs []DCRequest
		for j := range 10 {
			k := (i*37 + j*101) % n
			reqs = append(reqs, DCRequest{Op: DCWrite, To: to[k], RemoteAddr: uint64(k) * 8, Inline: []byte{byte(k), byte(k >> 8), 1, 2, 3, 4, 5, byte(j)}})
		}
		d.do(t, Success, reqs...)
		for j, r := range reqs {
			k := (i*37 + j*101) % n
			sameBytes(t, d.buf[k*8:k*8+8], r.Inline)
		}
	}
	if qps != n+1 || d.w.count(t, "ibv_create_qp") != qps || d.w.count(t, "ibv_create_ah") != 1 {
		t.Errorf("%d queue pairs, %d ways: expected %d and 1", d.w.count(t, "ibv_create_qp"), d.w.count(t, "ibv_create_ah"), n+1)
	}
}

// A wrong key, a target that is gone, and rights that a target does not give end the initiator's request and nothing else: memory stays as it was, the
// target serves others, and the initiator recovers.
func TestDCRefused(t *testing.T) {
	d := newDC(t, "timers instant")
	closed := must(d.dc.CreateTarget(d.pd, d.targetSpec(5, everything)))(t)
	gone := DCAddress{AH: d.ah, Target: closed.Num(), Key: 5}
	good, readOnly := d.target(t, 7, everything), d.target(t, 7, RemoteRead)
	other := must(d.dc.CreateInitiator(d.pd, d.spec))(t)
	closing(t, other)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	wrong := good
	wrong.Key++
	before := append([]byte(nil), d.buf...)
	for name, c := range map[string]struct {
		to   DCAddress
		want Status
	}{
		"wrong key":       {wrong, RemAccessErr},
		"high bits":       {DCAddress{AH: d.ah, Target: good.Target, Key: good.Key | 1<<63}, RemAccessErr},
		"gone":            {gone, RetryExcErr},
		"no target":       {DCAddress{AH: d.ah, Target: d.i.Num(), Key: 0}, RetryExcErr},
		"right not given": {readOnly, RemInvReqErr},
	} {
		t.Run(name, func(t *testing.T) {
			d.do(t, c.want, DCRequest{Op: DCWrite, To: c.to, Inline: []byte("overwritten")})
			sameBytes(t, d.buf, before)
			if s := must(d.i.qp.State())(t); s != QPError {
				t.Errorf("the initiator is in state %q", s)
			}
			if err := d.i.Recover(d.spec); err != nil {
				t.Fatal(err)
			}
			d.do(t, Success, DCRequest{Op: DCWrite, To: good, RemoteAddr: 60000, Inline: []byte("well")})
			sameBytes(t, d.buf[60000:60004], []byte("well"))
			clear(d.buf[60000:60004])
			d.do(t, Success, DCRequest{Op: DCRead, To: readOnly, SGEs: []SGE{d.mr.SGE(50000, 8)}})
		})
	}
}

// What is wrong with a request is refused before the library sees any of the batch.
func TestDCBadRequests(t *testing.T) {
	d := newDC(t, "")
	to := d.target(t, 1, everything)
	otherPD := must(d.pd.ctx.AllocPD())(t)
	closing(t, otherPD)
	otherAH := must(otherPD.CreateAH(AHSpec{To: Address{DGID: d.gid.Addr, SGIDIndex: uint8(d.gid.Index)}}))(t)
	closing(t, otherAH)
	sge := d.mr.SGE(0, 8)
	for name, r := range map[string]DCRequest{
		"operation":    {Op: 77, To: to},
		"no way":       {To: DCAddress{Target: to.Target}},
		"other domain": {To: DCAddress{AH: otherAH, Target: to.Target}},
		"no number":    {To: DCAddress{AH: d.ah}},
		"large number": {To: DCAddress{AH: d.ah, Target: 1 << 24}},
		"flag":         {To: to, Flags: Inline},
		"flag, sges":   {To: to, Flags: Inline, SGEs: []SGE{sge, sge}},
		"flag, long":   {To: to, Flags: Inline, SGEs: []SGE{d.mr.SGE(0, 600)}},
		"flag, read":   {Op: DCRead, To: to, Flags: Inline, SGEs: []SGE{sge}},
		"flag, both":   {To: to, Flags: Inline, SGEs: []SGE{sge}, Inline: make([]byte, 8)},
		"sges":         {To: to, SGEs: []SGE{sge, sge, sge}},
		"inline":       {To: to, Inline: make([]byte, 600)},
		"both":         {To: to, Inline: make([]byte, 8), SGEs: []SGE{sge}},
		"inline read":  {Op: DCRead, To: to, Inline: make([]byte, 8)},
	} {
		if err := d.i.Post([]DCRequest{{To: to, Flags: Signaled}, r}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	full := make([]DCRequest, d.i.qp.spec.SendWRs+1)
	for i := range full {
		full[i].To = to
	}
	if err := d.i.Post(full); !errors.Is(err, ErrFull) {
		t.Errorf("more requests than slots: %v", err)
	}
	quiet(t, d.cq)
	if n := d.w.count(t, "send_requests"); n != 0 {
		t.Errorf("%d requests were posted", n)
	}
	if err := d.i.Post(nil); err != nil {
		t.Error(err)
	}

	spec := d.spec
	spec.Atomics = false
	plain := must(d.dc.CreateInitiator(d.pd, spec))(t)
	if err := plain.Post([]DCRequest{{Op: DCFetchAdd, To: to, SGEs: []SGE{sge}}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("an atomic of an initiator without: %v", err)
	}
	if err := plain.Close(); err != nil {
		t.Error(err)
	}
	if err := plain.Post([]DCRequest{{To: to}}); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed initiator: %v", err)
	}
}

// What cannot be had is an error that says so.
func TestDCUnavailable(t *testing.T) {
	w := fakeWorld(t, "absent dc")
	ctx := w.open(t)
	if _, err := ctx.OpenDC(Options{Path: "/nowhere/libmlx5.so.1"}); !errors.Is(err, ErrUnavailable) || !errors.Is(err, dl.ErrNotFound) {
		t.Errorf("no library: %v", err)
	}
	if _, err := ctx.OpenDC(Options{Path: "libc.so.6"}); !errors.Is(err, ErrUnavailable) || !errors.Is(err, dl.ErrNoSymbol) {
		t.Errorf("another library: %v", err)
	}
	if _, err := ctx.OpenDC(Options{Path: w.lib.lib.Name()}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("another device: %v", err)
	}
}

// Specifications that make no sense are refused, and a device that refuses half way leaves nothing behind.
func TestDCBadSpecs(t *testing.T) {
	d := newDC(t, "")
	good, init := d.targetSpec(1, 0), d.spec
	for name, change := range map[string]func(s *DCTargetSpec){
		"srq": func(s *DCTargetSpec) { s.SRQ = nil }, "cq": func(s *DCTargetSpec) { s.CQ = nil }, "mtu": func(s *DCTargetSpec) { s.PathMTU = 0 },
		"timer": func(s *DCTargetSpec) { s.MinRNRTimer = 32 }, "rights": func(s *DCTargetSpec) { s.Access = MWBind },
	} {
		s := good
		change(&s)
		if _, err := d.dc.CreateTarget(d.pd, s); !errors.Is(err, ErrInvalid) {
			t.Errorf("target, %s: %v", name, err)
		}
	}
	for name, change := range map[string]func(s *DCInitiatorSpec){
		"cq": func(s *DCInitiatorSpec) { s.CQ = nil }, "wrs": func(s *DCInitiatorSpec) { s.WRs = 0 }, "mtu": func(s *DCInitiatorSpec) { s.PathMTU = 0 },
		"timeout": func(s *DCInitiatorSpec) { s.Timeout = 32 }, "retries": func(s *DCInitiatorSpec) { s.RetryCount = 8 },
	} {
		s := init
		change(&s)
		if _, err := d.dc.CreateInitiator(d.pd, s); !errors.Is(err, ErrInvalid) {
			t.Errorf("initiator, %s: %v", name, err)
		}
	}
	// A device that refuses half way.
	for _, step := range []string{"1", "2", "3"} {
		d.w.script(t, "fail ibv_modify_qp "+step+" EINVAL")
		if _, err := d.dc.CreateInitiator(d.pd, init); err == nil {
			t.Errorf("step %s did not fail", step)
		}
	}
	if err := d.srq.Close(); err != nil { // nothing of it is left
		t.Error(err)
	}
}

func TestDCPostAllocatesNothing(t *testing.T) {
	d := newDC(t, "")
	to := d.target(t, 1, everything)
	reqs := []DCRequest{
		{Op: DCWrite, To: to, RemoteAddr: d.mr.Addr(), RKey: d.mr.RKey(), SGEs: []SGE{d.mr.SGE(0, 8)}},
		{Op: DCWrite, To: to, RemoteAddr: d.mr.Addr(), RKey: d.mr.RKey(), Inline: []byte("12345678"), Flags: Signaled},
	}
	wc := make([]WC, 4)
	if n := testing.AllocsPerRun(100, func() {
		if err := d.i.Post(reqs); err != nil {
			t.Fatal(err)
		}
		if n, err := d.cq.Poll(wc); n != 1 || err != nil || wc[0].Status() != Success {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
