package rdma

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/engine"
)

// anyRecord draws a record as this engine writes them.
func anyRecord(t *rapid.T) record {
	r := record{kind: kind(rapid.IntRange(1, int(numKinds)-1).Draw(t, "kind"))}
	word := func(name string) uint32 { return rapid.Uint32Min(1).Draw(t, name) }
	switch r.kind {
	case kindHello:
		r.transport = Transport(rapid.IntRange(0, int(numTransports)-1).Draw(t, "transport"))
		return r
	case kindBye:
		r.text = rapid.StringN(0, 60, maxText).Draw(t, "text")
		return r
	}
	r.channel = word("channel")
	switch r.kind {
	case kindReady, kindDrained, kindSent:
		r.count = rapid.Uint64().Draw(t, "count")
	case kindOffer, kindAccept:
		copy(r.pair.gid[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid"))
		r.pair.qpn, r.pair.psn = rapid.Uint32Max(1<<24-1).Draw(t, "qpn"), rapid.Uint32Max(1<<24-1).Draw(t, "psn")
		r.pair.qkey, r.pair.lid = rapid.Uint32().Draw(t, "qkey"), rapid.Uint16().Draw(t, "lid")
		r.pair.mtu = 256 << rapid.IntRange(0, 4).Draw(t, "mtu")
		if r.kind == kindOffer {
			r.longest = rapid.Uint64Max(1<<31).Draw(t, "longest")
		}
	}
	return r
}

// TestRecords: what is written is read, however many follow each other, and what is cut off is not
// taken for whole.
func TestRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Custom(anyRecord), 1, 8).Draw(t, "records")
		var b []byte
		for i := range all {
			b = all[i].append(b)
		}
		from := bytes.NewReader(b)
		scratch := make([]byte, maxRecord)
		for i := range all {
			r, err := readRecord(from, scratch)
			if err != nil || r != all[i] {
				t.Fatalf("record %d: %+v, %v; it was %+v", i, r, err, all[i])
			}
		}
		if r, err := readRecord(from, scratch); err != io.EOF {
			t.Fatalf("behind the last one: %+v, %v", r, err)
		}
		one := all[0].append(nil)
		cut := rapid.IntRange(1, len(one)-1).Draw(t, "cut")
		if r, err := readRecord(bytes.NewReader(one[:cut]), scratch); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("the first %d bytes of %d: %+v, %v", cut, len(one), r, err)
		}
	})
}

func TestRecordsRefused(t *testing.T) {
	offer := record{kind: kindOffer, channel: 1, pair: pairInfo{qpn: 1, mtu: 1024}}
	change := func(r record, at int, to ...byte) []byte {
		b := r.append(nil)
		copy(b[at:], to)
		return b
	}
	for _, c := range []struct {
		what string
		b    []byte
		want string
	}{
		{"magic", change(offer, 0, 'H', 'T'), "not a peer"},
		{"version", change(offer, 2, 9), "version 9"},
		{"kind 0", change(offer, 3, 0), "kind 0"},
		{"kind", change(offer, 3, byte(numKinds)), "not known"},
		{"length", change(offer, 7, 3), "offer of 3 bytes"},
		{"long", change(record{kind: kindBye}, 4, 0xff, 0xff, 0xff, 0xff), "bye of 4294967295 bytes"},
		{"channel", change(offer, recordHeader+3, 0), "channel 0"},
		{"MTU", change(offer, recordHeader+32, 1, 1), "path MTU of 257"},
		{"queue pair", change(offer, recordHeader+20, 1), "24 bits"},
		{"longest", change(offer, recordHeader+36, 1), "2^31"},
		{"transport", change(record{kind: kindHello}, recordHeader, byte(numTransports)), "transport 3"},
		{"hello", change(record{kind: kindHello}, recordHeader+2, 1), "not known"},
	} {
		r, err := readRecord(bytes.NewReader(c.b), make([]byte, maxRecord))
		if err == nil || !errors.Is(err, engine.ErrConnect) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; expected %q", c.what, r, err, c.want)
		}
	}
	long := record{kind: kindBye, text: strings.Repeat("x", 3*maxText)}
	if r, err := readRecord(bytes.NewReader(long.append(nil)), make([]byte, maxRecord)); err != nil ||
		len(r.text) != maxText {
		t.Errorf("a long text: %d bytes, %v", len(r.text), err)
	}
}

// FuzzRecord: no bytes make the reader fail otherwise than with an error, and what it takes it
// writes again as it was.
func FuzzRecord(f *testing.F) {
	for k := kind(1); k < numKinds; k++ {
		r := record{kind: k, channel: 1, count: 7, text: "why", longest: 4096,
			pair: pairInfo{qpn: 17, psn: 99, mtu: 1024}}
		f.Add(r.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		from := bytes.NewReader(b)
		r, err := readRecord(from, make([]byte, maxRecord))
		if err != nil {
			return
		}
		if again := r.append(nil); !bytes.Equal(again, b[:len(b)-from.Len()]) {
			t.Fatalf("% x was read as %+v, which is written as % x", b, r, again)
		}
	})
}
