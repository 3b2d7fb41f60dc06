package mem

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

func TestHugePages(t *testing.T) {
	for _, size := range []int{2 << 20, 1 << 30} {
		t.Run(fmt.Sprint(size>>20, "MiB"), func(t *testing.T) {
			n := max(4<<20/size, 1)
			if _, err := sys.HugePageState(size, -1); err != nil && size > 2<<20 { // a processor without pages of 1 GiB
				if _, got := Alloc(Options{Size: 1, Kind: Huge, PageSize: size}); !errors.Is(got, ErrUnavailable) ||
					!strings.Contains(got.Error(), err.Error()) {
					t.Errorf("%v, expected %v", got, err)
				}
				return
			}
			testenv.HugePages(t, size, n+n/2)
			before, _ := sys.HugePageState(size, -1)
			r := must[*Region](t)(Alloc(Options{Name: "huge", Size: n*size - 1, Kind: Huge, PageSize: size}))
			after, _ := sys.HugePageState(size, -1)
			if r.Kind() != Huge || r.PageSize() != size || r.Len() != uint64(n*size) || r.Note() != "" {
				t.Errorf("kind %s, page %d, len %d, note %q", r.Kind(), r.PageSize(), r.Len(), r.Note())
			}
			// Pages in use are counted, not free ones: another process may change how many the
			// kernel keeps.
			used := func(s sys.HugePages) int { return s.Total - s.Free }
			if took := used(after) - used(before); took != n || r.PopulateTime() <= 0 {
				t.Errorf("%d pages taken, expected %d; populate time %v", took, n, r.PopulateTime())
			}
			if on, err := r.PlacedOn(); err != nil && !sys.IsErrno(err, sys.ENOSYS) || err == nil &&
				on[r.NUMANode()] != n {
				t.Errorf("pages by node %v, NUMANode %d, %v", on, r.NUMANode(), err)
			}
			b := r.All().Bytes()
			for i := 0; i < len(b); i += size {
				b[i] = 1
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if end, _ := sys.HugePageState(size, -1); used(end) != used(before) {
				t.Errorf("%d pages in use after close, %d before", used(end), used(before))
			}
		})
	}
}

func TestHugePagesOnANode(t *testing.T) {
	nodes, err := sys.MemoryNodes()
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) == 0 { // see TestNUMA
		if _, err := Alloc(Options{Size: 2 << 20, Kind: Huge, NUMANode: OnNode(0)}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("kernel without NUMA: %v", err)
		}
		return
	}
	testenv.HugePages(t, 2<<20, 2)
	served := 0
	for _, n := range nodes { // the kernel has put them where it has room
		h, err := sys.HugePageState(2<<20, n)
		if err != nil {
			t.Fatal(err)
		}
		if h.Free == 0 {
			continue
		}
		served++
		r, err := Alloc(Options{Size: 2 << 20, Kind: Huge, NUMANode: OnNode(n)})
		if err != nil {
			t.Errorf("node %d has %+v: %v", n, h, err)
			continue
		}
		if r.NUMANode() != n {
			t.Errorf("on node %d, expected %d", r.NUMANode(), n)
		}
		r.Close()
	}
	if served == 0 {
		t.Error("no node has the pages that were added")
	}
}

// TestHugePageShortage asks for more than there are: an error with numbers and the command, or an
// announced fallback.
func TestHugePageShortage(t *testing.T) {
	h, err := sys.HugePageState(2<<20, -1)
	if err != nil {
		_, err := Alloc(Options{Size: 1, Kind: Huge})
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("kernel without huge pages: %v", err)
		}
		return
	}
	testenv.HugePages(t, 2<<20, 0) // so that no other process of the lab changes what is free
	if h, err = sys.HugePageState(2<<20, -1); err != nil {
		t.Fatal(err)
	}
	need := h.Free + h.More + 3
	o := Options{Name: "short", Size: need * (2 << 20), Kind: Huge}
	_, err = Alloc(o)
	if !errors.Is(err, ErrUnavailable) {
		t.Fatalf("error %v", err)
	}
	want := fmt.Sprintf("echo %d > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", h.Total+need-h.Free)
	for _, part := range []string{fmt.Sprintf("%d huge pages of 2097152 bytes are needed", need),
		fmt.Sprintf("%d are free", h.Free), want} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
	if after, _ := sys.HugePageState(2<<20, -1); after.Free != h.Free {
		t.Errorf("%d pages free after the failure, %d before", after.Free, h.Free)
	}
	if h.Free > 64 {
		return // the fallback would need as much memory again
	}
	o.AllowFallback = true
	r := allocate(t, o)
	if r.Kind() != Host || r.PageSize() != sys.PageSize || !strings.Contains(r.Note(), "base pages instead") ||
		!strings.Contains(r.Note(), want) {
		t.Errorf("fallback: kind %s, page %d, note %q", r.Kind(), r.PageSize(), r.Note())
	}
}

// TestShortageIsAnErrorNotASignal takes the huge pages away between mapping and populating, as a
// confined node would: what would be a SIGBUS on touch must be an error.
func TestShortageIsAnErrorNotASignal(t *testing.T) {
	testenv.HugePages(t, 2<<20, 1)
	h, _ := sys.HugePageState(2<<20, -1)
	size := (h.Free + h.More + 1) * (2 << 20)
	fd := must[int](t)(sys.MemfdCreate("short", int64(size), 2<<20))
	defer sys.Close(fd)
	const noReserve = 0x4000 // MAP_NORESERVE: the mapping succeeds without the pages
	b := must[[]byte](t)(sys.Mmap(fd, 0, size, sys.ProtRead|sys.ProtWrite, sys.MapShared|noReserve))
	defer sys.Munmap(b)
	if err := populate(b, fd); err == nil {
		t.Error("populated more huge pages than there are")
	}
	// And what CopyGuarded makes of it, which would kill the process otherwise.
	if _, err := CopyGuarded(b[len(b)-1:], []byte{1}); !errors.Is(err, ErrFault) {
		t.Errorf("touching a missing huge page: %v", err)
	}
}
