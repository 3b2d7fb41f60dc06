package enginetest

import (
	"encoding/binary"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestShrink shows that a program that fails is shown with fewer steps.
func TestShrink(t *testing.T) {
	h := broken(corruptsSizes, simulated).defaults()
	p := NewProgram(1, 40)
	failed := fails(t, h, p)
	if failed == nil {
		t.Fatal("an engine that changes packets of some sizes passes")
	}
	small, failed := shrink(t, h, p, failed)
	if len(small.Rounds) != 1 || len(small.Rounds[0].Bursts) != 1 {
		t.Errorf("one burst would do, but %d rounds became %d:\n%v", len(p.Rounds), len(small.Rounds), small)
	}
	if fails(t, h, small) == nil || failed.text() == "" {
		t.Error("the small program does not fail, or without a word")
	}
	if s := small.String(); !strings.Contains(s, "seed 1") || !strings.Contains(s, "sender") {
		t.Errorf("the program shows as %q", s)
	}
}

// TestRecord looks for bytes that parseRecord does not survive, for records that do not come back
// as they were, and for changes that it does not notice.
func TestRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "bytes")
		if rapid.Bool().Draw(t, "magic") && len(b) > 4 {
			binary.BigEndian.PutUint32(b, recordMagic)
		}
		if r, ok, err := parseRecord(b); ok && err == nil && (r.length < recordHeader || r.length > len(b)) {
			t.Fatalf("record of %d bytes in %d", r.length, len(b))
		}
		if len(b) < recordHeader {
			return
		}
		sender, seq := rapid.Uint16().Draw(t, "sender"), rapid.Uint32().Draw(t, "seq")
		fillRecord(b, sender, sender+1, seq)
		r, ok, err := parseRecord(b)
		if !ok || err != nil || r.sender != sender || r.class != sender+1 || r.seq != seq || r.length != len(b) {
			t.Fatalf("%+v, %v, %v", r, ok, err)
		}
		at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if _, ok, err := parseRecord(b); ok && err == nil {
			t.Fatalf("a bit at %d of %d bytes was changed, and the record is still good", at, len(b))
		}
	})
}
