package flow

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/penstock-io/penstock/packet"
)

// blockRules is how many rules one block holds: at most 64 words, because an aggregate has a bit
// for each. Tables of a block grow with the square of it; larger sets are several blocks, asked one
// after the other in the order of precedence.
const blockRules = 2048

// A block finds the first of its rules that accepts a packet.
type block struct {
	dims []dim
	// of all dims: bit w of sums[r] says that word w of row r is not 0; apart, so that they stay in
	// the cache
	sums  []uint64
	rows  []uint64 // row r is rows[r*words : (r+1)*words]
	words int      // of a bit vector
	asks  []uint64 // word w of the rules that ask for the field of dim k is asks[w*len(dims)+k]
	order []int32  // bit number -> index of the rule in the set
}

// A dim is one lookup: it turns what a packet has in one field into a row, the rules that accept
// it.
type dim struct {
	kind   dimKind
	field  Field
	absent uint32 // row for packets without the field
	base   uint32 // row of class 0

	direct *paged // value -> class
	v4     steps32
	v6     steps128
	exact  exact

	bytes *[256]uint16 // byte of a flex word -> class

	offset uint16 // of a flex word
	shift  uint8  // of the byte of a flex word
	mask   uint32 // of a flex word
}

type dimKind uint8

const (
	dimSmall    dimKind = iota // a field of up to 16 bits, by direct
	dimAddr                    // an IP address, by v4 and v6
	dimMAC                     // an Ethernet address, by exact
	dimFlex                    // a flex word under one mask, by exact
	dimFlexByte                // a byte of a flex word, by direct: offsets with several masks
)

// entry is a rule as the compiler sees it.
type entry struct {
	m    *Match
	flex []Flex // offsets distinct
}

// merged returns the flex words of m with those of one offset made one; they agree, as validation
// has seen.
func merged(m *Match) []Flex {
	if len(m.Flex) < 2 {
		return m.Flex
	}
	var out []Flex
	for _, f := range m.Flex {
		if i := slices.IndexFunc(out, func(o Flex) bool { return o.Offset == f.Offset }); i >= 0 {
			out[i].Value |= f.Value
			out[i].Mask |= f.Mask
		} else {
			out = append(out, f)
		}
	}
	return out
}

// compileBlock builds the tables for rules, whose order is their precedence.
func compileBlock(rules []*Match, order []int32) *block {
	b := &block{words: (len(rules) + 63) / 64, order: order}
	es := make([]entry, len(rules))
	for i, m := range rules {
		es[i] = entry{m, merged(m)}
	}
	c := compiler{block: b, rules: es}
	for f := range numFields {
		switch f {
		case FieldEthSrc, FieldEthDst:
			c.macs(f)
		case FieldSrc, FieldDst:
			c.addresses(f)
		case FieldFlex:
			c.flexWords()
		default:
			c.numbers(f)
		}
	}
	// The dims with the sparsest rows first: they end most intersections early.
	slices.SortStableFunc(b.dims, func(x, y dim) int { return cmp.Compare(c.weight(&x), c.weight(&y)) })
	for w := range b.words {
		for k := range b.dims {
			b.asks = append(b.asks, ^b.rows[int(b.dims[k].absent)*b.words+w])
		}
	}
	return b
}

type compiler struct {
	*block
	rules []entry
	wild  []uint64 // scratch: the rules that do not ask for the field
}

func (c *compiler) weight(d *dim) int {
	n := 0
	for _, w := range c.rows[int(d.absent)*c.words:][:c.words] {
		n += bits.OnesCount64(w)
	}
	return n
}

// add appends a row with the rules of set and returns its number.
func (c *compiler) add(set []uint64) uint32 {
	var aggregate uint64
	for i, w := range set {
		if w != 0 {
			aggregate |= 1 << i
		}
	}
	c.sums = append(c.sums, aggregate)
	c.rows = append(c.rows, set...)
	return uint32(len(c.sums) - 1)
}

// wildcards fills wild with the rules for which asks is false, and returns the others; nil if there
// are none.
func (c *compiler) wildcards(asks func(*entry) bool) (asking []int32) {
	c.wild = make([]uint64, c.words)
	for i := range c.rules {
		if asks(&c.rules[i]) {
			asking = append(asking, int32(i))
		} else {
			c.wild[i/64] |= 1 << (i % 64)
		}
	}
	return asking
}

// interval is what one rule accepts of a field.
type interval struct {
	lo, hi u128
	rule   int32
}

// sweep cuts the numbers from 0 to the highest into the intervals between which the set of
// accepting rules changes, adds a row for each, and returns where they begin.
func (c *compiler) sweep(of []interval) (starts []u128) {
	type event struct {
		at   u128
		rule int32
		on   bool
	}
	events := make([]event, 0, 2*len(of))
	for _, i := range of {
		events = append(events, event{i.lo, i.rule, true})
		if after, ok := i.hi.next(); ok {
			events = append(events, event{after, i.rule, false})
		}
	}
	slices.SortFunc(events, func(a, b event) int {
		if c := cmp.Compare(a.at.hi, b.at.hi); c != 0 {
			return c
		}
		return cmp.Compare(a.at.lo, b.at.lo)
	})
	set := slices.Clone(c.wild)
	at := u128{}
	for k := 0; ; {
		for ; k < len(events) && events[k].at == at; k++ {
			// A rule has one interval, which is not empty: its end comes behind its beginning.
			if e := events[k]; e.on {
				set[e.rule/64] |= 1 << (e.rule % 64)
			} else {
				set[e.rule/64] &^= 1 << (e.rule % 64)
			}
		}
		starts = append(starts, at)
		c.add(set)
		if k == len(events) {
			return starts
		}
		at = events[k].at
	}
}

// small returns what m accepts of a field of up to 16 bits.
func (m *Match) small(f Field) (lo, hi uint16, ok bool) {
	opt := func(r Opt[Range]) (uint16, uint16, bool) { return r.Value.Lo, r.Value.Hi, r.Set }
	one := func(v uint16, set bool) (uint16, uint16, bool) { return v, v, set }
	switch f {
	case FieldEtherType:
		if m.ECPRI.Set() && !(m.Proto.Set && m.Proto.Value == packet.ProtoUDP) {
			return one(uint16(packet.EtherTypeECPRI), true)
		}
		return one(uint16(m.EtherType.Value), m.EtherType.Set)
	case FieldVLAN:
		return one(min(uint16(m.VLAN.Value), untagged), m.VLAN.Set)
	case FieldInnerVLAN:
		return one(min(uint16(m.InnerVLAN.Value), untagged), m.InnerVLAN.Set)
	case FieldProto:
		return one(uint16(m.Proto.Value), m.Proto.Set)
	case FieldLength:
		return opt(m.Length)
	case FieldSrcPort:
		return opt(m.SrcPort)
	case FieldDstPort:
		return opt(m.DstPort)
	case FieldECPRIType:
		return one(uint16(m.ECPRI.Type.Value), m.ECPRI.Type.Set)
	case FieldECPRIID:
		if m.ECPRI.PCID.Set {
			return one(m.ECPRI.PCID.Value, true)
		}
		return one(m.ECPRI.RTCID.Value, m.ECPRI.RTCID.Set)
	}
	return 0, 0, false
}

// prefix returns what m asks of an address.
func (m *Match) prefix(f Field) netip.Prefix {
	if f == FieldSrc {
		return m.Src
	}
	return m.Dst
}

func (m *Match) mac(f Field) Opt[packet.MAC] {
	if f == FieldEthSrc {
		return m.EthSrc
	}
	return m.EthDst
}

func (c *compiler) numbers(f Field) {
	asking := c.wildcards(func(e *entry) bool { _, _, ok := e.m.small(f); return ok })
	if asking == nil {
		return
	}
	d := dim{kind: dimSmall, field: f, absent: c.add(c.wild)}
	d.base = d.absent + 1
	of := make([]interval, 0, len(asking))
	for _, i := range asking {
		lo, hi, _ := c.rules[i].m.small(f)
		of = append(of, interval{u128{0, uint64(lo)}, u128{0, uint64(hi)}, i})
	}
	starts := c.sweep(of)
	d.direct = newPaged(starts, limit(f).lo)
	c.dims = append(c.dims, d)
}

func (c *compiler) addresses(f Field) {
	asking := c.wildcards(func(e *entry) bool { return e.m.prefix(f).IsValid() })
	if asking == nil {
		return
	}
	d := dim{kind: dimAddr, field: f, absent: c.add(c.wild)}
	d.base = d.absent + 1
	var four, six []interval
	for _, i := range asking {
		p := c.rules[i].m.prefix(f)
		s := prefixSpan(p)
		if p.Addr().Is4() {
			four = append(four, interval{u128{0, s.lo.lo & 0xffffffff}, u128{0, s.hi.lo & 0xffffffff}, i})
		} else {
			six = append(six, interval{s.lo, s.hi, i})
		}
	}
	starts := c.sweep(four)
	// The sweep knows 128 bits: an interval that begins behind the last IPv4 address is never asked
	// for.
	d.v4 = newSteps32(starts)
	d.v6 = newSteps128(c.sweep(six), uint16(len(starts)))
	c.dims = append(c.dims, d)
}

// exactRows adds a row for each value, of the rules that want it and those that do not care, and
// makes the table of values.
func (c *compiler) exactRows(d dim, asking []int32, value func(*entry) uint64) {
	values := map[uint64][]int32{}
	for _, i := range asking {
		v := value(&c.rules[i])
		values[v] = append(values[v], i)
	}
	keys := make([]uint64, 0, len(values))
	for v := range values {
		keys = append(keys, v)
	}
	slices.Sort(keys) // so that equal sets give equal tables
	d.base = d.absent
	for _, v := range keys {
		set := slices.Clone(c.wild)
		for _, i := range values[v] {
			set[i/64] |= 1 << (i % 64)
		}
		c.add(set)
	}
	d.exact = newExact(keys)
	c.dims = append(c.dims, d)
}

func (c *compiler) macs(f Field) {
	asking := c.wildcards(func(e *entry) bool { return e.m.mac(f).Set })
	if asking == nil {
		return
	}
	d := dim{kind: dimMAC, field: f, absent: c.add(c.wild)}
	c.exactRows(d, asking, func(e *entry) uint64 { return macValue(e.m.mac(f).Value) })
}

func (e *entry) flexAt(offset uint16) (Flex, bool) {
	for _, f := range e.flex {
		if f.Offset == offset {
			return f, true
		}
	}
	return Flex{}, false
}

// maxMasks is how many masks of one offset have a lookup each.
const maxMasks = 4

func (c *compiler) flexWords() {
	masks := map[uint16][]uint32{}
	var offsets []uint16
	for i := range c.rules {
		for _, f := range c.rules[i].flex {
			if masks[f.Offset] == nil {
				offsets = append(offsets, f.Offset)
			}
			if !slices.Contains(masks[f.Offset], f.Mask) {
				masks[f.Offset] = append(masks[f.Offset], f.Mask)
			}
		}
	}
	for _, offset := range offsets {
		if len(masks[offset]) > maxMasks {
			c.flexBytes(offset)
			continue
		}
		for _, mask := range masks[offset] {
			asking := c.wildcards(func(e *entry) bool { f, ok := e.flexAt(offset); return ok && f.Mask == mask })
			d := dim{kind: dimFlex, field: FieldFlex, offset: offset, mask: mask, absent: c.add(c.wild)}
			c.exactRows(d, asking, func(e *entry) uint64 { f, _ := e.flexAt(offset); return uint64(f.Value) })
		}
	}
}

// flexBytes looks each byte of a word up by itself, so that any number of different masks costs
// four lookups.
func (c *compiler) flexBytes(offset uint16) {
	asking := c.wildcards(func(e *entry) bool { _, ok := e.flexAt(offset); return ok })
	d := dim{kind: dimFlexByte, field: FieldFlex, offset: offset, absent: c.add(c.wild)}
	for shift := uint8(0); shift < 32; shift += 8 {
		type want struct{ value, mask byte }
		wants := map[want][]uint64{}
		cares := false
		for _, i := range asking {
			f, _ := c.rules[i].flexAt(d.offset)
			w := want{byte(f.Value >> shift), byte(f.Mask >> shift)}
			cares = cares || w.mask != 0
			if wants[w] == nil {
				wants[w] = make([]uint64, c.words)
			}
			wants[w][i/64] |= 1 << (i % 64)
		}
		if !cares {
			continue
		}
		d.shift = shift
		d.bytes = new([256]uint16)
		d.base = uint32(len(c.sums))
		for v := range 256 {
			set := slices.Clone(c.wild)
			for w, rules := range wants {
				if byte(v)&w.mask == w.value {
					for k := range set {
						set[k] |= rules[k]
					}
				}
			}
			d.bytes[v] = uint16(c.add(set) - d.base)
		}
		c.dims = append(c.dims, d)
	}
}
