package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// alignedBytes returns zeroed heap memory that starts on a cache line.
func alignedBytes(n int) []byte {
	b := make([]byte, n+shareAlign)
	for i := range shareAlign {
		if checkAligned("", b[i:]) == nil {
			return b[i : i+n : i+n]
		}
	}
	panic("unreachable: one of 64 neighbours is aligned")
}

// messagesPair returns both sides over fresh memory, with tickets from start on.
func messagesPair(tb interface{ Fatal(...any) }, cells int, start uint64) (*MessagesWriter, *MessagesReader, []byte) {
	mem := alignedBytes(MessagesSize(cells))
	wordAt(mem, messagesHead).Store(start)
	w, err := newMessagesWriter(mem, start)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := newMessagesReader(mem, start)
	if err != nil {
		tb.Fatal(err)
	}
	return w, r, mem
}

// sent is a message in the model.
type sent struct {
	kind    uint8
	words   [MessageWords]uint64
	payload []byte
}

func (s sent) cells() int { return MessageCells(len(s.payload)) }

// messageStarts are first tickets that reach the wraps of 2^40 and 2^64, after the
// first lap.
var messageStarts = rapid.OneOf(
	rapid.Just(uint64(0)),
	rapid.Uint64Range(1<<40-400, 1<<40-2*64),
	rapid.Uint64Range(^uint64(400), ^uint64(2*64)),
)

func TestMessagesAreAQueue(t *testing.T) {
	lengths := rapid.OneOf(
		rapid.IntRange(0, MaxPayload),
		rapid.SampledFrom([]int{0, 1, firstPayload - 1, firstPayload, firstPayload + 1, firstPayload + nextPayload,
			firstPayload + nextPayload + 1, MaxPayload - 1, MaxPayload}),
		rapid.IntRange(0, 64),
	)
	rapid.Check(t, func(t *rapid.T) {
		cells := MinMessageCells << rapid.IntRange(0, 1).Draw(t, "double")
		w, r, mem := messagesPair(t, cells, messageStarts.Draw(t, "start"))
		if w.Cells() != cells || r.Cells() != cells {
			t.Fatalf("%d and %d cells, want %d", w.Cells(), r.Cells(), cells)
		}
		var model []sent
		used := 0
		var m Message
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if r.Ready() != (len(model) > 0) {
					t.Fatalf("Ready %v with %d messages", r.Ready(), len(model))
				}
			},
			"Put": func(t *rapid.T) {
				s := sent{kind: rapid.Byte().Draw(t, "kind")}
				for i := range s.words {
					s.words[i] = rapid.Uint64().Draw(t, "word")
				}
				// Hostile to the ring: payload that looks like commit words.
				s.payload = bytes.Repeat(binary.NativeEndian.AppendUint64(nil, rapid.SampledFrom([]uint64{
					0, ^uint64(0), commitOf(w.ticket), commitOf(w.ticket + 1), commitOf(w.ticket+uint64(cells)) | 64<<8,
				}).Draw(t, "pattern")), MaxPayload/8)[:lengths.Draw(t, "length")]
				before := bytes.Clone(mem)
				ok, err := w.Put(s.kind, s.words[0], s.words[1], s.words[2], s.words[3], s.payload)
				if err != nil || ok != (used+s.cells() <= cells) {
					t.Fatalf("Put of %d cells with %d of %d used: %v, %v", s.cells(), used, cells, ok, err)
				}
				if ok {
					model = append(model, s)
					used += s.cells()
				} else if !bytes.Equal(before, mem) {
					t.Fatal("a refused Put wrote to the ring")
				}
			},
			"Get": func(t *rapid.T) {
				ok, err := r.Get(&m)
				if err != nil || ok != (len(model) > 0) {
					t.Fatalf("Get with %d messages: %v, %v", len(model), ok, err)
				}
				if !ok {
					return
				}
				want := model[0]
				if m.Kind != want.kind || m.Words != want.words || !bytes.Equal(m.Payload(), want.payload) {
					t.Fatalf("got kind %d words %x payload % x, want %+v", m.Kind, m.Words, m.Payload(), want)
				}
				model = model[1:]
				used -= want.cells()
			},
		})
	})
}

// TestMessagesLaps sends for many laps over each wrap, with every length in turn.
func TestMessagesLaps(t *testing.T) {
	for _, start := range []uint64{0, 1<<40 - 3000, ^uint64(3000)} {
		w, r, _ := messagesPair(t, MinMessageCells, start)
		payload := make([]byte, MaxPayload)
		var m Message
		for i := range uint64(2 * MaxPayload) {
			n := i % (MaxPayload + 1)
			for j := range payload[:n] {
				payload[j] = byte(i) ^ byte(j)
			}
			if ok, err := w.Put(uint8(i), i, ^i, i<<32, 7, payload[:n]); !ok || err != nil {
				t.Fatalf("start %#x: message %d: %v, %v", start, i, ok, err)
			}
			if ok, err := r.Get(&m); !ok || err != nil {
				t.Fatalf("start %#x: message %d: Get %v, %v", start, i, ok, err)
			}
			if m.Kind != uint8(i) || m.Words != [4]uint64{i, ^i, i << 32, 7} || !bytes.Equal(m.Payload(), payload[:n]) {
				t.Fatalf("start %#x: message %d of %d bytes came out wrong: %+v", start, i, n, m)
			}
			if ok, err := r.Get(&m); ok || err != nil || r.Ready() {
				t.Fatalf("start %#x: after message %d: %v, %v, ready %v", start, i, ok, err, r.Ready())
			}
		}
	}
}

func TestMessagesRefusesBadMemory(t *testing.T) {
	for _, c := range [][2]int{{1, 32}, {31, 32}, {32, 32}, {33, 64}, {1000, 1024}} {
		if n := MessagesSize(c[0]); n != 128+64*c[1] {
			t.Errorf("MessagesSize(%d) = %d, want that of %d cells", c[0], n, c[1])
		}
	}
	for _, bad := range []int{0, -1, MaxMessageCells + 1} {
		if n := MessagesSize(bad); n != 0 {
			t.Errorf("MessagesSize(%d) = %d, want 0", bad, n)
		}
	}
	for payload, want := range map[int]int{0: 1, 24: 1, 25: 2, 80: 2, 81: 3, 1024: 19} {
		if n := MessageCells(payload); n != want {
			t.Errorf("MessageCells(%d) = %d, want %d", payload, n, want)
		}
	}
	size := MessagesSize(32)
	good := alignedBytes(size + 64)
	for _, c := range []struct {
		what string
		mem  []byte
		want string
	}{
		{"nothing", nil, "do not make a message ring"},
		{"head only", good[:128], "do not make a message ring"},
		{"16 cells", good[:128+16*64], "do not make a message ring"},
		{"33 cells", good[:size+64], "do not make a message ring"},
		{"one byte short", good[:size-1], "do not make a message ring"},
		{"8 bytes off a line", good[8 : size+8], "starts 8 bytes after"},
	} {
		if _, err := NewMessagesWriter(c.mem); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: writer: %v", c.what, err)
		}
		if _, err := NewMessagesReader(c.mem); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: reader: %v", c.what, err)
		}
	}
	w, r, _ := messagesPair(t, 32, 0)
	if ok, err := w.Put(1, 0, 0, 0, 0, make([]byte, MaxPayload+1)); ok || err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("payload too long: %v, %v", ok, err)
	}
	if r.Ready() {
		t.Error("a refused message appeared")
	}
	m := Message{Len: 1<<16 - 1}
	if n := len(m.Payload()); n != MaxPayload {
		t.Errorf("Payload of a message with a wrong Len has %d bytes", n)
	}
}

// TestMessagesLayout pins the bytes: the two processes may run different builds.
func TestMessagesLayout(t *testing.T) {
	w, _, mem := messagesPair(t, 32, 0)
	payload := make([]byte, firstPayload+nextPayload+1)
	for i := range payload {
		payload[i] = byte(i + 1)
	}
	w.Put(0xab, 1, 2, 3, 4, payload)
	word := binary.NativeEndian.AppendUint64
	var want []byte
	want = word(want, 1<<24|81<<8|0xab)
	for i := range uint64(4) {
		want = word(want, i+1)
	}
	want = append(want, payload[:24]...)
	want = word(want, 2<<24|0xffffff)
	want = append(want, payload[24:80]...)
	want = word(want, 3<<24|0xffffff)
	want = append(want, 81)
	want = append(want, make([]byte, len(mem)-128-len(want))...)
	if !bytes.Equal(mem[128:], want) {
		t.Errorf("cells are % x\nwant % x", mem[128:128+192], want[:192])
	}
}

// TestMessagesAppearAtOnce holds back the last store of a message and expects that
// nothing of it is seen.
func TestMessagesAppearAtOnce(t *testing.T) {
	w, r, mem := messagesPair(t, 32, 0)
	w.Put(9, 1, 2, 3, 4, make([]byte, MaxPayload))
	commit := wordAt(mem, messagesCells)
	word := commit.Load()
	commit.Store(0)
	var m Message
	if ok, err := r.Get(&m); ok || err != nil || r.Ready() {
		t.Fatalf("without the commit word: %v, %v, ready %v", ok, err, r.Ready())
	}
	commit.Store(word)
	if ok, err := r.Get(&m); !ok || err != nil || m.Len != MaxPayload {
		t.Fatalf("with the commit word: %v, %v, %d bytes", ok, err, m.Len)
	}
}

// TestMessagesRefuseImpossibleWords lets the peer write commit words and heads
// that an honest one cannot, and expects ErrCorrupt at once and for ever.
func TestMessagesRefuseImpossibleWords(t *testing.T) {
	var m Message
	for _, laps := range []int{0, 1, 3} {
		prepare := func() (*MessagesWriter, *MessagesReader, []byte) {
			w, r, mem := messagesPair(t, 32, 0)
			for range laps * 32 {
				w.Put(0, 0, 0, 0, 0, nil)
				r.Get(&m)
			}
			return w, r, mem
		}
		for what, word := range map[string]func(t uint64) uint64{
			"the next ticket":       func(t uint64) uint64 { return commitOf(t + 1) },
			"the ticket before":     func(t uint64) uint64 { return commitOf(t - 1) },
			"two laps ago":          func(t uint64) uint64 { return commitOf(t - 64) },
			"a lap ahead":           func(t uint64) uint64 { return commitOf(t + 32) },
			"all ones":              func(t uint64) uint64 { return ^uint64(0) },
			"payload too long":      func(t uint64) uint64 { return commitOf(t) | (MaxPayload+1)<<8 },
			"a cell of the middle":  func(t uint64) uint64 { return commitOf(t) | contTag },
			"payload never written": func(t uint64) uint64 { return commitOf(t) | 100<<8 },
		} {
			_, r, mem := prepare()
			if word(r.ticket)>>seqShift == r.idle {
				continue // before ticket 0 comes the word of untouched memory
			}
			commit := wordAt(mem, messagesCells)
			commit.Store(word(r.ticket))
			honest := []uint64{r.idle << seqShift, commitOf(r.ticket)} // too late for either
			for i := range 3 {
				if ok, err := r.Get(&m); ok || !errors.Is(err, ErrCorrupt) || !r.Ready() {
					t.Errorf("%s after %d laps: %v, %v, ready %v, want ErrCorrupt", what, laps, ok, err, r.Ready())
				}
				commit.Store(honest[i%2])
			}
		}
		for d := -33; d <= 66; d++ {
			w, r, mem := prepare()
			for range 3 {
				w.Put(0, 0, 0, 0, 0, nil)
				r.Get(&m)
			}
			for {
				if ok, err := w.Put(0, 0, 0, 0, 0, nil); err != nil {
					t.Fatal(err)
				} else if !ok {
					break
				}
			}
			// The writer has put 32 more than it knows to be got.
			got := r.ticket
			wordAt(mem, messagesHead).Store(got + uint64(d))
			ok, err := w.Put(0, 0, 0, 0, 0, nil)
			if possible := d >= 0 && d <= 32; possible {
				if err != nil || ok != (d > 0) {
					t.Errorf("head %+d after %d laps: %v, %v", d, laps, ok, err)
				}
				continue
			}
			if ok || !errors.Is(err, ErrCorrupt) {
				t.Errorf("head %+d after %d laps: %v, %v, want ErrCorrupt", d, laps, ok, err)
			}
			wordAt(mem, messagesHead).Store(got + 32)
			if ok, err := w.Put(0, 0, 0, 0, 0, nil); ok || !errors.Is(err, ErrCorrupt) {
				t.Errorf("head %+d after %d laps: a corrupt ring came back to life: %v, %v", d, laps, ok, err)
			}
		}
	}
}

// TestMessagesStayCorrupt: a long message finds the head impossible; a short one,
// for which there was room all along, is refused from then on too.
func TestMessagesStayCorrupt(t *testing.T) {
	w, _, mem := messagesPair(t, 32, 0)
	for range 20 {
		if ok, err := w.Put(0, 0, 0, 0, 0, nil); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	wordAt(mem, messagesHead).Store(21)
	if ok, err := w.Put(0, 0, 0, 0, 0, make([]byte, MaxPayload)); ok || !errors.Is(err, ErrCorrupt) {
		t.Fatalf("head beyond what was put: %v, %v", ok, err)
	}
	wordAt(mem, messagesHead).Store(20)
	if ok, err := w.Put(0, 0, 0, 0, 0, nil); ok || !errors.Is(err, ErrCorrupt) {
		t.Fatalf("a corrupt ring came back to life: %v, %v", ok, err)
	}
}
