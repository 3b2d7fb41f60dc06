package flow

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/penstock-io/penstock/packet"
)

// maxPieces is into how many pieces a rule may fall while those before it are taken away; beyond,
// it counts as reachable.
const maxPieces = 64

// shape is a rule as the comparison of rules needs it.
type shape struct {
	index int
	said  space // what the match says
	tight space // with what follows from it: the smallest span of each field
}

// meet reports ambiguous and unreachable rules among those that are not contradictions themselves.
func meet(rules []Rule, p *Problems) {
	bad := map[int]bool{}
	for _, x := range *p {
		bad[x.Rule] = bad[x.Rule] || x.Kind == Invalid || x.Kind == Contradiction
	}
	shapes := make([]shape, 0, len(rules))
	for i := range rules {
		if bad[i] {
			continue
		}
		said, _ := explicit(&rules[i].Match)
		tight := said.clone()
		tight.tighten()
		shapes = append(shapes, shape{i, said, tight})
	}
	slices.SortStableFunc(shapes, func(a, b shape) int {
		return cmp.Compare(rules[b.index].Priority, rules[a.index].Priority)
	})
	for k := range shapes {
		ambiguous(rules, shapes[:k], &shapes[k], p)
		unreachable(rules, shapes[:k], &shapes[k], p)
	}
}

// ambiguous reports the first of the rules before s that has its priority, meets it and does
// something else.
func ambiguous(rules []Rule, before []shape, s *shape, p *Problems) {
	r := &rules[s.index]
	first, more := -1, 0
	var where space
	for i := len(before) - 1; i >= 0; i-- {
		o := &rules[before[i].index]
		if o.Priority != r.Priority {
			break
		}
		if sameActions(o.Actions, r.Actions) || s.tight.apart(&before[i].tight) {
			continue
		}
		both, ok := s.tight.intersect(&before[i].tight)
		if !ok {
			continue
		}
		if first >= 0 {
			more++
		}
		first, where = before[i].index, both
	}
	if first < 0 {
		return
	}
	others := ""
	if more > 0 {
		others = fmt.Sprintf(", and %d more", more)
	}
	rep := report{p, s.index, r.Name}
	rep.pair(Ambiguous, first, "priority",
		"%d is also that of rule %d%s%s, which does something else with some of the same packets, for example with %v: "+
			"the earlier rule wins; give the rules different priorities, or make the matches disjoint", r.Priority,
		first,
		nameOf(&rules[first]), others, where.example())
}

func nameOf(r *Rule) string {
	if r.Name == "" {
		return ""
	}
	return fmt.Sprintf(" %q", r.Name)
}

// unreachable reports s if the rules before it take all its packets.
func unreachable(rules []Rule, before []shape, s *shape, p *Problems) {
	rep := report{p, s.index, rules[s.index].Name}
	// One rule that covers it is the usual case, and the clearest thing to say.
	for i := range before {
		if before[i].said.coversAll(&s.tight) {
			o := before[i].index
			rep.pair(Unreachable, o, "match",
				"rule %d%s comes first and accepts every packet of this one: delete it, or raise its priority above %d",
				o, nameOf(&rules[o]), rules[o].Priority)
			return
		}
	}
	pieces := []space{s.tight.clone()}
	var by []int
	for i := range before {
		if s.tight.apart(&before[i].tight) {
			continue
		}
		n := 0
		var rest []space
		for k := range pieces {
			if pieces[k].apart(&before[i].tight) {
				rest = append(rest, pieces[k])
				continue
			}
			n++
			rest = pieces[k].minus(&before[i].said, rest)
		}
		if n > 0 {
			by = append(by, before[i].index)
		}
		if pieces = rest; len(pieces) > maxPieces {
			return
		}
		if len(pieces) == 0 {
			slices.Sort(by)
			rep.pair(Unreachable, by[0], "match",
				"rules %s come first and together accept every packet of this one: delete it, or raise its priority",
				list(by))
			return
		}
	}
}

func list(of []int) string {
	s := ""
	for i, n := range of {
		switch {
		case i == 8:
			return s + " and others"
		case i > 0:
			s += ", "
		}
		s += fmt.Sprint(n)
	}
	return s
}

func (s *space) clone() space {
	c := *s
	c.known = slices.Clone(s.known)
	return c
}

// apart is a quick test: true means that no packet is in both.
func (s *space) apart(o *space) bool {
	for f := range s.spans {
		a, b := &s.spans[f], &o.spans[f]
		if !(a.absent && b.absent) && (a.hi.less(b.lo) || b.hi.less(a.lo)) {
			return true
		}
	}
	return false
}

// intersect returns the packets that are in both, and whether there are any.
func (s *space) intersect(o *space) (space, bool) {
	x := s.clone()
	for f := range x.spans {
		if x.spans[f] = x.spans[f].and(o.spans[f]); x.spans[f].empty() {
			return x, false
		}
	}
	x.need = max(x.need, o.need)
	for _, k := range o.known {
		if !x.know(k) {
			return x, false
		}
	}
	return x, x.tighten()
}

// coversAll reports whether every packet of o, which is tight, has what s says.
func (s *space) coversAll(o *space) bool {
	for f := range s.spans {
		if !s.spans[f].covers(o.spans[f]) {
			return false
		}
	}
	return s.flexCovers(o)
}

// flexCovers reports whether the flex words of o imply those of s.
func (s *space) flexCovers(o *space) bool {
	if s.need == 0 {
		return true
	}
	if o.need < s.need {
		// no length of the IP packet promises payload: options and extension headers may take any
		// of it
		return false
	}
	for _, k := range s.known {
		i := slices.IndexFunc(o.known, func(x known) bool { return x.at == k.at })
		if i < 0 || o.known[i].mask&k.mask != k.mask || (o.known[i].value^k.value)&k.mask != 0 {
			return false
		}
	}
	return true
}

// minus appends the pieces of s that are not in what o says to out. Pieces of fields without an
// interval, flex words, are not cut: s stays whole then, which is on the safe side.
func (s *space) minus(o *space, out []space) []space {
	if !o.flexCovers(s) {
		return append(out, *s)
	}
	rest := s.clone()
	for f := range s.spans {
		a, b := rest.spans[f], o.spans[f]
		if b.covers(a) {
			continue
		}
		keep := func(x span) {
			if x.empty() {
				return
			}
			piece := rest.clone()
			if piece.spans[f] = x; piece.tighten() {
				out = append(out, piece)
			}
		}
		if a.absent && !b.absent {
			keep(span{lo: u128{0, 1}, hi: u128{}, absent: true})
		}
		if a.lo.less(b.lo) {
			keep(span{lo: a.lo, hi: minOf(a.hi, b.lo.prev())})
		}
		if b.hi.less(a.hi) {
			lo, _ := b.hi.next()
			if lo.less(a.lo) {
				lo = a.lo
			}
			keep(span{lo: lo, hi: a.hi})
		}
		if rest.spans[f] = a.and(b); rest.spans[f].empty() || !rest.tighten() {
			return out
		}
	}
	return out
}

func minOf(a, b u128) u128 {
	if a.less(b) {
		return a
	}
	return b
}

// example returns a match of one packet of s, which is tight: one value for each field that s
// restricts.
func (s *space) example() *Match {
	var m Match
	at := func(f Field) uint64 { return s.spans[f].lo.lo }
	asks := func(f Field) bool { return !s.spans[f].absent && s.spans[f] != (span{hi: limit(f)}) }
	if asks(FieldEthSrc) {
		m.EthSrc = Some(macOf(at(FieldEthSrc)))
	}
	if asks(FieldEthDst) {
		m.EthDst = Some(macOf(at(FieldEthDst)))
	}
	if asks(FieldVLAN) {
		m.VLAN = Some(vlanOf(at(FieldVLAN)))
	}
	if asks(FieldInnerVLAN) {
		m.InnerVLAN = Some(vlanOf(at(FieldInnerVLAN)))
	}
	if asks(FieldProto) {
		m.Proto = Some(packet.Proto(at(FieldProto)))
		if p := s.spans[FieldProto]; p.lo.lo == uint64(packet.ProtoTCP) && p.hi.lo == uint64(packet.ProtoUDP) {
			m.Proto = Some(packet.ProtoUDP) // one of the two, and its header is the shorter one
		}
	}
	for _, r := range []struct {
		f   Field
		out *Opt[Range]
	}{{FieldSrcPort, &m.SrcPort}, {FieldDstPort, &m.DstPort}} {
		if asks(r.f) {
			*r.out = Some(One(uint16(at(r.f))))
		}
	}
	t := s.spans[FieldEtherType]
	four := t.lo == t.hi && t.lo.lo == uint64(packet.EtherTypeIPv4)
	for _, r := range []struct {
		f   Field
		out *netip.Prefix
	}{{FieldSrc, &m.Src}, {FieldDst, &m.Dst}} {
		if asks(r.f) && !(four && s.spans[r.f] == mapped) {
			*r.out = hostOf(s.spans[r.f].lo, four)
		}
	}
	if !s.spans[FieldECPRIType].absent {
		m.ECPRI.Type = Some(uint8(at(FieldECPRIType)))
	}
	if !s.spans[FieldECPRIID].absent {
		if id := Some(uint16(at(FieldECPRIID))); m.ECPRI.Type.Value == ecpriControl {
			m.ECPRI.RTCID = id
		} else {
			m.ECPRI.PCID = id
		}
	}
	if t.lo == t.hi && !m.Src.IsValid() && !m.Dst.IsValid() && !m.ECPRI.Set() {
		m.EtherType = Some(packet.EtherType(t.lo.lo))
	}
	m.Flex = s.words()
	if !s.spans[FieldProto].absent && m.EtherType.Set && !m.Proto.Set { // IP, whatever is in it
		m.EtherType = Opt[packet.EtherType]{}
		if m.Src = netip.PrefixFrom(netip.IPv6Unspecified(), 0); four {
			m.Src = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
	}
	// The length only where it is not what follows from the rest.
	implied, _ := explicit(&m)
	implied.tighten()
	if n := s.spans[FieldLength]; !n.absent && n != implied.spans[FieldLength] {
		// with room for headers that m does not ask for
		m.Length = Some(One(uint16(min(n.lo.lo+packet.IPv6Len+packet.TCPLen, n.hi.lo))))
	}
	return &m
}

func hostOf(v u128, four bool) netip.Prefix {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], v.hi)
	binary.BigEndian.PutUint64(b[8:], v.lo)
	a := netip.AddrFrom16(b)
	if four {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, a.BitLen())
}

// words returns the known bytes as flex words.
func (s *space) words() (out []Flex) {
	ks := slices.Clone(s.known)
	slices.SortFunc(ks, func(a, b known) int { return cmp.Compare(a.at, b.at) })
	for _, k := range ks {
		n := len(out) - 1
		if n < 0 || k.at >= out[n].Offset+4 {
			out = append(out, Flex{Offset: min(k.at, MaxFlexOffset)})
			n++
		}
		shift := 8 * (3 - (k.at - out[n].Offset))
		out[n].Value |= uint32(k.value) << shift
		out[n].Mask |= uint32(k.mask) << shift
	}
	return out
}

func macOf(v uint64) (m packet.MAC) {
	for i := range m {
		m[i] = byte(v >> (40 - 8*i))
	}
	return m
}

func vlanOf(v uint64) VLAN {
	if v == untagged {
		return Untagged
	}
	return VLAN(v)
}

// Apart reports that no packet meets both matches. It is a quick test: false does not mean that
// there is such a packet.
func Apart(a, b *Match) bool {
	x, _ := explicit(a)
	y, _ := explicit(b)
	x.tighten()
	y.tighten()
	return x.apart(&y)
}
