package flow

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/penstock-io/penstock/packet"
)

// Shape of a cache: a set is two cache lines, which hold a head and a key of up to shortKey words each, or one head and one key of up
// to maxKey words.
const (
	entryWords = 8
	setWords   = 2 * entryWords
	shortKey   = entryWords - 1
	maxKey     = setWords - 1
)

// maxKeyFlex is how many flex offsets a key holds behind two words of small fields, four of addresses, two of Ethernet and one of
// eCPRI. Sets with more are not cached.
const maxKeyFlex = 2 * (maxKey - 2 - 4 - 2 - 1)

// keySpec says which bits of a packet the rules can see: packets that agree in them get the same rule.
type keySpec struct {
	meta, ports uint64 // masks of the first two words
	addr4       uint64 // mask of the two IPv4 addresses; 0: not seen
	addr6       [4]uint64
	see6        bool
	macs        [2]bool // source, destination
	ecpri       bool    // in Ethernet
	ecpriUDP    bool
	length      *paged // IP length -> class, so that lengths which no rule tells apart share a key; nil: not seen
	offsets     []uint16
	masks       []uint32
	fits        bool // false: the set has too many flex offsets
}

// Shape of the first two words.
const (
	metaVLAN, metaInner, metaProto, metaVersion = 16, 29, 42, 50 // shifts in meta; EtherType at 0
	portsDst, portsLength, portsPresent         = 16, 32, 48     // shifts in ports; source at 0
)

func newKeySpec(rules []Rule) keySpec {
	var k keySpec
	var lengths []interval
	for i := range rules {
		m := &rules[i].Match
		for _, f := range []struct {
			field Field
			word  *uint64
			mask  uint64
		}{
			{FieldEtherType, &k.meta, 0xffff},
			{FieldVLAN, &k.meta, 0x1fff << metaVLAN},
			{FieldInnerVLAN, &k.meta, 0x1fff << metaInner},
			{FieldProto, &k.meta, 0xff << metaProto},
			{FieldSrcPort, &k.ports, 0xffff},
			{FieldDstPort, &k.ports, 0xffff << portsDst},
		} {
			if _, _, ok := m.small(f.field); ok {
				*f.word |= f.mask
			}
		}
		k.macs[0] = k.macs[0] || m.EthSrc.Set
		k.macs[1] = k.macs[1] || m.EthDst.Set
		if m.ECPRI.Set() {
			k.ecpri = k.ecpri || !m.Proto.Set
			k.ecpriUDP = k.ecpriUDP || m.Proto.Set
		}
		if m.Length.Set {
			lengths = append(lengths, interval{u128{0, uint64(m.Length.Value.Lo)}, u128{0, uint64(m.Length.Value.Hi)}, 0})
		}
		for side, f := range []Field{FieldSrc, FieldDst} {
			p := m.prefix(f)
			if !p.IsValid() {
				continue
			}
			if p.Addr().Is4() {
				k.addr4 |= uint64(^uint32(0)<<(32-p.Bits())) << (32 * (1 - side))
			} else {
				k.see6 = true
				k.addr6[2*side] |= ^uint64(0) << (64 - min(p.Bits(), 64))
				k.addr6[2*side+1] |= ^uint64(0) << (128 - max(p.Bits(), 64))
			}
		}
		for _, f := range m.Flex {
			at, ok := slices.BinarySearch(k.offsets, f.Offset)
			if !ok {
				k.offsets, k.masks = slices.Insert(k.offsets, at, f.Offset), slices.Insert(k.masks, at, 0)
			}
			k.masks[at] |= f.Mask
		}
	}
	k.length = lengthClasses(lengths)
	k.fits = len(k.offsets) <= maxKeyFlex
	return k
}

func lengthClasses(of []interval) *paged {
	if len(of) == 0 {
		return nil
	}
	starts := []u128{{}}
	for _, i := range of {
		starts = append(starts, i.lo, u128{0, i.hi.lo + 1})
	}
	slices.SortFunc(starts, func(a, b u128) int { return cmp.Compare(a.lo, b.lo) })
	return newPaged(slices.Compact(starts), 0xffff)
}

// read puts the key of a packet into key and returns its length and its hash.
func (k *keySpec) read(frame []byte, l *packet.Layers, key *[maxKey]uint64) (n int, hash uint64) {
	meta := uint64(l.EtherType) | uint64(l.Proto)<<metaProto
	outer, inner := uint64(untagged), uint64(untagged)
	if l.NumTags > 0 {
		outer = uint64(l.Tags[0].ID())
		if l.NumTags > 1 {
			inner = uint64(l.Tags[1].ID())
		}
	}
	meta |= outer<<metaVLAN | inner<<metaInner
	meta = meta&k.meta | uint64(l.IPVersion)<<metaVersion
	ports := (uint64(l.SrcPort) | uint64(l.DstPort)<<portsDst) & k.ports
	if l.HasPorts {
		ports |= 1 << portsPresent
	}
	if k.length != nil {
		ports |= uint64(k.length.find(uint16(min(l.IPLen, 0xffff)))) << portsLength
	}
	n = 2
	switch {
	case l.IPVersion == 4 && k.addr4 != 0:
		key[n] = binary.BigEndian.Uint64(frame[l.L3:][12:packet.IPv4Len]) & k.addr4
		n++
	case l.IPVersion == 6 && k.see6:
		a := frame[l.L3:][:packet.IPv6Len]
		for i, mask := range k.addr6 {
			key[n+i] = binary.BigEndian.Uint64(a[8+8*i:]) & mask
		}
		n += 4
	}
	if k.macs[0] {
		key[n] = macKey(FieldEthSrc, frame, l)
		n++
	}
	if k.macs[1] {
		key[n] = macKey(FieldEthDst, frame, l)
		n++
	}
	if k.ecpri && l.EtherType == packet.EtherTypeECPRI || k.ecpriUDP && l.HasPorts {
		ty, ok := small(FieldECPRIType, frame, l)
		id, ok2 := small(FieldECPRIID, frame, l)
		key[n] = uint64(ty)<<16 | uint64(id)
		if ok {
			key[n] |= 1 << 32
		}
		if ok2 {
			key[n] |= 1 << 33
		}
		n++
		meta |= 1 << 62
	}
	if len(k.offsets) > 0 && l.HasPorts {
		for i, offset := range k.offsets {
			v, ok := flexWord(offset, frame, l)
			if !ok {
				break // offsets ascend: the number of words says which are there
			}
			ports += 1 << (portsPresent + 1)
			if v &= k.masks[i]; i%2 == 0 {
				key[n] = uint64(v)
				n++
			} else {
				key[n-1] |= uint64(v) << 32
			}
		}
	}
	key[0], key[1] = meta, ports
	hash = mix(meta, ports)
	for _, w := range key[2:n] {
		hash = mix(hash, w)
	}
	return n, hash
}

// macKey tells an address that is not there from one of zeros.
func macKey(f Field, frame []byte, l *packet.Layers) uint64 {
	if v, ok := mac(f, frame, l); ok {
		return v
	}
	return 1 << 63
}

// mix folds a 128-bit product, after W. Yi's wyhash.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0xa0761d6478bd642f, b^0xe7037ed1a0b428db)
	return hi ^ lo
}

// Bounds and default of the size of a Cache, in bytes.
const (
	MinCacheSize     = 4 << 10
	MaxCacheSize     = 1 << 30
	DefaultCacheSize = 1 << 20
)

// Cache remembers which rule packets got, so that repeated traffic is classified with one probe, whatever the rules. What it
// remembers is exact: the key holds every bit that the rules can see. It belongs to one goroutine; each poller has its own, for
// any classifier: when a call comes with another one than before, everything is forgotten.
//
// Memory is fixed at its making. Traffic of more flows than fit is classified at the speed of the classifier plus a probe.
type Cache struct {
	of           *Classifier
	entries      []uint64
	sets         uint64 // their number less one
	generation   uint64
	touched      uint64
	hits, misses uint64
}

// The head of an entry: generation in the upper half, marks of use and of a long key, and the index of the rule plus one.
const (
	headUsed = 1 << 31
	headLong = 1 << 30
	headRule = headLong - 1
)

// NewCache returns an empty cache of size bytes, rounded down to a power of two; 0 stands for DefaultCacheSize, which holds 16,384
// flows, or 8,192 whose keys are long (IPv6, with flex words or Ethernet addresses besides). The error says which sizes are allowed.
func NewCache(size int) (*Cache, error) {
	if size == 0 {
		size = DefaultCacheSize
	}
	if size < MinCacheSize || size > MaxCacheSize {
		return nil, fmt.Errorf("flow: a cache of %d bytes: expected %d to %d, or 0 for %d", size, MinCacheSize, MaxCacheSize, DefaultCacheSize)
	}
	words := 1 << (bits.Len(uint(size)) - 1) / 8
	return &Cache{entries: make([]uint64, words), sets: uint64(words/setWords - 1)}, nil
}

// Stats returns how many packets were found in the cache, and how many were not, since it was made. Only the owner may call it.
func (h *Cache) Stats() (hits, misses uint64) { return h.hits, h.misses }

// Classify is c.Classify(frame, l) by way of the cache. It allocates nothing.
func (h *Cache) Classify(c *Classifier, frame []byte, l *packet.Layers) Decision {
	if h.of != c {
		h.reset(c)
	}
	if !c.key.fits {
		h.misses++
		return c.Classify(frame, l)
	}
	var key [maxKey]uint64
	n, hash := c.key.read(frame, l, &key)
	i, ok := h.find(&key, n, hash)
	if !ok {
		i = c.find(frame, l)
		h.insert(&key, n, hash, i)
	}
	return c.finish(i, frame, l)
}

// ClassifyBatch is c.ClassifyBatch(frames, layers, out) by way of the cache. It allocates nothing.
func (h *Cache) ClassifyBatch(c *Classifier, frames [][]byte, layers []packet.Layers, out []Decision) {
	if h.of != c {
		h.reset(c)
	}
	if !c.key.fits {
		h.misses += uint64(len(frames))
		c.ClassifyBatch(frames, layers, out)
		return
	}
	layers, out = layers[:len(frames)], out[:len(frames)]
	for len(frames) > 0 {
		n := min(len(frames), BatchSize)
		h.batch(c, frames[:n], layers[:n], out[:n])
		frames, layers, out = frames[n:], layers[n:], out[n:]
	}
}

// batch does for up to BatchSize packets one step after the other, so that the processor waits for the memory of many at once.
func (h *Cache) batch(c *Classifier, frames [][]byte, layers []packet.Layers, out []Decision) {
	var keys [BatchSize][maxKey]uint64
	var hashes [BatchSize]uint64
	var lengths [BatchSize]int
	var found [BatchSize]int32
	var missing [BatchSize]uint8
	for i := range frames {
		lengths[i], hashes[i] = c.key.read(frames[i], &layers[i], &keys[i])
	}
	touched := uint64(0)
	for _, hash := range hashes[:len(frames)] {
		touched ^= h.set(hash)[0]
	}
	h.touched = touched // or the compiler would leave the loop away
	misses := missing[:0]
	for i := range frames {
		rule, ok := h.find(&keys[i], lengths[i], hashes[i])
		if found[i] = rule; !ok {
			misses = append(misses, uint8(i))
		}
	}
	for _, i := range misses {
		found[i] = c.find(frames[i], &layers[i])
		h.insert(&keys[i], lengths[i], hashes[i], found[i])
	}
	for i := range frames {
		out[i] = c.finish(found[i], frames[i], &layers[i])
	}
}

func (h *Cache) reset(c *Classifier) {
	if h.of = c; h.generation == 1<<32-1 { // generations would come again
		clear(h.entries)
		h.generation = 0
	}
	h.generation++
}

// set returns the entries that a key may be in.
func (h *Cache) set(hash uint64) *[setWords]uint64 {
	return (*[setWords]uint64)(h.entries[hash>>32&h.sets*setWords:])
}

// live reports whether a head is of the classifier that the cache is for.
func (h *Cache) live(head uint64) bool { return head>>32 == h.generation }

func (h *Cache) find(key *[maxKey]uint64, n int, hash uint64) (int32, bool) {
	set := h.set(hash)
	if n > shortKey {
		if h.live(set[0]) && set[0]&headLong != 0 && same(set[1:1+n], key[:n]) {
			return h.hit(&set[0])
		}
		return 0, false
	}
	if set[0]&headLong != 0 {
		// The second line holds a part of a key; or heads of an older classifier, which do not count either.
		return 0, false
	}
	if h.live(set[0]) && same(set[1:1+n], key[:n]) {
		return h.hit(&set[0])
	}
	if h.live(set[entryWords]) && same(set[entryWords+1:][:n], key[:n]) {
		return h.hit(&set[entryWords])
	}
	return 0, false
}

func (h *Cache) hit(head *uint64) (int32, bool) {
	if *head&headUsed == 0 {
		*head |= headUsed
	}
	h.hits++
	return int32(*head&headRule) - 1, true
}

func same(a, b []uint64) bool {
	differ := uint64(0)
	for i, v := range a[:len(b)] {
		differ |= v ^ b[i]
	}
	return differ == 0
}

// insert puts a key where none is, over the entry of the set that was not used since the other came, or over the first.
func (h *Cache) insert(key *[maxKey]uint64, n int, hash uint64, rule int32) {
	h.misses++
	set := h.set(hash)
	if !h.live(set[0]) { // so that marks of an older classifier mean nothing
		if set[0]&headLong != 0 {
			set[entryWords] = 0
		}
		set[0] = 0
	}
	head := h.generation<<32 | uint64(rule+1)
	if n > shortKey {
		set[0] = head | headLong
		copy(set[1:], key[:n])
		return
	}
	at := 0
	switch first, second := &set[0], &set[entryWords]; {
	case *first&headLong != 0:
		*second = 0 // it was a part of a key
	case !h.live(*first) || *first&headUsed == 0:
	case !h.live(*second) || *second&headUsed == 0:
		at = entryWords
	default:
		*first &^= headUsed
		*second &^= headUsed
	}
	set[at] = head
	copy(set[at+1:at+entryWords], key[:n])
}
