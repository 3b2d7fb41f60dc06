package share

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/npy"
	"github.com/penstock-io/penstock/tensor/safetensors"
)

func writeTensors(t testing.TB, p string, n int) {
	t.Helper()
	var ts []tensor.Tensor
	for i := range n {
		x, err := tensor.New(fmt.Sprintf("model.layers.%04d.weight", i),
			tensor.Desc{DType: tensor.F32, Shape: []int64{2, 3}}, randomBytes(uint64(i), 24))
		if err != nil {
			t.Fatal(err)
		}
		ts = append(ts, x)
	}
	f, err := os.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := safetensors.Write(f, ts, nil); err != nil {
		t.Fatal(err)
	}
}

func TestTensors(t *testing.T) {
	ctx, root, out := testCtx(t), t.TempDir(), t.TempDir()
	writeTensors(t, filepath.Join(root, "m.safetensors"), 3)
	x, err := tensor.New("", tensor.Desc{DType: tensor.I64, Shape: []int64{5}}, randomBytes(9, 40))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(root, "a.npy"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := npy.Write(f, x); err != nil {
		t.Fatal(err)
	}
	f.Close()
	write(t, filepath.Join(root, "bad.safetensors"), []byte("not one"))
	s := serve(t, Options{Root: root, Tensors: true})
	if n := s.Snapshot(); n.Files != 3 || n.Tensors != 4 || len(n.Skipped) != 1 ||
		n.Skipped[0].Path != "bad.safetensors/" {
		t.Errorf("%+v", n)
	}
	e, err := Find(ctx, s.c, "m.safetensors/model.layers.0001.weight")
	if err != nil || e.Tensor == nil || e.Tensor.DType != tensor.F32 || e.Size != 24 {
		t.Fatalf("%+v, %v", e, err)
	}
	for name, want := range map[string][]byte{e.Name: randomBytes(1, 24), "a.npy/array": randomBytes(9, 40)} {
		p := filepath.Join(out, "x")
		if _, err := Fetch(ctx, s.c, name, FetchOptions{Output: p, Overwrite: true}); err != nil {
			t.Fatal(err)
		}
		same(t, p, want)
	}
	// A file that changes has other tensors.
	writeTensors(t, filepath.Join(root, "m.safetensors"), 5)
	e, err = Find(ctx, s.c, "m.safetensors/model.layers.0004.weight")
	if err != nil || e.Size != 24 {
		t.Errorf("%+v, %v", e, err)
	}
	if n := s.Snapshot(); n.Tensors != 6 {
		t.Errorf("%+v", n)
	}
	// Views of files are not mirrored beside them.
	m, err := Mirror(ctx, s.c, filepath.Join(out, "m"), MirrorOptions{})
	if err != nil || m.Fetched != 3 || m.Parts != 6 {
		t.Errorf("%+v, %v", m, err)
	}
}

// BenchmarkList lists 10,000 names end to end: asked for over a unix socket, received and checked.
func BenchmarkList(b *testing.B) {
	ctx, root := testCtx(b), b.TempDir()
	writeTensors(b, filepath.Join(root, "m.safetensors"), 10_000)
	s := serve(b, Options{Root: root, Tensors: true})
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		es, err := List(ctx, s.c, "")
		if err != nil || len(es) != 10_001 {
			b.Fatal(len(es), err)
		}
	}
	// of both sides: holds on a busy machine
	b.ReportMetric((cpuTime(b)-before).Seconds()*1e3/float64(b.N), "cpu-ms/op")
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkServe maps and exports 10,000 files of a directory, and closes them.
func BenchmarkServe(b *testing.B) {
	root := b.TempDir()
	for i := range 10_000 {
		write(b, filepath.Join(root, fmt.Sprintf("%02d/%04d", i%100, i)), []byte("x"))
	}
	n := serve(b, Options{Root: b.TempDir()}).node
	for b.Loop() {
		s, err := Serve(testCtx(b), n, Options{Root: root})
		if err != nil || s.Snapshot().Files != 10_000 {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFetch fetches one file over TCP on this machine into a file, synced; beside it what the
// same bytes cost as a copy of files in this process.
func BenchmarkFetch(b *testing.B) {
	const size = 256 << 20
	ctx, root, dir := testCtx(b), b.TempDir(), b.TempDir()
	write(b, filepath.Join(root, "x"), randomBytes(1, size))
	s := serve(b, Options{Root: root})
	out := filepath.Join(dir, "x")
	measure := func(f func() error) func(b *testing.B) {
		return func(b *testing.B) {
			b.SetBytes(size)
			before := cpuTime(b)
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpuTime(b)-before).Seconds()*1e9/float64(b.N)/size, "cpu-ns/B")
		}
	}
	b.Run("fetch", measure(func() error {
		_, err := Fetch(ctx, s.c, "x", FetchOptions{Output: out, Overwrite: true})
		return err
	}))
	b.Run("copy", measure(func() error {
		from, err := os.ReadFile(filepath.Join(root, "x"))
		if err != nil {
			return err
		}
		f, err := os.Create(out)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.Write(from); err != nil {
			return err
		}
		return f.Sync()
	}))
}

// TestOpaqueTensors serves a file of which one tensor has a type that is not known: that one is
// bytes, the others are tensors.
func TestOpaqueTensors(t *testing.T) {
	ctx, root := testCtx(t), t.TempDir()
	header := `{"__metadata__":null,"scale":{"dtype":"F8_E8M0","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"U8","shape":[2,2],"data_offsets":[3,7]}}`
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+"abcdefg"...)
	write(t, filepath.Join(root, "m.safetensors"), file)
	s := serve(t, Options{Root: root, Tensors: true})
	if n := s.Snapshot(); n.Tensors != 2 || len(n.Skipped) != 0 {
		t.Errorf("%+v", n)
	}
	for name, want := range map[string]string{"scale": "abc", "w": "defg"} {
		e, err := Find(ctx, s.c, "m.safetensors/"+name)
		if err != nil || (e.Tensor != nil) != (name == "w") || e.Size != uint64(len(want)) {
			t.Errorf("%s: %+v, %v", name, e, err)
			continue
		}
		out := filepath.Join(t.TempDir(), "x")
		if _, err := Fetch(ctx, s.c, e.Name, FetchOptions{Output: out}); err != nil {
			t.Error(err)
		}
		same(t, out, []byte(want))
	}
}
