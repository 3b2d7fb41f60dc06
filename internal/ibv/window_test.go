package ibv

import (
	"errors"
	"testing"
)

// window is a connection with a region at b that windows may be bound to, and that peers cannot reach themselves.
func (w *world) window(t *testing.T, typ MWType) (a, b *end, mr *MR, mw *MW) {
	t.Helper()
	a, b = w.pair(t, options{})
	mr = must(b.pd.RegMR(MRSpec{Addr: start(b.buf), Length: uint64(len(b.buf)), Access: LocalWrite | MWBind}))(t)
	closing(t, mr)
	mw = must(b.pd.AllocMW(typ))(t)
	closing(t, mw)
	return a, b, mr, mw
}

func testWindow1(t *testing.T, w *world) {
	a, b, mr, mw := w.window(t, MWType1)
	before := mw.RKey()
	if err := b.qp.BindMW(50, Signaled, mw, Window{MR: mr, Addr: mr.Addr() + 4096, Length: 4096, Access: RemoteWrite}); err != nil {
		t.Fatal(err)
	}
	wc := b.wait(t, 1)[0]
	one(t, wc, 50, Success)
	if wc.Opcode() != OpBindMW || mw.RKey() == before {
		t.Errorf("%v, key %#x, was %#x", wc.Opcode(), mw.RKey(), before)
	}
	fill(a.buf[:4096], 5)
	a.send.Write(1, Signaled, mr.Addr()+4096, mw.RKey(), a.mr.SGE(0, 4096))
	a.post(t)
	one(t, a.wait(t, 1)[0], 1, Success)
	sameBytes(t, b.buf[4096:8192], a.buf[:4096])
	if err := b.qp.BindMW(1, 0, mw, Window{}); !errors.Is(err, ErrInvalid) { // drivers follow the pointer
		t.Errorf("without a region: %v", err)
	}
	key := mw.RKey()
	if w.fake { // taken back
		if err := b.qp.BindMW(51, Signaled, mw, Window{MR: mr}); err != nil {
			t.Fatal(err)
		}
		one(t, b.wait(t, 1)[0], 51, Success)
	}
	if err := mw.Close(); err != nil {
		t.Fatal(err)
	}
	a.send.Write(2, Signaled, mr.Addr()+4096, key, a.mr.SGE(0, 4096))
	a.post(t)
	one(t, a.wait(t, 1)[0], 2, RemAccessErr)
	if _, ok := b.send.BindMW(1, 0, mw, mw.NextKey(), Window{MR: mr}); ok {
		t.Error("a window of type 1 in a chain")
	}
}

func testWindow2(t *testing.T, w *world) {
	a, b, mr, mw := w.window(t, MWType2)
	first := mw.NextKey()
	if first&^0xff != mw.RKey()&^0xff || first == mw.RKey() {
		t.Fatalf("after %#x comes %#x", mw.RKey(), first)
	}
	if err := b.qp.BindMW(1, 0, mw, Window{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a window of type 2 by a call: %v", err)
	}
	if _, ok := b.send.BindMW(50, Signaled, mw, first, Window{MR: mr, Addr: mr.Addr() + 4096, Length: 4096, Access: RemoteWrite | RemoteRead}); !ok {
		t.Fatal("not taken")
	}
	b.post(t)
	wc := b.wait(t, 1)[0]
	one(t, wc, 50, Success)
	if wc.Opcode() != OpBindMW || mw.RKey() != first {
		t.Errorf("%v, key %#x", wc.Opcode(), mw.RKey())
	}
	fill(a.buf[:4096], 6)
	a.send.Write(1, 0, mr.Addr()+4096, first, a.mr.SGE(0, 4096))
	a.send.Read(2, Signaled, mr.Addr()+4096, first, a.mr.SGE(8192, 4096))
	a.post(t)
	one(t, a.wait(t, 1)[0], 2, Success)
	sameBytes(t, b.buf[4096:8192], a.buf[:4096])
	sameBytes(t, a.buf[8192:12288], a.buf[:4096])

	w.meant = append(w.meant, "windows bound")
	if err := mr.Close(); !errors.Is(err, ErrInUse) {
		t.Errorf("a region under a window: %v", err)
	}
	// It ends, and its key is dead. What a peer still writes changes nothing, and ends the connection.
	b.send.LocalInv(51, Signaled, first)
	b.post(t)
	wc = b.wait(t, 1)[0]
	one(t, wc, 51, Success)
	if wc.Opcode() != OpLocalInv {
		t.Error(wc.Opcode())
	}
	clear(b.buf[4096:8192])
	a.send.Write(3, Signaled, mr.Addr()+4096, first, a.mr.SGE(0, 64))
	a.post(t)
	one(t, a.wait(t, 1)[0], 3, RemAccessErr)
	for _, v := range b.buf[4096:8192] {
		if v != 0 {
			t.Fatal("written through a window that had ended")
		}
	}
}

// TestWindowAfterImm: a binding takes a place in a chain that had a value before. The library of Soft-RoCE refuses one with a value, as does the stand-in.
func TestWindowAfterImm(t *testing.T) {
	w := fakeWorld(t, "")
	a, b, mr, mw := w.window(t, MWType2)
	b.send.WriteImm(1, Signaled, 7, a.mr.Addr(), a.mr.RKey(), b.mr.SGE(0, 8))
	a.postRecv(t, 2, a.mr.SGE(8192, 64))
	b.post(t)
	one(t, b.wait(t, 1)[0], 1, Success)
	b.send.BindMW(50, Signaled, mw, mw.NextKey(), Window{MR: mr, Addr: mr.Addr(), Length: 64, Access: RemoteWrite})
	b.post(t)
	one(t, b.wait(t, 1)[0], 50, Success)
}

// TestWindowBounds: a window shows its part alone, with its rights alone. Soft-RoCE of Linux 6.1 does not check bounds.
func TestWindowBounds(t *testing.T) {
	for name, c := range map[string]struct {
		read     bool
		off, len uint64
	}{
		"before": {false, 4095, 2}, "behind": {false, 8191, 2}, "right": {true, 4096, 8},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, mr, mw := fakeWorld(t, "").window(t, MWType2)
			key := mw.NextKey()
			b.send.BindMW(50, Signaled, mw, key, Window{MR: mr, Addr: mr.Addr() + 4096, Length: 4096, Access: RemoteWrite})
			b.post(t)
			one(t, b.wait(t, 1)[0], 50, Success)
			if c.read {
				a.send.Read(1, Signaled, mr.Addr()+c.off, key, a.mr.SGE(0, uint32(c.len)))
			} else {
				a.send.Write(1, Signaled, mr.Addr()+c.off, key, a.mr.SGE(0, uint32(c.len)))
			}
			a.post(t)
			one(t, a.wait(t, 1)[0], 1, RemAccessErr)
		})
	}
}

func TestWindowsAbsent(t *testing.T) {
	w := fakeWorld(t, "absent mw")
	ctx := w.open(t)
	if a := must(ctx.Attr())(t); a.WindowType1 || a.WindowType2B || a.LocalInvalidate || a.MaxMW != 0 {
		t.Errorf("%+v", a)
	}
	pd := must(ctx.AllocPD())(t)
	closing(t, pd)
	if _, err := pd.AllocMW(MWType2); !errors.Is(err, ErrUnsupported) {
		t.Errorf("type 2: %v", err)
	}
	if _, err := pd.AllocMW(3); !errors.Is(err, ErrInvalid) {
		t.Errorf("type 3: %v", err)
	}
}
