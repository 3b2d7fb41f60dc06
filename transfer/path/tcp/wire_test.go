package tcp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// golden are the bytes of version 1. They never change: a change of the format is a new version.
// Their checksums were computed bit by bit with another program.
var golden = []struct {
	name string
	h    header
	hex  string
}{
	{"put", header{typ: framePut, flags: flagNotify | flagCRC, msg: 5, crc: 0x01020304, seq: 7, payload: 0x1000,
		op:  0x0000000900030000,
		key: path.Key{Index: 1, Epoch: 2, Secret: 0x1122334455667788}, where: 0x123456789a, imm: 0xfeedfacecafebeef},
		"5053 01 01 0005 0005 53c52ef9 01020304 00000007 00001000 0000000900030000 00000001 00000002 " +
			"1122334455667788 000000123456789a feedfacecafebeef"},
	{"ack", header{typ: frameAck, seq: 0xffffffff, where: 41},
		"5053 01 06 0000 0000 f9d0a379 00000000 ffffffff 00000000 0000000000000000 00000000 00000000 " +
			"0000000000000000 0000000000000029 0000000000000000"},
	{"data with ack", header{typ: frameData, flags: flagEnd | flagCRC | flagAck, crc: 0x0badcafe, seq: 2, payload: 16,
		ack: 0xfffe, op: 0x800000010002, where: 3, imm: 4},
		"5053 01 04 0016 0000 b727d458 0badcafe 00000002 00000010 fffe800000010002 00000000 00000000 " +
			"0000000000000000 0000000000000003 0000000000000004"},
	{"get", header{typ: frameGet, crc: 0xaabbccdd, seq: 1, payload: 32, op: 5, key: path.Key{Index: 3, Epoch: 4, Secret: 5}, where: 6, imm: 0x0000000700000002},
		"5053 01 03 0000 0000 4970672c aabbccdd 00000001 00000020 0000000000000005 00000003 00000004 " +
			"0000000000000005 0000000000000006 0000000700000002"},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoldenHeaders(t *testing.T) {
	for _, g := range golden {
		var b [headerSize]byte
		g.h.put(b[:])
		want := unhex(t, g.hex)
		if !bytes.Equal(b[:], want) {
			t.Errorf("%s:\n got %x\nwant %x", g.name, b, want)
		}
		var h header
		if err := h.parse(want); err != nil || h != g.h {
			t.Errorf("%s: parsed %+v, %v", g.name, h, err)
		}
		for i := range b {
			for bit := range 8 {
				c := b
				c[i] ^= 1 << bit
				if err := h.parse(c[:]); err == nil {
					t.Fatalf("%s: bit %d of byte %d flipped, and the header is accepted", g.name, bit, i)
				}
			}
		}
	}
}

func TestGoldenHello(t *testing.T) {
	h := hello{version: version, kind: kindHello, flags: helloChecksum, window: 256,
		token: setup.Token{0: 0xa0, 15: 0xaf},
		index: 1, count: 2, frame: maxFrameBytes, blocks: maxFrameBlocks}
	var b [helloSize]byte
	h.put(b[:])
	want := unhex(t, "504e5354 01 01 00 00 00000001 00000100 a00000000000000000000000000000af 0001 0002 00000000 "+
		"00400000 00000400 000000000000000000000000 1ba761fb")
	if !bytes.Equal(b[:], want) {
		t.Errorf("\n got %x\nwant %x", b, want)
	}
	var g hello
	if err := g.parse(b[:]); err != nil || g != h {
		t.Errorf("parsed %+v, %v", g, err)
	}
	h.version = 9
	h.put(b[:])
	if err := g.parse(b[:]); !errors.Is(err, errVersion) || g.token != h.token {
		t.Errorf("a hello of version 9: %v, token %x: expected errVersion and the token", err, g.token)
	}
}

func TestGoldenBlock(t *testing.T) {
	var b [blockSize]byte
	block{0x0102030405060708, 0x090a0b0c}.put(b[:])
	if want := unhex(t, "0102030405060708 090a0b0c 00000000"); !bytes.Equal(b[:], want) {
		t.Errorf("got %x, want %x", b, want)
	}
	if k := parseBlock(b[:]); k.off != 0x0102030405060708 || k.n != 0x090a0b0c {
		t.Errorf("parsed %+v", k)
	}
}

// Shapes that no sender makes are refused although their checksum is right.
func TestImpossibleHeaders(t *testing.T) {
	for name, h := range map[string]header{
		"type 0":                      {},
		"unknown type":                {typ: frameTypes},
		"unknown flag":                {typ: framePut, flags: 1 << 9},
		"ack with payload":            {typ: frameAck, payload: 1},
		"message without notify":      {typ: framePut, msg: 1},
		"message too long":            {typ: frameNotify, flags: flagNotify, msg: path.MaxMessage + 1},
		"notify without notification": {typ: frameNotify},
		"payload too long":            {typ: framePut, payload: maxFrameBytes + 1},
		"end of a put":                {typ: framePut, flags: flagEnd},
		"put with keys in a table":    {typ: framePutv, flags: flagKeys},
		"get with notification":       {typ: frameGet, flags: flagNotify},
		"bulk, but no request":        {typ: framePut, flags: flagBulk, payload: 100},
		"part of nothing":             {typ: framePut, flags: flagPart, payload: 100, imm: 99},
		"part with notification":      {typ: framePut, flags: flagPart | flagNotify, imm: 99},
	} {
		var b [headerSize]byte
		h.put(b[:])
		var g header
		if err := g.parse(b[:]); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzHeader(f *testing.F) {
	for _, g := range golden {
		var b [headerSize]byte
		g.h.put(b[:])
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerSize {
			return
		}
		var h header
		if h.parse(b) != nil {
			return
		}
		var c [headerSize]byte
		h.put(c[:])
		if !bytes.Equal(c[:], b[:headerSize]) {
			t.Fatalf("%x parses, but is written as %x", b[:headerSize], c)
		}
	})
}

func FuzzHello(f *testing.F) {
	var b [helloSize]byte
	(&hello{version: version, kind: kindHello, window: 1, count: 1, frame: headerSize, blocks: 1}).put(b[:])
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < helloSize {
			return
		}
		var h hello
		if h.parse(b) == nil && h.kind == kindHello && (h.count > maxStreams || h.index > h.count || h.window == 0) {
			t.Fatalf("accepted %+v", h)
		}
	})
}
