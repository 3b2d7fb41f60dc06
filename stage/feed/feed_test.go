package feed_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/feed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// source is a receive queue of a test.
type source struct {
	pool  *mem.Pool
	src   *burst.Source
	queue [][]byte
	flows []uint32
	wire  int      // bytes on the wire, 0 for what is here
	offs  []uint64 // where it has put each packet
	err   error
}

func newSource(t testing.TB, p *gpumem.Provider, slots int) *source {
	pool, err := mem.NewPool(mem.PoolOptions{Name: "rx", SlotSize: 2048, Slots: slots,
		Memory: mem.Options{Kind: mem.HostPinned, Provider: p}})
	ok(t, err)
	t.Cleanup(func() { ok(t, pool.Close()) })
	return &source{pool: pool, src: burst.PoolSource(pool)}
}

func (s *source) TryRecv(b *burst.Burst) (n int, err error) {
	for len(s.queue) > 0 && b.Room() > 0 {
		slot, err := s.pool.Get()
		if err != nil {
			return n, nil
		}
		k := copy(slot.Bytes(), s.queue[0])
		s.offs = append(s.offs, slot.Span().Off)
		b.Builder().Add(s.src, burst.Segment{Handle: slot.Handle(), Off: slot.Span().Off, Len: uint32(k), Cap: 2048})
		if len(s.flows) > 0 {
			b.Builder().SetFlow(b.Len()-1, s.flows[0])
			s.flows = s.flows[1:]
		}
		if s.wire > 0 {
			b.Builder().SetReceived(b.Len()-1, s.wire, 0, 0)
		}
		s.queue = s.queue[1:]
		n++
	}
	if n == 0 && len(s.queue) == 0 {
		err = s.err
	}
	return n, err
}

func (s *source) Arm(*engine.Waker) bool { return len(s.queue) > 0 || s.err != nil }

func (s *source) stage(t testing.TB, o feed.Options) *feed.Stage {
	t.Helper()
	o.Pool = s.pool
	x, err := feed.New(s, engine.StageSpec{Queue: "rx", Options: o})
	ok(t, err)
	t.Cleanup(func() { ok(t, x.Close()) })
	return x.(*feed.Stage)
}

// drain calls each for every packet until the stage's end, whose error it returns.
func drain(t testing.TB, s engine.Stage, each func(b *burst.Burst, i int)) error {
	t.Helper()
	b := burst.NewSegmented(16, 32)
	for t.Context().Err() == nil {
		n, err := s.TryRecv(b)
		if x, ok := s.(*feed.Stage); ok {
			balanced(t, x)
		}
		if err != nil {
			return err
		}
		for i := range n {
			each(b, i)
		}
		b.Release()
		runtime.Gosched()
	}
	return t.Context().Err()
}

func count(t testing.TB, s *feed.Stage, name string) uint64 {
	t.Helper()
	for _, c := range s.Counts() {
		if c.Name == name {
			return c.N
		}
	}
	t.Fatalf("no count %q", name)
	return 0
}

// balanced: published = results + dropped + abandoned + in the ring, whenever no call is in
// progress.
func balanced(t testing.TB, s *feed.Stage) {
	t.Helper()
	in := count(t, s, "in_ring")
	if published := count(t, s, "published"); published != count(t, s, "results")+count(t, s, "dropped_old")+
		count(t, s, "abandoned")+in || count(t, s, "high_water") < in {
		t.Fatalf("the counts do not balance: %+v", s.Counts())
	}
}

var errEnd = fmt.Errorf("the end: %w", engine.ErrClosed)

func TestStage(t *testing.T) {
	onEach(t, func(t *testing.T, p *gpumem.Provider) {
		for _, o := range []feed.Options{{Kernel: "parse", Slots: 8}, {Kernel: "parse", Slots: 4, Batch: true},
			{Kernel: "parse", Slots: 16, Ordered: true, Policy: feed.Block}} {
			t.Run(fmt.Sprintf("slots %d", o.Slots), func(t *testing.T) {
				enginetest.CheckStage(t, enginetest.StageHarness{Memory: mem.Options{Kind: mem.HostPinned, Provider: p},
					Open: func(t testing.TB, from engine.Receiver, pool *mem.Pool) engine.Stage {
						o.Pool = pool
						s, err := feed.New(from, engine.StageSpec{Queue: "rx", Options: o})
						ok(t, err)
						return s
					},
					Frame: func(p []byte, n int) int { return copy(p, frame(7, n)) },
					Bad:   func(p []byte) int { return 9 }})
			})
		}
	})
}

// frame is a UDP datagram to a port with the number n as its payload.
func frame(port uint16, n int) []byte {
	f := make([]byte, 14+20+8+8)
	copy(f, "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x08\x00")
	ip := f[14:]
	copy(ip, "\x45\x00\x00\x24\x00\x00\x40\x00\x07\x11\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02")
	copy(ip[20:], "\x13\x88\x00\x00\x00\x10\x00\x00")
	binary.BigEndian.PutUint16(ip[22:], port)
	binary.BigEndian.PutUint64(ip[28:], uint64(n))
	packet.IPv4(ip).FillChecksum()
	packet.UDP(ip[20:]).FillChecksum(packet.IPv4(ip).Src(), packet.IPv4(ip).Dst())
	return f
}

// TestEcho has datagrams answered without the CPU touching their bytes: addresses and ports change
// sides, every checksum is right, the order holds over several rings, and what is no UDP is
// dropped.
func TestEcho(t *testing.T) {
	onEach(t, func(t *testing.T, p *gpumem.Provider) {
		s := newSource(t, p, 64)
		const packets = 200
		for n := range packets {
			s.queue, s.flows = append(s.queue, frame(7, n)), append(s.flows, uint32(n%5))
			if n%10 == 0 {
				s.queue, s.flows = append(s.queue, make([]byte, 60)), append(s.flows, 0)
			}
		}
		s.err = errEnd
		x := s.stage(t, feed.Options{Kernel: "echo", Slots: 8, Rings: rings(p), Ordered: true})
		next := 0
		if err := drain(t, x, func(b *burst.Burst, i int) {
			f := b.Bytes(i, 0)
			if received := s.offs[next+(next+9)/10]; b.Segment(i, 0).Off != received { // behind the frames of zeros
				t.Fatalf("packet %d was received at %d and is answered from %d", next, received, b.Segment(i, 0).Off)
			}
			var l packet.Layers
			if packet.Parse(f, &l) != packet.OK {
				t.Fatalf("packet %d: %x", next, f)
			}
			ip := packet.IPv4(f[l.L3:])
			if u := packet.UDP(f[l.L4:l.End]); !ip.ChecksumOK() || !u.ChecksumOK(l.Src(f), l.Dst(f)) ||
				u.SrcPort() != 7 || u.DstPort() != 5000 || ip[8] != 64 ||
				ip.Src().String() != "10.0.0.2" || f[5] != 2 || binary.BigEndian.Uint64(u[8:]) != uint64(next) ||
				b.Flow(i) != uint32(next%5) {
				t.Fatalf("answer %d is %x", next, f)
			}
			next++
		}); !errors.Is(err, errEnd) || next != packets {
			t.Errorf("%d answers, then %v", next, err)
		}
		var st engine.RxStats
		if x.Stats(&st); st.Drops[engine.DropRule] != packets/10 || st.Copied != 0 || st.Packets != packets {
			t.Errorf("%+v", st)
		}
		if got := count(t, x, "published"); got != packets*11/10 || count(t, x, "results") != got ||
			count(t, x, "in_ring") != 0 || count(t, x, "high_water") == 0 || count(t, x, "heartbeat") == 0 {
			t.Errorf("counts %+v", x.Counts())
		}
	})
}

// rings is as many as groups fit.
func rings(p *gpumem.Provider) int {
	if p.Device().Info().Runtime == "host" {
		return 3
	}
	return 1
}

// TestPower: rows are the second segment, and go back in any order, also after Close.
func TestPower(t *testing.T) {
	onEach(t, func(t *testing.T, p *gpumem.Provider) {
		s := newSource(t, p, 64)
		for n := range 20 {
			var q []byte
			for i := range 8 {
				q = binary.LittleEndian.AppendUint16(q, uint16(int16(1000*n*(1-2*(i%2)))))
			}
			s.queue = append(s.queue, q)
		}
		x := s.stage(t, feed.Options{Kernel: "power", Slots: 4, Row: 4 * (2 + 8), Param: kernels.PowerParam(2, 0)})
		var held []*burst.Burst
		for n := 0; n < 20 && t.Context().Err() == nil; runtime.Gosched() {
			b := burst.NewSegmented(1, 2)
			if k, err := x.TryRecv(b); k == 0 {
				ok(t, err)
				continue
			}
			if b.Segments(0) != 2 {
				t.Fatalf("%d segments", b.Segments(0))
			}
			row := b.Bytes(0, 1)
			for i := range 10 {
				want := float32(n*n*1000*1000) / (1 << 30)
				if i >= 2 {
					want = float32(1000*n*(1-2*(i%2))) / (1 << 15)
				}
				if got := math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:])); got != want {
					t.Fatalf("packet %d: float %d is %v, expected %v", n, i, got, want)
				}
			}
			n++
			if held = append(held, b); len(held) == 3 { // of 4 rows
				held[2].Release()
				held[0].Release()
				held = held[1:2]
			}
		}
		ok(t, x.Close())
		for _, b := range held {
			if b.Len() > 0 && binary.LittleEndian.Uint32(b.Bytes(0, 1)) == 0 {
				t.Error("a row that is out is gone after Close")
			}
			b.Release()
		}
	})
}

// TestWeights replaces the weights while packets are multiplied with them: every row is of one
// version, and the last version comes.
func TestWeights(t *testing.T) {
	onEach(t, func(t *testing.T, p *gpumem.Provider) {
		s := newSource(t, p, 64)
		const k, m, versions = 8, 4, 50
		x := s.stage(t, feed.Options{Kernel: "gemm", Slots: 16, Row: 4 * m, Weights: 4 * k * m,
			Param: kernels.GemmParam(k, m)})
		ones := bytes.Repeat([]byte{0, 0, 0x80, 0x3f}, k)
		var wg sync.WaitGroup
		wg.Go(func() {
			for v := range versions {
				w := bytes.Repeat(binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(v+1))), k*m)
				if err := x.SetWeights(w); err != nil {
					t.Error(err)
				}
				runtime.Gosched()
			}
		})
		last := float32(0)
		b := burst.NewSegmented(16, 32)
		for last != versions*k && t.Context().Err() == nil {
			if len(s.queue) < 8 {
				s.queue = append(s.queue, ones)
			}
			n, err := x.TryRecv(b)
			ok(t, err)
			for i := range n {
				first := math.Float32frombits(binary.LittleEndian.Uint32(b.Bytes(i, 1)))
				for c := range m {
					if got := math.Float32frombits(binary.LittleEndian.Uint32(b.Bytes(i, 1)[4*c:])); got != first ||
						math.Mod(float64(got), k) != 0 || got < last {
						t.Fatalf("a row of %v and %v after %v: a mixture of versions", first, got, last)
					}
				}
				last = first
			}
			b.Release()
			runtime.Gosched()
		}
		wg.Wait()
		if err := x.SetWeights(make([]byte, 4)); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("4 bytes of weights: %v", err)
		}
		ok(t, x.Close())
		if err := x.SetWeights(make([]byte, 4*k*m)); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("weights after Close: %v", err)
		}
	})
}

// TestPolicies: with a kernel that does not run, each policy drops what it says, and the counts
// balance.
func TestPolicies(t *testing.T) {
	p := onHost(t)
	for _, policy := range []feed.Policy{feed.Block, feed.DropNew, feed.DropOld} {
		t.Run(policy.String(), func(t *testing.T) {
			s := newSource(t, p, 256)
			for n := range 100 {
				s.queue = append(s.queue, frame(7, n))
			}
			s.err = errEnd
			x := s.stage(t, feed.Options{Kernel: "parse", Slots: 8, Policy: policy})
			full := burst.New(1)
			ok(t, s.hold(full)) // a burst without room: results stay in the window
			for range 200 {
				_, err := x.TryRecv(full)
				ok(t, err)
				balanced(t, x)
				if got := s.pool.Stats().InUse; got > 8+1+64 {
					t.Fatalf("%d slots are in use", got)
				}
			}
			full.Release()
			var got []uint64
			if err := drain(t, x, func(b *burst.Burst, i int) {
				got = append(got, binary.BigEndian.Uint64(b.Bytes(i, 0)[42:]))
			}); !errors.Is(err, errEnd) {
				t.Fatal(err)
			}
			var st engine.RxStats
			x.Stats(&st)
			fresh, old := count(t, x, "dropped_new"), count(t, x, "dropped_old")
			if uint64(len(got))+fresh+old != 100 || st.Drops.Total() != fresh+old || st.Packets != uint64(len(got)) {
				t.Errorf("%d packets, %d new and %d old ones dropped, of 100: %+v", len(got), fresh, old, st)
			}
			if policy == feed.Block != (fresh+old == 0) || policy != feed.DropOld && old > 0 {
				t.Errorf("%d new and %d old ones were dropped", fresh, old)
			}
		})
	}
}

// TestDropOld: before the kernel has claimed anything, the oldest packets are dropped. With a
// kernel that has claimed one and cannot go on, because every row of results is out, what comes
// drops nothing: to drop the packets behind the claimed one makes no room. What is claimed is never
// dropped.
func TestDropOld(t *testing.T) {
	const slots, packets = 8, 30
	for _, claimed := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d claimed", claimed), func(t *testing.T) {
			s := newSource(t, onHost(t), 256)
			// batch: the launch comes behind the burst
			x := s.stage(t, feed.Options{Kernel: "parse", Slots: slots, Row: 16, Policy: feed.DropOld,
				Batch: claimed == 0})
			var held []*burst.Burst
			var got []uint64
			until := func(there func() bool) {
				t.Helper()
				for ; !there() && t.Context().Err() == nil; runtime.Gosched() {
					b := burst.NewSegmented(1, 2)
					n, err := x.TryRecv(b)
					ok(t, err)
					if balanced(t, x); n > 0 {
						got, held = append(got, binary.BigEndian.Uint64(b.Bytes(0, 0)[42:])), append(held, b)
					}
				}
			}
			release := func() {
				for _, b := range held {
					b.Release()
				}
				held = nil
			}
			sent := 0
			send := func(n int) {
				for range n {
					s.queue = append(s.queue, frame(7, sent))
					sent++
				}
			}
			first, dropped := uint64(packets-slots), "dropped_old"
			if claimed == 0 {
				// the first launch, which finds nothing, is over or about to leave
				until(func() bool { return x.RingStats()[0].Empty > 0 })
			} else {
				send(slots)
				until(func() bool { return len(got) == slots })
				send(claimed)
				until(func() bool { return x.RingStats()[0].Claimed == 1 })
				first, dropped = 0, "dropped_new"
			}
			send(packets - sent)
			until(func() bool { return len(s.queue) == 0 })
			if fresh, old := count(t, x, "dropped_new"),
				count(t, x, "dropped_old"); fresh+old != packets-uint64(claimed)*slots-slots ||
				count(t, x, dropped) != fresh+old {
				t.Fatalf("%d new and %d old ones were dropped: %+v", fresh, old, x.RingStats())
			}
			release()
			until(func() bool { return len(got) == slots*(1+claimed) })
			for i, n := range got {
				if n != first+uint64(i) {
					t.Fatalf("packets %d came, expected those from %d on", got, first)
				}
			}
			release()
		})
	}
}

// TestSteering: all packets of a flow go to one ring, whose kernel keeps their order; flows spread
// over the rings.
func TestSteering(t *testing.T) {
	s := newSource(t, onHost(t), 256)
	const flows, each = 12, 20
	x := s.stage(t, feed.Options{Kernel: "parse", Slots: 32, Rings: 3})
	used := map[int]bool{}
	for f := range uint32(flows) {
		before := x.RingStats()
		for n := range each {
			s.queue, s.flows = append(s.queue, frame(7, n)), append(s.flows, f)
		}
		b := burst.New(32)
		for count(t, x, "published") < each*uint64(f+1) && t.Context().Err() == nil {
			_, err := x.TryRecv(b)
			ok(t, err)
			b.Release()
			runtime.Gosched()
		}
		for i, now := range x.RingStats() {
			switch now.Published - before[i].Published {
			case each:
				used[i] = true
			case 0:
			default:
				t.Errorf("flow %d: ring %d has a part of it", f, i)
			}
		}
	}
	if len(used) < 2 {
		t.Errorf("the flows are in rings %v", used)
	}
}

// TestDescribed: the kernel gets the source, flow, hash and time of arrival that the queue noted,
// and hears of what was cut off.
func TestDescribed(t *testing.T) {
	s := newSource(t, onHost(t), 4)
	x := s.stage(t, feed.Options{Kernel: "parse", Slots: 4})
	b := burst.New(1)
	ok(t, s.hold(b))
	b.Builder().SetFlow(0, 3)
	b.Builder().SetHash(0, 4)
	b.Builder().SetReceived(0, 5000, 0, 0)
	b.SetConn(0, 5)
	b.SetTime(0, 6)
	g := b.Segment(0, 0)
	want := ring.Desc{Off: g.Off, Len: 1, Flow: 3, Hash: 4, Source: 5, Time: 6, Flags: ring.DescTruncated}
	if d, ok := x.Describe(b); d != want || !ok {
		t.Errorf("%+v, expected %+v", d, want)
	}
}

// onHost is a provider of memory of the runtime host.
func onHost(t *testing.T) *gpumem.Provider {
	rt, err := host.Open(host.Options{})
	ok(t, err)
	ctx, err := rt.Devices()[0].Open()
	ok(t, err)
	p, err := gpumem.New(ctx, gpumem.Options{})
	ok(t, err)
	t.Cleanup(func() { ok(t, errors.Join(p.Close(), ctx.Close(), rt.Close())) })
	return p
}

// hold fills a burst with one packet of the pool.
func (s *source) hold(b *burst.Burst) error {
	slot, err := s.pool.Get()
	if err == nil {
		b.Builder().Add(s.src, burst.Segment{Handle: slot.Handle(), Off: slot.Span().Off, Len: 1, Cap: 2048})
	}
	return err
}

// TestCloseWithPackets: what is with the kernel, and what it has answered, is dropped and counted;
// everything is given back.
func TestCloseWithPackets(t *testing.T) {
	onEach(t, func(t *testing.T, p *gpumem.Provider) {
		s := newSource(t, p, 64)
		for n := range 20 {
			s.queue = append(s.queue, frame(7, n))
		}
		x := s.stage(t, feed.Options{Kernel: "parse", Slots: 8, Row: 16})
		full := burst.New(1)
		ok(t, s.hold(full))
		for range 5 {
			_, err := x.TryRecv(full)
			ok(t, err)
		}
		full.Release()
		ok(t, x.Close())
		ok(t, x.Close())
		if balanced(t, x); count(t, x, "in_ring") != 0 {
			t.Errorf("counts after Close: %+v", x.Counts())
		}
		var st engine.RxStats
		if x.Stats(&st); st.Drops[engine.DropClosed] == 0 || s.pool.Stats().InUse != 0 {
			t.Errorf("%d slots are in use after Close: %+v", s.pool.Stats().InUse, st)
		}
		if _, err := x.TryRecv(full); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("TryRecv after Close: %v", err)
		}
	})
}

// TestIdle: when nothing comes, neither the owner of the stage nor the kernel polls. Arm does not
// wake, and a kernel on a processor leaves after its empty passes; the next packet launches it
// again.
func TestIdle(t *testing.T) {
	onEach(t, func(t *testing.T, p *gpumem.Provider) {
		s := newSource(t, p, 16)
		x := s.stage(t, feed.Options{Kernel: "parse", Slots: 4})
		b := burst.New(4)
		for round := range uint64(2) {
			s.queue = append(s.queue, frame(7, 0))
			for count(t, x, "results") == round && t.Context().Err() == nil {
				_, err := x.TryRecv(b)
				ok(t, err)
				b.Release()
				runtime.Gosched()
			}
			_, err := x.TryRecv(b)
			ok(t, err)
			b.Release()
			w := engine.NewWaker()
			if x.Arm(w) {
				t.Error("Arm says that something is there")
			}
			select {
			case <-w.C():
				t.Error("Arm wakes its owner, and there is nothing")
			default:
			}
			for p.Context().Info().Processor && x.Kernel() != "asleep" && t.Context().Err() == nil {
				if beats := count(t, x, "heartbeat"); beats > 1<<20 {
					t.Fatalf("the kernel is %s after %d passes, and there is nothing", x.Kernel(), beats)
				}
				runtime.Gosched()
			}
		}
	})
}

// TestPoolEnds: a region that the queue receives into stays mapped until the stage, whose kernel
// reads it, is closed.
func TestPoolEnds(t *testing.T) {
	p := onHost(t)
	pool, err := mem.NewPool(mem.PoolOptions{Name: "rx", SlotSize: 2048, Slots: 4,
		Memory: mem.Options{Kind: mem.HostPinned, Provider: p}})
	ok(t, err)
	x := (&source{pool: pool}).stage(t, feed.Options{Kernel: "parse", Slots: 4})
	unmapped := func() bool {
		select {
		case <-pool.Region().Unmapped():
			return true
		default:
			return false
		}
	}
	ok(t, pool.Close())
	if unmapped() {
		t.Error("the memory is unmapped while the kernel may read it")
	}
	ok(t, x.Close())
	if !unmapped() {
		t.Error("the memory stays after Close")
	}
}

// TestUserKernel runs a kernel from a file.
func TestUserKernel(t *testing.T) {
	onEach(t, func(t *testing.T, p *gpumem.Provider) {
		s := newSource(t, p, 16)
		file := filepath.Join(t.TempDir(), "mine.cl")
		ok(t, os.WriteFile(file, []byte(`
PS_FN void invert(ps_packet *k) {
	__global uchar *p = k->payload + k->off;
	for (ulong i = ps_local_id(); i < k->len; i += ps_local_size()) p[i] ^= 0xff;
	k->off += 1;
	k->len -= 1;
	k->flow = 77;
}
PS_FEED(mine, invert)
`), 0o600))
		o := feed.Options{Kernel: "mine", File: file, Pool: s.pool, Slots: 4}
		if !p.Context().Info().Capabilities.Has(gpu.CapSource) {
			if _, err := feed.New(s, engine.StageSpec{Queue: "rx", Options: o}); !errors.Is(err, gpu.ErrArch) {
				t.Errorf("OpenCL C where nothing compiles it: %v", err)
			}
			return
		}
		s.queue, s.err = [][]byte{{1, 2, 3}, {4, 5}}, errEnd
		x := s.stage(t, o)
		var got []byte
		if err := drain(t, x, func(b *burst.Burst, i int) {
			got = append(got, b.Bytes(i, 0)...)
			if b.Flow(i) != 77 {
				t.Errorf("flow %d", b.Flow(i))
			}
		}); !errors.Is(err, errEnd) || !bytes.Equal(got, []byte{0xfd, 0xfc, 0xfa}) {
			t.Errorf("%x, then %v", got, err)
		}
	})
}

// TestRefusals: what cannot be is an error that says what.
func TestRefusals(t *testing.T) {
	s := newSource(t, onHost(t), 16)
	plain, err := mem.NewPool(mem.PoolOptions{Name: "plain", SlotSize: 64, Slots: 4})
	ok(t, err)
	defer plain.Close()
	ptx := filepath.Join(t.TempDir(), "x.ptx")
	ok(t, os.WriteFile(ptx, []byte("nothing"), 0o600))
	for _, x := range []struct {
		o    feed.Options
		says string
	}{
		{feed.Options{Pool: s.pool}, "kernel is"},
		{feed.Options{Kernel: "parse"}, "memory is"},
		{feed.Options{Kernel: "parse", Memory: "none"}, `no memory region "none"`},
		{feed.Options{Kernel: "wrong", Pool: s.pool}, `no kernel "wrong"`},
		{feed.Options{Kernel: "parse", Pool: plain}, "host_pinned"},
		{feed.Options{Kernel: "parse", Pool: s.pool, Slots: -1}, "slots is -1"},
		{feed.Options{Kernel: "parse", Pool: s.pool, Rings: 1 << 11}, "rings is"},
		{feed.Options{Kernel: "parse", Pool: s.pool, Row: 3}, "row is 3"},
		{feed.Options{Kernel: "parse", Pool: s.pool, Weights: 8}, "weights is 8"},
		{feed.Options{Kernel: "parse", Pool: s.pool, Items: 2000}, "items is"},
		{feed.Options{Kernel: "parse", Pool: s.pool, Policy: 9}, "policy is policy(9)"},
		{feed.Options{Kernel: "x", Pool: s.pool, File: "/nowhere/x.cl"}, "no such file"},
		{feed.Options{Kernel: "x", Pool: s.pool, File: ptx}, "expected PTX"},
		{feed.Options{Kernel: "x", Pool: s.pool, File: os.Args[0]}, "expected OpenCL C"},
	} {
		if _, err := feed.New(s, engine.StageSpec{Queue: "rx7", Options: x.o}); err == nil ||
			!strings.Contains(err.Error(), x.says) || !strings.Contains(err.Error(), `"rx7"`) {
			t.Errorf("%+v: %v, expected %q", x.o, err, x.says)
		}
	}
	spec := engine.StageSpec{Queue: "rx"}
	if _, err := engine.FindStage([]engine.StageKind{feed.Kind},
		"feed?kernel=parse&memory=m&policy=drop-old&row=4KiB&ordered", &spec); err != nil {
		t.Error(err)
	}
	if got, err := engine.Given[feed.Options](spec.Options); err != nil ||
		got != (feed.Options{Kernel: "parse", Memory: "m", Policy: feed.DropOld, Row: 4096, Ordered: true}) {
		t.Errorf("the options of a file are %+v (%v)", got, err)
	}
}

// TestTruncated: what was longer on the wire than its slot is marked for the kernel and for the
// application.
func TestTruncated(t *testing.T) {
	onEach(t, func(t *testing.T, p *gpumem.Provider) {
		s := newSource(t, p, 16)
		o := feed.Options{Kernel: "parse", Slots: 4}
		want := uint32(5) // the flow that it had
		if p.Context().Info().Capabilities.Has(gpu.CapSource) {
			o.Kernel, o.File, want = "marks", filepath.Join(t.TempDir(), "marks.cl"), ring.DescTruncated
			ok(t, os.WriteFile(o.File,
				[]byte("PS_FN void mark(ps_packet *k) { k->flow = k->flags; }\nPS_FEED(marks, mark)\n"), 0o600))
		}
		s.queue, s.flows, s.wire, s.err = [][]byte{frame(7, 1)}, []uint32{5}, 5000, errEnd
		seen := 0
		if err := drain(t, s.stage(t, o), func(b *burst.Burst, i int) {
			if seen++; b.WireLen(i) != 5000 || b.Flow(i) != want {
				t.Errorf("%d bytes on the wire, flow %d", b.WireLen(i), b.Flow(i))
			}
		}); !errors.Is(err, errEnd) || seen != 1 {
			t.Errorf("%d packets, then %v", seen, err)
		}
	})
}
