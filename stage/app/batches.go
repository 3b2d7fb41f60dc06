package app

import (
	"math"
	"sync"

	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/stage/reorder"
)

// BatchSuffix is what the name of a tensor and that of what is known of its batches differ by. The
// latter is a tensor of i64 with a row for each row of the former, whose elements are those from
// BatchGeneration on. It is published where rows are batches of a reorder plan, with the tag of the
// tensor that it describes.
const BatchSuffix = "/batch"

// The elements of a row about a batch. A row that is no batch, or did not come, is zero but for the
// first.
const (
	BatchGeneration = iota // of the tensor, from 1 on
	BatchID                // reorder.Batch.ID
	BatchPackets           // that are there
	BatchPerBatch          // that there could be
	BatchFirst             // the earliest receive time, in nanoseconds since 1970; 0: the queue takes none
	BatchLast              // the latest
	BatchTimedOut          // 1: a timeout ended it
	BatchPresent           // from here on the bitmap, 64 packets in each element, the lowest bit of the first one first
)

// BatchSnapshot is what is known of the batches that are rows of a sink's tensors.
type BatchSnapshot struct {
	Batches uint64 `json:"batches"` // that were placed
	Packets uint64 `json:"packets"` // that were in them
	Missing uint64 `json:"missing"` // packets that were not, whose places are zero
	Last    int64  `json:"last"`    // id of the last one
	First   int64  `json:"first"`   // its earliest receive time, in nanoseconds since 1970; 0: unknown
	Present int    `json:"present"` // packets in it
	Of      int    `json:"of"`      // that there could be
}

// batchTable notes what is known of the batches in the tensor that is filled.
type batchTable struct {
	rows  int
	words int     // of the longest bitmap so far
	table []int64 // rows of width elements; nil: there was no batch yet

	placed, packets, missing metrics.Counter

	mu   sync.Mutex // guards last; the sink's goroutine writes it
	last reorder.Batch
}

func (t *batchTable) width() int { return BatchPresent + t.words }

// note notes the batch of a row.
func (t *batchTable) note(row int, b *reorder.Batch) {
	if n := len(b.Present); n > t.words || t.table == nil {
		old, was := t.table, t.width()
		t.words = n
		t.table = make([]int64, t.rows*t.width())
		for k := 0; k*was < len(old); k++ {
			copy(t.table[k*t.width():], old[k*was:][:was])
		}
	}
	r := t.table[row*t.width():][:t.width()]
	r[BatchID], r[BatchPackets], r[BatchPerBatch], r[BatchFirst], r[BatchLast] = b.ID, int64(b.Packets),
		int64(b.PerBatch), b.First, b.Last
	if b.TimedOut {
		r[BatchTimedOut] = 1
	}
	for k, w := range b.Present {
		r[BatchPresent+k] = int64(w)
	}
	t.placed.Inc()
	t.packets.Add(uint64(b.Packets))
	t.missing.Add(uint64(b.PerBatch - b.Packets))
	t.mu.Lock()
	t.last = *b
	t.mu.Unlock()
}

// end gives the table of a tensor that is published as that generation, nil where there was no
// batch. It is valid, and reset is next.
func (t *batchTable) end(generation uint64) []int64 {
	for k := range len(t.table) / t.width() {
		t.table[k*t.width()+BatchGeneration] = int64(min(generation, math.MaxInt64))
	}
	return t.table
}

func (t *batchTable) reset() { clear(t.table) }

func (t *batchTable) snapshot() *BatchSnapshot {
	n := t.placed.Load()
	if n == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return &BatchSnapshot{Batches: n, Packets: t.packets.Load(), Missing: t.missing.Load(), Last: t.last.ID,
		First: t.last.First, Present: t.last.Packets, Of: t.last.PerBatch}
}
