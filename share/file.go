package share

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/npy"
	"github.com/penstock-io/penstock/tensor/safetensors"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// fileID changes when a file does: another inode when it was replaced, another time when it was
// written to.
type fileID struct {
	size              int64
	inode             uint64
	modified, changed int64 // mtime and ctime in ns since 1970
}

func idOf(fi os.FileInfo) fileID {
	id := sys.Identity(fi)
	return fileID{fi.Size(), id.Inode, fi.ModTime().UnixNano(), id.ChangedNs}
}

func idOfStat(s sys.FileStat) fileID { return fileID{s.Size, s.Inode, s.ModifiedNs, s.ChangedNs} }

// tag is the weak tag of a file. Its limits: a program that writes through a mapping may change a
// file without its times being moved at once, and chmod or a restored backup make a new tag of the
// same content.
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

// quiet is how long a file must not have been changed before it is exported. The kernel's file
// times move in steps of up to 10 ms: within one step, a second change would not show.
const (
	quiet    = 20 * time.Millisecond
	maxQuiet = 50 // so often it is waited for that
)

var errWritten = errors.New("the file is still being written")

// openQuiet opens a file and waits until it is quiet. open says what the file is, too.
func openQuiet(ctx context.Context, open func() (*os.File, os.FileInfo, error)) (*os.File, os.FileInfo, error) {
	for range maxQuiet {
		f, fi, err := open()
		if err != nil {
			return nil, nil, err
		}
		id := idOf(fi)
		last := id.changed
		if id.modified <= time.Now().UnixNano() { // else a program set it: an upload brings the time of its file
			last = max(last, id.modified)
		}
		age := time.Since(time.Unix(0, last))
		if age >= quiet || age < -time.Second { // a time in the future says nothing
			return f, fi, nil
		}
		f.Close()
		t := time.NewTimer(quiet - max(age, 0))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, nil, ctx.Err()
		}
	}
	return nil, nil, errWritten
}

// refresh makes what is served of the path p what the file base of dir is now. s.work is held.
func (s *Server) refresh(ctx context.Context, dir *os.Root, base, p string) {
	defer s.looked(ctx, p)
	s.mu.Lock()
	old, files := s.files[p], len(s.files)
	s.mu.Unlock()
	if old != nil {
		fi, err := s.lookIn(dir, base, p)
		if err == nil && fi.Mode().IsRegular() && old.id == idOf(fi) {
			s.recount(old)
			return
		}
	}
	var err error
	if old == nil && files >= s.o.MaxFiles {
		err = &notServed{lackMore, fmt.Sprintf("more than %d files: raise --max-files (Options.MaxFiles)",
			s.o.MaxFiles)}
	}
	var f *os.File
	var fi os.FileInfo
	if err == nil {
		f, fi, err = openQuiet(ctx, func() (*os.File, os.FileInfo, error) { return s.openIn(dir, base, p) })
	}
	if err == nil {
		err = s.add(ctx, f, fi, p, old)
		f.Close()
	}
	if err != nil {
		s.failed(ctx, p, err)
	}
}

// add maps and exports a file, in the place of the old one if there is one. Names of both never are
// without an export.
func (s *Server) add(ctx context.Context, f *os.File, fi os.FileInfo, p string, old *served) error {
	id := idOf(fi)
	if why := unfit(p); why != "" {
		return &notServed{lackNothing, why}
	}
	s.mu.Lock()
	taken := s.names[p].of
	s.mu.Unlock()
	if taken != old {
		return &notServed{lackNothing, "its name is that of " + taken.path}
	}
	var err error
	x := &served{path: p, id: id, mode: fi.Mode().Perm(), tag: id.tag()}
	if s.o.Strong {
		h := sha256.New()
		if _, err := io.Copy(h, contextReader{ctx, f}); err != nil {
			return err
		}
		x.tag = Tag(h.Sum(nil)[:16])
	}
	var now fileID
	switch x.region, now, err = mapFile(f); {
	case errors.Is(err, ErrSize):
		return &notServed{lackNothing, err.Error()}
	case err != nil:
		return err
	}
	if now != id {
		err = errors.New("it changed while it was opened")
	}
	if err == nil {
		err = s.export(x, p, 0, uint64(id.size), nil, x.tag, old)
	}
	if err != nil {
		x.region.Close()
		return err
	}
	if s.o.Tensors && id.size > 0 {
		s.addTensors(x, p, old)
		s.recount(x)
	}
	s.mu.Lock()
	s.files[p] = x
	s.clearUnserved(p)
	s.bytes += uint64(id.size)
	s.changes++
	s.mu.Unlock()
	if old != nil {
		s.drop(old)
	}
	s.log.Info("served", "path", p, "bytes", id.size, "tensors", len(x.views)-1)
	return nil
}

var errGrew = errors.New("its size changed while it was opened")

// mapFile maps a file for reading, and says what it was then.
func mapFile(f *os.File) (*mem.Region, fileID, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, fileID{}, err
	}
	id := idOf(fi)
	if id.size == 0 { // there is nothing to map
		switch n, err := f.ReadAt(make([]byte, 1), 0); {
		case n > 0:
			if fi, err := f.Stat(); err != nil || fi.Size() != 0 { // it has just been written to
				return nil, id, errors.Join(err, errGrew)
			}
			return nil, id, ErrSize
		case err != io.EOF:
			return nil, id, err
		}
		r, err := mem.Adopt(f.Name(), nil, nil)
		return r, id, err
	}
	r, err := mem.AdoptOpenFile(f)
	if err == nil && r.Len() != uint64(id.size) {
		r.Close()
		return nil, id, errGrew
	}
	return r, id, err
}

// export exports a part of a file, which takes over the name from the old one.
func (s *Server) export(f *served, name string, off, size uint64, d *tensor.Desc, tag Tag, old *served) error {
	o := transfer.ExportOptions{Name: name, Rights: path.Read, Tensor: d, Tag: tag}
	s.mu.Lock()
	if v, ok := s.names[name]; ok && v.of == old {
		o.Replaces = v.export
	}
	s.mu.Unlock()
	x, err := s.node.Export(mem.Span{Region: f.region, Off: off, Len: size}, o)
	if err != nil {
		return err
	}
	v := view{f, tag, x}
	f.views = append(f.views, v)
	s.mu.Lock()
	s.names[name] = v
	s.mu.Unlock()
	return nil
}

// addTensors exports the tensors of a file one by one. What cannot be is in x.omitted, the file
// stays.
func (s *Server) addTensors(x *served, name string, old *served) {
	lease, err := x.region.Lease()
	if err != nil {
		return
	}
	defer lease.Release()
	type view struct {
		name   string
		desc   tensor.Desc
		off    int64
		opaque bool // only its bytes are known
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
					_, opaque := f.Opaque(t.Name)
					views = append(views, view{t.Name, t.Desc, off, opaque})
				}
			}
		case strings.HasSuffix(lower, ".npy"):
			var t tensor.Tensor
			if t, perr = npy.Parse(b); perr == nil {
				views = append(views, view{"array", t.Desc, int64(len(b) - len(t.Bytes())), false})
			}
		}
	})
	if err != nil {
		x.omit("", fmt.Errorf("its tensors: %w", err), lackSome)
		return
	}
	if perr != nil {
		x.omit("", fmt.Errorf("its tensors: %w", perr), lackNothing)
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
			desc := &v.desc
			if v.opaque {
				desc = nil
			}
			if err = s.export(x, full, uint64(v.off), uint64(size), desc, x.tag.part(full), old); err != nil {
				x.omit(v.name, err, lackSome)
			}
			continue
		}
		if err != nil {
			x.omit(v.name, err, lackNothing)
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
