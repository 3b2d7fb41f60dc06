package app

import (
	"path/filepath"
	"strings"
	"testing"

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
