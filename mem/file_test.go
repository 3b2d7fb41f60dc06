package mem

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
)

func writeFile(t *testing.T, n int) (string, []byte) {
	t.Helper()
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	path := filepath.Join(t.TempDir(), "model.bin")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, b
}

func TestAdoptFile(t *testing.T) {
	path, want := writeFile(t, 3*sys.PageSize+17)
	check := func(r *Region) {
		t.Helper()
		l := must[Lease](t)(r.Lease())
		defer l.Release()
		if !bytes.Equal(l.Bytes(), want) || r.Len() != uint64(len(want)) || !r.ReadOnly() || r.Kind() != Foreign ||
			r.FD() != -1 || r.Name() != path {
			t.Errorf("len %d, read-only %v, kind %s, fd %d, name %q, bytes equal %v", r.Len(), r.ReadOnly(), r.Kind(),
				r.FD(), r.Name(), bytes.Equal(l.Bytes(), want))
		}
	}
	r := must[*Region](t)(AdoptFile(path))
	check(r)
	if err := r.Close(); err != nil || !isUnmapped(r) {
		t.Errorf("close: %v", err)
	}
	f := must[*os.File](t)(os.Open(path))
	r = must[*Region](t)(AdoptOpenFile(f))
	defer r.Close()
	f.Close()
	check(r)
	os.Remove(path)
	check(r)
	if _, err := AdoptOpenFile(f); err == nil || !strings.Contains(err.Error(), "closed file") {
		t.Errorf("a closed file: %v", err)
	}
}

func TestAdoptFileRefuses(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo") // a plain open would wait for a writer
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		empty:                         "empty",
		fifo:                          "not a regular file",
		dir:                           "not a regular file",
		"/dev/null":                   "not a regular file",
		filepath.Join(dir, "missing"): "no such file",
	} {
		r, err := AdoptFile(path)
		if err == nil {
			r.Close()
			t.Errorf("%s: no error", path)
		} else if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, expected %q", path, err, want)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := AdoptOpenFile(r); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("pipe: %v", err)
	}
	if _, err := AdoptMapping("nothing", Mapping{Bytes: []byte{}}); err == nil {
		t.Error("adopted no bytes")
	}
}

// TestTruncatedFile shrinks a file under its mapping: the guarded copy and the registration must
// say so, and live.
func TestTruncatedFile(t *testing.T) {
	for _, n := range []int{4 * sys.PageSize, 300 * sys.PageSize} {
		path, want := writeFile(t, n)
		r := must[*Region](t)(AdoptFile(path))
		defer r.Close()
		src, dst := r.All().Bytes(), make([]byte, n)
		if got, err := CopyGuarded(dst, src); got != n || err != nil || !bytes.Equal(dst, want) {
			t.Fatalf("whole file: %d, %v", got, err)
		}
		if err := os.Truncate(path, int64(2*sys.PageSize)); err != nil {
			t.Fatal(err)
		}
		got, err := CopyGuarded(dst, src)
		var fault *copyFault
		if got != 0 || !errors.Is(err, ErrFault) || !errors.As(err, &fault) || fault.In != "source" ||
			fault.Offset < 2*sys.PageSize || fault.Offset >= n {
			t.Errorf("truncated: %d, %v, %+v", got, err, fault)
		}
		if got, err := CopyGuarded(dst, src[:2*sys.PageSize]); got != 2*sys.PageSize || err != nil {
			t.Errorf("what is left: %d, %v", got, err)
		}
		if _, err := Populate.Register(r.All(), ReadAccess); !errors.Is(err, ErrFault) {
			t.Errorf("populate: %v", err)
		}
		if err := touch(src); !errors.Is(err, ErrFault) {
			t.Errorf("touch: %v", err)
		}
	}
}

func TestFaultInDestination(t *testing.T) {
	fd := must[int](t)(sys.MemfdCreate("peer", int64(4*sys.PageSize), 0))
	defer sys.Close(fd)
	b := must[[]byte](t)(sys.Mmap(fd, 0, 4*sys.PageSize, sys.ProtRead|sys.ProtWrite, sys.MapShared))
	defer sys.Munmap(b)
	if err := sys.Ftruncate(fd, int64(sys.PageSize)); err != nil {
		t.Fatal(err)
	}
	_, err := CopyGuarded(b[1:], make([]byte, 3*sys.PageSize))
	var fault *copyFault
	if !errors.As(err, &fault) || fault.In != "destination" || fault.Offset < sys.PageSize-1 ||
		fault.Offset >= 3*sys.PageSize {
		t.Errorf("%v", err)
	}
	// A read-only mapping is a SIGSEGV rather than a SIGBUS.
	ro := must[[]byte](t)(sys.Mmap(fd, 0, sys.PageSize, sys.ProtRead, sys.MapShared))
	defer sys.Munmap(ro)
	if _, err := CopyGuarded(ro[5:], []byte{1}); !errors.As(err, &fault) || fault.In != "destination" ||
		fault.Offset != 0 {
		t.Errorf("write to a read-only mapping: %v", err)
	}
	if err := Guard(func() { ro[5] = 1 }); err != ErrFault {
		t.Errorf("a write to a read-only mapping under Guard: %v", err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if Guard(func() { b[0]++ }) != nil {
			t.Error("a fault in memory that is there")
		}
	}); n != 0 {
		t.Errorf("a guard allocates %v times", n)
	}
	if n, err := CopyGuarded(nil, b); n != 0 || err != nil {
		t.Errorf("empty: %d, %v", n, err)
	}
}

// What is not a fault goes on as a panic: one of the program's own, and one of the runtime's.
func TestGuardLetsPanicsPass(t *testing.T) {
	var none []byte
	for want, f := range map[string]func(){"mine": func() {
		panic("mine")
	}, "index out of range": func() { none[len(t.Name())] = 1 }} {
		func() {
			defer func() {
				if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), want) {
					t.Errorf("recovered %v: expected %q", v, want)
				}
			}()
			err := Guard(f)
			t.Errorf("a panic became %v", err)
		}()
	}
}
