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
			b.Builder().Add(src, Segment{Handle: Handle(i), Off: at, Len: uint32(i), Cap: 1000})
			if rapid.IntRange(0, 9).Draw(t, "chain") == 0 {
				b.Builder().AddSegment(src, Segment{Handle: Handle(i), Off: at + 50, Len: 1, Cap: 1000})
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
		for i := from; i < to && b.Segments(i) == 1 && b.Builder().Part(i, 0).Source == src; i++ {
			want++
		}
		r := b.Builder().Run(src, from, to)
		if r.Len() != want {
			t.Fatalf("%d packets from %d to %d, want %d", r.Len(), from, to, want)
		}
		for i := range want {
			p := b.Builder().Part(from+i, 0)
			if h, off, n := r.At(i); h != p.Handle || off != p.Off || n != p.Len {
				t.Errorf("packet %d: %v, %d bytes at %d, want %+v", from+i, h, n, off, p)
			}
		}
		b.Builder().Forget()
		taken.Builder().Forget()
	})
}

// Times looks at each packet that has a time, and at no other.
func TestTimes(t *testing.T) {
	src := NewSource(nil, nil, nil)
	b := New(3)
	for range 3 {
		b.Builder().Add(src, Segment{Handle: NoHandle, Len: 60, Cap: 60})
	}
	b.Builder().SetReceived(0, 99, HasTime, 1234)
	b.SetTime(1, 5)
	for _, c := range []struct {
		from, to    int
		first, last int64
	}{{0, 1, 1234, 1234}, {1, 2, 5, 5}, {0, 3, 5, 1234}, {2, 3, 0, 0}, {1, 1, 0, 0}} {
		if first, last, ok := b.Times(c.from, c.to); first != c.first || last != c.last || ok != (last > 0) {
			t.Errorf("times of packets %d to %d: %d %d %v", c.from, c.to, first, last, ok)
		}
	}
	b.Builder().Forget()
}

// AtOnce takes away what was true when packets were received, and nothing else.
func TestAtOnce(t *testing.T) {
	src := NewSource(nil, nil, nil)
	b := New(3)
	for range 3 {
		b.Builder().Add(src, Segment{Handle: NoHandle, Len: 60, Cap: 60})
	}
	b.Builder().SetReceived(0, 99, HasTime|HardwareTime|ChecksumGood, 1234)
	b.Builder().SetPartial(2)
	b.Ask(2, ChecksumIPv4)
	b.Builder().SetHash(0, 77)
	b.Builder().SetType(0, L3IPv4)
	b.SetTime(1, 5)
	b.SetConn(1, 7)
	b.Builder().AtOnce()
	for i := range 3 {
		if ns, ok := b.Time(i); ns != 0 || ok {
			t.Errorf("packet %d: %d %v", i, ns, ok)
		}
	}
	if hash, ok := b.Hash(0); ok || hash != 0 || b.Type(0) != 0 {
		t.Errorf("hash %d %v, type %v", hash, ok, b.Type(0))
	}
	if b.Flags(0) != HardwareTime|ChecksumGood || b.WireLen(0) != 99 || b.Conn(1) != 7 {
		t.Errorf("%v, %d bytes, connection %d", b.Flags(0), b.WireLen(0), b.Conn(1))
	}
	if b.Flags(2) != ChecksumPartial || b.Builder().Asked() != ChecksumPartial {
		// whose checksum is not computed stays so
		t.Errorf("%v, all ask for %v", b.Flags(2), b.Builder().Asked())
	}
	if b.Ask(2, ChecksumL4); b.Flags(2) != ChecksumL4 { // asks for all of it
		t.Errorf("%v", b.Flags(2))
	}
	b.Builder().Forget()
}
