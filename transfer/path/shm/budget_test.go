package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock/internal/budget"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// sparse is a sealed memfd of which no page exists.
func sparse(t testing.TB, size int64) int {
	t.Helper()
	fd, err := sys.MemfdCreate("sparse", size, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.Close(fd) })
	if err := sys.AddSeals(fd, sys.SealShrink); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestLentSparseMemory: a peer lends sparse memory larger than the address space together and asks
// for help with it. Nothing of it is mapped, and helping makes no page of it.
func TestLentSparseMemory(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	if !u.q.helps {
		testenv.Missing(t, "two processors: one helps the other", fmt.Errorf("there is %d", runtime.NumCPU()))
	}
	remote := u.region(helpBytes)
	for i := range remote.All().Bytes() {
		remote.All().Bytes()[i] = 7
	}
	key := export(t, u.qx, remote, path.Write).Key()
	fd := sparse(t, 1<<46)
	for id := range uint32(maxRegions) {
		if u.q.lend(&packet{kind: packetRegion, id: id + 1, size: 1 << 46}, fd); u.q.downErr != nil {
			t.Fatal(u.q.downErr)
		}
	}
	if len(u.q.lent) != maxRegions {
		t.Errorf("%d of %d regions were taken", len(u.q.lent), maxRegions)
	}
	m := &ring.Message{Kind: messageHelp, Len: helpPayload, Words: [ring.MessageWords]uint64{1 << 45, helpBytes, 0}}
	key.Append(m.Data[:0])
	binary.LittleEndian.PutUint32(m.Data[path.KeySize:], 3)
	binary.LittleEndian.PutUint32(m.Data[path.KeySize+4:], 1)
	u.q.ctl.peerClaim.Store(jobWord(1, 0))
	u.q.startHelping(m)
	for u.q.helping.active && u.q.downErr == nil {
		u.q.help()
	}
	if n := uint32(u.q.ctl.peerDone.Load()); u.q.downErr != nil || n != helpBytes/chunkBytes {
		t.Errorf("%d of %d chunks copied, %v", n, helpBytes/chunkBytes, u.q.downErr)
	}
	if b := remote.All().Bytes(); b[0] != 0 || b[helpBytes-1] != 0 {
		t.Errorf("the zeros were not copied")
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil || st.Blocks != 0 {
		t.Errorf("helping made %d blocks of the peer's memory, %v", st.Blocks, err)
	}
}

// TestLentMemoryPunched: a region that was whole when it was lent, and therefore mapped, gets no
// pages back where the peer punched a hole.
func TestLentMemoryPunched(t *testing.T) {
	fd := sparse(t, helpBytes)
	if err := sys.Allocate(fd, helpBytes); err != nil {
		t.Fatal(err)
	}
	u := newDuo(t, Driver{}, 0)
	u.q.helps = true
	u.q.lend(&packet{kind: packetRegion, id: 1, size: helpBytes}, fd)
	j := helpJob{src: u.q.lent[1], len: helpBytes}
	if j.src.mem == nil {
		t.Error("a whole region is not mapped")
	}
	dst := make([]byte, chunkBytes)
	if err := j.copyChunk(dst, 0); err != nil {
		t.Error(err)
	}
	if err := sys.PunchHole(fd, 0, helpBytes); err != nil {
		t.Fatal(err)
	}
	if err := j.copyChunk(dst, 0); err != nil {
		t.Error(err)
	}
	if n, err := sys.AllocatedSize(fd); err != nil || n != 0 {
		t.Errorf("%d bytes of pages where the peer had punched a hole, %v", n, err)
	}
}

// TestLentPagesBeyondTheEnd: pages that a sparse region has beyond its end do not make helping fill
// it.
func TestLentPagesBeyondTheEnd(t *testing.T) {
	const fallocKeepSize = 1 // FALLOC_FL_KEEP_SIZE
	fd := sparse(t, helpBytes)
	if err := syscall.Fallocate(fd, fallocKeepSize, helpBytes, helpBytes); err != nil {
		t.Fatal(err)
	}
	u := newDuo(t, Driver{}, 0)
	u.q.helps = true
	u.q.lend(&packet{kind: packetRegion, id: 1, size: helpBytes}, fd)
	j := helpJob{src: u.q.lent[1], len: helpBytes}
	if err := j.copyChunk(make([]byte, chunkBytes), 0); err != nil {
		t.Error(err)
	}
	if n, err := sys.AllocatedSize(fd); err != nil || n != helpBytes {
		t.Errorf("%d bytes of pages, expected the %d that the peer made, %v", n, helpBytes, err)
	}
}

// TestLendingNeedsTheRight: who may not put has nothing to be helped with.
func TestLendingNeedsTheRight(t *testing.T) {
	x := new(path.Exports)
	p, q := connect(t, Driver{}, setup.Config{Exports: x, Rights: path.Read | path.Write},
		setup.Config{Exports: x, Rights: path.Read})
	defer p.Close()
	defer q.Close()
	if !q.helps {
		testenv.Missing(t, "two processors: one helps the other", fmt.Errorf("there is %d", runtime.NumCPU()))
	}
	if q.lend(&packet{kind: packetRegion, id: 1, size: 4096}, sparse(t, 4096)); len(q.lent) != 0 || q.downErr != nil {
		t.Errorf("%d regions taken, %v", len(q.lent), q.downErr)
	}
}

// TestMappingsAreCharged: attachments and lent regions are charged to the principal of the path,
// refused beyond its share, and given back.
func TestMappingsAreCharged(t *testing.T) {
	const who = "TestMappingsAreCharged"
	px, qx := new(path.Exports), new(path.Exports)
	cfg := setup.Config{Exports: px, Rights: path.Read | path.Write, Principal: who}
	p, q := connect(t, Driver{}, cfg, setup.Config{Exports: qx, Rights: path.Read | path.Write})
	u := &duo{t: t, p: p, q: q, px: px, qx: qx}
	defer q.Close()
	both := export(t, qx, u.region(1<<16), path.Read|path.Write)
	read := export(t, qx, u.region(1<<16), path.Read)
	last := export(t, qx, u.region(1<<16), path.Read)
	v, err := u.borrow(both.Key(), 0, 8)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := u.borrow(read.Key(), 0, 8); err != nil {
		t.Fatal(err)
	} else {
		v.Release()
	}
	if h := budget.Process().Held(who); h[budget.Mappings] != 3 || h[budget.Address] != 3<<16 {
		t.Errorf("%v is charged, expected 3 mappings of 64 KiB", h)
	}
	var hold []*budget.Grant // as another path of the same principal would
	for {
		g, err := budget.Process().Take(who, budget.Amounts{budget.Mappings: 1})
		if err != nil {
			break
		}
		hold = append(hold, g)
	}
	if _, err := u.borrow(last.Key(), 0, 8); !errors.Is(err, path.ErrUnreachable) || !errors.Is(err, budget.ErrOver) {
		t.Errorf("beyond the share: %v", err)
	}
	for _, g := range hold {
		g.Release()
	}
	if v, err := u.borrow(last.Key(), 0, 8); err != nil {
		t.Errorf("when there is room again: %v", err)
	} else {
		v.Release()
	}
	if p.helps {
		p.lend(&packet{kind: packetRegion, id: 1, size: 4096}, sparse(t, 4096))
		if h := budget.Process().Held(who); h[budget.Descriptors] != 1 || len(p.lent) != 1 {
			t.Errorf("%v is charged, expected a descriptor", h)
		}
	}
	p.Close()
	if h := budget.Process().Held(who); h[budget.Mappings] != 2 {
		t.Errorf("%v is charged while a view is out, expected 2 mappings", h)
	}
	v.Release()
	if h := budget.Process().Held(who); h != (budget.Amounts{}) {
		t.Errorf("%v is charged when all is closed", h)
	}
}

// TestNeeds opens paths with windows of each size: they take no more descriptors and memory than
// Driver.Needs says.
func TestNeeds(t *testing.T) {
	for _, window := range []int{1, 0, maxWindow} {
		cfg := setup.Config{Exports: new(path.Exports), Rights: path.Read | path.Write, Window: window}
		n := Driver{}.Needs(&cfg)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		files := count(t, "/proc/self/fd")
		p, q := connect(t, Driver{}, cfg, cfg)
		got := count(t, "/proc/self/fd") - files
		runtime.GC()
		runtime.ReadMemStats(&after)
		if got > 2*n.Descriptors {
			t.Errorf("window %d: two sides have %d descriptors, each should need %d", window, got, n.Descriptors)
		}
		if heap := after.HeapAlloc - min(before.HeapAlloc, after.HeapAlloc) +
			uint64(controlBytes(p.window)); heap > 2*n.Memory {
			t.Errorf("window %d: two sides take %d bytes, each should need %d", window, heap, n.Memory)
		}
		p.Close()
		q.Close()
	}
}
