package burst

import (
	"fmt"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"pgregory.net/rapid"
)

// owner tracks the handles that are out: each has to come back once, to the owner that gave it.
type owner struct {
	name string
	out  map[Handle]bool
	next Handle
	errs *[]string
}

func (o *owner) give() Handle {
	o.next++
	o.out[o.next] = true
	return o.next
}

func (o *owner) Reclaim(hs []Handle) {
	for _, h := range hs {
		if !o.out[h] {
			*o.errs = append(*o.errs, fmt.Sprintf("handle %d came back to %s, which had not given it", h, o.name))
		}
		delete(o.out, h)
	}
}

// desk is a Reserver that counts.
type desk struct {
	name string
	out  int
}

func (d *desk) Unreserve(n int) { d.out -= n }

// model is a burst as one would write it without thinking of speed.
type model struct {
	packets   []modelPacket
	cap, segs int
	sources   []*Source
	r         *desk
	reserved  int
}

type modelPacket struct {
	segs             []modelSegment
	flow, conn, wire uint32
	hash             uint32
	typ              Type
	flags            Flags
	time             int64
}

type modelSegment struct {
	src *Source
	Segment
	gone bool // ReleasePart gave it back
}

func (m *model) segments() int {
	n := 0
	for _, p := range m.packets {
		n += len(p.segs)
	}
	return n
}

func (m *model) know(s *Source) bool {
	if slices.Contains(m.sources, s) {
		return true
	}
	if len(m.sources) == MaxSources {
		return false
	}
	m.sources = append(m.sources, s)
	return true
}

func (m *model) clear() {
	m.r, m.reserved, m.packets, m.sources = nil, 0, nil, nil
}

func (m *model) reserve(r *desk, n int) {
	if m.r != r {
		m.reserved = 0
	}
	m.r = r
	m.reserved += n
}

// move reports whether packet i was moved; it stays in m as an empty one.
func (m *model) move(dst *model, i int) bool {
	p := m.packets[i]
	if len(dst.packets) == dst.cap || dst.segments()+len(p.segs) > dst.segs {
		return false
	}
	if m.r != dst.r {
		if len(dst.packets) > 0 {
			return false
		}
		dst.reserve(m.r, 0)
	}
	for _, s := range p.segs {
		if !dst.know(s.src) {
			return false
		}
	}
	dst.packets = append(dst.packets, p)
	if m.reserved > 0 && len(p.segs) > 0 {
		m.reserved--
		dst.reserved++
	}
	m.packets[i].segs = nil
	return true
}

// machine drives two bursts and their models.
type machine struct {
	b       [2]*Burst
	m       [2]model
	sources []*Source
	owners  []*owner
	desks   [2]*desk
	errs    []string
}

func newMachine(t *rapid.T, region *mem.Region) *machine {
	s := &machine{}
	for i := range MaxSources + 2 {
		o := &owner{name: fmt.Sprint("owner ", i), out: map[Handle]bool{}, errs: &s.errs}
		s.owners = append(s.owners, o)
		s.sources = append(s.sources, NewSource(region, region.All().Bytes(), o))
	}
	s.desks = [2]*desk{{name: "a"}, {name: "b"}}
	for k := range s.b {
		packets := rapid.IntRange(0, 12).Draw(t, "packets")
		segs := rapid.IntRange(0, 24).Draw(t, "segments")
		s.b[k] = NewSegmented(packets, segs)
		packets = max(packets, 1)
		s.m[k] = model{cap: packets, segs: max(segs, packets)}
	}
	return s
}

func (s *machine) step(t *rapid.T) {
	k := rapid.IntRange(0, 1).Draw(t, "burst")
	b, m, c, n := s.b[k], &s.m[k], s.b[1-k], &s.m[1-k]
	some := func() (int, bool) {
		if len(m.packets) == 0 {
			return 0, false
		}
		return rapid.IntRange(0, len(m.packets)-1).Draw(t, "packet"), true
	}
	segment := func() (*Source, modelSegment) {
		i := rapid.IntRange(0, len(s.sources)-1).Draw(t, "source")
		if rapid.Bool().Draw(t, "usual source") {
			i = 0
		}
		g := Segment{Handle: s.owners[i].give(), Off: rapid.Uint64Range(100, 200).Draw(t, "off"),
			Len: rapid.Uint32Range(0, 100).Draw(t, "len"),
			Cap: rapid.Uint32Range(0, 200).Draw(t, "cap"), Headroom: uint16(rapid.IntRange(0, 100).Draw(t, "headroom")),
			Role: rapid.SampledFrom([]Role{Frame, Header, Payload}).Draw(t, "role")}
		if rapid.IntRange(0, 4).Draw(t, "view") == 0 {
			delete(s.owners[i].out, g.Handle)
			g.Handle = NoHandle
		}
		return s.sources[i], modelSegment{src: s.sources[i], Segment: g}
	}
	drop := func(g modelSegment) { // we still own it
		if g.Handle != NoHandle {
			delete(g.src.owner.(*owner).out, g.Handle)
		}
	}
	switch op := rapid.SampledFrom([]string{"fill", "fill", "add", "add", "add", "add", "segment", "segment", "take",
		"move", "truncate", "release", "reserve",
		"part", "sets", "edges"}).Draw(t, "op"); op {
	case "fill": // as Alloc does
		r := s.desks[rapid.IntRange(0, 1).Draw(t, "desk")]
		k, x := 0, rapid.IntRange(0, 1).Draw(t, "source")
		for ; b.Room() > 0 && m.know(s.sources[x]); k++ {
			g := Segment{Handle: s.owners[x].give(), Off: 100, Len: 1, Cap: 1}
			b.Builder().Add(s.sources[x], g)
			m.packets = append(m.packets, modelPacket{segs: []modelSegment{{src: s.sources[x], Segment: g}}})
		}
		r.out += k
		b.Builder().Reserve(r, k)
		m.reserve(r, k)
	case "add":
		src, g := segment()
		want := -1
		if len(m.packets) < m.cap && m.segments() < m.segs && m.know(src) {
			want = len(m.packets)
			g2 := g
			g2.Cap = max(g2.Cap, g2.Len)
			m.packets = append(m.packets, modelPacket{segs: []modelSegment{g2}})
		}
		if got := b.Builder().Add(src, g.Segment); got != want {
			t.Fatalf("Add is %d, want %d", got, want)
		}
		if want < 0 {
			drop(g)
		}
	case "segment":
		src, g := segment()
		want := false
		if k := len(m.packets); k > 0 && m.segments() < m.segs && len(m.packets[k-1].segs) < MaxSegments &&
			m.know(src) {
			want = true
			g2 := g
			g2.Cap = max(g2.Cap, g2.Len)
			m.packets[k-1].segs = append(m.packets[k-1].segs, g2)
		}
		if got := b.Builder().AddSegment(src, g.Segment); got != want {
			t.Fatalf("AddSegment is %v, want %v", got, want)
		}
		if !want {
			drop(g)
		}
	case "take":
		i, ok := some()
		if !ok {
			return
		}
		want := len(m.packets[i].segs) > 0 && m.move(n, i)
		if got := b.Take(c, i); got != want {
			t.Fatalf("Take is %v, want %v", got, want)
		}
	case "move":
		want := 0
		for want < len(m.packets) && m.move(n, want) {
			want++
		}
		if m.packets = m.packets[want:]; len(m.packets) == 0 {
			m.clear()
		}
		if got := b.MoveTo(c); got != want {
			t.Fatalf("MoveTo is %d, want %d", got, want)
		}
	case "truncate":
		to := rapid.IntRange(-1, 13).Draw(t, "to")
		if rapid.Bool().Draw(t, "live") {
			b.Builder().TruncateLive(to)
			live := to
			for to = 0; to < len(m.packets) && live > 0; to++ {
				if len(m.packets[to].segs) > 0 {
					live--
				}
			}
		} else {
			b.Truncate(to)
		}
		if to < len(m.packets) {
			m.packets = m.packets[:max(to, 0)]
			if len(m.packets) == 0 {
				m.clear()
			} else {
				m.reserved = min(m.reserved, m.live())
			}
		}
	case "release":
		b.Release()
		m.clear()
	case "reserve":
		r, k := s.desks[rapid.IntRange(0, 1).Draw(t, "desk")], rapid.IntRange(0, 5).Draw(t, "n")
		r.out += k
		b.Builder().Reserve(r, k)
		m.reserve(r, k)
	case "part":
		from, ok := some()
		if !ok {
			return
		}
		to := rapid.IntRange(from, len(m.packets)).Draw(t, "to")
		b.Builder().ReleasePart(from, to)
		for i := range m.packets[from:to] {
			segs := m.packets[from+i].segs
			for k := range segs {
				segs[k].gone = true
			}
		}
	case "sets":
		i, ok := some()
		if !ok {
			return
		}
		p := &m.packets[i]
		p.flow, p.conn, p.wire = rapid.Uint32().Draw(t, "flow"), rapid.Uint32().Draw(t, "conn"),
			rapid.Uint32Range(0, 1<<20).Draw(t, "wire")
		p.flags, p.time = Flags(rapid.Uint16().Draw(t, "flags")), rapid.Int64().Draw(t, "time")
		b.Builder().SetFlow(i, p.flow)
		b.SetConn(i, p.conn)
		p.flags &^= HasHash | ChecksumIPv4 | ChecksumL4 | Segmented
		b.Builder().SetReceived(i, int(p.wire), p.flags|ChecksumIPv4|ChecksumL4|Segmented, p.time)
		p.hash, p.typ = rapid.Uint32().Draw(t, "hash"), Type(rapid.Uint16().Draw(t, "type"))
		p.flags |= HasHash
		b.Builder().SetHash(i, p.hash)
		b.Builder().SetType(i, p.typ)
		if rapid.Bool().Draw(t, "send time") {
			p.time = rapid.Int64Range(0, 1).Draw(t, "at")
			p.flags |= HasTime
			if p.time == 0 {
				p.flags &^= HasTime
			}
			b.SetTime(i, p.time)
		}
	case "edges":
		i, ok := some()
		if !ok || len(m.packets[i].segs) == 0 {
			return
		}
		g := &m.packets[i].segs[0]
		k := rapid.IntRange(-1, 120).Draw(t, "bytes")
		switch rapid.IntRange(0, 2).Draw(t, "edge") {
		case 0:
			want := k >= 0 && k <= int(g.Headroom)
			if want {
				g.Headroom, g.Off, g.Len, g.Cap = g.Headroom-uint16(k), g.Off-uint64(k), g.Len+uint32(k),
					g.Cap+uint32(k)
			}
			if got := b.Prepend(i, k); got != want {
				t.Fatalf("Prepend(%d) is %v", k, got)
			}
		case 1:
			want := k >= 0 && k <= int(g.Len)
			if want {
				g.Headroom, g.Off, g.Len, g.Cap = g.Headroom+uint16(k), g.Off+uint64(k), g.Len-uint32(k),
					g.Cap-uint32(k)
			}
			if got := b.TrimFront(i, k); got != want {
				t.Fatalf("TrimFront(%d) is %v", k, got)
			}
		case 2:
			want := k >= 0 && k <= int(g.Cap)
			if want {
				g.Len = uint32(k)
			}
			if got := b.SetLen(i, 0, k); got != want {
				t.Fatalf("SetLen(%d) is %v", k, got)
			}
		}
	}
}

func (m *model) live() int {
	n := 0
	for _, p := range m.packets {
		if len(p.segs) > 0 {
			n++
		}
	}
	return n
}

// check compares the bursts with their models, and the owners' records with what the models hold.
func (s *machine) check(t *rapid.T) {
	held := map[*Source]map[Handle]bool{}
	for k, b := range s.b {
		m := &s.m[k]
		if b.Len() != len(m.packets) || b.Cap() != m.cap || b.SegmentCount() != m.segments() || b.Live() != m.live() ||
			b.SegmentRoom() != m.segs-m.segments() || b.Room() != min(m.cap-len(m.packets), m.segs-m.segments()) {
			t.Fatalf("burst %d: %d packets of %d, %d live, %d segments, room for %d; model %+v", k, b.Len(), b.Cap(),
				b.Live(), b.SegmentCount(), b.Room(), m)
		}
		total := 0
		for i, p := range m.packets {
			if p.flags&ChecksumPartial&^b.Builder().Asked() != 0 && len(p.segs) > 0 {
				t.Fatalf("burst %d packet %d has a checksum to be computed, and the burst asks for %v", k, i,
					b.Builder().Asked())
			}
			if b.Segments(i) != len(p.segs) || b.Flow(i) != p.flow || b.Flows()[i] != p.flow || b.Conn(i) != p.conn ||
				b.Flags(i) != p.flags {
				t.Fatalf("burst %d packet %d differs from %+v", k, i, p)
			}
			if hash, ok := b.Hash(i); hash != p.hash || ok != (p.flags&HasHash != 0) || b.Type(i) != p.typ {
				t.Fatalf("burst %d packet %d: hash %d, %v, type %v; want %+v", k, i, hash, ok, b.Type(i), p)
			}
			if ns, ok := b.Time(i); ns != p.time || ok != (p.flags&HasTime != 0) {
				t.Fatalf("burst %d packet %d: time %d, %v", k, i, ns, ok)
			}
			length := 0
			for j, g := range p.segs {
				length += int(g.Len)
				got := b.Builder().Part(i, j)
				want := g.Segment
				if g.gone {
					want.Handle = NoHandle
				}
				if got.Source != g.src || got.Segment != want || b.Role(i, j) != g.Role ||
					b.SegmentCap(i, j) != int(g.Cap) {
					t.Fatalf("burst %d packet %d segment %d is %+v, want %+v", k, i, j, got, want)
				}
				if by := b.Bytes(i, j); len(by) != int(g.Len) || cap(by) != int(g.Cap) || len(by) > 0 &&
					&by[0] != &g.src.bytes[g.Off] {
					t.Fatalf("burst %d packet %d segment %d: bytes", k, i, j)
				}
				if sp := b.Segment(i, j); sp.Off != g.Off || sp.Len != uint64(g.Len) || sp.Region != g.src.Region() {
					t.Fatalf("burst %d packet %d segment %d: span %+v", k, i, j, sp)
				}
				if want.Handle != NoHandle {
					if held[g.src] == nil {
						held[g.src] = map[Handle]bool{}
					}
					held[g.src][want.Handle] = true
				}
			}
			total += length
			if b.PacketLen(i) != length || b.WireLen(i) != length && p.wire == 0 || b.WireLen(i) != int(p.wire) &&
				p.wire != 0 {
				t.Fatalf("burst %d packet %d has %d bytes", k, i, b.PacketLen(i))
			}
			if len(p.segs) > 0 && b.Headroom(i) != int(p.segs[0].Headroom) {
				t.Fatalf("burst %d packet %d: headroom %d", k, i, b.Headroom(i))
			}
		}
		if b.TotalLen() != total {
			t.Fatalf("burst %d has %d bytes, want %d", k, b.TotalLen(), total)
		}
		for _, d := range s.desks {
			want := 0
			if m.r == d {
				want = m.reserved
			}
			if got := b.Builder().Reserved(d); got != want {
				t.Fatalf("burst %d: %d reserved by desk %s, want %d", k, got, d.name, want)
			}
		}
	}
	for i, src := range s.sources {
		if out := s.owners[i].out; len(out) != len(held[src]) {
			t.Fatalf("%s misses %d handles, %d are in bursts", s.owners[i].name, len(out), len(held[src]))
		}
		for h := range held[src] {
			if !s.owners[i].out[h] {
				t.Fatalf("handle %d is in a burst and back at %s", h, s.owners[i].name)
			}
		}
	}
	for _, d := range s.desks {
		if want := s.b[0].Builder().Reserved(d) + s.b[1].Builder().Reserved(d); d.out != want {
			t.Fatalf("desk %s has given room for %d packets, bursts have %d", d.name, d.out, want)
		}
	}
	if len(s.errs) > 0 {
		t.Fatal(s.errs)
	}
}

func TestModel(t *testing.T) {
	region, err := mem.Alloc(mem.Options{Name: "model", Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	rapid.Check(t, func(t *rapid.T) {
		s := newMachine(t, region)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			s.step(t)
			s.check(t)
		}
		for k := range s.b {
			s.b[k].Release()
			s.m[k].clear()
		}
		s.check(t)
	})
}
