package dl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// checkFile looks at the file at path before the loader does: the loader ends the process with
// SIGBUS on a file that was cut off, and calls one for another machine missing.
func checkFile(path string) error {
	fi, err := os.Stat(path) // before it is opened: a fifo would wait for its writer
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("there is no such file")
	case err != nil:
		return err
	case !fi.Mode().IsRegular():
		return fmt.Errorf("is a %s: expected the file of a shared library", kind(fi.Mode()))
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkELF(f, fi.Size(), runtime.GOARCH)
}

func kind(m os.FileMode) string {
	switch {
	case m.IsDir():
		return "directory"
	case m&os.ModeDevice != 0:
		return "device"
	}
	return "pipe or socket"
}

// machines are the numbers of ELF for the machines that Go's names stand for.
var machines = map[string]uint16{"386": 3, "arm": 40, "s390x": 22, "amd64": 62, "arm64": 183, "riscv64": 243,
	"loong64": 258, "ppc64le": 21}

// checkELF checks that size bytes of r are a shared library for the machine arch, with everything
// in it that the loader maps.
func checkELF(r io.ReaderAt, size int64, arch string) error {
	const header, programHeader, load = 64, 56, 1
	b := make([]byte, header)
	n, err := r.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return err
	}
	if !bytes.HasPrefix(b[:n], []byte("\x7fELF")) {
		for _, word := range []string{"/* GNU ld", "INPUT", "GROUP"} {
			if bytes.HasPrefix(b[:n], []byte(word)) {
				return errors.New("is a text that tells the linker of a compiler where the library is: give the file " +
					"that it names")
			}
		}
		return errors.New("is no shared library (it does not begin like an ELF file)")
	}
	if n < header {
		return fmt.Errorf("was cut off after %d bytes, inside its header: copy or install it again", n)
	}
	order := binary.LittleEndian
	if b[4] != 2 || b[5] != 1 {
		return fmt.Errorf("is for a machine of 32 bits or of another byte order: expected a library for linux/%s", arch)
	}
	if m := order.Uint16(b[18:]); m != machines[arch] {
		return fmt.Errorf("is for %s: expected a library for linux/%s", machineName(m), arch)
	}
	if t := order.Uint16(b[16:]); t != 3 {
		return fmt.Errorf("is an ELF file of type %d (1 is an object file, 2 a program): expected a shared library, "+
			"which is type 3", t)
	}
	offset, entry, count := order.Uint64(b[32:]), order.Uint16(b[54:]), order.Uint16(b[56:])
	if entry != programHeader || count == 0 {
		return fmt.Errorf("has %d program headers of %d bytes: expected at least one of %d bytes: copy or install "+
			"it again", count, entry, programHeader)
	}
	table := make([]byte, int(count)*programHeader)
	if offset > uint64(size) || uint64(size)-offset < uint64(len(table)) {
		return fmt.Errorf("was cut off: %d bytes, and its program headers are at %d: copy or install it again", size,
			offset)
	}
	if _, err := r.ReadAt(table, int64(offset)); err != nil {
		return err
	}
	for p := table; len(p) > 0; p = p[programHeader:] {
		at, length := order.Uint64(p[8:]), order.Uint64(p[32:])
		if order.Uint32(p) == load && (at > uint64(size) || length > uint64(size)-at) {
			return fmt.Errorf("was cut off: %d bytes, and it should have %d at %d: copy or install it again", size,
				length, at)
		}
	}
	return nil
}

func machineName(m uint16) string {
	for name, number := range machines {
		if number == m {
			return name
		}
	}
	return fmt.Sprintf("machine %d of ELF's list", m)
}

// explain is the loader's answer for one name, with what to do about it.
func explain(name, answer string) string {
	advice := ""
	const missing = ": cannot open shared object file: No such file or directory"
	what, gone := strings.CutSuffix(answer, missing)
	switch {
	case gone && what == name:
		advice = "install the package that brings it, or give the path of the file"
	case gone:
		advice = "it needs " + what + ": install the package that brings that"
	case strings.Contains(answer, "undefined symbol"), strings.Contains(answer, "version `"):
		advice = "it was built for another version of a library that it needs: install both from the same release"
	case strings.Contains(answer, "static TLS"):
		advice = "too many libraries with thread-local memory were loaded before it: start the program with LD_PRELOAD=" + name
	}
	if !strings.Contains(answer, name) {
		answer = name + ": " + answer
	}
	if advice != "" {
		answer += " (" + advice + ")"
	}
	return answer
}
