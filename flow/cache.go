package flow

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/penstock-io/penstock/packet"
)

// maxKeyFlex is how many flex offsets a cache key holds. Sets with more are not cached.
const maxKeyFlex = 16

// maxKey is the length of the longest key in words: two of small fields, four of addresses, two of Ethernet, one of eCPRI, flex.
const maxKey = 2 + 4 + 2 + 1 + maxKeyFlex/2

// keySpec says which bits of a packet the rules can see: packets that agree in them get the same rule.
type keySpec struct {
	meta, ports uint64 // masks of the first two words
	addr4       uint64 // mask of the two IPv4 addresses; 0: not seen
	addr6       [4]uint64
	see6        bool
	macs, ecpri bool
	length      []uint16 // IP length -> class, so that lengths which no rule tells apart share a key; nil: not seen
	offsets     []uint16
	masks       []uint32
	words       int  // of the longest key
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
		k.macs = k.macs || m.EthSrc.Set || m.EthDst.Set
		k.ecpri = k.ecpri || m.ECPRI.Set()
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
			at := slices.Index(k.offsets, f.Offset)
			if at < 0 {
				at = len(k.offsets)
				at, _ = slices.BinarySearch(k.offsets, f.Offset)
				k.offsets, k.masks = slices.Insert(k.offsets, at, f.Offset), slices.Insert(k.masks, at, 0)
			}
			k.masks[at] |= f.Mask
		}
	}
	k.length = lengthClasses(lengths)
	k.fits = len(k.offsets) <= maxKeyFlex
	k.words = 2 + (len(k.offsets)+1)/2
	if k.see6 {
		k.words += 4
	} else if k.addr4 != 0 {
		k.words++
	}
	if k.macs {
		k.words += 2
	}
	if k.ecpri {
		k.words++
	}
	return k
}

func lengthClasses(of []interval) []uint16 {
	if len(of) == 0 {
		return nil
	}
	var cuts [1<<16 + 1]bool
	for _, i := range of {
		cuts[i.lo.lo], cuts[i.hi.lo+1] = true, true
	}
	t := make([]uint16, 1<<16)
	class := uint16(0)
	for v := range t {
		if cuts[v] && v > 0 {
			class++
		}
		t[v] = class
	}
	return t
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
	if l.HasL2 {
		meta |= 1 << 63
	}
	ports := (uint64(l.SrcPort) | uint64(l.DstPort)<<portsDst) & k.ports
	if l.HasPorts {
		ports |= 1 << portsPresent
	}
	if k.length != nil {
		ports |= uint64(k.length[min(l.IPLen, 0xffff)]) << portsLength
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
	if k.macs {
		key[n], _ = mac(FieldEthSrc, frame, l)
		key[n+1], _ = mac(FieldEthDst, frame, l)
		n += 2
	}
	if k.ecpri {
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
	}
	for i, offset := range k.offsets {
		v, ok := flexWord(offset, frame, l)
		if ok {
			ports += 1 << (portsPresent + 1) // offsets ascend: the number of words says which are there
		}
		if v &= k.masks[i]; i%2 == 0 {
			key[n] = uint64(v)
		} else {
			key[n] |= uint64(v) << 32
			n++
		}
	}
	n += len(k.offsets) % 2
	key[0], key[1] = meta, ports
	hash = mix(meta, ports)
	for _, w := range key[2:n] {
		hash = mix(hash, w)
	}
	return n, hash
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
	entries      []uint64 // sets of two entries of stride words: head, then the key
	stride       int
	sets         uint64
	generation   uint64
	hits, misses uint64
}

// The head of an entry: generation in the upper half, a mark of use, and the index of the rule plus one.
const (
	headUsed = 1 << 31
	headRule = headUsed - 1
)

// NewCache returns an empty cache of size bytes, rounded down to a power of two; 0 stands for DefaultCacheSize, which holds between
// 8,192 and 32,768 flows, by the width of their keys. The error says which sizes are allowed.
func NewCache(size int) (*Cache, error) {
	if size == 0 {
		size = DefaultCacheSize
	}
	if size < MinCacheSize || size > MaxCacheSize {
		return nil, fmt.Errorf("flow: a cache of %d bytes: expected %d to %d, or 0 for %d", size, MinCacheSize, MaxCacheSize, DefaultCacheSize)
	}
	return &Cache{entries: make([]uint64, 1<<(bits.Len(uint(size))-1)/8)}, nil
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
	i, ok := h.find(key[:n], hash)
	if !ok {
		i = c.find(frame, l)
		h.insert(key[:n], hash, i)
	}
	return c.finish(i, frame, l)
}

// ClassifyBatch is c.ClassifyBatch(frames, layers, out) by way of the cache. It allocates nothing.
func (h *Cache) ClassifyBatch(c *Classifier, frames [][]byte, layers []packet.Layers, out []Decision) {
	layers, out = layers[:len(frames)], out[:len(frames)]
	for i := range frames {
		out[i] = h.Classify(c, frames[i], &layers[i])
	}
}

func (h *Cache) reset(c *Classifier) {
	stride := 1 << bits.Len(uint(c.key.words)) // the key and the head
	if stride != h.stride || h.generation == 1<<32-1 {
		// Heads would lie where keys were, or generations come again.
		clear(h.entries)
		h.generation = 0
	}
	h.of, h.stride = c, stride
	h.sets = uint64(len(h.entries) / (2 * stride))
	h.generation++
}

// set returns the entries that a key may be in.
func (h *Cache) set(hash uint64) []uint64 {
	i := int(hash>>32&(h.sets-1)) * 2 * h.stride
	return h.entries[i : i+2*h.stride]
}

func (h *Cache) find(key []uint64, hash uint64) (int32, bool) {
	set := h.set(hash)
	for w := 0; w < len(set); w += h.stride {
		e := set[w : w+h.stride]
		if e[0]>>32 != h.generation {
			continue
		}
		same := uint64(0)
		for i, v := range e[1 : 1+len(key)] {
			same |= v ^ key[i]
		}
		if same != 0 {
			continue
		}
		if e[0]&headUsed == 0 {
			e[0] |= headUsed
		}
		h.hits++
		return int32(e[0]&headRule) - 1, true
	}
	return 0, false
}

// insert replaces the entry of the set that was not used since the other came, or the first.
func (h *Cache) insert(key []uint64, hash uint64, rule int32) {
	h.misses++
	set := h.set(hash)
	e, other := set[:h.stride], set[h.stride:]
	switch {
	case e[0]>>32 != h.generation || e[0]&headUsed == 0:
	case other[0]>>32 != h.generation || other[0]&headUsed == 0:
		e = other
	default:
		e[0] &^= headUsed
		other[0] &^= headUsed
	}
	e[0] = h.generation<<32 | uint64(rule+1)
	copy(e[1:], key)
}
