package app

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/record"
	"github.com/penstock-io/penstock/stage/reorder"
)

// A batch of the stage reorder is no packet: a recording loses it in pcapng, and says so, and takes
// it raw.
func TestRecordBatches(t *testing.T) {
	pool := newPool(t, 4)
	for format, refused := range map[record.Format]bool{record.PcapNG: true, record.Raw: false} {
		c, err := newRecording(&Options{Kind: Sink, Frames: true,
			Record: &record.Options{Name: filepath.Join(t.TempDir(), "x"), Format: format}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		owner := described{pool, map[burst.Handle]*reorder.Batch{}}
		b := burst.New(1)
		slot, err := pool.Get()
		if err != nil {
			t.Fatal(err)
		}
		h := slot.Handle()
		owner.is[h] = &reorder.Batch{ID: 1}
		b.Builder().Add(burst.NewSource(pool.Region(), pool.Region().All().Bytes(), owner),
			burst.Segment{Handle: h, Off: pool.Offset(h), Len: 64})
		if err := c.Consume(limit(t), b); err != nil {
			t.Error(err)
		}
		b.Release()
		if err := c.Close(); (err != nil) != refused {
			t.Error(err)
		}
		var s Snapshot
		c.(Reporter).Report(&s)
		if strings.Contains(s.Record.Error, "format raw") != refused || (s.Taken == 0) != refused ||
			s.Taken+s.Drops[DropUnreadable] != 1 {
			t.Errorf("%s: %+v, %+v", format, s, s.Record)
		}
	}
}

// A sink that lingers behind a burst with room has given the memory of its packets back, and ends
// with its context.
func TestRecordLingers(t *testing.T) {
	pool := newPool(t, 2)
	c, err := newRecording(&Options{Kind: Sink, Frames: true, Linger: time.Hour,
		Record: &record.Options{Name: filepath.Join(t.TempDir(), "x"), Format: record.Raw}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := burst.New(2)
	slot, err := pool.Get()
	if err != nil {
		t.Fatal(err)
	}
	b.Builder().Add(burst.PoolSource(pool), burst.Segment{Handle: slot.Handle(), Off: pool.Offset(slot.Handle()),
		Len: 64})
	ctx, cancel := context.WithCancel(limit(t))
	done := make(chan error, 1)
	go func() { done <- c.Consume(ctx, b) }()
	until(t, "the memory of the packet to come back", func() bool { return pool.Stats().InUse == 0 })
	select {
	case err := <-done:
		t.Errorf("it did not linger: %v", err)
	default:
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
