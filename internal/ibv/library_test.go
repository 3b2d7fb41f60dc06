package ibv

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// TestRealLibrary: the library of this machine, if there is one, passes the checks that need no
// device.
func TestRealLibrary(t *testing.T) {
	l, err := Load(Options{})
	if errors.Is(err, ErrUnavailable) {
		testenv.Missing(t, "libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Devices(); err != nil && (!errors.Is(err, ErrUnavailable) ||
		!strings.Contains(err.Error(), "modprobe ib_uverbs")) {
		t.Errorf("devices: %v", err)
	}
}

func TestNoLibrary(t *testing.T) {
	_, err := Load(Options{Path: filepath.Join(t.TempDir(), "libibverbs.so.1")})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "apt-get install libibverbs1") {
		t.Errorf("no file: %v", err)
	}
}

// TestOtherLibrary: the symbols of a library show that it is another one.
func TestOtherLibrary(t *testing.T) {
	l, err := Load(Options{Path: "libc.so.6"})
	if l != nil || !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), "ibv_get_device_list") {
		t.Errorf("the C library: %v", err)
	}
}
