package host

import (
	"context"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// directOf is the server of package doctor with some lines replaced.
func directOf(t *testing.T, edits ...string) *Facts {
	t.Helper()
	s := recordings(t)["server.txt"]
	for i := 0; i < len(edits); i += 2 {
		if !strings.Contains(s, edits[i]) {
			t.Fatalf("no %q in the recording", edits[i])
		}
		s = strings.ReplaceAll(s, edits[i], edits[i+1])
	}
	return ReadDirect(context.Background(), parse(t, s))
}

const (
	serverGPU  = "0000:18:00.0"
	serverCard = "0000:19:00.0"
)

// TestPair: what is missing for a card to reach a GPU's memory is named, each thing by itself.
func TestPair(t *testing.T) {
	open := []string{"UNIX x86_64 Kernel Module", "UNIX Open Kernel Module"}
	for _, c := range []struct {
		name    string
		edits   []string
		refusal string
		open    bool
		want    []string // parts of the text
		not     []string
	}{
		{"closed modules", nil, "", false, []string{"by dma-buf: the driver's modules are not NVIDIA's open ones",
			"driver 515 or later", "by peer memory: nvidia-peermem is not loaded", "modprobe nvidia-peermem",
			"between them: access control (ACS) of bridge 0000:17:00.0 redirects"}, []string{"IOMMU"}},
		{"open modules", open, "", true, []string{"by peer memory"}, []string{"by dma-buf"}},
		{"peer memory", []string{"| nvidia_uvm", "| nvidia_peermem"}, "", true, []string{"by dma-buf"}, []string{"by peer memory"}},
		{"old peer memory", []string{"| nvidia_uvm", "| nv_peer_mem"}, "", true, []string{"by dma-buf"}, []string{"by peer memory"}},
		{"old kernel", slices.Concat(open, []string{"6.8.0-49-generic", "5.11.22-generic"}), "", false,
			[]string{"by dma-buf: Linux 5.11.22-generic (needed: Linux 5.12"}, nil},
		{"adapter", open, "it cannot", false, []string{"by dma-buf: the adapter takes no dma-buf (it cannot)"}, nil},
		{"no driver", []string{"bus/pci/drivers/nvidia\n", "bus/pci/drivers/vfio-pci\n"}, "", false, []string{"no driver of its own"}, nil},
		{"another driver", []string{"bus/pci/drivers/nvidia\n", "bus/pci/drivers/nouveau\n"}, "", false,
			[]string{"nothing is known here of driver nouveau"}, nil},
		{"IOMMU", slices.Concat(open, []string{"/sys/kernel/iommu_groups/{21-23,40}/type = identity",
			"/sys/kernel/iommu_groups/{21-23,40}/type = DMA-FQ"}), "", true,
			[]string{"between them: the IOMMU translates each address of " + serverGPU + " (DMA-FQ)",
				"of " + serverCard, "iommu=pt"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := directOf(t, c.edits...)
			g := f.GPU(serverGPU)
			if g == nil {
				t.Fatal("no GPU")
			}
			p := f.Pair(g, f.Device(serverCard), c.refusal)
			if p.Open() != c.open {
				t.Errorf("open: %v", p.Open())
			}
			for _, s := range c.want {
				if !strings.Contains(p.String(), s) {
					t.Errorf("no %q in: %s", s, &p)
				}
			}
			for _, s := range c.not {
				if strings.Contains(p.String(), s) {
					t.Errorf("%q in: %s", s, &p)
				}
			}
		})
	}
}

// TestDetours: redirecting bridges and another NUMA node are found between the two devices alone.
func TestDetours(t *testing.T) {
	f := directOf(t)
	g, c := f.Device(serverGPU), f.Device(serverCard)
	ports := f.Switches(g, c)
	if len(ports) == 0 {
		t.Fatal("no switch between the two")
	}
	for _, p := range ports {
		p.ACS = &ACS{Does: 1} // source validation alone
	}
	if l := f.Detours(g, c); len(l) != 0 {
		t.Errorf("%v", l)
	}
	ports[0].ACS.Does = 1 << 2
	if l := f.Detours(g, c); len(l) != 1 || !strings.Contains(l[0].String(),
		"ACS) of bridge "+ports[0].Addr+" redirects") {
		t.Errorf("%v", l)
	}
	far := f.Device("0000:98:00.0")
	if far == nil {
		t.Fatal("no device of the other node")
	}
	if l := f.Detours(g, far); len(l) != 1 || !strings.Contains(l[0].String(), "SYS") {
		t.Errorf("%v", l)
	}
	if l := f.Detours(g, nil); l != nil {
		t.Errorf("%v", l)
	}
}

// TestWindow: LacksWindow names a BAR that is smaller than wanted, with both sizes.
func TestWindow(t *testing.T) {
	f := directOf(t, "0x0000203fffffffff", "0x000020203fffffff") // one GiB
	g := f.GPU(serverGPU)
	if l := f.LacksWindow(g, 1<<30); l != nil {
		t.Error(l)
	}
	if l := f.LacksWindow(g, 1<<30+1); l == nil || !strings.Contains(l.String(), "1073741824 bytes") ||
		!strings.Contains(l.String(), "1073741825 bytes") {
		t.Error(l)
	}
}

// TestPeerMemory looks for the modules alone.
func TestPeerMemory(t *testing.T) {
	tree := fstest.MapFS{"sys/module/nvidia/version": &fstest.MapFile{}}
	if PeerMemory(tree) {
		t.Error("found without a module")
	}
	for _, m := range peerModules {
		tree["sys/module/"+m] = &fstest.MapFile{Mode: fs.ModeDir}
		if !PeerMemory(tree) {
			t.Errorf("%s is not found", m)
		}
		delete(tree, "sys/module/"+m)
	}
}

func TestKernelAtLeast(t *testing.T) {
	for release, want := range map[string][2]bool{"5.11.0": {false, true}, "5.12": {true, true},
		"6.1.0-10-amd64": {true, true}, "4.19": {false, true}, "": {false, false}, "next": {false, false}} {
		if is, ok := (&Facts{Kernel: release}).KernelAtLeast(5, 12); [2]bool{is, ok} != want {
			t.Errorf("%q: %v, %v", release, is, ok)
		}
	}
}
