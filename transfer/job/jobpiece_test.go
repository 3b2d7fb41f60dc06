package job

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// What the caller has found is not asked for again, once: an export that has taken the name since
// is found by the next attempt.
func TestJobFound(t *testing.T) {
	s := newServer(t, midwaySize, transfer.ExportOptions{Rights: path.Read, Tag: [16]byte{1}})
	n := open(t, transfer.Options{Name: "client"})
	l := link(t, n, s.addr(), LinkOptions{Retry: Retry{First: time.Millisecond, Attempts: -1}})
	p, err := l.Peer(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	old, err := p.Lookup(ctx(t), "x")
	if err != nil {
		t.Fatal(err)
	}
	was := s.x
	if s.x, err = s.node.Export(s.r.All(), transfer.ExportOptions{Name: "x", Rights: path.Read, Tag: [16]byte{1},
		Replaces: was}); err != nil {
		t.Fatal(err)
	}
	if err := was.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	other := *old
	other.Name = "y"
	for _, c := range []struct {
		found    *transfer.Remote
		attempts int
	}{{nil, 1}, {old, 2}, {&other, 1}} {
		dst := region(t, midwaySize)
		j, err := l.Fetch(ctx(t), "x", dst.All(), Options{Found: c.found, Tag: [16]byte{1}})
		waitJob(t, j, err)
		if got := len(j.Explain().History); got != c.attempts {
			t.Errorf("found %v: %d attempts, want %d", c.found, got, c.attempts)
		}
		if !bytes.Equal(dst.All().Bytes(), s.r.All().Bytes()) {
			t.Error("other bytes")
		}
	}
}

// Each piece is announced before it moves; an error of that ends the job, and what was under way
// comes.
func TestJobBeforePiece(t *testing.T) {
	s := newServer(t, midwaySize, transfer.ExportOptions{Rights: path.Read})
	n := open(t, transfer.Options{Name: "client"})
	l := link(t, n, s.addr(), LinkOptions{Retry: Retry{First: time.Millisecond, Attempts: -1}})
	full := errors.New("the disk is full")
	for _, stop := range []int{-1, 0, 1, 5} {
		dst := region(t, midwaySize)
		var got []uint64
		j, err := l.Fetch(ctx(t), "x", dst.All(), Options{From: 100, Piece: midwayPiece, Window: 2,
			BeforePiece: func(_ context.Context, from, to uint64) error {
				if len(got) == stop {
					return path.ErrDown // what would be tried again
				}
				if slices.ContainsFunc(dst.All().Bytes()[from:to], func(b byte) bool { return b != 0 }) {
					t.Errorf("%d to %d were there before", from, to)
				}
				got = append(got, to)
				return nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		err = j.Wait(ctx(t))
		last := uint64(100)
		if len(got) > 0 {
			last = got[len(got)-1]
		}
		if (err == nil) != (stop < 0) || stop >= 0 && (!errors.Is(err, path.ErrDown) ||
			len(j.Explain().History) != 1) || j.Verified() != last || stop < 0 && last != midwaySize {
			t.Errorf("stopped after %d: %v, %d bytes of %v", stop, err, j.Verified(), got)
		}
	}
	j, err := l.Fetch(ctx(t), "x", region(t, midwaySize).All(),
		Options{BeforePiece: func(ctx context.Context, _, _ uint64) error {
			go l.Close()
			<-ctx.Done()
			return full
		}})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Wait(ctx(t)); !errors.Is(err, transfer.ErrClosed) {
		t.Error(err)
	}
}
