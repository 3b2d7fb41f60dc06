package nvml

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// compiled is the library of testdata, built with a macro.
func compiled(t *testing.T, macro string) string {
	t.Helper()
	file, err := testenv.Compile("nvml-"+strings.ToLower(macro), []string{"testdata/nvml.c"}, "-shared", "-O1", "-Wall",
		"-Wextra", "-Wno-unused-parameter", "-Werror", "-D"+macro)
	if err != nil {
		if _, missing := testenv.Tool("gcc", "gcc libc6-dev"); missing != nil && os.Getenv("CC") == "" {
			testenv.Missing(t, "a C compiler", missing)
		}
		t.Fatal(err)
	}
	return file
}

func load(t *testing.T, macro string) *Library {
	t.Helper()
	l, err := Load(compiled(t, macro))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return l
}

func of[T any](v T) *T { return &v }

func TestStatus(t *testing.T) {
	l := load(t, "NEW")
	if v, err := l.DriverVersion(); v != "550.54.15" || err != nil {
		t.Errorf("version %q, %v", v, err)
	}
	b, err := l.Device("0001:af:1f.0")
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.Status()
	if err != nil {
		t.Fatal(err)
	}
	want := Status{Name: "Card B", UUID: "GPU-b", Bus: "0001:af:1f.0", MemoryTotal: 2 << 34, MemoryFree: 1 << 33,
		BAR1Total: of[uint64](256 << 20),
		BAR1Free:  of[uint64](255 << 20), SMClock: of(1001), MemoryClock: of(2001), MaxSMClock: of(1911),
		Temperature: of(42), Power: of(71.501),
		Throttle: []string{"power cap", "heat (hardware)"}, Persistence: of(true), Link: &PCIe{4, 8}, Max: &PCIe{5, 16},
		GPUUse: of(13), MemoryUse: of(34)}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	a, err := l.Device("0000:3b:00.0")
	if err != nil {
		t.Fatal(err)
	}
	first, err := a.Status()
	if err != nil || first.Name != "Card A" || first.Bus != "0000:3b:00.0" || first.Throttle != nil ||
		*first.Persistence {
		t.Errorf("%+v, %v", first, err)
	}
}

// What a library or a card does not tell is missing, and no error.
func TestWhatIsNotTold(t *testing.T) {
	for _, macro := range []string{"OLD", "SHY"} {
		l := load(t, macro)
		a, err := l.Device("0000:3b:00.0")
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.Status()
		want := Status{Name: "Card A", UUID: "GPU-a", Bus: "0000:3b:00.0", MemoryTotal: 1 << 34, MemoryFree: 1 << 33}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v", macro, got, err)
		}
	}
}

func TestErrors(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "libnvidia-ml.so.1"))
	if !errors.Is(err, ErrUnavailable) || !errors.Is(err, dl.ErrNotFound) || !strings.Contains(err.Error(), "driver") {
		t.Errorf("no library: %v", err)
	}
	_, err = Load(compiled(t, "NODRIVER"))
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "Driver Not Loaded") ||
		!strings.Contains(err.Error(), "modprobe") {
		t.Errorf("no driver: %v", err)
	}
	other, err := testenv.Compile("not-nvml", []string{"testdata/other.c"}, "-shared")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Load(other); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "nvmlInit_v2") {
		t.Errorf("another library: %v", err)
	}
	l := load(t, "LOST")
	_, err = l.Device("0000:ff:00.0")
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "0000:ff:00.0") {
		t.Errorf("no such card: %v", err)
	}
	if _, err = l.Device("x\x00y"); err == nil || !strings.Contains(err.Error(), "expected") {
		t.Errorf("no address: %v", err)
	}
	d, err := l.Device("0000:3b:00.0")
	if err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err = d.Status(); !errors.As(err, &e) || e.Code != resultGPULost || !strings.Contains(err.Error(), "reset") {
		t.Errorf("a lost card: %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	file := compiled(t, "NEW")
	var wg sync.WaitGroup
	l, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		wg.Go(func() {
			for range 20 {
				for i, bus := range []string{"0000:3b:00.0", "0001:af:1f.0"} {
					d, err := l.Device(bus)
					if err != nil {
						t.Error(err)
						return
					}
					if s, err := d.Status(); err != nil || *s.Temperature != 41+i {
						t.Errorf("%+v, %v", s, err)
					}
				}
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
