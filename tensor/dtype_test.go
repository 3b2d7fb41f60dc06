package tensor_test

import (
	"math"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/tensor"
)

// The wire codes and the names are a promise to peers of other versions: this table may only grow.
var goldenDTypes = []struct {
	d    tensor.DType
	code uint8
	name string
	bits int
}{
	{tensor.Bool, 1, "bool", 8}, {tensor.I8, 2, "i8", 8}, {tensor.U8, 3, "u8", 8}, {tensor.I16, 4, "i16", 16},
	{tensor.U16, 5, "u16", 16}, {tensor.I32, 6, "i32", 32}, {tensor.U32, 7, "u32", 32}, {tensor.I64, 8, "i64", 64},
	{tensor.U64, 9, "u64", 64}, {tensor.F16, 10, "f16", 16}, {tensor.BF16, 11, "bf16", 16}, {tensor.F32, 12, "f32", 32},
	{tensor.F64, 13, "f64", 64}, {tensor.C64, 14, "c64", 64}, {tensor.C128, 15, "c128", 128},
	{tensor.F8E4M3, 16, "f8e4m3", 8}, {tensor.F8E5M2, 17, "f8e5m2", 8}, {tensor.I4, 18, "i4", 4}, {tensor.U4, 19, "u4", 4},
	{tensor.F4E2M1, 20, "f4e2m1", 4},
}

func TestDTypeGolden(t *testing.T) {
	if got := tensor.DTypes(); len(got) != len(goldenDTypes) {
		t.Fatalf("DTypes() has %d types, the golden table %d", len(got), len(goldenDTypes))
	}
	for _, g := range goldenDTypes {
		d, err := tensor.DTypeOf(g.code)
		if err != nil || d != g.d || d.String() != g.name || d.Bits() != g.bits {
			t.Errorf("code %d: got %v %q %d bits, %v; want %q %d bits", g.code, d, d.String(), d.Bits(), err, g.name,
				g.bits)
		}
	}
	for _, code := range []uint8{0, 21, 255} {
		if d, err := tensor.DTypeOf(code); err == nil || d != tensor.Invalid {
			t.Errorf("code %d: got %v, %v; want an error", code, d, err)
		}
	}
}

func TestParseDType(t *testing.T) {
	for want, spellings := range map[tensor.DType][]string{
		tensor.Bool:   {"bool", "BOOL", "|b1", "torch.bool", "numpy.bool_", "np.bool"},
		tensor.I8:     {"i8", "I8", "|i1", "<i1", ">i1", "int8", "torch.int8"},
		tensor.U8:     {"u8", "U8", "|u1", "uint8"},
		tensor.I16:    {"i16", "<i2", "torch.short"},
		tensor.U16:    {"u16", "<u2", "torch.uint16"},
		tensor.I32:    {"i32", "<i4", "=i4", "torch.int", "numpy.int32"},
		tensor.U32:    {"u32", "<u4"},
		tensor.I64:    {"i64", "<i8", "torch.long", "int64"},
		tensor.U64:    {"u64", "<u8"},
		tensor.F16:    {"f16", "F16", "<f2", "torch.half", "float16"},
		tensor.BF16:   {"bf16", "BF16", "torch.bfloat16"},
		tensor.F32:    {"f32", "F32", "<f4", "torch.float32", "float32", "torch.float", "Float32"},
		tensor.F64:    {"f64", "<f8", "torch.double"},
		tensor.C64:    {"c64", "C64", "<c8", "torch.complex64", "torch.cfloat"},
		tensor.C128:   {"c128", "<c16", "complex128"},
		tensor.F8E4M3: {"f8e4m3", "F8_E4M3", "torch.float8_e4m3fn"},
		tensor.F8E5M2: {"f8e5m2", "F8_E5M2", "torch.float8_e5m2"},
		tensor.I4:     {"i4", "int4"},
		tensor.U4:     {"u4"},
		tensor.F4E2M1: {"f4e2m1", "F4"},
	} {
		for _, s := range spellings {
			if d, err := tensor.ParseDType(s); err != nil || d != want {
				t.Errorf("ParseDType(%q) = %v, %v; want %v", s, d, err, want)
			}
		}
	}
	for _, d := range tensor.DTypes() {
		for _, s := range []func() (string, bool){d.Safetensors, d.Numpy, func() (string, bool) {
			return d.String(), true
		}} {
			if name, ok := s(); ok {
				if back, err := tensor.ParseDType(name); err != nil || back != d {
					t.Errorf("ParseDType(%q) = %v, %v; want %v", name, back, err, d)
				}
			}
		}
	}
}

func TestParseDTypeErrors(t *testing.T) {
	for s, want := range map[string]string{
		"float23":                `"f32"`,
		"bf61":                   `"bf16"`,
		">f4":                    "big-endian",
		"f4":                     "ambiguous",
		"":                       "unknown",
		"int":                    "unknown",
		"float":                  "unknown",
		"invalid":                "unknown",
		"F8_E8M0":                "f8e",
		strings.Repeat("x", 1e6): "1000000 bytes",
		"torch.float4_e2m1fn_x2": `"f4e2m1"`,
		"torch.torch.float32":    "unknown",
		"numpy.torch.float":      "unknown",
		"\xff\x00":               "unknown",
		"dtype('float32')":       "unknown",
		"<f4 ":                   "unknown",
		"float8_e4m3":            `"f8e4m3"`,
		">c16":                   `"<c16"`,
		"<V4":                    "unknown",
		"datetime64":             "unknown",
	} {
		d, err := tensor.ParseDType(s)
		if err == nil || d != tensor.Invalid {
			t.Errorf("ParseDType(%.20q) = %v, nil; want an error", s, d)
		} else if !strings.Contains(err.Error(), want) || len(err.Error()) > 400 {
			t.Errorf("ParseDType(%.20q): %.500q; want it to name %q, shortly", s, err, want)
		}
	}
}

func TestSize(t *testing.T) {
	for _, c := range []struct {
		d           tensor.DType
		elems, want int64 // want -1: an error
	}{
		{tensor.F32, 0, 0}, {tensor.F32, 3, 12}, {tensor.C128, 2, 32}, {tensor.Bool, 7, 7},
		{tensor.I4, 0, 0}, {tensor.I4, 1, 1}, {tensor.U4, 2, 1}, {tensor.F4E2M1, 3, 2},
		{tensor.I4, math.MaxInt64, 1 << 62}, {tensor.U8, math.MaxInt64, math.MaxInt64},
		{tensor.F64, math.MaxInt64 / 8, math.MaxInt64 - 7}, {tensor.F64, math.MaxInt64/8 + 1, -1},
		{tensor.C128, 1 << 60, -1}, {tensor.F32, -1, -1}, {tensor.Invalid, 1, -1}, {tensor.DType(99), 1, -1},
	} {
		got, err := c.d.Size(c.elems)
		if c.want < 0 && err == nil || c.want >= 0 && (err != nil || got != c.want) {
			t.Errorf("%v.Size(%d) = %d, %v; want %d", c.d, c.elems, got, err, c.want)
		}
	}
	for d, what := range map[tensor.DType]string{tensor.Invalid: "invalid", 200: "dtype(200)"} {
		if d.String() != what || d.Bits() != 0 || d.Valid() {
			t.Errorf("dtype %d: %q, %d bits, valid %v", uint8(d), d, d.Bits(), d.Valid())
		}
		_, npy := d.Numpy()
		_, st := d.Safetensors()
		if npy || st {
			t.Errorf("dtype %d has a foreign name", uint8(d))
		}
	}
}
