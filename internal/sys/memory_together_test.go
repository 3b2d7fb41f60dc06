package sys

import (
	"errors"
	"testing"
)

// Pieces of two files are one range, with the bytes that their own mappings have.
func TestMapTogether(t *testing.T) {
	page := PageSize
	fds, maps := [2]int{}, [2][]byte{}
	for i := range fds {
		var err error
		if fds[i], err = MemfdCreate("together", int64(4*page), 0); err != nil {
			t.Fatal(err)
		}
		defer Close(fds[i])
		if maps[i], err = Mmap(fds[i], 0, 4*page, ProtRead|ProtWrite, MapShared); err != nil {
			t.Fatal(err)
		}
		defer Munmap(maps[i])
	}
	const align = 1 << 21
	b, unmap, err := MapTogether(align, MapPart{fds[0], 0, 4 * page}, MapPart{fds[1], int64(page), 2 * page})
	if err != nil {
		t.Fatal(err)
	}
	if len(b) != 6*page || Address(b)%align != 0 {
		t.Fatalf("%d bytes at %#x", len(b), Address(b))
	}
	maps[0][page+1], maps[1][page+2] = 7, 8
	b[5*page] = 9
	if b[page+1] != 7 || b[4*page+2] != 8 || maps[1][2*page] != 9 {
		t.Error("it is other memory")
	}
	if err := unmap(); err != nil {
		t.Error(err)
	}
	for _, bad := range [][]MapPart{nil, {{-1, 0, page}}, {{fds[0], 1, page}}} {
		if _, _, err := MapTogether(align, bad...); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
	if _, _, err := MapTogether(3*page, MapPart{fds[0], 0, page}); !errors.Is(err, EINVAL) {
		t.Error(err)
	}
}
