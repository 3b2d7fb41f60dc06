package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/host"
)

// trouble are counters of RDMA ports by what they mean, with what helps.
var trouble = []struct {
	what     string
	counters []string
	fix      string
}{
	{"lost or repeated", []string{"local_ack_timeout_err", "out_of_sequence", "packet_seq_err", "implied_nak_seq_err",
		"roce_adp_retrans", "req_transport_retries_exceeded", "rcvd_seq_err",
		"out_of_seq_request", "retry_exceeded_err", "to_retransmits", "seq_err_naks_rcvd", "max_retry_exceeded",
		"RetransSegs", "duplicate_request", "completer_retry_err", "port_xmit_discards"},
		"packets were lost: set cards and switches to the same priority flow control and ECN, and look at the cable"},
	{"no receiver ready", []string{"rnr_nak_retry_err", "out_of_buffer", "req_rnr_retries_exceeded", "rcvd_rnr_err",
		"send_rnr_err", "retry_rnr_exceeded_err", "rnr_naks_rcvd"},
		"receivers had no buffer posted: post more of them, or earlier"},
	{"marked on the way", []string{"np_ecn_marked_roce_packets", "rp_cnp_handled", "RxECNMrkd", "cnpHandled"},
		"switches saw queues grow: too many send to one port, or the marking begins too early"},
	{"damaged", []string{"rx_icrc_encapsulated", "port_rcv_errors", "symbol_error"},
		"clean or change the cable and the modules"},
}

func checkRDMACounters(x *exam) {
	for _, d := range x.devices() {
		for i := range d.Ports {
			p := &d.Ports[i]
			var read, fix []string
			for _, t := range trouble {
				seen := map[string]uint64{}
				for _, c := range t.counters {
					if v := p.Counters[c]; v > 0 {
						seen[c] = v
					}
				}
				if len(seen) > 0 {
					read, fix = append(read, t.what+": "+countText(seen, 3)), append(fix, t.fix)
				}
			}
			switch {
			case read != nil:
				x.add(Finding{Subject: portName(d.RDMA, p), Verdict: Warn, Read: strings.Join(read, "; "),
					Needed: "no loss and no marks, since the driver was loaded", Fix: fix})
			case p.State == "ACTIVE":
				x.ok(portName(d.RDMA, p), "no loss, no marks")
			}
		}
	}
	if x.out == nil {
		x.skip(x.noRDMA())
	}
}

// elsewhere is what cannot be seen from a machine.
const elsewhere = "the switches on the way have to have the same, which cannot be seen from here"

// pfcPriority is the priority that RoCE has by the custom of the field.
const pfcPriority = 3

func checkFlowControl(x *exam) {
	var seen []string
	x.ports(func(d usedRDMA, p *host.RDMAPort, name string) {
		n := x.f.Net(d.Net)
		switch {
		case p.Layer == "InfiniBand":
			x.skipOf(name, "InfiniBand loses nothing: its links have credits")
			return
		case d.Software || d.Node == "RNIC":
			x.skipOf(name, "nothing of the card's")
			return
		case n == nil:
			x.unknown(name, "its interface is not known")
			return
		case slices.Contains(seen, n.Name):
			return
		}
		seen = append(seen, n.Name)
		x.lossless(n)
		x.congestion(n)
	})
}

// lossless looks at the flow control of a RoCE card's interface.
func (x *exam) lossless(n *host.Net) {
	fix := []string{fmt.Sprintf("dcb pfc set dev %s prio-pfc all:off %d:on", n.Name, pfcPriority),
		fmt.Sprintf("dcb app add dev %s dscp-prio 26:%d", n.Name, pfcPriority), elsewhere}
	pauses := n.Ethtool != nil && n.Ethtool.Pause != nil && (n.Ethtool.Pause.Rx || n.Ethtool.Pause.Tx)
	switch {
	case n.DCB == nil || !n.DCB.PFCKnown:
		why := "the driver does not tell of priority flow control"
		if w := x.f.Missing["/penstock/dcb/"+n.Name]; w != "" {
			why += ": " + w
		}
		x.unknown(n.Name, why, "ask the vendor's tool: mlnx_qos -i "+n.Name)
	case len(n.DCB.PFC) > 0:
		read := "priority flow control on priority " + host.List(n.DCB.PFC)
		var dscp []int
		for _, c := range slices.Sorted(maps.Keys(n.DCB.DSCP)) {
			if slices.Contains(n.DCB.PFC, n.DCB.DSCP[c]) {
				dscp = append(dscp, c)
			}
		}
		if dscp != nil {
			read += ", which DSCP " + host.List(dscp) + " leads to"
		} else {
			read += ", by the VLAN tag of packets (no DSCP leads there)"
		}
		if n.DCB.Sent+n.DCB.Received > 0 {
			read += fmt.Sprintf("; pauses: %d sent, %d received", n.DCB.Sent, n.DCB.Received)
		}
		x.ok(n.Name, read)
	case pauses:
		x.add(Finding{Subject: n.Name, Verdict: Warn, Read: "pause frames for the whole link, no priority flow control",
			Needed: fmt.Sprintf("flow control of RoCE's priority (%d)", pfcPriority),
			Why:    "all traffic stands still when one receiver is slow",
			Fix:    append([]string{"ethtool -A " + n.Name + " rx off tx off"}, fix...)})
	case n.ECN != nil && len(n.ECN.Reacts) > 0 && len(n.ECN.Notifies) > 0:
		x.ok(n.Name, "no flow control; congestion control (ECN) alone")
	default:
		x.add(Finding{Subject: n.Name, Verdict: Warn, Read: "no flow control",
			Needed: fmt.Sprintf("flow control of RoCE's priority (%d), or ECN", pfcPriority), Fix: fix})
	}
}

// congestion looks at ECN of a RoCE card's interface. The file system of the kernel itself does not
// show it; NVIDIA's drivers add files.
func (x *exam) congestion(n *host.Net) {
	subject := n.Name + " (ECN)"
	if n.ECN == nil {
		where := "debugfs of some drivers, as root (/sys/kernel/debug/mlx5/PCI/cc_params)"
		x.unknown(subject, "the driver has no files of it", "look where yours has it: "+where)
		return
	}
	if len(n.ECN.Reacts) > 0 && len(n.ECN.Notifies) > 0 {
		x.ok(subject, fmt.Sprintf("tells of marks on priorities %s, slows down on %s", host.List(n.ECN.Notifies),
			host.List(n.ECN.Reacts)))
		return
	}
	x.add(Finding{Subject: subject, Verdict: Warn,
		Read: fmt.Sprintf("it tells of marks on priorities %s, slows down on %s", orNone(host.List(n.ECN.Notifies)),
			orNone(host.List(n.ECN.Reacts))),
		Needed: fmt.Sprintf("both on RoCE's priority (%d)", pfcPriority),
		Fix: []string{fmt.Sprintf("echo 1 > /sys/class/net/%s/ecn/roce_np/enable/%d", n.Name, pfcPriority),
			fmt.Sprintf("echo 1 > /sys/class/net/%s/ecn/roce_rp/enable/%d", n.Name, pfcPriority), elsewhere}})
}

func checkRDMAModules(x *exam) {
	if !x.wantsRDMA() && len(x.devices()) == 0 {
		x.skip(x.noRDMA())
		return
	}
	v := &x.f.Verbs
	if v.Kernel {
		x.ok("devices", "ib_uverbs")
	} else {
		x.add(Finding{Subject: "devices", Verdict: x.bad(x.wantsRDMA()), Read: "ib_uverbs is not loaded", Needed: "it",
			Fix: []string{"modprobe ib_uverbs",
				"where there is no such module: apt-get install linux-modules-extra-$(uname -r) on Ubuntu; other " +
					"distributions have it in the kernel's package"}})
	}
	if v.KernelCM {
		x.ok("connections", "rdma_ucm")
	} else {
		x.add(Finding{Subject: "connections", Verdict: Warn, Read: "rdma_ucm is not loaded",
			Needed: "it, for connections by IP address (rdma_cm)", Fix: []string{"modprobe rdma_ucm"}})
	}
}

func checkRDMAFiles(x *exam) {
	v := &x.f.Verbs
	switch {
	case !x.wantsRDMA() && len(x.devices()) == 0:
		x.skip(x.noRDMA())
		return
	case !v.Kernel:
		x.skip("ib_uverbs is not loaded, which makes them")
		return
	}
	if v.Files == nil {
		x.unknown("", x.f.Why("/penstock/rdma-files"))
		return
	}
	closed := func(r host.RDMA) bool {
		return !slices.ContainsFunc(v.Files, func(f host.DeviceFile) bool { return f.Name == r.File && f.Error == "" })
	}
	for _, f := range v.Files {
		if f.Name == "rdma_cm" {
			x.deviceFile(f, "", x.bad(false))
		}
		for _, d := range x.devices() {
			if d.File == f.Name {
				x.deviceFile(f, d.Name+", ", x.fails(d, closed))
			}
		}
	}
	for _, d := range x.devices() {
		if d.File == "" {
			x.add(Finding{Subject: d.Name, Verdict: x.bad(d.needed), Read: "the kernel gives it to no program",
				Needed: "a file below /dev/infiniband", Fix: []string{"look why: dmesg"}})
		}
	}
}

// deviceFile looks at one file; what is whose it is, and bad the verdict if it cannot be opened.
func (x *exam) deviceFile(f host.DeviceFile, what string, bad Verdict) {
	subject := "/dev/infiniband/" + f.Name
	if f.Error == "" {
		x.ok(subject, fmt.Sprintf("%smode %s, can be opened", what, f.Mode))
		return
	}
	fix := []string{"run as root, or in the group that owns it",
		`for all users, in /etc/udev/rules.d/90-rdma.rules: KERNEL=="uverbs*|rdma_cm", MODE="0666"`}
	if f.Mode == "" {
		fix = []string{"in a container: --device /dev/infiniband (Kubernetes: the RDMA device plugin)",
			"else: udevadm trigger, and look whether udev runs"}
	}
	x.add(Finding{Subject: subject, Verdict: bad, Read: what + f.Error + modeText(f.Mode),
		Needed: "a file that this process may open", Fix: fix})
}

func modeText(mode string) string {
	if mode == "" {
		return ""
	}
	return " (mode " + mode + ")"
}

func checkRDMANamespaces(x *exam) {
	switch v := x.f.Verbs.Namespaces; {
	case !x.wantsRDMA() && len(x.devices()) == 0:
		x.skip(x.noRDMA())
	case v == "":
		x.skip("the kernel does not say (ib_core's parameter netns_mode)")
	case v == "exclusive" && len(x.f.RDMA) == 0:
		x.add(Finding{Verdict: Warn, Read: "exclusive, and this network namespace has no device", Needed: "one here",
			Fix: []string{"from the namespace that has it: rdma dev set DEVICE netns NAME",
				"or for all: rdma system set netns shared (with no namespace but the first)"}})
	default:
		x.ok("", v)
	}
}

func checkRDMALibrary(x *exam) {
	if !x.wantsRDMA() && len(x.devices()) == 0 {
		x.skip(x.noRDMA())
		return
	}
	v := &x.f.Verbs
	library := func(name, file, debian, fedora string, needed bool) {
		if file != "" {
			x.ok(name, file)
			return
		}
		x.add(Finding{Subject: name, Verdict: x.bad(needed), Read: "not found where libraries are", Needed: name,
			Fix: []string{"apt-get install " + debian, "on Fedora and RHEL: dnf install " + fedora}})
	}
	library("libibverbs.so.1", v.Library, "libibverbs1 ibverbs-providers", "libibverbs", x.wantsRDMA())
	library("librdmacm.so.1", v.Manager, "librdmacm1", "librdmacm", false)
	if v.Asked != nil && v.Asked.Error != "" {
		x.add(Finding{Subject: "libibverbs.so.1", Verdict: x.bad(x.wantsRDMA()), Read: v.Asked.Error,
			Needed: "a library that this program can use",
			Fix: []string{"apt-get install libibverbs1 ibverbs-providers",
				"on Fedora and RHEL: dnf install libibverbs"}})
		return
	}
	if v.Library == "" && v.Asked == nil {
		return
	}
	for _, d := range x.devices() {
		said := v.Asked.Device(d.Name)
		lacks := func(r host.RDMA) bool { return v.Asked.Device(r.Name) == nil || v.Asked.Device(r.Name).Error != "" }
		switch {
		case said != nil && said.Error == "" && said.DMABuf == "":
			x.ok(d.Name, "it opens the device, which takes memory of others as a dma-buf")
		case said != nil && said.Error == "":
			x.ok(d.Name, "it opens the device; no memory as a dma-buf: "+said.DMABuf)
		case said != nil:
			x.add(Finding{Subject: d.Name, Verdict: x.fails(d, lacks), Read: said.Error,
				Needed: "a device that libibverbs opens",
				Fix: []string{"what this process may open says: penstock doctor rdma, rdma-files",
					"else look at the kernel's messages: dmesg"}})
		case d.Provider == "":
			x.unknown(d.Name, "which part of libibverbs drives it is not known here",
				"see whether it is listed: ibv_devices")
		case slices.Contains(v.Providers, d.Provider) && v.Asked == nil:
			x.ok(d.Name, "part "+d.Provider)
		case slices.Contains(v.Providers, d.Provider):
			x.add(Finding{Subject: d.Name, Verdict: x.fails(d, lacks),
				Read:   "libibverbs does not list it, though its part " + d.Provider + " is installed",
				Needed: "a device that libibverbs lists",
				Fix: []string{"see that all packages of rdma-core have one version: parts of another version are " +
					"not loaded"}})
		default:
			x.add(Finding{Subject: d.Name, Verdict: x.fails(d, func(r host.RDMA) bool {
				return !slices.Contains(v.Providers, r.Provider)
			}), Read: "libibverbs has the parts: " + orNone(strings.Join(v.Providers, ", ")),
				Needed: d.Provider, Fix: []string{"apt-get install ibverbs-providers",
					"on Fedora and RHEL: dnf install libibverbs; with NVIDIA's own packages: rdma-core"}})
		}
	}
}
