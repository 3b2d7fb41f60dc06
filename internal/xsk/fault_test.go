package xsk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
)

// TestBadMemory: what the kernel would refuse with EINVAL is refused with the reason.
func TestBadMemory(t *testing.T) {
	b := pages(t, 64<<10, 0)
	for i, c := range []struct {
		c    UmemConfig
		want error
		says string
	}{
		{UmemConfig{}, ErrAlignment, "at least one chunk"},
		{UmemConfig{Memory: b[1:]}, ErrAlignment, "does not begin at a page"},
		{UmemConfig{Memory: b[:6000], ChunkSize: 2048}, ErrAlignment, "use 4096"},
		{UmemConfig{Memory: b, ChunkSize: 1024}, ErrChunk, "expected 2048 to"},
		{UmemConfig{Memory: b, ChunkSize: 3000}, ErrChunk, "such as 4096"},
		{UmemConfig{Memory: b, ChunkSize: 8192}, ErrChunk, "MultiBuffer"},
		{UmemConfig{Memory: b, ChunkSize: 8192, Unaligned: true}, ErrChunk, "MultiBuffer"},
		{UmemConfig{Memory: b, ChunkSize: -1}, ErrChunk, ""},
		{UmemConfig{Memory: b, Headroom: -1}, ErrChunk, "headroom"},
		{UmemConfig{Memory: b, ChunkSize: 2048, Headroom: 2048 - 256}, ErrChunk, "0 to 1791"},
		{UmemConfig{Memory: b, PageSize: 2048}, ErrPageSize, ""},
		{UmemConfig{Memory: b, PageSize: 5000}, ErrPageSize, ""},
		{UmemConfig{Memory: b, PageSize: 2 << 20}, ErrInvalid, "2097152"},
	} {
		if _, err := NewUmem(c.c); !errors.Is(err, c.want) || !errors.Is(err, ErrInvalid) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("case %d: %v: expected %v with %q", i, err, c.want, c.says)
		}
	}
}

// TestPagesAreReal: base pages that are said to be huge are found out.
func TestPagesAreReal(t *testing.T) {
	const huge = 2 << 20
	b := pages(t, 2*huge, 0)
	from := -start(b) % huge
	if _, err := NewUmem(UmemConfig{Memory: b[from : from+huge], PageSize: huge}); !errors.Is(err, ErrPageSize) ||
		!strings.Contains(err.Error(), strconv.Itoa(sys.PageSize)) {
		t.Errorf("%v", err)
	}
	testenv.HugePages(t, huge, 1)
	if _, err := NewUmem(UmemConfig{Memory: pages(t, huge, huge), PageSize: huge}); err != nil {
		t.Error(err)
	}
}

// TestAddresses: what a descriptor says is believed only inside the memory.
func TestAddresses(t *testing.T) {
	b := pages(t, 64<<10, 0)
	u, err := NewUmem(UmemConfig{Memory: b, ChunkSize: 2048})
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewUmem(UmemConfig{Memory: b, ChunkSize: 2048, Unaligned: true})
	if err != nil {
		t.Fatal(err)
	}
	size := uint64(len(b))
	for i, c := range []struct {
		u      *Umem
		d      Desc
		at     int // -1: outside
		length int
		chunk  uint64
	}{
		{u, Desc{Addr: 4352, Len: 100}, 4352, 100, 4096},
		{u, Desc{Addr: size - 1, Len: 1}, int(size) - 1, 1, size - 2048},
		{u, Desc{Addr: size, Len: 1}, -1, 0, size},
		{u, Desc{Addr: size - 1, Len: 2}, -1, 0, size - 2048},
		{u, Desc{Addr: 1<<64 - 1, Len: 2}, -1, 0, 1<<64 - 2048},
		{u, Desc{Addr: 0, Len: 1<<32 - 1}, -1, 0, 0},
		{v, Desc{Addr: 3000 | 256<<48, Len: 100}, 3256, 100, 3000},
		{v, Desc{Addr: (size - 1) | 1<<48, Len: 1}, -1, 0, size - 1},
		{v, Desc{Addr: 1<<64 - 1, Len: 1}, -1, 0, 1<<48 - 1},
	} {
		got := c.u.Data(c.d)
		switch {
		case c.at < 0 && got != nil:
			t.Errorf("case %d: %d bytes outside the memory", i, len(got))
		case c.at >= 0 && (len(got) != c.length || cap(got) != c.length || &got[0] != &b[c.at]):
			t.Errorf("case %d: %d bytes, capacity %d: expected %d at %d", i, len(got), cap(got), c.length, c.at)
		}
		if f := c.u.Front(c.d, 8); c.at >= 0 && c.at != len(b)-1 && (len(f) != 8 || &f[0] != &b[c.at-8]) {
			t.Errorf("case %d: %d bytes in front", i, len(f))
		}
		if a := c.u.Chunk(c.d.Addr); a != c.chunk {
			t.Errorf("case %d: chunk %#x: expected %#x", i, a, c.chunk)
		}
	}
	for i, c := range []struct {
		u  *Umem
		d  Desc
		n  int
		ok bool
	}{
		{u, Desc{Addr: 4096 + 256}, 256, true},
		{u, Desc{Addr: 4096 + 256}, 257, false}, // another chunk's
		{u, Desc{Addr: 4096}, 0, true},
		{u, Desc{Addr: 4096}, 1, false},
		{u, Desc{Addr: 4352}, -1, false},
		{u, Desc{Addr: size + 256}, 8, false},
		{u, Desc{Addr: 1<<64 - 1}, 8, false},
		{v, Desc{Addr: 3000 | 256<<48}, 256, true},
		{v, Desc{Addr: 3000 | 256<<48}, 257, false},
		{v, Desc{Addr: 3000}, 1, false},
		{v, Desc{Addr: 1<<64 - 1}, 1, false},
	} {
		if f := c.u.Front(c.d, c.n); (f != nil) != c.ok || c.ok && len(f) != c.n {
			t.Errorf("front, case %d: %d bytes", i, len(f))
		}
	}
	if u.Chunks() != 32 || u.MaxFrame() != 2048-256 || u.Crosses(4095-2047) || !v.Crosses(3000) {
		t.Errorf("%d chunks, frames up to %d", u.Chunks(), u.MaxFrame())
	}
}

// TestAnyDescriptor: whatever a descriptor says, its bytes are inside the memory or nil, and where
// the rules say they are.
func TestAnyDescriptor(t *testing.T) {
	b := pages(t, 64<<10, 0)
	rapid.Check(t, func(t *rapid.T) {
		unaligned := rapid.Bool().Draw(t, "unaligned")
		u, err := NewUmem(UmemConfig{Memory: b, ChunkSize: 2048, Unaligned: unaligned})
		if err != nil {
			t.Fatal(err)
		}
		number := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 70<<10))
		d := Desc{Addr: number.Draw(t, "addr") | rapid.Uint64Range(0, 300).Draw(t, "offset")<<48,
			Len: uint32(number.Draw(t, "len"))}
		at, room := d.Addr, d.Addr%2048
		if unaligned {
			at, room = d.Addr&(1<<48-1)+d.Addr>>48, d.Addr>>48
		}
		got := u.Data(d)
		inside := at <= uint64(len(b)) && uint64(d.Len) <= uint64(len(b))-at
		if (got != nil) != inside || inside && (len(got) != int(d.Len) || cap(got) != int(d.Len) || d.Len > 0 &&
			&got[0] != &b[at]) {
			t.Fatalf("%+v: %d bytes, inside %t", d, len(got), inside)
		}
		n := rapid.IntRange(-1, 300).Draw(t, "front")
		if f := u.Front(d, n); f != nil && (n < 0 || len(f) != n || uint64(n) > room || n > 0 &&
			&f[0] != &b[at-uint64(n)]) {
			t.Fatalf("%+v: %d of %d bytes in front", d, len(f), n)
		}
	})
}

// TestRefused: errors name what is not there.
func TestRefused(t *testing.T) {
	e := veth(t, netns.LinkSpec{Queues: 2})
	u := newUmem(t, 16)
	good := QueueConfig{Interface: e.index[0]}
	with := func(fn func(c *QueueConfig)) QueueConfig {
		c := good
		fn(&c)
		return c
	}
	for i, c := range []struct {
		c    QueueConfig
		want error
		says string
	}{
		{with(func(c *QueueConfig) { c.Interface = 0 }), ErrInvalid, "index"},
		{with(func(c *QueueConfig) { c.Queue = -1 }), ErrInvalid, "65535"},
		{with(func(c *QueueConfig) { c.FillSize = 3 }), ErrInvalid, "fill ring"},
		{with(func(c *QueueConfig) { c.CompletionSize = 1 << 30 }), ErrInvalid, "completion ring"},
		{with(func(c *QueueConfig) { c.Mode = 9 }), ErrInvalid, "mode(9)"},
		{with(func(c *QueueConfig) { c.Interface = 1 << 20 }), ErrInterface, "interface 1048576"},
		{with(func(c *QueueConfig) { c.Queue = 2 }), ErrNoQueue, "eth0: it has 2 receive and 2 transmit queues: expected 0 to 1"},
		{with(func(c *QueueConfig) { c.Queue = 2; c.Mode = Copy }), ErrNoQueue, "expected 0 to 1"},
		{with(func(c *QueueConfig) { c.Mode = ZeroCopy }), ErrZeroCopy, "the driver has no zero-copy"},
	} {
		e.do(t, 0, func() error {
			q, err := u.OpenQueue(ctx(t), c.c)
			if err == nil {
				q.Close()
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("case %d: %v: expected %v with %q", i, err, c.want, c.says)
			}
			return nil
		})
	}
	if u.Queues() != 0 || u.registered.Load() != 0 {
		t.Errorf("%d queues, %d registrations are left", u.Queues(), u.registered.Load())
	}
	q := e.queue(t, 0, u, good)
	if zc, why := q.ZeroCopy(); zc || !errors.Is(why, ErrZeroCopy) || !strings.Contains(why.Error(), "eth0") {
		t.Errorf("zero-copy %t, %v", zc, why)
	}
	e.do(t, 0, func() error {
		for _, c := range []SocketConfig{{}, {RxSize: 3}, {TxSize: -1}, {RxSize: 1 << 30}} {
			if _, err := q.OpenSocket(c); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v", c, err)
			}
		}
		return nil
	})
	q.Close()
	if u.Queues() != 0 {
		t.Error("a socket that was refused holds the queue")
	}
}

// TestMessages: each answer of the kernel's becomes an error that callers can match and people can
// act on.
func TestMessages(t *testing.T) {
	e := veth(t, netns.LinkSpec{})
	c := &QueueConfig{Interface: e.index[0], Queue: 0}
	m := &QueueConfig{Interface: e.index[0], Queue: 0, MultiBuffer: true}
	u := newUmem(t, 16)
	e.do(t, 0, func() error {
		for i, x := range []struct {
			err  error
			with sys.Errno
			want error
			says string
		}{
			{bindError(c, sys.ENODEV), sys.ENODEV, ErrInterface, "no such interface"},
			{bindError(c, sys.ENXIO), sys.ENXIO, ErrInterface, "no such interface"},
			{bindError(c, sys.ENETDOWN), sys.ENETDOWN, ErrInterface, "ip link set eth0 up"},
			{bindError(c, sys.EINVAL), sys.EINVAL, ErrNoQueue, "queue 0 of eth0"},
			{bindError(m, sys.EINVAL), sys.EINVAL, ErrUnsupported, "Linux 6.6"},
			{bindError(c, sys.EPERM), sys.EPERM, ErrPermission, "eth0"},
			{bindError(c, sys.ENOMEM), sys.ENOMEM, ErrNoMemory, "eth0"},
			{bindError(c, sys.EPIPE), sys.EPIPE, sys.EPIPE, "eth0"},
			{zeroCopyError(c, sys.EOPNOTSUPP), sys.EOPNOTSUPP, ErrZeroCopy, "the driver has no zero-copy"},
			{zeroCopyError(m, sys.EOPNOTSUPP), sys.EOPNOTSUPP, ErrZeroCopy, "or not for packets in several chunks"},
			{zeroCopyError(c, sys.EINVAL), sys.EINVAL, ErrZeroCopy, "chunk size"},
			{zeroCopyError(c, sys.ENOMEM), sys.ENOMEM, ErrZeroCopy, "eth0"},
			{socketError(sys.EAFNOSUPPORT), sys.EAFNOSUPPORT, ErrUnsupported, "CONFIG_XDP_SOCKETS"},
			{socketError(sys.EPERM), sys.EPERM, ErrPermission, "seccomp"}, // the capability is there
			{socketError(sys.EMFILE), sys.EMFILE, sys.EMFILE, ""},
			{u.registerError(sys.ENOBUFS), sys.ENOBUFS, ErrMemlock, "ulimit -l 64"},
			{u.registerError(sys.ENOMEM), sys.ENOMEM, ErrNoMemory, "65536 bytes"},
			{u.registerError(sys.EFAULT), sys.EFAULT, ErrAlignment, "not all mapped"},
			{u.registerError(sys.EOPNOTSUPP), sys.EOPNOTSUPP, ErrAlignment, "memfd"},
			{u.registerError(sys.EINVAL), sys.EINVAL, ErrChunk, "chunks of 4096"},
			{u.registerError(sys.EIO), sys.EIO, sys.EIO, ""},
		} {
			if !errors.Is(x.err, x.want) || !sys.IsErrno(x.err, x.with) || !strings.Contains(x.err.Error(), x.says) {
				t.Errorf("case %d: %v: expected %v with %q", i, x.err, x.want, x.says)
			}
		}
		return nil
	})
}

// TestChannels: the kernel keeps the queues that sockets are bound to.
func TestChannels(t *testing.T) {
	if _, err := testenv.Tool("ethtool", "ethtool"); err != nil {
		testenv.Missing(t, "ethtool", err)
	}
	e := veth(t, netns.LinkSpec{Queues: 4})
	u := newUmem(t, 16)
	q := e.queue(t, 0, u, QueueConfig{Queue: 3})
	set := func() error {
		_, err := e.net.Hosts[0].Output(ctx(t), "ethtool", "-L", "eth0", "rx", "2", "tx", "2")
		return err
	}
	if err := set(); err == nil {
		t.Error("the number of queues fell below one that is in use: say what happens to it in the package's " +
			"documentation")
	}
	q.Close()
	e.do(t, 0, func() error { return q.Released(ctx(t)) })
	for deadline := ctx(t); ; waitABit() { // Released's own look may not be gone yet
		err := set()
		if err == nil {
			break
		}
		if deadline.Err() != nil {
			t.Fatal(err)
		}
	}
	e.do(t, 0, func() error {
		_, err := u.OpenQueue(ctx(t), QueueConfig{Interface: e.index[0], Queue: 3})
		if !errors.Is(err, ErrNoQueue) || !strings.Contains(err.Error(), "expected 0 to 1") {
			t.Errorf("a queue that is off: %v", err)
		}
		return nil
	})
}

// TestBusy: OpenQueue waits for a queue in use, and names it when the wait ends; a queue that was
// closed comes free.
func TestBusy(t *testing.T) {
	e := veth(t, netns.LinkSpec{})
	u, v := newUmem(t, 16), newUmem(t, 16)
	q := e.queue(t, 0, u, QueueConfig{Mode: Copy})
	s := e.socket(t, 0, q, SocketConfig{RxSize: 16})
	once, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	for _, x := range []*Umem{u, v} { // by the same memory, by another
		for _, m := range []Mode{Auto, Copy} {
			e.do(t, 0, func() error {
				_, err := x.OpenQueue(once, QueueConfig{Interface: e.index[0], Mode: m})
				if !errors.Is(err, ErrBusy) || !errors.Is(err, why) || !sys.IsErrno(err, sys.EBUSY) ||
					!strings.Contains(err.Error(), "queue 0 of eth0") {
					t.Errorf("%v", err)
				}
				return nil
			})
		}
	}
	e.do(t, 0, func() error {
		if err := q.Released(once); !errors.Is(err, ErrBusy) {
			t.Errorf("Released of an open queue: %v", err)
		}
		return nil
	})
	q.Close()
	// OpenQueue waits while the last socket closes.
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.Close()
	}()
	for range 20 {
		next := e.queue(t, 0, v, QueueConfig{})
		e.socket(t, 0, next, SocketConfig{RxSize: 16, TxSize: 16}).Close()
		next.Close()
	}
	<-closed
	e.do(t, 0, func() error { return q.Released(ctx(t)) })
}

// TestInterfaceGone: sockets of an interface that is deleted say so, and what they hold is given
// back.
func TestInterfaceGone(t *testing.T) {
	e := rails(t, 2, netns.LinkSpec{})
	u := newUmem(t, 64)
	for _, m := range []Mode{Auto, Copy} {
		q := e.queue(t, 0, u, QueueConfig{Mode: m, NeedWakeup: true})
		s := e.socket(t, 0, q, SocketConfig{RxSize: 16, TxSize: 16})
		host := e.net.Hosts[0]
		if _, err := host.Output(ctx(t), "ip", "link", "set", "eth0", "down"); err != nil {
			t.Fatal(err)
		}
		s.Tx().Put([]Desc{{Addr: 0, Len: 60}})
		if a, b := s.WakeTx(), s.WakeRx(); a != sys.ENETDOWN || b != sys.ENETDOWN {
			t.Errorf("the interface is down: %v, %v", a, b)
		}
		if m == Auto {
			if _, err := host.Output(ctx(t), "ip", "link", "set", "eth0", "up"); err != nil {
				t.Fatal(err)
			}
			if a := s.WakeTx(); a != 0 && a != sys.EBUSY { // the carrier may not be back yet: then the packet is lost
				t.Errorf("the interface is up: %v", a)
			}
			var back [1]uint64
			for deadline := ctx(t); q.Completion().Get(back[:]) == 0; waitABit() {
				if deadline.Err() != nil {
					t.Fatal("what was sent does not come back")
				}
			}
			s.Close()
			q.Close()
			continue
		}
		if _, err := host.Output(ctx(t), "ip", "link", "del", "eth0"); err != nil {
			t.Fatal(err)
		}
		if a, b := s.WakeTx(), s.WakeRx(); a != sys.ENXIO || b != sys.ENXIO {
			t.Errorf("the interface is gone: %v, %v", a, b)
		}
		if i, err := sys.PollIn(0, s.FD()); i >= 0 || err != nil {
			t.Errorf("poll: %d, %v: the kernel tells of interfaces that are gone; say so in the comment of FD", i, err)
		}
		e.do(t, 0, func() error {
			if _, err := q.OpenSocket(SocketConfig{RxSize: 16}); !errors.Is(err, ErrInterface) {
				t.Errorf("a socket on it: %v", err)
			}
			if _, err := u.OpenQueue(ctx(t), QueueConfig{Interface: e.index[0], Mode: m}); !errors.Is(err,
				ErrInterface) {
				t.Errorf("a queue of it: %v", err)
			}
			// The memory is as good as ever, although the queue that registered it is not.
			q, err := u.OpenQueue(ctx(t), QueueConfig{Interface: e.other[0], Mode: m, NeedWakeup: true})
			if err != nil {
				return err
			}
			return q.Close()
		})
		var st Statistics
		if err := s.Statistics(&st); err != nil {
			t.Error(err)
		}
		if err := errors.Join(s.Close(), q.Close(), s.Close(), q.Close()); err != nil {
			t.Error(err)
		}
		if err := s.Statistics(&st); !errors.Is(err, ErrClosed) {
			t.Errorf("statistics of a closed socket: %v", err)
		}
		e.do(t, 0, func() error { return q.Released(ctx(t)) })
	}
	if u.Queues() != 0 || u.registered.Load() != 0 {
		t.Errorf("%d queues, %d registrations are left", u.Queues(), u.registered.Load())
	}
}

// TestNoLateWrites: in copy mode nothing is written once the sockets are closed, whatever arrives.
func TestNoLateWrites(t *testing.T) {
	lateWrites(t, veth(t, netns.LinkSpec{}), Copy, 20, 1024)
}

// lateWrites closes a receiver again and again while packets arrive, and looks at its memory of so
// many chunks.
func lateWrites(t *testing.T, e *ends, mode Mode, rounds, size int) {
	from := e.socket(t, 0, e.queue(t, 0, newUmem(t, 256), QueueConfig{NeedWakeup: true, Mode: mode}),
		SocketConfig{TxSize: 128})
	m := e.program(t, 1, -1, false, false)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		x := newSender(from, 200, 64)
		for {
			select {
			case <-stop:
				return
			default:
				if x.step(32) == 0 {
					waitABit()
				}
			}
		}
	}()
	defer func() {
		close(stop)
		<-stopped
	}()
	u := newUmem(t, size)
	mem, descs := u.Config().Memory, make([]Desc, 64)
	for range rounds {
		q := e.queue(t, 1, u, QueueConfig{FillSize: size, NeedWakeup: true, Mode: mode})
		s := e.socket(t, 1, q, SocketConfig{RxSize: size})
		q.Fill().Put(chunks(u, 0, size))
		put(t, m, 0, s)
		for n, deadline := 0, ctx(t); n < 100; waitABit() { // it really receives, and has chunks left
			if n += s.Rx().Get(descs); q.Fill().NeedWakeup() {
				s.WakeRx()
			}
			if deadline.Err() != nil {
				t.Fatalf("only %d packets come", n)
			}
		}
		s.Close()
		q.Close()
		if zc, _ := q.ZeroCopy(); zc {
			e.do(t, 1, func() error { return q.Released(ctx(t)) })
		}
		for i := range mem {
			mem[i] = 0xa5
		}
		for range 20 {
			waitABit()
			for i, b := range mem {
				if b != 0xa5 {
					t.Fatalf("byte %d was written after everything was closed", i)
				}
			}
		}
	}
}

// TestRights runs in a process without a capability, or with little memory to lock.
func TestRights(t *testing.T) {
	open := func() error {
		u, err := NewUmem(UmemConfig{Memory: pages(t, 1<<20, 0)})
		if err != nil {
			t.Fatal(err)
		}
		q, err := u.OpenQueue(ctx(t), QueueConfig{Interface: 1, Mode: Copy}) // lo
		if err == nil {
			q.Close()
		}
		return err
	}
	if role := os.Getenv("XSK_TEST_RIGHTS"); role != "" {
		want, says := ErrPermission, "CAP_NET_RAW is missing"
		if role == "lock" {
			want, says = ErrMemlock, "the limit (RLIMIT_MEMLOCK) is 65536: raise it with \"ulimit -l 1024\""
		}
		if err := open(); !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
			t.Fatalf("%v", err)
		}
		return
	}
	n := netns.New(t, netns.Topology{}) // proves the rights to take away
	setpriv, err := testenv.Tool("setpriv", "util-linux")
	if err != nil {
		testenv.Missing(t, "setpriv", err)
	}
	prlimit, err := testenv.Tool("prlimit", "util-linux")
	if err != nil {
		testenv.Missing(t, "prlimit", err)
	}
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	for role, args := range map[string][]string{
		"raw":  {setpriv, "--bounding-set=-net_raw", "--inh-caps=-all"},
		"lock": {setpriv, "--bounding-set=-ipc_lock", "--inh-caps=-all", prlimit, "--memlock=65536:65536"},
	} {
		cmd := n.Hosts[0].Command(args[0], append(slices.Clone(args[1:]), self, "-test.run=^TestRights$")...)
		cmd.Env = append(os.Environ(), "XSK_TEST_RIGHTS="+role)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := n.Hosts[0].Run(cmd); err != nil {
			t.Errorf("%s: %v: %s", role, err, out.String())
		}
	}
}

// TestKilled: a process that is killed leaves nothing: its queue can be had again.
func TestKilled(t *testing.T) {
	if os.Getenv("XSK_TEST_KILLED") != "" {
		i, err := strconv.Atoi(os.Getenv("XSK_TEST_KILLED"))
		if err != nil {
			t.Fatal(err)
		}
		u := newUmem(t, 64)
		q, err := u.OpenQueue(ctx(t), QueueConfig{Interface: i})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.OpenSocket(SocketConfig{RxSize: 16, TxSize: 16}); err != nil {
			t.Fatal(err)
		}
		fmt.Println("OPEN")
		io.Copy(io.Discard, os.Stdin) // until it is killed
		return
	}
	e := veth(t, netns.LinkSpec{})
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		cmd := e.net.Hosts[0].Command(self, "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "XSK_TEST_KILLED="+strconv.Itoa(e.index[0]))
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := e.net.Hosts[0].Start(cmd); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "OPEN" {
			t.Log(lines.Text())
		}
		if lines.Text() != "OPEN" {
			t.Error("the process did not open the queue")
		}
		cmd.Process.Kill()
		cmd.Wait()
		in.Close()
		q := e.queue(t, 0, newUmem(t, 64), QueueConfig{})
		e.socket(t, 0, q, SocketConfig{RxSize: 16}).Close()
		q.Close()
	}
}
