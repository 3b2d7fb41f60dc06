package accel

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock/mem"
)

// Piece is how many bytes of memory that the CPU cannot reach are looked at or filled at once.
const Piece = 8 << 20

// Read calls f with the bytes of s in order: all at once where the CPU reaches them, in pieces of
// Piece bytes read back by the Mover of the region where it does not. off is the place of b in s. b
// is good until f returns, which ends Read with what it returns. s must lie in its region.
func Read(ctx context.Context, s mem.Span, f func(b []byte, off uint64) error) error {
	w := NewWindow()
	return errors.Join(w.Read(ctx, s, f), w.Close())
}

// Write has f fill the bytes of s, in order and in pieces as Read. What f does not write is
// undefined. When it returns without an error the bytes are in place.
func Write(ctx context.Context, s mem.Span, f func(b []byte, off uint64) error) error {
	w := NewWindow()
	return errors.Join(w.Write(ctx, s, f), w.Close())
}

// Window is host memory for bytes on their way, for frequent reads or writes. It allocates when it
// first has to, pinned memory where that can be had, and serves one device. One goroutine uses it.
type Window struct{ r *mem.Region }

// NewWindow makes a window. The caller closes it, before the device whose memory it was used for.
func NewWindow() *Window { return &Window{} }

// Close gives its memory back.
func (w *Window) Close() error {
	if w.r == nil {
		return nil
	}
	return w.r.Close()
}

// Read is the function Read with this window.
func (w *Window) Read(ctx context.Context, s mem.Span, f func(b []byte, off uint64) error) error {
	return w.each(s, f, func(m mem.Mover, at uint64, part mem.Span) error {
		if err := finish(ctx)(m.Load(part, at)); err != nil {
			return err
		}
		return f(part.Bytes(), at-s.Off)
	})
}

// Write is the function Write with this window.
func (w *Window) Write(ctx context.Context, s mem.Span, f func(b []byte, off uint64) error) error {
	return w.each(s, f, func(m mem.Mover, at uint64, part mem.Span) error {
		if err := f(part.Bytes(), at-s.Off); err != nil {
			return err
		}
		return finish(ctx)(m.Store(at, part))
	})
}

// each calls whole with all bytes of s where the CPU reaches them, or else piece for each part of
// the window that a piece of s at at goes through.
func (w *Window) each(s mem.Span, whole func(b []byte, off uint64) error,
	piece func(m mem.Mover, at uint64, part mem.Span) error) error {
	l, err := s.Region.Lease()
	if err != nil {
		return err
	}
	defer l.Release()
	if s.Len == 0 {
		return nil
	}
	if b := s.Bytes(); b != nil {
		return whole(b, 0)
	}
	m := s.Region.Mover()
	if err := w.grow(m, min(s.Len, Piece)); err != nil {
		return err
	}
	for off := uint64(0); off < s.Len; off += Piece {
		part, err := w.r.Span(0, min(s.Len-off, Piece))
		if err == nil {
			err = piece(m, s.Off+off, part)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *Window) grow(m mem.Mover, size uint64) error {
	if w.r != nil {
		if w.r.Len() >= size {
			return nil
		}
		if err := w.r.Close(); err != nil {
			return err
		}
		w.r = nil
	}
	r, err := mem.Alloc(mem.Options{Name: "window", Kind: mem.HostPinned, Size: int(size), Provider: m.Staging()})
	if errors.Is(err, mem.ErrUnavailable) {
		r, err = mem.Alloc(mem.Options{Name: "window", Size: int(size)})
	}
	w.r = r
	return err
}

// finish waits for a copy that was begun. When ctx ends the copy goes on, and its memory may be
// given back only when it is over.
func finish(ctx context.Context) func(mem.Move, error) error {
	return func(m mem.Move, err error) error {
		if err != nil {
			return err
		}
		err = m.Wait(ctx)
		if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return errors.Join(err, m.Wait(context.WithoutCancel(ctx)))
		}
		return err
	}
}
