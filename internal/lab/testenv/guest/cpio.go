package guest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
)

// A cpioWriter writes an archive of the format "newc", which the kernel unpacks as its first root
// file system (see the kernel's Documentation/driver-api/early-userspace/buffer-format.rst).
// Directories above an entry are made on the way. Archives may follow each other in one file; of
// two entries with the same name the later one stands.
type cpioWriter struct {
	w    *bufio.Writer
	n    int64
	ino  int
	dirs map[string]bool
	err  error
}

// File modes of the archive (man 7 inode).
const (
	modeFile = 0o100000
	modeDir  = 0o040000
	modeLink = 0o120000
)

func newCpio(w io.Writer) *cpioWriter {
	return &cpioWriter{w: bufio.NewWriterSize(w, 1<<20), dirs: map[string]bool{"/": true, ".": true}}
}

// header writes what precedes the contents of an entry.
func (c *cpioWriter) header(name string, mode int, size int64) {
	if c.err == nil && size >= 1<<32 {
		c.err = fmt.Errorf("cpio: %s has %d bytes; the format ends at 4 GiB", name, size)
	}
	if c.err != nil {
		return
	}
	c.ino++
	// magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
	// namesize, check
	n, err := fmt.Fprintf(c.w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.ino, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	c.n, c.err = c.n+int64(n), err
	c.pad()
}

// pad fills up to the next multiple of four.
func (c *cpioWriter) pad() {
	if n := int(-c.n & 3); n > 0 && c.err == nil {
		_, c.err = c.w.Write(make([]byte, n))
		c.n += int64(n)
	}
}

// clean makes an absolute path a name of the archive and sees to the directories above it.
func (c *cpioWriter) clean(name string) string {
	name = path.Clean("/" + name)
	if d := path.Dir(name); !c.dirs[d] {
		c.dir(d)
	}
	return name[1:]
}

func (c *cpioWriter) dir(name string) {
	name = path.Clean("/" + name)
	if c.dirs[name] {
		return
	}
	c.dirs[name] = true
	c.header(c.clean(name), modeDir|0o755, 0)
}

// link adds a symbolic link. What is written below its name later goes where it points to.
func (c *cpioWriter) link(name, target string) {
	c.dirs[path.Clean("/"+name)] = true
	c.header(c.clean(name), modeLink|0o777, int64(len(target)))
	c.write([]byte(target))
}

func (c *cpioWriter) file(name string, perm int, data []byte) {
	c.header(c.clean(name), modeFile|perm, int64(len(data)))
	c.write(data)
}

func (c *cpioWriter) write(b []byte) {
	if c.err == nil {
		_, c.err = c.w.Write(b)
		c.n += int64(len(b))
		c.pad()
	}
}

// copyFrom adds the host's file src.
func (c *cpioWriter) copyFrom(name string, perm int, src string) {
	if c.err != nil {
		return
	}
	f, err := os.Open(src)
	if err != nil {
		c.err = err
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("cpio: %s is not a file", src)
	}
	if err != nil {
		c.err = err
		return
	}
	c.header(c.clean(name), modeFile|perm, st.Size())
	if c.err != nil {
		return
	}
	n, err := io.Copy(c.w, f)
	if err == nil && n != st.Size() {
		err = fmt.Errorf("cpio: %s changed while it was read: %d bytes of %d", src, n, st.Size())
	}
	c.n, c.err = c.n+n, err
	c.pad()
}

// close ends the archive; it does not close the writer below.
func (c *cpioWriter) close() error {
	c.header("TRAILER!!!", 0, 0)
	if c.err != nil {
		return c.err
	}
	return c.w.Flush()
}
