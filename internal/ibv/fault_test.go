package ibv

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
)

// whole makes one of everything and uses it, and stops at the first error. Whatever happened, it
// closes what it made.
func whole(t *testing.T, w *world) (err error) {
	var closers []interface{ Close() error }
	keep := func(c interface{ Close() error }) { closers = append(closers, c) }
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			if e := closers[i].Close(); e != nil {
				if again := closers[i].Close(); again != nil { // a call that the script fails once
					t.Errorf("close, twice: %v, %v", e, again)
				}
				err = errors.Join(err, e)
			}
		}
	}()
	devs, err := w.lib.Devices()
	if err != nil {
		return err
	}
	ctx, err := devs[0].Open()
	if err != nil {
		return err
	}
	keep(ctx)
	if _, err = ctx.Attr(); err != nil {
		return err
	}
	gid, _, err := ctx.ChooseGID(1, GIDWant{})
	if err != nil {
		return err
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	keep(pd)
	ch, err := ctx.CreateChannel()
	if err != nil {
		return err
	}
	keep(ch)
	cq, err := ctx.CreateCQ(CQSpec{Entries: 16, Channel: ch})
	if err != nil {
		return err
	}
	keep(cq)
	srq, err := pd.CreateSRQ(SRQSpec{WRs: 4, SGEs: 1})
	if err != nil {
		return err
	}
	keep(srq)
	buf := memory(t, 4096)
	mr, err := pd.RegMR(MRSpec{Addr: start(buf), Length: 4096, Access: everything | MWBind})
	if err != nil {
		return err
	}
	keep(mr)
	dma, err := dmaRegion(t, pd)
	if err != nil {
		return err
	}
	keep(dma)
	mw, err := pd.AllocMW()
	if err != nil {
		return err
	}
	keep(mw)
	ah, err := pd.CreateAH(AHSpec{Address{DGID: gid.Addr, SGIDIndex: uint8(gid.Index)}})
	if err != nil {
		return err
	}
	keep(ah)
	x, err := ctx.OpenXRCD()
	if err != nil {
		return err
	}
	keep(x)
	qp, err := pd.CreateQP(QPSpec{Type: RC, SendCQ: cq, RecvCQ: cq, SRQ: srq, SendWRs: 8, SendSGEs: 1})
	if err != nil {
		return err
	}
	keep(qp)
	if err = qp.Init(InitAttr{Access: everything}); err != nil {
		return err
	}
	own, err := pd.CreateQP(QPSpec{Type: RC, SendCQ: cq, RecvCQ: cq, SendWRs: 8, RecvWRs: 2, SendSGEs: 1, RecvSGEs: 1})
	if err != nil {
		return err
	}
	keep(own)
	if err = own.Init(InitAttr{Access: everything}); err != nil {
		return err
	}
	to := RTRAttr{To: Address{DGID: gid.Addr, SGIDIndex: uint8(gid.Index)}, RemoteQPN: qp.Num(), PathMTU: MTU1024}
	if err = own.ReadyToReceive(to); err != nil {
		return err
	}
	if err = own.ReadyToSend(RTSAttr{RetryCount: 1}); err != nil {
		return err
	}
	if _, err = own.State(); err != nil {
		return err
	}
	recv := must(NewRecvChain(1, 1))(t)
	defer recv.Close()
	recv.Recv(1, mr.SGE(0, 8))
	if _, err = own.PostRecv(recv); err != nil {
		return err
	}
	recv.posted = 0
	if _, err = srq.PostRecv(recv); err != nil {
		return err
	}
	if err = cq.Arm(false); err != nil {
		return err
	}
	send := must(NewSendChain(1, 1))(t)
	defer send.Close()
	send.Send(2, Signaled, mr.SGE(0, 8))
	if _, err = own.PostSend(send); err != nil {
		return err
	}
	if _, err = cq.Poll(make([]WC, 4)); err != nil {
		return err
	}
	if _, _, err = ch.Next(); err != nil {
		return err
	}
	_, _, err = ctx.NextAsync()
	return err
}

func dmaRegion(t *testing.T, pd *PD) (*MR, error) {
	fd := must(sys.MemfdCreate("dmabuf", 4096, 0))(t)
	defer sys.Close(fd)
	return pd.RegMR(MRSpec{Length: 4096, Access: LocalWrite, DMABuf: &DMABuf{FD: fd}})
}

// faults are the calls that can fail, with the name that the error has for them, where it is
// another. Most are called several times: each is failed in its turn.
var faults = map[string]string{
	"ibv_get_device_list": "", "ibv_open_device": "", "ibv_close_device": "", "ibv_query_device": "",
	"ibv_query_port": "", "ibv_query_gid": "query_gid_table",
	"ibv_alloc_pd": "", "ibv_dealloc_pd": "", "ibv_reg_mr": "", "ibv_reg_dmabuf_mr": "", "ibv_dereg_mr": "",
	"ibv_alloc_mw": "", "ibv_dealloc_mw": "",
	"ibv_create_comp_channel": "", "ibv_destroy_comp_channel": "", "ibv_create_cq": "", "ibv_destroy_cq": "",
	"ibv_get_cq_event": "", "ibv_poll_cq": "",
	"ibv_req_notify_cq": "", "ibv_create_srq": "", "ibv_destroy_srq": "", "ibv_post_srq_recv": "", "ibv_open_xrcd": "",
	"ibv_close_xrcd": "", "ibv_create_qp": "", "ibv_modify_qp": "", "ibv_query_qp": "", "ibv_destroy_qp": "",
	"ibv_post_send": "", "ibv_post_recv": "",
	"ibv_create_ah": "", "ibv_destroy_ah": "", "ibv_get_async_event": "",
}

// TestFaults fails every call of the library, one at a time: each is an error with its name and
// number, and nothing is left behind.
func TestFaults(t *testing.T) {
	w := fakeWorld(t, "")
	if err := whole(t, w); err != nil {
		t.Fatalf("without a fault: %v", err)
	}
	for call, name := range faults {
		times := w.count(t, call)
		if times == 0 {
			t.Errorf("%s is not called", call)
		}
		if name == "" {
			name = strings.TrimPrefix(call, "ibv_")
		}
		for i := range min(times, 4) {
			t.Run(call, func(t *testing.T) {
				w := fakeWorld(t, "")
				w.script(t, "fail "+call+" "+string(rune('1'+i))+" EIO")
				err := whole(t, w)
				// The probe for dma-bufs is an attempt: what it finds is an attribute, not an
				// error.
				if call == "ibv_reg_dmabuf_mr" && i == 0 {
					if err != nil {
						t.Errorf("the probe: %v", err)
					}
					return
				}
				if !errors.Is(err, sys.EIO) || !strings.Contains(err.Error(), "ibv: "+name) {
					t.Errorf("%v", err)
				}
			})
		}
		w = fakeWorld(t, "")
		if err := whole(t, w); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRefusedAtPost: the library refuses a request of a chain. Those before it are executed, and
// the chain goes on with it.
func TestRefusedAtPost(t *testing.T) {
	w := fakeWorld(t, "")
	a, b := w.pair(t, options{qp: QPSpec{SendSGEs: 2}})
	a.send.FetchAdd(1, Signaled, b.mr.Addr(), b.mr.RKey(), 1, a.mr.SGE(8, 8))
	a.send.FetchAdd(2, Signaled, b.mr.Addr(), b.mr.RKey(), 10, a.mr.SGE(16, 8))
	a.send.Write(3, Signaled, b.mr.Addr()+64, b.mr.RKey(), a.mr.SGE(0, 1), a.mr.SGE(0, 1), a.mr.SGE(0, 1)) // three SGEs
	a.send.FetchAdd(4, Signaled, b.mr.Addr(), b.mr.RKey(), 100, a.mr.SGE(24, 8))
	n, err := a.qp.PostSend(a.send)
	if n != 2 || !errors.Is(err, ErrInvalid) || a.send.posted != 2 ||
		!strings.Contains(err.Error(), "request 2 of the chain") {
		t.Fatalf("%d posted (%d): %v", n, a.send.posted, err)
	}
	for i, wc := range a.wait(t, 2) {
		one(t, wc, uint64(i+1), Success)
	}
	if got := words(b.buf)[0]; got != 11 {
		t.Errorf("%d: expected those before the refused one, once each", got)
	}
	// Refused by the script before any request was looked at.
	w.script(t, "fail ibv_post_send 1 EAGAIN")
	if n, err := a.qp.PostSend(a.send); n != 0 || !errors.Is(err, ErrFull) || a.send.posted != 2 {
		t.Errorf("%d posted: %v", n, err)
	}
	quiet(t, a.cq)
}

// TestNoDevices: a machine without devices says what to do.
func TestNoDevices(t *testing.T) {
	w := fakeWorld(t, "")
	w.script(t, "fail ibv_get_device_list 1 ENOSYS")
	if _, err := w.lib.Devices(); !errors.Is(err, ErrUnavailable) ||
		!strings.Contains(err.Error(), "modprobe ib_uverbs") {
		t.Errorf("%v", err)
	}
	w.script(t, "fail ibv_open_device 1 EACCES")
	devs := must(w.lib.Devices())(t)
	if _, err := devs[0].Open(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "/dev/infiniband") {
		t.Errorf("%v", err)
	}
	gone := *devs[0]
	gone.name = "fake7"
	if _, err := gone.Open(); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "fake7 is gone") {
		t.Errorf("%v", err)
	}
}
