package record

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/pcap"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/npy"
	"github.com/penstock-io/penstock/tensor/safetensors"
)

const (
	// tableHead is the room for the header of a file of batches, whose number it has.
	tableHead = 1024
	// tableMost bounds what the recorder keeps of the batches of a safetensors file.
	tableMost = 1 << 20
)

// Batches reports whether files have batches of the stage reorder, as one tensor.
func (f Format) Batches() bool { return f == NPY || f == Safetensors }

// about is what is known of a batch: columns of a safetensors file.
type about [4]int64

var columns = [len(about{})]string{"id", "packets", "first", "last"}

// A batchKind is what all batches of a recording have in common.
type batchKind struct {
	plan     string
	perBatch int
	desc     tensor.Desc
}

// fits says why a packet is no row of the files; the first batch says what is.
func (r *Recorder) fits(b *burst.Burst, i int, x *reorder.Batch) error {
	if x == nil {
		return fmt.Errorf("a packet is no batch of the stage reorder: record it with the format %s", PcapNG)
	}
	k := batchKind{x.Plan, x.PerBatch, x.Tensor()}
	if r.kind == nil {
		if n, _ := k.desc.Bytes(); n != int64(b.PacketLen(i)) {
			return fmt.Errorf("a batch of %d bytes is no %v", b.PacketLen(i), k.desc)
		}
		if _, err := k.head(r.o.Format, 1, nil); err != nil {
			return err
		}
		r.kind = &k
	}
	if k.plan != r.kind.plan || k.desc.DType != r.kind.desc.DType || !slices.Equal(k.desc.Shape, r.kind.desc.Shape) {
		return fmt.Errorf("batches of the plans %q and %q: a recording has those of one", r.kind.plan, k.plan)
	}
	return nil
}

// head is the header of a file of n batches.
func (k *batchKind) head(f Format, n int, metadata map[string]string) ([]byte, error) {
	all := tensor.Tensor{Name: "batches",
		Desc: tensor.Desc{DType: k.desc.DType, Shape: append([]int64{int64(n)}, k.desc.Shape...)}}
	if f == Safetensors {
		list := []tensor.Tensor{all}
		for _, name := range columns {
			list = append(list, tensor.Tensor{Name: name,
				Desc: tensor.Desc{DType: tensor.I64, Shape: []int64{int64(n)}}})
		}
		return safetensors.Header(list, metadata, tableHead)
	}
	b, err := npy.Header(all.Desc)
	if err != nil || len(b) > tableHead {
		return nil, fmt.Errorf("%v as %s: %w", all.Desc, f, err)
	}
	b = append(append(b[:len(b)-1], bytes.Repeat([]byte(" "), tableHead-len(b))...), '\n')
	binary.LittleEndian.PutUint16(b[8:], tableHead-10)
	return b, nil
}

// rows writes batches. The header of an npy file has their number after each write, so that what is
// left of a file reads well.
func (w *files) rows(c *chunk) (err error) {
	before := w.off
	w.off = max(w.off, tableHead)
	if err = w.put(c.b); err == nil && w.r.o.Format == NPY {
		var head []byte
		if head, err = c.kind.head(NPY, int(w.packets)+c.packets, nil); err == nil {
			_, err = w.f.WriteAt(head, 0)
		}
	}
	if err != nil {
		w.off = before
		return err
	}
	w.kind, w.about = c.kind, append(w.about, c.about...)
	return nil
}

// endRows writes what is behind the batches of a safetensors file, and its header.
func (w *files) endRows(f io.WriterAt, s *pcap.Statistics) error {
	var tail []byte
	missing := int64(len(w.about) * w.kind.perBatch)
	for k := range columns {
		for _, x := range w.about {
			tail = binary.LittleEndian.AppendUint64(tail, uint64(x[k]))
		}
	}
	for _, x := range w.about {
		missing -= x[1]
	}
	head, err := w.kind.head(Safetensors, len(w.about), map[string]string{"plan": w.kind.plan,
		"packets_per_batch": fmt.Sprint(w.kind.perBatch), "missing_packets": fmt.Sprint(missing),
		"lost_batches": fmt.Sprint(s.DroppedByOS), "interface_dropped": fmt.Sprint(s.Dropped)})
	if err == nil {
		_, err = f.WriteAt(tail, w.off)
	}
	if err == nil {
		w.off += int64(len(tail))
		_, err = f.WriteAt(head, 0)
	}
	return err
}
