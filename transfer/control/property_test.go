package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// text draws UTF-8 of min to max bytes.
func text(min, max int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		n := rapid.OneOf(rapid.IntRange(min, max), rapid.SampledFrom([]int{min, max})).Draw(t, "length")
		s := clip(rapid.StringN(0, n, n).Draw(t, "text"), n)
		return s + strings.Repeat("x", n-len(s))
	})
}

func blob(max int) *rapid.Generator[[]byte] {
	return rapid.SliceOfN(rapid.Byte(), 0, max)
}

func id16(t *rapid.T, label string) (id [16]byte) {
	copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label))
	return id
}

func drawKey(t *rapid.T) path.Key {
	k := id16(t, "key")
	return path.ParseKey(k[:])
}

func drawDesc(t *rapid.T) path.Desc {
	return path.Desc{Key: drawKey(t), Size: rapid.Uint64().Draw(t, "size"),
		Rights: path.Rights(rapid.IntRange(1, 3).Draw(t, "rights")), Whole: rapid.Bool().Draw(t, "whole")}
}

func drawEntry(t *rapid.T) Entry {
	d := drawDesc(t)
	if rapid.Bool().Draw(t, "without rights") {
		d.Key, d.Rights = path.Key{}, 0
	}
	return Entry{Name: text(1, MaxName).Draw(t, "name"), Desc: d, Tensor: blob(MaxTensor).Draw(t, "tensor"),
		Generation: rapid.Uint64().Draw(t, "generation"), Tag: id16(t, "tag")}
}

func drawIdentity(t *rapid.T) Identity {
	return Identity{Node: id16(t, "node"), Instance: rapid.Uint64().Draw(t, "instance"),
		Name: text(0, MaxName).Draw(t, "name"),
		Host: id16(t, "host"), Paths: rapid.SliceOfN(text(1, MaxPathName), 0, MaxPaths).Draw(t, "paths"),
		MaxBody:         rapid.Uint32Range(MinBody, MaxBody).Draw(t, "body"),
		HeartbeatMillis: rapid.Uint32Range(MinHeartbeatMillis, MaxHeartbeatMillis).Draw(t, "beat"),
		Extension:       blob(MaxExtension).Draw(t, "extension")}
}

func ids16(t *rapid.T, label string) (ids [][16]byte) {
	for range rapid.IntRange(0, MaxReplaced).Draw(t, label+" count") {
		ids = append(ids, id16(t, label))
	}
	return ids
}

func drawMessage(t *rapid.T) Message {
	u := rapid.Uint64()
	switch Type(rapid.IntRange(1, 9).Draw(t, "type")) {
	case TypeHello:
		low := rapid.Uint16Range(1, 65535).Draw(t, "low")
		return &Hello{VersionMin: low, VersionMax: rapid.Uint16Range(low, 65535).Draw(t, "high"),
			Features: u.Draw(t, "features"),
			Session:  id16(t, "session"), Replaces: ids16(t, "replaces"), Identity: drawIdentity(t)}
	case TypeWelcome:
		return &Welcome{Version: rapid.Uint16().Draw(t, "version"), Features: u.Draw(t, "features"),
			Identity: drawIdentity(t)}
	case TypeHeartbeat:
		return &Heartbeat{Sent: u.Draw(t, "sent"), Echo: u.Draw(t, "echo")}
	case TypeGoodbye:
		return &Goodbye{Code: Code(rapid.Uint16().Draw(t, "code")), Reason: text(0, MaxText).Draw(t, "reason")}
	case TypeRequest:
		return &Request{ID: u.Draw(t, "id"), Method: Method(rapid.Uint16().Draw(t, "method")),
			Body: blob(500).Draw(t, "body")}
	case TypeResponse:
		m := &Response{ID: u.Draw(t, "id"), Code: Code(rapid.Uint16Range(0, 30).Draw(t, "code")),
			Text: text(0, MaxText).Draw(t, "text")}
		if m.Code == OK {
			m.Body = blob(500).Draw(t, "body")
		}
		return m
	case TypeNotification:
		return &Notification{ID: u.Draw(t, "id"), Body: blob(500).Draw(t, "body")}
	case TypeComplete:
		return &Complete{ID: id16(t, "id"), Code: Code(rapid.Uint16().Draw(t, "code")),
			Text:  text(0, MaxText).Draw(t, "text"),
			Bytes: u.Draw(t, "bytes"), Proof: path.Proof(rapid.Byte().Draw(t, "proof")),
			Path: text(0, MaxPathName).Draw(t, "path")}
	default:
		return &KeyRevoked{Key: drawKey(t)}
	}
}

func TestMessagesSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMessage(t)
		b, err := AppendFrame(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		back, rest, err := ParseFrame(b)
		if err != nil || len(rest) != 0 {
			t.Fatalf("%v, %d bytes left", err, len(rest))
		}
		if d := cmp.Diff(m, back, sameResponse); d != "" {
			t.Fatal(d)
		}
	})
}

func TestEntriesSurviveInPages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Custom(drawEntry), 0, 20).Draw(t, "all")
		limit := rapid.IntRange(MinBody, 3*MinBody).Draw(t, "body")
		max := rapid.Uint32Range(0, 8).Draw(t, "max")
		var got []Entry
		for rest := all; ; {
			p := Page(rest, max, limit)
			if max > 0 && len(p.Entries) > int(max) {
				t.Fatalf("%d entries on a page of %d", len(p.Entries), max)
			}
			body, err := AppendBody(nil, &p)
			if err != nil || len(body)+responseOverhead > limit {
				t.Fatalf("%d bytes, limit %d: %v", len(body), limit, err)
			}
			if n := len(p.Entries); n < len(rest) && (max == 0 || n < int(max)) {
				if len(body)+responseOverhead+rest[n].wireSize() <= limit {
					t.Fatalf("the page of %d entries has room for one more", n)
				}
			}
			back, err := Parse[Entries](body)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, back.Entries...)
			rest = rest[len(p.Entries):]
			if !back.More {
				break
			}
			if len(p.Entries) == 0 {
				t.Fatal("a page without entries that says there is more")
			}
		}
		if d := cmp.Diff(all, got, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
	})
}

// TestPageAtEveryLimit: a page never exceeds the frame body by a byte, and wastes none that would
// hold another entry.
func TestPageAtEveryLimit(t *testing.T) {
	all := []Entry{{Name: "a", Desc: testDesc}, {Name: "bb", Desc: testDesc, Tensor: []byte{1}},
		{Name: "ccc", Desc: testDesc}}
	sizes := []int{responseOverhead + 3, 0, 0, 0} // frame bodies of 0 to 3 entries
	for i := range all {
		sizes[i+1] = sizes[i] + MinEntry - 1 + len(all[i].Name) + len(all[i].Tensor)
	}
	for limit := sizes[0]; limit < sizes[3]+5; limit++ {
		p := Page(all, 0, limit)
		body, err := AppendBody(nil, &p)
		if err != nil {
			t.Fatal(err)
		}
		frame := frameOf(t, &Response{Body: body})
		n := len(p.Entries)
		if len(frame)-HeaderSize != sizes[n] || sizes[n] > limit || n < 3 && sizes[n+1] <= limit || p.More != (n < 3) {
			t.Errorf("limit %d: %d entries in %d bytes, more %v", limit, n, len(frame)-HeaderSize, p.More)
		}
	}
}

// TestDigestAtEveryLimit: as many blocks as DigestRoom says fit into the frame, and one more does
// not.
func TestDigestAtEveryLimit(t *testing.T) {
	for _, limit := range []int{MinBody, MinBody + 1, MinBody + 31, MinBody + 32, MaxBody} {
		n := DigestRoom(limit)
		size := func(n int) int {
			body, err := AppendBody(nil, &Digest{Blocks: make([]Block, n)})
			if err != nil {
				t.Fatal(err)
			}
			return len(frameOf(t, &Request{ID: 1, Method: MethodDigest, Body: body})) - HeaderSize
		}
		if n < 1 || size(n) > limit || n < MaxBlocks && size(n+1) <= limit {
			t.Errorf("limit %d: %d blocks take %d bytes, one more %d", limit, n, size(n), size(n)+blockSize)
		}
		n = StagedRoom(limit)
		for method, make := range map[Method]func(n int) Body{
			MethodPlace: func(n int) Body { return &Place{Blocks: make([]Block, n)} },
			MethodFetch: func(n int) Body { return &Fetch{Blocks: make([]Block, n)} },
		} {
			size := func(n int) int {
				body, err := AppendBody(nil, make(n))
				if err != nil {
					t.Fatal(err)
				}
				return len(frameOf(t, &Request{ID: 1, Method: method, Body: body})) - HeaderSize
			}
			if n < 1 || size(n) > limit || n < MaxBlocks && size(n+1) <= limit {
				t.Errorf("limit %d: %d blocks of %v take %d bytes", limit, n, method, size(n))
			}
		}
	}
}

// TestBoundsOfFields: what is out of bounds is refused when written, with the name of the field,
// and when read.
func TestBoundsOfFields(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n+1) }
	for field, m := range map[string]Body{
		"path ":     &OpenPath{Path: long(MaxPathName)},
		"path":      &OpenPath{},
		"queue":     &OpenPath{Path: "tcp", Queue: long(MaxName)},
		"address":   &PathOffer{Offer: setup.Offer{Addr: long(MaxAddr)}},
		"endpoint ": &PathOffer{Offer: setup.Offer{Addr: "a:1"}, Endpoint: []byte{1}},
		" endpoint": &OpenPath{Path: "verbs", Endpoint: make([]byte, setup.MaxDescription+1)},
		"name":      &Lookup{},
		"name ":     &Offer{Name: "\xff"},
		"tensor":    &Offer{Name: "w", Tensor: make([]byte, MaxTensor+1)},
		"rights":    &Accept{},
		"rights ":   &Entry{Name: "w", Desc: path.Desc{Rights: 4}},
		"prefix":    &List{Prefix: long(MaxName)},
		"entries":   &Entries{Entries: make([]Entry, maxEntries+1)},
		"reason":    &PathDown{Reason: long(MaxText)},
		"blocks":    &Digest{Blocks: make([]Block, MaxBlocks+1)},
		"blocks ":   &Place{Blocks: make([]Block, MaxBlocks+1)},
		"slots":     &Staging{Desc: path.Desc{Rights: path.Read}, SlotSize: 1, Slots: MaxSlots + 1},
		"slot size": &Staging{Desc: path.Desc{Rights: path.Read}, SlotSize: MaxSlot + 1, Slots: 1},
		"device":    &Staging{Desc: path.Desc{Rights: path.Read}, SlotSize: 1, Slots: 1, Device: long(MaxDevice)},
	} {
		b, err := AppendBody([]byte("kept"), m)
		if !errors.Is(err, BadRequest) || !strings.Contains(err.Error(), ": "+strings.TrimSpace(field)+":") ||
			string(b) != "kept" {
			t.Errorf("%s of %s: %v, %q", field, m.name(), err, b)
		}
	}
	for _, m := range []Message{
		&Notification{Body: make([]byte, MaxNotification+1)},
		&Request{Body: make([]byte, MaxBody)},
		&Response{Code: Busy, Body: []byte{1}},
		&Goodbye{Reason: long(MaxText)},
		&Complete{Path: long(MaxPathName)},
		&Hello{VersionMin: 0, VersionMax: 1, Identity: testIdentity()},
		&Hello{VersionMin: 2, VersionMax: 1, Identity: testIdentity()},
		&Hello{VersionMin: 1, VersionMax: 1},
	} {
		if b, err := AppendFrame([]byte("kept"), m); !errors.Is(err, BadRequest) || string(b) != "kept" {
			t.Errorf("%v: %v, %q", m.Type(), err, b)
		}
	}
	for name, c := range map[string]struct {
		parse func([]byte) (Body, error)
		hex   string
		want  string // the offset at which it is found
	}{
		"flag of 2":  {parseAs[OpenPath], "01 61 00000000 00000000 02 00", "no checksum at byte 10 of 12"},
		"bad UTF-8":  {parseAs[Lookup], "02 c328", "name at byte 1 of 3"},
		"empty name": {parseAs[Lookup], "00", "name at byte 0 of 1"},
		"rights 0":   {parseAs[Accept], strings.Repeat("00", 26), "rights at byte 24 of 26"},
		"rights 0 with a key": {parseAs[Entry], "0177" + strings.Repeat("00", 15) + "01" + strings.Repeat("00", 10),
			"rights at byte 26 of 28"},
		"rights 7": {parseAs[Accept], strings.Repeat("00", 24) + "0700", "rights at byte 24 of 26"},
		"too many entries": {parseAs[Entries], "1000 00",
			"entries at byte 0 of 3: 4096 elements of at least 55 bytes, 1 bytes left"},
		"count over max": {parseAs[Entries], "ffff 00", "entries at byte 0 of 3: length 65535"},
		"too many blocks": {parseAs[Digest], strings.Repeat("00", 57) + "0002" + strings.Repeat("00", 63),
			"blocks at byte 57 of 122: 2 elements of at least 32 bytes, 63 bytes left"},
		"blocks over max": {parseAs[Digest], strings.Repeat("00", 57) + "0401",
			"blocks at byte 57 of 59: length 1025"},
		"tensor over max": {parseAs[Offer], strings.Repeat("00", 16) + "0177" + strings.Repeat("00", 8) + "0401",
			"tensor at byte 26 of 28"},
	} {
		if _, err := c.parse(unhex(t, c.hex)); !errors.Is(err, BadRequest) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestEveryBitFlip: one flipped bit anywhere in a frame never lets another message through. A
// length that grew makes the receiver wait for more, and the checksum then refuses what came.
func TestEveryBitFlip(t *testing.T) {
	filler := bytes.Repeat(frameOf(t, &Heartbeat{Sent: 1}), (MaxBody+HeaderSize)/32+1)
	ready := func() *Session {
		x, _ := readyPair(t, named("d"), named("a"))
		x.Request(t0, &List{})
		x.Request(t0, &List{})
		x.Request(t0, &List{})
		return x
	}
	for _, g := range golden {
		b := frameOf(t, g.msg)
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			var s *Session
			if g.msg.Type() == TypeHello {
				s = newSession(t, Acceptor, named("a"))
			} else if g.msg.Type() == TypeWelcome {
				s = newSession(t, Dialer, named("d"))
			} else {
				s = ready()
			}
			err := s.Receive(t0, b)
			if err == nil {
				err = s.Receive(t0, filler)
			}
			if !errors.Is(err, Protocol) || s.State() != Failed {
				t.Errorf("%v, bit %d of byte %d: %v, %v", g.msg.Type(), bit%8, bit/8, s.State(), err)
			}
			for _, m := range drain(s) {
				if r, ok := m.(*Response); !ok || r.local == nil {
					t.Errorf("%v, bit %d of byte %d: %v came through", g.msg.Type(), bit%8, bit/8, m.Type())
				}
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
		for n := range b {
			if m, _, err := ParseFrame(b[:n]); err == nil {
				t.Errorf("%v cut to %d bytes gives %v", g.msg.Type(), n, m.Type())
			}
		}
	}
}

func TestCodesAndErrors(t *testing.T) {
	if err := error(&Error{Code: NotFound, Text: "x", Remote: true}); !errors.Is(err, NotFound) ||
		errors.Is(err, Busy) || err.Error() != "peer: not found: x" {
		t.Errorf("%v", err)
	}
	for _, c := range []struct {
		err  error
		want Code
	}{
		{Busy, Busy},
		{fmt.Errorf("x: %w", Errorf(OverBudget, "y")), OverBudget},
		{fmt.Errorf("x: %w", path.ErrRevoked), Revoked},
		{path.ErrBounds, BadRequest},
		{context.Canceled, Canceled},
		{context.DeadlineExceeded, Timeout},
		{errors.New("else"), Internal},
		{OK, Internal},
	} {
		e := AsError(c.err)
		if e.Code != c.want || !strings.Contains(c.err.Error(), e.Text) {
			t.Errorf("%v: %+v, want %v", c.err, e, c.want)
		}
	}
	if AsError(nil) != nil {
		t.Error("nil is no error")
	}
	for _, s := range same { // both directions mean the same
		if !errors.Is(AsError(s.err), s.err) {
			t.Errorf("%v does not come back as itself", s.err)
		}
	}
	if OK.String() != "ok" || Exists.String() != "exists" || Code(999).String() != "code 999" {
		t.Error("names of codes are shifted")
	}
	rapid.Check(t, func(t *rapid.T) {
		s, n := string(blob(50).Draw(t, "bytes")), rapid.IntRange(0, 60).Draw(t, "max")
		got := clip(s, n)
		if !utf8.ValidString(got) || len(got) > n {
			t.Fatalf("%q of %q", got, s)
		}
		if utf8.ValidString(s) && len(s) <= n && got != s {
			t.Fatalf("%q of %q", got, s)
		}
		if full := strings.ToValidUTF8(s, "\uFFFD"); !strings.HasPrefix(full, got) || len(full)-len(got) > 3 &&
			len(got) < n-3 {
			t.Fatalf("%q of %q", got, s)
		}
	})
}

// FuzzReceive feeds any bytes in two chunks to a session that is ready or not; seeds are whole
// streams.
func FuzzReceive(f *testing.F) {
	var all []byte
	for _, g := range golden {
		b := frameOf(f, g.msg)
		f.Add(uint8(2), uint16(7), b)
		f.Add(uint8(0), uint16(20), b)
		all = append(all, b...)
	}
	f.Add(uint8(1), uint16(300), all)
	f.Add(uint8(2), uint16(3), raw(88, FlagOptional, []byte("x")))
	f.Fuzz(func(t *testing.T, kind uint8, cut uint16, b []byte) {
		var s *Session
		switch kind % 3 {
		case 0:
			s = newSession(t, Dialer, named("d"))
		case 1:
			s = newSession(t, Acceptor, named("a"))
		default:
			s, _ = readyPair(t, named("d"), named("a"))
			s.Request(t0, &List{})
			s.Request(t0, &List{})
			s.Request(t0, &List{})
		}
		flush(s)
		fix(b) // otherwise nothing gets past the checksum
		n := min(int(cut), len(b))
		err := s.Receive(t0, b[:n])
		if err == nil {
			err = s.Receive(t0, b[n:])
		}
		if (err != nil) != (s.State() > Ready) || s.State() > Ready && !errors.Is(s.Err(), err) {
			t.Fatalf("%v, %v, %v", s.State(), err, s.Err())
		}
		if cap(s.in) > 2*(len(b)+HeaderSize) || s.out.memory > 2*MinBody {
			t.Fatalf("holds %d and %d bytes after %d", cap(s.in), s.out.memory, len(b))
		}
		for _, m := range drain(s) {
			if r, ok := m.(*Response); ok && r.local != nil {
				continue
			}
			out, err := AppendFrame(nil, m)
			if err != nil || !bytes.Contains(b, out) {
				t.Fatalf("%v does not encode as it came: %v", m.Type(), err)
			}
		}
		// Whatever came, the session answers time.
		run(s, at(60e9))
	})
}

// fix walks the frames in b and gives each a right start and checksum.
func fix(b []byte) {
	for len(b) >= HeaderSize {
		n := int(binary.BigEndian.Uint16(b[offLength+2:])) & 0xfff
		n = min(n, len(b)-HeaderSize)
		typ, flags := Type(b[offType]), binary.BigEndian.Uint16(b[offFlags:])&FlagOptional
		seal(b[:HeaderSize+n], 0, typ, flags)
		b = b[HeaderSize+n:]
	}
}

// FuzzFrame: what is accepted encodes to the same bytes.
func FuzzFrame(f *testing.F) {
	for _, g := range golden {
		f.Add(frameOf(f, g.msg))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fix(b)
		m, rest, err := ParseFrame(b)
		if err != nil {
			if !errors.Is(err, Protocol) && !errors.Is(err, BadRequest) {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		out, err := AppendFrame(nil, m)
		if err != nil || !bytes.Equal(out, b[:len(b)-len(rest)]) {
			t.Fatalf("%v: %v\n in %x\nout %x", m.Type(), err, b[:len(b)-len(rest)], out)
		}
	})
}

// FuzzBodies: the same for the bodies of methods.
func FuzzBodies(f *testing.F) {
	for i, g := range bodies {
		f.Add(uint8(i), unhex(f, g.hex))
	}
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		body, err := bodies[int(kind)%len(bodies)].parse(b)
		if err != nil {
			if !errors.Is(err, BadRequest) {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		out, err := AppendBody(nil, body)
		if err != nil || !bytes.Equal(out, b) {
			t.Fatalf("%s: %v\n in %x\nout %x", body.name(), err, b, out)
		}
	})
}
