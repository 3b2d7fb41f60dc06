package guest

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// libraryDirs are the directories where the dynamic linker looks, in its order (man 8 ld.so, man 5
// ld.so.conf).
func libraryDirs() []string {
	var dirs []string
	var read func(pattern string, depth int)
	read = func(pattern string, depth int) {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil || depth > 4 {
				continue
			}
			for line := range strings.Lines(string(b)) {
				line, _, _ = strings.Cut(line, "#")
				line = strings.TrimSpace(line)
				if inc, ok := strings.CutPrefix(line, "include "); ok {
					inc = strings.TrimSpace(inc)
					if !filepath.IsAbs(inc) {
						inc = filepath.Join(filepath.Dir(f), inc)
					}
					read(inc, depth+1)
				} else if filepath.IsAbs(line) {
					dirs = append(dirs, line)
				}
			}
		}
	}
	read("/etc/ld.so.conf", 0)
	return append(dirs, "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib",
		"/usr/lib")
}

// guestLibraries is where all libraries go that the linker finds by name.
const guestLibraries = "/usr/lib/x86_64-linux-gnu"

// A libraryFinder collects what programs need to be started: the linker and libraries, by their
// path in the guest.
type libraryFinder struct {
	dirs  []string
	found hostFiles
}

func newLibraryFinder() *libraryFinder {
	return &libraryFinder{dirs: libraryDirs(), found: hostFiles{}}
}

// add finds everything that the file needs. A file that is no ELF file, such as a script, needs
// nothing; nor does a static one.
func (l *libraryFinder) add(file string) error {
	if is, err := isELF(file); err != nil || !is {
		return err
	}
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		linker := strings.TrimRight(string(b), "\x00")
		l.found[guestPath(linker)] = linker
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, name := range needed {
		inGuest := filepath.Join(guestLibraries, name)
		if _, ok := l.found[inGuest]; ok {
			continue
		}
		lib, err := l.find(f, file, name)
		if err != nil {
			return err
		}
		l.found[inGuest] = lib
		if err := l.add(lib); err != nil {
			return err
		}
	}
	return nil
}

func isELF(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	magic := make([]byte, 4)
	if _, err := io.ReadFull(f, magic); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return string(magic) == elf.ELFMAG, nil
}

// isStatic reports whether a program can be started without any library.
func isStatic(file string) (bool, error) {
	f, err := elf.Open(file)
	if err != nil {
		return false, fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }), nil
}

// find looks for a library as the linker would on behalf of a file.
func (l *libraryFinder) find(f *elf.File, file, name string) (string, error) {
	var dirs []string
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		paths, err := f.DynString(tag)
		if err != nil {
			continue
		}
		for _, p := range paths {
			p = strings.NewReplacer("$ORIGIN", filepath.Dir(file), "${ORIGIN}", filepath.Dir(file)).Replace(p)
			dirs = append(dirs, strings.Split(p, ":")...)
		}
	}
	for _, dir := range append(dirs, l.dirs...) {
		p := filepath.Join(dir, name)
		if _, err := os.Stat(p); err == nil && sameMachine(p, f) {
			return p, nil
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("%s needs the library %s, which is in none of %s", file, name,
		strings.Join(append(dirs, l.dirs...), ", "))
}

// sameMachine reports whether a library is for the same processor: directories of several may be in
// the linker's list.
func sameMachine(lib string, f *elf.File) bool {
	l, err := elf.Open(lib)
	if err != nil {
		return false
	}
	defer l.Close()
	return l.Class == f.Class && l.Machine == f.Machine
}
