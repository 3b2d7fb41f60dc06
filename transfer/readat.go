package transfer

import (
	"errors"
	"fmt"
	"io"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

var (
	_ io.ReaderAt = (*Remote)(nil)
	_ io.WriterAt = (*Remote)(nil)
)

// bounceSize is how many bytes ReadAt and WriteAt move at a time.
const bounceSize = 4 << 20

// ReadAt implements io.ReaderAt, for callers that have a slice of Go and no region: the bytes go
// through a bounce buffer of the node (of Options.Budget), which is one copy more than Get. With
// io.NewSectionReader it is an io.Reader and an io.Seeker. It ends with the session; Get has a
// context.
func (r *Remote) ReadAt(b []byte, off int64) (int, error) {
	size := int64(min(r.Size(), 1<<63-1))
	if off < 0 || off > size {
		return 0, fmt.Errorf("transfer: read %q at %d: expected 0 to %d: %w", r.Name, off, size, path.ErrBounds)
	}
	end := error(nil)
	if int64(len(b)) > size-off {
		b, end = b[:size-off], io.EOF
	}
	n, err := r.bounce(path.Get, b, uint64(off))
	if err == nil {
		err = end
	}
	return n, err
}

// WriteAt implements io.WriterAt, as ReadAt does io.ReaderAt. What does not fit into the export is
// refused as a whole. With io.NewOffsetWriter it is an io.Writer.
func (r *Remote) WriteAt(b []byte, off int64) (int, error) {
	if off < 0 || uint64(off) > r.Size() || uint64(len(b)) > r.Size()-uint64(off) {
		return 0, fmt.Errorf("transfer: write %d bytes to %q at %d: it has %d: %w", len(b), r.Name, off, r.Size(),
			path.ErrBounds)
	}
	return r.bounce(path.Put, b, uint64(off))
}

// bounce moves bytes by way of a bounce buffer. It returns how many are in place.
func (r *Remote) bounce(kind path.OpKind, b []byte, off uint64) (done int, err error) {
	p := r.Peer
	if len(b) == 0 {
		return 0, p.Err()
	}
	block, err := p.node.pool.Alloc(uint64(min(len(b), bounceSize)))
	if err != nil {
		return 0, fmt.Errorf("transfer: a bounce buffer: %w", err)
	}
	defer func() { err = errors.Join(err, p.node.pool.Free(block)) }()
	for done < len(b) {
		part := b[done:min(len(b), done+bounceSize)]
		local := mem.Span{Region: block.Span().Region, Off: block.Span().Off, Len: uint64(len(part))}
		if kind == path.Put {
			copy(local.Bytes(), part)
		}
		t, err := p.begin(p.ctx, kind, []path.Copy{r.At(off+uint64(done), local)}, PutOptions{})
		if err == nil {
			<-t.Done()
			err = t.Err()
		}
		if err != nil {
			return done, err
		}
		if kind == path.Get {
			copy(part, local.Bytes())
		}
		done += len(part)
	}
	return done, nil
}
