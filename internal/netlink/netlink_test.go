package netlink

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// What was written is read, message by message and attribute by attribute.
func TestRoundTrip(t *testing.T) {
	type attribute struct {
		kind  uint16
		value []byte
	}
	rapid.Check(t, func(t *rapid.T) {
		var all []byte
		var want [][]attribute
		for i := range rapid.IntRange(0, 4).Draw(t, "messages") {
			b := Begin(nil, uint16(100+i), 4, uint32(7*i))
			var attrs []attribute
			for range rapid.IntRange(0, 4).Draw(t, "attributes") {
				a := attribute{uint16(rapid.IntRange(0, 0x3fff).Draw(t, "kind")),
					rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "value")}
				attrs = append(attrs, a)
				b = AppendAttribute(b, a.kind|uint16(rapid.SampledFrom([]int{0, 0x4000, 0x8000}).Draw(t, "flag")),
					a.value)
			}
			all = append(all, End(b)...)
			want = append(want, attrs)
		}
		n := 0
		for m, rest, ok := Next(all); ok; m, rest, ok = Next(rest) {
			if m.Kind != uint16(100+n) || m.Seq != uint32(7*n) {
				t.Fatalf("message %d is of kind %d with number %d", n, m.Kind, m.Seq)
			}
			k := 0
			for kind, v := range Attributes(m.Body) {
				if a := want[n][k]; a.kind != kind || !bytes.Equal(a.value, v) {
					t.Fatalf("attribute %d of %d: %d %x; expected %d %x", k, n, kind, v, a.kind, a.value)
				}
				k++
			}
			if k != len(want[n]) {
				t.Fatalf("%d attributes of %d", k, len(want[n]))
			}
			n++
		}
		if n != len(want) {
			t.Fatalf("%d messages of %d", n, len(want))
		}
	})
}

func TestMalformed(t *testing.T) {
	good := End(AppendAttribute(Begin(nil, 20, 0, 1), 5, []byte{1, 2, 3}))
	for name, b := range map[string][]byte{"nothing": {}, "short": good[:15], "cut off": good[:len(good)-1],
		"too short a length": append([]byte{15, 0, 0, 0}, good[4:]...),
		"too long a length":  append([]byte{255, 255, 255, 255}, good[4:]...)} {
		if m, _, ok := Next(b); ok {
			t.Errorf("%s: %+v", name, m)
		}
	}
	a := AppendAttribute(nil, 5, []byte{1, 2, 3})
	for name, b := range map[string][]byte{"nothing": {}, "short": a[:3], "cut off": a[:6],
		"too short a length": {3, 0, 5, 0, 1, 2, 3, 4}} {
		if _, v, _, ok := NextAttribute(b); ok {
			t.Errorf("%s: %x", name, v)
		}
	}
	if _, v, rest, ok := NextAttribute(a[:7]); !ok || !bytes.Equal(v, []byte{1, 2, 3}) || len(rest) != 0 {
		// without the padding, as the last one may be
		t.Errorf("%x %x %v", v, rest, ok)
	}
	for _, x := range []struct {
		body  []byte
		errno int
		ok    bool
	}{{native.AppendUint32(nil, 0), 0, true}, {native.AppendUint32(nil, 1<<32-19), 19, true},
		{native.AppendUint32(nil, 1<<32-4095), 4095, true}, {native.AppendUint32(nil, 1<<32-4096), 0, false},
		{native.AppendUint32(nil, 1), 0, false}, {nil, 0, false}} {
		if n, ok := (Message{Body: x.body}).Errno(); ok != x.ok || ok && n != x.errno {
			t.Errorf("%x: %d %v", x.body, n, ok)
		}
	}
}

// Whatever the bytes are, reading them ends.
func FuzzRead(f *testing.F) {
	f.Add(End(AppendAttribute(AppendAttribute(Begin(nil, 16, 0, 1), 3, []byte("eth0\x00")), 4, make([]byte, 4))))
	f.Add(End(append(Begin(nil, Error, 0, 1), 0, 0, 0, 0)))
	f.Fuzz(func(t *testing.T, b []byte) {
		most := len(b)/HeaderLen + 1
		for m, rest, ok := Next(b); ok; m, rest, ok = Next(rest) {
			if most--; most < 0 {
				t.Fatal("it does not end")
			}
			m.Errno()
			sum := 0
			for _, v := range Attributes(m.Body) {
				sum += 4 + len(v)
			}
			if sum > len(m.Body) {
				t.Fatalf("attributes of %d bytes in %d", sum, len(m.Body))
			}
		}
	})
}
