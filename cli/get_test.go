package cli

import (
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/npy"
)

// A tensor comes to a file for numpy with its header, and else as its bytes.
func TestGetNpy(t *testing.T) {
	served, out := t.TempDir(), t.TempDir()
	header := `{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]}}`
	data := content(28, 5)
	write(t, filepath.Join(served, "m.safetensors"),
		append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), data...))
	array, err := npy.Header(tensor.Desc{DType: tensor.F32, Shape: []int64{2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	array = append(array, data[:24]...)
	write(t, filepath.Join(served, "a.npy"), array)
	_, addr := serve(t, served)
	to := filepath.Join(out, "w.npy")
	run(t, 0, "24 B", "get", addr+"/m.safetensors/w", "-o", to)
	same(t, to, array)
	// An array that is fetched out of a file for numpy is one again.
	run(t, 0, "24 B", "get", addr+"/a.npy/array", "-o", filepath.Join(out, "again.NPY"))
	same(t, filepath.Join(out, "again.NPY"), array)
	run(t, 0, "", "get", addr+"/a.npy", "-o", filepath.Join(out, "whole.npy"))
	same(t, filepath.Join(out, "whole.npy"), array)
	run(t, 0, "", "get", addr+"/m.safetensors/w", "-o", filepath.Join(out, "w.bin"))
	same(t, filepath.Join(out, "w.bin"), data[:24])
	run(t, exitFailure, "numpy has no type for bf16", "get", addr+"/m.safetensors/b", "-o", filepath.Join(out, "b.npy"))
	if got := below(t, out); got != "again.NPY w.bin w.npy whole.npy" {
		t.Errorf("get made %s", got)
	}
}
