package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// Counts is what became of the packets that a host sent over an emulated link.
type Counts struct {
	Sent, Lost, Overflowed, Cut uint64 // Lost: by Loss; Overflowed: the queue was full; Cut: the link was Down
}

// emulated is a link between two tap devices that this process carries, for a kernel without netem.
type emulated struct {
	cut   atomic.Bool
	files []*os.File
	end   chan struct{} // closed by close
	wg    sync.WaitGroup
}

// wire is one direction. One goroutine reads, another writes.
type wire struct {
	spec LinkSpec
	link *emulated
	rng  *rand.Rand
	next time.Time // when the last packet in the queue has left it

	sent, lost, overflowed, cut atomic.Uint64
}

// frame is what is to be written, with its header, and when.
type frame struct {
	at time.Time
	b  []byte
}

const (
	defaultQueue = 256 << 10
	maxFrames    = 1 << 16          // under way
	maxRun       = time.Millisecond // of segments that arrive as one frame
	maxFrame     = sys.TapHeader + ethernetLen + 1<<16
	ethernetLen  = 14
)

// emulate joins two links by tap devices.
func (n *Net) emulate(a, b *Link) error {
	e := &emulated{end: make(chan struct{})}
	n.emulated = append(n.emulated, e)
	a.emulated, b.emulated = e, e
	for _, l := range []*Link{a, b} {
		err := l.Host().Do(func() error {
			f, err := sys.Tap(l.Name)
			if err == nil {
				e.files = append(e.files, f)
			}
			return err
		})
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			err = &MissingError{"TUN (/dev/net/tun, CONFIG_TUN)", err}
		}
		if err != nil {
			return fmt.Errorf("netns: %s: %w", l.Host(), err)
		}
		l.wire = newWire(l.spec, e)
		if err := l.Host().ip(fmt.Sprintf("link set %s mtu %d address %s", l.Name, l.MTU, l.MAC)); err != nil {
			return err
		}
	}
	e.carry(a.wire, e.files[0], e.files[1])
	e.carry(b.wire, e.files[1], e.files[0])
	return nil
}

func newWire(s LinkSpec, e *emulated) *wire {
	if s.Queue == 0 {
		s.Queue = defaultQueue
	}
	return &wire{spec: s, link: e, rng: rand.New(rand.NewPCG(s.Seed, uint64(s.MAC[5])))}
}

// carry begins to carry frames from one device to the other.
func (e *emulated) carry(w *wire, from, to *os.File) {
	frames := make(chan frame, maxFrames)
	e.wg.Go(func() {
		defer close(frames)
		for b := make([]byte, maxFrame); ; {
			n, err := from.Read(b)
			if err != nil { // closed
				return
			}
			for _, f := range w.admit(time.Now(), b[:n]) {
				select {
				case frames <- f:
				case <-e.end:
					return
				}
			}
		}
	})
	e.wg.Go(func() {
		t := time.NewTimer(0)
		defer t.Stop()
		for f := range frames {
			t.Reset(time.Until(f.at))
			select {
			case <-t.C:
			case <-e.end:
				return
			}
			to.Write(f.b) // a device that is down takes nothing
		}
	})
}

func (e *emulated) close() error {
	close(e.end)
	var err error
	for _, f := range e.files {
		err = errors.Join(err, f.Close())
	}
	e.wg.Wait()
	return err
}

// Counts says what became of the packets that the host sent; zero of a link that is not emulated.
func (l *Link) Counts() (c Counts) {
	if w := l.wire; w != nil {
		c = Counts{w.sent.Load(), w.lost.Load(), w.overflowed.Load(), w.cut.Load()}
	}
	return c
}

// admit decides what becomes of a frame that the host sends now. b is the caller's again when admit
// returns. A frame of several TCP segments is that many packets: those that follow one another and
// arrive together stay one frame.
func (w *wire) admit(now time.Time, b []byte) (out []frame) {
	s := segmentsOf(b)
	from := 0 // of the run of segments that arrive
	var began time.Time
	flush := func(to int) {
		if from < to {
			out = append(out, frame{w.next.Add(w.spec.Delay), s.run(from, to)})
		}
		from = to + 1
	}
	for i := range s.n {
		w.sent.Add(1)
		if !w.pass(now, s.wireLen(i)) {
			flush(i)
			continue
		}
		if from == i {
			began = w.next
		} else if w.next.Sub(began) > maxRun {
			out = append(out, frame{w.next.Add(w.spec.Delay), s.run(from, i+1)})
			from = i + 1
		}
	}
	flush(s.n)
	return out
}

// pass decides about one packet of so many bytes, and gives it its time on the wire.
func (w *wire) pass(now time.Time, bytes int) bool {
	if w.link.cut.Load() {
		w.cut.Add(1)
		return false
	}
	if w.rng.Float64() < w.spec.Loss {
		w.lost.Add(1)
		return false
	}
	if w.next.Before(now) {
		w.next = now
	}
	if w.spec.Rate == 0 {
		return true
	}
	if waiting := w.next.Sub(now).Seconds() * float64(w.spec.Rate) / 8; waiting > float64(w.spec.Queue) {
		w.overflowed.Add(1)
		return false
	}
	w.next = w.next.Add(time.Duration(float64(bytes) * 8e9 / float64(w.spec.Rate)))
	return true
}

// segments are the packets of which a frame consists: one, or those of a TCP stream over IPv4 that
// a device would make of it.
type segments struct {
	b       []byte
	n       int
	head    int // bytes before the payload; 0 where n is 1
	segment int // bytes of payload of each but the last
}

// Fields of struct virtio_net_hdr (linux/virtio_net.h).
const (
	gsoType  = 1
	gsoSize  = 4
	gsoTCPv4 = 1
	gsoECN   = 0x80
)

func segmentsOf(b []byte) segments {
	one := segments{b: b, n: 1}
	const ip = sys.TapHeader + ethernetLen
	if len(b) < ip+20 || b[gsoType]&^gsoECN != gsoTCPv4 {
		return one
	}
	tcp := ip + int(b[ip]&15)*4
	if len(b) < tcp+20 {
		return one
	}
	s := segments{b: b, head: tcp + int(b[tcp+12]>>4)*4, segment: int(binary.NativeEndian.Uint16(b[gsoSize:]))}
	if s.segment == 0 || s.head >= len(b) {
		return one
	}
	s.n = (len(b) - s.head + s.segment - 1) / s.segment
	return s
}

// wireLen is the length of packet i as a frame.
func (s *segments) wireLen(i int) int {
	if s.n == 1 {
		return len(s.b) - sys.TapHeader
	}
	return s.head - sys.TapHeader + min(s.segment, len(s.b)-s.head-i*s.segment)
}

// run is a frame of packets from to to-1 alone.
func (s *segments) run(from, to int) []byte {
	if to-from == s.n {
		return append([]byte(nil), s.b...)
	}
	out := append([]byte(nil), s.b[:s.head]...)
	out = append(out, s.b[s.head+from*s.segment:min(s.head+to*s.segment, len(s.b))]...)
	if to-from == 1 {
		out[gsoType], out[gsoSize], out[gsoSize+1] = 0, 0, 0
	}
	ip := out[sys.TapHeader+ethernetLen:]
	tcp := ip[int(ip[0]&15)*4:]
	add16 := func(b []byte, n int) { binary.BigEndian.PutUint16(b, binary.BigEndian.Uint16(b)+uint16(n)) }
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	add16(ip[4:], from) // identification
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^sum16(ip[:len(ip)-len(tcp)]))
	binary.BigEndian.PutUint32(tcp[4:], binary.BigEndian.Uint32(tcp[4:])+uint32(from*s.segment))
	const fin, psh, cwr = 1, 8, 128
	if to < s.n {
		tcp[13] &^= fin | psh
	}
	if from > 0 {
		tcp[13] &^= cwr
	}
	// The checksum is the device's work: until then its field has the sum of the pseudo-header.
	pseudo := append([]byte{0, 6, byte(len(tcp) >> 8), byte(len(tcp))}, ip[12:20]...)
	binary.BigEndian.PutUint16(tcp[16:], sum16(pseudo))
	return out
}

// sum16 is the one's complement sum of big-endian words.
func sum16(b []byte) uint16 {
	s := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
