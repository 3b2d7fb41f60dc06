package share

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
)

// holds reports whether the other side has the content of a file under a name: both sides compute
// its SHA-256, and no byte of it travels. A name that stands for nothing, or for something of
// another size, does not have it.
func (c Conn) holds(ctx context.Context, name string, f *os.File) (bool, error) {
	fi, err := f.Stat()
	if err != nil {
		return false, err
	}
	r, err := c.lookup(ctx, name, nil)
	switch {
	case errors.Is(err, control.NotFound):
		return false, nil
	case err != nil:
		return false, err
	case r.Size() != uint64(fi.Size()):
		return false, nil
	case r.Size() == 0:
		return true, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var here [32]byte
	summed := make(chan error, 1)
	go func() {
		h := sha256.New()
		n, err := io.Copy(h, contextReader{ctx, f})
		if err == nil && n != fi.Size() {
			err = ErrChanged
		}
		here = [32]byte(h.Sum(nil))
		summed <- err
	}()
	var there [32]byte
	err = c.do(ctx, job.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
		at, err := r.In(ctx, p)
		if err == nil {
			there, err = at.Digest(ctx, 0, at.Size())
		}
		return err
	})
	if err != nil {
		cancel()
	}
	if herr := <-summed; err == nil {
		err = herr
	}
	return err == nil && here == there, err
}

// alike finds out whether the file that is there has the content of the other side, and takes it
// for made by a mirror then.
func (m *mirror) alike(ctx context.Context, t *task) (bool, error) {
	at, err := placeBelow(m.root, t.Path, m.dir)
	if err != nil {
		return false, err
	}
	defer at.dir.Close()
	f, err := openPlain(at.dir, at.base, os.O_RDONLY, false)
	if err != nil {
		return false, err
	}
	defer f.Close()
	was, err := f.Stat()
	if err != nil {
		return false, err
	}
	same, err := m.c.holds(ctx, t.e.Name, f)
	if err != nil || !same || m.o.DryRun {
		return same, err
	}
	now, err := at.dir.Lstat(at.base)
	switch {
	case err != nil:
		return false, fmt.Errorf("share: %w", err)
	case idOf(now) != idOf(was): // while it was read
		return false, errNotOurs(t.Path)
	case int(sys.Identity(now).UID) == sys.EffectiveUID():
		if err := m.like(ctx, &Fetched{Entry: t.e.Entry}, at); err != nil {
			return false, err
		}
		if now, err = at.dir.Lstat(at.base); err != nil {
			return false, fmt.Errorf("share: %w", err)
		}
	}
	return true, m.note(made{t.e.Name, mirrored{t.e.Size, t.e.Tag, idOf(now)}})
}
