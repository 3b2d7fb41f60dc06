package ibv

import (
	"errors"
	"strings"
	"testing"
)

// quick are retries that end soon.
var quick = RTSAttr{PSN: 5, Timeout: 10, RetryCount: 2, RNRRetry: 0, MaxRdAtomic: 4}

// failsWith posts what is in the chain of a, whose only request must fail so; what comes behind is
// flushed, and ids are kept.
func failsWith(t *testing.T, a *end, id uint64, want ...Status) {
	t.Helper()
	a.post(t)
	wc := a.wait(t, 1)[0]
	ok := false
	for _, s := range want {
		ok = ok || wc.Status() == s
	}
	if !ok || wc.ID() != id {
		t.Fatalf("request %#x ends with %v; expected %#x, %v", wc.ID(), wc.Status(), id, want)
	}
	var ce *CompletionError
	if err := wc.Err(); !errors.As(err, &ce) || ce.ID != id || ce.Status != wc.Status() ||
		!strings.Contains(err.Error(), wc.Status().Cause()) {
		t.Errorf("the error: %v", err)
	}
	if s, err := a.qp.State(); s != QPError || err != nil {
		t.Errorf("state %v, %v", s, err)
	}
	a.send.Write(id+1, 0, 0, 0, a.mr.SGE(0, 4)) // errors complete also what is not signaled
	a.send.Send(id+2, Signaled, a.mr.SGE(0, 4))
	a.post(t)
	for i, wc := range a.wait(t, 2) {
		one(t, wc, id+1+uint64(i), WRFlushErr)
	}
}

// testRemoteErrors: what a peer must refuse. Nothing is written.
func testRemoteErrors(t *testing.T, w *world) {
	const id = 0xdead_beef_0000_0000
	for name, c := range map[string]struct {
		o    options
		post func(a, b *end)
		want []Status
	}{
		"unknown key": {options{}, func(a, b *end) {
			a.send.Write(id, 0, b.mr.Addr(), b.mr.RKey()+0x1000, a.mr.SGE(0, 64))
		}, []Status{RemAccessErr}},
		"beyond the end": {options{}, func(a, b *end) {
			a.send.Write(id, 0, b.mr.Addr()+b.mr.Length()-63, b.mr.RKey(), a.mr.SGE(0, 64))
		}, []Status{RemAccessErr}},
		"before the beginning": {options{}, func(a, b *end) {
			a.send.Read(id, 0, b.mr.Addr()-1, b.mr.RKey(), a.mr.SGE(0, 64))
		}, []Status{RemAccessErr}},
		"around the end of addresses": {options{}, func(a, b *end) {
			a.send.Write(id, 0, ^uint64(0)-8, b.mr.RKey(), a.mr.SGE(0, 64))
		}, []Status{RemAccessErr}},
		"no right to write": {options{access: LocalWrite | RemoteRead}, func(a, b *end) {
			a.send.Write(id, 0, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(0, 64))
		}, []Status{RemAccessErr}},
		"no right to read": {options{access: LocalWrite | RemoteWrite}, func(a, b *end) {
			a.send.Read(id, 0, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(0, 64))
		}, []Status{RemAccessErr}},
		"no right of the queue pair": {options{peer: RemoteRead}, func(a, b *end) {
			a.send.Write(id, 0, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(0, 64))
		}, []Status{RemInvReqErr}},
		"a small receive": {options{}, func(a, b *end) {
			a.send.Send(id, 0, a.mr.SGE(0, 64))
		}, []Status{RemInvReqErr, RemOpErr}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := w.pair(t, c.o)
			fill(a.buf[:64], 9)
			b.postRecv(t, 44, b.mr.SGE(0, 63))
			c.post(a, b)
			failsWith(t, a, id, c.want...)
			for i, v := range b.buf {
				if v != 0 && name != "a small receive" {
					t.Fatalf("byte %d was written", i)
				}
			}
			one := b.wait(t, 1)[0] // the receive is flushed, or failed itself
			if one.ID() != 44 || one.Status() == Success {
				t.Errorf("the receive: %#x, %v", one.ID(), one.Status())
			}
		})
	}
}

func testLocalErrors(t *testing.T, w *world) {
	for name, post := range map[string]func(a, b *end){
		"unknown key": func(a, b *end) {
			s := a.mr.SGE(0, 64)
			s.LKey += 0x1000
			a.send.Write(7, 0, b.mr.Addr(), b.mr.RKey(), s)
		},
		"beyond the end":    func(a, b *end) { a.send.Send(7, 0, a.mr.SGE(a.mr.Length()-10, 11)) },
		"of another domain": func(a, b *end) { a.send.Send(7, 0, b.mr.SGE(0, 64)) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := w.pair(t, options{})
			post(a, b)
			failsWith(t, a, 7, LocProtErr, LocQPOpErr)
		})
	}
}

func testRetries(t *testing.T, w *world) {
	t.Run("no receive", func(t *testing.T) {
		a, _ := w.pair(t, options{rts: quick})
		a.send.Send(7, 0, a.mr.SGE(0, 64))
		failsWith(t, a, 7, RNRRetryExcErr)
	})
	t.Run("no peer", func(t *testing.T) {
		a, b := w.pair(t, options{rts: quick})
		if err := b.qp.Reset(); err != nil {
			t.Fatal(err)
		}
		a.send.Write(7, 0, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(0, 64))
		failsWith(t, a, 7, RetryExcErr)
	})
	t.Run("receive comes later", func(t *testing.T) {
		a, b := w.pair(t, options{}) // waits for ever
		a.send.Send(7, Signaled, a.mr.SGE(0, 64))
		a.post(t)
		quiet(t, a.cq)
		b.postRecv(t, 8, b.mr.SGE(0, 64))
		one(t, a.wait(t, 1)[0], 7, Success)
		one(t, b.wait(t, 1)[0], 8, Success)
	})
}

// testFlush: ending a queue pair gives back everything that was posted, by its id.
func testFlush(t *testing.T, w *world) {
	a, b := w.pair(t, options{})
	for i := range 4 {
		a.postRecv(t, uint64(100+i), a.mr.SGE(0, 64))
	}
	a.send.Send(200, 0, a.mr.SGE(0, 64)) // there is no receive: it waits
	a.send.Send(201, Signaled, a.mr.SGE(0, 64))
	a.post(t)
	if err := a.qp.Err(); err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	for _, wc := range a.wait(t, 6) {
		if wc.Status() != WRFlushErr || seen[wc.ID()] {
			t.Errorf("%d: %v", wc.ID(), wc.Status())
		}
		seen[wc.ID()] = true
	}
	for _, id := range []uint64{100, 101, 102, 103, 200, 201} {
		if !seen[id] {
			t.Errorf("%d has no completion", id)
		}
	}
	quiet(t, b.cq)
}
