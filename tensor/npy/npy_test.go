package npy_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime/metrics"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/npy"
	"github.com/penstock-io/penstock/tensor/synth"
)

// build makes a file of a dict and n bytes of data, with a correct length in front.
func build(major byte, dict string, n int) []byte {
	b := append([]byte("\x93NUMPY"), major, 0)
	if major == 1 {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(dict)))
	} else {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(dict)))
	}
	b = append(b, dict...)
	for i := range n {
		b = append(b, byte(i+1))
	}
	return b
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ name, dict, want string }{
		{"as numpy writes it", "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }      \n", "i16[2 3]"},
		{"any order, other quotes, no comma", `{"shape":(2,3),"fortran_order":False,"descr":"<i2"}`, "i16[2 3]"},
		{"white space", "\n{ 'descr' :\t'<i2' ,\r\n'fortran_order' : False , 'shape' : ( 2 , 3 , ) , } \n", "i16[2 3]"},
		{"columns", "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3), }\n", "i16[2 3] strides [1 2]"},
		{"scalar", "{'descr': '<c8', 'fortran_order': False, 'shape': (), }\n", "c64[]"},
		{"vector", "{'descr': '|u1', 'fortran_order': False, 'shape': (12,), }\n", "u8[12]"},
		{"vector in both orders", "{'descr': '|i1', 'fortran_order': True, 'shape': (12,), }\n", "i8[12]"},
		{"single bytes have no order", "{'descr': '>b1', 'fortran_order': False, 'shape': (12,), }\n", "bool[12]"},
		{"empty", "{'descr': '<f8', 'fortran_order': True, 'shape': (3, 0), }\n", "f64[3 0]"},
	} {
		for major := byte(1); major <= 3; major++ {
			b := build(major, c.dict, 12)
			x, rest, err := npy.ParseNext(b)
			if err != nil || x.Desc.String() != c.want {
				t.Errorf("%s, version %d: %v, %v; want %s", c.name, major, x, err, c.want)
				continue
			}
			if n := len(x.Bytes()); n > 0 && &x.Bytes()[0] != &b[len(b)-12] || n+len(rest) != 12 {
				t.Errorf("%s: %d bytes and %d behind are not a view of the input", c.name, n, len(rest))
			}
			if _, err := npy.Parse(b); (err == nil) != (len(rest) == 0) {
				t.Errorf("%s: Parse: %v with %d bytes behind", c.name, err, len(rest))
			}
		}
	}
}

// Each hostile header must be refused at the byte where it is wrong, which the caret marks.
func TestParseHostile(t *testing.T) {
	const rest = "'fortran_order': False, 'shape': (1,)}"
	for _, c := range []struct{ name, dict, want string }{
		{"empty header", "^", "expected '{'"},
		{"not a dict", "^[1]", "expected '{'"},
		{"code", "^__import__('os').system('x')", "expected '{'"},
		{"no descr", "{" + rest[:len(rest)-1] + "^}", "without the key 'descr'"},
		{"no order", "{'descr': '<f4', 'shape': (1,)^}", "without the key 'fortran_order'"},
		{"no shape", "{'descr': '<f4', 'fortran_order': False^}", "without the key 'shape'"},
		{"unknown key", "{'descr': '<f4', ^'x': 1, " + rest, `key "x"`},
		{"key twice", "{'descr': '<f4', ^'descr': '<f8', " + rest, "second time"},
		{"key is no string", "{^1: 2}", "expected a quote"},
		{"no colon", "{'descr' ^'<f4'}", "expected ':'"},
		{"no comma", "{'descr': '<f4' ^'shape': (1,)}", "expected ',' or '}'"},
		{"two commas", "{'descr': '<f4',^, " + rest, "expected a quote"},
		{"not closed", "{'descr': '<f4',^", "the end of the header"},
		{"garbage behind", "{'descr': '<f4', " + rest + " ^x", "only white space"},
		{"string not closed", "{'descr': ^'<f4, }", "no closing quote"},
		{"string too long", "{'descr': ^'" + strings.Repeat("x", 65) + "', " + rest, "within 64 bytes"},
		{"escape", "{'descr': '^\\x3cf4', " + rest, "without escapes"},
		{"not ASCII", "{'descr': '^\xe9', " + rest, "printable ASCII"},
		{"NUL", "{^\x00", "expected a quote"},
		{"unicode string", "{^u'descr': '<f4', " + rest, "expected a quote"},
		{"unknown type", "{'descr': ^'<f3', " + rest, "expected one of [|b1"},
		{"order for many bytes", "{'descr': ^'|f4', " + rest, "expected one of"},
		{"native order", "{'descr': ^'=f4', " + rest, "expected one of"},
		{"no order", "{'descr': ^'f4', " + rest, "expected one of"},
		{"empty type", "{'descr': ^'', " + rest, "expected one of"},
		{"text", "{'descr': ^'<U8', " + rest, "expected one of"},
		{"dates", "{'descr': ^'<M8[ns]', " + rest, "expected one of"},
		{"pickle", "{'descr': ^'|O', " + rest, "pickle"},
		{"raw memory", "{'descr': ^'<V2', " + rest, "bfloat16"},
		{"structure", "{'descr': ^[('a', '<f4')], " + rest, "structured"},
		{"type is no string", "{'descr': ^4, " + rest, "expected a quote"},
		{"order is a number", "{'descr': '<f4', 'fortran_order': ^0, 'shape': (1,)}", "True or False"},
		{"order in lower case", "{'descr': '<f4', 'fortran_order': ^true, 'shape': (1,)}", "True or False"},
		{"order with a tail", "{'descr': '<f4', 'fortran_order': False^0, 'shape': (1,)}", "expected ',' or '}'"},
		{"shape is a list", "{'descr': '<f4', 'fortran_order': False, 'shape': ^[1]}", "expected '('"},
		{"shape is a number", "{'descr': '<f4', 'fortran_order': False, 'shape': ^1}", "expected '('"},
		{"number in brackets", "{'descr': '<f4', 'fortran_order': False, 'shape': (1^)}", "(1,)"},
		{"lone comma", "{'descr': '<f4', 'fortran_order': False, 'shape': (^,)}", "expected an integer"},
		{"two commas in the shape", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,^,)}", "expected an integer"},
		{"no comma in the shape", "{'descr': '<f4', 'fortran_order': False, 'shape': (1 ^2)}", "expected ',' or ')'"},
		{"shape not closed", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,^", "expected an integer"},
		{"negative", "{'descr': '<f4', 'fortran_order': False, 'shape': (^-1,)}", "at least 0"},
		{"fraction", "{'descr': '<f4', 'fortran_order': False, 'shape': (1^.0,)}", "expected ',' or ')'"},
		{"underscore", "{'descr': '<f4', 'fortran_order': False, 'shape': (1^_0,)}", "expected ',' or ')'"},
		{"hexadecimal", "{'descr': '<f4', 'fortran_order': False, 'shape': (0^x1,)}", "expected ',' or ')'"},
		{"leading zero", "{'descr': '<f4', 'fortran_order': False, 'shape': (^01,)}", "leading zero"},
		{"Python 2", "{'descr': '<f4', 'fortran_order': False, 'shape': (1^L,)}", "Python 2"},
		{"nested", "{'descr': '<f4', 'fortran_order': False, 'shape': (^" + strings.Repeat("(", 60000), "expected an integer"},
		{"dimension overflow", "{'descr': '<f4', 'fortran_order': False, 'shape': (^9223372036854775808,)}", "2^63-1"},
		{"elements overflow", "{'descr': '|u1', 'fortran_order': False, 'shape': ^(4294967296, 4294967296)}", "2^63-1"},
		{"bytes overflow", "{'descr': '<f8', 'fortran_order': False, 'shape': ^(2305843009213693952,)}", "2^63-1"},
		{"empty but overflow", "{'descr': '<f8', 'fortran_order': True, 'shape': ^(0, 4294967296, 4294967296)}", "2^63-1"},
		{"rank 33", "{'descr': '<f4', 'fortran_order': False, 'shape': (" + strings.Repeat("1,", 32) + "^1)}", "more than 32"},
		{"beyond the file", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}^", "expected 8 for f32[2]"},
		{"far beyond the file", "{'descr': '|u1', 'fortran_order': False, 'shape': (9223372036854775807,)}^", "expected 9223372036854775807"},
	} {
		at := strings.Index(c.dict, "^")
		if at < 0 {
			t.Fatalf("%s: no caret", c.name)
		}
		for major, offset := range map[byte]int{1: 10, 2: 12, 3: 12} {
			_, err := npy.Parse(build(major, c.dict[:at]+c.dict[at+1:], 0))
			var e *npy.Error
			if !errors.As(err, &e) || e.Offset != int64(offset+at) || !strings.Contains(e.Problem, c.want) ||
				len(e.Problem) > 400 {
				t.Errorf("%s, version %d: %v; want byte %d and %q", c.name, major, err, offset+at, c.want)
			}
			if _, err := npy.ParseCopy(build(major, c.dict[:at]+c.dict[at+1:], 0)); err == nil {
				t.Errorf("%s: ParseCopy accepts it", c.name)
			}
		}
	}
}

func TestParseFrame(t *testing.T) {
	good := build(2, "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }\n", 12)
	for n := range good {
		_, err := npy.Parse(good[:n])
		var e *npy.Error
		if !errors.As(err, &e) || e.Offset > int64(n) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	for want, change := range map[string]func(b []byte){
		"byte 0: ":                               func(b []byte) { b[0] = 0x92 },
		"byte 6: version 0.0":                    func(b []byte) { b[6] = 0 },
		"byte 6: version 4.0":                    func(b []byte) { b[6] = 4 },
		"byte 6: version 2.1":                    func(b []byte) { b[7] = 1 },
		"byte 8: header length 4294967295":       func(b []byte) { copy(b[8:], "\xff\xff\xff\xff") },
		"byte 8: header length 65536, but":       func(b []byte) { copy(b[8:], "\x00\x00\x01\x00") },
		"byte 8: header length 65537; expected":  func(b []byte) { copy(b[8:], "\x01\x00\x01\x00") },
		"byte 12: found the end of the header; ": func(b []byte) { copy(b[8:], "\x00\x00\x00\x00") },
	} {
		b := bytes.Clone(good)
		change(b)
		if _, err := npy.Parse(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if _, err := npy.Parse(append(bytes.Clone(good), 1, 2, 3)); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("byte %d: 3 bytes behind", len(good))) {
		t.Errorf("bytes behind the array: %v", err)
	}
	if _, err := npy.ParseCopy(append(bytes.Clone(good), 1, 2, 3)); err == nil {
		t.Error("ParseCopy accepts bytes behind the array")
	}
}

func TestBigEndian(t *testing.T) {
	for descr, want := range map[string]string{
		">i2":  "i16 02010403060508070a090c0b0e0d100f",
		">f4":  "f32 04030201080706050c0b0a09100f0e0d",
		">f8":  "f64 0807060504030201100f0e0d0c0b0a09",
		">c8":  "c64 04030201080706050c0b0a09100f0e0d",
		">c16": "c128 0807060504030201100f0e0d0c0b0a09",
	} {
		d, err := tensor.ParseDType("<" + descr[1:])
		if err != nil {
			t.Fatal(err)
		}
		b := build(1, fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }", descr, 128/d.Bits()), 16)
		before := bytes.Clone(b)
		_, err = npy.Parse(b)
		var e *npy.Error
		if !errors.Is(err, npy.ErrBigEndian) || !errors.As(err, &e) || e.Offset != 20 {
			t.Errorf("%s: Parse: %v; want ErrBigEndian at byte 20", descr, err)
		}
		x, err := npy.ParseCopy(b)
		if got := fmt.Sprintf("%s %x", x.Desc.DType, x.Bytes()); err != nil || got != want {
			t.Errorf("%s: ParseCopy: %s, %v; want %s", descr, got, err, want)
		}
		if !bytes.Equal(b, before) {
			t.Errorf("%s: ParseCopy changed its input", descr)
		}
	}
	// A little-endian array comes as a copy too.
	b := build(1, "{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }", 4)
	x, err := npy.ParseCopy(b)
	if err != nil || string(x.Bytes()) != "\x01\x02\x03\x04" || &x.Bytes()[0] == &b[len(b)-4] {
		t.Errorf("ParseCopy: %v, %v", x, err)
	}
}

func newTensor(t interface{ Fatalf(string, ...any) }, d tensor.Desc) tensor.Tensor {
	n, err := d.Bytes()
	if err != nil {
		t.Fatalf("%v", err)
	}
	b := make([]byte, n)
	synth.Fill(b, 1)
	if d.DType == tensor.Bool { // numpy knows only 0 and 1
		for i := range b {
			b[i] &= 1
		}
	}
	x, err := tensor.New("x", d, b)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return x
}

func TestWriteGolden(t *testing.T) {
	x, err := tensor.New("x", tensor.Desc{DType: tensor.U8, Shape: []int64{3}}, []byte("abc"))
	if err != nil {
		t.Fatal(err)
	}
	for major, head := range map[int]string{1: "\x93NUMPY\x01\x00\x76\x00", 2: "\x93NUMPY\x02\x00\x74\x00\x00\x00",
		3: "\x93NUMPY\x03\x00\x74\x00\x00\x00"} {
		want := head + "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }"
		want += strings.Repeat(" ", 127-len(want)) + "\nabc"
		var out bytes.Buffer
		n, err := npy.WriteVersion(&out, x, major)
		if err != nil || n != int64(len(want)) || out.String() != want {
			t.Errorf("version %d: %d bytes, %v\n%q\nwant %d\n%q", major, n, err, out.String(), len(want), want)
		}
	}
	var one, plain bytes.Buffer
	if _, err := npy.WriteVersion(&one, x, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := npy.Write(&plain, x); err != nil || plain.String() != one.String() {
		t.Errorf("Write does not write version 1: %v", err)
	}
}

type shortWriter struct{ left int }

func (w *shortWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.left -= n
	return n, nil // less than p and no error: a broken Writer
}

func TestWriteRefuses(t *testing.T) {
	var out bytes.Buffer
	for _, d := range tensor.DTypes() {
		_, err := npy.Write(&out, newTensor(t, tensor.Desc{DType: d, Shape: []int64{2}}))
		if _, ok := d.Numpy(); (err == nil) != ok {
			t.Errorf("%s: %v", d, err)
		} else if !ok && !strings.Contains(err.Error(), "numpy has no type for "+d.String()) {
			t.Errorf("%s: %v", d, err)
		}
	}
	u8 := newTensor(t, tensor.Desc{DType: tensor.U8, Shape: []int64{2, 3}})
	for want, f := range map[string]func() (int64, error){
		"not contiguous": func() (int64, error) {
			return npy.Write(&out, newTensor(t, tensor.Desc{DType: tensor.U8, Shape: []int64{2, 3},
				Strides: []int64{4, 1}}))
		},
		"expected 1, 2 or 3":      func() (int64, error) { return npy.WriteVersion(&out, u8, 0) },
		"version 4":               func() (int64, error) { return npy.WriteVersion(&out, u8, 4) },
		"make it with tensor.New": func() (int64, error) { return npy.Write(&out, tensor.Tensor{Desc: u8.Desc}) },
		"not a valid dtype":       func() (int64, error) { return npy.Write(&out, tensor.Tensor{}) },
	} {
		if n, err := f(); err == nil || n != 0 || !strings.Contains(err.Error(), want) {
			t.Errorf("%d, %v; want an error with %q", n, err, want)
		}
	}
	for _, room := range []int{0, 5, 130} {
		if n, err := npy.Write(&shortWriter{room}, u8); !errors.Is(err, io.ErrShortWrite) || n != int64(room) {
			t.Errorf("room for %d: wrote %d, %v", room, n, err)
		}
	}
}

func numpyTypes() []tensor.DType {
	var types []tensor.DType
	for _, d := range tensor.DTypes() {
		if _, ok := d.Numpy(); ok {
			types = append(types, d)
		}
	}
	return types
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := tensor.Desc{DType: rapid.SampledFrom(numpyTypes()).Draw(t, "dtype"),
			Shape: rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 5).Draw(t, "shape")}
		if rapid.Bool().Draw(t, "columns") {
			d.Strides = tensor.ColumnMajor(d.Shape)
		}
		var out bytes.Buffer
		var want []tensor.Tensor
		for range rapid.IntRange(1, 3).Draw(t, "arrays") {
			x := newTensor(t, d)
			major := rapid.IntRange(1, 3).Draw(t, "version")
			n, err := npy.WriteVersion(&out, x, major)
			if err != nil || (n-int64(len(x.Bytes())))%64 != 0 {
				t.Fatalf("wrote %d bytes: %v", n, err)
			}
			want = append(want, x)
		}
		rest := out.Bytes()
		for _, x := range want {
			var y tensor.Tensor
			var err error
			if y, rest, err = npy.ParseNext(rest); err != nil || !x.Desc.Equal(y.Desc) ||
				!bytes.Equal(x.Bytes(), y.Bytes()) {
				t.Fatalf("%v came back as %v, %v", x, y, err)
			}
		}
		if len(rest) != 0 {
			t.Fatalf("%d bytes left", len(rest))
		}
	})
}

func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

func FuzzParse(f *testing.F) {
	f.Add(build(1, "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }\n", 12))
	f.Add(build(2, "{'descr': '<c16', 'fortran_order': True, 'shape': (1, 2), }\n", 32))
	f.Add(build(3, `{"shape":(),"fortran_order":False,"descr":">f8"}`, 8))
	f.Add(build(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (9223372036854775807,)}", 1))
	f.Add(build(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (0, 4294967296)}", 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := allocated()
		x, rest, err := npy.ParseNext(b)
		if got := allocated() - before; got > uint64(len(b))+1<<20 {
			t.Fatalf("%d bytes allocated for a file of %d", got, len(b))
		}
		if err != nil {
			var e *npy.Error
			if !errors.As(err, &e) || e.Offset < 0 || e.Offset > int64(len(b)) {
				t.Fatalf("error without a byte of the file: %v", err)
			}
			c, cerr := npy.ParseCopy(b)
			if (cerr == nil) && !errors.Is(err, npy.ErrBigEndian) {
				t.Fatalf("ParseCopy takes %v, ParseNext does not: %v", c, err)
			}
			return
		}
		var first, second bytes.Buffer
		if _, err := npy.Write(&first, x); err != nil {
			t.Fatalf("write what was read, %v: %v", x, err)
		}
		y, err := npy.Parse(first.Bytes())
		if err != nil || !x.Desc.Equal(y.Desc) || !bytes.Equal(x.Bytes(), y.Bytes()) {
			t.Fatalf("%v came back as %v, %v", x, y, err)
		}
		if _, err := npy.Write(&second, y); err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Fatalf("the second writing of %v differs: %v", x, err)
		}
		if len(rest) > len(b) || !bytes.HasSuffix(b, rest) {
			t.Fatalf("%d bytes left of %d", len(rest), len(b))
		}
	})
}
