//go:build dpdk && !race && !asan

package dpdk

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// TestKilled kills a process that has ports of all kinds. What the kernel keeps of it the next
// process takes over, and nothing remains of that when it has ended. Beside them a process with
// files of its own goes on.
func TestKilled(t *testing.T) {
	host := netns.New(t, netns.Topology{}).Hosts[0]
	dir := t.TempDir()
	link, memif, vhost := host.Link().Name, filepath.Join(dir, "memif"), filepath.Join(dir, "vhost")
	none := EAL{Huge: HugeOff}
	files := func(n int) EAL {
		return EAL{Huge: HugeOff, Files: true, FilePrefix: fmt.Sprintf("penstock-killed-%d-%d", os.Getpid(), n)}
	}
	runtime := func(n int) string { return "/run/dpdk/" + files(n).FilePrefix }
	t.Cleanup(func() { os.RemoveAll(runtime(1)); os.RemoveAll(runtime(2)) })
	left := func() (out []string) {
		show, err := host.Output(t.Context(), "ip", "link", "show")
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"tap6", "xdp"} {
			if bytes.Contains(show, []byte(word)) {
				out = append(out, word)
			}
		}
		for _, file := range []string{memif, vhost, runtime(1), runtime(2)} {
			if _, err := os.Stat(file); err == nil {
				out = append(out, filepath.Base(file))
			}
		}
		maps, _ := filepath.Glob("/dev/hugepages/*map_*")
		return append(out, maps...)
	}
	ports := func(o EAL) (out []trial) {
		for _, a := range []string{"net_ring0", "net_tap0,iface=tap6", "net_af_xdp0,iface=" + link,
			"net_memif0,role=server,socket-abstract=no,socket=" + memif, "net_vhost0,iface=" + vhost} {
			out = append(out, trial{"dpdk://" + a, o})
		}
		return out
	}
	opened := func(o EAL) *child {
		c, said := startChild(t, host.Start, nil, ports(o)...)
		for _, line := range said {
			if line != "open" {
				t.Errorf("%s", line)
			}
		}
		return c
	}
	remains := func(when string, want ...string) {
		if got := left(); !slices.Equal(got, want) {
			t.Errorf("%s there are %q, expected %q", when, got, want)
		}
	}
	beside, said := startChild(t, (*exec.Cmd).Start, nil, trial{"dpdk://net_null0", files(1)})
	mine, theirs := filepath.Base(runtime(2)), filepath.Base(runtime(1))
	c := opened(none)
	remains("while it runs", "tap6", "xdp", "memif", "vhost", theirs)
	c.kill()
	remains("killed", "xdp", "memif", "vhost", theirs)
	c = opened(files(2))
	c.kill()
	remains("killed with files", "xdp", "memif", "vhost", theirs, mine)
	c = opened(files(2)) // with the same prefix, whose files it takes over
	if err := c.end(); err != nil {
		t.Error(err)
	}
	remains("in the end", theirs, mine)
	if err := beside.end(); err != nil || said[0] != "open" {
		t.Error(said, err)
	}
}
