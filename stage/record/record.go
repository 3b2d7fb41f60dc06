package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/filter"
	"github.com/penstock-io/penstock/packet/pcap"
	"github.com/penstock-io/penstock/stage/reorder"
)

// MinBytes is the least of Options.MaxBytes.
const MinBytes = 64 << 10

const (
	chunkSize = 1 << 20
	chunks    = 16
	flushEach = 500 * time.Millisecond // so that nothing older than a second is missing
	lookEach  = 10 * time.Millisecond  // at the counts of the interface
	overhead  = 4096                   // at most, for the header of a file, its statistics, and comments
)

// CloseLimit is how long who has no context waits for a disk in Close.
const CloseLimit = 10 * time.Second

// A chunk is a part of a file.
type chunk struct {
	b       []byte
	region  *mem.Region // of b; nil: it is the process's own
	packets int
	kind    *batchKind // of batches, which about has
	about   []about
	// The first packet, whose header the writer makes again when the chunk before was lost.
	first    pcap.Packet
	firstEnd int
	// end says that the file ends behind the chunk, and starts that one begins with it, of a ring:
	// at is when, and dropped and lost are what was lost before.
	end, starts bool
	at, last    time.Time // of its packets
	dropped     uint64
	filtered    uint64 // before
	lost        [NumLosses]uint64
}

// A Recorder writes packets to files. Add is called by one goroutine at a time, the other methods
// by any.
type Recorder struct {
	o    Options
	form pcap.Format

	free, full chan *chunk
	stop, done chan struct{} // done: the writer has ended
	clock      sync.WaitGroup
	once       sync.Once

	mu      sync.Mutex
	cur     *chunk // nil: the next packet begins one
	size    int64  // bytes of the file so far, with cur
	inFile  uint64 // packets, likewise
	due     bool   // the file has to end, for which there was no chunk
	queued  uint64 // packets that the writer has not written
	closed  bool
	late    bool // Close did not wait for the writer
	ring    ring
	now     time.Time // of the last burst or look
	loads   loads
	regions []*mem.Region
	kind    *batchKind        // of the batches; nil: there was none
	limit   uint64            // packets of a file; 0: none
	refused error             // why there are packets that the format cannot hold; nil: there are none
	gap     [NumLosses]uint64 // lost since the last packet
	// What the interface had lost at the last look, and what it lost since the last packet.
	seen, missed uint64
	looked       time.Time
	stats        Stats
	filter       *filter.Filter // nil: none
	ended        bool           // by Limits
	ends         uint64         // files that have an end
	whole        []byte         // a packet of several segments, for the filter

	files *files // of the writer
	up    uploads
}

// New opens the first file, and before that asks Options.Upload.
func New(o Options) (*Recorder, error) {
	n := chunks + o.Ring.chunks()
	r := &Recorder{o: o, free: make(chan *chunk, n), full: make(chan *chunk, n), stop: make(chan struct{}),
		done: make(chan struct{})}
	switch o.Format {
	case PcapNG, Raw, NPY, Safetensors:
	case Pcap:
		r.form = pcap.Pcap
	default:
		return nil, fmt.Errorf("record: format %q: expected %s, %s, %s, %s or %s", o.Format, PcapNG, Pcap, Raw, NPY,
			Safetensors)
	}
	if r.limit = o.MaxPackets; o.Format == Safetensors && (r.limit == 0 || r.limit > tableMost) {
		r.limit = tableMost
	}
	if o.MaxBytes != 0 && o.MaxBytes < MinBytes || o.Every < 0 || o.Keep < 0 {
		return nil, fmt.Errorf("record: files of %d bytes, every %v, %d bytes to keep: expected at least %d, and "+
			"nothing negative", o.MaxBytes, o.Every, o.Keep, MinBytes)
	}
	if err := o.Ring.check(&o); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	r.up = uploads{r: r, wake: make(chan struct{}, 1)}
	var err error
	if o.Filter != "" {
		r.o.Interface.Filter = o.Filter
		if r.filter, err = filter.Compile(o.Filter, o.Interface.Link); err != nil {
			return nil, fmt.Errorf("record: %w", err)
		}
	}
	if o.Upload != nil {
		err, r.stats.Uploads.To = o.Upload.Check(), o.Upload.String()
	}
	if err == nil {
		r.files, err = newFiles(r)
	}
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	if o.Upload != nil {
		r.up.end.Go(r.up.loop)
	}
	for range n {
		c := &chunk{}
		if n == chunks {
			c.b = make([]byte, 0, chunkSize)
		}
		r.free <- c
	}
	r.now, r.seen = time.Now(), o.dropped()
	r.looked = r.now
	r.clock.Go(r.tick)
	go r.write()
	return r, nil
}

// write writes chunks until Close.
func (r *Recorder) write() {
	defer close(r.done)
	for c := range r.full {
		r.files.write(c)
		c.reset()
		r.free <- c
	}
	r.files.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.regions {
		r.stats.Err = errors.Join(r.stats.Err, x.Close())
	}
	r.regions = nil
}

func (c *chunk) reset() { *c = chunk{b: c.b[:0], region: c.region, about: c.about[:0]} }

// tick flushes chunks, and ends files by the clock.
func (r *Recorder) tick() {
	next := r.o.nextEnd(time.Now())
	t := time.NewTicker(flushEach)
	defer t.Stop()
	for {
		var rotate <-chan time.Time
		if !next.IsZero() {
			rotate = time.After(time.Until(next))
		}
		select {
		case <-r.stop:
			return
		case <-t.C:
			r.mu.Lock()
			r.now = time.Now()
			r.look()
			if r.due || r.over() {
				r.endFile()
			}
			if !r.idle() || r.stale() {
				r.send()
			}
			r.evict()
			r.mu.Unlock()
		case <-rotate:
			r.Rotate() // there is no ring
			next = r.o.nextEnd(time.Now())
		}
	}
}

// nextEnd is when the file of now ends by the clock.
func (o *Options) nextEnd(now time.Time) time.Time {
	if o.Every == 0 {
		return time.Time{}
	}
	midnight := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	return midnight.Add(now.Sub(midnight).Truncate(o.Every) + o.Every)
}

// Rotate ends the file, and begins another one. With a ring it has it written.
func (r *Recorder) Rotate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
	case r.o.Ring.zero():
		r.endFile()
	default:
		r.now = time.Now()
		r.trigger()
	}
}

// endFile hands over the end of the file. While all chunks wait to be written the end is due.
func (r *Recorder) endFile() {
	if r.ended {
		return
	}
	r.size, r.inFile = 0, 0
	if r.due = !r.begin(); r.due {
		return
	}
	r.cur.end = true
	r.send()
	if r.ends++; r.ends == r.o.Files {
		r.finish(nil)
	}
	r.ring.until = time.Time{}
}

// begin makes sure that there is a chunk.
func (r *Recorder) begin() bool {
	if r.cur != nil {
		return true
	}
	g := &r.ring
	if len(g.spare) == 0 {
		select {
		case c := <-r.free:
			g.spare = append(g.spare, c)
		default:
			if !r.idle() || len(g.chunks) == 0 {
				return false
			}
			r.drop()
		}
	}
	last := len(g.spare) - 1
	c := g.spare[last]
	r.cur, g.spare = c, g.spare[:last]
	if c.b == nil {
		c.b = make([]byte, 0, chunkSize)
	}
	c.starts, g.starts = g.starts, false
	c.at, c.dropped, c.lost, c.filtered = r.now, r.seen-r.missed, r.stats.Lost, r.stats.Filtered
	for l, n := range r.gap {
		c.lost[l] -= n
	}
	return true
}

// send hands the chunk to the writer, for all of which there is room, or puts it into the ring.
func (r *Recorder) send() {
	r.join()
	c := r.cur
	if c == nil {
		return
	}
	r.cur, c.last = nil, r.now
	if r.idle() {
		r.ring.chunks = append(r.ring.chunks, c)
		r.evict()
		return
	}
	r.queued += uint64(c.packets)
	r.full <- c
}

// look asks what the interface has lost. The first loss has a ring written.
func (r *Recorder) look() {
	n := r.o.dropped()
	lost := n > r.seen
	r.missed += n - r.seen
	r.seen, r.looked = n, r.now
	if lost && r.idle() && !r.ring.lost {
		r.ring.lost = true
		r.trigger()
	}
}

func (o *Options) dropped() uint64 {
	if o.Dropped == nil {
		return 0
	}
	return o.Dropped()
}

// Add records the packets of a burst, which it leaves in there.
func (r *Recorder) Add(b *burst.Burst) { r.AddFrom(b, 0) }

// AddFrom records packet from of a burst and those behind it, which it leaves in there.
func (r *Recorder) AddFrom(b *burst.Burst, from int) {
	b.Fetch()
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now = now; now.Sub(r.looked) >= lookEach {
		r.look()
	}
	if r.over() {
		r.endFile()
	}
	for i := from; i < b.Len(); i++ {
		p := pcap.Packet{Captured: b.PacketLen(i), Direction: pcap.Inbound}
		if b.Flags(i)&burst.Outgoing != 0 {
			p.Direction = pcap.Outbound
		}
		p.Length = max(p.Captured, b.WireLen(i))
		var ok bool
		if p.Time, ok = b.Time(i); !ok {
			p.Time = now.UnixNano()
		}
		r.add(b, i, &p)
	}
	r.join()
	if r.o.To != nil && len(r.full) == 0 {
		r.send() // the reader waits for it
	}
}

func (r *Recorder) add(b *burst.Burst, i int, p *pcap.Packet) {
	if r.ended {
		r.stats.Beyond++
		return
	}
	batch := reorder.Of(b, i)
	switch {
	case r.o.Format.Batches():
		if err := r.fits(b, i, batch); err != nil {
			r.refuse(err)
			return
		}
	case batch != nil && r.o.Format != Raw:
		r.refuse(errBatch)
		return
	}
	far, isFar := hidden(b, i)
	if isFar && (far.Region.Mover() == nil || r.filter != nil) { // which the processor computes
		r.lose(Unreadable)
		return
	}
	if !r.matches(b, i, p) {
		r.stats.Filtered++
		return
	}
	if r.o.SnapLen > 0 {
		p.Captured = min(p.Captured, r.o.SnapLen)
	}
	r.explain(p)
	n := p.Captured
	if r.o.Format.capture() {
		p.Captured = min(p.Captured, pcap.SnapLen)
		n = r.form.Size(p)
	}
	if r.due || r.o.MaxBytes > 0 && r.size > 0 && overhead+r.size+int64(n) > r.o.MaxBytes {
		r.endFile()
	}
	if r.cur != nil && len(r.cur.b)+n > chunkSize {
		r.send()
	}
	if r.due || !r.begin() {
		r.lose(DiskSlow)
		return
	}
	if isFar {
		if ok, err := r.pin(far.Region.Mover(), n); err != nil {
			r.refuse(err)
			return
		} else if !ok {
			r.lose(DiskSlow)
			return
		}
		if l := &r.loads; len(l.moves) == 0 {
			l.bytes, l.packets = len(r.cur.b), r.cur.packets
		}
	}
	c := r.cur
	if c.packets == 0 {
		c.first = *p
	}
	if r.o.Format.capture() {
		c.b = r.form.EndPacket(r.packetBytes(r.form.AppendPacket(c.b, p), b, i, p.Captured), p)
	} else {
		c.b = r.packetBytes(c.b, b, i, n)
	}
	if r.o.Format.Batches() {
		c.kind = r.kind
		c.about = append(c.about, about{batch.ID, int64(batch.Packets), batch.First, batch.Last})
	}
	if c.packets++; c.packets == 1 {
		c.firstEnd = len(c.b)
	}
	r.size += int64(n)
	r.stats.Taken++
	if r.stats.Taken == r.o.Count {
		r.finish(nil)
	}
	if r.idle() {
		r.stats.Held++
	}
	r.gap, r.missed = [NumLosses]uint64{}, 0
	if r.inFile++; r.inFile == r.limit {
		r.endFile()
	}
}

// matches reports whether a packet matches the filter.
func (r *Recorder) matches(b *burst.Burst, i int, p *pcap.Packet) bool {
	if r.filter == nil {
		return true
	}
	var frame []byte
	if b.Segments(i) == 1 {
		frame = b.Bytes(i, 0)
	} else {
		r.whole = r.packetBytes(r.whole[:0], b, i, min(p.Captured, pcap.SnapLen))
		frame = r.whole
	}
	return r.filter.Match(frame, p.Length, p.Direction == pcap.Outbound)
}

// packetBytes appends the first n bytes of a packet.
func (r *Recorder) packetBytes(to []byte, b *burst.Burst, i, n int) []byte {
	for k := 0; n > 0; k++ {
		part := b.Bytes(i, k)
		if part == nil {
			g := b.Segment(i, k)
			m := min(int(g.Len), n)
			if m > 0 {
				to = r.load(to, g, m)
			}
			n -= m
			continue
		}
		part = part[:min(len(part), n)]
		to = append(to, part...)
		n -= len(part)
	}
	return to
}

// explain puts what was lost before a packet into it.
func (r *Recorder) explain(p *pcap.Packet) {
	if r.missed > 0 {
		p.Dropped, p.Why = r.missed, fmt.Sprintf("interface: %d", r.missed)
	}
	describe(p, &r.gap)
}

// describe adds losses to a packet.
func describe(p *pcap.Packet, lost *[NumLosses]uint64) {
	for l, n := range lost {
		if n == 0 {
			continue
		}
		p.Dropped += n
		if p.Why != "" {
			p.Why += ", "
		}
		p.Why += fmt.Sprintf("%v: %d", Loss(l), n)
	}
}

// errBatch is why a batch is lost.
var errBatch = fmt.Errorf("a batch of the stage reorder is no packet: record it with the format %s", Raw)

// refuse loses a packet that is not to be had in this format, and says why.
func (r *Recorder) refuse(why error) {
	r.refused = why
	r.lose(Unreadable)
}

func (r *Recorder) lose(l Loss) {
	r.gap[l]++
	r.stats.Lost[l]++
}

// Stats returns what the recorder has done so far.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	if s.Err == nil {
		s.Err = r.refused
	}
	return s
}

// Close writes what is there and ends the file; a ring it throws away. It returns Stats.Err. Add is
// not called again. Uploads go on: see Uploaded. When the context ends first, what is not written
// counts as DiskSlow, and the file keeps the suffix .partial.
func (r *Recorder) Close(ctx context.Context) error {
	r.once.Do(func() {
		close(r.stop)
		r.clock.Wait()
		r.mu.Lock()
		r.closed = true
		if !r.idle() {
			r.send()
		}
		close(r.full)
		r.mu.Unlock()
	})
	select {
	case <-r.done:
	case <-ctx.Done():
		r.abandon()
	}
	return r.Stats().Err
}

// abandon counts as lost what the writer has not written.
func (r *Recorder) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.late {
		return
	}
	r.late = true
	s := &r.stats
	path := cmp.Or(s.File, r.o.Name)
	s.Lost[DiskSlow] += r.queued
	s.Taken -= r.queued
	s.Err = fmt.Errorf("%s is not whole: the disk was too slow for the last %d packets, which are lost: %w",
		path+partial, r.queued, os.ErrDeadlineExceeded)
}
