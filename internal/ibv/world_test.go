package ibv

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/internal/sys"
)

// loaded is the fake library, loaded once: it has one state for the whole process, which each test
// resets.
var loaded = sync.OnceValues(func() (*Library, error) {
	path, err := verbs.Build()
	if err != nil {
		return nil, err
	}
	return Load(Options{Path: path})
})

// fakeFunc is one of the fake's own functions.
func fakeFunc(t testing.TB, l *Library, name string) dl.Func {
	t.Helper()
	f, err := l.lib.Symbol(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// world is a device that tests run on: the fake's, or a real one in a guest.
type world struct {
	lib    *Library
	device string
	fake   bool
	meant  []string // rules that the test breaks on purpose
}

// fakeWorld is the fake with a script. When the test ends, nothing may be left and no rule may have
// been broken.
func fakeWorld(t testing.TB, script string) *world {
	t.Helper()
	l, err := loaded()
	if errors.Is(err, verbs.ErrMissing) {
		testenv.Missing(t, "the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &world{lib: l, device: "fake0", fake: true}
	w.script(t, "reset")
	if script != "" {
		w.script(t, script)
	}
	t.Cleanup(func() {
		for line := range strings.Lines(w.report(t)) {
			line = strings.TrimSpace(line)
			if line != "clean" && !t.Failed() && !slices.ContainsFunc(w.meant, func(s string) bool {
				return strings.Contains(line, s)
			}) {
				t.Errorf("the fake reports: %s", line)
			}
		}
	})
	return w
}

// script adds lines to the fake's script.
func (w *world) script(t testing.TB, s string) {
	t.Helper()
	if wrong := dl.GoString(callString(t, fakeFunc(t, w.lib, "penstock_fake_script"), s)); wrong != "" {
		t.Fatalf("script %q: %s", s, wrong)
	}
}

// report is what the fake says of leaks and broken rules: "clean" when there is nothing.
func (w *world) report(t testing.TB) string {
	t.Helper()
	s := dl.GoString(fakeFunc(t, w.lib, "penstock_fake_report").Call0())
	s = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(s), "penstock fake verbs report:"))
	if s == "" {
		return "clean"
	}
	return s
}

// count is how often a function of the fake was called.
func (w *world) count(t testing.TB, name string) int {
	t.Helper()
	return int(int64(callString(t, fakeFunc(t, w.lib, "penstock_fake_count"), name)))
}

// open opens the world's device, and closes it when the test ends.
func (w *world) open(t testing.TB) *Context {
	t.Helper()
	return w.openNamed(t, w.device)
}

func (w *world) openNamed(t testing.TB, name string) *Context {
	t.Helper()
	devs, err := w.lib.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devs {
		if d.Name() == name {
			ctx, err := d.Open()
			if err != nil {
				t.Fatal(err)
			}
			closing(t, ctx)
			return ctx
		}
	}
	t.Fatalf("no device %s", name)
	return nil
}

// closing closes something when the test ends, which must work.
func closing(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

// must is the value of a call that does not fail.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// memory is n bytes outside the Go heap.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	b, err := sys.MmapAnonymous(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sys.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

// everything is all that a queue pair's peer may do.
const everything = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic

// end is one end of a connection: a device, opened, with its objects.
type end struct {
	ctx        *Context
	pd         *PD
	channel    *Channel
	cq         *CQ
	qp         *QP
	buf        []byte
	mr         *MR
	send       *SendChain
	recv       *RecvChain
	gid        GID
	remotePeer *end
}

// options change what newEnd makes.
type options struct {
	qp     QPSpec
	cqe    int
	access Access // of the region
	peer   Access // of the queue pair
	size   int
	event  bool
	rts    RTSAttr
}

func (o *options) defaults() {
	if o.qp.Type == 0 {
		o.qp.Type = RC
	}
	if o.qp.SendWRs == 0 {
		o.qp.SendWRs = 32
	}
	if o.qp.RecvWRs == 0 && o.qp.SRQ == nil {
		o.qp.RecvWRs = 32
	}
	if o.qp.SendSGEs == 0 {
		o.qp.SendSGEs = 4
	}
	if o.qp.RecvSGEs == 0 {
		o.qp.RecvSGEs = 4
	}
	if o.cqe == 0 {
		o.cqe = 128
	}
	if o.access == 0 {
		o.access = everything | MWBind
	}
	if o.peer == 0 {
		o.peer = RemoteWrite | RemoteRead | RemoteAtomic | LocalWrite
	}
	if o.size == 0 {
		o.size = 1 << 16
	}
	if o.rts == (RTSAttr{}) {
		o.rts = RTSAttr{PSN: 0x123, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 4}
	}
}

const qkey = 0x11111111

// newEnd makes everything up to a queue pair in state Init, or without one where the type is 0.
func (w *world) newEnd(t testing.TB, ctx *Context, o options) *end {
	t.Helper()
	o.defaults()
	e := &end{ctx: ctx}
	e.pd = must(ctx.AllocPD())(t)
	closing(t, e.pd)
	e.buf = memory(t, o.size)
	e.mr = must(e.pd.RegMR(MRSpec{Addr: dl.Address(e.buf), Length: uint64(len(e.buf)), Access: o.access}))(t)
	closing(t, e.mr)
	if o.event {
		e.channel = must(ctx.CreateChannel())(t)
		closing(t, e.channel)
	}
	e.cq = must(ctx.CreateCQ(CQSpec{Entries: o.cqe, Channel: e.channel}))(t)
	closing(t, e.cq)
	s := o.qp
	s.SendCQ, s.RecvCQ = e.cq, e.cq
	e.qp = must(e.pd.CreateQP(s))(t)
	closing(t, e.qp)
	e.send = must(NewSendChain(64, 256))(t)
	t.Cleanup(e.send.Close)
	e.recv = must(NewRecvChain(64, 256))(t)
	t.Cleanup(e.recv.Close)
	e.gid, _, _ = must3(ctx.ChooseGID(1, GIDWant{}))(t)
	init := InitAttr{Access: o.peer}
	if s.Type == UD {
		init = InitAttr{QKey: qkey}
	}
	if err := e.qp.Init(init); err != nil {
		t.Fatal(err)
	}
	return e
}

func must3[A, B any](a A, b B, err error) func(t testing.TB) (A, B, error) {
	return func(t testing.TB) (A, B, error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return a, b, nil
	}
}

// connect brings an end to ReadyToSend, to its peer.
func (e *end) connect(t testing.TB, peer *end, o options) {
	t.Helper()
	o.defaults()
	port := must(e.ctx.Port(1))(t)
	rtr := RTRAttr{To: Address{DGID: peer.gid.Addr, SGIDIndex: uint8(e.gid.Index)}, RemoteQPN: peer.qp.Num(),
		PSN: o.rts.PSN, PathMTU: port.ActiveMTU,
		MaxDestRdAtomic: 4, MinRNRTimer: 1}
	if port.Link == LinkInfiniBand {
		rtr.To.LID = must(peer.ctx.Port(1))(t).LID
	}
	if err := e.qp.ReadyToReceive(rtr); err != nil {
		t.Fatal(err)
	}
	if err := e.qp.ReadyToSend(o.rts); err != nil {
		t.Fatal(err)
	}
	e.remotePeer = peer
}

// pair is two connected ends on the world's device.
func (w *world) pair(t testing.TB, o options) (a, b *end) {
	t.Helper()
	ctx := w.open(t)
	a, b = w.newEnd(t, ctx, o), w.newEnd(t, ctx, o)
	a.connect(t, b, o)
	b.connect(t, a, o)
	return a, b
}

// post posts everything in the send chain and empties it.
// put writes bytes into the memory of the end, for a request that sends them.
func (e *end) put(at int, b []byte) SGE {
	copy(e.buf[at:], b)
	return e.mr.SGE(uint64(at), uint32(len(b)))
}

func (e *end) post(t testing.TB) {
	t.Helper()
	n, err := e.qp.PostSend(e.send)
	if err != nil || n != e.send.Len() {
		t.Fatalf("posted %d of %d: %v", n, e.send.Len(), err)
	}
	e.send.Reset()
}

// postRecv posts one receive into part of the buffer.
func (e *end) postRecv(t testing.TB, id uint64, sges ...SGE) {
	t.Helper()
	e.recv.Reset()
	if _, ok := e.recv.Recv(id, sges...); !ok {
		t.Fatal("the chain is full")
	}
	if n, err := e.qp.PostRecv(e.recv); n != 1 || err != nil {
		t.Fatalf("posted %d: %v", n, err)
	}
}

// long is how long a test waits for what must come.
const long = time.Minute

// wait polls until n completions came.
func (e *end) wait(t testing.TB, n int) []WC {
	t.Helper()
	return waitCQ(t, e.cq, n)
}

func waitCQ(t testing.TB, cq *CQ, n int) []WC {
	t.Helper()
	out := make([]WC, 0, n)
	wc := make([]WC, max(n, 1))
	for deadline := time.Now().Add(long); len(out) < n; {
		got, err := cq.Poll(wc[:n-len(out)])
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, wc[:got]...)
		if got == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d completions", len(out), n)
			}
			runtime.Gosched()
		}
	}
	return out
}

// quiet is that a queue has nothing.
func quiet(t testing.TB, cq *CQ) {
	t.Helper()
	wc := make([]WC, 4)
	if n, err := cq.Poll(wc); n != 0 || err != nil {
		t.Errorf("%d completions (%v %v), %v: expected none", n, wc[0].Opcode(), wc[0].Status(), err)
	}
}

// one is a completion that must have an id and a status.
func one(t testing.TB, wc WC, id uint64, s Status) {
	t.Helper()
	if wc.ID() != id || wc.Status() != s {
		t.Errorf("completion of %#x: %v; expected %#x: %v", wc.ID(), wc.Status(), id, s)
	}
}

// fill makes bytes by which a test recognizes a copy.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
}

// sameBytes compares what arrived.
func sameBytes(t testing.TB, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		for i := range got {
			if i >= len(want) || got[i] != want[i] {
				t.Fatalf("byte %d of %d is %#x: expected another", i, len(got), got[i])
			}
		}
		t.Fatalf("%d bytes of %d", len(got), len(want))
	}
}

// nextAsync waits for an event of the device.
func nextAsync(t testing.TB, c *Context) AsyncEvent {
	t.Helper()
	for deadline := time.Now().Add(long); ; {
		ev, ok, err := c.NextAsync()
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			return ev
		}
		left := time.Until(deadline)
		if left <= 0 {
			t.Fatal("no event")
		}
		if _, err := sys.PollIn(int(left.Milliseconds())+1, c.AsyncFD()); err != nil {
			t.Fatal(err)
		}
	}
}

// start is the address of memory outside the Go heap.
func start(b []byte) uintptr { return dl.Address(b) }
