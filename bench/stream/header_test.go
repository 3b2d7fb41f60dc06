package stream

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"
)

func TestHeaderGolden(t *testing.T) {
	h := Header{Run: 0x0102, Stream: 0x0304, Seq: 0x05060708, Due: 0x090a0b0c0d0e, Reflected: true}
	b := make([]byte, HeaderLen)
	h.Put(b)
	const want = "a71101020304050607080" + "90a0b0c0d0e"
	if got := hex.EncodeToString(b[:16]); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if crc16([]byte("123456789")) != 0x29b1 { // the check value that catalogues give for this CRC
		t.Errorf("CRC is %#x", crc16([]byte("123456789")))
	}
	var back Header
	if back.Parse(b) != Intact || back != h {
		t.Errorf("%+v, want %+v", back, h)
	}
}

// No one or two bits can be turned over without being noticed, and nothing is read from what is not
// intact.
func TestHeaderDamage(t *testing.T) {
	h := Header{Run: 7, Stream: 3, Seq: 1 << 20, Due: 12345678901}
	b := make([]byte, HeaderLen)
	h.Put(b)
	var got Header
	for i := range 8 * HeaderLen {
		b[i/8] ^= 1 << (i % 8)
		if got.Parse(b) == Intact || got != (Header{}) {
			t.Fatalf("bit %d", i)
		}
		for k := range i {
			b[k/8] ^= 1 << (k % 8)
			if got.Parse(b) == Intact {
				t.Fatalf("bits %d and %d", i, k)
			}
			b[k/8] ^= 1 << (k % 8)
		}
		b[i/8] ^= 1 << (i % 8)
	}
	for n := range HeaderLen {
		if got.Parse(b[:n]) != Foreign {
			t.Errorf("%d bytes", n)
		}
	}
}

func TestSince(t *testing.T) {
	for _, x := range []struct{ due, now, want int64 }{{5, 12, 7}, {12, 5, -7}, {1<<48 - 3, 1<<48 + 4, 7},
		{3 << 48, 3<<48 + 1e12, 1e12}} {
		h := Header{Due: uint64(x.due) & timeMask}
		if got := h.Since(x.now); got != x.want {
			t.Errorf("due %d, now %d: %d, want %d", x.due, x.now, got, x.want)
		}
	}
}

// The smallest frame holds the headers and nothing else.
func TestSmallestFrame(t *testing.T) {
	if PayloadLen(MinSize) != HeaderLen {
		t.Errorf("%d bytes of payload", PayloadLen(MinSize))
	}
	if checkSize(MinSize) != nil || checkSize(MinSize-1) == nil || checkSize(MaxSize+1) == nil {
		t.Error("bounds of sizes")
	}
}

func TestPattern(t *testing.T) {
	a, b := pattern(1000, 1, NoWork), pattern(1000, 2, NoWork)
	if bytes.Equal(a, b) || !bytes.Equal(a[:10], pattern(10, 1, NoWork)) || len(pattern(13, 1, GEMM)) != 13 {
		t.Error("a pattern is not that of its seed")
	}
	p := pattern(4096, 3, GEMM)
	for i := 0; i < len(p); i += 4 {
		if v := math.Float32frombits(binary.LittleEndian.Uint32(p[i:])); !(v >= -1 && v <= 1) {
			t.Fatalf("number %d is %v", i/4, v)
		}
	}
}

func FuzzHeader(f *testing.F) {
	b := make([]byte, HeaderLen)
	(&Header{Run: 1, Seq: 2}).Put(b)
	f.Add(b)
	f.Add([]byte{headerMagic})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Header
		if h.Parse(b) != Intact {
			if h != (Header{}) {
				t.Fatal("something was read")
			}
			return
		}
		back := make([]byte, HeaderLen)
		h.Put(back)
		back[1] = back[1]&^0xe | b[1]&0xe // flags without a meaning
		binary.BigEndian.PutUint16(back[16:], crc16(back[:16]))
		if !bytes.Equal(back, b[:HeaderLen]) {
			t.Fatalf("%x reads as %+v, which is %x", b[:HeaderLen], h, back)
		}
	})
}
