package xsk

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
)

// flow sends numbered packets of given lengths from one socket to another one and accounts for
// every chunk of both.
type flow struct {
	t        testing.TB
	from, to *Socket
	more     []*Socket       // also receivers, at the same queue as to
	count    int             // packets
	size     func(i int) int // of packet i, at least 32
	seen     func(i, receiver int)
	window   int          // packets under way at most; 0: 64
	step     func()       // what else has to go on
	raw      bool         // chunks go to the fill ring by the addresses that came
	look     func(d Desc) // at each descriptor that came
	busy     bool         // the receiver calls the kernel whether it asks for that or not
	lossy    bool         // packets may be lost: they are sent again; and there may be others
	each     bool         // a chunk goes back to the fill ring of the queue that it came from, not to that of to

	free   []uint64 // of from's umem: chunks that the sender has
	spare  []uint64 // of to's umem: chunks that the receiver has
	out    int      // chunks that were sent and have not come back
	sent   int
	got    []bool
	filled int // chunks of to's umem that are in the fill ring from before
	chains int // packets of several chunks that came
	n      int // packets that came
	parts  [][]byte
	descs  []Desc
	repeat []int // packets to be sent again
	again  int   // of them were sent
	quiet  int   // looks at the receiver that found nothing, in a row
}

func chunks(u *Umem, from, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(from+i) * uint64(u.cfg.ChunkSize)
	}
	return out
}

func fillPattern(b []byte, i int) {
	copy(b, []byte{2, 0x77, 0, 0, 0, 2, 2, 0x77, 0, 0, 0, 1, 0x88, 0xb5})
	binary.BigEndian.PutUint64(b[14:], uint64(i))
	for k := 22; k < len(b); k++ {
		b[k] = byte(i*7 + k)
	}
}

func (f *flow) check(b []byte) int {
	f.t.Helper()
	i := int(binary.BigEndian.Uint64(b[14:]))
	if i < 0 || i >= f.count || f.got[i] {
		f.t.Fatalf("packet %d of %d: unknown or twice", i, f.count)
	}
	f.got[i] = true
	if len(b) != f.size(i) {
		f.t.Fatalf("packet %d has %d bytes: expected %d", i, len(b), f.size(i))
	}
	for k := 22; k < len(b); k++ {
		if b[k] != byte(i*7+k) {
			f.t.Fatalf("packet %d: byte %d is %#x: expected %#x", i, k, b[k], byte(i*7+k))
		}
	}
	return i
}

// send puts as many packets into the ring as there is room and there are chunks for.
func (f *flow) send() {
	u := f.from.queue.umem
	f.descs = f.descs[:0]
	for len(f.repeat) > 0 || f.sent < f.count && f.sent-f.n < f.window {
		i := f.sent
		if len(f.repeat) > 0 {
			i = f.repeat[0]
		}
		size := f.size(i)
		need := (size + u.cfg.ChunkSize - 1) / u.cfg.ChunkSize
		if len(f.descs)+need > f.from.tx.Room() || need > len(f.free) {
			break
		}
		whole := make([]byte, size)
		fillPattern(whole, i)
		for k := 0; k < need; k++ {
			d := Desc{Addr: f.free[len(f.free)-1], Len: uint32(min(u.cfg.ChunkSize, len(whole)))}
			f.free = f.free[:len(f.free)-1]
			if k < need-1 {
				d.Options = More
			}
			copy(u.Data(d), whole)
			whole = whole[d.Len:]
			f.descs = append(f.descs, d)
		}
		f.out += need
		if len(f.repeat) > 0 {
			f.repeat = f.repeat[1:]
			f.again++
		} else {
			f.sent++
		}
	}
	if n := f.from.tx.Put(f.descs); n != len(f.descs) {
		f.t.Fatalf("put %d of %d descriptors where there was room", n, len(f.descs))
	}
	if f.from.NeedWakeTx() {
		switch e := f.from.WakeTx(); e {
		case 0, sys.EAGAIN, sys.EBUSY, sys.ENOBUFS:
		default:
			f.t.Fatalf("wake: %v", e)
		}
	}
	var back [64]uint64
	for {
		n := f.from.queue.done.Get(back[:])
		if n == 0 {
			break
		}
		f.out -= n
		for _, a := range back[:n] {
			f.free = append(f.free, u.Chunk(a))
		}
	}
}

// receive takes what has come and fills the fill ring.
func (f *flow) receive() {
	u := f.to.queue.umem
	for r, s := range append([]*Socket{f.to}, f.more...) {
		f.drain(u, s, r)
	}
	n := f.to.queue.fill.Put(f.spare)
	f.spare = f.spare[n:]
	if f.busy || f.to.queue.fill.NeedWakeup() {
		f.to.WakeRx()
	}
}

func (f *flow) drain(u *Umem, s *Socket, r int) {
	var in [64]Desc
	for {
		n := s.rx.Get(in[:])
		if n == 0 {
			break
		}
		for _, d := range in[:n] {
			b := u.Data(d)
			if b == nil {
				f.t.Fatalf("descriptor %+v is outside", d)
			}
			if f.look != nil {
				f.look(d)
			}
			f.parts = append(f.parts, append([]byte(nil), b...))
			if f.each {
				s.queue.fill.Put([]uint64{u.Chunk(d.Addr)})
			} else if f.raw {
				f.spare = append(f.spare, d.Addr)
			} else {
				f.spare = append(f.spare, u.Chunk(d.Addr))
			}
			if d.Options&More != 0 {
				continue
			}
			if len(f.parts) > 1 {
				f.chains++
			}
			var whole []byte
			for _, p := range f.parts {
				whole = append(whole, p...)
			}
			f.parts = f.parts[:0]
			if f.lossy && (len(whole) < 22 || whole[12] != 0x88 || whole[13] != 0xb5) {
				continue
			}
			if i := int(binary.BigEndian.Uint64(whole[14:])); f.lossy && i >= 0 && i < f.count && f.got[i] {
				continue // it was late, not lost
			}
			i := f.check(whole)
			if f.seen != nil {
				f.seen(i, r)
			}
			f.n++
		}
	}
}

// run sends and receives everything. free and spare are the chunks of the two sides.
func (f *flow) run() {
	f.t.Helper()
	f.got = make([]bool, f.count)
	if f.window == 0 {
		f.window = 64
	}
	total, spare := len(f.free), len(f.spare)+f.filled
	f.receive()
	for deadline := ctx(f.t); f.n < f.count || f.out > 0; {
		if deadline.Err() != nil {
			f.t.Fatalf("%d of %d packets sent, %d came, %d chunks do not come back", f.sent, f.count, f.n, f.out)
		}
		f.send()
		if f.step != nil {
			f.step()
		}
		f.receive()
		waitABit()
		if f.lossy {
			f.patience()
		}
	}
	var s Statistics
	if err := f.to.Statistics(&s); err != nil || s.RxDropped+s.RxRingFull+s.RxInvalidDescs != 0 {
		f.t.Errorf("receiver: %+v, %v", s, err)
	}
	if err := f.from.Statistics(&s); err != nil || s.TxInvalidDescs != 0 {
		f.t.Errorf("sender: %+v, %v", s, err)
	}
	f.filled = spare - len(f.spare)
	if pending := f.to.queue.fill.Pending(); len(f.free) != total || !f.each && !f.to.queue.zeroCopy &&
		pending != f.filled {
		f.t.Errorf("%d of %d chunks of the sender; %d and %d in the fill ring of %d of the receiver", len(f.free),
			total, len(f.spare), pending, spare)
	}
	if len(distinct(f.t, f.free)) != total {
		f.t.Error("a chunk of the sender came back twice")
	}
	distinct(f.t, f.spare)
}

// patience sends again what is missing when nothing has come for a while.
func (f *flow) patience() {
	if i, _ := sys.PollIn(10, f.to.fd); i >= 0 || f.n == f.sent {
		f.quiet = 0
		return
	}
	if f.quiet++; f.quiet < 100 || f.out > 0 {
		return
	}
	f.quiet = 0
	for i, got := range f.got[:f.sent] {
		if !got {
			f.repeat = append(f.repeat, i)
		}
	}
}

func distinct(t testing.TB, list []uint64) map[uint64]bool {
	m := map[uint64]bool{}
	for _, a := range list {
		if m[a] {
			t.Errorf("chunk %#x is there twice", a)
		}
		m[a] = true
	}
	return m
}

func fixed(n int) func(int) int { return func(int) int { return n } }

func TestModes(t *testing.T) {
	for _, c := range []struct {
		chunk      int
		unaligned  bool
		generic    bool
		needWakeup bool
		page       int
		mode       Mode
		headroom   int
	}{
		{4096, false, false, true, 0, Auto, 0},
		{4096, false, false, false, 0, Copy, 0},
		{2048, false, true, true, 0, Auto, 64},
		{2048, true, false, true, 0, Copy, 0},
		{3000, true, true, false, 0, Auto, 128},
		{4096, false, false, true, 2 << 20, Copy, 0},
		{4096, true, false, true, 2 << 20, Copy, 32},
		{2048, false, false, true, 1 << 30, Copy, 0},
	} {
		if _, err := sys.HugePageState(c.page, -1); c.page > 2<<20 && err != nil {
			t.Logf("%+v cannot be on this processor: %v", c, err)
			continue
		}
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			e := veth(t, netns.LinkSpec{MTU: 1500})
			var u [2]*Umem
			var q [2]*Queue
			var s [2]*Socket
			for i := range 2 {
				size := 256 * c.chunk
				if c.page > 0 {
					size = max(c.page, 2<<20)
				} else {
					size = (size + 4095) &^ 4095
				}
				var err error
				if i == 1 && c.page > 0 { // huge pages are dear: both ends use one umem
					u[1] = u[0]
				} else if u[i], err = NewUmem(UmemConfig{Memory: pages(t, size, c.page), PageSize: c.page,
					ChunkSize: c.chunk, Unaligned: c.unaligned, Headroom: c.headroom}); err != nil {
					t.Fatal(err)
				}
				q[i] = e.queue(t, i, u[i], QueueConfig{Mode: c.mode, NeedWakeup: c.needWakeup, FillSize: 64,
					CompletionSize: 64})
				s[i] = e.socket(t, i, q[i], SocketConfig{RxSize: 64, TxSize: 64})
				if zc, why := q[i].ZeroCopy(); zc || why == nil {
					t.Errorf("veth is in zero-copy mode: %t, %v", zc, why)
				}
			}
			put(t, e.program(t, 1, -1, false, c.generic), 0, s[1])
			f := &flow{t: t, from: s[0], to: s[1], count: 3000, size: func(i int) int {
				return 32 + i%1400
			}, free: chunks(u[0], 0, 64), spare: chunks(u[1], 100, 100), raw: c.needWakeup}
			f.run()
		})
	}
}
