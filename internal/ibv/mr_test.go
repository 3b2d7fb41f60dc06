package ibv

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
)

// testAddresses: regions whose addresses in requests are not those of the process.
func testAddresses(t *testing.T, w *world) {
	a, b := w.pair(t, options{})
	fill(a.buf[:64], 1)
	shifted := must(b.pd.RegMR(MRSpec{Addr: start(b.buf) + 4096, Length: 8192, IOVA: 0x7000_0000_0000,
		Access: LocalWrite | RemoteWrite}))(t)
	closing(t, shifted)
	if shifted.Addr() != 0x7000_0000_0000 || shifted.Length() != 8192 {
		t.Errorf("%#x, %d bytes", shifted.Addr(), shifted.Length())
	}
	a.send.Write(1, Signaled, shifted.Addr()+100, shifted.RKey(), a.mr.SGE(0, 64))
	a.post(t)
	one(t, a.wait(t, 1)[0], 1, Success)
	sameBytes(t, b.buf[4196:4260], a.buf[:64])

	// Relaxed ordering is left out where it is not known.
	relaxed := must(b.pd.RegMR(MRSpec{Addr: start(b.buf), Length: 4096,
		Access: LocalWrite | RemoteWrite | RelaxedOrdering}))(t)
	closing(t, relaxed)
	a.send.Write(2, Signaled, relaxed.Addr()+8, relaxed.RKey(), a.mr.SGE(0, 64))
	a.post(t)
	one(t, a.wait(t, 1)[0], 2, Success)
	sameBytes(t, b.buf[8:72], a.buf[:64])
}

// TestDMABuf: memory that is given by a descriptor. The fake takes any that can be mapped.
func TestDMABuf(t *testing.T) {
	w := fakeWorld(t, "")
	a, b := w.pair(t, options{})
	fd := must(sys.MemfdCreate("dmabuf", 1<<16, 0))(t)
	defer sys.Close(fd)
	seen := must(sys.Mmap(fd, 0, 1<<16, sys.ProtRead|sys.ProtWrite, sys.MapShared))(t)
	defer sys.Munmap(seen)
	mr := must(b.pd.RegMR(MRSpec{Length: 8192, Access: LocalWrite | RemoteWrite, DMABuf: &DMABuf{FD: fd, Offset: 4096},
		IOVA: 1 << 40}))(t)
	closing(t, mr)
	fill(a.buf[:100], 2)
	a.send.Write(1, Signaled, mr.Addr()+10, mr.RKey(), a.mr.SGE(0, 100))
	a.post(t)
	one(t, a.wait(t, 1)[0], 1, Success)
	sameBytes(t, seen[4096+10:][:100], a.buf[:100])
	if _, err := b.pd.RegMR(MRSpec{Length: 8192, DMABuf: &DMABuf{FD: -1}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no descriptor: %v", err)
	}
	// The length and the rights are those that were given: what goes beyond is refused at this end.
	for name, at := range map[string]uint64{"write behind the end": 8192 - 99, "read": 0} {
		x, y := w.pair(t, options{})
		mr := must(y.pd.RegMR(MRSpec{Length: 8192, Access: LocalWrite | RemoteWrite,
			DMABuf: &DMABuf{FD: fd, Offset: 4096}, IOVA: 1 << 40}))(t)
		closing(t, mr)
		x.send.Reset()
		if name == "read" {
			x.send.Read(7, Signaled, mr.Addr()+at, mr.RKey(), x.mr.SGE(0, 100))
		} else {
			x.send.Write(7, Signaled, mr.Addr()+at, mr.RKey(), x.mr.SGE(0, 100))
		}
		x.post(t)
		if wc := x.wait(t, 1)[0]; wc.Status() != RemAccessErr {
			t.Errorf("%s: %v", name, wc.Status())
		}
	}
	w.script(t, "absent dmabuf")
	if _, err := b.pd.RegMR(MRSpec{Length: 8192, DMABuf: &DMABuf{FD: fd}}); !errors.Is(err, ErrUnsupported) ||
		!strings.Contains(err.Error(), "Linux 5.12") {
		t.Errorf("a device without: %v", err)
	}
}

// TestMemlock: the error has the limit, what was asked for, and the way out. As root the limit does
// not bind, and the error must not say that it does.
func TestMemlock(t *testing.T) {
	w := fakeWorld(t, "memlock 1M")
	ctx := w.open(t)
	pd := must(ctx.AllocPD())(t)
	closing(t, pd)
	buf := memory(t, 4<<20)
	s := MRSpec{Addr: start(buf) + 100, Length: 3 << 20, Access: LocalWrite}
	_, err := pd.RegMR(s)
	for _, want := range []string{"RLIMIT_MEMLOCK", "3149824 bytes", "ulimit -l"} { // 3 MiB and a page
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	if !errors.Is(err, sys.ENOMEM) {
		t.Errorf("%v", err)
	}
	for name, c := range map[string]struct {
		limit   uint64
		capable bool
		lock    bool
		want    string
	}{
		"bound":     {8 << 20, false, true, `the limit (RLIMIT_MEMLOCK) is 8388608: raise it with "ulimit -l 3076"`},
		"root":      {8 << 20, true, false, "is 8388608 and does not bind this process"},
		"unlimited": {^uint64(0), false, false, "is unlimited and does not bind this process"},
	} {
		e := failed("reg_mr", "x", sys.ENOMEM)
		explainMemlock(e, s, c.limit, c.capable)
		if errors.Is(e, ErrMemlock) != c.lock || !strings.Contains(e.Error(), c.want) {
			t.Errorf("%s: %v", name, e)
		}
	}
}

func TestBadRegions(t *testing.T) {
	w := fakeWorld(t, "")
	ctx := w.open(t)
	pd := must(ctx.AllocPD())(t)
	closing(t, pd)
	p := start(memory(t, 4096))
	before := w.count(t, "ibv_reg_mr")
	for name, s := range map[string]MRSpec{
		"no bytes":     {Addr: p},
		"no address":   {Length: 4096},
		"around":       {Addr: ^uintptr(0) - 10, Length: 4096},
		"remote only":  {Addr: p, Length: 4096, Access: RemoteWrite},
		"atomic only":  {Addr: p, Length: 4096, Access: RemoteAtomic},
		"unknown":      {Addr: p, Length: 4096, Access: 1 << 9},
		"zero and not": {Addr: p, Length: 4096, Access: ZeroBased, IOVA: 4096},
	} {
		mr, err := pd.RegMR(s)
		if mr != nil || !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := w.count(t, "ibv_reg_mr"); n != before {
		t.Errorf("the library was asked %d times", n-before)
	}
	if s := (LocalWrite | RemoteRead | 1<<9).String(); s != "local write, remote read, 0x200" {
		t.Error(s)
	}
}

// TestRelaxedOrdering: it goes through the function that leaves out what a kernel does not know,
// and is left out itself where the library is older.
func TestRelaxedOrdering(t *testing.T) {
	w := fakeWorld(t, "")
	ctx := w.open(t)
	pd := must(ctx.AllocPD())(t)
	closing(t, pd)
	all := ctx.lib
	t.Cleanup(func() { ctx.lib = all })
	s := MRSpec{Addr: start(memory(t, 4096)), Length: 4096, Access: LocalWrite | RelaxedOrdering}
	for name, change := range map[string]func(f *functions){
		"with":    func(f *functions) { f.regMR, f.regMRIOVA = 0, 0 }, // a call of these would panic
		"without": func(f *functions) { f.regMRIOVA2 = 0 },
	} {
		other := *all
		change(&other.f)
		ctx.lib = &other
		mr, err := pd.RegMR(s)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	}
	s.Access, s.IOVA = LocalWrite, 1<<40
	other := *all
	other.f.regMRIOVA = 0
	ctx.lib = &other
	if _, err := pd.RegMR(s); !errors.Is(err, ErrUnsupported) {
		t.Errorf("an address of its own with an old library: %v", err)
	}
}

// TestDMABufRefused: each refusal of a device's memory says whose it is, and none blames the limit
// of locked memory.
func TestDMABufRefused(t *testing.T) {
	w := fakeWorld(t, "")
	ctx := w.open(t)
	pd := must(ctx.AllocPD())(t)
	closing(t, pd)
	fd := must(sys.MemfdCreate("dmabuf", 1<<16, 0))(t)
	defer sys.Close(fd)
	s := MRSpec{Length: 8192, Access: LocalWrite, DMABuf: &DMABuf{FD: fd}}
	for errno, c := range map[string]struct {
		is    error
		errno sys.Errno
		want  string
	}{
		"EOPNOTSUPP": {ErrUnsupported, sys.EOPNOTSUPP, "mlx5"},
		"EPERM":      {ErrRefused, sys.EPERM, "does not let other devices"},
		"EACCES":     {ErrRefused, sys.EACCES, "does not let other devices"},
		"ENOMEM":     {ErrNoRoom, sys.ENOMEM, "window (BAR)"},
		"ENOSPC":     {ErrNoRoom, sys.ENOSPC, "window (BAR)"},
		"EBADF":      {ErrInvalid, sys.EBADF, "not a dma-buf"},
		"EFAULT":     {ErrUnsupported, sys.EFAULT, "8192 bytes at 0"},
	} {
		w.script(t, "fail ibv_reg_dmabuf_mr 1 "+errno)
		_, err := pd.RegMR(s)
		if !errors.Is(err, c.is) || !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.want) ||
			errors.Is(err, ErrMemlock) || strings.Contains(err.Error(), "MEMLOCK") {
			t.Errorf("%s: %v", errno, err)
		}
	}
	before := w.count(t, "ibv_reg_dmabuf_mr")
	for name, s := range map[string]MRSpec{
		"skewed":     {Length: 4096, DMABuf: &DMABuf{FD: fd, Offset: 100}, IOVA: 1 << 40},
		"an address": {Length: 4096, DMABuf: &DMABuf{FD: fd}, Addr: 1 << 20},
		"both ways":  {Length: 4096, DMABuf: &DMABuf{FD: fd}, Peer: true},
	} {
		if _, err := pd.RegMR(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := w.count(t, "ibv_reg_dmabuf_mr"); n != before {
		t.Errorf("the library was asked %d times", n-before)
	}
	mr := must(pd.RegMR(MRSpec{Length: 4096, DMABuf: &DMABuf{FD: fd, Offset: 4096 + 100}, IOVA: 1<<40 + 100,
		Access: LocalWrite}))(t)
	closing(t, mr)
}

// TestPeerMemory: memory of a device by its address, which no page of this process has.
func TestPeerMemory(t *testing.T) {
	w := fakeWorld(t, "absent dmabuf")
	a, b := w.pair(t, options{})
	fd := must(sys.MemfdCreate("device", 1<<16, 0))(t)
	defer sys.Close(fd)
	seen := must(sys.Mmap(fd, 0, 1<<16, sys.ProtRead|sys.ProtWrite, sys.MapShared))(t)
	defer sys.Munmap(seen)
	const at = 0x6f00_0000_0000
	s := MRSpec{Addr: at + 4100, Length: 8192, Access: LocalWrite | RemoteWrite, Peer: true}
	if _, err := b.pd.RegMR(s); !errors.Is(err, ErrUnsupported) || !errors.Is(err, sys.EFAULT) ||
		!strings.Contains(err.Error(), "modprobe nvidia-peermem") {
		t.Errorf("without a module: %v", err)
	}
	w.script(t, fmt.Sprintf("peer %#x %d 64K", uint64(at), fd))
	mr := must(b.pd.RegMR(s))(t)
	closing(t, mr)
	if mr.Addr() != at+4100 {
		t.Errorf("%#x", mr.Addr())
	}
	fill(a.buf[:100], 3)
	a.send.Write(1, Signaled, mr.Addr()+10, mr.RKey(), a.mr.SGE(0, 100))
	a.post(t)
	one(t, a.wait(t, 1)[0], 1, Success)
	sameBytes(t, seen[4100+10:][:100], a.buf[:100])
	for errno, is := range map[string]error{"ENOMEM": ErrNoRoom, "EPERM": ErrRefused, "EOPNOTSUPP": ErrUnsupported} {
		w.script(t, "fail ibv_reg_mr 1 "+errno)
		if _, err := b.pd.RegMR(s); !errors.Is(err, is) || errors.Is(err, ErrMemlock) {
			t.Errorf("%s: %v", errno, err)
		}
	}
}
