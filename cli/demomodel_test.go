package cli

import (
	"strings"
	"testing"
)

// Every byte of every tensor counts, in whatever parts the memory comes; what lies between tensors
// does not.
func TestDemoModelVerify(t *testing.T) {
	m, err := loadDemoModel("", true)
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.region()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b := r.All().Bytes()[:m.size]
	inParts := func(part int) (checked uint64, err error) {
		for off := 0; off < len(b) && err == nil; off += part {
			n, perr := m.verifyPart(b[off:min(off+part, len(b))], uint64(off))
			checked, err = checked+n, perr
		}
		return checked, err
	}
	parts := []int{len(b), 4096, 1013}
	for _, part := range parts {
		if n, err := inParts(part); err != nil || n != m.bytes() {
			t.Errorf("in parts of %d: %d bytes of %d, %v", part, n, m.bytes(), err)
		}
	}
	inside := make([]bool, len(b))
	for _, x := range m.tensors {
		for i := x.off; i < x.off+x.size; i++ {
			inside[i] = true
		}
	}
	for at := 0; at < len(b); at += 97 {
		b[at] ^= 0x40
		for _, part := range parts[1:] {
			if _, err := m.verifyPart(b[at/part*part:min(at/part*part+part, len(b))],
				uint64(at/part*part)); (err != nil) != inside[at] {
				t.Errorf("byte %d, in a tensor %v, in parts of %d: %v", at, inside[at], part, err)
			}
		}
		b[at] ^= 0x40
	}
	x := m.tensors[3]
	b[x.off+x.size-1] ^= 1
	if _, err := inParts(1013); err == nil || !strings.Contains(err.Error(), x.name) {
		t.Errorf("the last byte of %q: %v", x.name, err)
	}
}

// Memory that a move is to fill holds no tensor before it.
func TestDemoScribble(t *testing.T) {
	m, err := loadDemoModel("", true)
	if err != nil {
		t.Fatal(err)
	}
	g, err := openDemoMemory("device", gpuFlags{runtime: "host"})
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	r, err := g.alloc("device", "test", m.size)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := scribble(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if n, _, err := m.verify(t.Context(), g.a, r); err == nil {
		t.Errorf("%d bytes passed", n)
	}
}
