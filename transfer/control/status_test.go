package control

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestStatusReport(t *testing.T) {
	noise := make([]byte, 5000)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for _, doc := range [][]byte{nil, []byte("{}"), noise, bytes.Repeat([]byte("peers "), 20_000),
		bytes.Repeat([]byte{7}, MaxStatus)} {
		m, err := NewStatusReport(doc, 8<<10)
		if err != nil {
			t.Errorf("%d bytes: %v", len(doc), err)
			continue
		}
		if m.Deflated != (len(doc) > 10_000) {
			t.Errorf("%d bytes: deflated %v", len(doc), m.Deflated)
		}
		b, err := AppendBody(nil, m)
		if err != nil || len(b)+responseOverhead > 8<<10 {
			t.Fatalf("%d bytes in a body of %d: %v", len(doc), len(b), err)
		}
		back, err := Parse[StatusReport](b)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := back.JSON(); err != nil || !bytes.Equal(got, doc) {
			t.Errorf("%d bytes come back as %d: %v", len(doc), len(got), err)
		}
	}
	for _, c := range []struct {
		doc  []byte
		body int
	}{{noise, 4 << 10}, {make([]byte, MaxStatus+1), MaxBody}} {
		if _, err := NewStatusReport(c.doc, c.body); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d bytes into %d: error %v", len(c.doc), c.body, err)
		}
	}
}

// A report that lies about its size, is cut, or grows without end is refused, and takes no more
// memory than it may.
func TestBadStatusReports(t *testing.T) {
	bomb, err := NewStatusReport(make([]byte, MaxStatus), MaxBody)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(m *StatusReport)) *StatusReport {
		m := *bomb
		m.Data = bytes.Clone(m.Data)
		change(&m)
		return &m
	}
	for what, m := range map[string]*StatusReport{
		"shorter":   with(func(m *StatusReport) { m.Size-- }),
		"longer":    with(func(m *StatusReport) { m.Size = 5; m.Deflated = false }),
		"bomb":      with(func(m *StatusReport) { m.Size = 100 }),
		"cut":       with(func(m *StatusReport) { m.Data = m.Data[:len(m.Data)/2] }),
		"left over": with(func(m *StatusReport) { m.Data = append(m.Data, 1) }),
		"garbage":   with(func(m *StatusReport) { m.Data[0] ^= 0xff }),
	} {
		if b, err := m.JSON(); !errors.Is(err, BadRequest) || b != nil {
			t.Errorf("%s: %d bytes, error %v", what, len(b), err)
		}
	}
	if _, err := Parse[StatusReport](unhex(t, "01 00100001 00")); !errors.Is(err, BadRequest) ||
		!strings.Contains(err.Error(), "size at byte 1") {
		t.Errorf("a size beyond the limit: error %v", err)
	}
}

// FuzzStatusReport: whatever comes, the document has the size that was announced or there is none.
func FuzzStatusReport(f *testing.F) {
	for _, doc := range []string{"", "{}", strings.Repeat("status ", 1000)} {
		m, err := NewStatusReport([]byte(doc), MaxBody)
		if err != nil {
			f.Fatal(err)
		}
		b, err := AppendBody(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse[StatusReport](b)
		if err != nil {
			return
		}
		doc, err := m.JSON()
		if err != nil {
			if !errors.Is(err, BadRequest) {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		if len(doc) != int(m.Size) || len(doc) > MaxStatus {
			t.Fatalf("%d bytes, announced %d", len(doc), m.Size)
		}
	})
}
