package flow

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/penstock-io/penstock/packet"
)

// maxKey is how many words a key may have: with the head of an entry they fill two cache lines.
const maxKey = 15

// maxKeyFlex is how many flex offsets a key holds behind two words of small fields, one of IP
// addresses, two of Ethernet and one of eCPRI. Sets with more are not cached, nor are those with
// more IPv6 prefixes than classes have numbers.
const (
	maxKeyFlex = 2 * (maxKey - 2 - 1 - 2 - 1)
	maxClasses = 1<<16 - 1
)

// keySpec says which bits of a packet the rules can see: packets that agree in them get the same
// rule. All keys of a set have the same words in the same places, 0 where a packet lacks the field:
// nothing about reading or comparing them depends on the packet, which the processor would guess
// wrong.
type keySpec struct {
	meta, ports uint64       // masks of the first two words
	addr4       uint64       // mask of the two IPv4 addresses; 0: not seen
	addr6       [2]*steps128 // IPv6 source and destination -> class; nil: not seen
	ip          int          // the word of the addresses; 0: none
	macs        [2]int       // the words of source and destination; 0: not seen
	ecpri       int          // the word of eCPRI
	ecpriIn     [2]bool      // in Ethernet, in UDP
	length      *paged       // IP length -> class, so that lengths which no rule tells apart share a key; nil: not seen
	flex        int          // the first word of flex words, two in each
	looks       []flexLook   // an even number, by offset; the last may be there twice
	words       int          // of a key
	fits        bool         // false: the keys would be too long
}

// A flexLook is what rules see of the flex word at an offset.
type flexLook struct {
	offset uint16
	mask   uint32
}

// Shape of the first two words.
const (
	metaVLAN, metaInner, metaProto, metaVersion = 16, 29, 42, 50 // shifts in meta; EtherType at 0
	portsDst, portsLength, portsPresent         = 16, 32, 48     // shifts in ports; source at 0
)

func newKeySpec(rules []Rule) keySpec {
	var k keySpec
	var see [numFields]bool
	var lengths []interval
	var six [2][]interval
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
		see[FieldEthSrc] = see[FieldEthSrc] || m.EthSrc.Set
		see[FieldEthDst] = see[FieldEthDst] || m.EthDst.Set
		if m.ECPRI.Set() {
			k.ecpriIn[0] = k.ecpriIn[0] || !m.Proto.Set
			k.ecpriIn[1] = k.ecpriIn[1] || m.Proto.Set
		}
		if m.Length.Set {
			lengths = append(lengths, interval{u128{0, uint64(m.Length.Value.Lo)}, u128{0, uint64(m.Length.Value.Hi)},
				0})
		}
		for side, f := range []Field{FieldSrc, FieldDst} {
			p := m.prefix(f)
			if !p.IsValid() {
				continue
			}
			if p.Addr().Is4() {
				k.addr4 |= uint64(^uint32(0)<<(32-p.Bits())) << (32 * (1 - side))
			} else {
				sp := prefixSpan(p)
				six[side] = append(six[side], interval{sp.lo, sp.hi, 0})
			}
		}
		for _, f := range m.Flex {
			at, ok := slices.BinarySearchFunc(k.looks, f.Offset, func(l flexLook, o uint16) int {
				return cmp.Compare(l.offset, o)
			})
			if !ok {
				k.looks = slices.Insert(k.looks, at, flexLook{offset: f.Offset})
			}
			k.looks[at].mask |= f.Mask
		}
	}
	if len(lengths) > 0 {
		k.length = newPaged(boundaries(lengths), 0xffff)
	}
	k.fits = len(k.looks) <= maxKeyFlex
	if len(k.looks)%2 > 0 {
		k.looks = append(k.looks, flexLook{offset: k.looks[len(k.looks)-1].offset})
	}
	for side, of := range six {
		if len(of) == 0 {
			continue
		}
		if at := boundaries(of); len(at) <= maxClasses {
			steps := newSteps128(at, 0)
			k.addr6[side] = &steps
		} else {
			k.fits = false
		}
	}
	k.words = 2
	place := func(seen bool, words int) int {
		if !seen {
			return 0
		}
		k.words += words
		return k.words - words
	}
	k.ip = place(k.addr4 != 0 || k.addr6[0] != nil || k.addr6[1] != nil, 1)
	k.macs = [2]int{place(see[FieldEthSrc], 1), place(see[FieldEthDst], 1)}
	k.ecpri = place(k.ecpriIn != [2]bool{}, 1)
	k.flex = place(len(k.looks) > 0, len(k.looks)/2)
	return k
}

// boundaries returns where the intervals begin in which the same of the given ones lie, in order,
// the first at 0.
func boundaries(of []interval) []u128 {
	at := []u128{{}}
	for _, i := range of {
		at = append(at, i.lo)
		if after, ok := i.hi.next(); ok {
			at = append(at, after)
		}
	}
	slices.SortFunc(at, func(a, b u128) int { return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo)) })
	return slices.Compact(at)
}

// read puts the words of a packet's key into key and returns their hash. It leaves those behind
// k.words as they are.
func (k *keySpec) read(frame []byte, l *packet.Layers, key *[maxKey]uint64) (hash uint64) {
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
	if at := k.ip; at > 0 {
		w := uint64(0)
		switch l.IPVersion {
		case 4:
			w = binary.BigEndian.Uint64(frame[l.L3:][12:packet.IPv4Len]) & k.addr4
		case 6:
			w = k.classes(frame, l)
		}
		key[at] = w
		hash ^= mix(w, ports)
	}
	if at := k.macs[0]; at > 0 {
		w := macKey(FieldEthSrc, frame, l)
		key[at] = w
		hash ^= mix(w, 1)
	}
	if at := k.macs[1]; at > 0 {
		w := macKey(FieldEthDst, frame, l)
		key[at] = w
		hash ^= mix(w, 2)
	}
	if at := k.ecpri; at > 0 {
		w := uint64(0)
		if k.ecpriIn[0] && l.EtherType == packet.EtherTypeECPRI || k.ecpriIn[1] && l.HasPorts {
			w = ecpriKey(frame, l)
		}
		key[at] = w
		hash ^= mix(w, 3)
	}
	if k.flex > 0 {
		words := key[k.flex:][:len(k.looks)/2]
		if l.HasPorts {
			for i := range words {
				a, there := k.looks[2*i].word(frame, l)
				b, too := k.looks[2*i+1].word(frame, l)
				w := a | b<<32
				ports += (there + too) << (portsPresent + 1) // offsets ascend: how many are there says which
				words[i] = w
				hash ^= mix(w, uint64(i))
			}
		} else {
			clear(words)
		}
	}
	key[0], key[1] = meta, ports
	return hash ^ mix(meta, ports)
}

// word returns the word, and 1 if it is there. One that is not there is read elsewhere and masked,
// which takes less time than to guess whether it is there.
func (f *flexLook) word(frame []byte, l *packet.Layers) (word, there uint64) {
	at := int(l.Payload) + int(f.offset)
	yes := ^((int(l.End) - 4 - at) >> 63)
	return uint64(binary.BigEndian.Uint32(frame[at&yes:])&f.mask) & uint64(yes), uint64(yes & 1)
}

// classes returns what the rules see of IPv6 addresses: a class for each.
func (k *keySpec) classes(frame []byte, l *packet.Layers) (word uint64) {
	for side, s := range k.addr6 {
		if s != nil {
			word = word<<16 | uint64(s.find(addr6(FieldSrc+Field(side), frame, l)))
		}
	}
	return word
}

func ecpriKey(frame []byte, l *packet.Layers) uint64 {
	ty, ok := small(FieldECPRIType, frame, l)
	id, ok2 := small(FieldECPRIID, frame, l)
	key := uint64(ty)<<16 | uint64(id)
	if ok {
		key |= 1 << 32
	}
	if ok2 {
		key |= 1 << 33
	}
	return key
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
