package share

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/npy"
	"github.com/penstock-io/penstock/tensor/safetensors"
	"github.com/penstock-io/penstock/transfer"
)

// fileID changes when a file does: another inode when it was replaced, another time when it was written to.
type fileID struct {
	size              int64
	inode             uint64
	modified, changed int64 // mtime and ctime in ns since 1970
}

func idOf(fi os.FileInfo) fileID {
	id := sys.Identity(fi)
	return fileID{fi.Size(), id.Inode, fi.ModTime().UnixNano(), id.ChangedNs}
}

// tag is the weak tag of a file. Its limits: a program that writes through a mapping may change a file without its times
// being moved at once, and chmod or a restored backup make a new tag of the same content.
func (id fileID) tag() Tag {
	b := []byte("penstock file tag 1\n")
	for _, v := range []uint64{uint64(id.size), id.inode, uint64(id.modified), uint64(id.changed)} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	sum := sha256.Sum256(b)
	return Tag(sum[:16])
}

// part is the tag of a tensor in a file with this tag.
func (t Tag) part(name string) Tag {
	sum := sha256.Sum256(append(t[:], name...))
	return Tag(sum[:16])
}

// quiet is how long a file must not have been changed before it is exported. The kernel's file times move in steps of up to
// 10 ms: within one step, a second change would not show.
const (
	quiet    = 20 * time.Millisecond
	maxQuiet = 50 // so often it is waited for that
)

var errWritten = errors.New("it is being written to all the time")

// openQuiet opens a file and waits until it is quiet.
func openQuiet(ctx context.Context, dir *os.Root, base string) (*os.File, fileID, error) {
	for range maxQuiet {
		f, err := openPlain(dir, base, os.O_RDONLY, false)
		if err != nil {
			return nil, fileID{}, err
		}
		fi, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, fileID{}, err
		}
		id := idOf(fi)
		age := time.Since(time.Unix(0, max(id.modified, id.changed)))
		if age >= quiet || age < -time.Second { // a time in the future says nothing
			return f, id, nil
		}
		f.Close()
		t := time.NewTimer(quiet - max(age, 0))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fileID{}, ctx.Err()
		}
	}
	return nil, fileID{}, errWritten
}

// current reports whether the file at a path is the one that is served already.
func (s *Server) current(dir *os.Root, base, p string) bool {
	fi, err := dir.Lstat(base)
	if err != nil || !fi.Mode().IsRegular() {
		return false
	}
	s.mu.Lock()
	f := s.files[p]
	s.mu.Unlock()
	return f != nil && f.id == idOf(fi)
}

// refresh makes what is served of the path p what the file base of dir is now. s.work is held.
func (s *Server) refresh(ctx context.Context, dir *os.Root, base, p string) {
	if s.current(dir, base, p) {
		return
	}
	s.mu.Lock()
	old := s.files[p]
	full := old == nil && len(s.files) >= s.o.MaxFiles
	s.mu.Unlock()
	if full {
		s.skip(p, fmt.Sprintf("more than %d files: see Options.MaxFiles", s.o.MaxFiles))
		return
	}
	f, id, err := openQuiet(ctx, dir, base)
	if err != nil {
		if old != nil {
			s.drop(old)
		}
		if !errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil {
			s.skip(p, err.Error())
		}
		return
	}
	defer f.Close()
	if old != nil {
		s.drop(old)
	}
	if err := s.add(ctx, f, id, p); err != nil && ctx.Err() == nil {
		s.skip(p, err.Error())
	}
}

// add maps and exports a file.
func (s *Server) add(ctx context.Context, f *os.File, id fileID, p string) error {
	name := serveName(p)
	switch {
	case len(name) > MaxName:
		return fmt.Errorf("its name has %d bytes, expected at most %d", len(name), MaxName)
	case !utf8.ValidString(name):
		return errors.New("its name is not UTF-8")
	}
	s.mu.Lock()
	taken := s.names[name]
	s.mu.Unlock()
	if taken != nil {
		return fmt.Errorf("its name is that of %s", taken.path)
	}
	x := &served{path: p, id: id, tag: id.tag()}
	if s.o.Strong {
		h := sha256.New()
		if _, err := io.Copy(h, contextReader{ctx, f}); err != nil {
			return err
		}
		x.tag = Tag(h.Sum(nil)[:16])
	}
	var err error
	var now fileID
	if x.region, now, err = mapFile(f); err != nil {
		return err
	}
	if now != id {
		err = errors.New("it changed while it was opened")
	}
	if err == nil {
		err = x.export(s.node, name, 0, uint64(id.size), nil, x.tag)
	}
	if err != nil {
		x.region.Close()
		return err
	}
	if s.o.Tensors && id.size > 0 {
		s.addTensors(x, name)
	}
	s.mu.Lock()
	s.files[p] = x
	for _, n := range x.names {
		s.names[n] = x
	}
	s.bytes += uint64(id.size)
	s.changes++
	s.mu.Unlock()
	s.log.Info("served", "path", p, "bytes", id.size, "tensors", len(x.names)-1)
	return nil
}

// mapFile maps a file for reading, and says what it was then.
func mapFile(f *os.File) (*mem.Region, fileID, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, fileID{}, err
	}
	id := idOf(fi)
	if id.size == 0 { // there is nothing to map: one page that is never shown
		b, err := sys.MmapAnonymous(sys.PageSize)
		if err != nil {
			return nil, id, err
		}
		r, err := mem.Adopt(f.Name(), b, func() error { return sys.Munmap(b) })
		return r, id, err
	}
	r, err := mem.AdoptOpenFile(f)
	if err == nil && r.Len() != uint64(id.size) {
		r.Close()
		return nil, id, errors.New("its size changed while it was opened")
	}
	return r, id, err
}

func (f *served) export(n *transfer.Node, name string, off, size uint64, d *tensor.Desc, tag Tag) error {
	x, err := n.Export(mem.Span{Region: f.region, Off: off, Len: size}, transfer.ExportOptions{Name: name, Rights: path.Read, Tensor: d, Tag: tag})
	if err != nil {
		return err
	}
	f.exports = append(f.exports, x)
	f.names = append(f.names, name)
	return nil
}

// addTensors exports the tensors of a file one by one. What cannot be is left out, the file stays.
func (s *Server) addTensors(x *served, name string) {
	lease, err := x.region.Lease()
	if err != nil {
		return
	}
	defer lease.Release()
	type view struct {
		name string
		desc tensor.Desc
		off  int64
	}
	var views []view
	var perr error
	// Another process may truncate the file while its header is read.
	err = guard(x.path, func() {
		switch b, lower := lease.Bytes(), strings.ToLower(x.path); {
		case strings.HasSuffix(lower, ".safetensors"):
			var f *safetensors.File
			if f, perr = safetensors.Parse(b); perr == nil {
				for _, t := range f.Tensors() {
					off, _ := f.Offset(t.Name)
					views = append(views, view{t.Name, t.Desc, off})
				}
			}
		case strings.HasSuffix(lower, ".npy"):
			var t tensor.Tensor
			if t, perr = npy.Parse(b); perr == nil {
				views = append(views, view{"array", t.Desc, int64(len(b) - len(t.Bytes()))})
			}
		}
	})
	if err = errors.Join(err, perr); err != nil {
		s.skip(x.path+"/", "its tensors: "+err.Error())
		return
	}
	for _, v := range views {
		full := name + "/" + v.name
		size, err := v.desc.Bytes()
		switch {
		case err != nil:
		case !v.desc.Contiguous():
			err = errors.New("a tensor in column-major order is served only as a part of its file")
		case len(full) > MaxName:
			err = fmt.Errorf("its name has %d bytes, expected at most %d", len(full), MaxName)
		default:
			err = x.export(s.node, full, uint64(v.off), uint64(size), &v.desc, x.tag.part(full))
		}
		if err != nil {
			s.skip(x.path+"/"+v.name, err.Error())
		}
	}
}

// contextReader ends reading when a context does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}
