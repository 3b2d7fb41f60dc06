package ibv

import (
	"errors"
	"testing"
)

// window is a connection with a region at b that windows may be bound to, and that peers cannot
// reach themselves.
func (w *world) window(t *testing.T) (a, b *end, mr *MR, mw *MW) {
	t.Helper()
	a, b = w.pair(t, options{})
	mr = must(b.pd.RegMR(MRSpec{Addr: start(b.buf), Length: uint64(len(b.buf)), Access: LocalWrite | MWBind}))(t)
	closing(t, mr)
	mw = must(b.pd.AllocMW())(t)
	closing(t, mw)
	return a, b, mr, mw
}

func testWindow(t *testing.T, w *world) {
	a, b, mr, mw := w.window(t)
	first := mw.NextKey()
	if first&^0xff != mw.RKey()&^0xff || first == mw.RKey() {
		t.Fatalf("after %#x comes %#x", mw.RKey(), first)
	}
	if _, ok := b.send.BindMW(50, Signaled, mw, first,
		Window{MR: mr, Addr: mr.Addr() + 4096, Length: 4096, Access: RemoteWrite | RemoteRead}); !ok {
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
	// It ends, and its key is dead. What a peer still writes changes nothing, and ends the
	// connection.
	if err := mw.Close(); err != nil {
		t.Fatal(err)
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

// TestWindowAfterImm: a binding takes a place in a chain that had a value before. The library of
// Soft-RoCE refuses one with a value, as does the stand-in.
func TestWindowAfterImm(t *testing.T) {
	w := fakeWorld(t, "")
	a, b, mr, mw := w.window(t)
	b.send.WriteImm(1, Signaled, 7, a.mr.Addr(), a.mr.RKey(), b.mr.SGE(0, 8))
	a.postRecv(t, 2, a.mr.SGE(8192, 64))
	b.post(t)
	one(t, b.wait(t, 1)[0], 1, Success)
	b.send.BindMW(50, Signaled, mw, mw.NextKey(), Window{MR: mr, Addr: mr.Addr(), Length: 64, Access: RemoteWrite})
	b.post(t)
	one(t, b.wait(t, 1)[0], 50, Success)
}

// TestWindowBounds: a window shows its part alone, with its rights alone. Soft-RoCE of Linux 6.1
// does not check bounds.
func TestWindowBounds(t *testing.T) {
	for name, c := range map[string]struct {
		read     bool
		off, len uint64
	}{
		"before": {false, 4095, 2}, "behind": {false, 8191, 2}, "right": {true, 4096, 8},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, mr, mw := fakeWorld(t, "").window(t)
			key := mw.NextKey()
			b.send.BindMW(50, Signaled, mw, key, Window{MR: mr, Addr: mr.Addr() + 4096, Length: 4096,
				Access: RemoteWrite})
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
	if a := must(ctx.Attr())(t); a.WindowType2B {
		t.Errorf("%+v", a)
	}
	pd := must(ctx.AllocPD())(t)
	closing(t, pd)
	if _, err := pd.AllocMW(); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}
