package flow

import (
	"fmt"
	"math/bits"

	"github.com/penstock-io/penstock/packet"
)

// Bounds and default of the size of a Cache, in bytes.
const (
	MinCacheSize     = 4 << 10
	MaxCacheSize     = 1 << 30
	DefaultCacheSize = 1 << 20
)

// Shape of a cache. An entry is one cache line or two, whatever the keys of the rules need: a head,
// and the key. Eight entries make a set, whose marks lie apart: a byte of the hash for each, so
// that a probe reads one word of a table that stays in the nearest cache, and then only the entry
// that it wants.
const (
	ways      = 8
	lineWords = 8
	lowBytes  = 0x0101010101010101
	highBits  = 0x8080808080808080
)

// Cache remembers which rule packets got, so that repeated traffic is classified with one probe,
// whatever the rules. What it remembers is exact: the key holds every bit that the rules can see.
// It belongs to one goroutine; each poller has its own, for any classifier: when a call comes with
// another one than before, everything is forgotten.
//
// Memory is fixed at its making. Traffic of more flows than fit is classified at the speed of the
// classifier plus a probe.
type Cache struct {
	of           *Classifier
	entries      []uint64
	stride       int      // words of an entry
	marks        []uint64 // of each set: byte i is that of entry i, 0 when it is empty
	used         []uint8  // of each set: bit i says that entry i was found since the set was last full of such
	sets         uint64   // their number less one
	hits, misses uint64
	work         probe
}

// A probe is the search for one packet.
type probe struct {
	key        [maxKey]uint64
	hash       uint64
	set, marks uint64 // see look
	at         int
	rule       int32
}

// NewCache returns an empty cache with size bytes for entries, rounded down to a power of two; 0
// stands for DefaultCacheSize, which holds 16,384 flows, or 8,192 where keys have more than seven
// words (rules with more than a few offsets of flex words). The error says which sizes are allowed.
func NewCache(size int) (*Cache, error) {
	if size == 0 {
		size = DefaultCacheSize
	}
	if size < MinCacheSize || size > MaxCacheSize {
		return nil, fmt.Errorf("flow: a cache of %d bytes: expected %d to %d, or 0 for %d", size, MinCacheSize,
			MaxCacheSize, DefaultCacheSize)
	}
	words := 1 << (bits.Len(uint(size)) - 1) / 8
	sets := words / (ways * lineWords)
	return &Cache{entries: make([]uint64, words), marks: make([]uint64, sets), used: make([]uint8, sets)}, nil
}

// Stats returns how many packets were found in the cache, and how many were not, since it was made.
// Only the owner may call it.
func (h *Cache) Stats() (hits, misses uint64) { return h.hits, h.misses }

// reset forgets everything, and takes the shape that the keys of c need.
func (h *Cache) reset(c *Classifier) {
	h.of = c
	clear(h.marks)
	h.work = probe{} // the words behind those of a key are 0
	if h.stride = lineWords; c.key.words >= lineWords {
		h.stride = 2 * lineWords
	}
	h.sets = uint64(len(h.entries)/(ways*h.stride) - 1)
}

// Classify is c.Classify(frame, l) by way of the cache. It allocates nothing.
func (h *Cache) Classify(c *Classifier, frame []byte, l *packet.Layers) Decision {
	if h.of != c {
		h.reset(c)
	}
	if !c.key.fits {
		h.misses++
		return c.Classify(frame, l)
	}
	p := &h.work
	p.hash = c.key.read(frame, l, &p.key)
	if h.look(p); !h.find(p) {
		p.rule = c.find(frame, l)
		h.insert(p)
	}
	var d Decision
	c.finish(&d, p.rule, frame, l)
	return d
}

// mark is the byte of a hash that marks its entry; never 0, which marks an empty one.
func mark(hash uint64) uint64 { return hash&0xff | 0x80 }

// matches returns a bit, the highest of its byte, for each byte of marks that may be m: for the
// lowest of those that are, and perhaps for others. (The exact form of the test for a byte of
// zeros, after H. Warren, Hacker's Delight, costs one operation more.)
func matches(marks, m uint64) uint64 {
	x := marks ^ m*lowBytes
	return (x - lowBytes) &^ x & highBits
}

// look notes which entries of its set the key of p may be in, and where the first of them is.
func (h *Cache) look(p *probe) {
	p.set = p.hash >> 32 & h.sets
	p.marks = matches(h.marks[p.set], mark(p.hash))
	p.at = h.entry(p.set, p.marks)
}

// entry is where the entry begins that the lowest bit of marks says; of none, some entry.
func (h *Cache) entry(set, marks uint64) int {
	return (int(set)*ways + bits.TrailingZeros64(marks)/8%ways) * h.stride
}

// find looks for the key of p, after look, and puts the rule that it got into p.
func (h *Cache) find(p *probe) bool {
	for m := p.marks; m != 0; {
		e := h.entries[p.at:][:h.stride]
		if same(e, &p.key) {
			if way := bits.TrailingZeros64(m) / 8; h.used[p.set]>>way&1 == 0 {
				h.used[p.set] |= 1 << way
			}
			h.hits++
			p.rule = int32(e[0])
			return true
		}
		m &= m - 1
		p.at = h.entry(p.set, m)
	}
	return false
}

// same reports whether key is that of the entry e.
func same(e []uint64, key *[maxKey]uint64) bool {
	a := (*[lineWords]uint64)(e)
	d := (a[1] ^ key[0]) | (a[2] ^ key[1]) | (a[3] ^ key[2]) | (a[4] ^ key[3]) | (a[5] ^ key[4]) | (a[6] ^ key[5]) |
		(a[7] ^ key[6])
	if len(e) > lineWords {
		b := (*[lineWords]uint64)(e[lineWords:])
		d |= (b[0] ^ key[7]) | (b[1] ^ key[8]) | (b[2] ^ key[9]) | (b[3] ^ key[10]) | (b[4] ^ key[11]) |
			(b[5] ^ key[12]) | (b[6] ^ key[13]) | (b[7] ^ key[14])
	}
	return d == 0
}

// insert puts the key and the rule of p where there is room in its set, or over an entry that was
// not found since the others were, or over any.
func (h *Cache) insert(p *probe) {
	h.misses++
	set, way := p.set, 0
	if empty := matches(h.marks[set], 0); empty != 0 {
		way = bits.TrailingZeros64(empty) / 8 // the lowest is exact
	} else if way = bits.TrailingZeros8(^h.used[set]); way == ways {
		way = int(p.hash >> 8 % ways)
		h.used[set] = 0
	}
	h.used[set] &^= 1 << way
	h.marks[set] = h.marks[set]&^(0xff<<(8*way)) | mark(p.hash)<<(8*way)
	e := h.entries[(int(set)*ways+way)*h.stride:][:h.stride]
	e[0] = uint64(uint32(p.rule))
	copy(e[1:], p.key[:])
}
