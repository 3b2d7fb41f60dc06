package record

import (
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/pcap"
)

// A Format is what a file holds.
type Format string

// The formats. Raw is the bytes of the packets, one behind the other.
const (
	PcapNG Format = "pcapng"
	Pcap   Format = "pcap"
	Raw    Format = "raw"
)

// A Loss is a reason for which a packet is not in a file.
type Loss uint8

// The losses.
const (
	DiskSlow   Loss = iota // all chunks wait to be written
	DiskFull               // no room, or the user's quota is used up
	DiskError              // another error of the file
	Unreadable             // in memory of an accelerator, or the packet is no frame
	NumLosses
)

var lossNames = [NumLosses]string{"disk-slow", "disk-full", "disk-error", "unreadable"}

// String is the loss as tables and comments show it.
func (l Loss) String() string { return lossNames[min(l, NumLosses-1)] }

// Options say what is recorded, and where. Name is required.
type Options struct {
	// Name is the name of the file, with the verbs %Y %m %d %H %M %S %j of strftime for the local
	// time at which it begins, and %% for a percent sign. When files are rotated, a name without
	// verbs gets a number before its extension.
	Name   string
	Format Format
	// Interface is what the files say of the origin of the packets.
	Interface pcap.Interface
	Direction pcap.Direction // of all packets

	// A file ends before it exceeds MaxBytes, and whenever the local time is a multiple of Every
	// since midnight, also without packets; 0: never for this reason.
	MaxBytes int64
	Every    time.Duration
	// Keep is how many bytes the files of this name may take together, those of earlier runs
	// included: the recorder removes the oldest. 0: all stay.
	Keep int64

	// Dropped returns how many packets the interface has lost so far; nil: that is not known.
	Dropped func() uint64
}

// Stats are what a Recorder has done so far.
type Stats struct {
	Files   uint64            // that are whole
	File    string            // that is being written
	Taken   uint64            // packets that are in a file, or wait to be written
	Packets uint64            // written
	Bytes   uint64            // of files
	Lost    [NumLosses]uint64 // packets
	Err     error             // of the last write if it failed, or of a file that is not whole
}

// MinBytes is the least of Options.MaxBytes.
const MinBytes = 64 << 10

const (
	chunkSize = 1 << 20
	chunks    = 16
	flushEach = 500 * time.Millisecond // so that nothing older than a second is missing
	lookEach  = 10 * time.Millisecond  // at the counts of the interface
	overhead  = 4096                   // at most, for the header of a file, its statistics, and comments
)

// A chunk is a part of a file.
type chunk struct {
	b       []byte
	packets int
	// The first packet, whose header the writer makes again when the chunk before was lost.
	first    pcap.Packet
	firstEnd int
	// end says that the file ends behind the chunk.
	end bool
}

// A Recorder writes packets to files. Add is called by one goroutine at a time, the other methods
// by any.
type Recorder struct {
	o    Options
	form pcap.Format

	free, full    chan *chunk
	stop          chan struct{}
	clock, writer sync.WaitGroup
	once          sync.Once

	mu     sync.Mutex
	cur    *chunk // nil: the next packet begins one
	size   int64  // bytes of the file so far, with cur
	due    bool   // the file has to end, for which there was no chunk
	closed bool
	gap    [NumLosses]uint64 // lost since the last packet
	// What the interface had lost at the last look, and what it lost since the last packet.
	seen, missed uint64
	looked       time.Time
	stats        Stats

	files *files // of the writer
}

// New opens the first file.
func New(o Options) (*Recorder, error) {
	r := &Recorder{o: o, free: make(chan *chunk, chunks), full: make(chan *chunk, chunks), stop: make(chan struct{})}
	switch o.Format {
	case PcapNG, Raw:
	case Pcap:
		r.form = pcap.Pcap
	default:
		return nil, fmt.Errorf("record: format %q: expected %s, %s or %s", o.Format, PcapNG, Pcap, Raw)
	}
	if o.MaxBytes != 0 && o.MaxBytes < MinBytes || o.Every < 0 || o.Keep < 0 {
		return nil, fmt.Errorf("record: files of %d bytes, every %v, %d bytes to keep: expected at least %d, and "+
			"nothing negative", o.MaxBytes, o.Every, o.Keep, MinBytes)
	}
	var err error
	if r.files, err = newFiles(r); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	for range chunks {
		r.free <- &chunk{b: make([]byte, 0, chunkSize)}
	}
	r.looked, r.seen = time.Now(), o.dropped()
	r.clock.Go(r.tick)
	r.writer.Go(func() {
		for c := range r.full {
			r.files.write(c)
			*c = chunk{b: c.b[:0]}
			r.free <- c
		}
		r.files.end()
	})
	return r, nil
}

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
			r.look(time.Now())
			if r.due {
				r.endFile()
			}
			r.send()
			r.mu.Unlock()
		case <-rotate:
			r.Rotate()
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

// Rotate ends the file, and begins another one.
func (r *Recorder) Rotate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.endFile()
	}
}

// endFile hands over the end of the file. While all chunks wait to be written the end is due.
func (r *Recorder) endFile() {
	r.size = 0
	if r.due = !r.begin(); r.due {
		return
	}
	r.cur.end = true
	r.send()
}

// begin makes sure that there is a chunk.
func (r *Recorder) begin() bool {
	if r.cur == nil {
		select {
		case r.cur = <-r.free:
		default:
			return false
		}
	}
	return true
}

// send hands the chunk to the writer. There is room for all chunks.
func (r *Recorder) send() {
	if r.cur != nil {
		r.full <- r.cur
		r.cur = nil
	}
}

// look asks what the interface has lost.
func (r *Recorder) look(now time.Time) {
	n := r.o.dropped()
	r.missed += n - r.seen
	r.seen, r.looked = n, now
}

func (o *Options) dropped() uint64 {
	if o.Dropped == nil {
		return 0
	}
	return o.Dropped()
}

// Add records the packets of a burst, which it leaves in there.
func (r *Recorder) Add(b *burst.Burst) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.looked) >= lookEach {
		r.look(now)
	}
	for i := range b.Len() {
		p := pcap.Packet{Captured: b.PacketLen(i), Direction: r.o.Direction}
		p.Length = max(p.Captured, b.WireLen(i))
		var ok bool
		if p.Time, ok = b.Time(i); !ok {
			p.Time = now.UnixNano()
		}
		r.add(b, i, &p)
	}
}

func (r *Recorder) add(b *burst.Burst, i int, p *pcap.Packet) {
	for k := range b.Segments(i) {
		if b.Bytes(i, k) == nil && b.Segment(i, k).Len > 0 {
			r.lose(Unreadable)
			return
		}
	}
	if p.Captured > pcap.SnapLen && r.o.Format != Raw {
		p.Captured = pcap.SnapLen
	}
	r.explain(p)
	n := p.Captured
	if r.o.Format != Raw {
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
	c := r.cur
	if c.packets == 0 {
		c.first = *p
	}
	if r.o.Format == Raw {
		c.b = packetBytes(c.b, b, i, n)
	} else {
		c.b = r.form.EndPacket(packetBytes(r.form.AppendPacket(c.b, p), b, i, p.Captured), p)
	}
	if c.packets++; c.packets == 1 {
		c.firstEnd = len(c.b)
	}
	r.size += int64(n)
	r.stats.Taken++
	r.gap, r.missed = [NumLosses]uint64{}, 0
}

// packetBytes appends the first n bytes of a packet.
func packetBytes(to []byte, b *burst.Burst, i, n int) []byte {
	for k := 0; n > 0; k++ {
		part := b.Bytes(i, k)
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

func (r *Recorder) lose(l Loss) {
	r.gap[l]++
	r.stats.Lost[l]++
}

// Stats returns what the recorder has done so far.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Close writes what is there and ends the file. It returns Stats.Err. Add is not called again.
func (r *Recorder) Close() error {
	r.once.Do(func() {
		close(r.stop)
		r.clock.Wait()
		r.mu.Lock()
		r.closed = true
		r.send()
		close(r.full)
		r.mu.Unlock()
		r.writer.Wait()
	})
	return r.Stats().Err
}
