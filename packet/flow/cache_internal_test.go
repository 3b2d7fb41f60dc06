package flow

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// The lowest byte that matches says so, no byte that matches is left out, and an empty entry is
// never taken for a full one.
func TestCacheMarks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		var marks [ways]byte
		for i := range marks {
			if r.IntN(3) > 0 {
				marks[i] = byte(mark(r.Uint64N(4))) // few, so that they meet
			}
		}
		want := byte(mark(r.Uint64N(4)))
		if r.IntN(4) == 0 {
			want = 0 // looking for an empty one
		}
		got := matches(binary.LittleEndian.Uint64(marks[:]), uint64(want))
		lowest := true
		for i, m := range marks {
			says := got>>(8*i+7)&1 == 1
			if m == want && !says || lowest && m != want && says {
				t.Fatalf("%x looking for %x: %x", marks, want, got)
			}
			lowest = lowest && m != want
		}
	}
	for h := range uint64(1 << 16) {
		if m := mark(h); m == 0 || m > 0xff {
			t.Fatalf("the mark of %#x is %#x", h, m)
		}
	}
}

// A set that is full gives up an entry that was not found since it came. All of these have one
// hash: only their keys differ.
func TestCacheReplaces(t *testing.T) {
	for _, words := range []int{7, maxKey} {
		h, err := NewCache(MinCacheSize)
		if err != nil {
			t.Fatal(err)
		}
		c := &Classifier{key: keySpec{words: words, fits: true}}
		h.reset(c)
		const hash = 3<<32 | 9
		probeOf := func(i int) *probe {
			p := &probe{hash: hash, rule: int32(i)}
			p.key[words-1] = uint64(i + 1) // the last word: every one counts
			return p
		}
		found := func(i int) bool {
			p := probeOf(i)
			p.rule = -2
			h.look(p)
			ok := h.find(p)
			if ok && p.rule != int32(i) {
				t.Fatalf("%d words: entry %d has rule %d", words, i, p.rule)
			}
			return ok
		}
		put := func(i int) {
			p := probeOf(i)
			h.look(p)
			h.insert(p)
			if !found(i) {
				t.Fatalf("%d words: entry %d is not there when it was put", words, i)
			}
		}
		for i := range ways {
			put(i)
		}
		for i := range ways {
			if !found(i) {
				t.Fatalf("%d words: %d entries, and %d is gone", words, ways, i)
			}
		}
		// All were found: one goes, and the rest must be found again to stay.
		put(100)
		left := 0
		for i := range ways {
			if i != 5 && found(i) {
				left++
			}
		}
		if five := h.used[3&h.sets]; bits.OnesCount8(five) != left+1 {
			t.Fatalf("%d words: %d found of those that were there, marks of use %b", words, left, five)
		}
		for i := 200; i < 300; i++ { // a new entry takes the place of the one that no lookup asks for
			p := probeOf(i)
			h.look(p)
			h.insert(p)
		}
		still := 0
		for i := range ways {
			if found(i) {
				still++
			}
		}
		if still != left {
			t.Errorf("%d words: %d entries in use were replaced by what came once", words, left-still)
		}
		h.work.key[words-1] = 1
		h.reset(new(Classifier))
		if h.work.key != [maxKey]uint64{} {
			t.Errorf("%d words: what a longer key left behind a shorter one makes equal packets differ", words)
		}
		if h.reset(c); found(0) || found(100) {
			t.Errorf("%d words: found for another classifier", words)
		}
	}
}

// Sets whose keys would be too long are not cached, and classified all the same.
func TestKeyFits(t *testing.T) {
	var rules []Rule
	for i := range 40_000 {
		a := [16]byte{0x20, 1}
		binary.BigEndian.PutUint32(a[4:], uint32(2*i))
		rules = append(rules, Rule{Match: Match{Dst: netip.PrefixFrom(netip.AddrFrom16(a), 128)}})
	}
	if k := newKeySpec(rules[:30_000]); !k.fits || k.words != 3 {
		t.Errorf("30,000 prefixes: %d words, fits: %v", k.words, k.fits)
	}
	k := newKeySpec(rules[:30_000])
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		i := r.Uint64N(60_100)
		v := u128{0x20010000<<32 | i, 0}
		if r.IntN(2) == 0 {
			v.lo = 1 + r.Uint64N(9)
		}
		// Rule i/2 is of one address, of even i: a class for it, and one for those behind it.
		want := uint64(2*(i/2) + 2)
		if i%2 == 0 && v.lo == 0 {
			want--
		}
		if want = min(want, 60_000); uint64(k.addr6[1].find(v)) != want {
			t.Fatalf("address %x %x has class %d, expected %d", v.hi, v.lo, k.addr6[1].find(v), want)
		}
	}
	if newKeySpec(rules).fits {
		t.Error("40,000 prefixes have more classes than a key has numbers")
	}
	var flex []Rule
	for i := range maxKeyFlex + 1 {
		flex = append(flex, Rule{Match: Match{Flex: []Flex{{Offset: uint16(4 * i), Mask: 1}}}})
	}
	if k := newKeySpec(flex[:maxKeyFlex]); !k.fits || k.words > maxKey {
		t.Errorf("%d offsets: %d words, fits: %v", maxKeyFlex, k.words, k.fits)
	}
	if k := newKeySpec(flex[:3]); len(k.looks) != 4 || k.words != 4 {
		t.Errorf("3 offsets: %d looks, %d words", len(k.looks), k.words)
	}
	if newKeySpec(flex).fits {
		t.Errorf("%d offsets are too many", len(flex))
	}
}
