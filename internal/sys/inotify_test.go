package sys

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Events of a real directory come with their names, and Close ends a Read that waits.
func TestInotify(t *testing.T) {
	i, err := NewInotify()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w, err := i.WatchDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := i.WatchDirectory(dir); again != w || err != nil {
		t.Errorf("watched again: %d %v, expected %d", again, err, w)
	}
	if err := os.WriteFile(filepath.Join(dir, "a file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for seen := false; !seen; {
		events, err := i.Read()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if seen = seen || e.Name == "a file"; e.Watch != w || e.Lost || e.Gone {
				t.Errorf("%+v", e)
			}
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for gone := false; !gone; {
		events, err := i.Read()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			gone = gone || e.Gone && e.Watch == w
		}
	}
	if _, err := i.WatchDirectory(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
	done := make(chan error)
	go func() { _, err := i.Read(); done <- err }()
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("a Read that Close ended: %v", err)
	}
}

func FuzzInotify(f *testing.F) {
	b := binary.NativeEndian.AppendUint32(nil, 3)
	b = binary.NativeEndian.AppendUint32(b, 0x4000)
	b = append(b, 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, 4)
	f.Add(append(b, 'a', 'b', 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, e := range parseInotify(b) {
			if len(e.Name) > len(b) {
				t.Errorf("%+v", e)
			}
		}
	})
}
