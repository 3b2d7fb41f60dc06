package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/pcap"
	"github.com/penstock-io/penstock/packet/pcapread"
	"github.com/penstock-io/penstock/stage/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const first = 1_700_000_000_123_456_789

// frame is an Ethernet frame with a number.
func frame(i, size int) []byte {
	p := make([]byte, size)
	copy(p, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5})
	for k := 14; k < len(p); k++ {
		p[k] = byte(i>>(8*(k&3)) + k)
	}
	return p
}

// frames is a file of frames at these times behind the first one.
func frames(size int, at ...time.Duration) []byte {
	b := pcap.Pcap.AppendHeader(nil, &pcap.Interface{Link: pcap.Ethernet})
	for i, t := range at {
		b = add(b, frame(i, size), size, t)
	}
	return b
}

func add(b, frame []byte, length int, at time.Duration) []byte {
	return append(pcap.Pcap.AppendPacket(b, &pcap.Packet{Time: first + int64(at), Captured: len(frame),
		Length: length}),
		frame...)
}

// files are the files of a Source.
func files(all ...[]byte) func() (*pcapread.Merger, error) {
	return func() (*pcapread.Merger, error) {
		var rs []*pcapread.Reader
		for i, b := range all {
			r, err := pcapread.Open(fmt.Sprint("file ", i), bytes.NewReader(b))
			if err != nil {
				return nil, err
			}
			rs = append(rs, r)
		}
		return pcapread.Merge(rs...), nil
	}
}

// rig is two ports that are joined.
type rig struct {
	t   *testing.T
	net *sim.Network
	tx  engine.TxQueue
	rx  *engine.Rx
}

const slot = 2048

func newRig(t *testing.T) *rig {
	t.Helper()
	n, err := sim.NewNetwork(sim.Options{Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Link("a", "b"); err != nil {
		t.Fatal(err)
	}
	x := &rig{t: t, net: n}
	open := func(name string) (engine.Port, *mem.Pool) {
		p, err := n.OpenPort(t.Context(), engine.PortSpec{Address: name})
		if err != nil {
			t.Fatal(err)
		}
		pool, err := mem.NewPool(mem.PoolOptions{Name: name, SlotSize: slot, Slots: 4096})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(p.Close(), pool.Close()); err != nil {
				t.Error(err)
			}
		})
		return p, pool
	}
	a, pool := open("a")
	if x.tx, err = a.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}}); err != nil {
		t.Fatal(err)
	}
	b, pool := open("b")
	q, err := b.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}, Depth: 2048, Timestamps: true})
	if err != nil {
		t.Fatal(err)
	}
	x.rx = engine.NewRx(q, engine.Batching{})
	return x
}

// run replays, and checks what comes.
func (x *rig) run(s Source) (Result, Report, error) {
	x.t.Helper()
	if s.Link == 0 {
		s.Link, s.Max = pcap.Ethernet, slot
	}
	c := NewChecker()
	ctx, cancel := context.WithCancel(x.t.Context())
	done := make(chan error)
	go func() { done <- c.Receive(ctx, x.rx) }()
	r, err := Run(x.t.Context(), Options{Source: s, Queue: x.tx, Slot: slot, Check: c})
	c.Wait(x.t.Context(), time.Second)
	cancel()
	if err := <-done; err != nil {
		x.t.Error(err)
	}
	return r, c.Report(), err
}

// Each packet leaves at its time, counted from one start, whatever the times are by.
func TestTimes(t *testing.T) {
	const ms = time.Millisecond
	at := []time.Duration{0, 10 * ms, 10 * ms, 250 * ms, 200 * ms, time.Hour}
	one, two := frames(125, 0, 30*ms, 50*ms), frames(250, 20*ms, 40*ms)
	for name, c := range map[string]struct {
		s       Source
		packets uint64
		took    time.Duration
	}{
		"recorded":   {Source{Open: files(frames(100, at...)), Rounds: 1, Speed: 1}, 6, time.Hour},
		"twice":      {Source{Open: files(frames(100, at...)), Rounds: 1, Speed: 2}, 6, time.Hour / 2},
		"half":       {Source{Open: files(frames(100, at...)), Rounds: 1, Speed: 0.5}, 6, 2 * time.Hour},
		"merged":     {Source{Open: files(one, two), Rounds: 1, Speed: 1}, 5, 50 * ms},
		"rounds":     {Source{Open: files(one, two), Rounds: 3, Speed: 1}, 15, 150 * ms},
		"packets":    {Source{Open: files(one, two), Rounds: 2, PPS: 1000}, 10, 9 * ms},
		"bits":       {Source{Open: files(one), Rounds: 2, Rate: 1e6}, 6, 5 * ms},
		"at once":    {Source{Open: files(frames(100, at...)), Rounds: 100}, 600, 0},
		"from":       {Source{Open: files(one, two), Rounds: 2, Speed: 1, From: offset(30 * ms)}, 6, 40 * ms},
		"to":         {Source{Open: files(one, two), Rounds: 2, Speed: 1, To: offset(30 * ms)}, 4, 40 * ms},
		"nothing":    {Source{Open: files(one, two), Speed: 1, From: offset(time.Hour)}, 0, 0},
		"from to":    {Source{Open: files(one), Rounds: 1, Speed: 1, From: offset(20 * ms), To: offset(40 * ms)}, 1, 0},
		"as it come": {Source{Open: files(one), Rounds: 1, Speed: 1, Live: true}, 3, 50 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, c, err := newRig(t).run(c.s)
				if err != nil {
					t.Fatal(err)
				}
				want := Report{Came: r.Packets}
				if c.Dropped = nil; r.Packets != want.Came || !same(c, want) || r.Late != 0 {
					t.Errorf("%+v, %+v", r, c)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				r, _, _ := newRig(t).run(c.s)
				if r.Packets != c.packets || r.Seconds != c.took.Seconds() {
					t.Errorf("%d packets in %v s, expected %d in %v", r.Packets, r.Seconds, c.packets, c.took)
				}
			})
		})
	}
}

func offset(d time.Duration) func(int64) int64 {
	return func(first int64) int64 { return first + int64(d) }
}

func same(a, b Report) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// What is not sent is counted by its reason, or an error before the first packet is sent.
func TestSkipped(t *testing.T) {
	x, b := newRig(t), frames(100, 0, 1)
	b = add(b, frame(2, 100), 300, 2)
	b = add(b, frame(3, slot+1), slot+1, 3)
	b = add(b, frame(4, 13), 13, 4)
	r, c, err := x.run(Source{Open: files(b), Rounds: 1, Speed: 1})
	if !errors.Is(err, ErrCut) || !strings.Contains(err.Error(), "file 0: packet 3: 100 bytes of 300") ||
		r.Packets != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	user := pcap.Pcap.AppendHeader(nil, &pcap.Interface{Link: pcap.User0})
	user = add(user, frame(5, 100), 100, 1)
	r, c, err = x.run(Source{Open: files(b, user), Rounds: 1, Speed: 1, Pad: true, From: offset(1)})
	if want := "map[of another link type:1 outside of the time:1 shorter than an Ethernet header:1 too long for the " +
		"port:1]"; err != nil ||
		r.Packets != 2 || r.Bytes != 400 || c.Came != 2 || fmt.Sprint(r.Skipped) != want {
		t.Errorf("%+v, %+v, %v", r, c, err)
	}
	// What was in the memory before is not in a packet that is filled up.
	s := newSource(Source{Link: pcap.Ethernet, Max: slot, Pad: true}, false)
	used := <-s.free
	used.b = bytes.Repeat([]byte{0xff}, chunkSize)
	for len(s.free) > 0 {
		<-s.free
	}
	s.free <- used
	if err := s.take(t.Context(), &pcapread.Packet{Data: frame(1, 60), Length: 64, Link: pcap.Ethernet},
		true); err != nil ||
		!bytes.Equal(s.cur.b, append(frame(1, 60), 0, 0, 0, 0)) {
		t.Errorf("%x, %v", s.cur.b, err)
	}
	// A port of datagrams sends what was recorded of such a port.
	r, _, err = x.run(Source{Open: files(b, user), Rounds: 1, Speed: 1, Link: pcap.User0, Max: slot})
	if err != nil || r.Packets != 1 || r.Skipped[SkipLink] != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	// A file that cannot be opened again, and one that ends in the middle of a long replay.
	gone := errors.New("gone")
	if _, _, err = x.run(Source{Open: func() (*pcapread.Merger, error) { return nil, gone }, Rounds: 1}); err != gone {
		t.Error(err)
	}
	long := frames(1000, make([]time.Duration, 20000)...)
	r, c, err = x.run(Source{Open: files(long[:len(long)-1]), Rounds: 1, PPS: 1e6})
	if !errors.Is(err, io.ErrUnexpectedEOF) || r.Packets != 19999 || c.Missing > 0 && c.Came+c.Missing != 19999 {
		t.Errorf("%+v, %+v, %v", r, c, err)
	}
	var simple []byte // packets without times
	simple = pcap.PcapNG.AppendHeader(nil, &pcap.Interface{Link: pcap.Ethernet})
	simple = append(simple, 3, 0, 0, 0, 76, 0, 0, 0, 60, 0, 0, 0)
	simple = append(append(simple, frame(1, 60)...), 76, 0, 0, 0)
	if _, _, err = x.run(Source{Open: files(simple), Rounds: 1, Speed: 1}); err == nil ||
		!strings.Contains(err.Error(), "--pps") {
		t.Error(err)
	}
	if r, _, err = x.run(Source{Open: files(simple), Rounds: 1, PPS: 1e6}); err != nil || r.Packets != 1 {
		t.Error(r, err)
	}
}

// The end of the context ends a replay without an end, and one that waits for a packet of a pipe.
func TestEnds(t *testing.T) {
	x := newRig(t)
	in, out := io.Pipe()
	go out.Write(frames(100, 0)[:24])
	for _, s := range []Source{{Open: files(frames(100, 0, time.Hour)), Speed: 1},
		{Open: func() (*pcapread.Merger, error) {
			r, err := pcapread.Open("pipe", in)
			return pcapread.Merge(r), err
		}, Rounds: 1, Live: true}} {
		ctx, cancel := context.WithCancel(t.Context())
		s.Link, s.Max = pcap.Ethernet, slot
		done := make(chan error)
		go func() {
			_, err := Run(ctx, Options{Source: s, Queue: x.tx, Slot: slot})
			done <- err
		}()
		runtime.Gosched()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	out.Close() // the reader of the pipe ends
}

// A Checker tells what a network does to packets.
func TestChecker(t *testing.T) {
	c := NewChecker()
	at := time.Unix(0, first)
	send := func(size int, all ...int) {
		for _, i := range all {
			c.expect([]rec{{due: int64(i), hash: hashOf(frame(i, size)), len: size}}, at, 0, true)
		}
	}
	come := func(size int, all ...int) {
		for _, i := range all {
			c.take(frame(i, size), first+int64(i)+1000)
		}
	}
	send(60, 1, 2, 3, 3, 3, 4, 5, 6)
	send(54, 7)
	send(100, 8, 9)
	come(60, 1, 3, 2, 3, 3, 3, 3, 5, 5) // 2 is late, 3 comes five times, 5 twice; 4 and 6 do not come
	c.take(append(frame(7, 54), 0, 0, 0, 0, 0, 0), first)
	come(60, 30, 31, 32) // two of them are 4 and 6, changed
	come(99, 8)
	if got, want := c.Report(), (Report{Came: 7, Missing: 2, Changed: 2, Repeated: 3, Reordered: 1, Extra: 2,
		ErrorP50: 1.008,
		ErrorP99: 1, ErrorMax: 1}); got.Came != want.Came || got.Missing != want.Missing ||
		got.Changed != want.Changed ||
		got.Repeated != want.Repeated || got.Reordered != want.Reordered || got.Extra != want.Extra ||
		got.ErrorMax != 1 ||
		got.ErrorP99 != 1 || got.ErrorP50 < 0.9 || got.ErrorP50 > 1 {
		t.Errorf("%+v, expected %+v", got, want)
	}
	// It looks back so far, and no further, with little memory.
	c = NewChecker()
	for i := range window + 10 {
		if i == 100 {
			send(60, 5) // again
			continue
		}
		send(60, i)
		if i >= 10 && i < window {
			come(60, i)
		}
	}
	come(60, 5, 7, 10, 11, window+1, window+2, window+5)
	if got := c.Report(); got.Came != window-7 || got.Repeated != 2 || got.Reordered != 1 || got.Changed != 1 ||
		got.Missing != 16 ||
		len(c.known) != window {
		t.Errorf("%+v, %d hashes", got, len(c.known))
	}
}

// What is recorded, replayed and recorded again is the same, packet by packet.
func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	path := func(i int) string { return filepath.Join(dir, fmt.Sprint(i, ".pcapng")) }
	write := func(i int) *record.Recorder {
		r, err := record.New(record.Options{Name: path(i), Format: record.PcapNG,
			Interface: pcap.Interface{Link: pcap.Ethernet, Name: "eth7"}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	open := func(i int) *pcapread.Reader {
		f, err := os.Open(path(i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		r, err := pcapread.Open(path(i), f)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// 10^6 packets are read as they were recorded.
	const n = 1_000_000
	region, err := mem.Alloc(mem.Options{Size: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { region.Close() })
	memory := region.All().Bytes()
	src, b := burst.NewSource(region, memory, nil), burst.New(64)
	size := func(i int) int { return 60 + i%7*i%13 }
	r := write(0)
	for i := 0; i < n; {
		for k := range b.Cap() {
			copy(memory[k<<10:], frame(i, size(i)))
			b.Builder().Add(src, burst.Segment{Handle: burst.NoHandle, Off: uint64(k << 10), Len: uint32(size(i))})
			b.Builder().SetReceived(k, 0, burst.HasTime, first+int64(i)*1001)
			i++
		}
		for taken := r.Stats(); taken.Taken-taken.Packets > 100_000; taken = r.Stats() {
			runtime.Gosched()
		}
		r.Add(b)
		b.Release()
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	in := open(0)
	for i := range n {
		p, err := in.Next()
		if err != nil || !bytes.Equal(p.Data, frame(i, size(i))) || p.Length != size(i) ||
			p.Time != first+int64(i)*1001 {
			t.Fatalf("packet %d: %+v, %v", i, p, err)
		}
	}
	if _, err := in.Next(); err != io.EOF {
		t.Errorf("behind the last one: %v", err)
	}
	// The first ones go through a network in virtual time, which is an hour's of theirs.
	const some = 3_600
	synctest.Test(t, func(t *testing.T) {
		x, r := newRig(t), write(1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for b := burst.New(64); x.rx.Recv(ctx, b) == nil; b.Release() {
				r.Add(b)
			}
		}()
		res, err := Run(t.Context(), Options{Queue: x.tx, Slot: slot,
			Source: Source{Rounds: 1, Speed: 1e-6, Link: pcap.Ethernet,
				Max: slot, To: offset(some * 1001), Open: func() (*pcapread.Merger, error) {
					return pcapread.Merge(open(0)), nil
				}}})
		if err != nil || res.Packets != some || res.Late != 0 {
			t.Errorf("%+v, %v", res, err)
		}
		synctest.Wait()
		cancel()
		<-done
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	was, is := open(0), open(1)
	var start int64
	for i := range some {
		a, err := was.Next()
		if err != nil {
			t.Fatal(err)
		}
		b, err := is.Next()
		if i == 0 && err == nil {
			start = b.Time
		}
		if err != nil || !bytes.Equal(a.Data, b.Data) || b.Time-start != (a.Time-first)*1_000_000 {
			t.Fatalf("packet %d: %v, %d behind the first, expected %d", i, err, b.Time-start, (a.Time-first)*1_000_000)
		}
	}
	if _, err := is.Next(); err != io.EOF {
		t.Errorf("behind the last one: %v", err)
	}
}
