package control

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

var sameResponse = cmp.Options{cmpopts.IgnoreUnexported(Response{}), cmpopts.EquateEmpty()}

func seq(from byte) (id [16]byte) {
	for i := range id {
		id[i] = from + byte(i)
	}
	return id
}

func sum(from byte) (s [32]byte) {
	for i := range s {
		s[i] = from + byte(i)
	}
	return s
}

func testIdentity() Identity {
	return Identity{Node: seq(0x10), Instance: 0x0102030405060708, Name: "wörker", Host: seq(0x40),
		Paths:   []string{"shm", "tcp"},
		MaxBody: MaxBody, HeartbeatMillis: 250, Extension: []byte{0xEE}}
}

var testKey = path.Key{Index: 7, Epoch: 9, Secret: 0xA1A2A3A4A5A6A7A8}

var testDesc = path.Desc{Key: testKey, Size: 4096, Rights: path.Read}

// golden holds one frame of each type, byte by byte. docs/protocol.md shows the same fields; a
// change here breaks peers.
var golden = []struct {
	msg Message
	hex string
}{
	{&Hello{VersionMin: 1, VersionMax: 2, Features: 5, Session: seq(0x60), Replaces: [][16]byte{seq(0x80)}, Identity: testIdentity()},
		"504e4354 01 01 0000 00000071 HHHHHHHH" +
			"0001 0002 0000000000000005 606162636465666768696a6b6c6d6e6f 01 808182838485868788898a8b8c8d8e8f" +
			"101112131415161718191a1b1c1d1e1f 0102030405060708 07 77c3b6726b6572 404142434445464748494a4b4c4d4e4f" +
			"02 03 73686d 03 746370 00040000 000000fa 0001 ee"},
	{&Welcome{Version: 2, Features: 1, Identity: testIdentity()},
		"504e4354 01 02 0000 0000004e HHHHHHHH" +
			"0002 0000000000000001" +
			"101112131415161718191a1b1c1d1e1f 0102030405060708 07 77c3b6726b6572 404142434445464748494a4b4c4d4e4f" +
			"02 03 73686d 03 746370 00040000 000000fa 0001 ee"},
	{&Heartbeat{Sent: 0x1122334455667788, Echo: 0x99AABBCCDDEEFF00},
		"504e4354 01 03 0000 00000010 HHHHHHHH 1122334455667788 99aabbccddeeff00"},
	{&Goodbye{Code: Shutdown, Reason: "bye"},
		"504e4354 01 04 0000 00000007 HHHHHHHH 0008 0003 627965"},
	{&Request{ID: 3, Method: MethodLookup, Body: []byte{1, 'w'}},
		"504e4354 01 05 0000 0000000c HHHHHHHH 0000000000000003 0002 0177"},
	{&Response{ID: 3, Code: NotFound, Text: "no w"},
		"504e4354 01 06 0000 00000010 HHHHHHHH 0000000000000003 0001 0004 6e6f2077"},
	{&Notification{ID: 4, Body: []byte("hi")},
		"504e4354 01 07 0000 0000000a HHHHHHHH 0000000000000004 6869"},
	{&Complete{ID: seq(0), Code: Integrity, Text: "x", Bytes: 1 << 40, Proof: path.ProofCRC32C, Path: "tcp"},
		"504e4354 01 08 0000 00000022 HHHHHHHH 000102030405060708090a0b0c0d0e0f 000d 0001 78 0000010000000000 02 " +
			"03 746370"},
	{&KeyRevoked{Key: testKey},
		"504e4354 01 09 0000 00000010 HHHHHHHH 00000007 00000009 a1a2a3a4a5a6a7a8"},
}

// crcBitwise is CRC-32C bit by bit: the golden frames' checksums do not come from the code under
// test.
func crcBitwise(p ...[]byte) uint32 {
	crc := ^uint32(0)
	for _, b := range bytes.Join(p, nil) {
		crc ^= uint32(b)
		for range 8 {
			if crc&1 != 0 {
				crc = crc>>1 ^ 0x82F63B78
			} else {
				crc >>= 1
			}
		}
	}
	return ^crc
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoldenFrames(t *testing.T) {
	if got := crcBitwise([]byte("123456789")); got != 0xE3069283 { // check value of the CRC catalogue
		t.Fatalf("the reference checksum itself is wrong: %#x", got)
	}
	for _, g := range golden {
		want := unhex(t, strings.Replace(g.hex, "HHHHHHHH", "00000000", 1))
		crc := crcBitwise(want[:12], want[16:])
		copy(want[12:], unhex(t, fmt.Sprintf("%08x", crc)))
		got, err := AppendFrame([]byte("before"), g.msg)
		if err != nil {
			t.Errorf("%v: %v", g.msg.Type(), err)
			continue
		}
		if !bytes.Equal(got[6:], want) || string(got[:6]) != "before" {
			t.Errorf("%v:\n got %x\nwant %x", g.msg.Type(), got[6:], want)
		}
		back, rest, err := ParseFrame(append(want, "rest"...))
		if err != nil || string(rest) != "rest" {
			t.Errorf("%v: parse: %v, rest %q", g.msg.Type(), err, rest)
			continue
		}
		if d := cmp.Diff(g.msg, back, sameResponse); d != "" {
			t.Errorf("%v: %s", g.msg.Type(), d)
		}
	}
}

// bodies holds one body of each kind with its golden bytes.
var bodies = []struct {
	body  Body
	hex   string
	parse func([]byte) (Body, error)
}{
	{&OpenPath{Path: "tcp", Streams: 2, Window: 256, NoChecksum: true, Queue: "q"},
		"03 746370 00000002 00000100 01 01 71 0000 00000000000000000000000000000000", parseAs[OpenPath]},
	{&OpenPath{Path: "verbs", Streams: 1, Window: 16, Endpoint: []byte{1, 2, 3}},
		"05 7665726273 00000001 00000010 00 00 0003 010203 00000000000000000000000000000000", parseAs[OpenPath]},
	{&OpenPath{Path: "tcp", Token: seq(0x20)}, "03 746370 00000000 00000000 00 00 0000 202122232425262728292a2b2c2d2e2f", parseAs[OpenPath]},
	{&PathOffer{PathID: 8, Offer: setup.Offer{Token: seq(0x20)}}, "0000 202122232425262728292a2b2c2d2e2f 0000000000000008 0000", parseAs[PathOffer]},
	{&PathOffer{PathID: 7, Endpoint: []byte{9}}, "0000 00000000000000000000000000000000 0000000000000007 0001 09", parseAs[PathOffer]},
	{&PathOffer{Offer: setup.Offer{Addr: "a:1", Token: seq(0x20)}, PathID: 6},
		"0003 613a31 202122232425262728292a2b2c2d2e2f 0000000000000006 0000", parseAs[PathOffer]},
	{&Lookup{Name: "w"}, "01 77", parseAs[Lookup]},
	{&Entry{Name: "w", Desc: path.Desc{Key: testKey, Size: 4096, Rights: path.Read | path.Write, Whole: true},
		Tensor: []byte{9}, Generation: 2, Tag: seq(0x70)},
		"01 77 00000007 00000009 a1a2a3a4a5a6a7a8 0000000000001000 03 01 00 0001 09 0000000000000002 " +
			"707172737475767778797a7b7c7d7e7f", parseAs[Entry]},
	{&List{Prefix: "a", After: "ab", Max: 10}, "01 61 02 6162 0000000a", parseAs[List]},
	{&Entries{Entries: []Entry{{Name: "w", Desc: path.Desc{Key: testKey, Size: 1, Rights: path.Read}}}, More: true},
		"0001 01 77 00000007 00000009 a1a2a3a4a5a6a7a8 0000000000000001 01 00 00 0000 0000000000000000 " +
			"00000000000000000000000000000000 01", parseAs[Entries]},
	{&Offer{ID: seq(0), Name: "w", Size: 1 << 33, Tensor: []byte{1, 2}},
		"000102030405060708090a0b0c0d0e0f 01 77 0000000200000000 0002 0102 00", parseAs[Offer]},
	{&Offer{ID: seq(0), Name: "w", Size: 1, Digest: true}, "000102030405060708090a0b0c0d0e0f 01 77 0000000000000001 0000 01", parseAs[Offer]},
	{&Digest{ID: seq(0), At: 1 << 25, Last: true, Expect: sum(0x80), Blocks: []Block{{testKey, 5, 1 << 25}, {testKey, 7, 0}}},
		"000102030405060708090a0b0c0d0e0f 0000000002000000 01" +
			" 808182838485868788898a8b8c8d8e8f 909192939495969798999a9b9c9d9e9f" +
			" 0002 00000007 00000009 a1a2a3a4a5a6a7a8 0000000000000005 0000000002000000" +
			" 00000007 00000009 a1a2a3a4a5a6a7a8 0000000000000007 0000000000000000", parseAs[Digest]},
	{&DigestSum{Bytes: 1 << 26, Sum: sum(1)},
		"0000000004000000 0102030405060708090a0b0c0d0e0f10 1112131415161718191a1b1c1d1e1f20", parseAs[DigestSum]},
	{&Accept{Desc: path.Desc{Key: testKey, Size: 1 << 33, Rights: path.Write}},
		"00000007 00000009 a1a2a3a4a5a6a7a8 0000000200000000 02 00 00", parseAs[Accept]},
	{&Accept{Desc: path.Desc{Key: testKey, Size: 1, Rights: path.Read, Device: true}},
		"00000007 00000009 a1a2a3a4a5a6a7a8 0000000000000001 01 00 01", parseAs[Accept]},
	{&Stage{Key: testKey, Small: true}, "00000007 00000009 a1a2a3a4a5a6a7a8 01", parseAs[Stage]},
	{&Staging{Desc: path.Desc{Key: testKey, Size: 1 << 24, Rights: path.Read | path.Write, Whole: true}, SlotSize: 1 << 22, Slots: 4, Device: "cuda 0"},
		"00000007 00000009 a1a2a3a4a5a6a7a8 0000000001000000 03 01 00 0000000000400000 00000004 06 637564612030",
		parseAs[Staging]},
	{&Unstage{Lease: testKey}, "00000007 00000009 a1a2a3a4a5a6a7a8", parseAs[Unstage]},
	{&Place{Lease: testKey, Slot: 3, Blocks: []Block{{testKey, 5, 6}}},
		"00000007 00000009 a1a2a3a4a5a6a7a8 00000003 0001 00000007 00000009 a1a2a3a4a5a6a7a8 0000000000000005 " +
			"0000000000000006", parseAs[Place]},
	{&Fetch{Lease: testKey, Slot: 1}, "00000007 00000009 a1a2a3a4a5a6a7a8 00000001 0000", parseAs[Fetch]},
	{&PathDown{PathID: 6, Reason: "cut"}, "0000000000000006 0003 637574", parseAs[PathDown]},
	{&Call{Service: "echo", Body: []byte{1, 2}}, "04 6563686f 0002 0102", parseAs[Call]},
	{&CallAnswer{Body: []byte{7}}, "0001 07", parseAs[CallAnswer]},
	{&EndSessions{Sessions: [][16]byte{seq(1), seq(2)}}, "02 0102030405060708090a0b0c0d0e0f10 02030405060708090a0b0c0d0e0f1011", parseAs[EndSessions]},
	{&Status{Rows: 9}, "00000009", parseAs[Status]},
	{&StatusReport{packed{Deflated: true, Size: 5, Data: []byte{1, 2}}}, "01 00000005 00000002 0102", parseAs[StatusReport]},
	{&Names{Prefix: "a", After: "ab"}, "01 61 02 6162", parseAs[Names]},
	{&NamesPage{More: true, list: packed{Size: 1, Data: []byte{3}}}, "01 00 00000001 00000001 03", parseAs[NamesPage]},
	{&Delivered{IDs: [][16]byte{seq(3)}}, "01 030405060708090a0b0c0d0e0f101112", parseAs[Delivered]},
	{&Outcomes{Delivered: []bool{true, false}}, "02 01 00", parseAs[Outcomes]},
	{&Empty{}, "", parseAs[Empty]},
}

func parseAs[T any, P interface {
	*T
	Body
}](b []byte) (Body, error) {
	v, err := Parse[T, P](b)
	return P(&v), err
}

func TestGoldenBodies(t *testing.T) {
	for _, g := range bodies {
		want := unhex(t, g.hex)
		got, err := AppendBody([]byte{1}, g.body)
		if err != nil || !bytes.Equal(got[1:], want) {
			t.Errorf("%s: %v\n got %x\nwant %x", g.body.name(), err, got[1:], want)
		}
		back, err := g.parse(want)
		if err != nil {
			t.Errorf("%s: %v", g.body.name(), err)
			continue
		}
		if d := cmp.Diff(g.body, back, cmpopts.EquateEmpty(),
			cmp.AllowUnexported(NamesPage{}, StatusReport{})); d != "" {
			t.Errorf("%s: %s", g.body.name(), d)
		}
		for n := range want {
			if _, err := g.parse(want[:n]); !errors.Is(err, BadRequest) {
				t.Errorf("%s cut to %d of %d bytes: %v", g.body.name(), n, len(want), err)
			}
		}
		if _, err := g.parse(append(want, 0)); !errors.Is(err, BadRequest) {
			t.Errorf("%s with a byte too much: %v", g.body.name(), err)
		}
	}
}
