package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/host"
)

func checkGPU(x *exam) {
	for _, want := range x.n.GPUs {
		if want != AnyGPU && x.gpu(want) == nil {
			var have []string
			for _, g := range x.f.GPUs {
				have = append(have, g.Addr)
			}
			f := Finding{Subject: want, Verdict: Fail, Read: "there is none at this address; there are: " + orNone(strings.Join(have, ", ")), Needed: "a GPU", Mend: []string{"name one that is here"}}
			if _, err := strconv.Atoi(want); err == nil { // of a file
				f.Subject, f.Read = "number "+want, "there are: "+orNone(strings.Join(have, ", "))
				f.Mend = []string{"gpu: of one that is here, counted from 0", "or memory of the host: kind: host or huge"}
				for _, m := range x.n.Memory {
					if m.GPU == want {
						f.At = append(f.At, m.At)
					}
				}
			}
			x.add(f)
		}
	}
	gpus := x.gpus()
	if len(gpus) == 0 && slices.Contains(x.n.GPUs, AnyGPU) {
		x.add(Finding{Verdict: Fail, Read: "there is none", Needed: "a GPU", Mend: []string{"use memory of the host: kind host or huge"}})
	}
	for _, g := range gpus {
		p := x.f.Device(g.Addr)
		name := x.name(p)
		switch p.Driver {
		case "nvidia", "amdgpu", "xe", "i915":
			read := "driver " + p.Driver
			if g.Version != "" {
				read += " " + g.Version
			}
			x.ok(name, read)
		case "vfio-pci":
			x.add(Finding{Subject: name, Verdict: x.bad(x.n.GPUs != nil), Read: "driver vfio-pci: it belongs to a virtual machine", Needed: "the GPU's own driver", At: x.memoryOf(g), Mend: []string{"driverctl unset-override " + g.Addr}})
		default:
			x.add(Finding{Subject: name, Verdict: x.bad(x.n.GPUs != nil), Read: "driver " + orNone(p.Driver), Needed: "the vendor's driver", At: x.memoryOf(g), Mend: []string{"install it (nvidia-open, amdgpu), and look why it is not loaded: dmesg"}})
		}
	}
	if x.out == nil {
		x.skip(x.noGPU())
	}
}

// discrete are the GPUs with memory of their own; the others get their finding.
func (x *exam) discrete(why string) (out []*host.GPU) {
	for _, g := range x.gpus() {
		if g.Integrated {
			x.skipOf(x.name(x.f.Device(g.Addr)), why)
			continue
		}
		out = append(out, g)
	}
	return out
}

func checkGPUDirect(x *exam) {
	if x.n.GPUs != nil && !x.direct() {
		x.skip("no card has to reach the memory of a GPU")
		return
	}
	for _, g := range x.gpus() {
		if at := x.memoryOf(g); g.Integrated && x.n.Whole && at != nil {
			x.add(Finding{Subject: x.name(x.f.Device(g.Addr)), Verdict: Fail, Read: "it shares the machine's memory, and cards do not reach it as a GPU's", Needed: "memory of kind host_pinned", At: at,
				Mend: []string{"kind: host_pinned for these regions"}})
		}
	}
	if x.out != nil {
		return
	}
	for _, g := range x.discrete("it shares the machine's memory: use the kind host_pinned") {
		p := x.f.Device(g.Addr)
		name := x.name(p)
		major, minor, ok := version(x.f.Kernel)
		dmaBuf := ok && (major > 5 || major == 5 && minor >= 12)
		switch {
		case slices.Contains(x.f.Modules, "nvidia_peermem") && p.Driver == "nvidia", slices.Contains(x.f.Modules, "nv_peer_mem") && p.Driver == "nvidia":
			x.ok(name, "nvidia-peermem is loaded")
		case p.Driver == "nvidia" && g.Open && dmaBuf, p.Driver == "amdgpu" && dmaBuf:
			x.ok(name, "dma-buf: the driver and the kernel can")
		case p.Driver == "nvidia":
			x.add(Finding{Subject: name, Verdict: x.bad(x.n.GPUs != nil), Read: "nvidia-peermem is not loaded, and the driver's modules are not the open ones", Needed: "one of them", At: x.memoryOf(g),
				Mend: []string{"modprobe nvidia-peermem", "or the open modules (nvidia-open), which can do dma-buf"}})
		case p.Driver == "":
			x.skipOf(name, "it has no driver")
		default:
			x.unknown(name, "nothing is known here of driver "+p.Driver)
		}
	}
}

func checkBAR(x *exam) {
	if x.n.GPUs != nil && !x.direct() {
		x.skip("no card has to reach the memory of a GPU")
		return
	}
	for _, g := range x.discrete("it shares the machine's memory") {
		p := x.f.Device(g.Addr)
		name := x.name(p)
		if len(p.BARs) == 0 {
			x.unknown(name, x.f.Why("/sys/bus/pci/devices/"+g.Addr))
			continue
		}
		most := uint64(0)
		for _, b := range p.BARs {
			most = max(most, b.Size)
		}
		want := uint64(1<<30 + 1) // more than a GiB
		text := "more than 1 GiB"
		if strings.Contains(g.Name, "Blackwell") && strings.Contains(g.Name, "Server") {
			want, text = 32<<30, "32 GiB at least"
		}
		asked := uint64(0) // all that a file has in the GPU's memory is to be seen through the window
		for _, m := range x.n.Memory {
			if m.Kind == "device" && x.gpu(m.GPU) == g {
				asked += m.Bytes
			}
		}
		if asked > most {
			x.add(Finding{Subject: name, Verdict: Fail, Read: sizeText(most), Needed: sizeText(asked), For: "the memory of kind device", At: x.memoryOf(g),
				Mend: []string{"in the firmware: above 4G decoding and resizable BAR on", "fewer or smaller buffers: num_bufs, buf_size"}})
			continue
		}
		if most >= want {
			x.ok(name, sizeText(most))
			continue
		}
		x.add(Finding{Subject: name, Verdict: Warn, Read: sizeText(most), Needed: text,
			Mend: []string{"in the firmware: above 4G decoding and resizable BAR on", "for NVIDIA's workstation cards: the display mode selector, without a display"}})
	}
}

func checkTopology(x *exam) {
	nets := x.nets()
	if len(nets) == 0 {
		return
	}
	for _, g := range x.discrete("it is part of the machine's own chip") {
		p := x.f.Device(g.Addr)
		direct, all := []string(nil), []string(nil)
		for _, u := range nets {
			n := x.f.Device(u.net.PCI)
			if n == nil {
				continue
			}
			d := x.f.Distance(p, n)
			all = append(all, fmt.Sprintf("%s %s", u.Name, d))
			if d.Direct() {
				direct = append(direct, fmt.Sprintf("%s %s", u.Name, d))
			}
		}
		switch {
		case all == nil:
			continue
		case direct != nil:
			x.ok(x.name(p), strings.Join(direct, ", "))
		default:
			x.add(Finding{Subject: x.name(p), Verdict: Warn, Read: strings.Join(all, ", "), Needed: "PIX or PXB: below one switch", At: x.memoryOf(g), Mend: []string{"put the card into a slot below the GPU's switch, if there is one"}})
		}
	}
}

func checkClocks(x *exam) {
	for _, g := range x.gpus() {
		p := x.f.Device(g.Addr)
		if p.Driver != "nvidia" {
			continue
		}
		name := x.name(p)
		if !g.Asked || g.MaxClock == 0 {
			x.unknown(name, x.f.Why("/penstock/nvidia-smi"))
			continue
		}
		read := fmt.Sprintf("processors %d of %d MHz", g.Clock, g.MaxClock)
		if g.MaxMemoryClock > 0 {
			read += fmt.Sprintf(", memory %d of %d MHz", g.MemoryClock, g.MaxMemoryClock)
		}
		if g.Celsius > 0 {
			read += fmt.Sprintf(", %d degrees", g.Celsius)
		}
		if g.MaxClock-g.Clock <= 500 && g.MaxMemoryClock-g.MemoryClock <= 1 {
			x.ok(name, read)
			continue
		}
		f := Finding{Subject: name, Verdict: Warn, Read: read, Needed: "within 500 MHz of the most, and memory at its most",
			Mend: []string{fmt.Sprintf("nvidia-smi -i %s -lgc %d", g.Addr, g.MaxClock)}}
		if !g.Persistent {
			f.Mend = append(f.Mend, "nvidia-smi -pm 1, so that it stays so")
		}
		if g.Celsius >= 85 {
			f.Why = "it is hot: look at its cooling first"
		}
		x.add(f)
	}
	if x.out == nil {
		x.skip("there is no GPU that can be asked")
	}
}
