package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// duo is an honest path p and a peer q of which the tests misuse the insides.
type duo struct {
	t      testing.TB
	p, q   *Path
	px, qx *path.Exports
	buf    [8]path.Event // for events that do not matter
}

func newDuo(t testing.TB, d Driver, window int) *duo {
	t.Helper()
	u := &duo{t: t, px: new(path.Exports), qx: new(path.Exports)}
	u.p, u.q = connect(t, d, setup.Config{Rights: path.Read | path.Write, Exports: u.px, Window: window},
		setup.Config{Rights: path.Read | path.Write, Exports: u.qx, Window: window})
	t.Cleanup(func() {
		u.p.Close()
		u.q.Close()
		u.p.Exposed()
		u.q.Exposed()
		u.p.Exposed()
		for _, x := range []*path.Exports{u.px, u.qx} {
			for _, e := range x.All() {
				x.Revoke(e)
				x.Retire(e)
			}
		}
	})
	return u
}

// count is the number of entries of a directory, or of lines of a file.
func count(t testing.TB, name string) int {
	t.Helper()
	if d, err := os.ReadDir(name); err == nil {
		return len(d)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("\n"))
}

func (u *duo) region(size int) *mem.Region {
	r, err := mem.Alloc(mem.Options{Name: "duo", Size: size, Lazy: true})
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { r.Close() })
	return r
}

func export(t testing.TB, x *path.Exports, r *mem.Region, rights path.Rights) *path.Export {
	t.Helper()
	e, err := x.Add(r.All(), rights)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// do posts one operation on p and returns its end.
func (u *duo) do(op path.Op) path.Event {
	u.t.Helper()
	if _, err := u.p.Post([]path.Op{op}); err != nil {
		u.t.Fatal(err)
	}
	return u.done()
}

// done polls both ends until an operation of p ends.
func (u *duo) done() path.Event {
	u.t.Helper()
	var e [1]path.Event
	for start := time.Now(); ; {
		if u.p.Poll(e[:]) == 1 && e[0].Kind == path.EventDone {
			return e[0]
		}
		u.q.Poll(u.buf[:])
		if time.Since(start) > time.Minute {
			u.t.Fatalf("no EventDone\np: %s\nq: %s", strings.Join(u.p.Explain(), "\n"),
				strings.Join(u.q.Explain(), "\n"))
		}
	}
}

// ends polls only p until it is down and returns the reason.
func (u *duo) ends() error {
	u.t.Helper()
	var e [4]path.Event
	for start := time.Now(); ; {
		for _, e := range e[:u.p.Poll(e[:])] {
			if e.Kind == path.EventDown {
				return e.Err
			}
		}
		if time.Since(start) > time.Minute {
			u.t.Fatalf("the path does not go down: %v", u.p.Explain())
		}
	}
}

func put(local mem.Span, k path.Key, off uint64) path.Op {
	return path.Op{Kind: path.Put, Copies: []path.Copy{{Local: local, Key: k, RemoteOff: off}}}
}

// memfd makes a memfd for tests to pass around.
func memfd(t testing.TB, size int64, seals int) int {
	t.Helper()
	fd, err := sys.MemfdCreate("test", size, 0)
	if err != nil {
		t.Fatal(err)
	}
	if seals != 0 {
		if err := sys.AddSeals(fd, seals); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { sys.Close(fd) })
	return fd
}

func TestGarbageOnTheSocket(t *testing.T) {
	enc := func(k packet) []byte {
		var b [packetSize]byte
		k.encode(&b)
		return b[:]
	}
	bad := enc(packet{kind: packetRevoke})
	bad[3] = 1
	file, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		name string
		b    []byte
		fd   int
	}{
		{"one unknown byte", []byte{0}, -1},
		{"31 bytes", make([]byte, 31), -1},
		{"33 bytes", make([]byte, 33), -1},
		{"1 KiB", make([]byte, 1024), -1},
		{"zeros", make([]byte, 32), -1},
		{"unknown type", bytes.Repeat([]byte{0xff}, 32), -1},
		{"reserved byte set", bad, -1},
		{"attach with a size", enc(packet{kind: packetAttach, size: 1}), -1},
		{"attach with a descriptor", enc(packet{kind: packetAttach, id: 1}), memfd(t, 4096, sys.SealShrink)},
		{"bell with a descriptor", bellPacket, memfd(t, 4096, sys.SealShrink)},
		{"answer to nothing", enc(packet{kind: packetAttached, arg: statusKey, id: 99}), -1},
		{"answer to nothing, with memory", enc(packet{kind: packetAttached, rights: path.Read, size: 4096, id: 99}), memfd(t, 4096, sys.SealShrink)},
		{"answer without memory", enc(packet{kind: packetAttached, rights: path.Read, size: 4096}), -1},
		{"answer with an unknown status", enc(packet{kind: packetAttached, arg: 77}), -1},
		{"answer with a huge size", enc(packet{kind: packetAttached, rights: path.Read, size: 1 << 63}), memfd(t, 4096, sys.SealShrink)},
		{"region without memory", enc(packet{kind: packetRegion, id: 1, size: 4096}), -1},
		{"region, unsealed", enc(packet{kind: packetRegion, id: 1, size: 4096}), memfd(t, 4096, 0)},
		{"region, wrong size", enc(packet{kind: packetRegion, id: 1, size: 8192}), memfd(t, 4096, sys.SealShrink)},
		{"region, not a memfd", enc(packet{kind: packetRegion, id: 1, size: 4096}), int(file.Fd())},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := newDuo(t, Driver{}, 0)
			before := count(t, "/proc/self/fd")
			if e := sys.SendPacket(u.q.sock, c.b, c.fd); e != 0 {
				t.Fatal(e)
			}
			if err := u.ends(); !errors.Is(err, path.ErrProtocol) || !errors.Is(err, path.ErrDown) {
				t.Errorf("down with %v, expected ErrProtocol and ErrDown", err)
			}
			if n := count(t, "/proc/self/fd"); n > before {
				t.Errorf("%d descriptors, %d before: what came with the packet was not closed", n, before)
			}
		})
	}
}

func TestGarbageInTheRing(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(q *Path)
	}{
		{"unknown kind", func(q *Path) { q.tx.Put(200, 0, 0, 0, 0, nil) }},
		{"short job", func(q *Path) { q.tx.Put(messageHelp, 0, 0, 0, 0, make([]byte, 3)) }},
		{"impossible commit word", func(q *Path) {
			wordAt(q.ctl.mem, ringsAt+0*ringBytes(q.window)+128).Store(1 << 40)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := newDuo(t, Driver{}, 0)
			c.do(u.q)
			if err := u.ends(); !errors.Is(err, path.ErrProtocol) {
				t.Errorf("down with %v, expected ErrProtocol", err)
			}
		})
	}
}

// An export is offered with a file that could take the memory away again, or that is not what was
// said.
func TestOfferedMemoryIsChecked(t *testing.T) {
	pipe, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer w.Close()
	truncated := memfd(t, 8192, 0)
	if err := sys.Ftruncate(truncated, 100); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		fd   int
		off  uint64
		ok   bool
	}{
		{"sealed", memfd(t, 8192, sys.SealShrink), 0, true},
		{"unsealed", memfd(t, 8192, 0), 0, false},
		{"sealed against growing only", memfd(t, 8192, sys.SealGrow), 0, false},
		{"truncated", truncated, 0, false},
		{"smaller than said", memfd(t, 4096, sys.SealShrink), 0, false},
		{"a part", memfd(t, 16384, sys.SealShrink), 4096, true},
		{"a part beyond the end", memfd(t, 8192, sys.SealShrink), 4096, false},
		{"a part far beyond the end", memfd(t, 8192, sys.SealShrink), maxMapping, false},
		{"pipe", int(pipe.Fd()), 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := newDuo(t, Driver{}, 0)
			local := u.region(4096)
			if _, err := u.p.Post([]path.Op{put(local.All(), path.Key{Index: 1}, 0)}); err != nil {
				t.Fatal(err)
			}
			var b [packetSize]byte
			(&packet{kind: packetAttached, id: 1, rights: path.Read | path.Write, size: 8192, off: c.off}).encode(&b)
			if e := sys.SendPacket(u.q.sock, b[:], c.fd); e != 0 {
				t.Fatal(e)
			}
			var events []path.Event
			var e [4]path.Event
			for start := time.Now(); len(events) == 0 && time.Since(start) < time.Minute; {
				events = append(events, e[:u.p.Poll(e[:])]...)
			}
			if len(events) == 0 || events[0].Kind != path.EventDone || (events[0].Err == nil) != c.ok {
				t.Fatalf("events %+v, expected EventDone with success %v", events, c.ok)
			}
			if !c.ok && !errors.Is(events[0].Err, path.ErrProtocol) {
				t.Errorf("error %v, expected ErrProtocol", events[0].Err)
			}
		})
	}
}

// Whatever the peer writes to the control memory, this side neither faults nor hangs nor writes
// outside.
func TestScribbledControlMemory(t *testing.T) {
	for seed := range uint64(40) {
		u := newDuo(t, Driver{}, 16)
		mine, theirs := u.region(12<<20), u.region(12<<20)
		e := export(t, u.qx, theirs, path.Read|path.Write)
		own := export(t, u.px, mine, path.Read|path.Write)
		if e := u.do(put(mem.Span{Region: mine, Len: 64}, e.Key(), 0)); e.Err != nil {
			t.Fatal(e.Err)
		}
		r := rand.New(rand.NewPCG(seed, 1))
		m := u.q.ctl.mem
		var events [4]path.Event
		notify := put(mem.Span{Region: mine, Len: 64}, e.Key(), 0)
		notify.Notify, notify.Msg = true, make([]byte, 100)
		large := put(mine.All(), e.Key(), 0)
		down := false
		for i := 0; i < 3000 && !down; i++ {
			switch r.IntN(6) {
			case 0:
				m[r.IntN(len(m))] ^= byte(1 << r.IntN(8))
			case 1:
				wordAt(m, claimAt+jobStep*r.IntN(2)).Store(r.Uint64N(1 << 34))
			case 2:
				wordAt(m, doneAt+jobStep*r.IntN(2)).Store(r.Uint64N(1 << 34))
			case 3:
				u.p.Post([]path.Op{notify})
			case 4:
				if r.IntN(20) == 0 {
					u.p.Post([]path.Op{large})
				}
			case 5:
				var b [helpPayload]byte
				own.Key().Append(b[:0])
				b[path.KeySize], b[path.KeySize+4] = 1, byte(i)
				u.q.tx.Put(messageHelp, r.Uint64N(1<<24), r.Uint64N(1<<24), r.Uint64N(1<<24), 0, b[:])
				if r.IntN(2) == 0 {
					u.q.lendRegion(theirs)
				}
			}
			for _, e := range events[:u.p.Poll(events[:])] {
				down = down || e.Kind == path.EventDown
				if e.Err != nil && !errors.Is(e.Err, path.ErrProtocol) && !errors.Is(e.Err, path.ErrDown) {
					t.Errorf("seed %d: %v", seed, e.Err)
				}
			}
			u.p.Arm()
		}
		u.p.Close()
		u.q.Close()
	}
}

// A helper that claims a chunk and then stops keeps the operation open, also when it is canceled,
// until the path closes.
func TestHelperThatStops(t *testing.T) {
	for _, how := range []string{"wait", "cancel", "close", "die", "finish", "lie"} {
		t.Run(how, func(t *testing.T) {
			u := newDuo(t, Driver{}, 0)
			if !u.p.helps {
				testenv.Missing(t, "two processors: one helps the other", fmt.Errorf("there is %d", runtime.NumCPU()))
			}
			local, remote := u.region(helpBytes+1000), u.region(helpBytes+4096)
			k := export(t, u.qx, remote, path.Read|path.Write).Key()
			if e := u.do(put(mem.Span{Region: local, Len: 1}, k, 0)); e.Err != nil {
				t.Fatal(e.Err)
			}
			op := put(mem.Span{Region: local, Len: helpBytes + 1000}, k, 77)
			op.Token = 5
			if _, err := u.p.Post([]path.Op{op}); err != nil {
				t.Fatal(err)
			}
			u.p.Poll(u.buf[:])
			claim := u.q.ctl.peerClaim
			w := claim.Add(1) - 1 // the helper takes a chunk
			if uint32(w) == 0 || uint32(w>>32) != 1 {
				t.Fatalf("claim word %#x, expected a job under way", w)
			}
			var events [4]path.Event
			poll := func() []path.Event {
				for range 200 {
					if n := u.p.Poll(events[:]); n > 0 {
						return events[:n]
					}
				}
				return nil
			}
			if how == "cancel" && !u.p.Cancel(5) {
				t.Fatal("Cancel does not find the operation")
			}
			if e := poll(); e != nil {
				t.Fatalf("the operation ended while the helper has a chunk: %+v", e)
			}
			if u.p.Arm() {
				t.Error("Arm says that there is work while only the helper can go on")
			}
			var want error
			switch how {
			case "wait":
				u.p.Poll(u.buf[:])
				return
			case "close":
				want = path.ErrDown
				u.p.Close()
			case "die":
				want = path.ErrDown
				u.q.closeSocket()
			case "lie":
				want = path.ErrProtocol
				u.q.ctl.peerDone.Store(jobWord(1, 5)) // it claimed one
				u.q.ringPeer()
			case "cancel", "finish":
				if how == "cancel" {
					want = path.ErrCanceled
				}
				u.q.ctl.peerDone.Store(jobWord(1, 1))
				u.q.tx.Put(messageHelped, 1, 0, 0, 0, nil)
				if u.q.peerParked.Load() != parked {
					t.Error("p is not parked")
				}
				u.q.ringPeer()
			}
			if i, err := sys.PollIn(5000, max(u.p.FD(), 0)); how != "close" && (err != nil || i != 0) {
				t.Fatal("FD does not become readable when the helper is through")
			}
			e := poll()
			if e == nil || e[0].Token != 5 || !errors.Is(e[0].Err, want) || (e[0].Err == nil) != (want == nil) {
				t.Fatalf("events %+v, expected the end of operation 5 with %v", e, want)
			}
		})
	}
}

// A fault in the peer's memory is an error of the operation, not the end of the process.
func TestFaultIsAnError(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	local, remote := u.region(1<<20), u.region(1<<20)
	k := export(t, u.qx, remote, path.Read|path.Write).Key()
	if e := u.do(put(local.All(), k, 0)); e.Err != nil {
		t.Fatal(e.Err)
	}
	// Put a file in place of the export that can be truncated, as a hole would be punched into huge
	// pages.
	fd := memfd(t, 1<<20, 0)
	m, err := sys.Mmap(fd, 0, 1<<20, sys.ProtRead|sys.ProtWrite, sys.MapShared)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Munmap(m)
	if err := sys.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	a := u.p.atts[k]
	good := a.main
	a.main = m
	for _, n := range []uint64{64, 4096, 1 << 20} {
		for _, kind := range []path.OpKind{path.Put, path.Get} {
			op := put(mem.Span{Region: local, Len: n}, k, 0)
			op.Kind = kind
			if e := u.do(op); !errors.Is(e.Err, path.ErrUnreachable) {
				t.Errorf("%d bytes, kind %d, of memory that is gone: %v, expected ErrUnreachable", n, kind, e.Err)
			}
		}
	}
	a.main = good
	if e := u.do(put(local.All(), k, 0)); e.Err != nil {
		t.Errorf("after faults: %v", e.Err)
	}
}

// A peer that asks for memory and never takes the answers costs a bounded queue, and no descriptor
// once the path is closed.
func TestPeerThatNeverReads(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	k := export(t, u.px, u.region(4096), path.Read|path.Write).Key()
	before := count(t, "/proc/self/fd")
	full := false
	for i := range 100_000 {
		var b [packetSize]byte
		(&packet{kind: packetAttach, id: uint32(i), key: k}).encode(&b)
		if e := sys.SendPacket(u.q.sock, b[:], -1); e != 0 && len(u.p.out) >= maxOutFDs {
			full = true
			break
		}
		u.p.Poll(u.buf[:])
		if !u.p.Arm() && len(u.p.out) > 0 && u.p.watching&sys.EventOut == 0 {
			t.Fatal("p sleeps with packets to send, and not until it can send them")
		}
	}
	if !full || len(u.p.out) > maxOutFDs {
		t.Errorf("%d packets with descriptors queued, expected at most %d and then silence", len(u.p.out), maxOutFDs)
	}
	u.p.Close()
	u.q.Close() // drops what is on its way
	u.p.Exposed()
	if n := count(t, "/proc/self/fd"); n > before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

func rawHello(t *testing.T, addr string, h []byte) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: addr, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	if h != nil {
		if _, err := c.Write(h); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// Unknown connections that send nothing or nonsense do not keep the peer with the token from its
// path.
func TestUnknownConnections(t *testing.T) {
	l, err := Driver{}.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var silent []*net.UnixConn
	for range setup.MaxPending() + 10 {
		silent = append(silent, rawHello(t, l.Addr(), nil))
	}
	for _, h := range [][]byte{{0}, bytes.Repeat([]byte{7}, 300),
		hello{token: newToken(), version: Version, window: 0}.append(nil)} {
		b, _, err := readPacket(rawHello(t, l.Addr(), h))
		if err != nil {
			t.Fatal(err)
		}
		if w, err := parseWelcome(b); err != nil || w.status != refusedOther {
			t.Errorf("nonsense was answered with %+v, %v", w, err)
		}
	}
	token := newToken()
	type result struct {
		p   path.Path
		err error
	}
	dialed := make(chan result, 1)
	go func() { // before Accept: the offer may be faster
		p, err := Driver{}.Dial(context.Background(), setup.Offer{Addr: l.Addr(), Token: token},
			setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
		dialed <- result{p, err}
	}()
	waitFor(t, "the hello to arrive", func() bool {
		l := l.(*Listener)
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, s := range l.pending.All() {
			if s.known {
				return true
			}
		}
		return false
	})
	p, err := l.Accept(context.Background(), token,
		setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := <-dialed
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.p.Close()
	// The oldest silent ones were dropped to make room.
	if n, err := silent[0].Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the oldest silent connection is still there: %d, %v", n, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := l.Accept(ctx, token, setup.Config{Rights: path.Read | path.Write,
		Exports: new(path.Exports)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a token was used twice: %v", err)
	}
}

func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for start := time.Now(); !cond(); runtime.Gosched() {
		if time.Since(start) > time.Minute {
			t.Fatalf("%s: does not happen", what)
		}
	}
}

// Another version is refused with words on both sides.
func TestVersions(t *testing.T) {
	l, err := Driver{}.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	token := newToken()
	got := make(chan error, 1)
	go func() {
		_, err := l.Accept(context.Background(), token,
			setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
		got <- err
	}()
	c := rawHello(t, l.Addr(), append(hello{token: token, version: Version + 1}.append(nil),
		"what a later version adds"...))
	b, _, err := readPacket(c)
	if err != nil {
		t.Fatal(err)
	}
	w, err := parseWelcome(b)
	if err != nil || w.status != refusedVersion {
		t.Fatalf("answer %+v, %v", w, err)
	}
	for _, err := range []error{<-got, w.refusal()} {
		if !errors.Is(err, path.ErrProtocol) || !strings.Contains(err.Error(), fmt.Sprint("version ", Version)) {
			t.Errorf("error %v, expected ErrProtocol and the versions", err)
		}
	}

	// And a listener of a later version.
	ul, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: "@penstock-shm-test-" + fmt.Sprint(os.Getpid()),
		Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer ul.Close()
	answer := func(b []byte, fds ...int) error {
		go func() {
			c, err := ul.AcceptUnix()
			if err != nil {
				return
			}
			defer c.Close()
			readPacket(c)
			if len(fds) > 0 {
				c.WriteMsgUnix(b, sys.RightsMessage(fds...), nil)
			} else {
				c.Write(b)
			}
			c.Read(make([]byte, 1))
		}()
		_, err := Driver{}.Dial(context.Background(), setup.Offer{Addr: ul.Addr().String()},
			setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
		return err
	}
	if err := answer(welcome{status: refusedVersion, version: Version + 1}.append(nil)); !errors.Is(err,
		path.ErrProtocol) || !strings.Contains(err.Error(), fmt.Sprint("version ", Version+1)) {
		t.Errorf("dial: %v", err)
	}
	// Control memory that could be taken away, of the wrong size, or missing.
	good := welcome{version: Version, window: 16}.append(nil)
	size := int64(controlBytes(16))
	before := count(t, "/proc/self/maps")
	for name, fds := range map[string][]int{
		"none": nil, "unsealed": {memfd(t, size, 0)}, "small": {memfd(t, size-4096, sys.SealShrink)},
		"two": {memfd(t, size, sys.SealShrink), memfd(t, size, sys.SealShrink)},
	} {
		if err := answer(good, fds...); !errors.Is(err, path.ErrProtocol) {
			t.Errorf("control memory %s: %v, expected ErrProtocol", name, err)
		}
	}
	if n := count(t, "/proc/self/maps"); n > before+2 {
		t.Errorf("%d mappings, %d before", n, before)
	}
	if err := answer(welcome{version: Version, window: 1 << 15}.append(nil),
		memfd(t, size, sys.SealShrink)); !errors.Is(err, path.ErrProtocol) {
		t.Errorf("window larger than asked for: %v", err)
	}
}

func FuzzParsePacket(f *testing.F) {
	for _, k := range []packet{{kind: packetAttach, id: 1, key: path.Key{Index: 1, Epoch: 2, Secret: 3}},
		{kind: packetAttached, id: 1, rights: path.Read, size: 4096},
		{kind: packetAttached, arg: statusRevoked}, {kind: packetRevoke}, {kind: packetLetGo},
		{kind: packetRegion, id: 1, size: 1}, {kind: packetForget, id: 2}, {kind: packetBye}} {
		var b [packetSize]byte
		k.encode(&b)
		f.Add(b[:])
	}
	f.Add([]byte{'b'})
	f.Fuzz(func(t *testing.T, in []byte) {
		k, err := parsePacket(in)
		if err != nil {
			if !errors.Is(err, path.ErrProtocol) {
				t.Fatalf("error %v does not wrap ErrProtocol", err)
			}
			return
		}
		if k.kind == packetBell {
			return
		}
		var b [packetSize]byte
		if k.encode(&b); !bytes.Equal(b[:], in) {
			t.Fatalf("%x was read as %+v, which is %x", in, k, b)
		}
	})
}

func FuzzHandshake(f *testing.F) {
	f.Add(hello{version: Version, window: 5, flags: 1}.append(nil))
	f.Add(welcome{version: Version, window: 5}.append(nil))
	f.Add(welcome{status: refusedUser, version: 3, words: "no\x00\n"}.append(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		if h, err := parseHello(in); err == nil && h.version == Version && !bytes.Equal(h.append(nil), in) {
			t.Fatalf("%x was read as %+v", in, h)
		}
		w, err := parseWelcome(in)
		if err == nil && w.status == 0 && (w.window == 0 || w.window > maxWindow) {
			t.Fatalf("window %d", w.window)
		}
		if strings.ContainsFunc(w.words, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("words %q", w.words)
		}
	})
}
