package reorder

import (
	"math/bits"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/tensor"
)

// Batch is what is known of a batch. It is valid, and does not change, as long as the packet that
// it came with is owned.
type Batch struct {
	Plan string
	// ID is the number of the batch. It goes on where the numbers in packets begin again, and
	// begins with the number of the first packet's batch.
	ID int64
	// Present has a bit for each place, the lowest of the first element first: 1 where a packet was
	// placed.
	Present []uint64
	// Mask is Present as kernels of the accelerator see it, of plans with the executor GPU, until
	// the stage is closed. It has the 64-bit words of Present.
	Mask gpu.Span
	// Packets is how many were placed, of PerBatch.
	Packets, PerBatch int
	// Place is the number of bytes of each place. Place i begins at i*Place; with Channels its part
	// of channel c, Place/Channels bytes, begins at (c*PerBatch+i)*Place/Channels.
	Place    int
	Channels int
	// DType is the type of the elements, U8 of bytes that were not converted.
	DType tensor.DType
	// First and Last are the earliest and the latest receive time of its packets, in nanoseconds
	// since 1970; 0 where the queue has no timestamps.
	First, Last int64
	// TimedOut says that Plan.Timeout ended it.
	TimedOut bool
}

// Has reports whether the packet of place i is there.
func (b *Batch) Has(i int) bool { return b.Present[i/64]>>(i%64)&1 == 1 }

// Whole reports whether all are there.
func (b *Batch) Whole() bool { return b.Packets == b.PerBatch }

// Tensor describes the batch as a tensor: [packet][element], or with Channels [channel][element],
// the elements of all packets one behind the other.
func (b *Batch) Tensor() tensor.Desc {
	rows, row := b.PerBatch, b.Place
	if b.Channels > 0 {
		rows, row = b.Channels, b.PerBatch*b.Place/b.Channels
	}
	return tensor.Desc{DType: b.DType, Shape: []int64{int64(rows), int64(row * 8 / b.DType.Bits())}}
}

// Of is the batch that packet i is; nil for another packet.
func Of(b *burst.Burst, i int) *Batch {
	x, _ := b.Info(i).(*Batch)
	return x
}

// missing calls f for each run of places that are absent.
func (b *Batch) missing(f func(from, to int)) {
	for i := 0; i < b.PerBatch; {
		if word := b.Present[i/64] >> (i % 64); word&1 == 1 {
			i += bits.TrailingZeros64(^word)
			continue
		}
		from := i
		for i < b.PerBatch && !b.Has(i) {
			if b.Present[i/64]>>(i%64) == 0 {
				i = (i/64 + 1) * 64
				continue
			}
			i++
		}
		f(from, min(i, b.PerBatch))
	}
}

// open is a batch that is being filled.
type open struct {
	*Batch
	slot  mem.Slot
	bytes []byte
	in    int   // bytes of a place before conversion
	until int64 // deadline, in nanoseconds of the stage's clock; 0: none
}

// owner is the Owner of batches that have left.
type owner struct {
	pool  *mem.Pool
	infos []Batch // by the slot's index
}

// Reclaim implements burst.Owner. What the pool refuses it counts.
func (o *owner) Reclaim(handles []burst.Handle) { o.pool.PutBatch(handles) }

// Describe implements burst.Describer.
func (o *owner) Describe(h burst.Handle) any { return &o.infos[o.pool.Slot(h).Index()] }
