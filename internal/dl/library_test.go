package dl

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// The first library that loads is taken, and the names before it are no error.
func TestOpenTakesTheFirst(t *testing.T) {
	file := library(t).Name()
	l, err := Open("libnobody-has-this.so.7", file, "/nowhere/either.so")
	if err != nil {
		t.Fatal(err)
	}
	if l.Name() != file {
		t.Errorf("opened %s, want %s", l.Name(), file)
	}
	if got := symbol(t, l, "nothing").Call0(); got != 42 {
		t.Errorf("nothing() = %d", got)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Symbol("nothing"); !errors.Is(err, ErrNoSymbol) || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a symbol of a closed library: %v", err)
	}
	if _, err := l.SymbolVersion("twice", "PENSTOCK_1.0"); !errors.Is(err, ErrNoSymbol) {
		t.Errorf("a symbol of a closed library: %v", err)
	}
}

func TestSymbols(t *testing.T) {
	l := library(t)
	for version, want := range map[string]int32{"": 7, "PENSTOCK_1.0": 6, "PENSTOCK_1.1": 7} {
		f, err := l.Symbol("twice")
		if version != "" {
			f, err = l.SymbolVersion("twice", version)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := int32(f.Call1(3)); got != want {
			t.Errorf("twice(3) of version %q = %d, want %d", version, got, want)
		}
	}
	for _, find := range []func() (Func, error){
		func() (Func, error) { return l.Symbol("thrice") },
		func() (Func, error) { return l.SymbolVersion("thrice", "PENSTOCK_1.0") },
		func() (Func, error) { return l.SymbolVersion("twice", "PENSTOCK_9") },
	} {
		f, err := find()
		if f != 0 || !errors.Is(err, ErrNoSymbol) || !strings.Contains(err.Error(), filepath.Base(l.Name())) {
			t.Errorf("%#x, %v: expected an error with the name of the library", f, err)
		}
	}
	if _, err := l.Symbol("a\x00b"); err == nil {
		t.Error("a name with a zero byte was found")
	}
	if _, err := l.SymbolVersion("a\x00b", "c"); err == nil {
		t.Error("a name with a zero byte was found")
	}
	if _, err := l.SymbolVersion("twice", "PENSTOCK_1.0\x00"); err == nil {
		t.Error("a version with a zero byte was found")
	}
}

// What cannot be loaded is an error that says which file, why, and what to do; the process goes on.
func TestOpenErrors(t *testing.T) {
	good, err := os.ReadFile(library(t).Name())
	if err != nil {
		t.Fatal(err)
	}
	changed := func(at int, b ...byte) []byte {
		c := bytes.Clone(good)
		copy(c[at:], b)
		return c
	}
	other := "arm64"
	if runtime.GOARCH == "arm64" {
		other = "amd64"
	}
	dir := t.TempDir()
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"text.so":    {[]byte("hello\n"), "does not begin like an ELF file"},
		"empty.so":   {nil, "does not begin like an ELF file"},
		"script.so":  {[]byte("/* GNU ld script */ INPUT(libc.so.6)"), "give the file that it names"},
		"head.so":    {good[:20], "cut off after 20 bytes"},
		"header.so":  {good[:64], "was cut off: 64 bytes"},
		"half.so":    {good[:len(good)/2], "was cut off"},
		"bits.so":    {changed(4, 1), "32 bits"},
		"machine.so": {changed(18, binary.LittleEndian.AppendUint16(nil, machines[other])...), "is for " + other},
		"strange.so": {changed(18, 0xfe, 0xca), "machine 51966"},
		"program.so": {changed(16, 2), "type 2"},
		"none.so":    {changed(56, 0, 0), "has 0 program headers"},
		"far.so": {changed(32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
			"program headers are at 18446744073709551615"},
		"segment.so": {good[:lastSegment(t, good)+1], "was cut off"},
		"huge.so": {changed(int(binary.LittleEndian.Uint64(good[32:]))+32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
			0xff), "was cut off"},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, c.content, 0o755); err != nil {
			t.Fatal(err)
		}
		expectNotFound(t, []string{file}, file, c.want)
	}
	expectNotFound(t, []string{dir}, dir, "is a directory")
	expectNotFound(t, []string{"/dev/null"}, "is a device")
	expectNotFound(t, []string{"/nowhere/at/all.so"}, "/nowhere/at/all.so: there is no such file")
	expectNotFound(t, []string{"libnobody-has-this.so.7"}, "libnobody-has-this.so.7: cannot open shared object file",
		"install the package")
	expectNotFound(t, []string{"libnobody-has-this.so.7", "/nowhere/at/all.so"}, "libnobody-has-this.so.7",
		"/nowhere/at/all.so")
	expectNotFound(t, nil, "no name")
	expectNotFound(t, []string{""}, `"": expected`)
	expectNotFound(t, []string{"a\x00b"}, `expected`)
}

// lastSegment is where in the file the last part begins that the loader maps.
func lastSegment(t *testing.T, file []byte) int {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			at = max(at, int(p.Off))
		}
	}
	return at
}

// The loader keeps its words for each thread: goroutines that open libraries at once get each the
// answer for their own.
func TestOpenErrorsAtOnce(t *testing.T) {
	l := library(t)
	var wg sync.WaitGroup
	for g := range 40 {
		wg.Go(func() {
			for i := range 50 {
				name := fmt.Sprintf("libnobody-has-%d-%d.so", g, i)
				if _, err := Open(name); err == nil ||
					!strings.Contains(err.Error(), "such library: "+name+": cannot open shared object file") {
					t.Errorf("%s: %v", name, err)
					return
				}
				symbol := fmt.Sprintf("nobody_has_%d_%d", g, i)
				if _, err := l.SymbolVersion(symbol, "PENSTOCK_1.0"); err == nil ||
					!strings.Contains(err.Error(), "undefined symbol: "+symbol) {
					t.Errorf("%s: %v", symbol, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func expectNotFound(t *testing.T, names []string, want ...string) {
	t.Helper()
	l, err := Open(names...)
	if err == nil {
		l.Close()
		t.Errorf("%q was opened", names)
		return
	}
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("%q: %v does not wrap ErrNotFound", names, err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q: %v\nwant %q in it", names, err, w)
		}
	}
}

// A library that needs another one, which is missing or of another version: the error names that
// one.
func TestOpenNeedsAnother(t *testing.T) {
	dir := t.TempDir()
	build := func(name, code string, flags ...string) string {
		src := filepath.Join(dir, name+".c")
		if err := os.WriteFile(src, []byte(code), 0o644); err != nil {
			t.Fatal(err)
		}
		file, err := testenv.Compile("dl-"+name, []string{src}, append(flags, "-shared")...)
		if err != nil {
			testenv.Missing(t, "a C compiler", err)
		}
		return file
	}
	user := "int needed(void); int user(void) { return needed(); }"
	needed := build("needed", "int needed(void) { return 1; }", "-Wl,-soname,libpenstock-needed.so.3")
	expectNotFound(t, []string{build("user", user, needed)}, "libpenstock-needed.so.3",
		"install the package that brings that")
	expectNotFound(t, []string{build("lonely", user)}, "undefined symbol: needed", "same release")
}

func TestMemory(t *testing.T) {
	for _, n := range []int{-1, 0} {
		if _, err := Alloc(n); err == nil {
			t.Errorf("alloc %d bytes: no error", n)
		}
	}
	if _, err := Alloc(1 << 60); err == nil || !strings.Contains(err.Error(), "errno 12") {
		t.Errorf("alloc of more than there is: %v", err)
	}
	l := library(t)
	hold, give := symbol(t, l, "hold"), symbol(t, l, "give")
	for n := 1; n < 1<<20; n = n*3 + 1 {
		for range 3 { // what comes back from the allocator is zero again
			b, err := Alloc(n)
			if err != nil {
				t.Fatal(err)
			}
			if len(b) != n || Address(b)%64 != 0 {
				t.Fatalf("alloc %d: %d bytes at %#x", n, len(b), Address(b))
			}
			for i := range b {
				if b[i] != 0 {
					t.Fatalf("alloc %d: byte %d is %d", n, i, b[i])
				}
				b[i] = byte(i) | 1
			}
			hold.Call1(Address(b))
			runtime.GC()
			if seen := Bytes(give.Call0(), n); &seen[0] != &b[0] || !bytes.Equal(seen, b) {
				t.Fatalf("alloc %d: C has other memory than Go", n)
			}
			Free(b)
		}
	}
	Free(nil)
}

func TestStrings(t *testing.T) {
	l := library(t)
	if got := GoString(symbol(t, l, "words").Call0()); got != "said by C" {
		t.Errorf("words() = %q", got)
	}
	if got := GoString(0); got != "" {
		t.Errorf("no string is %q", got)
	}
	if At[int](0) != nil {
		t.Error("no structure is not nil")
	}
	if _, err := CString("a\x00b"); err == nil {
		t.Error("a string with a zero byte was taken")
	}
	// Longer than the limit: it ends there, and nothing behind it is read.
	b, err := Alloc(maxString + 64)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(b)
	for i := range b {
		b[i] = 'x'
	}
	if got := GoString(Address(b)); len(got) != maxString {
		t.Errorf("a string without an end has %d bytes, want %d", len(got), maxString)
	}
	b[5] = 0
	if got := GoString(Address(b)); got != "xxxxx" {
		t.Errorf("%q", got)
	}
}

// Whatever a file holds, the check neither fails nor lets something pass whose segments are not in
// the file.
func FuzzCheckELF(f *testing.F) {
	f.Add([]byte("\x7fELF"))
	if b, err := os.ReadFile("/proc/self/exe"); err == nil {
		f.Add(b[:min(len(b), 4096)])
	}
	head := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 200)...)
	binary.LittleEndian.PutUint16(head[16:], 3)
	binary.LittleEndian.PutUint16(head[18:], 62)
	binary.LittleEndian.PutUint64(head[32:], 64)
	binary.LittleEndian.PutUint16(head[54:], 56)
	binary.LittleEndian.PutUint16(head[56:], 2)
	binary.LittleEndian.PutUint32(head[64:], 1)
	f.Add(head)
	f.Fuzz(func(t *testing.T, b []byte) {
		if checkELF(bytes.NewReader(b), int64(len(b)), "amd64") != nil {
			return
		}
		at, n := binary.LittleEndian.Uint64(b[32:]), int(binary.LittleEndian.Uint16(b[56:]))
		for i := range n {
			h := b[int(at)+56*i:]
			off, length := binary.LittleEndian.Uint64(h[8:]), binary.LittleEndian.Uint64(h[32:])
			if binary.LittleEndian.Uint32(h) == 1 && (off+length > uint64(len(b)) || off+length < off) {
				t.Fatalf("segment %d has %d bytes at %d of %d", i, length, off, len(b))
			}
		}
		if n == 0 {
			t.Fatal(fmt.Errorf("no program header"))
		}
	})
}
