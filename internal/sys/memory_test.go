package sys

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseNodes(t *testing.T) {
	for in, want := range map[string][]int{
		"0\n": {0}, "0-3": {0, 1, 2, 3}, "0,2": {0, 2}, "0-1,4,6-7\n": {0, 1, 4, 6, 7}, "": nil, "\n": nil, "1023": {1023},
	} {
		if got, err := parseNodes(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; expected %v", in, got, err, want)
		}
	}
	for _, in := range []string{"a", "1-", "-1", "3-1", "1,,2", "0-1024", "0-99999999999999999999", "1-2-3"} {
		if got, err := parseNodes(in); err == nil {
			t.Errorf("%q: %v, expected an error", in, got)
		}
	}
}

func TestParseMemAvailable(t *testing.T) {
	if n, err := parseMemAvailable([]byte("MemTotal: 5 kB\nMemFree:  4 kB\nMemAvailable:   123 kB\n")); err != nil || n != 123<<10 {
		t.Errorf("%d, %v", n, err)
	}
	for _, in := range []string{"", "MemTotal: 5 kB\n", "MemAvailable: x kB\n", "MemAvailable: 99999999999999999999 kB\n", "MemAvailable: -1 kB\n"} {
		if n, err := parseMemAvailable([]byte(in)); err == nil {
			t.Errorf("%q: %d, expected an error", in, n)
		}
	}
	if n, err := MemAvailable(); err != nil || n == 0 {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := LockLimit(); err != nil || n == 0 {
		t.Errorf("RLIMIT_MEMLOCK %d, %v", n, err)
	}
}

// TestHugePageState reads a tree like that of the kernel.
func TestHugePageState(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "hugepages-2048kB")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]string{"nr_hugepages": "10", "free_hugepages": "6", "resv_hugepages": "2", "surplus_hugepages": "1", "nr_overcommit_hugepages": "4"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(v+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h, err := hugePageState(root, 2<<20, false)
	if err != nil || h.Total != 10 || h.Free != 4 || h.More != 3 {
		t.Errorf("%+v, %v", h, err)
	}
	if got, want := h.Command(9), "echo 15 > "+filepath.Join(dir, "nr_hugepages"); got != want {
		t.Errorf("%q, expected %q", got, want)
	}
	if got := h.Command(3); !strings.HasPrefix(got, "echo 10 ") {
		t.Errorf("%q takes pages away", got)
	}
	if h, err := hugePageState(root, 2<<20, true); err != nil || h.Free != 6 || h.More != 0 {
		t.Errorf("of a node: %+v, %v", h, err)
	}
	if _, err := hugePageState(root, 1<<30, false); err == nil || !strings.Contains(err.Error(), "it has 2048kB") {
		t.Errorf("a size that does not exist: %v", err)
	}
	if _, err := hugePageState(t.TempDir(), 2<<20, false); err == nil || !strings.Contains(err.Error(), "no huge pages") {
		t.Errorf("a kernel without huge pages: %v", err)
	}
	os.WriteFile(filepath.Join(dir, "free_hugepages"), []byte("many"), 0o600)
	if _, err := hugePageState(root, 2<<20, false); err == nil || !strings.Contains(err.Error(), "free_hugepages") {
		t.Errorf("nonsense: %v", err)
	}
}

func TestPopulate(t *testing.T) {
	fd, err := MemfdCreate("populate", int64(8*PageSize), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fd)
	b, err := Mmap(fd, 0, 8*PageSize, ProtRead|ProtWrite, MapShared)
	if err != nil {
		t.Fatal(err)
	}
	defer Munmap(b)
	nodes := make([]int32, 8)
	present := func() (n int) {
		if err := PageNodes(b, PageSize, nodes); err != nil {
			t.Skip("the kernel does not say: ", err)
		}
		for _, v := range nodes {
			if v >= 0 {
				n++
			}
		}
		return n
	}
	if n := present(); n != 0 {
		t.Fatalf("%d pages present at first", n)
	}
	// Two bytes in two pages: both pages, and no other.
	if err := Populate(b[PageSize-1:PageSize+1], true); err != nil {
		t.Fatal(err)
	}
	if n := present(); n != 2 || nodes[0] < 0 || nodes[1] < 0 {
		t.Errorf("%d pages present, nodes %v", n, nodes)
	}
	if err := Populate(b, false); err != nil || present() != 8 {
		t.Errorf("%v, nodes %v", err, nodes)
	}
	if err := Populate(nil, true); err != nil {
		t.Error(err)
	}
	if err := Ftruncate(fd, int64(PageSize)); err != nil {
		t.Fatal(err)
	}
	if err := Populate(b, true); err == nil {
		t.Error("populated pages beyond the end of the file")
	}
	if err := PageNodes(b[:PageSize], PageSize, nodes); !IsErrno(err, EINVAL) {
		t.Errorf("8 pages of 1: %v", err)
	}
	if err := BindNode(b, -1); !IsErrno(err, EINVAL) {
		t.Errorf("node -1: %v", err)
	}
	if err := BindNode(b, 5000); !IsErrno(err, EINVAL) {
		t.Errorf("node 5000: %v", err)
	}
}
