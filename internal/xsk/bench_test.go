package xsk

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
)

// BenchmarkRing is the cost of a descriptor that goes through a ring, both ends in one goroutine,
// by batch.
func BenchmarkRing(b *testing.B) {
	for _, batch := range []int{1, 16, 64} {
		m := newMemory(2048, 16)
		var p TxRing
		var c RxRing
		if p.open(m.b, 2048, m.off) != nil || c.open(m.b, 2048, m.off) != nil {
			b.Fatal("open")
		}
		descs := make([]Desc, batch)
		run := func(name string, fn func()) {
			b.Run(fmt.Sprintf("%s/batch=%d", name, batch), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; i < b.N; i += batch {
					fn()
				}
			})
		}
		run("copy", func() { p.Put(descs); c.Get(descs) })
		run("view", func() {
			for left := batch; left > 0; {
				room := p.Reserve(left)
				for i := range room {
					room[i] = Desc{Addr: uint64(i), Len: 64}
				}
				p.Submit(len(room))
				left -= len(room)
			}
			for {
				in := c.Peek(batch)
				if len(in) == 0 {
					break
				}
				for i := range in {
					descs[i].Addr += in[i].Addr
				}
				c.Release(len(in))
			}
		})
		run("fill", func() { // of addresses, as a forwarder does for each packet
			in := c.Peek(batch)
			c.Release(len(in))
			p.Put(descs)
		})
	}
}

// benchLink are two ends of a veth pair in one process: host 0 sends, host 1 receives.
type benchLink struct {
	*ends
	u [2]*Umem
	q [2]*Queue
	s [2]*Socket
}

const benchRing, benchChunks = 2048, 8192

func newBenchLink(b *testing.B, size int) *benchLink {
	l := &benchLink{ends: veth(b, netns.LinkSpec{MTU: max(1500, size)})}
	for i := range 2 {
		var err error
		if l.u[i], err = NewUmem(UmemConfig{Memory: pages(b, benchChunks*4096, 0)}); err != nil {
			b.Fatal(err)
		}
		l.q[i] = l.queue(b, i, l.u[i], QueueConfig{NeedWakeup: true, MultiBuffer: size > 3000, FillSize: 2 * benchRing,
			CompletionSize: benchRing})
		l.s[i] = l.socket(b, i, l.q[i], SocketConfig{RxSize: benchRing, TxSize: benchRing})
	}
	put(b, l.program(b, 1, -1, size > 3000, false), 0, l.s[1])
	return l
}

// sender keeps the transmit ring of a socket full of one packet.
type sender struct {
	s     *Socket
	free  [][]Desc // packets
	descs []Desc
	back  []uint64
	parts int
	lost  int // parts that came back and belong to no whole packet yet
	wakes int
}

func newSender(s *Socket, size, packets int) *sender {
	u := s.queue.umem
	x := &sender{s: s, back: make([]uint64, 256), parts: (size + 4095) / 4096}
	next := uint64(0)
	for i := range packets {
		var p []Desc
		for left := size; left > 0; left -= 4096 {
			d := Desc{Addr: next, Len: uint32(min(left, 4096))}
			if left > 4096 {
				d.Options = More
			}
			clear(u.Data(d))
			p = append(p, d)
			next += 4096
		}
		fillPattern(u.Data(p[0]), i)
		x.free = append(x.free, p)
	}
	return x
}

// step sends a batch of up to n packets and takes completions. It returns how many it sent.
func (x *sender) step(n int) int {
	x.descs = x.descs[:0]
	n = min(n, len(x.free), x.s.tx.Room()/x.parts)
	for _, p := range x.free[len(x.free)-n:] {
		x.descs = append(x.descs, p...)
	}
	x.free = x.free[:len(x.free)-n]
	x.s.tx.Put(x.descs)
	if x.s.tx.Pending() > 0 && x.s.NeedWakeTx() {
		x.s.WakeTx()
		x.wakes++
	}
	k := x.s.queue.done.Get(x.back) + x.lost
	for ; k >= x.parts; k -= x.parts {
		x.free = x.free[:len(x.free)+1] // all packets are alike, and come back in order
	}
	x.lost = k
	return n
}

// BenchmarkVeth is what one thread can send and receive over a veth pair, both ends in it: a lower
// bound of each.
func BenchmarkVeth(b *testing.B) {
	for _, size := range []int{64, 1400, 8900} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l := newBenchLink(b, size)
			x := newSender(l.s[0], size, 1024)
			rx, fill := l.s[1].Rx(), l.q[1].Fill()
			fill.Put(chunks(l.u[1], 0, 2*benchRing))
			descs, addrs := make([]Desc, 64), make([]uint64, 64)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			got := 0
			for sent := 0; got < b.N; {
				if sent < b.N {
					sent += x.step(64)
				} else {
					x.step(0)
				}
				for {
					n := rx.Get(descs)
					for i, d := range descs[:n] {
						addrs[i] = l.u[1].Chunk(d.Addr)
						if d.Options&More == 0 {
							got++
						}
					}
					fill.Put(addrs[:n])
					if n == 0 {
						break
					}
				}
				if fill.NeedWakeup() {
					l.s[1].WakeRx()
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(got)/b.Elapsed().Seconds(), "packets/s")
			b.ReportMetric(float64(x.wakes)/float64(got), "calls/packet")
			var s Statistics
			if err := l.s[1].Statistics(&s); err != nil || s.RxDropped+s.RxRingFull != 0 {
				b.Errorf("%+v, %v", s, err)
			}
		})
	}
}

// BenchmarkSend is sending alone: the other end drops.
func BenchmarkSend(b *testing.B) {
	for _, size := range []int{64, 1400, 8900} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l := newBenchLink(b, size)
			l.s[1].Close()
			x := newSender(l.s[0], size, 1024)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for sent := 0; sent < b.N; {
				sent += x.step(64)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "packets/s")
			b.ReportMetric(float64(x.wakes)/float64(b.N), "calls/packet")
		})
	}
}

// BenchmarkForward is sending over one link, forwarding where the packet lies, and receiving over a
// second link, all in one thread.
func BenchmarkForward(b *testing.B) {
	for _, size := range []int{64, 1400, 8900} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			e := rails(b, 2, netns.LinkSpec{MTU: max(1500, size)})
			e2 := e.second()
			c := QueueConfig{NeedWakeup: true, MultiBuffer: size > 3000, FillSize: 2 * benchRing, Mode: Copy}
			sc := SocketConfig{RxSize: benchRing, TxSize: benchRing}
			um := func() *Umem {
				u, err := NewUmem(UmemConfig{Memory: pages(b, benchChunks*4096, 0)})
				if err != nil {
					b.Fatal(err)
				}
				return u
			}
			from := e.socket(b, 0, e.queue(b, 0, um(), c), sc)
			to := e2.socket(b, 0, e2.queue(b, 0, um(), c), sc)
			u := um()
			in := e.socket(b, 1, e.queue(b, 1, u, c), sc)
			out := e2.socket(b, 1, e2.queue(b, 1, u, c), sc)
			put(b, e.program(b, 1, -1, size > 3000, false), 0, in)
			put(b, e2.program(b, 0, -1, size > 3000, false), 0, to)
			in.queue.fill.Put(chunks(u, 0, 2*benchRing))
			to.queue.fill.Put(chunks(to.queue.umem, 0, 2*benchRing))
			x := newSender(from, size, 256)
			addrs, got := make([]uint64, 64), 0
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for sent := 0; got < b.N; {
				sent += x.step(min(64, b.N-sent))
				for {
					descs := in.rx.Peek(min(64, out.tx.Room()))
					for i := range descs {
						u.Data(descs[i])[0] = 2
					}
					k := out.tx.Put(descs)
					in.rx.Release(k)
					if k == 0 {
						break
					}
				}
				if out.tx.Pending() > 0 {
					out.WakeTx()
				}
				for {
					k := out.queue.done.Get(addrs)
					for i, a := range addrs[:k] {
						addrs[i] = u.Chunk(a)
					}
					if in.queue.fill.Put(addrs[:k]); k == 0 {
						break
					}
				}
				for {
					descs := to.rx.Peek(64)
					for i, d := range descs {
						addrs[i] = u.Chunk(d.Addr)
						got += int(^d.Options & More)
					}
					if to.queue.fill.Put(addrs[:len(descs)]); len(descs) == 0 {
						break
					}
					to.rx.Release(len(descs))
				}
			}
			b.ReportMetric(float64(got)/b.Elapsed().Seconds(), "packets/s")
		})
	}
}

// BenchmarkWake is a call that finds nothing to do.
func BenchmarkWake(b *testing.B) {
	l := newBenchLink(b, 64)
	for _, c := range []struct {
		name string
		fn   func() sys.Errno
	}{{"tx", l.s[0].WakeTx}, {"rx", l.s[0].WakeRx}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if e := c.fn(); e != 0 {
					b.Fatal(e)
				}
			}
		})
	}
}

// BenchmarkDrain is the work of a receiver for each packet that is in its ring: read the
// descriptor, look at the headers or not, and give the chunk back. The kernel's part is not in it.
func BenchmarkDrain(b *testing.B) {
	const n, batch = 4096, 64
	rm, fm := newMemory(n, 16), newMemory(2*n, 8)
	var rx RxRing
	var fill FillRing
	if rx.open(rm.b, n, rm.off) != nil || fill.open(fm.b, 2*n, fm.off) != nil {
		b.Fatal("open")
	}
	u, err := NewUmem(UmemConfig{Memory: pages(b, n*2048, 0), ChunkSize: 2048})
	if err != nil {
		b.Fatal(err)
	}
	for i := range rx.desc {
		rx.desc[i] = Desc{Addr: uint64(i)*2048 + 256, Len: 64}
	}
	var sum int
	descs, addrs := make([]Desc, batch), make([]uint64, batch)
	for _, touch := range []bool{false, true} {
		for name, drain := range map[string]func(touch bool) int{
			"copy": func(touch bool) int {
				var got, bytes, matched int
				for {
					k := rx.Get(descs)
					if k == 0 {
						return got + bytes + matched
					}
					for i, d := range descs[:k] {
						addrs[i] = d.Addr
						bytes += int(d.Len)
						if touch {
							matched += look(u.Data(d))
						}
						got += int(^d.Options & More)
					}
					fill.Put(addrs[:k])
				}
			},
			"view": func(touch bool) int {
				var got, bytes, matched int
				for {
					in := rx.Peek(batch)
					if len(in) == 0 {
						return got + bytes + matched
					}
					out := fill.Reserve(len(in))
					for i := range out {
						d := &in[i]
						out[i] = d.Addr
						bytes += int(d.Len)
						if touch {
							matched += look(u.Data(*d))
						}
						got += int(^d.Options & More)
					}
					fill.Submit(len(out))
					rx.Release(len(out))
				}
			},
		} {
			b.Run(fmt.Sprintf("%s/touch=%t", name, touch), func(b *testing.B) {
				best := time.Duration(1 << 60)
				for i := 0; i < b.N; i += n {
					rm.word(rm.off.Producer).Add(n)
					fm.word(fm.off.Consumer).Store(fm.word(fm.off.Producer).Load())
					t := time.Now()
					sum += drain(touch)
					best = min(best, time.Since(t))
				}
				b.ReportMetric(float64(best)/n, "best-ns/packet")
			})
		}
	}
	if sum == 0 {
		b.Error("nothing was drained")
	}
}

// look reads where a packet goes to, as a program that takes packets apart must.
func look(p []byte) int {
	if len(p) >= 38 && binary.LittleEndian.Uint16(p[12:]) == 8 && p[23] == 17 &&
		binary.LittleEndian.Uint16(p[36:]) == 7 {
		return 1
	}
	return 0
}
