package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/safetensors"
)

// build makes a file of a header and n bytes of data, with a correct length in front.
func build(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range n {
		b = append(b, byte(i+1))
	}
	return b
}

func TestParse(t *testing.T) {
	// Tensors in another order than their bytes, escapes in a name, all kinds of white space, an
	// empty tensor in the middle.
	b := build("{ \"b\u00e9\\ud83d\\ude00\\n\" :\t{\"shape\":[2,2],\r\n\"dtype\":\"I16\",\"data_offsets\":[4, 12]},"+
		`"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"__metadata__":{"format":"pt","":"\"\\\/\b\f"},`+
		`"empty":{"dtype":"F64","shape":[0,3],"data_offsets":[4,4]},"four":{"dtype":"F4","shape":[4],"data_offsets":[12,14]}}  `, 14)
	f, err := safetensors.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range f.Tensors() {
		got = append(got, fmt.Sprintf("%s %x", x, x.Bytes()))
	}
	want := []string{`"a" f32[] 4 B 01020304`, `"empty" f64[0 3] 0 B `, `"bé😀\n" i16[2 2] 8 B 05060708090a0b0c`,
		`"four" f4e2m1[4] 2 B 0d0e`}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("tensors:\n%q\nwant\n%q", got, want)
	}
	if m := f.Metadata(); len(m) != 2 || m["format"] != "pt" || m[""] != "\"\\/\b\f" {
		t.Errorf("metadata: %q", m)
	}
	x, ok := f.Tensor("bé😀\n")
	off, ok2 := f.Offset("bé😀\n")
	if !ok || !ok2 || &x.Bytes()[0] != &b[off] || off != f.DataOffset()+4 || f.DataOffset() != int64(len(b)-14) {
		t.Errorf("the tensor is not a view of the input at offset %d", off)
	}
	if _, ok := f.Tensor("nope"); ok {
		t.Error("found a tensor that does not exist")
	}
	if _, ok := f.Offset("nope"); ok {
		t.Error("found an offset that does not exist")
	}
	if f.Region() != nil || f.Close() != nil {
		t.Error("a parsed file has no region, and Close does nothing")
	}
}

// A tensor of which only the bytes are known does not hide the others.
func TestParseOpaque(t *testing.T) {
	const ok = `"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}`
	for _, c := range []struct {
		entry, dtype string
		shape        []int64
		size         int
	}{
		{`{"dtype":"F8_E8M0","shape":[3],"data_offsets":[2,5]}`, "F8_E8M0", []int64{3}, 3},
		{`{"dtype":"F8_E4M3FNUZ","shape":[2,2],"data_offsets":[2,6]}`, "F8_E4M3FNUZ", []int64{2, 2}, 4},
		{`{"dtype":"F8_E5M2FNUZ","shape":[],"data_offsets":[2,3]}`, "F8_E5M2FNUZ", nil, 1},
		{`{"dtype":"F6_E2M3","shape":[4,2],"data_offsets":[2,8]}`, "F6_E2M3", []int64{4, 2}, 6},
		{`{"dtype":"F6_E3M2","shape":[4],"data_offsets":[2,5]}`, "F6_E3M2", []int64{4}, 3},
		{`{"dtype":"F31","shape":[7,9223372036854775807],"data_offsets":[2,5]}`, "F31", []int64{7, 9223372036854775807}, 3},
		{`{"dtype":"f32","shape":[1],"data_offsets":[2,6]}`, "f32", []int64{1}, 4},
		{`{"dtype":"F32","shape":[1],"extra":{"x":[1,-2.5e3,true,false,null,"\u00e9",{}],"y":[]},"data_offsets":[2,6]}`, "F32", []int64{1}, 4},
		{`{"quant":"q4","dtype":"U8","shape":[8],"data_offsets":[2,6]}`, "U8", []int64{8}, 4},
	} {
		b := build(`{"__metadata__": null ,`+ok+`,"b":`+c.entry+`}`, 2+c.size)
		f, err := safetensors.Parse(b)
		if err != nil {
			t.Errorf("%s: %v", c.entry, err)
			continue
		}
		a, _ := f.Tensor("a")
		x, _ := f.Tensor("b")
		o, is := f.Opaque("b")
		if _, other := f.Opaque("a"); other || !is || o.DType != c.dtype || !slices.Equal(o.Shape, c.shape) {
			t.Errorf("%s: %v, %v", c.entry, o, is)
		}
		if string(a.Bytes()) != "\x01\x02" || f.Metadata() != nil || x.Desc.String() != fmt.Sprintf("u8[%d]", c.size) ||
			!bytes.Equal(x.Bytes(), b[len(b)-c.size:]) {
			t.Errorf("%s: %v, %v", c.entry, a, x)
		}
		sameAfterWriting(t, f)
	}
}

func TestParseWithoutTensors(t *testing.T) {
	f, err := safetensors.Parse(build("{}", 0))
	if err != nil || len(f.Tensors()) != 0 || f.Metadata() != nil {
		t.Errorf("%v, %v", f, err)
	}
}

// Each hostile file must be refused at the byte where it is wrong, which the caret marks: it stands
// in front of that byte and is taken out of the header.
func TestParseHostile(t *testing.T) {
	const a = `"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}`
	long := strings.Repeat("n", 5000)
	for _, c := range []struct {
		name, header string
		data         int
		want         string
	}{
		{"overlap", `{` + a + `,"b":{"dtype":"U8","shape":[4],"data_offsets":^[2,6]}}`, 6, `overlaps "a", which ends at 4`},
		{"same bytes twice", `{` + a + `,"b":{"dtype":"U8","shape":[4],"data_offsets":^[0,4]}}`, 4, "overlaps"},
		{"empty inside", `{` + a + `,"b":{"dtype":"U8","shape":[0],"data_offsets":^[2,2]}}`, 4, "overlaps"},
		{"hole", `{` + a + `,"b":{"dtype":"U8","shape":[1],"data_offsets":^[5,6]}}`, 6, "expected no hole"},
		{"hole at the start", `{"b":{"dtype":"U8","shape":[1],"data_offsets":^[1,2]}}`, 2, "expected no hole"},
		{"beyond the file", `{"a":{"dtype":"U8","shape":[4],"data_offsets":^[0,4]}}`, 3, "only 3 bytes of data"},
		{"far beyond the file", `{"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":^[0,9223372036854775807]}}`, 3, "only 3 bytes"},
		{"trailing data", `{` + a + `}^`, 4 + 5, ""},
		{"trailing garbage in the header", `{` + a + `} ^x`, 4, "only white space"},
		{"two objects", `{}^{}`, 0, "only white space"},
		{"size against shape", `{"a":{"dtype":"F32","shape":[4],"data_offsets":^[0,4]}}`, 4, "hold 4 bytes; expected 16 for f32[4]"},
		{"size against shape, offsets first", `{"a":{"data_offsets":^[0,4],"dtype":"F32","shape":[4]}}`, 4, "expected 16"},
		{"elements overflow", `{"a":{"dtype":"U8","shape":^[4294967296,4294967296],"data_offsets":[0,0]}}`, 0, "2^63-1"},
		{"elements overflow to 0 of them", `{"a":{"dtype":"U8","shape":^[0,4294967296,4294967296],"data_offsets":[0,0]}}`, 0, "2^63-1"},
		{"bytes overflow", `{"a":{"dtype":"F64","shape":^[2305843009213693952],"data_offsets":[0,0]}}`, 0, "2^63-1"},
		{"dimension overflow", `{"a":{"dtype":"U8","shape":[^9223372036854775808],"data_offsets":[0,0]}}`, 0, "above 2^63-1"},
		{"huge number", `{"a":{"dtype":"U8","shape":[^` + strings.Repeat("9", 1000) + `],"data_offsets":[0,0]}}`, 0, "above 2^63-1"},
		{"negative dimension", `{"a":{"dtype":"U8","shape":[^-1],"data_offsets":[0,0]}}`, 0, "negative"},
		{"negative offset", `{"a":{"dtype":"U8","shape":[4],"data_offsets":[^-4,0]}}`, 0, "negative"},
		{"fraction", `{"a":{"dtype":"U8","shape":[^1.0],"data_offsets":[0,1]}}`, 1, "fraction"},
		{"exponent", `{"a":{"dtype":"U8","shape":[^1e0],"data_offsets":[0,1]}}`, 1, "exponent"},
		{"leading zero", `{"a":{"dtype":"U8","shape":[^01],"data_offsets":[0,1]}}`, 1, "leading zero"},
		{"string as a number", `{"a":{"dtype":"U8","shape":[^"1"],"data_offsets":[0,1]}}`, 1, "expected an integer"},
		{"backwards", `{"a":{"dtype":"U8","shape":[4],"data_offsets":^[4,0]}}`, 4, "end before they begin"},
		{"one offset", `{"a":{"dtype":"U8","shape":[4],"data_offsets":^[4]}}`, 4, "expected 2"},
		{"three offsets", `{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,^4]}}`, 4, "more than 2"},
		{"rank 33", `{"a":{"dtype":"U8","shape":[` + strings.Repeat("1,", 32) + `^1],"data_offsets":[0,1]}}`, 1, "more than 32"},
		{"size of bytes of another type", `{"a":{"dtype":"F8_E8M0","shape":[5],"data_offsets":^[0,4]}}`, 4, "hold 4 bytes; expected 5 for F8_E8M0[5]"},
		{"size of six bits", `{"a":{"dtype":"F6_E2M3","shape":[2,4],"data_offsets":^[0,8]}}`, 8, "expected 6"},
		{"six bits that fill no bytes", `{"a":{"dtype":^"F6_E3M2","shape":[3],"data_offsets":[0,2]}}`, 2, "do not fill whole bytes"},
		{"bits overflow", `{"a":{"dtype":"F8_E4M3FNUZ","shape":^[4611686018427387904],"data_offsets":[0,0]}}`, 0, "2^63-1 bits"},
		{"elements of another type overflow", `{"a":{"dtype":"F8_E5M2FNUZ","shape":^[4294967296,4294967296],"data_offsets":[0,0]}}`, 0, "2^63-1 bits"},
		{"dtype that is no string", `{"a":{"dtype":^5,"shape":[4],"data_offsets":[0,4]}}`, 4, "expected '\"'"},
		{"odd number of nibbles", `{"a":{"dtype":^"F4","shape":[3],"data_offsets":[0,2]}}`, 2, "even number"},
		{"name twice", `{` + a + `,^` + a + `}`, 4, "second time; the first is at byte 9"},
		{"name twice by escape", `{` + a + `,^"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}}`, 4, "second time"},
		{"dtype twice", `{"a":{"dtype":"U8",^"dtype":"I8","shape":[4],"data_offsets":[0,4]}}`, 4, "dtype for the second time"},
		{"metadata twice", `{"__metadata__":{},^"__metadata__":{}}`, 0, "second time; the first is at byte 9"},
		{"metadata key twice", `{"__metadata__":{"k":"1",^"k":"2"}}`, 0, "second time"},
		{"metadata number", `{"__metadata__":{"k":^1}}`, 0, "a string as all of"},
		{"metadata nested", `{"__metadata__":{"k":^{}}}`, 0, "a string as all of"},
		{"metadata that is almost null", `{"__metadata__":^nul}`, 0, "expected '{'"},
		{"metadata null and more", `{"__metadata__":null^s}`, 0, "expected ',' or '}'"},
		{"metadata null twice", `{"__metadata__":null,^"__metadata__":null}`, 0, "second time"},
		{"unknown key without a value", `{"a":{"dtype":"U8","extra":^,"shape":[4],"data_offsets":[0,4]}}`, 4, "a value of JSON"},
		{"unknown key with half a value", `{"a":{"dtype":"U8","extra":{"b":^tru},"shape":[4],"data_offsets":[0,4]}}`, 4, "a value of JSON"},
		{"unknown key with half a list", `{"a":{"dtype":"U8","extra":[1^`, 4, "expected ',' or ']'"},
		{"deep nesting of what is not known", `{"a":{"dtype":"U8","extra":` + strings.Repeat("[", 32) + "^" + strings.Repeat("[", 100000), 0, "deeper than 32"},
		{"overlap of what is not known", `{` + a + `,"b":{"dtype":"F31","shape":[4],"data_offsets":^[2,6]}}`, 6, `overlaps "a"`},
		{"no dtype", `{^"a":{"shape":[4],"data_offsets":[0,4]}}`, 4, "has no dtype"},
		{"no shape", `{^"a":{"dtype":"U8","data_offsets":[0,4]}}`, 4, "has no shape"},
		{"no offsets", `{^"a":{"dtype":"U8","shape":[4]}}`, 4, "has no data_offsets"},
		{"nothing", `{^"a":{}}`, 0, "has no dtype"},
		{"tensor that is no object", `{"a":^[]}`, 0, "expected '{'"},
		{"deep nesting", `{"a":{"dtype":"U8","shape":[^` + strings.Repeat("[", 100000), 0, "expected an integer"},
		{"deep nesting of objects", `{"a":{"dtype":^` + strings.Repeat(`{"a":`, 100000), 0, "expected '\"'"},
		{"trailing comma", `{` + a + `,^}`, 4, "expected '\"' to begin a tensor's name"},
		{"trailing comma in a list", `{"a":{"dtype":"U8","shape":[4,^],"data_offsets":[0,4]}}`, 4, "expected an integer"},
		{"no comma", `{` + a + `^"b":1}`, 4, "expected ',' or '}'"},
		{"no colon", `{"a"^{}}`, 0, "expected ':'"},
		{"not closed", `{` + a + `^`, 0, "the end of the header"},
		{"empty header", `^`, 0, "expected '{'"},
		{"space in front", `^ {}`, 0, "expected '{'"},
		{"an array", `^[]`, 0, "expected '{'"},
		{"not UTF-8 in a name", "{\"a^\xff\":{}}", 0, "byte 0xff is not UTF-8"},
		{"surrogate in UTF-8", "{\"^\xed\xa0\x80\":{}}", 0, "byte 0xed is not UTF-8"},
		{"half of a UTF-8 character", "{\"a\":^\xe2\x82", 0, "is not UTF-8"},
		{"half of a surrogate pair", `{"^\ud83d":{}}`, 0, "surrogate"},
		{"second half alone", `{"^\ude00":{}}`, 0, "surrogate"},
		{"surrogate and a letter", `{"^\ud83d\u0061":{}}`, 0, "surrogate"},
		{"bad escape", `{"^\x41":{}}`, 0, `expected one of`},
		{"short escape", `{"^\u12`, 0, "four hexadecimal digits"},
		{"escape at the end", `{"^\`, 0, "ends inside an escape"},
		{"newline in a name", "{\"a^\n\":{}}", 0, "control character"},
		{"NUL between tokens", "{^\x00}", 0, `found '\x00'`},
		{"name without end", `{^"abc`, 0, "no closing quote"},
		{"long names are shortened", `{"` + long + `":{"dtype":"U8","shape":[4],"data_offsets":^[0,5]}}`, 5, "(5000 bytes)"},
	} {
		at := strings.Index(c.header, "^")
		if at < 0 {
			t.Fatalf("%s: no caret", c.name)
		}
		header := c.header[:at] + c.header[at+1:]
		wantAt := int64(8 + at)
		if c.name == "trailing data" { // the byte is behind the header and the data that belong to a tensor
			wantAt, c.want = wantAt+4, "5 bytes of data that belong to no tensor"
		}
		f, err := safetensors.Parse(build(header, c.data))
		var e *safetensors.Error
		switch {
		case err == nil:
			t.Errorf("%s: accepted as %v", c.name, f.Tensors())
		case !errors.As(err, &e):
			t.Errorf("%s: %v is not an *Error", c.name, err)
		case e.Offset != wantAt || !strings.Contains(e.Problem, c.want):
			t.Errorf("%s: %v; want byte %d and %q", c.name, err, wantAt, c.want)
		case len(err.Error()) > 600:
			t.Errorf("%s: a message of %d bytes", c.name, len(err.Error()))
		}
	}
}

func TestParseLength(t *testing.T) {
	good := build(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 4)
	// A file cut anywhere is refused, at a byte that it has or at its end.
	for n := range good {
		_, err := safetensors.Parse(good[:n])
		var e *safetensors.Error
		if !errors.As(err, &e) || e.Offset > int64(n) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	for n, want := range map[uint64]string{
		1 << 63: "at most 100000000", 100_000_001: "at most 100000000", 100_000_000: "truncated", 1<<64 - 1: "at most",
		1<<64 - 8: "at most",
	} {
		b := append([]byte(nil), good...)
		binary.LittleEndian.PutUint64(b, n)
		if _, err := safetensors.Parse(b); err == nil || !strings.Contains(err.Error(), "byte 0") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("length %d: %v; want %q", n, err, want)
		}
	}
}

// A header of a few hundred bytes with huge numbers, and the densest header there is, cost memory
// by their length only.
func TestParseMemory(t *testing.T) {
	var dense strings.Builder
	dense.WriteString("{")
	for i := range 20000 {
		if i > 0 {
			dense.WriteString(",")
		}
		fmt.Fprintf(&dense, `"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
	}
	dense.WriteString("}")
	for name, b := range map[string][]byte{
		"huge numbers": build(`{"a":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]}}`, 0),
		"dense":        build(dense.String(), 0),
	} {
		before := allocated()
		safetensors.Parse(b)
		if got := allocated() - before; got > allowance(len(b)) {
			t.Errorf("%s: %d bytes allocated for a file of %d", name, got, len(b))
		}
	}
}

// allowance is what parsing n bytes may allocate in all, garbage included.
func allowance(n int) uint64 { return uint64(n)*40 + 1<<20 }

func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

func FuzzParse(f *testing.F) {
	f.Add(build(`{}`, 0))
	f.Add(build(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"F4","shape":[2,1],"data_offsets":[4,5]}}`, 5))
	f.Add(build(`{"__metadata__":{"format":"pt"},"\ud83d\ude00":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}   `,
		2))
	f.Add(build(`{"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}}`, 0))
	f.Add(build(`{"a":{"dtype":"I64","shape":[0,9],"data_offsets":[0,0]},"a":{}}`, 0))
	f.Add(build(`{"__metadata__":null,"a":{"dtype":"F6_E2M3","shape":[4],"k":[{"x":-1e3}],"data_offsets":[0,3]}}`, 3))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, '{'})
	f.Fuzz(func(t *testing.T, b []byte) {
		before := allocated()
		file, err := safetensors.Parse(b)
		if got := allocated() - before; got > allowance(len(b)) {
			t.Fatalf("%d bytes allocated for a file of %d", got, len(b))
		}
		if err != nil {
			var e *safetensors.Error
			if !errors.As(err, &e) || e.Offset < 0 || e.Offset > int64(len(b)) {
				t.Fatalf("error without a byte of the file: %v", err)
			}
			return
		}
		covered := file.DataOffset()
		for _, x := range file.Tensors() {
			off, ok := file.Offset(x.Name)
			if !ok || off != covered {
				t.Fatalf("%v lies at %d; want %d", x, off, covered)
			}
			covered += int64(len(x.Bytes()))
		}
		if covered != int64(len(b)) {
			t.Fatalf("tensors cover %d of %d bytes", covered, len(b))
		}
		sameAfterWriting(t, file)
	})
}

// sameAfterWriting writes what was read, reads it again and compares; writing that once more must
// give the same bytes.
func sameAfterWriting(t interface {
	Helper()
	Fatalf(string, ...any)
}, file *safetensors.File) *safetensors.File {
	t.Helper()
	var first, second strings.Builder
	if _, err := safetensors.Write(&first, file.Tensors(), file.Metadata()); err != nil {
		t.Fatalf("write what was read: %v", err)
	}
	again, err := safetensors.Parse([]byte(first.String()))
	if err != nil {
		t.Fatalf("read what was written: %v", err)
	}
	compare(t, file.Tensors(), file.Metadata(), again)
	if _, err := safetensors.Write(&second, again.Tensors(), again.Metadata()); err != nil ||
		first.String() != second.String() {
		t.Fatalf("the second writing differs from the first: %v\n%q\n%q", err, first.String(), second.String())
	}
	return again
}

func compare(t interface {
	Helper()
	Fatalf(string, ...any)
}, tensors []tensor.Tensor, metadata map[string]string, got *safetensors.File) {
	t.Helper()
	if len(got.Tensors()) != len(tensors) {
		t.Fatalf("%d tensors; want %d", len(got.Tensors()), len(tensors))
	}
	for _, x := range tensors {
		y, ok := got.Tensor(x.Name)
		if !ok || !x.Desc.Equal(y.Desc) || string(x.Bytes()) != string(y.Bytes()) {
			t.Fatalf("%v came back as %v", x, y)
		}
	}
	if (metadata == nil) != (got.Metadata() == nil) || len(metadata) != len(got.Metadata()) {
		t.Fatalf("metadata %q came back as %q", metadata, got.Metadata())
	}
	for k, v := range metadata {
		if w, ok := got.Metadata()[k]; !ok || v != w {
			t.Fatalf("metadata %q: %q came back as %q", k, v, w)
		}
	}
}
