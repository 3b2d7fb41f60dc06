package share

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// manyTensors is a safetensors file of n tensors of one byte.
func manyTensors(n int, value byte) []byte {
	head := []byte("{")
	for i := range n {
		if i > 0 {
			head = append(head, ',')
		}
		head = fmt.Appendf(head, `"t%06d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}`, i, i, i+1)
	}
	head = append(head, '}')
	for len(head)%8 != 0 {
		head = append(head, ' ')
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	b = append(b, head...)
	for range n {
		b = append(b, value)
	}
	return b
}

// replaceFile puts another file in the place of one, in one step.
func replaceFile(t testing.TB, p string, b []byte) {
	t.Helper()
	write(t, p+"~", b)
	if err := os.Rename(p+"~", p); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkReplaceManyTensors replaces a safetensors file and has a peer that is connected ask for
// a tensor of it.
func BenchmarkReplaceManyTensors(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ctx, root := testCtx(b), b.TempDir()
			file := filepath.Join(root, "x.safetensors")
			write(b, file, manyTensors(n, 0))
			s := serve(b, Options{Root: root, Tensors: true})
			if _, err := Fetch(ctx, s.c, "x.safetensors/t000001",
				FetchOptions{Output: filepath.Join(b.TempDir(), "t")}); err != nil {
				b.Fatal(err)
			}
			i := byte(0)
			for b.Loop() {
				i++
				replaceFile(b, file, manyTensors(n, i))
				e, err := Find(ctx, s.c, fmt.Sprintf("x.safetensors/t%06d", n-1))
				if err != nil || e.Size != 1 {
					b.Fatal(e, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/tensor")
		})
	}
}

// TestReplacingManyTensorsIsLinear counts the bytes that are allocated when a file is replaced:
// with sixteen times as many tensors it is about sixteen times as much, where a copied table would
// make it 256.
func TestReplacingManyTensorsIsLinear(t *testing.T) {
	ctx := testCtx(t)
	allocated := func(n int) uint64 {
		root := t.TempDir()
		file := filepath.Join(root, "x.safetensors")
		write(t, file, manyTensors(n, 0))
		s := serve(t, Options{Root: root, Tensors: true})
		replaceFile(t, file, manyTensors(n, 1))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := s.Rescan(ctx); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if s := s.Snapshot(); s.Tensors != n || s.Changes != 2 {
			t.Fatalf("%+v", s)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	few, many := allocated(2000), allocated(32_000)
	if many > 32*few {
		t.Errorf("%d bytes for 2,000 tensors, %d for 32,000: %.1f times as many", few, many, float64(many)/float64(few))
	}
}
