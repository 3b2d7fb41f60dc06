package safetensors_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/safetensors"
	"github.com/penstock-io/penstock/tensor/synth"
)

func make1(t interface {
	Helper()
	Fatalf(string, ...any)
}, name string, d tensor.DType, shape ...int64) tensor.Tensor {
	t.Helper()
	desc := tensor.Desc{DType: d, Shape: shape}
	n, err := desc.Bytes()
	if err != nil {
		t.Fatalf("%v", err)
	}
	b := make([]byte, n)
	synth.Fill(b, synth.Seed(name))
	x, err := tensor.New(name, desc, b)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return x
}

func TestWriteGolden(t *testing.T) {
	a, err := tensor.New("a", tensor.Desc{DType: tensor.U8, Shape: []int64{3}}, []byte("xyz"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := tensor.New("b\"\n\u00e9", tensor.Desc{DType: tensor.F32}, []byte("1234"))
	if err != nil {
		t.Fatal(err)
	}
	header := `{"__metadata__":{"format":"pt","made by":"penstock"},"b\"\u000aé":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}}`
	for len(header)%8 != 0 {
		header += " "
	}
	want := string(build(header, 0)) + "1234xyz"
	for _, order := range [][]tensor.Tensor{{a, b}, {b, a}} {
		var out bytes.Buffer
		n, err := safetensors.Write(&out, order, map[string]string{"made by": "penstock", "format": "pt"})
		if err != nil || n != int64(len(want)) || out.String() != want {
			t.Errorf("wrote %d bytes, %v:\n%q\nwant %d:\n%q", n, err, out.String(), len(want), want)
		}
	}
	var out bytes.Buffer
	if _, err := safetensors.Write(&out, nil, nil); err != nil || out.String() != string(build("{}      ", 0)) {
		t.Errorf("no tensors: %q, %v", out.String(), err)
	}
}

func TestWriteRefuses(t *testing.T) {
	u8 := make1(t, "a", tensor.U8, 2, 3)
	columns, err := tensor.New("a", tensor.Desc{DType: tensor.U8, Shape: []int64{2, 3}, Strides: []int64{1, 2}},
		u8.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	renamed := func(name string) tensor.Tensor { x := u8; x.Name = name; return x }
	for want, c := range map[string]struct {
		tensors  []tensor.Tensor
		metadata map[string]string
	}{
		"occurs twice":            {tensors: []tensor.Tensor{u8, u8}},
		"c128 does not exist":     {tensors: []tensor.Tensor{make1(t, "a", tensor.C128, 1)}},
		"i4 does not exist":       {tensors: []tensor.Tensor{make1(t, "a", tensor.I4, 2)}},
		"even number":             {tensors: []tensor.Tensor{make1(t, "a", tensor.F4E2M1, 3)}},
		"not row-major":           {tensors: []tensor.Tensor{columns}},
		"keeps this name":         {tensors: []tensor.Tensor{renamed("__metadata__")}},
		"name is not UTF-8":       {tensors: []tensor.Tensor{renamed("\xff")}},
		"expected UTF-8":          {metadata: map[string]string{"k": "\xff"}},
		"make it with tensor.New": {tensors: []tensor.Tensor{{Name: "a", Desc: u8.Desc}}},
		"not a valid dtype":       {tensors: []tensor.Tensor{{Name: "a"}}},
		"write fewer":             {metadata: map[string]string{"k": strings.Repeat("x", safetensors.MaxHeader)}},
	} {
		var out bytes.Buffer
		n, err := safetensors.Write(&out, c.tensors, c.metadata)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want an error with %q", err, want)
		}
		if n != 0 || out.Len() != 0 {
			t.Errorf("%q: %d bytes were written before it was noticed", want, out.Len())
		}
	}
}

type shortWriter struct{ left int }

func (w *shortWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.left -= n
	return n, nil // less than p and no error: a broken Writer
}

func TestWriteToABrokenWriter(t *testing.T) {
	x := make1(t, "a", tensor.U8, 100)
	for _, room := range []int{0, 5, 100} {
		n, err := safetensors.Write(&shortWriter{room}, []tensor.Tensor{x}, nil)
		if !errors.Is(err, io.ErrShortWrite) || n != int64(room) {
			t.Errorf("room for %d: wrote %d, %v", room, n, err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	var types []tensor.DType
	for _, d := range tensor.DTypes() {
		if _, ok := d.Safetensors(); ok {
			types = append(types, d)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.String().Filter(func(s string) bool {
			return s != "__metadata__"
		}), 0, 6, rapid.ID).Draw(t, "names")
		var tensors []tensor.Tensor
		for _, name := range names {
			d := rapid.SampledFrom(types).Draw(t, "dtype")
			shape := rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 4).Draw(t, "shape")
			if d.Bits() < 8 {
				shape = append(shape, 2)
			}
			tensors = append(tensors, make1(t, name, d, shape...))
		}
		var metadata map[string]string
		if rapid.Bool().Draw(t, "with metadata") {
			metadata = rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata")
		}
		var out bytes.Buffer
		n, err := safetensors.Write(&out, tensors, metadata)
		if err != nil || n != int64(out.Len()) {
			t.Fatalf("wrote %d of %d bytes: %v", n, out.Len(), err)
		}
		f, err := safetensors.Parse(out.Bytes())
		if err != nil {
			t.Fatalf("%v in %q", err, out.String())
		}
		compare(t, tensors, metadata, f)
		if f.DataOffset()%8 != 0 {
			t.Fatalf("data begin at %d", f.DataOffset())
		}
		for _, x := range f.Tensors() { // each is aligned to its own elements
			if off, _ := f.Offset(x.Name); off%int64(max(x.Desc.DType.Bits()/8, 1)) != 0 {
				t.Fatalf("%v lies at byte %d", x, off)
			}
		}
		sameAfterWriting(t, f)
	})
}

func writeModel(t *testing.T) (path string, specs []synth.Spec) {
	t.Helper()
	specs = synth.Tiny.Tensors()
	var tensors []tensor.Tensor
	for _, s := range specs {
		tensors = append(tensors, make1(t, s.Name, s.Desc.DType, s.Desc.Shape...))
	}
	path = filepath.Join(t.TempDir(), "model.safetensors")
	w, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := safetensors.Write(w, tensors, map[string]string{"format": "pt"}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path, specs
}

func TestOpen(t *testing.T) {
	path, specs := writeModel(t)
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	region := f.Region()
	lease, err := region.Lease() // a transfer that still runs when the file is closed
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		x, ok := f.Tensor(s.Name)
		off, _ := f.Offset(s.Name)
		if !ok || !x.Desc.Equal(s.Desc) {
			t.Fatalf("%s: %v", s.Name, x)
		}
		if bad, ok := synth.Verify(x.Bytes(), synth.Seed(s.Name), 0); !ok {
			t.Errorf("%s: byte %d differs", s.Name, bad)
		}
		if len(x.Bytes()) > 0 && &x.Bytes()[0] != &lease.Bytes()[off] {
			t.Errorf("%s is not a view of the mapped file", s.Name)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil || f.Region() != nil {
		t.Errorf("second Close: %v", err)
	}
	select {
	case <-region.Unmapped():
		t.Fatal("unmapped under a lease")
	default:
	}
	if string(lease.Bytes()[8:9]) != "{" {
		t.Error("the leased bytes changed")
	}
	lease.Release()
	select {
	case <-region.Unmapped(): // the last release unmaps before it returns
	default:
		t.Fatal("still mapped after the last release: the File kept its lease")
	}
	if _, err := region.Lease(); !errors.Is(err, mem.ErrClosed) {
		t.Errorf("lease on a closed file: %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"):        "no such file",
		dir:                               "not a regular file",
		"/dev/zero":                       "not a regular file",
		write("empty", nil):               "the file is empty",
		write("short", []byte("1234567")): "byte 7",
		write("bad", build(`{"a":1}`, 0)): "byte 13",
		write("cut", build(`{}`, 0)[:9]):  "truncated",
		write("more", append(build(`{}`, 0), "abc"...)): "byte 10: 3 bytes of data that belong to no tensor",
	} {
		before := mappings(t, dir)
		f, err := safetensors.Open(path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, %v; want %q", path, f, err, want)
		}
		if after := mappings(t, dir); after != before {
			t.Errorf("%s: %d mappings before, %d after", path, before, after)
		}
	}
}

// mappings counts the mapped files of a folder.
func mappings(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), dir)
}

// An independent reader: Python's json for the header and its slices for the data.
func TestPythonReadsOurs(t *testing.T) {
	path, specs := writeModel(t)
	const script = `
import json, struct, sys
b = open(sys.argv[1], "rb").read()
n, = struct.unpack("<Q", b[:8])
h = json.loads(b[8:8+n])
assert h.pop("__metadata__") == {"format": "pt"}
out = {k: [v["dtype"], v["shape"], b[8+n+v["data_offsets"][0]:8+n+v["data_offsets"][1]].hex()] for k, v in h.items()}
json.dump(out, sys.stdout)
`
	python, err := testenv.Tool("python3", "python3")
	if err != nil {
		testenv.Missing(t, "python3", err)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(python, "-c", script, path)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var got map[string][3]json.RawMessage
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(specs) {
		t.Errorf("Python sees %d tensors; want %d", len(got), len(specs))
	}
	for _, s := range specs {
		dtype, _ := s.Desc.DType.Safetensors()
		shape, err := json.Marshal(s.Desc.Shape)
		if err != nil {
			t.Fatal(err)
		}
		x := make1(t, s.Name, s.Desc.DType, s.Desc.Shape...)
		want := fmt.Sprintf("%q %s \"%x\"", dtype, shape, x.Bytes())
		g := got[s.Name]
		if have := fmt.Sprintf("%s %s %s", g[0], strings.ReplaceAll(string(g[1]), " ", ""), g[2]); have != want {
			t.Errorf("%s: Python reads %.80s; want %.80s", s.Name, have, want)
		}
	}
}
