package sys

import (
	"errors"
	"strings"
	"testing"
)

const smaps = `7f0000000000-7f0000200000 rw-s 00000000 00:0f 1 /memfd:a (deleted)
Size:               2048 kB
KernelPageSize:     2048 kB
MMUPageSize:        2048 kB
VmFlags: rd wr sh
7f0000200000-7f0000201000 rw-p 00000000 00:00 0
Size:                  4 kB
KernelPageSize:        4 kB
7f0000300000-7f0000301000 rw-p 00000000 00:00 0 [a-b]
KernelPageSize:        4 kB
`

func TestSmallestPage(t *testing.T) {
	for i, c := range []struct {
		from, to uint64
		want     int
	}{
		{0x7f0000000000, 0x7f0000200000, 2 << 20},
		{0x7f0000000000, 0x7f0000000001, 2 << 20},
		{0x7f0000100000, 0x7f0000200001, 4096},
		{0x7f0000300000, 0x7f0000301000, 4096},
		{0x7f0000200000, 0x7f0000202000, 0},
		{0x7f0000301000, 0x7f0000302000, 0},
		{1, 2, 0},
	} {
		got, err := smallestPage(strings.NewReader(smaps), c.from, c.to)
		if got != c.want || (err == nil) != (c.want > 0) || err != nil && !errors.Is(err, EFAULT) {
			t.Errorf("case %d: %d, %v: expected %d", i, got, err, c.want)
		}
	}
	b, err := Mmap(mustMemfd(t, 3*PageSize), 0, 3*PageSize, ProtRead|ProtWrite, MapShared)
	if err != nil {
		t.Fatal(err)
	}
	defer Munmap(b)
	if got, err := MappedPageSize(b[10:]); got != PageSize || err != nil {
		t.Errorf("%d, %v: expected %d", got, err, PageSize)
	}
	if _, err := MappedPageSize(nil); !errors.Is(err, EINVAL) {
		t.Errorf("no memory: %v", err)
	}
}

func mustMemfd(t *testing.T, size int) int {
	t.Helper()
	fd, err := MemfdCreate("page", int64(size), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Close(fd) })
	return fd
}

// FuzzSmallestPage: whatever is there, the answer is an error or a size that is there.
func FuzzSmallestPage(f *testing.F) {
	f.Add(smaps, uint64(0x7f0000000000), uint64(0x7f0000200000))
	f.Fuzz(func(t *testing.T, text string, from, to uint64) {
		if got, err := smallestPage(strings.NewReader(text), from, to); err == nil &&
			(got <= 0 || !strings.Contains(text, "KernelPageSize:")) {
			t.Errorf("%d", got)
		}
	})
}
