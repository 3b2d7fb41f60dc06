package app

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
)

// Tensor describes the tensor that a Sink makes of payloads. Node, Name and Desc are required.
type Tensor struct {
	Node *transfer.Node // whose peers get it; it outlives the App
	Name string         // what they ask for
	// Desc is contiguous. Its first dimension is the rows; a packet's payload is one row. A byte
	// stream fills it from its beginning.
	Desc tensor.Desc
	// Offset is the number of bytes at the beginning of each packet before its payload. Headers
	// means: of frames those up to the end of the UDP header, and what is not UDP has no payload;
	// of sockets, and of batches of a reorder plan, none. A stream has none.
	Offset int
	// Sequence is the place in the payload of a number of Width bytes, big-endian, that says which
	// row it is: the remainder of its division by the rows. Width 0: rows come in their order.
	Sequence, Width int
	// Strip is the number of bytes at the beginning of each payload that are not part of its row,
	// such as a header with the number. A stream has none.
	Strip   int
	Buffers int // tensors in memory, 2 to 64; 0 means 3
	// Flush is how long after its first row a tensor is published although rows are missing; 0:
	// when one of the next tensor comes.
	Flush time.Duration
}

// Headers is Tensor.Offset for the end of a frame's headers.
const Headers = -1

// TensorSnapshot is what is known of a sink's tensor.
type TensorSnapshot struct {
	Name        string `json:"name"`
	Tensor      string `json:"tensor"`      // its type and shape
	Generations uint64 `json:"generations"` // published so far
	Rows        uint64 `json:"rows"`        // that were placed
	Missing     uint64 `json:"missing"`     // rows of published tensors that did not come, and are zero
	Short       uint64 `json:"short"`       // rows that were filled up with zeros
	Bytes       uint64 `json:"bytes"`       // that were placed, each copied once
	Filled      int64  `json:"filled"`      // rows of the tensor that is being filled
	Of          int64  `json:"of"`
	Waits       uint64 `json:"waits"` // times that peers had to let go of a tensor before the next one could be filled
	// Batches are those of a reorder plan that became rows; nil: none did.
	Batches *BatchSnapshot `json:"batches,omitempty"`
}

// sink fills tensors.
type sink struct {
	o              Tensor
	frames, stream bool
	rowBytes       int
	st             *store
	c              outcome

	// The application holds mu for each burst, and so does the timer of Flush; no other goroutine
	// needs it.
	mu    sync.Mutex
	asm   *assembler
	known batchTable
	buf   []byte // of the tensor that is being filled; nil: none is
	pos   int    // bytes of it that a stream has filled
	conn  uint32 // whose stream that is; 0: of no connection
	begun time.Time
	timer *time.Timer
	err   error // of the timer, or of a copy from a device

	placed, missing, short, bytes, published metrics.Counter
	filled                                   metrics.Gauge
}

func newSink(o Tensor, frames, stream bool) (engine.Consumer, error) {
	bad := func(format string, args ...any) (engine.Consumer, error) {
		return nil, fmt.Errorf("tensor %q: %s: %w", o.Name, fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	size, err := o.Desc.Bytes()
	if o.Buffers == 0 {
		o.Buffers = 3
	}
	switch {
	case o.Node == nil:
		return bad("there is no node whose peers could get it")
	case o.Name == "":
		return bad("it has no name")
	case err != nil:
		return bad("%v", err)
	case len(o.Desc.Shape) == 0 || size <= 0 || !o.Desc.Contiguous():
		return bad("%v: expected at least one row, in one piece", o.Desc)
	case size%o.Desc.Shape[0] != 0:
		return bad("%v: its rows are not whole bytes", o.Desc)
	case size > math.MaxInt:
		return bad("%v is too large", o.Desc)
	case o.Buffers < 2 || o.Buffers > 64:
		return bad("%d buffers: expected 2 to 64", o.Buffers)
	case o.Offset < Headers || stream && o.Offset > 0:
		return bad("offset %d", o.Offset)
	case o.Strip < 0 || stream && o.Strip > 0:
		return bad("%d bytes to strip from each payload", o.Strip)
	case o.Width < 0 || o.Width > 8 || o.Sequence < 0:
		return bad("a number of %d bytes at %d: expected 1 to 8 bytes, at 0 or more", o.Width, o.Sequence)
	case stream && o.Width > 0:
		return bad("a byte stream has no packets whose numbers could be read")
	case o.Flush < 0:
		return bad("flush after %v", o.Flush)
	}
	rows := uint64(o.Desc.Shape[0])
	if o.Width > 0 && o.Width < 8 && uint64(1)<<(8*o.Width) < 4*rows {
		return bad("numbers of %d bytes begin again too soon to tell tensors of %d rows apart", o.Width, rows)
	}
	s := &sink{o: o, frames: frames, stream: stream, rowBytes: int(size / o.Desc.Shape[0]),
		asm: newAssembler(rows, o.Width), known: batchTable{rows: int(rows)}}
	if s.st, err = newStore(o, int(size)); err != nil {
		return nil, err
	}
	return s, nil
}

// Consume implements engine.Consumer: it places the packets of a burst, which it does not release.
func (s *sink) Consume(ctx context.Context, b *burst.Burst) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.Fetch()
	for i := range b.Len() {
		if s.err != nil {
			return s.err
		}
		var err error
		if s.stream {
			err = s.piece(ctx, b, i)
		} else {
			err = s.packet(ctx, b, i)
		}
		if err != nil {
			// The rest of the burst is given back unseen; the counts of the application must still
			// add up.
			s.c.drops[DropRefused].Add(uint64(b.Len() - i))
			return err
		}
	}
	return nil
}

// put copies n bytes of segment k of packet i, from skip on, to the buffer: the one copy that is
// made of a payload. A device copies what the processor does not reach; when that fails, the sink
// publishes nothing any more.
func (s *sink) put(at int, b *burst.Burst, i, k, skip, n int) error {
	if from := b.Bytes(i, k); from != nil {
		copy(s.buf[at:at+n], from[skip:])
		return nil
	}
	to, err := s.st.span(at, n)
	if err != nil {
		return err
	}
	g := b.Segment(i, k)
	m, err := g.Region.Mover().Load(to, g.Off+uint64(skip))
	if err == nil {
		err = m.Wait(context.Background()) // it writes to the buffer, whatever the caller wants
	}
	if err != nil {
		s.err = err
	}
	return err
}

// unread is the error of a packet some of which the processor would have to read.
func unread(i int, what, hint string) error {
	return fmt.Errorf("packet %d: %s is in memory of an accelerator, where the processor reads nothing: %s: %w", i,
		what, hint, engine.ErrUnsupported)
}

// payload is where the payload of packet i lies. A batch is one as a whole, unless Offset says
// otherwise.
func (s *sink) payload(b *burst.Burst, i int) (off, n int, ok bool, err error) {
	size := b.PacketLen(i)
	if s.o.Offset >= 0 || !s.frames || reorder.Of(b, i) != nil {
		off = max(s.o.Offset, 0)
		return off, size - off, size > off && b.Flags(i)&burst.Truncated == 0, nil
	}
	head := b.Bytes(i, 0)
	if head == nil && size > 0 {
		return 0, 0, false, unread(i, "the header",
			"receive it into a host region of its own, or give the offset of the payload")
	}
	off, n, ok = udpPayload(head, size)
	return off, n, ok, nil
}

// udpPayload is where the payload of a frame of UDP lies, whose first bytes are head.
func udpPayload(head []byte, size int) (off, n int, ok bool) {
	h, ok := look(head)
	if !ok || h.l4 == 0 || h.proto != packet.ProtoUDP || len(head)-h.l4 < packet.UDPLen {
		return 0, 0, false
	}
	off, n = h.l4+packet.UDPLen, packet.UDP(head[h.l4:]).Length()-packet.UDPLen
	return off, n, n > 0 && n <= size-off
}

// packet places a packet that is a row.
func (s *sink) packet(ctx context.Context, b *burst.Burst, i int) error {
	off, n, ok, err := s.payload(b, i)
	if err != nil {
		return err
	}
	if !ok || n < s.o.Sequence+s.o.Width || n <= s.o.Strip {
		s.c.drops[DropNoPayload].Inc()
		return nil
	}
	at := off + s.o.Strip // of the row
	if n -= s.o.Strip; n > s.rowBytes {
		s.c.drops[DropTooLong].Inc()
		return nil
	}
	var row uint64
	if s.o.Width == 0 {
		row = s.asm.next()
	} else {
		seq, ok := number(b, i, off+s.o.Sequence, s.o.Width)
		if !ok {
			return unread(i, "the number of the row", "receive it into a host region of its own")
		}
		for {
			var v verdict
			if row, v = s.asm.where(seq); v == placeIt {
				break
			}
			if v != endFirst {
				s.c.drops[[...]Drop{late: DropLate, duplicate: DropDuplicate, stray: DropStray}[v]].Inc()
				return nil
			}
			if err := s.publish(); err != nil {
				return err
			}
		}
	}
	if err := s.need(ctx); err != nil {
		return err
	}
	to := int(row) * s.rowBytes
	if err := s.row(to, b, i, at, n); err != nil {
		return err
	}
	if n < s.rowBytes {
		clear(s.buf[to+n : to+s.rowBytes])
		s.short.Inc()
	}
	if x := reorder.Of(b, i); x != nil {
		s.known.note(int(row), x)
	}
	s.c.taken.Inc()
	s.placed.Inc()
	s.bytes.Add(uint64(n))
	s.filled.Add(1)
	if s.asm.mark(row) {
		return s.publish()
	}
	return nil
}

// number reads the number of a packet at off, which is inside. ok is false where the processor does
// not reach it.
func number(b *burst.Burst, i, off, width int) (v uint64, ok bool) {
	var raw [8]byte
	to := raw[8-width:]
	for k := 0; len(to) > 0; k++ {
		if n := int(b.Segment(i, k).Len); off >= n {
			off -= n
			continue
		}
		from := b.Bytes(i, k)
		if from == nil {
			return 0, false
		}
		to, off = to[copy(to, from[off:]):], 0
	}
	return binary.BigEndian.Uint64(raw[:]), true
}

// row puts n bytes of packet i, from off on, into the buffer, from at on.
func (s *sink) row(at int, b *burst.Burst, i, off, n int) error {
	for k := 0; n > 0; k++ {
		size := int(b.Segment(i, k).Len)
		if off >= size {
			off -= size
			continue
		}
		part := min(n, size-off)
		if err := s.put(at, b, i, k, off, part); err != nil {
			return err
		}
		at, n, off = at+part, n-part, 0
	}
	return nil
}

// piece places a piece of a stream behind what is there of it.
func (s *sink) piece(ctx context.Context, b *burst.Burst, i int) error {
	conn := b.Conn(i)
	if s.conn == 0 {
		s.conn = conn
	}
	if conn != s.conn {
		s.c.drops[DropOther].Inc()
		return nil
	}
	total := s.rowBytes * int(s.asm.rows)
	for k := range b.Segments(i) {
		for skip, size := 0, int(b.Segment(i, k).Len); skip < size; {
			if err := s.need(ctx); err != nil {
				return err
			}
			s.asm.open = true
			n := min(total-s.pos, size-skip)
			if err := s.put(s.pos, b, i, k, skip, n); err != nil {
				return err
			}
			skip += n
			rows := (s.pos+n)/s.rowBytes - s.pos/s.rowBytes
			s.pos += n
			s.bytes.Add(uint64(n))
			s.placed.Add(uint64(rows))
			s.asm.have += uint64(rows)
			s.filled.Set(int64(s.asm.have))
			if s.pos == total {
				if err := s.publish(); err != nil {
					return err
				}
			}
		}
	}
	s.c.taken.Inc()
	if b.Flags(i)&burst.Last != 0 {
		s.conn = 0
		if s.buf != nil {
			return s.publish() // nothing will be added to it
		}
	}
	return nil
}

// need makes sure that there is a buffer to fill. It may wait until no peer can see one of them.
func (s *sink) need(ctx context.Context) error {
	if s.buf != nil {
		return nil
	}
	var err error
	if s.buf, err = s.st.take(ctx); err != nil {
		return err
	}
	if s.o.Flush > 0 {
		s.begun = time.Now()
		if s.timer == nil {
			s.timer = time.AfterFunc(s.o.Flush, s.flush)
		} else {
			s.timer.Reset(s.o.Flush)
		}
	}
	return nil
}

// flush publishes a tensor whose time has passed. The timer calls it.
func (s *sink) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buf == nil || s.err != nil {
		return
	}
	if left := s.o.Flush - time.Since(s.begun); left > 0 { // it was meant for the tensor before
		s.timer.Reset(left)
		return
	}
	s.err = s.publish()
}

// publish ends the tensor and gives it to the peers. What did not come is zero.
func (s *sink) publish() error {
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.buf == nil { // no row of it was placed
		s.asm.end(func(_, _ uint64) {})
		return nil
	}
	if s.stream && s.pos%s.rowBytes != 0 {
		s.asm.have++ // a row that is there in part
		s.placed.Inc()
		s.short.Inc()
	}
	end := s.pos
	s.asm.end(func(from, to uint64) {
		if s.missing.Add(to - from); !s.stream {
			clear(s.buf[int(from)*s.rowBytes : int(to)*s.rowBytes])
		}
	})
	if s.stream {
		clear(s.buf[end:])
	}
	s.buf, s.pos = nil, 0
	s.filled.Set(0)
	err := s.st.publish(s.known.end(s.published.Load()+1), s.known.rows)
	s.known.reset()
	if err != nil {
		return err
	}
	s.published.Inc()
	return nil
}

// Close implements engine.Consumer. It waits a while for peers to let go of tensors.
func (s *sink) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.close(ctx)
}

func (s *sink) close(ctx context.Context) error {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.buf = nil
	s.mu.Unlock()
	return s.st.close(ctx)
}

// Report implements Reporter.
func (s *sink) Report(out *Snapshot) {
	s.c.Report(out)
	out.Tensor = &TensorSnapshot{Name: s.o.Name, Tensor: s.o.Desc.String(), Generations: s.published.Load(),
		Rows: s.placed.Load(), Missing: s.missing.Load(),
		Short: s.short.Load(), Bytes: s.bytes.Load(), Filled: s.filled.Load(), Of: s.o.Desc.Shape[0],
		Waits: s.st.waits.Load(), Batches: s.known.snapshot()}
}
