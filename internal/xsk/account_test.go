package xsk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
	"golang.org/x/sys/unix"
)

// TestForward sends packets from host 0 over one link to host 1, which sends each chunk on over
// another link where it lies, and back to host 0. All four ends are in this process; the two of
// host 1 share their memory.
func TestForward(t *testing.T) {
	for _, mode := range []Mode{Auto, Copy} {
		t.Run(mode.String(), func(t *testing.T) {
			e := rails(t, 2, netns.LinkSpec{})
			forward(t, e, e.second(), mode, 20_000)
		})
	}
}

// forward sends from end 0 of e over its end 1 and over end 1 of e2 to end 0 of that.
func forward(t *testing.T, e, e2 *ends, mode Mode, count int) {
	c := QueueConfig{NeedWakeup: true, Mode: mode, FillSize: 256}
	sc := SocketConfig{RxSize: 128, TxSize: 128}
	from := e.socket(t, 0, e.queue(t, 0, newUmem(t, 256), c), sc)
	to := e2.socket(t, 0, e2.queue(t, 0, newUmem(t, 256), c), sc)
	u := newUmem(t, 256)
	in := e.socket(t, 1, e.queue(t, 1, u, c), sc)
	out := e2.socket(t, 1, e2.queue(t, 1, u, c), sc)
	want := int64(2) // a registration for each interface, so that each has the best mode
	if mode == Copy {
		want = 1
	}
	if n := u.registered.Load(); n != want {
		t.Errorf("%d registrations of the memory: expected %d", n, want)
	}
	put(t, e.program(t, 1, -1, false, false), 0, in)
	put(t, e2.program(t, 0, -1, false, false), 0, to)
	all := chunks(u, 0, 128)
	if in.queue.fill.Put(all) != len(all) {
		t.Fatal("fill")
	}
	held := map[uint64]bool{} // chunks between receive and completion
	descs, back := make([]Desc, 32), make([]uint64, 32)
	forwarded := 0
	step := func() {
		n := in.rx.Get(descs[:min(len(descs), out.tx.Room())])
		for _, d := range descs[:n] {
			a := u.Chunk(d.Addr)
			if held[a] {
				t.Fatalf("chunk %#x came while it was being sent", a)
			}
			held[a] = true
			u.Data(d)[0] ^= 0 // it can be touched
		}
		if out.tx.Put(descs[:n]) != n {
			t.Fatal("no room where there was some")
		}
		forwarded += n
		if out.tx.Pending() > 0 && out.NeedWakeTx() {
			out.WakeTx()
		}
		k := out.queue.done.Get(back)
		for i, a := range back[:k] {
			a = u.Chunk(a)
			if !held[a] {
				t.Fatalf("chunk %#x was sent and nobody had sent it", a)
			}
			delete(held, a)
			back[i] = a
		}
		if in.queue.fill.Put(back[:k]) != k {
			t.Fatal("the fill ring has no room for what came out of it")
		}
		if in.queue.fill.NeedWakeup() {
			in.WakeRx()
		}
	}
	f := &flow{t: t, from: from, to: to, count: count, window: 64, lossy: e.net == nil, size: func(i int) int {
		return 60 + i%1400
	},
		free: chunks(from.queue.umem, 0, 128), spare: chunks(to.queue.umem, 0, 128), step: step}
	f.run()
	for deadline := ctx(t); len(held) > 0; step() {
		if deadline.Err() != nil {
			t.Fatalf("%d chunks do not come back", len(held))
		}
	}
	if !f.lossy && (forwarded != f.count || in.queue.fill.Pending() != len(all)) {
		t.Errorf("%d of %d forwarded, %d of %d chunks in the fill ring", forwarded, f.count, in.queue.fill.Pending(),
			len(all))
	}
}

// TestMany accounts for each chunk of both sides over a hundred thousand packets, which wrap the
// rings some thousand times.
func TestMany(t *testing.T) {
	e := veth(t, netns.LinkSpec{})
	var s [2]*Socket
	for i := range s {
		s[i] = e.socket(t, i, e.queue(t, i, newUmem(t, 256),
			QueueConfig{NeedWakeup: true, FillSize: 128, CompletionSize: 64}), SocketConfig{RxSize: 64, TxSize: 64})
	}
	put(t, e.program(t, 1, -1, false, false), 0, s[1])
	count := 100_000
	if testing.Short() {
		count = 10_000
	}
	f := &flow{t: t, from: s[0], to: s[1], count: count, window: 64, size: fixed(64),
		free: chunks(s[0].queue.umem, 0, 200), spare: chunks(s[1].queue.umem, 10, 128)}
	f.run()
	if n := s[0].tx.Faults() + s[0].queue.done.Faults() + s[1].rx.Faults() + s[1].queue.fill.Faults(); n != 0 {
		t.Errorf("%d indices of the kernel's could not be true", n)
	}
}

// TestStalled: what comes to a consumer that does not take it is dropped, and the counts say
// whether for lack of room in the ring or of chunks.
func TestStalled(t *testing.T) {
	for _, c := range []struct {
		name       string
		rx, chunks int
		full       uint64 // of 500
		starved    uint64
	}{
		{"ring", 16, 64, 484, 0},
		{"chunks", 64, 16, 0, 484},
		{"none", 512, 512, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := veth(t, netns.LinkSpec{})
			from := e.socket(t, 0, e.queue(t, 0, newUmem(t, 64), QueueConfig{NeedWakeup: true}),
				SocketConfig{TxSize: 64})
			u := newUmem(t, 512)
			to := e.socket(t, 1, e.queue(t, 1, u, QueueConfig{NeedWakeup: true}), SocketConfig{RxSize: c.rx})
			put(t, e.program(t, 1, -1, false, false), 0, to)
			to.queue.fill.Put(chunks(u, 0, c.chunks))
			x := newSender(from, 64, 32)
			var s Statistics
			got := 0
			for sent := 0; sent < 500; sent += got {
				got = x.step(min(16, 500-sent))
			}
			descs := make([]Desc, 512)
			for deadline := ctx(t); ; x.step(0) {
				if err := to.Statistics(&s); err != nil {
					t.Fatal(err)
				}
				if to.rx.Ready()+int(s.RxDropped+s.RxRingFull) >= 500 {
					break
				}
				if deadline.Err() != nil {
					t.Fatalf("%d came, %+v: expected 500 altogether", to.rx.Ready(), s)
				}
				waitABit()
			}
			n := to.rx.Get(descs)
			if n+int(s.RxDropped+s.RxRingFull) != 500 || s.RxRingFull != c.full || s.RxDropped != c.starved ||
				s.RxFillRingEmptyDescs < c.starved || s.RxInvalidDescs != 0 {
				t.Errorf("%d came, %+v: expected %d for lack of room and %d of chunks", n, s, c.full, c.starved)
			}
			// Nothing is lost for good: what was not used is in the fill ring or with the kernel,
			// which uses it next.
			for i := range descs[:n] {
				to.queue.fill.Put([]uint64{u.Chunk(descs[i].Addr)})
			}
			seen := map[uint64]bool{}
			for deadline := ctx(t); len(seen) < c.chunks; x.step(min(8, c.rx)) {
				k := to.rx.Get(descs)
				for _, d := range descs[:k] {
					seen[u.Chunk(d.Addr)] = true
					to.queue.fill.Put([]uint64{u.Chunk(d.Addr)})
				}
				if deadline.Err() != nil {
					t.Fatalf("only %d of %d chunks are in use again", len(seen), c.chunks)
				}
				waitABit()
			}
		})
	}
}

// TestHostileDescriptors: what a program puts into its own rings wrongly is refused by the kernel
// and counted, and does no harm.
func TestHostileDescriptors(t *testing.T) {
	e := veth(t, netns.LinkSpec{})
	u := newUmem(t, 64)
	s := e.socket(t, 0, e.queue(t, 0, u, QueueConfig{NeedWakeup: true}), SocketConfig{TxSize: 64, RxSize: 64})
	size := uint64(len(u.cfg.Memory))
	bad := []Desc{{Addr: size, Len: 60}, {Addr: size - 10, Len: 60}, {Addr: 1 << 63, Len: 60}, {Addr: 4000, Len: 200},
		{Addr: 0, Len: 60, Options: 1 << 31}, {Addr: 0, Len: 1<<32 - 1}, {Addr: 0, Len: 0}}
	s.tx.Put(bad)
	if err := s.queue.fill.Put([]uint64{size, 1 << 63, 1<<64 - 1}); err != 3 {
		t.Error("fill")
	}
	var st Statistics
	for deadline := ctx(t); s.tx.Pending() > 0; waitABit() {
		s.WakeTx()
		if deadline.Err() != nil {
			t.Fatalf("%d descriptors are not taken", s.tx.Pending())
		}
	}
	if err := s.Statistics(&st); err != nil || st.TxInvalidDescs < uint64(len(bad)-1) {
		// an empty packet may be taken by some kernels
		t.Errorf("%+v, %v: expected %d invalid descriptors", st, err, len(bad))
	}
}

// TestAllocations: the ways of packets allocate nothing.
func TestAllocations(t *testing.T) {
	e := veth(t, netns.LinkSpec{})
	var s [2]*Socket
	for i := range s {
		s[i] = e.socket(t, i, e.queue(t, i, newUmem(t, 256), QueueConfig{NeedWakeup: true}),
			SocketConfig{RxSize: 64, TxSize: 64})
	}
	put(t, e.program(t, 1, -1, false, false), 0, s[1])
	u := s[1].queue.umem
	s[1].queue.fill.Put(chunks(u, 0, 128))
	x := newSender(s[0], 64, 32)
	x.step(16) // its slices grow
	descs, back := make([]Desc, 32), make([]uint64, 32)
	var st Statistics
	var sum int
	n := testing.AllocsPerRun(200, func() {
		x.step(16)
		k := s[1].rx.Get(descs)
		for i, d := range descs[:k] {
			sum += len(u.Data(d))
			back[i] = u.Chunk(d.Addr)
		}
		s[1].queue.fill.Put(back[:k])
		for _, d := range s[1].rx.Peek(8) {
			sum += int(d.Len)
		}
		s[1].WakeRx()
		if room := s[0].tx.Reserve(1); len(room) > 0 {
			s[0].tx.Submit(0)
		}
		if s[1].Statistics(&st) != nil {
			sum++
		}
	})
	if n != 0 || sum == 0 {
		t.Errorf("%v allocations for a batch, %d bytes seen", n, sum)
	}
}

// TestBusyPoll: with busy polling everything works as without; veth has no device that it would
// matter to.
func TestBusyPoll(t *testing.T) {
	e := veth(t, netns.LinkSpec{})
	var s [2]*Socket
	for i := range s {
		q := e.queue(t, i, newUmem(t, 128), QueueConfig{NeedWakeup: true})
		s[i] = e.socket(t, i, q, SocketConfig{RxSize: 64, TxSize: 64,
			BusyPoll: BusyPoll{Prefer: true, Microseconds: 20, Budget: 64}})
		for name, want := range map[int]int{sys.SoPreferBusyPoll: 1, sys.SoBusyPoll: 20, sys.SoBusyPollBudget: 64} {
			if got, err := sys.Option(s[i].fd, sys.SolSocket, name); got != want && name != sys.SoBusyPollBudget ||
				err != nil && name != sys.SoBusyPollBudget {
				t.Errorf("option %d: %d, %v: expected %d", name, got, err, want)
			}
		}
		e.do(t, i, func() error {
			if x, err := q.OpenSocket(SocketConfig{RxSize: 64, BusyPoll: BusyPoll{Budget: 1 << 20}}); !errors.Is(err,
				ErrInvalid) {
				t.Errorf("a budget of 2^20: %v, %v", x, err)
			}
			return nil
		})
	}
	put(t, e.program(t, 1, -1, false, false), 0, s[1])
	f := &flow{t: t, from: s[0], to: s[1], count: 1000, size: fixed(64), free: chunks(s[0].queue.umem, 0, 64),
		spare: chunks(s[1].queue.umem, 0, 64)}
	f.run()
}

// TestMetadata: what a program leaves in front of a packet arrives with it, in copy mode as well.
func TestMetadata(t *testing.T) {
	for _, unaligned := range []bool{false, true} {
		t.Run(fmt.Sprintf("unaligned=%t", unaligned), func(t *testing.T) {
			e := veth(t, netns.LinkSpec{})
			from := e.socket(t, 0, e.queue(t, 0, newUmem(t, 128), QueueConfig{NeedWakeup: true}),
				SocketConfig{TxSize: 64})
			u, err := NewUmem(UmemConfig{Memory: pages(t, 256*4096, 0), Unaligned: unaligned, Headroom: 32})
			if err != nil {
				t.Fatal(err)
			}
			to := e.socket(t, 1, e.queue(t, 1, u, QueueConfig{NeedWakeup: true}), SocketConfig{RxSize: 64})
			put(t, e.program(t, 1, leaveMeta, false, false), 0, to)
			f := &flow{t: t, from: from, to: to, count: 500, size: func(i int) int {
				return 60 + i
			}, free: chunks(from.queue.umem, 0, 64), spare: chunks(u, 0, 64)}
			n := 0
			f.look = func(d Desc) {
				n++
				if m := u.Front(d, 8); m == nil || binary.NativeEndian.Uint32(m) != d.Len ||
					binary.NativeEndian.Uint32(m[4:]) != metaMark {
					t.Errorf("packet of %d bytes: in front of it %x", d.Len, m)
				}
			}
			f.run()
			if n != f.count {
				t.Errorf("%d packets were looked at", n)
			}
		})
	}
}

// TestPoll: a goroutine that sleeps in poll is woken by a packet, and by room in the transmit ring.
func TestPoll(t *testing.T) {
	e := veth(t, netns.LinkSpec{})
	var s [2]*Socket
	for i := range s {
		s[i] = e.socket(t, i, e.queue(t, i, newUmem(t, 64), QueueConfig{NeedWakeup: true}),
			SocketConfig{RxSize: 16, TxSize: 16})
	}
	put(t, e.program(t, 1, -1, false, false), 0, s[1])
	s[1].queue.fill.Put(chunks(s[1].queue.umem, 0, 16))
	if i, err := sys.PollIn(0, s[1].fd); i >= 0 || err != nil {
		t.Errorf("an empty ring is readable: %d, %v", i, err)
	}
	woken := make(chan error)
	go func() {
		_, err := sys.PollIn(-1, s[1].fd)
		woken <- err
	}()
	newSender(s[0], 64, 8).step(1)
	if err := <-woken; err != nil || s[1].rx.Ready() != 1 {
		t.Errorf("%v, %d packets", err, s[1].rx.Ready())
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(s[0].fd), Events: unix.POLLOUT}}, 0); n != 1 || err != nil {
		t.Errorf("a transmit ring with room is not writable: %d, %v", n, err)
	}
}
