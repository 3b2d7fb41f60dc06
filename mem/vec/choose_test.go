package vec

import (
	"bytes"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// uncalibrated forgets what was measured until the test ends.
func uncalibrated(t *testing.T) {
	awaitCalibration()
	old, was := current.Swap(nil), begun.Swap(false)
	t.Cleanup(func() {
		awaitCalibration()
		current.Store(old)
		begun.Store(was)
	})
}

// awaitCalibration waits for the one in the background, if one has begun.
func awaitCalibration() {
	for begun.Load() && (current.Load() == nil || !calibrating.TryLock()) {
		runtime.Gosched()
	}
	if begun.Load() {
		calibrating.Unlock()
	}
}

// TestNoCopyWaitsForCalibration holds the measurement that the first large copies begin: they end
// before it does, and there is one.
func TestNoCopyWaitsForCalibration(t *testing.T) {
	uncalibrated(t)
	hold, calls := make(chan struct{}), atomic.Int32{}
	measured = func(ks []Kernel, limit time.Duration) *table {
		calls.Add(1)
		<-hold
		return measure(ks, limit)
	}
	t.Cleanup(func() { awaitCalibration(); measured = measure })
	src, dst := noise(2<<20), make([]byte, 2<<20)
	for range 3 {
		clear(dst)
		if Copy(dst, src) != len(src) || !bytes.Equal(dst, src) {
			t.Fatal("wrong bytes")
		}
		CopyPart(dst, src[:PartAlign], len(src))
		if CopyCRC32C(dst, src, 0) != CRC32C(0, src) {
			t.Fatal("wrong checksum")
		}
	}
	if Choices() != nil {
		t.Error("there is a choice before anything was measured")
	}
	close(hold)
	awaitCalibration()
	if n := calls.Load(); n != 1 || Choices() == nil {
		t.Errorf("measured %d times, choices %v", n, Choices())
	}
}

func TestSmallCopiesDoNotCalibrate(t *testing.T) {
	uncalibrated(t)
	src, dst := noise(2<<20), make([]byte, 2<<20)
	Copy(dst[:LargeCopy], src)
	Copy(dst, src[:LargeCopy])
	CopyPart(dst[:LargeCopy], src, LargeCopy)
	if current.Load() != nil || Choices() != nil {
		t.Fatal("a copy of at most LargeCopy bytes measured the machine")
	}
	if s := Explain(); !strings.Contains(s, "first large copy") {
		t.Errorf("Explain before calibration: %q", s)
	}
	Copy(dst, src)
	if !begun.Load() {
		t.Fatal("a large copy did not have the machine measured")
	}
	awaitCalibration()
	first := current.Load()
	Copy(dst, src)
	if current.Load() != first {
		t.Error("a second large copy measured again")
	}
	uncalibrated(t)
	CopyPart(dst[:100], src, LargeCopy+1)
	if !begun.Load() {
		t.Error("a part of a large copy did not have the machine measured")
	}
}

func TestCalibrate(t *testing.T) {
	uncalibrated(t)
	cs := Calibrate()
	if len(cs) != len(classes) {
		t.Fatalf("%d choices, want %d", len(cs), len(classes))
	}
	text := Explain()
	for i, c := range cs {
		if i == 0 && c.Over != ChosenCopy || i > 0 && c.Over <= cs[i-1].Over {
			t.Errorf("class %d begins over %d", i, c.Over)
		}
		if !c.Kernel.Available() || c.Why == "" || !strings.Contains(text, c.Why) {
			t.Errorf("class over %s: %+v, not in the table below\n%s", size(c.Over), c, text)
		}
		for _, s := range c.Speeds {
			if s.GBps <= 0 {
				t.Errorf("over %s: %s at %v GB/s", size(c.Over), s.Kernel, s.GBps)
			}
		}
		if got := current.Load().kernels[classOf(c.Over+1)]; got != c.Kernel {
			t.Errorf("%d bytes are copied by %s, the table says %s", c.Over+1, got, c.Kernel)
		}
	}
	t.Log("\n" + text)
}

func TestClassOf(t *testing.T) {
	for n, want := range map[int]int{0: 0, LargeCopy: 0, LargeCopy + 1: 1, 1 << 20: 1, 1<<20 + 1: 2, 4<<20 + 1: 3,
		12 << 20: 3, 12<<20 + 1: 4, 48<<20 + 1: 5, 1 << 40: 5} {
		if got := classOf(n); got != want {
			t.Errorf("classOf(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestNoTimeToCalibrate(t *testing.T) {
	m := measure([]Kernel{Builtin, NTAVX2}, 0)
	for i, c := range m.choices {
		if m.kernels[i] != Builtin || c.Kernel != Builtin || len(c.Speeds) != 0 ||
			!strings.Contains(c.Why, "not measured in the time allowed") {
			t.Errorf("over %s: %+v", size(c.Over), c)
		}
	}
}

func TestOneKernel(t *testing.T) {
	m := measure([]Kernel{Builtin}, time.Hour)
	for _, c := range m.choices {
		if c.Kernel != Builtin || !strings.Contains(c.Why, "only kernel") {
			t.Errorf("over %s: %+v", size(c.Over), c)
		}
	}
}

func TestDecide(t *testing.T) {
	ks := []Kernel{Builtin, REPMOVSB, NTAVX2}
	for _, c := range []struct {
		name  string
		rates [][]float64
		want  Kernel
		n     int
	}{
		{"not run", nil, Builtin, 0},
		{"too few rounds", [][]float64{{1, 1}, {9, 9}, {1, 1}}, Builtin, 0},
		{"fastest", [][]float64{{10, 10, 10}, {11, 11, 11}, {12, 12, 12}}, NTAVX2, 3},
		{"within hysteresis", [][]float64{{10, 10, 10}, {10.2, 10.2, 10.2}, {10.29, 10.29, 10.29}}, Builtin, 3},
		{"just over it", [][]float64{{10, 10, 10}, {10.31, 10.31, 10.31}, {10, 10, 10}}, REPMOVSB, 3},
		{"one lucky round", [][]float64{{10, 10, 10}, {9, 9, 99}, {9, 9, 9}}, Builtin, 3},
		{"one unlucky round", [][]float64{{10, 10, 10}, {1, 20, 20}, {9, 9, 9}}, REPMOVSB, 3},
		{"even rounds", [][]float64{{10, 10, 10, 10}, {9, 10, 12, 99}, {0, 0, 0, 0}}, REPMOVSB, 3},
	} {
		k, speeds := decide(ks, c.rates)
		if k != c.want || len(speeds) != c.n {
			t.Errorf("%s: %s with %d speeds, want %s with %d", c.name, k, len(speeds), c.want, c.n)
		}
	}
}

func TestUnmeasuredClassFollowsNeighbour(t *testing.T) {
	ks := []Kernel{Builtin, NTAVX2}
	fast := [][]float64{{10, 10, 10}, {20, 20, 20}}
	var rates [len(classes)][][]float64
	rates[2], rates[5] = fast, fast
	m := tabulate(ks, rates, nil)
	want := [len(classes)]Kernel{Builtin, Builtin, NTAVX2, NTAVX2, NTAVX2, NTAVX2}
	if m.kernels != want {
		t.Errorf("kernels %v, want %v", m.kernels, want)
	}
	if w := m.choices[4].Why; !strings.Contains(w, "as for over 48 MiB") {
		t.Errorf("the reason of class 4 is %q", w)
	}
}

func TestFirstLargeCopiesAtOnce(t *testing.T) {
	uncalibrated(t)
	src := noise(1 << 20)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dst := make([]byte, len(src))
			for range 3 {
				clear(dst)
				if Copy(dst, src) != len(src) || !bytes.Equal(dst, src) {
					t.Error("wrong bytes")
				}
			}
		})
	}
	wg.Wait()
	if !begun.Load() {
		t.Error("nobody measured")
	}
}
