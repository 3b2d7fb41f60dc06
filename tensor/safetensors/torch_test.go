package safetensors_test

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/safetensors"
)

// torchType is a dtype with its name in torch and how a value that it can hold exactly is encoded.
type torchType struct {
	dtype  tensor.DType
	torch  string
	values []float64
	put    func(b []byte, v float64) []byte
}

func torchTypes() []torchType {
	le := binary.LittleEndian
	floats := []float64{0, 1, -2, 0.375, 1.5, -96, math.Inf(1), math.Inf(-1)}
	ints := []float64{0, 1, -2, 100, -128, 127}
	return []torchType{
		{tensor.F64, "torch.float64", append(floats, math.Pi), func(b []byte, v float64) []byte { return le.AppendUint64(b, math.Float64bits(v)) }},
		{tensor.F32, "torch.float32", append(floats, 0x1p-126), func(b []byte, v float64) []byte { return le.AppendUint32(b, math.Float32bits(float32(v))) }},
		{tensor.BF16, "torch.bfloat16", append(floats, 0x1p127), func(b []byte, v float64) []byte {
			return le.AppendUint16(b, uint16(math.Float32bits(float32(v))>>16))
		}},
		{tensor.F16, "torch.float16", append(floats, 65504), func(b []byte, v float64) []byte { return le.AppendUint16(b, half(v)) }},
		{tensor.I64, "torch.int64", append(ints, -1<<53), func(b []byte, v float64) []byte { return le.AppendUint64(b, uint64(int64(v))) }},
		{tensor.I32, "torch.int32", append(ints, math.MinInt32), func(b []byte, v float64) []byte { return le.AppendUint32(b, uint32(int32(v))) }},
		{tensor.I16, "torch.int16", append(ints, math.MinInt16), func(b []byte, v float64) []byte { return le.AppendUint16(b, uint16(int16(v))) }},
		{tensor.I8, "torch.int8", ints, func(b []byte, v float64) []byte { return append(b, byte(int8(v))) }},
		{tensor.U8, "torch.uint8", []float64{0, 1, 255, 128, 7, 9}, func(b []byte, v float64) []byte { return append(b, byte(v)) }},
		{tensor.Bool, "torch.bool", []float64{0, 1, 1, 0, 1, 0}, func(b []byte, v float64) []byte { return append(b, byte(v)) }},
	}
}

// half encodes a value that IEEE 754 binary16 holds exactly as a normal number, zero or infinity.
func half(v float64) uint16 {
	sign := uint16(math.Float64bits(v)>>48) & 0x8000
	switch {
	case v == 0:
		return sign
	case math.IsInf(v, 0):
		return sign | 0x7c00
	}
	bits := math.Float64bits(v)
	exponent := int(bits>>52&0x7ff) - 1023
	return sign | uint16(exponent+15)<<10 | uint16(bits>>42&0x3ff)
}

// torchTensor is what torch says of a tensor: its type, shape, and the values as float64,
// infinities as strings.
type torchTensor struct {
	Type   string
	Shape  []int64
	Values []any
}

func plain(values []float64) []any {
	var out []any
	for _, v := range values {
		switch {
		case math.IsInf(v, 1):
			out = append(out, "inf")
		case math.IsInf(v, -1):
			out = append(out, "-inf")
		default:
			out = append(out, v)
		}
	}
	return out
}

// What we write torch understands as the numbers that we meant, and what it writes is byte for byte
// what we would write: also for types that numpy does not have.
func TestTorch(t *testing.T) {
	python := peers.NeedPython(t, "torch")
	types := torchTypes()
	dir := t.TempDir()
	ours, theirs := filepath.Join(dir, "ours.safetensors"), filepath.Join(dir, "theirs.safetensors")
	var tensors []tensor.Tensor
	want := map[string]torchTensor{}
	for _, x := range types {
		var b []byte
		for _, v := range x.values {
			b = x.put(b, v)
		}
		shape := []int64{int64(len(x.values))}
		if len(x.values)%2 == 0 {
			shape = []int64{2, int64(len(x.values) / 2)}
		}
		y, err := tensor.New(x.dtype.String(), tensor.Desc{DType: x.dtype, Shape: shape}, b)
		if err != nil {
			t.Fatal(err)
		}
		tensors = append(tensors, y)
		want[y.Name] = torchTensor{x.torch, shape, plain(x.values)}
	}
	f, err := os.Create(ours)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := safetensors.Write(f, tensors, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// The first half reads our file by the format's description; the second makes tensors out of
	// numbers and writes them.
	const script = `
import json, math, struct, sys, torch
want = json.load(sys.stdin)
names = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64, "I32": torch.int32,
         "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
plain = lambda v: str(v) if math.isinf(v) else v
raw = bytearray(open(sys.argv[1], "rb").read())
n = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + n])
got = {}
for name, h in header.items():
    if name == "__metadata__":
        continue
    lo, hi = h["data_offsets"]
    t = torch.frombuffer(raw[8 + n + lo:8 + n + hi], dtype=names[h["dtype"]]).reshape(h["shape"])
    got[name] = dict(Type=str(t.dtype), Shape=list(t.shape), Values=[plain(v) for v in t.double().flatten().tolist()])
header, data = {}, b""
for name, w in want.items():
    dtype = getattr(torch, w["Type"].split(".")[1])
    t = torch.tensor([float(v) for v in w["Values"]], dtype=torch.float64).to(dtype).reshape(w["Shape"])
    b = bytes(t.contiguous().view(torch.uint8).flatten().tolist())
    back = [k for k, v in names.items() if v == dtype][0]
    header[name] = dict(dtype=back, shape=list(t.shape), data_offsets=[len(data), len(data) + len(b)])
    data += b
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data)
json.dump(got, sys.stdout)
`
	var got map[string]torchTensor
	if err := python.Run(t.Context(), script, want, &got, ours, theirs); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Errorf("torch read %d tensors of %d", len(got), len(want))
	}
	for name, w := range want {
		if g := got[name]; g.Type != w.Type || !slices.Equal(g.Shape, w.Shape) || !slices.Equal(g.Values, w.Values) {
			t.Errorf("%s: torch reads %v\nwant %v", name, g, w)
		}
	}
	back, err := safetensors.Open(theirs)
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	read := back.Tensors()
	if len(read) != len(tensors) {
		t.Errorf("read %d of torch's tensors; want %d", len(read), len(tensors))
	}
	for _, x := range read {
		i := slices.IndexFunc(tensors, func(y tensor.Tensor) bool { return y.Name == x.Name })
		if i < 0 {
			t.Errorf("torch wrote %v, which nobody asked for", x)
			continue
		}
		if y := tensors[i]; x.Desc.DType != y.Desc.DType || !slices.Equal(x.Desc.Shape, y.Desc.Shape) ||
			!slices.Equal(x.Bytes(), y.Bytes()) {
			t.Errorf("%s: torch wrote %v %x; want %v %x", x.Name, x.Desc, x.Bytes(), y.Desc, y.Bytes())
		}
	}
}
