package prog

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// A vector is a set of rules: bit i is rule i of the order of precedence.
type vector []uint64

func (v vector) set(i int)   { v[i/64] |= 1 << (i % 64) }
func (v vector) clear(i int) { v[i/64] &^= 1 << (i % 64) }

// A lookup turns one piece of a field, of 8 or 16 bits, into the vector of the rules that accept
// it.
type lookup struct {
	piece piece
	words []int // of the vectors: those in which a rule asks for this piece; the others would be all ones
	row   int   // bytes of a row: 8 for each of words

	starts  []uint16 // of a 16-bit piece with few classes: class i begins at starts[i], the first at 0
	index   int      // offset in the blob of value -> class (8 bits), or of value/64 -> page (16 bits)
	pages   int      // offset of the pages of 64 classes
	page    int      // highest page
	classes int      // how many
	rows    int      // offset of the rows
}

// piece is a part of the packet that is looked up.
type piece struct {
	field flow.Field
	part  uint8  // which 16 bits of an address, from the front
	six   bool   // of an IPv6 address
	flex  uint16 // offset of a flex word; part is the byte of it
}

func (p piece) narrow() bool {
	return p.field == flow.FieldFlex || p.field == flow.FieldProto || p.field == flow.FieldECPRIType
}

// mask is a vector that is intersected when a packet is, or is not, of some kind.
type mask struct {
	words []int
	at    int // offset in the blob; the words lie there one after the other
}

// tables is a set of rules, compiled to what the program reads.
type tables struct {
	n     int // rules
	words int // of a vector
	blob  []byte

	all      mask // where a search begins
	lookups  map[flow.Field][]lookup
	six      map[flow.Field][]lookup // of IPv6 addresses
	flex     map[uint16][]lookup     // by offset
	offsets  []uint16                // of flex words, in order
	no       map[flow.Field]mask     // for packets that lack the field
	noFlex   map[uint16]mask         //
	version  map[int]mask            // 4, 6, and 0 for what is not IP
	bits     int                     // offset of the table of de Bruijn
	outcomes int                     // offset of the outcomes, one for each bit and one for no rule
	spread   int                     // offset of the tables of RSS
	spreads  int                     // how many
	toeplitz int                     // offset of 36 rows of 256 numbers
}

// outcome is what the program reads of the rule that it found; outcomeSize bytes.
const (
	outcomeID      = 0  // u32
	outcomeCounter = 4  // u32: slot in the counters
	outcomeQueue   = 8  // u32
	outcomeSpread  = 12 // u16: number of the table of RSS
	outcomeVerdict = 14 // u8
	outcomeSize    = 16
)

// The verdicts of an outcome.
const (
	verdictKernel = iota
	verdictDiscard
	verdictDeliver
	verdictSpread
)

// deBruijn is a sequence in which every 6 bits in a row are different ones, to number the bits of a
// word by a multiplication.
const deBruijn = 0x03f79d71b4ca8b09

// few is up to how many classes of a 16-bit piece the program tells apart by comparisons instead of
// tables.
const few = 6

type builder struct {
	tables
	rules []*flow.Rule // in the order of precedence
	order []int        // and where they are in the set
}

// compile makes the tables. counter gives rule i of the set its slot in the counters.
func compile(rules []flow.Rule, isolation flow.Isolation, counter func(i int) uint32, unmatched uint32) *tables {
	b := &builder{order: make([]int, len(rules))}
	for i := range rules {
		b.order[i] = i
	}
	slices.SortStableFunc(b.order, func(x, y int) int { return cmp.Compare(rules[y].Priority, rules[x].Priority) })
	for _, i := range b.order {
		b.rules = append(b.rules, &rules[i])
	}
	b.n = len(rules)
	b.words = max((b.n+63)/64, 1)
	b.lookups, b.six, b.flex = map[flow.Field][]lookup{}, map[flow.Field][]lookup{}, map[uint16][]lookup{}
	b.no, b.noFlex, b.version = map[flow.Field]mask{}, map[uint16]mask{}, map[int]mask{}

	b.blob = make([]byte, 8) // a zero
	every := make([]int, b.words)
	for w := range every {
		every[w] = w
	}
	b.all = b.addMask(every, b.ones())
	for _, f := range []flow.Field{flow.FieldEthSrc, flow.FieldEthDst, flow.FieldEtherType, flow.FieldVLAN,
		flow.FieldInnerVLAN, flow.FieldProto, flow.FieldSrc,
		flow.FieldDst, flow.FieldLength, flow.FieldSrcPort, flow.FieldDstPort, flow.FieldECPRIType, flow.FieldECPRIID} {
		b.field(f)
	}
	b.flexes()
	for _, v := range []int{0, 4, 6} {
		if m, ok := b.maskOf(func(m *flow.Match) bool { return fits(m, v) }); ok {
			b.version[v] = m
		}
	}
	b.finish(isolation, counter, unmatched)
	return &b.tables
}

// ones is the vector of all rules.
func (b *builder) ones() vector {
	v := make(vector, b.words)
	for i := range b.n {
		v.set(i)
	}
	return v
}

func (b *builder) align(n int) int {
	for len(b.blob)%n != 0 {
		b.blob = append(b.blob, 0)
	}
	return len(b.blob)
}

func (b *builder) addMask(words []int, v vector) mask {
	m := mask{words: words, at: b.align(8)}
	for _, w := range words {
		b.blob = binary.NativeEndian.AppendUint64(b.blob, v[w])
	}
	return m
}

// maskOf is the vector of the rules for which keep is true; ok is false if these are all.
func (b *builder) maskOf(keep func(*flow.Match) bool) (m mask, ok bool) {
	v := b.ones()
	var words []int
	for i, r := range b.rules {
		if !keep(&r.Match) {
			v.clear(i)
			if k := len(words); k == 0 || words[k-1] != i/64 {
				words = append(words, i/64)
			}
		}
	}
	if words == nil {
		return m, false
	}
	return b.addMask(words, v), true
}

// fits reports whether packets of an IP version (0: not IP) can have the IP fields that m asks for.
func fits(m *flow.Match, version int) bool {
	for _, p := range []netip.Prefix{m.Src, m.Dst} {
		if p.IsValid() && (version == 0 || p.Addr().Is4() != (version == 4)) {
			return false
		}
	}
	return version != 0 || !m.Proto.Set && !m.Length.Set
}

// interval returns what m asks of a piece of 16 bits; ok is false if it does not ask.
func interval(m *flow.Match, p piece) (lo, hi uint16, ok bool) {
	one := func(v uint16, set bool) (uint16, uint16, bool) { return v, v, set }
	span := func(r flow.Opt[flow.Range]) (uint16, uint16, bool) { return r.Value.Lo, r.Value.Hi, r.Set }
	mac := func(o flow.Opt[packet.MAC]) (uint16, uint16, bool) {
		return one(binary.BigEndian.Uint16(o.Value[2*p.part:]), o.Set)
	}
	vlan := func(o flow.Opt[flow.VLAN]) (uint16, uint16, bool) { return one(min(uint16(o.Value), noTag), o.Set) }
	switch p.field {
	case flow.FieldEthSrc:
		return mac(m.EthSrc)
	case flow.FieldEthDst:
		return mac(m.EthDst)
	case flow.FieldEtherType:
		if m.ECPRI.Set() && !(m.Proto.Set && m.Proto.Value == packet.ProtoUDP) {
			return one(uint16(packet.EtherTypeECPRI), true)
		}
		return one(uint16(m.EtherType.Value), m.EtherType.Set)
	case flow.FieldVLAN:
		return vlan(m.VLAN)
	case flow.FieldInnerVLAN:
		return vlan(m.InnerVLAN)
	case flow.FieldSrc:
		return block(m.Src, p)
	case flow.FieldDst:
		return block(m.Dst, p)
	case flow.FieldLength:
		return span(m.Length)
	case flow.FieldSrcPort:
		return span(m.SrcPort)
	case flow.FieldDstPort:
		return span(m.DstPort)
	case flow.FieldECPRIID:
		if m.ECPRI.PCID.Set {
			return one(m.ECPRI.PCID.Value, true)
		}
		return one(m.ECPRI.RTCID.Value, m.ECPRI.RTCID.Set)
	}
	return 0, 0, false
}

// noTag is the value of a VLAN field of a frame without that tag.
const noTag = flow.MaxVLAN + 1

// block returns what a prefix asks of 16 bits of an address.
func block(x netip.Prefix, p piece) (lo, hi uint16, ok bool) {
	if !x.IsValid() || x.Addr().Is4() == p.six {
		return 0, 0, false
	}
	bits := min(x.Bits()-16*int(p.part), 16)
	if bits <= 0 {
		return 0, 0, false
	}
	lo = binary.BigEndian.Uint16(x.Addr().AsSlice()[2*p.part:])
	return lo, lo | uint16(0xffff>>bits), true
}

// accepts reports what m asks of a piece of 8 bits.
func accepts(m *flow.Match, p piece) (asks bool, yes func(byte) bool) {
	one := func(v uint8, set bool) (bool, func(byte) bool) { return set, func(b byte) bool { return b == v } }
	switch p.field {
	case flow.FieldProto:
		return one(uint8(m.Proto.Value), m.Proto.Set)
	case flow.FieldECPRIType:
		return one(m.ECPRI.Type.Value, m.ECPRI.Type.Set)
	}
	// A match may look at one word several times; then its words agree, as validation has seen.
	var value, care byte
	shift := 24 - 8*p.part
	for _, f := range m.Flex {
		if f.Offset == p.flex {
			value |= byte(f.Value >> shift)
			care |= byte(f.Mask >> shift)
		}
	}
	return care != 0, func(b byte) bool { return b&care == value }
}

// field adds the lookups of a field, and the mask for packets that lack it.
func (b *builder) field(f flow.Field) {
	parts, six := 1, 0
	switch f {
	case flow.FieldEthSrc, flow.FieldEthDst:
		parts = 3
	case flow.FieldSrc, flow.FieldDst:
		parts, six = 2, 8
	}
	for k := range parts {
		if l, ok := b.lookup(piece{field: f, part: uint8(k)}); ok {
			b.lookups[f] = append(b.lookups[f], l)
		}
	}
	for k := range six {
		if l, ok := b.lookup(piece{field: f, part: uint8(k), six: true}); ok {
			b.six[f] = append(b.six[f], l)
		}
	}
	switch f {
	case flow.FieldSrcPort: // together with all that needs ports
		b.lack(f, func(m *flow.Match) bool { return !m.SrcPort.Set && !m.DstPort.Set && len(m.Flex) == 0 })
	case flow.FieldEthSrc:
		b.lack(f, func(m *flow.Match) bool { return !m.EthSrc.Set && !m.EthDst.Set })
	case flow.FieldECPRIType:
		b.lack(f, func(m *flow.Match) bool { return !m.ECPRI.Set() })
	case flow.FieldECPRIID:
		b.lack(f, func(m *flow.Match) bool { return !m.ECPRI.PCID.Set && !m.ECPRI.RTCID.Set })
	}
}

func (b *builder) lack(f flow.Field, keep func(*flow.Match) bool) {
	if m, ok := b.maskOf(keep); ok {
		b.no[f] = m
	}
}

func (b *builder) flexes() {
	for _, r := range b.rules {
		for _, f := range r.Match.Flex {
			if !slices.Contains(b.offsets, f.Offset) {
				b.offsets = append(b.offsets, f.Offset)
			}
		}
	}
	slices.Sort(b.offsets)
	for _, at := range b.offsets {
		for k := range 4 {
			if l, ok := b.lookup(piece{field: flow.FieldFlex, flex: at, part: uint8(k)}); ok {
				b.flex[at] = append(b.flex[at], l)
			}
		}
		b.noFlex[at], _ = b.maskOf(func(m *flow.Match) bool {
			return !slices.ContainsFunc(m.Flex, func(f flow.Flex) bool { return f.Offset == at })
		})
	}
}

// lookup builds the tables of one piece; ok is false if no rule asks for it.
func (b *builder) lookup(p piece) (lookup, bool) {
	l := lookup{piece: p}
	var class []uint16 // of each value
	var rows []vector
	if p.narrow() {
		class, rows = b.narrow(p, &l)
	} else {
		class, rows = b.wide(p, &l)
	}
	if l.words == nil {
		return l, false
	}
	l.row = 8 * len(l.words)
	l.classes = len(rows)
	switch {
	case p.narrow():
		l.index = b.align(2)
		for _, c := range class {
			b.blob = binary.NativeEndian.AppendUint16(b.blob, c)
		}
	case l.starts == nil:
		b.paged(&l, class)
	}
	l.rows = b.align(8)
	for _, v := range rows {
		for _, w := range l.words {
			b.blob = binary.NativeEndian.AppendUint64(b.blob, v[w])
		}
	}
	return l, true
}

// note remembers that rule i asks for the piece.
func (l *lookup) note(i int) {
	if k := len(l.words); k == 0 || l.words[k-1] != i/64 {
		l.words = append(l.words, i/64)
	}
}

// classer numbers vectors that are different.
type classer struct {
	seen map[string]uint16
	rows []vector
	key  []byte
}

func (c *classer) of(v vector) uint16 {
	c.key = c.key[:0]
	for _, w := range v {
		c.key = binary.NativeEndian.AppendUint64(c.key, w)
	}
	n, ok := c.seen[string(c.key)]
	if !ok {
		n = uint16(len(c.rows))
		if c.seen == nil {
			c.seen = map[string]uint16{}
		}
		c.seen[string(c.key)] = n
		c.rows = append(c.rows, slices.Clone(v))
	}
	return n
}

func (b *builder) narrow(p piece, l *lookup) (class []uint16, rows []vector) {
	type want struct {
		rule int
		yes  func(byte) bool
	}
	var wants []want
	for i, r := range b.rules {
		if asks, yes := accepts(&r.Match, p); asks {
			l.note(i)
			wants = append(wants, want{i, yes})
		}
	}
	if wants == nil {
		return nil, nil
	}
	var c classer
	for v := range 256 {
		set := b.ones()
		for _, w := range wants {
			if !w.yes(byte(v)) {
				set.clear(w.rule)
			}
		}
		class = append(class, c.of(set))
	}
	return class, c.rows
}

func (b *builder) wide(p piece, l *lookup) (class []uint16, rows []vector) {
	type event struct {
		at   int
		rule int
		on   bool
	}
	var events []event
	set := b.ones()
	for i, r := range b.rules {
		lo, hi, ok := interval(&r.Match, p)
		if !ok {
			continue
		}
		l.note(i)
		set.clear(i)
		events = append(events, event{int(lo), i, true}, event{int(hi) + 1, i, false})
	}
	if events == nil {
		return nil, nil
	}
	slices.SortFunc(events, func(x, y event) int { return cmp.Compare(x.at, y.at) })
	var c classer
	class = make([]uint16, 1<<16)
	var starts []uint16
	at, k := 0, 0
	for at < 1<<16 {
		for ; k < len(events) && events[k].at == at; k++ {
			if e := events[k]; e.on { // the end of an interval comes behind its beginning
				set.set(e.rule)
			} else {
				set.clear(e.rule)
			}
		}
		next := 1 << 16
		if k < len(events) {
			next = min(events[k].at, next)
		}
		n := c.of(set)
		for v := at; v < next; v++ {
			class[v] = n
		}
		starts = append(starts, uint16(at))
		at = next
	}
	if len(starts) > few {
		return class, c.rows
	}
	// One row for each interval, so that comparisons count up to it.
	l.starts = starts
	for _, s := range starts {
		rows = append(rows, c.rows[class[s]])
	}
	return nil, rows
}

const (
	pageShift = 6
	pageSize  = 1 << pageShift
)

// paged adds value/64 -> page and the pages, of which equal ones are shared.
func (b *builder) paged(l *lookup, class []uint16) {
	seen := map[[pageSize]uint16]uint16{}
	var pages [][pageSize]uint16
	l.index = b.align(2)
	for v := 0; v < len(class); v += pageSize {
		p := [pageSize]uint16(class[v:])
		n, ok := seen[p]
		if !ok {
			n = uint16(len(pages))
			seen[p] = n
			pages = append(pages, p)
		}
		b.blob = binary.NativeEndian.AppendUint16(b.blob, n)
	}
	l.page = len(pages) - 1
	l.pages = b.align(2)
	for _, p := range pages {
		for _, c := range p {
			b.blob = binary.NativeEndian.AppendUint16(b.blob, c)
		}
	}
}

// finish adds what comes behind the search.
func (b *builder) finish(isolation flow.Isolation, counter func(int) uint32, unmatched uint32) {
	b.bits = len(b.blob)
	var numbers [64]byte
	for i := range numbers {
		numbers[uint64(deBruijn)<<i>>58] = byte(i)
	}
	b.blob = append(b.blob, numbers[:]...)
	type entry struct {
		id, counter, queue uint32
		spread             uint16
		verdict            uint8
	}
	var spreads [][]uint16
	var list []entry
	for k, r := range b.rules {
		e := entry{id: r.Carried(), counter: counter(b.order[k])}
		switch a := &r.Actions[len(r.Actions)-1]; a.Kind {
		case flow.ToQueue:
			e.verdict, e.queue = verdictDeliver, uint32(a.Queue)
		case flow.RSS:
			e.verdict, e.spread = verdictSpread, uint16(len(spreads))
			spreads = append(spreads, a.Queues)
		case flow.Drop:
			e.verdict = verdictDiscard
		default:
			e.verdict = verdictKernel
		}
		list = append(list, e)
	}
	none := entry{counter: unmatched, queue: uint32(isolation.Queue)}
	switch isolation.Unmatched {
	case flow.Deliver:
		none.verdict = verdictDeliver
	case flow.Discard:
		none.verdict = verdictDiscard
	}
	b.outcomes = b.align(8)
	for _, e := range append(list, none) {
		b.blob = binary.NativeEndian.AppendUint32(b.blob, e.id)
		b.blob = binary.NativeEndian.AppendUint32(b.blob, e.counter)
		b.blob = binary.NativeEndian.AppendUint32(b.blob, e.queue)
		b.blob = binary.NativeEndian.AppendUint16(b.blob, e.spread)
		b.blob = append(b.blob, e.verdict, 0)
	}
	b.spread, b.spreads = len(b.blob), len(spreads)
	for _, queues := range spreads {
		for k := range flow.IndirectionEntries {
			b.blob = binary.NativeEndian.AppendUint16(b.blob, queues[k%len(queues)])
		}
	}
	if b.spreads > 0 {
		b.toeplitz = b.align(4)
		var data [hashed]byte
		for i := range data {
			for v := range 256 {
				data[i] = byte(v)
				b.blob = binary.NativeEndian.AppendUint32(b.blob, packet.ToeplitzBits(&packet.MicrosoftKey, data[:i+1]))
			}
			data[i] = 0
		}
	}
	b.align(8)
}

// hashed is how many bytes the hash of an IPv6 packet with ports covers.
const hashed = 36
