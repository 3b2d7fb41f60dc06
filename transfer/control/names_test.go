package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/penstock-io/penstock/transfer/path"
)

func listedAs(name string, size uint64) Entry {
	return Entry{Name: name, Desc: path.Desc{Size: size, Rights: path.Read}}
}

func TestNamesPage(t *testing.T) {
	var many []Entry
	for i := range 20_000 {
		many = append(many, listedAs(fmt.Sprintf("d%02d/f%05d", i/400, i), 4096))
	}
	long := strings.Repeat("n", MaxName)
	odd := []Entry{listedAs("a", 0), listedAs("a\u00e9", 1<<40), listedAs("a\u00ea", 7), listedAs("b", 1),
		listedAs(long, 5)}
	odd[1].Tensor, odd[2].Desc.Rights, odd[3].Desc.Rights = []byte{1, 2, 3}, 0, path.Read|path.Write
	for _, entries := range [][]Entry{nil, odd, many} {
		m, err := NewNamesPage(entries, len(entries) > 5, MaxBody)
		if err != nil {
			t.Fatal(err)
		}
		b, err := AppendBody(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Parse[NamesPage](b)
		if err != nil || back.More != (len(entries) > 5) {
			t.Fatalf("%v, %v", back.More, err)
		}
		got, err := back.Entries()
		if d := cmp.Diff(entries, got, cmpopts.EquateEmpty()); d != "" || err != nil {
			t.Errorf("%v: %s", err, d)
		}
		if len(entries) == len(many) {
			if len(b) > 10*1448 { // what TCP sends at once, RFC 6928
				t.Errorf("%d names take %d bytes", len(many), len(b))
			}
			if _, err := NewNamesPage(entries, false, 2000); !errors.Is(err, ErrTooLarge) {
				t.Errorf("%d bytes into 2000: %v", len(b), err)
			}
			if _, err := NewNamesPage(slices.Repeat(entries, 5), false, MaxBody); !errors.Is(err, ErrTooLarge) {
				t.Errorf("a document beyond the limit: %v", err)
			}
		}
	}
}

// A page whose list lies is refused, and takes memory for no more names than it can hold.
func TestBadNamesPages(t *testing.T) {
	u32 := func(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }
	rest := strings.Repeat("\x00", 8) + "\x01\x00\x00"
	for what, list := range map[string]string{
		"nothing":           "",
		"a count alone":     u32(1),
		"too many":          u32(1<<32-1) + strings.Repeat("\x00", 100),
		"an empty name":     u32(1) + "\x00\x00" + rest + "\x00",
		"a name of nothing": u32(1) + "\x01\x01a" + rest,
		"a long name":       u32(2) + "\x00\xff" + strings.Repeat("a", 255) + "\xff\x01a" + rest + rest,
		"not UTF-8":         u32(1) + "\x00\x01\xff" + rest,
		"rights":            u32(1) + "\x00\x01a" + strings.Repeat("\x00", 8) + "\x04\x00\x00",
		"cut":               u32(1) + "\x00\x01a" + rest[:10],
		"a byte too much":   u32(1) + "\x00\x01a" + rest + "\x00",
	} {
		m := NamesPage{list: packed{Size: uint32(len(list)), Data: []byte(list)}}
		if got, err := m.Entries(); !errors.Is(err, BadRequest) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
}

// FuzzNamesPage: whatever comes, names have their bounds, or there are none.
func FuzzNamesPage(f *testing.F) {
	m, err := NewNamesPage([]Entry{listedAs("a", 1), listedAs("ab", 2)}, true, MaxBody)
	if err != nil {
		f.Fatal(err)
	}
	b, err := AppendBody(nil, m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse[NamesPage](b)
		if err != nil {
			return
		}
		entries, err := m.Entries()
		if err != nil && !errors.Is(err, BadRequest) {
			t.Fatalf("%T %v", err, err)
		}
		for _, e := range entries {
			if e.Name == "" || len(e.Name) > MaxName || len(e.Tensor) > MaxTensor || e.Desc.Rights > 3 ||
				e.Desc.Key != (path.Key{}) {
				t.Fatalf("%+v", e)
			}
		}
	})
}
