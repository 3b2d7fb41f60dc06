package sys

import (
	"os"
	"path/filepath"
	"testing"
)

// TestUmask compares with the permissions that a new file does not get.
func TestUmask(t *testing.T) {
	mask, err := Umask()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "x")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o777)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if want := 0o777 &^ fi.Mode().Perm(); mask != want {
		t.Errorf("%o, expected %o", mask, want)
	}
}
