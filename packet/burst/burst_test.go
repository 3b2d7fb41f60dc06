package burst

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const slotSize = 256

func newPool(t testing.TB, slots int) *mem.Pool {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: "burst", SlotSize: slotSize, Slots: slots})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// fill adds n packets of one slot each, whose bytes are all their number, 32 bytes behind the
// slot's begin.
func fill(t testing.TB, b *Burst, p *mem.Pool, src *Source, n int) {
	t.Helper()
	for i := range n {
		s, err := p.Get()
		if err != nil {
			t.Fatal(err)
		}
		for k := range s.Bytes() {
			s.Bytes()[k] = byte(i)
		}
		if b.Builder().Add(src, Segment{Handle: s.Handle(), Off: p.Offset(s.Handle()) + 32, Len: 100,
			Cap: slotSize - 32, Headroom: 32}) < 0 {
			t.Fatal("no room")
		}
	}
}

func TestPool(t *testing.T) {
	p := newPool(t, 8)
	src := PoolSource(p)
	b := New(8)
	if b.Len() != 0 || b.Cap() != 8 || b.Room() != 8 || !b.Builder().Owned(src) {
		t.Errorf("a new burst: %d packets of %d, room for %d", b.Len(), b.Cap(), b.Room())
	}
	for range 3 {
		fill(t, b, p, src, 8)
		if p.Stats().InUse != 8 || b.Room() != 0 || !b.Builder().Owned(src) || b.Builder().Owned(PoolSource(p)) {
			t.Error(p.Stats())
		}
		if b.Builder().Add(src, Segment{}) >= 0 || b.Builder().AddSegment(src, Segment{}) {
			t.Error("added to a full burst")
		}
		for i := range 8 {
			if got := b.Bytes(i, 0); !bytes.Equal(got, bytes.Repeat([]byte{byte(i)}, 100)) || cap(got) != slotSize-32 {
				t.Fatalf("packet %d is %v", i, got)
			}
		}
		b.Release()
		b.Release()
		if p.Stats().InUse != 0 || b.Len() != 0 || p.Stats().Rejected != 0 {
			t.Error(p.Stats())
		}
	}
}

// A header that is put in front, and one that is taken off.
func TestHeadroom(t *testing.T) {
	p := newPool(t, 1)
	b := New(1)
	fill(t, b, p, PoolSource(p), 1)
	defer b.Release()
	copy(b.Bytes(0, 0), "payload")
	if b.Headroom(0) != 32 || b.Prepend(0, 33) || b.Prepend(0, -1) || !b.Prepend(0, 4) {
		t.Fatal("Prepend")
	}
	copy(b.Bytes(0, 0), "head")
	if got := string(b.Bytes(0, 0)[:11]); got != "headpayload" || b.PacketLen(0) != 104 ||
		b.SegmentCap(0, 0) != slotSize-28 || b.Headroom(0) != 28 {
		t.Fatalf("%q, %d bytes, %d at most", got, b.PacketLen(0), b.SegmentCap(0, 0))
	}
	if b.TrimFront(0, 105) || b.TrimFront(0, -1) || !b.TrimFront(0, 8) || string(b.Bytes(0, 0)[:3]) != "oad" ||
		b.Headroom(0) != 36 {
		t.Fatalf("TrimFront leaves %q", b.Bytes(0, 0))
	}
	if b.SetLen(0, 0, -1) || b.SetLen(0, 0, slotSize-36+1) || !b.SetLen(0, 0, slotSize-36) ||
		len(b.Bytes(0, 0)) != slotSize-36 {
		t.Error("SetLen")
	}
}

// A jumbo packet is a chain; a split one has its header elsewhere, and two views of one slot share
// its handle.
func TestChains(t *testing.T) {
	p, q := newPool(t, 8), newPool(t, 8)
	chunks, headers := PoolSource(p), PoolSource(q)
	b := NewSegmented(3, 7)
	want := []byte{}
	for i := range 3 {
		s, _ := p.Get()
		copy(s.Bytes(), bytes.Repeat([]byte{byte('a' + i)}, 5))
		want = append(want, s.Bytes()[:5]...)
		g := Segment{Handle: s.Handle(), Off: p.Offset(s.Handle()), Len: 5}
		if i == 0 {
			b.Builder().Add(chunks, g)
		} else if !b.Builder().AddSegment(chunks, g) {
			t.Fatal("no room")
		}
	}
	h, _ := q.Get()
	s, _ := p.Get()
	copy(h.Bytes(), "HEADER")
	copy(s.Bytes(), "PAYLOAD")
	b.Builder().Add(headers, Segment{Handle: h.Handle(), Off: q.Offset(h.Handle()), Len: 6, Role: Header})
	b.Builder().AddSegment(chunks, Segment{Handle: s.Handle(), Off: p.Offset(s.Handle()), Len: 7, Role: Payload})
	s, _ = p.Get()
	copy(s.Bytes(), "HeaderPayload")
	b.Builder().Add(chunks, Segment{Handle: NoHandle, Off: p.Offset(s.Handle()), Len: 6, Role: Header})
	b.Builder().AddSegment(chunks, Segment{Handle: s.Handle(), Off: p.Offset(s.Handle()) + 6, Len: 7, Role: Payload})
	if b.Room() != 0 || b.Builder().AddSegment(chunks, Segment{}) {
		t.Error("room for an eighth segment")
	}
	var buf [64]byte
	for i, want := range []string{string(want), "HEADERPAYLOAD", "HeaderPayload"} {
		if got := string(buf[:b.CopyTo(buf[:], i)]); got != want || b.PacketLen(i) != len(want) {
			t.Errorf("packet %d is %q, want %q", i, got, want)
		}
		if got := string(buf[:b.CopyTo(buf[:7], i)]); got != want[:7] {
			t.Errorf("packet %d begins with %q", i, got)
		}
	}
	if b.Role(0, 2) != Frame || b.Role(1, 0) != Header || b.Role(2, 1) != Payload {
		t.Error("roles")
	}
	b.Release()
	if p.Stats().InUse+q.Stats().InUse != 0 || p.Stats().Rejected+q.Stats().Rejected != 0 {
		t.Error(p.Stats(), q.Stats())
	}
	// A chain that is too long.
	b = NewSegmented(1, MaxSegments+1)
	b.Builder().Add(chunks, Segment{Handle: NoHandle})
	n := 1
	for b.Builder().AddSegment(chunks, Segment{Handle: NoHandle}) {
		n++
	}
	if n != MaxSegments {
		t.Errorf("%d segments", n)
	}
	b.Release()
}

// Memory that the CPU cannot reach has no bytes, and everything else.
func TestNoBytes(t *testing.T) {
	r, err := mem.Alloc(mem.Options{Name: "far", Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	o := &owner{name: "far", out: map[Handle]bool{}, errs: new([]string)}
	src := NewSource(r, nil, o)
	b := New(1)
	b.Builder().Add(src, Segment{Handle: o.give(), Off: 64, Len: 100})
	if b.Bytes(0, 0) != nil || b.CopyTo(make([]byte, 10), 0) != 0 ||
		b.Segment(0, 0) != (mem.Span{Region: r, Off: 64, Len: 100}) {
		t.Error("bytes of memory without any")
	}
	b.Release()
	if len(o.out) != 0 {
		t.Error("the handle did not come back")
	}
}

type batches [][]Handle

func (o *batches) Reclaim(hs []Handle) { *o = append(*o, slices.Clone(hs)) }

// Each owner is called once per burst, and MaxSources of them fit.
func TestSources(t *testing.T) {
	var owners [MaxSources + 1]batches
	var sources [MaxSources + 1]*Source
	for i := range sources {
		sources[i] = NewSource(nil, nil, &owners[i])
	}
	b := NewSegmented(4, 40)
	for k := range 3 {
		for i := range MaxSources {
			g := Segment{Handle: Handle(10*i + k)}
			if i == 0 && b.Builder().Add(sources[i], g) < 0 || i > 0 && !b.Builder().AddSegment(sources[i], g) {
				t.Fatal("no room for a source")
			}
		}
	}
	if b.Builder().Add(sources[MaxSources], Segment{}) >= 0 || b.Builder().AddSegment(sources[MaxSources], Segment{}) ||
		b.Len() != 3 {
		t.Error("one source too many")
	}
	b.Release()
	for i, o := range owners[:MaxSources] {
		want := batches{{Handle(10 * i), Handle(10*i + 1), Handle(10*i + 2)}}
		if fmt.Sprint(o) != fmt.Sprint(want) {
			t.Errorf("owner %d got %v, want %v", i, o, want)
		}
	}
	// The sources of before are forgotten.
	if b.Builder().Add(sources[MaxSources], Segment{Handle: NoHandle}) != 0 {
		t.Error("a source too many after Release")
	}
	b.Release()
	if owners[MaxSources] != nil {
		t.Error("a handle came back that nobody gave")
	}

	// A packet that brings a source too many stays where it is, whole.
	c := NewSegmented(4, 40)
	for i := range MaxSources {
		b.Builder().Add(sources[i], Segment{Handle: NoHandle})
		b.MoveTo(c)
		if c.Len() == c.Cap() {
			c.Truncate(1)
		}
	}
	b.Builder().Add(sources[0], Segment{Handle: NoHandle})
	b.Builder().AddSegment(sources[MaxSources], Segment{Handle: 7})
	if b.Take(c, 0) || b.MoveTo(c) != 0 || b.Segments(0) != 2 {
		t.Error("a ninth source moved")
	}
	c.Release()
	b.Release()
	if len(owners[MaxSources]) != 1 {
		t.Error(owners[MaxSources])
	}
}

// Packets keep their source when they come behind those of another.
func TestMoveBehind(t *testing.T) {
	x, y := NewSource(nil, nil, new(batches)), NewSource(nil, nil, new(batches))
	b, c := New(4), New(4)
	c.Builder().Add(x, Segment{Handle: 1})
	for i := range 4 {
		b.Builder().Add(y, Segment{Handle: Handle(2 + i)})
	}
	if n := b.MoveTo(c); n != 3 || b.Len() != 1 || b.Builder().Part(0, 0).Handle != 5 {
		t.Fatalf("%d moved", n)
	}
	for i := range 4 {
		want := y
		if i == 0 {
			want = x
		}
		if p := c.Builder().Part(i, 0); p.Source != want || p.Handle != Handle(1+i) {
			t.Errorf("packet %d: handle %d", i, p.Handle)
		}
	}
	b.Release()
	c.Release()
}

func TestForget(t *testing.T) {
	var o batches
	b := New(2)
	src := NewSource(nil, nil, &o)
	b.Builder().Add(src, Segment{Handle: 3})
	part := b.Builder().Part(0, 0)
	d := &desk{out: 2}
	b.Builder().Reserve(d, 2)
	b.Builder().Forget()
	if b.Len() != 0 || o != nil || d.out != 0 {
		t.Errorf("%d packets, %v came back, %d reserved", b.Len(), o, d.out)
	}
	part.Reclaim()
	if len(o) != 1 || o[0][0] != 3 {
		t.Errorf("%v came back", o)
	}
	part.Handle = NoHandle
	part.Reclaim()
	if len(o) != 1 {
		t.Errorf("%v came back", o)
	}
	// The sender uses the room: Release does not give it back.
	b.Builder().Add(src, Segment{Handle: NoHandle})
	d.out = 1
	b.Builder().Reserve(d, 1)
	b.Builder().Unreserve()
	b.Release()
	if d.out != 1 {
		t.Error("room that was used came back")
	}
}

// Packets whose memory another owner has taken over stay in their places, and Release leaves them
// alone.
func TestForgetPart(t *testing.T) {
	var o batches
	b := NewSegmented(4, 6)
	src := NewSource(nil, nil, &o)
	for h := range Handle(4) {
		b.Builder().Add(src, Segment{Handle: 10 * h, Len: 7})
	}
	b.Builder().AddSegment(src, Segment{Handle: 31, Len: 8})
	b.Builder().ForgetPart(1, 1)
	b.Builder().ForgetPart(1, 3)
	if b.Len() != 4 || b.PacketLen(2) != 7 || b.PacketLen(3) != 15 || o != nil {
		t.Errorf("%d packets, %v came back", b.Len(), o)
	}
	b.Release()
	if len(o) != 1 || !slices.Equal(o[0], []Handle{0, 30, 31}) {
		t.Errorf("%v came back", o)
	}
	src.Reclaim(nil)
	src.Reclaim([]Handle{10, 20})
	if len(o) != 2 || !slices.Equal(o[1], []Handle{10, 20}) {
		t.Errorf("%v came back", o)
	}
}

// A packet that was taken has no room reserved any more, and takes none with it.
func TestReservedAfterTake(t *testing.T) {
	for _, sources := range []int{1, 2} {
		src := []*Source{NewSource(nil, nil, new(batches)), NewSource(nil, nil, new(batches))}
		d := &desk{out: 4}
		b, c := New(4), New(1)
		for i := range 4 {
			b.Builder().Add(src[i%sources], Segment{Handle: NoHandle})
		}
		b.Builder().Reserve(d, 4)
		b.Take(c, 0)
		if b.Builder().Reserved(d) != 3 || c.Builder().Reserved(d) != 1 || b.Live() != 3 {
			t.Fatalf("%d and %d reserved", b.Builder().Reserved(d), c.Builder().Reserved(d))
		}
		c.Release()
		c = New(2)
		if n := b.MoveTo(c); n != 2 || b.Builder().Reserved(d) != 2 || c.Builder().Reserved(d) != 1 || b.Len() != 2 {
			t.Errorf("%d moved, %d and %d reserved", n, b.Builder().Reserved(d), c.Builder().Reserved(d))
		}
		c.Release()
		b.Take(c, 1)
		b.Truncate(1)
		if b.Builder().Reserved(d) != 1 || d.out != 2 {
			t.Errorf("%d reserved, %d out", b.Builder().Reserved(d), d.out)
		}
		c.Release()
		b.Builder().Add(src[0], Segment{Handle: NoHandle})
		b.Take(c, 0)
		b.Builder().Reserve(d, 1)
		d.out++
		b.Truncate(1)
		if b.Builder().Reserved(d) != 0 || d.out != 1 {
			t.Errorf("%d reserved for a packet that is not there", b.Builder().Reserved(d))
		}
		b.Release()
		c.Release()
		if d.out != 0 {
			t.Errorf("%d out", d.out)
		}
	}
}

// An access beyond the burst says so, instead of showing what an earlier burst left.
func TestOutside(t *testing.T) {
	p := newPool(t, 8)
	b := New(8)
	fill(t, b, p, PoolSource(p), 8)
	b.Truncate(3)
	if p.Stats().InUse != 3 {
		t.Error(p.Stats())
	}
	outside := func(what string, f func()) {
		t.Helper()
		defer func() {
			if r := fmt.Sprint(recover()); !strings.Contains(r, "packet 3 of 3") {
				t.Errorf("%s: %s", what, r)
			}
		}()
		f()
	}
	outside("Bytes", func() { b.Bytes(3, 0) })
	outside("Flow", func() { b.Flow(3) })
	outside("Segments", func() { b.Segments(3) })
	outside("Time", func() { b.Time(3) })
	outside("SetConn", func() { b.SetConn(3, 1) })
	outside("Take", func() { b.Take(New(1), 3) })
	outside("PacketLen", func() { b.PacketLen(3) })
	outside("ReleasePart", func() { b.Builder().ReleasePart(1, 4) })
	if b.Take(b, 0) || b.MoveTo(b) != 0 || b.Live() != 3 || b.SegmentCount() != 3 {
		t.Error("a burst moved to itself")
	}
	b.Release()
}

func TestRoles(t *testing.T) {
	if s := fmt.Sprint(Frame, Header, Payload, Role(9)); s != "frame header payload role 9" {
		t.Error(s)
	}
}

// One goroutine fills, another releases; the pool is where they meet.
func TestTwoGoroutines(t *testing.T) {
	p := newPool(t, 64)
	src := PoolSource(p)
	full, empty := make(chan *Burst, 4), make(chan *Burst, 4)
	for range 4 {
		empty <- New(16)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for b := range full {
			for i := range b.Len() {
				if b.Bytes(i, 0)[50] != byte(i) {
					t.Errorf("packet %d has changed", i)
				}
			}
			b.Release()
			empty <- b
		}
	})
	for range 500 {
		b := <-empty
		fill(t, b, p, src, 16)
		full <- b
	}
	close(full)
	wg.Wait()
}

func TestAllocs(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "this build allocates for its checks")
	p := newPool(t, 64)
	src := PoolSource(p)
	b, c := New(64), New(65)
	var hs [64]Handle
	if n := testing.AllocsPerRun(100, func() {
		p.GetBatch(hs[:])
		for _, h := range hs {
			b.Builder().Add(src, Segment{Handle: h, Off: p.Offset(h), Len: 64})
		}
		b.Take(c, 5)
		b.MoveTo(c)
		c.Builder().ReleasePart(0, 3)
		c.Truncate(40)
		part := c.Builder().Part(39, 0)
		c.Take(b, 39)
		b.Builder().Forget()
		part.Reclaim()
		c.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// 64 packets into a burst and back to the pool.
func BenchmarkFillRelease(b *testing.B) {
	p := newPool(b, 4096)
	src := PoolSource(p)
	bu := New(64)
	var hs [64]Handle
	b.ReportAllocs()
	for b.Loop() {
		p.GetBatch(hs[:])
		for _, h := range hs {
			bu.Builder().Add(src, Segment{Handle: h, Off: p.Offset(h), Len: 64, Cap: slotSize})
		}
		bu.Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*64), "ns/packet")
}

// 64 packets from one burst to another.
func BenchmarkMoveTo(b *testing.B) {
	p := newPool(b, 64)
	x, y := New(64), New(64)
	fill(b, x, p, PoolSource(p), 64)
	b.ReportAllocs()
	for b.Loop() {
		x.MoveTo(y)
		x, y = y, x
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*64), "ns/packet")
	x.Release()
}

// TestAddSlots: the slots of a pool as packets, as many as there is room for, the same as by Add;
// and what all packets were received with.
func TestAddSlots(t *testing.T) {
	p, err := mem.NewPool(mem.PoolOptions{Name: "slots", SlotSize: 100, Slots: 12})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	src := PoolSource(p)
	hs := make([]Handle, 6)
	if p.GetBatch(hs) != 6 {
		t.Fatal("the pool has fewer slots")
	}
	one, all := New(6), New(6)
	for _, b := range []*Burst{one, all} {
		if i := b.Builder().Add(src, Segment{Handle: NoHandle, Off: 5, Len: 3}); i != 0 {
			t.Fatal(i)
		}
	}
	g := Segment{Off: 10, Len: 20, Cap: 90, Headroom: 10, Role: Header}
	lens := []uint32{1, 0, 90, 89, 20, 7}
	for i, h := range hs[:5] {
		at := g
		at.Handle, at.Off, at.Len = h, p.Offset(h)+10, lens[i]
		if one.Builder().Add(src, at) < 0 {
			t.Fatal("no room")
		}
	}
	if n := all.Builder().AddSlots(src, p, hs, lens, g); n != 5 {
		t.Fatalf("%d of 6 slots added to a burst with room for 5", n)
	}
	if all.Builder().AddSlots(src, p, hs[5:], nil, g) != 0 || all.Builder().AddSlots(src, p, nil, nil, g) != 0 {
		t.Error("slots added where there is no room")
	}
	for i := range all.Len() {
		if all.Segments(i) != 1 || all.Builder().Part(i, 0) != one.Builder().Part(i, 0) ||
			all.Flow(i)|all.Conn(i) != 0 || all.Flags(i) != 0 {
			t.Errorf("packet %d: %+v, expected %+v", i, all.Builder().Part(i, 0), one.Builder().Part(i, 0))
		}
		all.SetConn(i, 7)
		all.Builder().SetFlow(i, uint32(i))
		all.Builder().SetReceived(i, 99, Truncated, 5)
	}
	all.Builder().SetConns([]uint32{3, 4})
	if all.Conn(3) != 7 || all.Conn(4) != 3 || all.Conn(5) != 4 {
		t.Errorf("connections %d, %d, %d", all.Conn(3), all.Conn(4), all.Conn(5))
	}
	all.Builder().SetAllReceived(HasTime, 17)
	for i := range all.Len() {
		at, ok := all.Time(i)
		if at != 17 || !ok || all.Conn(i) != 0 || all.Flow(i) != uint32(i) || all.WireLen(i) != all.PacketLen(i) ||
			all.Flags(i) != HasTime {
			t.Errorf("packet %d: received at %d, flags %v, connection %d, flow %d, %d bytes on the wire", i, at,
				all.Flags(i), all.Conn(i), all.Flow(i),
				all.WireLen(i))
		}
	}
	one.Builder().Forget()
	all.Release()
	p.PutBatch(hs[5:])
	if n := p.Stats().InUse; n != 0 {
		t.Errorf("%d slots are out", n)
	}
	full := New(2 * MaxSources)
	for range MaxSources {
		full.Builder().Add(NewSource(p.Region(), nil, nil), Segment{Handle: NoHandle})
	}
	if full.Builder().AddSlots(src, p, hs, nil, g) != 0 {
		t.Error("slots added to a burst of too many sources")
	}
	full.Builder().Forget()
}

// Fetch changes nothing, and takes packets that were taken, that are empty, and that the CPU cannot
// reach.
func TestFetch(t *testing.T) {
	r, err := mem.Alloc(mem.Options{Name: "fetch", Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m := r.All().Bytes()
	for i := range m {
		m[i] = byte(i)
	}
	src, far := NewSource(r, m, nil), NewSource(r, nil, nil)
	b, other := NewSegmented(8, 16), New(1)
	b.Fetch()
	for i, s := range []*Source{src, far, src, src} {
		b.Builder().Add(s, Segment{Handle: NoHandle, Off: uint64(100 * i), Len: uint32(i)})
	}
	b.Builder().AddSegment(src, Segment{Handle: NoHandle, Off: 1 << 40, Len: 9})
	b.Builder().Add(src, Segment{Handle: NoHandle, Off: 7, Len: 1})
	b.Take(other, 2)
	b.Fetch()
	if want := m[300] + m[7]; b.fetched != want { // 0 is empty, 1 is far, 2 was taken
		t.Errorf("%d, expected %d", b.fetched, want)
	}
	if b.Len() != 5 || b.PacketLen(3) != 12 || b.PacketLen(4) != 1 {
		t.Errorf("%d packets", b.Len())
	}
	if n := testing.AllocsPerRun(10, b.Fetch); n != 0 {
		t.Errorf("%v allocations", n)
	}
	b.Release()
	other.Release()
}

// Rows are packets like those of Add, as many as there is room for.
func TestRows(t *testing.T) {
	a, c := NewSource(nil, nil, nil), NewSource(nil, nil, nil)
	b := New(4)
	b.Builder().Add(a, Segment{Handle: NoHandle})
	b.Builder().SetFlow(0, 9)
	b.Builder().SetReceived(0, 1, Truncated, 2)
	b.Builder().Forget() // what it left is not to be seen
	like := Segment{Handle: 77, Off: 78, Len: 79, Cap: 1000, Headroom: 5, Role: Payload}
	b.Builder().Add(a, Segment{Handle: NoHandle, Len: 3})
	r := b.Builder().Rows(c, 9, like)
	if r.Len() != 3 || b.Len() != 1 {
		t.Fatalf("room for %d, %d packets", r.Len(), b.Len())
	}
	for i := range 3 {
		r.Set(i, Handle(10+i), uint64(100*i), uint32(20+i))
	}
	b.Builder().AddRows(0)
	b.Builder().AddRows(2)
	if b.Len() != 3 || b.Room() != 1 || b.SegmentCount() != 3 {
		t.Fatalf("%d packets", b.Len())
	}
	for i := range 2 {
		want := Part{c, Segment{Handle: Handle(10 + i), Off: uint64(100 * i), Len: uint32(20 + i), Cap: 1000,
			Headroom: 5, Role: Payload}}
		if p := b.Builder().Part(1+i, 0); p != want || b.Flow(1+i) != 0 || b.Flags(1+i) != 0 || b.WireLen(1+i) != 20+i {
			t.Errorf("%+v, flow %d, flags %v", p, b.Flow(1+i), b.Flags(1+i))
		}
	}
	if r := b.Builder().Rows(c, 0, like); r.Len() != 0 {
		t.Errorf("room for %d, of 0", r.Len())
	}
	for range MaxSources {
		b.source(NewSource(nil, nil, nil))
	}
	if r := b.Builder().Rows(NewSource(nil, nil, nil), 1, like); r.Len() != 0 {
		t.Error("room for one Source too many")
	}
	b.Builder().Forget()
}

// A chain is one packet of several rows, or nothing.
func TestChain(t *testing.T) {
	a, c := NewSource(nil, nil, nil), NewSource(nil, nil, nil)
	b := NewSegmented(3, 8)
	b.Builder().Add(a, Segment{Handle: NoHandle})
	b.Builder().AddSegment(a, Segment{Handle: NoHandle})
	b.Builder().AddSegment(a, Segment{Handle: NoHandle})
	b.Builder().SetFlow(0, 9)
	b.Builder().Forget() // what it left is not to be seen
	b.Builder().Add(a, Segment{Handle: NoHandle, Len: 3})
	like := Segment{Handle: 77, Off: 78, Len: 79, Cap: 1000, Headroom: 5}
	if r := b.Builder().Chain(c, 8, like); r.Len() != 0 {
		t.Errorf("room for %d of 7 segments", r.Len())
	}
	r := b.Builder().Chain(c, 3, like)
	if r.Len() != 3 || b.Len() != 1 {
		t.Fatalf("room for %d, %d packets", r.Len(), b.Len())
	}
	for k := range 3 {
		r.Set(k, Handle(10+k), uint64(100*k), uint32(20+k))
	}
	b.Builder().AddChain(3)
	if b.Len() != 2 || b.Segments(1) != 3 || b.SegmentCount() != 4 || b.PacketLen(1) != 63 || b.Flow(1) != 0 {
		t.Fatalf("%d packets, the last of %d segments and %d bytes", b.Len(), b.Segments(1), b.PacketLen(1))
	}
	for k := range 3 {
		want := Part{c, Segment{Handle: Handle(10 + k), Off: uint64(100 * k), Len: uint32(20 + k), Cap: 1000,
			Headroom: 5}}
		if p := b.Builder().Part(1, k); p != want {
			t.Errorf("segment %d: %+v", k, p)
		}
	}
	if r := b.Builder().Run(a, 0, 2); r.Len() != 1 {
		t.Error("a chain is one segment")
	}
	b.Builder().Add(a, Segment{Handle: NoHandle})
	if r := b.Builder().Chain(c, 1, like); r.Len() != 0 {
		t.Error("room for a packet too many")
	}
	big := NewSegmented(1, 2*MaxSegments)
	if big.Builder().Chain(c, MaxSegments+1, like).segs != nil ||
		len(big.Builder().Chain(c, MaxSegments, like).segs) != MaxSegments {
		t.Errorf("not %d segments at most", MaxSegments)
	}
	b.Builder().Forget()
}
