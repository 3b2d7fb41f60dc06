package checksum_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/checksum"
)

// source is a Receiver that gives the frames that the test pushes.
type source struct {
	pool *mem.Pool
	src  *burst.Source

	mu    sync.Mutex
	fifo  []frame
	late  []frame // that come between TryRecv and Arm
	waker *engine.Waker
}

type frame struct {
	bytes []byte
	flags burst.Flags
	split int // 0: one segment
}

func newSource(t testing.TB, o mem.Options) *source {
	t.Helper()
	p, err := mem.NewPool(mem.PoolOptions{Name: "frames", SlotSize: 2048, Slots: 512, Memory: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return &source{pool: p, src: burst.PoolSource(p)}
}

func (s *source) push(all ...frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fifo = append(s.fifo, all...)
	if s.waker != nil {
		s.waker.Wake()
		s.waker = nil
	}
}

func (s *source) TryRecv(b *burst.Burst) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.fifo) > 0 && b.Room() > 0 && b.SegmentRoom() > 1 {
		f := s.fifo[0]
		s.fifo = s.fifo[1:]
		i := -1
		for _, part := range [][]byte{f.bytes[:f.split], f.bytes[f.split:]} {
			if len(part) == 0 {
				continue
			}
			slot, err := s.pool.Get()
			if err != nil {
				return n, err
			}
			copy(slot.Bytes(), part) // none of device memory
			g := burst.Segment{Handle: slot.Handle(), Off: slot.Span().Off, Len: uint32(len(part)), Cap: 2048}
			if i < 0 {
				i = b.Builder().Add(s.src, g)
			} else {
				b.Builder().AddSegment(s.src, g)
			}
		}
		b.Builder().SetReceived(i, 0, f.flags, 0)
		n++
	}
	return n, nil
}

func (s *source) Arm(w *engine.Waker) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waker = w
	s.fifo, s.late = append(s.fifo, s.late...), nil
	return len(s.fifo) > 0
}

func open(t testing.TB, from engine.Receiver) engine.Stage {
	t.Helper()
	s, err := checksum.New(from, engine.StageSpec{Queue: "rx", Port: engine.Capabilities{Frames: true}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// frames is a frame of each protocol, with right checksums.
func frames(t testing.TB, r *rand.Rand) (out [][]byte) {
	t.Helper()
	payload := make([]byte, 1+r.IntN(900))
	for i := range payload {
		payload[i] = byte(r.Uint32())
	}
	for _, at := range [][2]string{{"10.0.0.1:7", "10.0.0.2:8"}, {"[fd00::1]:7", "[fd00::2]:8"}} {
		h := packet.UDPFrame{Src: netip.MustParseAddrPort(at[0]), Dst: netip.MustParseAddrPort(at[1])}
		f := make([]byte, h.HeaderLen()+len(payload))
		copy(f[h.HeaderLen():], payload)
		if _, err := h.Fill(f, len(payload)); err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
		var l packet.Layers
		packet.Parse(f, &l)
		// The same addresses with TCP and ICMP in place of UDP.
		for _, proto := range []packet.Proto{packet.ProtoTCP, packet.ProtoICMP} {
			v6 := l.IPVersion == 6
			head := packet.TCPLen
			if proto == packet.ProtoICMP {
				head = packet.ICMPLen
			}
			if v6 && proto == packet.ProtoICMP {
				proto = packet.ProtoICMPv6
			}
			g := append(bytes.Clone(f[:l.L4]), make([]byte, head)...)
			g = append(g, payload...)
			body := g[l.L4:]
			if v6 {
				packet.IPv6(g[l.L3:]).SetNextHeader(proto)
				packet.IPv6(g[l.L3:]).SetPayloadLen(uint16(len(body)))
			} else {
				ip := packet.IPv4(g[l.L3:])
				ip.SetProto(proto)
				ip.SetTotalLen(uint16(len(g) - int(l.L3)))
				ip.FillChecksum()
			}
			switch proto {
			case packet.ProtoTCP:
				body[12] = 5 << 4
				packet.TCP(body).FillChecksum(l.Src(f), l.Dst(f))
			case packet.ProtoICMP:
				packet.ICMP(body).FillChecksum()
			default:
				packet.ICMPv6(body).FillChecksum(l.Src(f), l.Dst(f))
			}
			out = append(out, g)
		}
	}
	arp := make([]byte, 60)
	arp[12], arp[13] = 8, 6
	return append(out, arp)
}

// What is right passes, in its order; what has one wrong bit does not, and is counted.
func TestDrops(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		src := newSource(t, mem.Options{})
		s := open(t, src)
		var want [][]byte
		wrong, splits := uint64(0), uint64(0)
		for range 1 + r.IntN(20) {
			all := frames(t, r)
			f := all[r.IntN(len(all))]
			bad := r.IntN(2) == 0 && f[13] != 6 // ARP has no checksum
			if bad {
				from := packet.EthernetLen
				if f[from]>>4 == 6 {
					from += 8 // no sum covers what is before the addresses
				}
				bit := r.IntN(8 * (len(f) - from))
				f[from+bit/8] ^= 1 << (bit % 8)
			}
			x := frame{bytes: f}
			if r.IntN(3) == 0 {
				x.split = 1 + r.IntN(len(f)-1)
				splits += uint64(len(f))
			}
			src.push(x)
			if bad {
				wrong++
			} else {
				want = append(want, f)
			}
		}
		b := burst.NewSegmented(1+r.IntN(8), 32)
		var got [][]byte
		for idle := 0; idle < 30; idle++ {
			n, err := s.TryRecv(b)
			if err != nil {
				t.Fatal(err)
			}
			for i := b.Len() - n; i < b.Len(); i++ {
				p := make([]byte, b.PacketLen(i))
				b.CopyTo(p, i)
				got = append(got, p)
			}
			if r.IntN(2) == 0 { // what is in the burst already is left alone
				b.Release()
			}
		}
		b.Release()
		if len(got) != len(want) {
			t.Fatalf("seed %d: %d frames, expected %d", seed, len(got), len(want))
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("seed %d: frame %d is %x\nexpected %x", seed, i, got[i], want[i])
			}
		}
		var st engine.RxStats
		s.Stats(&st)
		if st.Packets != uint64(len(want)) || st.Drops.Total() != wrong ||
			st.Drops[engine.DropBadChecksum]+st.Drops[engine.DropBadFrame] != wrong || st.Copied != splits {
			t.Errorf("seed %d: %+v, expected %d dropped and %d bytes copied", seed, st, wrong, splits)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What the card has verified is not verified again.
func TestVerifiedByTheCard(t *testing.T) {
	src := newSource(t, mem.Options{})
	s := open(t, src)
	src.push(frame{bytes: make([]byte, 9), flags: burst.ChecksumGood}, frame{bytes: make([]byte, 9)})
	b := burst.New(8)
	if n, err := s.TryRecv(b); n != 1 || err != nil || b.Flags(0) != burst.ChecksumGood {
		t.Errorf("%d packets, %v", n, err)
	}
	b.Release()
}

// A batch is not delivered early because of frames that are dropped, and waits no longer for them.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource(t, mem.Options{})
		rx := engine.NewRx(open(t, src), engine.Batching{Packets: 4, Timeout: time.Second})
		good := frame{bytes: frames(t, rand.New(rand.NewPCG(1, 1)))[0]}
		go func() {
			for i := range 5 {
				time.Sleep(300 * time.Millisecond)
				bad := frame{bytes: make([]byte, 5)}
				if i%2 == 0 {
					src.mu.Lock()
					src.late = []frame{bad}
					src.mu.Unlock()
					src.push(good)
				} else {
					src.push(bad)
				}
			}
		}()
		b := burst.New(8)
		start := time.Now()
		if err := rx.Recv(t.Context(), b); err != nil || b.Len() != 2 || time.Since(start) != 1300*time.Millisecond {
			t.Errorf("%d packets after %v, %v", b.Len(), time.Since(start), err)
		}
		b.Release()
		if err := rx.Recv(t.Context(), b); err != nil || b.Len() != 1 || time.Since(start) != 2500*time.Millisecond {
			t.Errorf("%d packets after %v, %v", b.Len(), time.Since(start), err)
		}
		b.Release()
	})
}

// The processor does not verify what it cannot read: the stage fails behind what it gave, and what
// it took is given back.
func TestDeviceMemory(t *testing.T) {
	rt, err := host.Open(host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := rt.Devices()[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	p, err := gpumem.New(ctx, gpumem.Options{Opaque: true, Streams: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), ctx.Close(), rt.Close()); err != nil {
			t.Error(err)
		}
	})
	src := newSource(t, mem.Options{Kind: mem.Device, Provider: p})
	s := open(t, src)
	src.push(frame{bytes: make([]byte, 60), flags: burst.ChecksumGood}, frame{bytes: make([]byte, 60)},
		frame{bytes: make([]byte, 60), flags: burst.ChecksumGood})
	rx := engine.NewRx(s, engine.Batching{})
	b := burst.New(8)
	if err := rx.Recv(t.Context(), b); err != nil || b.Len() < 1 {
		t.Fatal(b.Len(), err)
	}
	b.Release()
	for range 2 {
		if err := rx.Recv(t.Context(), b); !errors.Is(err, engine.ErrUnsupported) {
			t.Error(err)
		}
	}
	var st engine.RxStats
	if s.Stats(&st); st.Drops[engine.DropRefused]+st.Packets != 3 || st.Packets > 2 {
		t.Errorf("%+v", st)
	}
}

// What has no checksum yet passes, with its flag. With the option all it has to be so.
func TestPartial(t *testing.T) {
	f := packet.UDPFrame{Src: netip.MustParseAddrPort("198.18.0.1:7"), Dst: netip.MustParseAddrPort("198.18.0.2:8"),
		Checksum: packet.ChecksumOffload}
	partial := make([]byte, f.HeaderLen()+100)
	if _, err := f.Fill(partial, 100); err != nil {
		t.Fatal(err)
	}
	wrong := bytes.Clone(partial)
	wrong[f.HeaderLen()-1] ^= 1 // of the checksum
	for _, c := range []struct {
		all   bool
		frame []byte
		pass  int
	}{{false, partial, 1}, {false, wrong, 1}, {true, partial, 1}, {true, wrong, 0}} {
		src := newSource(t, mem.Options{})
		s, err := checksum.New(src, engine.StageSpec{Queue: "rx", Port: engine.Capabilities{Frames: true},
			Options: checksum.Options{All: c.all}})
		if err != nil {
			t.Fatal(err)
		}
		src.push(frame{bytes: c.frame, flags: burst.ChecksumPartial})
		b := burst.New(8)
		if n, err := s.TryRecv(b); n != c.pass || err != nil {
			t.Errorf("all %t: %d passed, want %d: %v", c.all, n, c.pass, err)
		} else if n > 0 && b.Flags(0) != burst.ChecksumPartial {
			t.Errorf("all %t: flags %#x", c.all, b.Flags(0))
		}
		b.Release()
	}
}

// With the option all, in Go and behind the type of a file, what the card has verified is verified
// again.
func TestAll(t *testing.T) {
	spec := engine.StageSpec{Queue: "rx", Port: engine.Capabilities{Frames: true}}
	k, err := engine.FindStage([]engine.StageKind{checksum.Kind}, "checksum?all", &spec)
	if err != nil || spec.Options != (checksum.Options{All: true}) {
		t.Fatalf("%+v, %v", spec.Options, err)
	}
	src := newSource(t, mem.Options{})
	s, err := k.Open(src, spec)
	if err != nil {
		t.Fatal(err)
	}
	src.push(frame{bytes: make([]byte, 9), flags: burst.ChecksumGood})
	if n, err := s.TryRecv(burst.New(8)); n != 0 || err != nil {
		t.Errorf("%d packets, %v", n, err)
	}
	for text, want := range map[string]string{"checksum?al": "did you mean all", "checksum?all=7": "1 or 0"} {
		if _, err := engine.FindStage([]engine.StageKind{checksum.Kind}, text, &spec); !errors.Is(err,
			engine.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := checksum.New(src, engine.StageSpec{Port: spec.Port, Options: 7}); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
}

func TestRefusesPayloads(t *testing.T) {
	if _, err := checksum.New(newSource(t, mem.Options{}), engine.StageSpec{Queue: "rx"}); !errors.Is(err,
		engine.ErrUnsupported) {
		t.Error(err)
	}
	if _, err := engine.FindStage([]engine.StageKind{checksum.Kind}, "checksum", new(engine.StageSpec)); !errors.Is(err,
		engine.ErrUnsupported) {
		t.Error(err)
	}
	if _, err := open(t, newSource(t, mem.Options{})).TryRecv(nil); err != engine.ErrNil {
		t.Error(err)
	}
}

func TestAllocs(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "this build allocates for its checks")
	src := newSource(t, mem.Options{})
	rx := engine.NewRx(open(t, src), engine.Batching{})
	b := burst.NewSegmented(8, 16)
	good := frame{bytes: frames(t, rand.New(rand.NewPCG(1, 1)))[0], split: 42}
	all := []frame{good, {bytes: make([]byte, 5)}, good, good}
	src.fifo = make([]frame, 0, 1<<12)
	if n := testing.AllocsPerRun(100, func() {
		src.push(all...)
		if err := rx.Recv(context.Background(), b); err != nil || b.Len() != 3 {
			t.Fatal(err, b.Len())
		}
		b.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func ExampleNew() {
	fmt.Println(checksum.Kind.Name, "-", checksum.Kind.Doc)
	// Output: checksum - verifies checksums that neither the network card nor the kernel has verified
}
