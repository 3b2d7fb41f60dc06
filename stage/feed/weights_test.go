package feed_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/feed"
)

// TestWeightsFile: the weights are those of a file, also when another one takes its name, as an
// upload does. One of another size changes nothing, and is counted.
func TestWeightsFile(t *testing.T) {
	s := newSource(t, onHost(t), 64)
	const k, m = 8, 4
	path := filepath.Join(t.TempDir(), "w")
	put := func(v float32, n int) {
		t.Helper()
		ok(t, os.WriteFile(path+".partial", bytes.Repeat(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)), n),
			0o600))
		ok(t, os.Rename(path+".partial", path))
	}
	put(1, k*m)
	x := s.stage(t, feed.Options{Kernel: "gemm", Slots: 16, Row: 4 * m, WeightsFile: path,
		Param: kernels.GemmParam(k, m)})
	b := burst.NewSegmented(16, 32)
	row := func() (v float32) { // of a packet of ones
		t.Helper()
		s.queue = append(s.queue, bytes.Repeat([]byte{0, 0, 0x80, 0x3f}, k))
		for n := 0; n == 0; runtime.Gosched() {
			var err error
			n, err = x.TryRecv(b)
			ok(t, err)
		}
		v = math.Float32frombits(binary.LittleEndian.Uint32(b.Bytes(0, 1)))
		b.Release()
		return v
	}
	if v := row(); v != k {
		t.Fatalf("a row of %v, expected %v: the stage begins with the file", v, k)
	}
	put(2, k*m)
	for row() != 2*k {
	}
	put(3, k*m-4)
	for count(t, x, "weights_refused") == 0 {
		runtime.Gosched()
	}
	if v := row(); v != 2*k {
		t.Errorf("a row of %v after a file of another size", v)
	}
	ok(t, os.Remove(path))
	for count(t, x, "weights_refused") < 2 {
		runtime.Gosched()
	}
	put(4, k*m)
	for row() != 4*k {
	}
	if n := count(t, x, "weights"); n < 3 {
		t.Errorf("the weights were taken %d times", n)
	}
	ok(t, x.Close())
}

// TestWeightsFileRefused: what is wrong with the file is said before the stage is there.
func TestWeightsFileRefused(t *testing.T) {
	s := newSource(t, onHost(t), 8)
	dir := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(dir, "odd"), make([]byte, 17), 0o600))
	ok(t, os.WriteFile(filepath.Join(dir, "none"), nil, 0o600))
	ok(t, os.WriteFile(filepath.Join(dir, "small"), make([]byte, 16), 0o600))
	ok(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	for name, want := range map[string]string{"odd": "multiple of 16", "none": "multiple of 16", "small": "32 bytes",
		"pipe": "regular file", "gone": "no such file"} {
		size := 0
		if name == "small" {
			size = 32
		}
		_, err := feed.New(s, engine.StageSpec{Queue: "rx", Options: feed.Options{Kernel: "gemm", Pool: s.pool,
			Slots: 16, Row: 16, Weights: size, WeightsFile: filepath.Join(dir, name), Param: kernels.GemmParam(4, 4)}})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) ||
			name != "gone" && !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
