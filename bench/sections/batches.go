package sections

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/tensor/convert"
)

// reorders plans rx.reorder_configs and bench_reorder_quantize. Batches of a sender of this process
// are compared with what it sent, so its numbers must be those that the reorder plan reads.
func (x *planner) reorders() {
	const section = "bench_reorder_quantize"
	q, converts := x.c.Quantize, false
	for i := range x.c.Interfaces {
		p := &x.c.Interfaces[i]
		for k := 0; p.Rx != nil && x.p.opens(p.Name) && k < len(p.Rx.Reorder); k++ {
			r := &p.Rx.Reorder[k]
			converts = converts || r.DataTypes != nil
			x.reorder(p, r, item(item("interfaces", i)+".rx.reorder", k))
			if t := r.DataTypes; q != nil && t != nil &&
				(t.Input != q.Input || t.Output != q.Output || t.Endianness != q.Endianness ||
					t.Scale != 1 || t.Offset != 0) {
				x.miss(section, "the types of the plan",
					"%s is of %s to %s (%s), and the reorder plan %q of %s to %s (%s)", section,
					q.Input, q.Output, q.Endianness, r.Name, t.Input, t.Output, t.Endianness)
			}
		}
	}
	switch {
	case q == nil:
	case !converts:
		x.miss(section, "rx.reorder_configs with data_types", "no reorder plan converts: there is nothing to check")
	case len(x.p.Senders) == 0 || len(x.p.Receivers) == 0:
		x.miss(section, "bench_tx and bench_rx", "the values are known of packets that this process sends and receives")
	}
}

// reorder plans one of rx.reorder_configs.
func (x *planner) reorder(p *config.Interface, r *config.Reorder, path string) {
	if x.p.Latency != nil || len(x.p.Sockets) > 0 {
		x.miss(path, fmt.Sprintf("--set 'interfaces[%s].rx.reorder=[]' receives the packets as they come", p.Name),
			"a reorder plan is for bench_tx and bench_rx: the other sections count packets, and the plan makes "+
				"batches of them")
	}
	for i := range x.p.Receivers {
		if o := &x.p.Receivers[i]; o.Interface == p.Name {
			o.reorders = append(o.reorders, r)
			if o.Timeout == 0 && len(x.p.Senders) > 0 {
				x.miss(path, "timeout_us: 1000",
					"the queue %s has no timeout: batches with gaps would not leave at the end", o.name())
			}
		}
	}
	if len(x.p.Senders) == 0 {
		return // what other processes send is counted
	}
	s := &x.p.Senders[0]
	sequence, batch, per := fields(r)
	end := 8 * (s.Header + s.Sequence + sequenceLen) // of the sender's number, in bits
	lowest := end - bits.Len(uint(per-1))            // of the number of the batch in it
	if len(x.p.Senders) > 1 || s.Sequence < 0 || len(s.rules) > 0 || sequence.Offset+sequence.Width != end ||
		batch.Width > 0 && batch.Offset+batch.Width != lowest || r.PayloadOffset < s.Header ||
		r.PayloadOffset > s.Header+s.Payload {
		x.miss(path, "", "the reorder plan %s can be checked behind one of bench_tx, without tags and tunnels, whose "+
			"sequence_number_offset puts its number where the plan reads it (bits %d to %d), with "+
			"payload_byte_offset in the payload", r.Name, sequence.Offset, sequence.Offset+sequence.Width-1)
	}
	// The file's number says which packet it is: ours would have times, which nothing that is
	// converted can be compared with.
	s.Number = -1
}

// fields are the numbers that a reorder plan reads, batch of width 0 where there is none, and the
// packets of a batch.
func fields(r *config.Reorder) (sequence, batch config.BitField, per int) {
	if m := r.Method.PacketsPerBatch; m != nil {
		return m.Sequence, batch, m.PacketsPerBatch
	}
	if m := r.Method.BatchNumber; m != nil {
		return m.Sequence, m.Batch, 1 << max(0, m.Sequence.Width-m.Batch.Width)
	}
	return sequence, batch, 1
}

// checker compares the batches of a reorder plan with what the sender of this process sent.
type checker struct {
	k       *kind
	per     int
	first   int64 // what is added to the number of a batch: its number as the sender counts, less that in its packets
	skip    int   // bytes of the sender's payload that are not in the batch
	convert *convert.Converter
	payload []byte
	want    []byte
}

func newChecker(k *kind, r *config.Reorder) (*checker, error) {
	sequence, batch, per := fields(r)
	c := &checker{k: k, per: per, skip: r.PayloadOffset - k.s.Header, payload: bytes.Clone(k.wanted)}
	width := sequence.Width - bits.Len(uint(per-1))
	if batch.Width > 0 {
		width = batch.Width
	}
	c.first = int64(k.s.Start) / int64(per) >> width << width
	c.want = c.payload[c.skip:]
	if r.DataTypes != nil {
		var err error
		if c.convert, err = convert.New(r.DataTypes.Spec()); err != nil {
			return nil, err
		}
		c.want = make([]byte, c.convert.OutLen(len(c.payload)-c.skip))
	}
	return c, nil
}

// newCheckers are those of a receiver's reorder plans, by name. Of packets of other processes
// nothing is known.
func newCheckers(r *Receiver, o *ledgers) (map[string]*checker, error) {
	all := map[string]*checker{}
	for _, plan := range r.reorders {
		if len(o.kinds) == 0 {
			break
		}
		c, err := newChecker(o.kinds[0], plan)
		if err != nil {
			return nil, r.err(fmt.Errorf("reorder plan %q: %w", plan.Name, err))
		}
		all[plan.Name] = c
	}
	return all, nil
}

// number is which packet of the sender is at a place.
func (c *checker) number(b *reorder.Batch, place int) uint32 {
	return uint32((b.ID+c.first)*int64(c.per) + int64(place))
}

// right reports whether a place of a batch holds the packet of that number.
func (c *checker) right(b *reorder.Batch, data []byte, place int, number uint32) bool {
	binary.BigEndian.PutUint32(c.payload[c.k.s.Sequence:], number)
	if c.convert != nil {
		c.convert.Convert(c.want, c.payload[c.skip:])
	}
	if len(c.want) != b.Place || b.PerBatch != c.per {
		return false
	}
	return c.same(b, data, place, c.want)
}

// same reports whether a place of a batch, in parts where it has channels, holds these bytes; nil:
// zeros.
func (c *checker) same(b *reorder.Batch, data []byte, place int, want []byte) bool {
	part := b.Place / max(b.Channels, 1)
	for i := range max(b.Channels, 1) {
		got := data[(i*b.PerBatch+place)*part:][:part]
		if want == nil && bytes.Count(got, []byte{0}) != part || want != nil &&
			!bytes.Equal(got, want[i*part:][:part]) {
			return false
		}
	}
	return true
}

// batch enters the packets of a batch: each is a packet that came. A place without a packet that
// holds bytes counts as a damaged one.
func (x *receiver) batch(b *reorder.Batch, data []byte) {
	c := x.checkers[b.Plan]
	if c == nil {
		x.out.Packets += uint64(b.Packets)
		x.out.Foreign += uint64(b.Packets)
		return
	}
	for i := range b.PerBatch {
		if !b.Has(i) {
			if !c.same(b, data, i, nil) {
				x.out.Packets++
				x.out.Damaged++
			}
			continue
		}
		x.out.Packets++
		n := c.number(b, i)
		if !c.right(b, data, i, n) {
			x.out.Damaged++
		} else if x.enter(c.k.l, n) {
			x.out.Checked += uint64(b.Place)
		}
	}
}

// countsText lists the counts of stages, those of a reorder plan behind its name.
func countsText(all []engine.Count) string {
	var out []string
	last := ""
	for _, n := range all {
		plan, what, ok := strings.Cut(n.Name, ": ")
		if !ok || plan != last {
			what = n.Name
		}
		last = plan
		out = append(out, fmt.Sprintf("%s %d", what, n.N))
	}
	return strings.Join(out, ", ")
}
