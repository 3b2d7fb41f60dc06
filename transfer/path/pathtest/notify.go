package pathtest

import (
	"bytes"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
)

// imm is a value that uses all 64 bits.
func imm(i int) uint64 { return mix(uint64(i)) | 1<<63 }

// message is the n bytes that go with an imm.
func message(imm uint64, n int) []byte {
	b := make([]byte, n)
	Fill(b, imm)
	return b
}

func checkNotify(t testing.TB, f Factory) {
	p := NewPair(t, f, 16)
	for _, s := range p.Sides() {
		o := s.Other()
		// Three windows full, so that the sender must wait for the receiver.
		var ops []path.Op
		for i := range 48 {
			n := i * 37 % (path.MaxMessage + 1)
			if i < 4 {
				n = []int{0, 1, path.MaxMessage - 1, path.MaxMessage}[i]
			}
			ops = append(ops, path.Op{Kind: path.Notify, Imm: imm(i), Msg: message(imm(i), n)})
		}
		results := s.Post(ops...)
		for i := range ops {
			clear(ops[i].Msg) // Post has copied it
		}
		p.Drive("48 notifications", func() bool { return s.pending == 0 && len(o.Notices) >= 48 })
		got := o.take()
		if len(got) != 48 {
			t.Fatalf("side %s sent 48 notifications, the peer received %d", s.Name, len(got))
		}
		for i, n := range got {
			if err := results[i].Err; err != nil {
				t.Errorf("notification %d: %v", i, err)
			}
			if n.Imm != imm(i) {
				t.Fatalf("side %s: notification %d has imm %#x, expected %#x: lost, changed or out of order", o.Name, i,
					n.Imm, imm(i))
			}
			if !bytes.Equal(n.Msg, message(imm(i), len(ops[i].Msg))) {
				t.Fatalf("side %s: notification %d has a wrong message of %d bytes, expected %d", o.Name, i, len(n.Msg),
					len(ops[i].Msg))
			}
			if n.Bytes != 0 {
				t.Errorf("side %s: notification %d says %d bytes, expected 0", o.Name, i, n.Bytes)
			}
		}

		wantErr(t, "message of MaxMessage+1 bytes",
			s.Do(path.Op{Kind: path.Notify, Msg: make([]byte, path.MaxMessage+1)}).Err, path.ErrTooLarge)
		if n := s.Path.Capabilities().MaxMessage; n < path.MaxMessage {
			t.Errorf("Capabilities().MaxMessage is %d; every path must carry %d", n, path.MaxMessage)
		}

		l := p.direction(s, 1<<20)
		Fill(l.here, 3)
		for i, kind := range []path.OpKind{path.Put, path.Get, path.Put, path.Get} {
			op := l.op(kind, l.copyOf(0, 0, 1000), l.copyOf(5000, 5000, 3))
			if i >= 2 {
				op = l.op(kind, l.copyOf(0, 0, 1<<20))
			}
			op.Notify, op.Imm, op.Msg = true, imm(i), message(imm(i), i*300)
			s.MustDo(op)
			p.Drive("the notification of a put or get", func() bool { return len(o.Notices) > 0 })
			n := o.take()[0]
			if n.Imm != op.Imm || n.Bytes != op.Bytes() || !bytes.Equal(n.Msg, message(imm(i), i*300)) {
				t.Errorf("side %s: notification of operation kind %d: imm %#x, %d bytes, message of %d; expected "+
					"%#x, %d, %d",
					o.Name, kind, n.Imm, n.Bytes, len(n.Msg), op.Imm, op.Bytes(), i*300)
			}
			// Without Notify the peer hears nothing, neither of success nor of failure.
			op.Notify = false
			s.MustDo(op)
			op.Notify = true
			op.Copies[0].Key.Secret++
			wantErr(t, "put or get with a forged key", s.Do(op).Err, path.ErrKey)
			s.MustDo(path.Op{Kind: path.Notify, Imm: 1})
			p.Drive("a notification", func() bool { return len(o.Notices) > 0 })
			if n := o.take(); len(n) != 1 || n[0].Imm != 1 {
				t.Errorf("side %s: %d notifications, first imm %#x; expected only the one that was asked for", o.Name,
					len(n), n[0].Imm)
			}
		}
	}
}

// checkVisible looks at the bytes at the very moment when an event says that they are there.
func checkVisible(t testing.TB, f Factory) {
	p := newPair(t, f)
	sizes := []int{1, 64, 4096, 100_000, 3 << 20}
	for _, b := range f.Boundaries {
		sizes = append(sizes, b, b+1)
	}
	for _, s := range p.Sides() {
		o := s.Other()
		l := p.direction(s, 4<<20)
		seed := uint64(0)
		for _, n := range sizes {
			if n == 0 || n > len(l.here) {
				continue
			}
			for _, kind := range bothKinds {
				seed++
				src, dst := l.ends(kind)
				setAll(dst[:n], 0)
				Fill(src[:n], seed)
				seen := 0
				look := func(e *path.Event) {
					seen++
					if i := Verify(dst[:n], seed); i >= 0 {
						t.Errorf("event kind %d of an operation kind %d of %d bytes: byte %d is not there yet", e.Kind,
							kind, n, i)
					}
				}
				s.onEvent, o.onEvent = look, look
				op := l.op(kind, l.copyOf(0, 0, n))
				op.Notify = true
				s.MustDo(op)
				p.Drive("the notification", func() bool { return len(o.Notices) > 0 })
				o.take()
				s.onEvent, o.onEvent = nil, nil
				if seen != 2 {
					t.Errorf("%d events for one operation with a notification; expected 2", seen)
				}
			}
		}
	}
}
