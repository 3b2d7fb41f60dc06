package sys

import (
	"strings"
	"testing"
)

func TestNodeAvailable(t *testing.T) {
	const meminfo = `Node 1 MemTotal:         386468 kB
Node 1 MemFree:          100000 kB
Node 1 Active(file):       8000 kB
Node 1 Inactive(file):     2000 kB
Node 1 SReclaimable:        400 kB
Node 1 HugePages_Total:     4
`
	const zoneinfo = `Node 0, zone    DMA32
  pages free     1000
        low      7777
        high     8888
Node 1, zone    DMA32
  pages free     25000
        boost    0
        min      400
        low      500
        high     600
    pagesets
    cpu: 0
              count:    10
              high:     186
Node 1, zone   Normal
        low      100
        high     200
`
	got, err := nodeAvailable(1, []byte(meminfo), []byte(zoneinfo))
	page := PageSize / 1024
	want := uint64(100000+10000-min(5000, 600*page)+200-800*page) << 10
	if err != nil || got != want {
		t.Errorf("%d, %v; expected %d", got, err, want)
	}
	for _, bad := range []struct{ meminfo, zoneinfo, want string }{
		{"", zoneinfo, "no line MemFree"},
		{"Node 1 MemFree: x kB", zoneinfo, "line"},
		{meminfo, "Node 1, zone DMA\n low x", "zoneinfo"},
	} {
		if _, err := nodeAvailable(1, []byte(bad.meminfo), []byte(bad.zoneinfo)); err == nil ||
			!strings.Contains(err.Error(), bad.want) {
			t.Errorf("%v; expected %q", err, bad.want)
		}
	}
	if nodes, err := MemoryNodes(); err == nil && len(nodes) > 0 {
		n, err := NodeAvailable(nodes[0])
		all, err2 := MemAvailable()
		t.Logf("node %d: %d of %d, %v %v", nodes[0], n, all, err, err2)
		if err != nil || n == 0 {
			t.Errorf("node %d: %d, %v", nodes[0], n, err)
		}
	}
}
