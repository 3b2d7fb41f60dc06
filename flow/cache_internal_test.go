package flow

import "testing"

// A set holds two short keys or a long one. Words of a long key look like heads of entries, if somebody wants them to: they must never
// be taken for one, neither when a short key has come in its place nor when the cache is for another classifier.
func TestCacheSetChangesShape(t *testing.T) {
	for _, stale := range []bool{false, true} {
		h, err := NewCache(MinCacheSize)
		if err != nil {
			t.Fatal(err)
		}
		a, b := new(Classifier), new(Classifier)
		h.reset(a)
		const hash = 5 << 32
		forged := [maxKey]uint64{21, 22, 23}
		var long [maxKey]uint64
		long[entryWords-1] = (h.generation+1)<<32 | 7 // lies where the second entry's head is
		if !stale {
			long[entryWords-1] = h.generation<<32 | 7
		}
		copy(long[entryWords:], forged[:3])
		h.insert(&long, maxKey, hash, 3)
		if i, ok := h.find(&long, maxKey, hash); !ok || i != 3 {
			t.Fatal(i, ok)
		}
		if _, ok := h.find(&forged, 3, hash); ok {
			t.Error("found inside a long key")
		}
		if stale {
			h.reset(b)
			if _, ok := h.find(&long, maxKey, hash); ok {
				t.Error("found for another classifier")
			}
			if _, ok := h.find(&forged, 3, hash); ok {
				t.Error("found inside a long key of another classifier")
			}
		}
		short := [maxKey]uint64{1, 2, 3}
		h.insert(&short, 3, hash, 4)
		if i, ok := h.find(&short, 3, hash); !ok || i != 4 {
			t.Error(i, ok)
		}
		if _, ok := h.find(&forged, 3, hash); ok {
			t.Errorf("stale %v: found in what was a long key", stale)
		}
		other := [maxKey]uint64{4, 5, 6}
		h.insert(&other, 3, hash, 6)
		third := [maxKey]uint64{7, 8, 9}
		h.find(&other, 3, hash)
		h.insert(&third, 3, hash, -1)
		if i, ok := h.find(&other, 3, hash); !ok || i != 6 {
			t.Error("the entry in use was replaced", i, ok)
		}
		if i, ok := h.find(&third, 3, hash); !ok || i != -1 {
			t.Error(i, ok)
		}
	}
	h, _ := NewCache(MinCacheSize)
	h.generation = 1<<32 - 1
	h.entries[0] = 1<<32 | 9
	h.reset(new(Classifier))
	if h.generation != 1 || h.entries[0] != 0 {
		t.Error("generations come again over old entries")
	}
}
