package convert_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
)

// TestNumpy converts all samples of 8 and 16 bits, and many of 32, to all types that numpy has, and
// compares each bit with what numpy makes of them: the nearest element, and for integers the
// nearest that the type has (clip).
func TestNumpy(t *testing.T) {
	python := testpeers.NeedPython(t, "numpy")
	type run struct{ File, From, To, Out string }
	var runs []run
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	for _, bits := range []int{8, 16, 32} {
		n := min(1<<bits, 1<<17)
		for _, unsigned := range []bool{false, true} {
			for _, big := range []bool{false, true} {
				src := make([]byte, n*bits/8)
				for i := range n {
					v := uint32(i)
					if bits == 32 {
						v = r.Uint32() >> r.IntN(32) * (1 - 2*uint32(i&1)) // of all lengths, of both signs
					}
					for k := range bits / 8 {
						src[i*bits/8+k] = byte(v >> (8 * k))
					}
				}
				kind, order := "i", "<"
				if unsigned {
					kind = "u"
				}
				if big {
					order = ">"
				}
				file := filepath.Join(dir, fmt.Sprintf("%s%s%d", order[:1], kind, bits))
				if err := os.WriteFile(file, src, 0o600); err != nil {
					t.Fatal(err)
				}
				for _, to := range []tensor.DType{tensor.I8, tensor.U8, tensor.I16, tensor.U16, tensor.I32, tensor.U32,
					tensor.F16, tensor.F32, tensor.F64} {
					c, err := convert.New(convert.Spec{From: convert.Format{Bits: bits, Unsigned: unsigned,
						BigEndian: big}, To: to})
					if err != nil {
						t.Fatal(err)
					}
					dst := make([]byte, c.OutLen(len(src)))
					c.Convert(dst, src)
					descr, _ := to.Numpy()
					out := fmt.Sprintf("%s-%v", file, to)
					if err := os.WriteFile(out, dst, 0o600); err != nil {
						t.Fatal(err)
					}
					runs = append(runs, run{file, fmt.Sprintf("%s%s%d", order, kind, bits/8), descr, out})
				}
			}
		}
	}
	const text = `
import json, sys, numpy as np
bad = []
for r in json.loads(sys.argv[1]):
    x = np.fromfile(r["File"], r["From"])
    to = np.dtype(r["To"])
    with np.errstate(over="ignore"):
        if to.kind == "f":
            want = x.astype("f8").astype(to)
        else:
            i = np.iinfo(to)
            want = np.clip(x.astype("i8"), i.min, i.max).astype(to)
    got = np.fromfile(r["Out"], to)
    if got.tobytes() != want.tobytes():
        k = int(np.nonzero(got.view("u1").reshape(len(got), -1) != want.view("u1").reshape(len(want), -1))[0][0])
        bad.append("%s to %s: sample %d, %d, is %r here and %r in numpy" % (r["From"], r["To"], k, x[k], got[k], want[k]))
print(json.dumps(bad))
`
	list, err := json.Marshal(runs)
	if err != nil {
		t.Fatal(err)
	}
	var bad []string
	if err := python.Run(t.Context(), text, nil, &bad, string(list)); err != nil {
		t.Fatal(err)
	}
	for _, b := range bad {
		t.Error(b)
	}
	if len(runs) != 108 {
		t.Errorf("%d conversions compared", len(runs))
	}
}
