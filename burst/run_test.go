package burst

import (
	"testing"

	"pgregory.net/rapid"
)

// A run is what Part says of packets one by one.
func TestRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		srcs := []*Source{NewSource(nil, nil, nil), NewSource(nil, nil, nil)}
		b, taken := NewSegmented(12, 30), NewSegmented(12, 30)
		for i := range rapid.IntRange(0, 12).Draw(t, "packets") {
			at := uint64(i * 100)
			src := srcs[rapid.IntRange(0, 7).Draw(t, "source")/7]
			b.Add(src, Segment{Handle: Handle(i), Off: at, Len: uint32(i), Cap: 1000})
			if rapid.IntRange(0, 9).Draw(t, "chain") == 0 {
				b.AddSegment(src, Segment{Handle: Handle(i), Off: at + 50, Len: 1, Cap: 1000})
			}
		}
		for i := range b.Len() {
			if rapid.IntRange(0, 9).Draw(t, "taken") == 0 {
				b.Take(taken, i)
			}
		}
		from := rapid.IntRange(0, b.Len()).Draw(t, "from")
		to := rapid.IntRange(from, b.Len()).Draw(t, "to")
		src := srcs[0]
		want := 0
		for i := from; i < to && b.Segments(i) == 1 && b.Part(i, 0).Source == src; i++ {
			want++
		}
		r := b.Run(src, from, to)
		if r.Len() != want {
			t.Fatalf("%d packets from %d to %d, want %d", r.Len(), from, to, want)
		}
		for i := range want {
			p := b.Part(from+i, 0)
			if h, off, n := r.At(i); h != p.Handle || off != p.Off || n != p.Len {
				t.Errorf("packet %d: %v, %d bytes at %d, want %+v", from+i, h, n, off, p)
			}
		}
		b.Forget()
		taken.Forget()
	})
}

// AtOnce takes times away and nothing else.
func TestAtOnce(t *testing.T) {
	src := NewSource(nil, nil, nil)
	b := New(3)
	for range 3 {
		b.Add(src, Segment{Handle: NoHandle, Len: 60, Cap: 60})
	}
	b.SetReceived(0, 99, HasTime|HardwareTime|ChecksumGood, 1234)
	b.SetTime(1, 5)
	b.SetConn(1, 7)
	b.AtOnce()
	for i := range 3 {
		if ns, ok := b.Time(i); ns != 0 || ok {
			t.Errorf("packet %d: %d %v", i, ns, ok)
		}
	}
	if b.Flags(0) != HardwareTime|ChecksumGood || b.WireLen(0) != 99 || b.Conn(1) != 7 {
		t.Errorf("%v, %d bytes, connection %d", b.Flags(0), b.WireLen(0), b.Conn(1))
	}
	b.Forget()
}
