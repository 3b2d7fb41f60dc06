package mem

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

func TestHostRegionIsPopulatedAndSealed(t *testing.T) {
	r := allocate(t, Options{Name: "host", Size: 3*sys.PageSize + 1})
	if r.Len() != uint64(4*sys.PageSize) || r.Kind() != Host || r.PageSize() != sys.PageSize || r.ReadOnly() ||
		r.Note() != "" || r.Name() != "host" {
		t.Errorf("len %d kind %s page %d read-only %v note %q name %q", r.Len(), r.Kind(), r.PageSize(), r.ReadOnly(),
			r.Note(), r.Name())
	}
	if r.PopulateTime() <= 0 {
		t.Errorf("populate time %v: expected more than 0", r.PopulateTime())
	}
	seals, err := sys.Seals(r.FD())
	if err != nil || seals&(sys.SealShrink|sys.SealGrow) != sys.SealShrink|sys.SealGrow {
		t.Errorf("seals %#x, %v: expected shrink and grow", seals, err)
	}
	for _, size := range []int64{0, int64(sys.PageSize), 1 << 20} {
		if err := sys.Ftruncate(r.FD(), size); !sys.IsErrno(err, sys.EPERM) {
			t.Errorf("truncate to %d: %v, expected EPERM", size, err)
		}
	}
	on, err := r.PlacedOn()
	if err != nil && !sys.IsErrno(err, sys.ENOSYS) {
		t.Fatal(err)
	}
	if err == nil && on[-1] != 0 {
		t.Errorf("pages by node %v: some are not present", on)
	}
	l := must[Lease](t)(r.Lease())
	defer l.Release()
	b := l.Bytes()
	b[0], b[len(b)-1] = 1, 2
}

func TestLazyRegionIsNotPopulated(t *testing.T) {
	r := allocate(t, Options{Size: 64 * sys.PageSize, Lazy: true})
	if r.PopulateTime() != 0 || r.NUMANode() != -1 {
		t.Errorf("populate time %v, node %d", r.PopulateTime(), r.NUMANode())
	}
	on, err := r.PlacedOn()
	if sys.IsErrno(err, sys.ENOSYS) {
		testenv.Missing(t, "a kernel that says where pages are", err)
	}
	if err != nil || on[-1] != 64 || len(on) != 1 {
		t.Errorf("pages by node %v, %v: expected all 64 absent", on, err)
	}
}

func TestBadOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		is   error
		text string
	}{
		{Options{}, nil, "size 0 bytes"},
		{Options{Size: -1}, nil, "size -1 bytes"},
		{Options{Size: math.MaxInt}, nil, "overflows"},
		{Options{Size: 1, Kind: HostPinned}, ErrUnavailable, "GPU runtime"},
		{Options{Size: 1, Kind: Device}, ErrUnavailable, "GPU runtime"},
		{Options{Size: 1, Kind: Foreign}, ErrUnavailable, "use Adopt"},
		{Options{Size: 1, Kind: 77}, ErrUnavailable, "kind(77)"},
		{Options{Size: 1, Kind: Huge, PageSize: 4096}, nil, "1073741824 (1 GiB)"},
		{Options{Size: 1 << 50}, nil, "available"},
		{Options{Size: 1 << 50, NUMANode: OnNode(1000)}, nil, "NUMA node 1000"},
	} {
		r, err := Alloc(c.o)
		if err == nil {
			r.Close()
			t.Errorf("%+v: no error", c.o)
			continue
		}
		if !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%+v: %v\nexpected %q, %v", c.o, err, c.text, c.is)
		}
	}
}

func TestSpanBounds(t *testing.T) {
	r := allocate(t, Options{Size: sys.PageSize})
	n := r.Len()
	for _, c := range []struct {
		off, n uint64
		ok     bool
	}{{0, n, true}, {n, 0, true}, {1, n - 1, true}, {0, n + 1, false}, {1, n, false}, {n + 1, 0, false},
		{math.MaxUint64, 2, false}, {2, math.MaxUint64, false}} {
		s, err := r.Span(c.off, c.n)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrBounds) {
			t.Errorf("Span(%d, %d): %v", c.off, c.n, err)
		}
		if raw := (Span{r, c.off, c.n}); raw.Valid() != c.ok {
			t.Errorf("%+v.Valid() = %v", c, raw.Valid())
		}
		if c.ok && uint64(len(s.Bytes())) != c.n {
			t.Errorf("%+v: %d bytes", c, len(s.Bytes()))
		}
		if sub, err := r.All().Sub(c.off, c.n); (err == nil) != c.ok || err == nil && sub != s {
			t.Errorf("Sub(%d, %d): %v %v", c.off, c.n, sub, err)
		}
	}
	s := must[Span](t)(r.Span(100, 50))
	if cap(s.Bytes()) != 50 {
		t.Errorf("capacity %d reaches beyond the span", cap(s.Bytes()))
	}
	if _, err := s.Sub(0, 51); !errors.Is(err, ErrBounds) {
		t.Errorf("Sub beyond the span: %v", err)
	}
	if sub := must[Span](t)(s.Sub(10, 5)); sub.Off != 110 || sub.Len != 5 {
		t.Errorf("Sub: %+v", sub)
	}
	if (Span{}).Valid() {
		t.Error("the zero span is valid")
	}
	if _, err := (Span{}).Sub(1, 1); !errors.Is(err, ErrBounds) {
		t.Errorf("Sub of the zero span: %v", err)
	}
}

// TestAdoptNoBytes: memory of no bytes is memory that the CPU reaches, with spans, leases and an
// end.
func TestAdoptNoBytes(t *testing.T) {
	released := 0
	for _, b := range [][]byte{nil, {}, make([]byte, 0, 10)} {
		r := must[*Region](t)(Adopt("none", b, func() error { released++; return nil }))
		s := must[Span](t)(r.Span(0, 0))
		if r.Len() != 0 || !s.Valid() || s.Bytes() == nil || len(s.Bytes()) != 0 {
			t.Errorf("%d bytes, %v", r.Len(), s.Bytes())
		}
		if x, err := Slice[float32](s); err != nil || len(x) != 0 {
			t.Errorf("%v, %v", x, err)
		}
		if _, err := r.Span(0, 1); !errors.Is(err, ErrBounds) {
			t.Errorf("a byte of it: %v", err)
		}
		l := must[Lease](t)(r.Lease())
		if err := errors.Join(r.Close(), l.Release()); err != nil || !isUnmapped(r) {
			t.Errorf("close: %v", err)
		}
	}
	if released != 3 {
		t.Errorf("released %d times", released)
	}
}

func TestLeaseKeepsMapping(t *testing.T) {
	released := 0
	r := must[*Region](t)(Adopt("mine", make([]byte, 100), func() error {
		released++
		return errors.New("from release")
	}))
	a, b := must[Lease](t)(r.Lease()), must[Lease](t)(r.Lease())
	if r.Leases() != 2 || a.Region() != r {
		t.Fatalf("%d leases", r.Leases())
	}
	if err := r.Close(); err != nil || released != 0 || isUnmapped(r) || !r.Closed() {
		t.Fatalf("close under leases: %v, released %d", err, released)
	}
	if _, err := r.Lease(); !errors.Is(err, ErrClosed) {
		t.Errorf("lease after close: %v", err)
	}
	a.Release()
	if released != 0 || isUnmapped(r) {
		t.Fatal("unmapped before the last lease")
	}
	b.Release()
	if released != 1 || !isUnmapped(r) {
		t.Fatalf("released %d times", released)
	}
	if err := r.Close(); err != nil || released != 1 {
		t.Errorf("second close: %v", err)
	}
	Lease{}.Release()
	if (Lease{}).Bytes() != nil || (Lease{}).Region() != nil {
		t.Error("the zero lease leases something")
	}
	r = must[*Region](t)(Adopt("mine", make([]byte, 1), func() error { return errors.New("from release") }))
	if err := r.Close(); err == nil || err.Error() != "from release" {
		t.Errorf("close: %v", err)
	}
}

// TestReleaseWithoutLease: a release too many must not turn into a lease of its own kind, or an
// unmapping.
func TestReleaseWithoutLease(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithInvariants, "panics under -tags invariants, see TestDoubleLeaseReleaseIsReported")
	released := 0
	r := must[*Region](t)(Adopt("mine", make([]byte, 1), func() error { released++; return nil }))
	l := must[Lease](t)(r.Lease())
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	held := must[Lease](t)(r.Lease())
	again := l // a copy shares the one release
	for range 3 {
		if err := again.Release(); !errors.Is(err, ErrReleased) {
			t.Errorf("a second release: %v", err)
		}
	}
	if r.Leases() != 1 || r.Closed() {
		t.Fatalf("%d leases, closed %v: the second release took another's away", r.Leases(), r.Closed())
	}
	r.Close()
	if released != 0 {
		t.Fatal("unmapped under a lease")
	}
	if err := held.Release(); err != nil {
		t.Error(err)
	}
	if err := held.Release(); !errors.Is(err, ErrReleased) {
		t.Errorf("a second release of what is unmapped: %v", err)
	}
	if released != 1 {
		t.Errorf("released %d times", released)
	}
}

// TestLeaseRace has leases come and go while the region is closed: it is unmapped once, and never
// under a lease.
func TestLeaseRace(t *testing.T) {
	for range 200 {
		mapped := make([]byte, 64)
		var mu sync.Mutex
		unmapped := 0
		r := must[*Region](t)(Adopt("race", mapped, func() error {
			mu.Lock()
			defer mu.Unlock()
			unmapped++
			clear(mapped) // the race detector sees a reader under a lease
			return nil
		}))
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					l, err := r.Lease()
					if err != nil {
						return
					}
					if l.Bytes()[0] != 0 {
						t.Error("changed")
					}
					l.Release()
				}
			})
		}
		for range 2 {
			wg.Go(func() { r.Close() })
		}
		wg.Wait()
		<-r.Unmapped()
		mu.Lock()
		if unmapped != 1 {
			t.Fatalf("unmapped %d times", unmapped)
		}
		mu.Unlock()
	}
}

func TestSealWrites(t *testing.T) {
	r := allocate(t, Options{Size: 4 * sys.PageSize})
	// Without the seal a holder of the descriptor can write and punch holes: that is why the seal
	// exists.
	if w, err := sys.Mmap(r.FD(), 0, sys.PageSize, sys.ProtRead|sys.ProtWrite, sys.MapShared); err != nil {
		t.Fatal(err)
	} else {
		sys.Munmap(w)
	}
	r.All().Bytes()[0] = 7
	if err := sys.PunchHole(r.FD(), 0, int64(sys.PageSize)); err != nil {
		t.Fatal(err)
	}
	if r.All().Bytes()[0] != 0 {
		t.Error("a punched page does not read as zero")
	}
	for range 2 {
		if err := r.SealWrites(); err != nil {
			t.Fatal(err)
		}
	}
	if w, err := sys.Mmap(r.FD(), 0, sys.PageSize, sys.ProtRead|sys.ProtWrite, sys.MapShared); !sys.IsErrno(err,
		sys.EPERM) {
		t.Errorf("a new writable mapping: %v, expected EPERM", err)
		sys.Munmap(w)
	}
	if err := sys.PunchHole(r.FD(), 0, int64(sys.PageSize)); !sys.IsErrno(err, sys.EPERM) {
		t.Errorf("punch: %v, expected EPERM", err)
	}
	ro := must[[]byte](t)(sys.Mmap(r.FD(), 0, sys.PageSize, sys.ProtRead, sys.MapShared))
	defer sys.Munmap(ro)
	r.All().Bytes()[1] = 9 // our own mapping still writes, and readers see it
	if ro[1] != 9 {
		t.Error("the reader does not see the owner's write")
	}

	born := allocate(t, Options{Size: 1, SealWrites: true})
	if s, err := sys.Seals(born.FD()); err != nil || s&sys.SealFutureWrite == 0 {
		t.Errorf("Options.SealWrites: seals %#x, %v", s, err)
	}
	foreign := must[*Region](t)(Adopt("f", make([]byte, 1), nil))
	defer foreign.Close()
	if err := foreign.SealWrites(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("seal of adopted memory: %v", err)
	}
	gone := allocate(t, Options{Size: 1})
	gone.Close()
	if err := gone.SealWrites(); !errors.Is(err, ErrClosed) {
		t.Errorf("seal after close: %v", err)
	}
}

func TestNUMA(t *testing.T) {
	if (Options{}).NUMANode.Number() != -1 || OnNode(-5).Number() != -1 || OnNode(3).Number() != 3 {
		t.Fatal("the zero value is not any node")
	}
	nodes, err := sys.MemoryNodes()
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) == 0 {
		_, err := Alloc(Options{Size: 1, NUMANode: OnNode(0)})
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("kernel without NUMA: %v", err)
		}
		return // TestGuestNUMA tests the rest
	}
	for _, n := range nodes {
		r, err := Alloc(Options{Name: "bound", Size: 1000 * sys.PageSize, NUMANode: OnNode(n)})
		if sys.IsErrno(err, sys.EPERM) {
			testenv.Missing(t, "the right to bind memory to a node", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		on, err := r.PlacedOn()
		if r.NUMANode() != n || err != nil || on[n] != 1000 || len(on) != 1 {
			t.Errorf("node %d: NUMANode() = %d, pages by node %v, %v", n, r.NUMANode(), on, err)
		}
		if got := policy(t, r); got != "" && got != fmt.Sprintf("bind:%d", n) {
			t.Errorf("the kernel's rule for the pages is %q, expected bind:%d", got, n)
		}
		r.Close()
		lazy := must[*Region](t)(Alloc(Options{Size: 8 * sys.PageSize, NUMANode: OnNode(n), Lazy: true}))
		if !strings.Contains(lazy.Note(), "not verified") || lazy.NUMANode() != -1 {
			t.Errorf("lazy: note %q, node %d", lazy.Note(), lazy.NUMANode())
		}
		clear(lazy.All().Bytes())
		if on, err := lazy.PlacedOn(); err != nil || on[n] != 8 {
			t.Errorf("lazy, touched: %v, %v", on, err)
		}
		lazy.Close()
	}
	missing := nodes[len(nodes)-1] + 1
	_, err = Alloc(Options{Size: 1, NUMANode: OnNode(missing)})
	if !errors.Is(err, errNoNode) || !strings.Contains(err.Error(), "nodes with memory are") {
		t.Errorf("node %d: %v", missing, err)
	}
	if len(nodes) == 1 {
		if r := allocate(t, Options{Size: 100 * sys.PageSize}); r.NUMANode() != nodes[0] {
			t.Errorf("unbound memory on a machine with one node is on node %d", r.NUMANode())
		}
	}
}

// policy is the kernel's word for where pages of a region come from (man 7 numa), "" where it does
// not say. On a machine with one node it is the only way to see that a region was bound.
func policy(t *testing.T, r *Region) string {
	maps, err := os.ReadFile("/proc/self/numa_maps")
	if err != nil {
		t.Log(err)
		return ""
	}
	for line := range strings.SplitSeq(string(maps), "\n") {
		if at, rest, _ := strings.Cut(line, " "); at == fmt.Sprintf("%x", sys.Address(r.data)) {
			word, _, _ := strings.Cut(rest, " ")
			return word
		}
	}
	t.Errorf("no line for %x in numa_maps", sys.Address(r.data))
	return ""
}

// TestMisplacedPagesAreAnError gives the verification a wrong expectation: it must not believe what
// was asked for.
func TestMisplacedPagesAreAnError(t *testing.T) {
	r := allocate(t, Options{Size: 4 * sys.PageSize})
	if r.NUMANode() < 0 {
		_, err := r.PlacedOn()
		testenv.Missing(t, "a kernel that says where pages are", err)
	}
	if _, err := placed(r.data, r.page, r.NUMANode()+1); err == nil || !strings.Contains(err.Error(), "all the same") {
		t.Errorf("wrong node: %v", err)
	}
	lazy := allocate(t, Options{Size: 4 * sys.PageSize, Lazy: true})
	if _, err := placed(lazy.data, lazy.page, r.NUMANode()); err == nil {
		t.Error("absent pages count as placed")
	}
}

type fakeProvider struct{ freed int }

func (p *fakeProvider) Allocate(o Options) (Mapping, error) {
	if o.Kind != Device {
		return Mapping{}, ErrUnavailable
	}
	return Mapping{Kind: Device, Size: uint64(o.Size), PageSize: 1 << 16, FD: -1, NUMANode: -1, Free: func() error {
		p.freed++
		return nil
	}}, nil
}

func TestProvider(t *testing.T) {
	p := &fakeProvider{}
	r := must[*Region](t)(Alloc(Options{Size: 1 << 20, Kind: Device, Provider: p}))
	if r.Kind() != Device || r.Len() != 1<<20 || r.All().Bytes() != nil || !r.All().Valid() {
		t.Errorf("%s, %d bytes", r.Kind(), r.Len())
	}
	if _, err := r.PlacedOn(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("PlacedOn: %v", err)
	}
	if s := ReadStats(); s.Bytes[Device] != 1<<20 || s.Regions[Device] != 1 {
		t.Errorf("stats %+v", s)
	}
	if err := r.Close(); err != nil || p.freed != 1 {
		t.Errorf("close: %v, freed %d", err, p.freed)
	}
	if s := ReadStats(); s.Bytes[Device] != 0 || s.Regions[Device] != 0 {
		t.Errorf("stats after close %+v", s)
	}
	if _, err := Alloc(Options{Size: 1, Kind: Host, Provider: p}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a kind it does not have: %v", err)
	}
}

func TestStatsAndLeakReport(t *testing.T) {
	before := ReadStats()
	r := allocate(t, Options{Name: "leaky", Size: 1 << 20})
	l := must[Lease](t)(r.Lease())
	now := ReadStats()
	if now.Bytes[Host]-before.Bytes[Host] != 1<<20 || now.Regions[Host]-before.Regions[Host] != 1 ||
		now.Populate <= before.Populate {
		t.Errorf("before %+v, now %+v", before, now)
	}
	text := LeakReport().String()
	if !strings.Contains(text, `1 region of "leaky", 1048576 bytes`) || !strings.Contains(text, `1 lease of "leaky"`) {
		t.Errorf("report:\n%s", text)
	}
	l.Release()
	r.Close()
	if text := LeakReport().String(); strings.Contains(text, "leaky") {
		t.Errorf("report after close:\n%s", text)
	}
	if got := Leaks(nil).String(); got != "no leaks" {
		t.Errorf("empty report: %q", got)
	}
}
