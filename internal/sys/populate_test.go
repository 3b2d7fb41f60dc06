package sys_test

import (
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

func TestPopulate(t *testing.T) {
	fd, err := sys.MemfdCreate("populate", int64(8*sys.PageSize), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(fd)
	b, err := sys.Mmap(fd, 0, 8*sys.PageSize, sys.ProtRead|sys.ProtWrite, sys.MapShared)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Munmap(b)
	nodes := make([]int32, 8)
	present := func() (n int) {
		if err := sys.PageNodes(b, sys.PageSize, nodes); err != nil {
			testenv.Missing(t, "a kernel that says where pages are", err)
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
	if err := sys.Populate(b[sys.PageSize-1:sys.PageSize+1], true); err != nil {
		t.Fatal(err)
	}
	if n := present(); n != 2 || nodes[0] < 0 || nodes[1] < 0 {
		t.Errorf("%d pages present, nodes %v", n, nodes)
	}
	if err := sys.Populate(b, false); err != nil || present() != 8 {
		t.Errorf("%v, nodes %v", err, nodes)
	}
	if err := sys.Populate(nil, true); err != nil {
		t.Error(err)
	}
	if err := sys.Ftruncate(fd, int64(sys.PageSize)); err != nil {
		t.Fatal(err)
	}
	if err := sys.Populate(b, true); err == nil {
		t.Error("populated pages beyond the end of the file")
	}
	if err := sys.PageNodes(b[:sys.PageSize], sys.PageSize, nodes); !sys.IsErrno(err, sys.EINVAL) {
		t.Errorf("8 pages of 1: %v", err)
	}
	if err := sys.BindNode(b, -1); !sys.IsErrno(err, sys.EINVAL) {
		t.Errorf("node -1: %v", err)
	}
	if err := sys.BindNode(b, 5000); !sys.IsErrno(err, sys.EINVAL) {
		t.Errorf("node 5000: %v", err)
	}
}
