package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/host"
)

func checkGPU(x *exam) {
	for _, want := range x.n.GPUs {
		if want != AnyGPU && x.gpu(want) == nil {
			var have []string
			for _, g := range x.f.GPUs {
				have = append(have, g.Addr)
			}
			f := Finding{Subject: want, Verdict: Fail, Read: "there is none at this address; there are: " +
				orNone(strings.Join(have, ", ")), Needed: "a GPU", Fix: []string{"name one that is here"}}
			if _, err := strconv.Atoi(want); err == nil { // of a file
				f.Subject, f.Read = "number "+want, "there are: "+orNone(strings.Join(have, ", "))
				f.Fix = []string{"gpu: of one that is here, counted from 0",
					"or memory of the host: kind: host or huge"}
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
		x.add(Finding{Verdict: Fail, Read: "there is none", Needed: "a GPU",
			Fix: []string{"use memory of the host: kind host or huge"}})
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
			x.add(Finding{Subject: name, Verdict: x.bad(x.n.GPUs != nil),
				Read: "driver vfio-pci: it belongs to a virtual machine", Needed: "the GPU's own driver",
				At: x.memoryOf(g), Fix: []string{"driverctl unset-override " + g.Addr}})
		default:
			x.add(Finding{Subject: name, Verdict: x.bad(x.n.GPUs != nil), Read: "driver " + orNone(p.Driver),
				Needed: "the vendor's driver", At: x.memoryOf(g),
				Fix: []string{"install it (nvidia-open, amdgpu), and look why it is not loaded: dmesg"}})
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
			x.add(Finding{Subject: x.name(x.f.Device(g.Addr)), Verdict: Fail,
				Read:   "it shares the machine's memory, and cards do not reach it as a GPU's",
				Needed: "memory of kind host_pinned", At: at,
				Fix: []string{"kind: host_pinned for these regions"}})
		}
	}
	if x.out != nil {
		return
	}
	for _, g := range x.discrete("it shares the machine's memory: use the kind host_pinned") {
		p := x.f.Device(g.Addr)
		name := x.name(p)
		buf, peer := x.f.LacksDMABuf(g), x.f.LacksPeerMemory(g)
		switch {
		case len(peer) == 0:
			x.ok(name, "nvidia-peermem is loaded")
		case len(buf) == 0:
			x.ok(name, "dma-buf: the driver and the kernel can")
		case p.Driver == "":
			x.skipOf(name, "it has no driver")
		case buf[0].Unknown:
			x.unknown(name, buf[0].Read)
		default:
			f := x.lacking(host.Pair{DMABuf: buf, Peer: peer})
			f.Subject, f.Verdict, f.At = name, x.bad(x.n.GPUs != nil), x.memoryOf(g)
			x.add(f)
		}
	}
}

// lacking says what is missing for both ways of a pair.
func (x *exam) lacking(p host.Pair) (f Finding) {
	var read, needed []string
	for _, l := range slices.Concat(p.Peer, p.DMABuf) {
		read = append(read, l.Read)
		if l.Needed != "" {
			needed = append(needed, l.Needed)
		}
		for _, m := range l.Fix {
			if len(f.Fix) > 0 {
				m = "or " + m
			}
			f.Fix = append(f.Fix, m)
		}
	}
	f.Read, f.Needed = strings.Join(read, "; "), orNone(strings.Join(needed, "; or "))
	if len(f.Fix) == 0 {
		f.Fix = []string{"another adapter, or memory of kind host_pinned: what is for the GPU is copied there"}
	}
	return f
}

// checkRDMAGPU says for each RDMA device and GPU by which way one reaches the memory of the other.
func checkRDMAGPU(x *exam) {
	if x.n.Whole && !x.wantsRDMA() {
		x.skip("nothing asks for it")
		return
	}
	for _, g := range x.discrete("it shares the machine's memory: use the kind host_pinned") {
		gp := x.f.Device(g.Addr)
		if gp.Driver == "" {
			continue
		}
		for _, d := range x.devices() {
			refusal := ""
			asked := x.f.Verbs.Asked.Device(d.Name)
			if asked != nil {
				refusal = asked.DMABuf
			}
			p := x.f.Pair(g, x.f.Device(d.PCI), refusal)
			subject := d.Name + " and " + x.name(gp)
			var way string
			switch {
			case len(p.DMABuf) == 0 && len(p.Peer) == 0:
				way = "by dma-buf or peer memory"
			case len(p.DMABuf) == 0:
				way = "by dma-buf"
			case len(p.Peer) == 0:
				way = "by peer memory"
			case p.DMABuf[0].Unknown:
				x.unknown(subject, p.DMABuf[0].Read)
				continue
			default:
				f := x.lacking(p)
				f.Subject, f.Verdict, f.At = subject, x.bad(x.n.GPUs != nil && x.direct()), x.memoryOf(g)
				x.add(f)
				continue
			}
			if asked == nil || asked.Error != "" {
				way += ", as far as the machine's files tell: the device was not asked"
			}
			if len(p.Detours) == 0 {
				x.ok(subject, way)
				continue
			}
			f := Finding{Subject: subject, Verdict: Warn, At: x.memoryOf(g)}
			var read, needed []string
			for _, l := range p.Detours {
				read, needed, f.Fix = append(read, l.Read), append(needed, l.Needed), append(f.Fix, l.Fix...)
			}
			slices.Sort(needed)
			slices.Sort(f.Fix)
			f.Read, f.Needed, f.Fix = way+", but "+strings.Join(read, "; "),
				strings.Join(slices.Compact(needed), ", "), slices.Compact(f.Fix)
			x.add(f)
		}
	}
	if x.out == nil {
		x.skip("there is no RDMA device beside a GPU with memory and a driver of its own")
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
		most := p.Window()
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
			x.add(Finding{Subject: name, Verdict: Fail, Read: sizeText(most), Needed: sizeText(asked),
				For: "the memory of kind device", At: x.memoryOf(g),
				Fix: []string{"in the firmware: above 4G decoding and resizable BAR on",
					"fewer or smaller buffers: num_bufs, buf_size"}})
			continue
		}
		if most >= want {
			x.ok(name, sizeText(most))
			continue
		}
		x.add(Finding{Subject: name, Verdict: Warn, Read: sizeText(most), Needed: text,
			Fix: []string{"in the firmware: above 4G decoding and resizable BAR on",
				"for NVIDIA's workstation cards: the display mode selector, without a display"}})
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
			x.add(Finding{Subject: x.name(p), Verdict: Warn, Read: strings.Join(all, ", "),
				Needed: "PIX or PXB: below one switch", At: x.memoryOf(g),
				Fix: []string{"put the card into a slot below the GPU's switch, if there is one"}})
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
		f := Finding{Subject: name, Verdict: Warn, Read: read,
			Needed: "within 500 MHz of the most, and memory at its most",
			Fix:    []string{fmt.Sprintf("nvidia-smi -i %s -lgc %d", g.Addr, g.MaxClock)}}
		if !g.Persistent {
			f.Fix = append(f.Fix, "nvidia-smi -pm 1, so that it stays so")
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
