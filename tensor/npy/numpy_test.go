package npy_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/npy"
)

// script runs a Python script and decodes the JSON that it prints.
func script(t *testing.T, python *peers.Python, text string, result any, args ...string) {
	t.Helper()
	if err := python.Run(t.Context(), text, nil, result, args...); err != nil {
		t.Fatal(err)
	}
}

// array is what numpy says of an array, or is asked to make.
type array struct {
	File    string
	Type    string // numpy's type string
	Shape   []int64
	Fortran bool   // column-major and not row-major
	Raw     string // the memory of the array, in hexadecimal
	Rows    string // the elements in row-major order
}

var shapes = [][]int64{{}, {1}, {5}, {2, 3}, {3, 1}, {2, 3, 4}, {0}, {2, 0, 3}, {1, 1, 1, 1, 1, 1, 1, 2}}

func TestNumpyReadsOurs(t *testing.T) {
	python := testpeers.NeedPython(t, "numpy")
	dir := t.TempDir()
	var want []array
	for _, d := range numpyTypes() {
		for i, shape := range append(shapes, slices.Repeat([]int64{1}, 32)) {
			for _, columns := range []bool{false, true} {
				desc := tensor.Desc{DType: d, Shape: shape}
				if columns {
					desc.Strides = tensor.ColumnMajor(shape)
				}
				x := newTensor(t, desc)
				descr, _ := d.Numpy()
				a := array{
					File: filepath.Join(dir, fmt.Sprintf("%s-%d-%v.npy", d, i, columns)),
					Type: descr, Shape: shape, Raw: hex.EncodeToString(x.Bytes()), Fortran: columns &&
						!x.Desc.Contiguous(),
				}
				f, err := os.Create(a.File)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := npy.WriteVersion(f, x, 1+(len(want)%3)); err != nil {
					t.Fatal(err)
				}
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
				want = append(want, a)
			}
		}
	}
	// Both ways to load: a read and a mapping.
	const text = `
import json, sys, os, numpy as np
out = []
for name in sorted(os.listdir(sys.argv[1])):
    path = os.path.join(sys.argv[1], name)
    a = np.load(path, allow_pickle=False)
    if a.size:
        m = np.load(path, mmap_mode="r", allow_pickle=False)
        assert m.tobytes("A") == a.tobytes("A") and m.shape == a.shape and m.dtype == a.dtype, path
    out.append(dict(File=path, Type=a.dtype.str, Shape=a.shape, Raw=a.tobytes("A").hex(),
                    Fortran=bool(a.flags.f_contiguous and not a.flags.c_contiguous)))
json.dump(out, sys.stdout)
`
	var got []array
	script(t, python, text, &got, dir)
	slices.SortFunc(want, func(a, b array) int { return strings.Compare(a.File, b.File) })
	if len(got) != len(want) || len(want) == 0 {
		t.Fatalf("numpy read %d files of %d", len(got), len(want))
	}
	for i, w := range want {
		if g := got[i]; fmt.Sprint(g) != fmt.Sprint(w) {
			t.Errorf("numpy reads %.300v\nwant %.300v", g, w)
		}
	}
}

func TestWeReadNumpys(t *testing.T) {
	python := testpeers.NeedPython(t, "numpy")
	dir := t.TempDir()
	const text = `
import itertools, json, os, sys, numpy as np
out = []
types, shapes = json.loads(sys.argv[2]), json.loads(sys.argv[3])
for (t, shape, order, version, end) in itertools.product(types, shapes, "CF", (1, 2, 3), "<>"):
    dtype = np.dtype(t).newbyteorder(end)
    n = int(np.prod(shape, dtype=np.int64))
    raw = bytes((i * 37 + 11) % (2 if t == "|b1" else 251) for i in range(n * dtype.itemsize))
    a = np.frombuffer(raw, dtype=dtype).reshape(shape)
    a = np.asarray(a, order=order)
    path = os.path.join(sys.argv[1], "%d.npy" % len(out))
    with open(path, "wb") as f:
        np.lib.format.write_array(f, a, version=(version, 0), allow_pickle=False)
    little = a.astype(dtype.newbyteorder("<"), order="K")
    out.append(dict(File=path, Type=a.dtype.str, Shape=shape, Rows=little.tobytes("C").hex(),
                    Fortran=bool(a.flags.f_contiguous and not a.flags.c_contiguous)))
json.dump(out, sys.stdout)
`
	var types []string
	for _, d := range numpyTypes() {
		descr, _ := d.Numpy()
		types = append(types, descr)
	}
	var want []array
	script(t, python, text, &want, dir, toJSON(t, types), toJSON(t, shapes))
	if len(want) != len(types)*len(shapes)*2*3*2 {
		t.Fatalf("numpy wrote %d files", len(want))
	}
	fortran, big := 0, 0
	for _, w := range want {
		b, err := os.ReadFile(w.File)
		if err != nil {
			t.Fatal(err)
		}
		x, err := npy.Parse(b)
		if w.Type[0] == '>' {
			big++
			if !errors.Is(err, npy.ErrBigEndian) {
				t.Errorf("%s %v: %v; want ErrBigEndian", w.Type, w.Shape, err)
			}
			x, err = npy.ParseCopy(b)
		}
		if err != nil {
			t.Errorf("%s %v: %v", w.Type, w.Shape, err)
			continue
		}
		if w.Fortran {
			fortran++
		}
		descr, _ := x.Desc.DType.Numpy()
		if descr[1:] != w.Type[1:] || !slices.Equal(x.Desc.Shape, w.Shape) || x.Desc.Contiguous() == w.Fortran {
			t.Errorf("%s %v fortran %v: read as %v", w.Type, w.Shape, w.Fortran, x.Desc)
		}
		if got := hex.EncodeToString(rows(x)); got != w.Rows {
			t.Errorf("%s %v: elements %s; want %s", w.Type, w.Shape, got, w.Rows)
		}
	}
	if fortran == 0 || big == 0 {
		t.Errorf("numpy wrote %d column-major and %d big-endian files; the test needs both", fortran, big)
	}
}

// rows gathers the elements of a tensor in row-major order, one by one.
func rows(x tensor.Tensor) []byte {
	strides := x.Desc.Strides
	if strides == nil {
		strides = tensor.RowMajor(x.Desc.Shape)
	}
	width := int64(x.Desc.DType.Bits() / 8)
	var out []byte
	var walk func(dim int, at int64)
	walk = func(dim int, at int64) {
		if dim == len(strides) {
			out = append(out, x.Bytes()[at*width:(at+1)*width]...)
			return
		}
		for i := range x.Desc.Shape[dim] {
			walk(dim+1, at+i*strides[dim])
		}
	}
	walk(0, 0)
	return out
}

// What numpy can save and a tensor cannot hold must be refused; several arrays in one file are read
// one by one.
func TestNumpysOddFiles(t *testing.T) {
	python := testpeers.NeedPython(t, "numpy")
	dir := t.TempDir()
	const text = `
import json, os, sys, numpy as np
d = sys.argv[1]
np.save(os.path.join(d, "object.npy"), np.array([{}, None], dtype=object), allow_pickle=True)
np.save(os.path.join(d, "struct.npy"), np.zeros(2, dtype=[("a", "<f4"), ("b", "<i2")]))
np.save(os.path.join(d, "text.npy"), np.array(["ab", "c"]))
np.save(os.path.join(d, "date.npy"), np.array(["2020-01-01"], dtype="M8[D]"))
np.save(os.path.join(d, "raw.npy"), np.zeros(2, dtype="V2"))
np.save(os.path.join(d, "long.npy"), np.zeros(2, dtype=np.longdouble))
with open(os.path.join(d, "two.npy"), "wb") as f:
    np.save(f, np.arange(6, dtype="<i4").reshape(2, 3))
    np.save(f, np.array(2.5, dtype="<f8"))
json.dump("done", sys.stdout)
`
	var done string
	script(t, python, text, &done, dir)
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name+".npy"))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, want := range map[string]string{
		"object": "pickle", "struct": "structured", "text": "expected one of", "date": "expected one of",
		"raw": "bfloat16", "long": "expected one of",
	} {
		var e *npy.Error
		if x, err := npy.Parse(read(name)); !errors.As(err, &e) || !strings.Contains(e.Problem, want) {
			t.Errorf("%s: %v, %v; want an *Error with %q", name, x, err, want)
		}
	}
	b := read("two")
	first, rest, err := npy.ParseNext(b)
	if err != nil || first.Desc.String() != "i32[2 3]" {
		t.Fatalf("first array: %v, %v", first, err)
	}
	second, rest, err := npy.ParseNext(rest)
	if err != nil || second.Desc.String() != "f64[]" || hex.EncodeToString(second.Bytes()) != "0000000000000440" ||
		len(rest) != 0 {
		t.Errorf("second array: %v %x, %v", second, second.Bytes(), err)
	}
	if _, err := npy.Parse(b); err == nil {
		t.Error("Parse takes a file of two arrays")
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
