package host

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// rdmaCounters are those of a port that count loss, repeats, marks and pauses. Drivers have names
// of their own for the same: those of mlx5, rxe, irdma and bnxt_re.
var rdmaCounters = []string{"local_ack_timeout_err", "out_of_sequence", "out_of_buffer", "packet_seq_err",
	"implied_nak_seq_err", "duplicate_request",
	"rnr_nak_retry_err", "req_transport_retries_exceeded", "req_rnr_retries_exceeded", "roce_adp_retrans",
	"rx_icrc_encapsulated", "np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled",
	"rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err", "out_of_seq_request", "completer_retry_err", "retry_exceeded_err",
	"retry_rnr_exceeded_err",
	"to_retransmits", "seq_err_naks_rcvd", "max_retry_exceeded", "rnr_naks_rcvd", "RxECNMrkd", "cnpHandled", "cnpSent",
	"RetransSegs",
	"port_rcv_errors", "port_xmit_discards", "port_xmit_wait", "link_downed", "symbol_error"}

// mostGIDs is how many entries of a port's table of addresses are looked at; cards have up to 256,
// rxe 1024.
const mostGIDs = 1024

func (r *reader) rdma(f *Facts) {
	const dir = "sys/class/infiniband"
	vlans := r.vlans()
	for _, name := range r.list(dir) {
		at, ok := r.link(dir + "/" + name)
		if !ok {
			continue
		}
		d := RDMA{Name: name, Node: behind(r.word(at + "/node_type")), Software: strings.Contains(at, "/virtual/")}
		for p := at; p != "." && p != "sys"; p = path.Dir(p) {
			if pciAddr.MatchString(path.Base(p)) {
				d.PCI = path.Base(p)
				break
			}
		}
		d.Provider = provider(f, &d)
		for _, id := range r.numbered(at+"/ports", "") {
			d.Ports = append(d.Ports, r.rdmaPort(at+"/ports/"+strconv.Itoa(id), id, vlans))
		}
		for _, p := range d.Ports {
			for _, g := range p.GIDs {
				d.Net = cmp.Or(d.Net, g.Net)
			}
		}
		if d.Net == "" && d.Software { // an interface that is off has no addresses
			d.Net = r.word(at + "/parent")
			delete(r.missing, "/"+at+"/parent")
		}
		if d.Net == "" && len(d.Ports) > 0 {
			n := fmt.Sprintf("%s/ports/%d/gid_attrs/ndevs/0", at, d.Ports[0].ID)
			d.Net = r.word(n)
			delete(r.missing, "/"+n) // an InfiniBand port has none
		}
		if !d.Software && slices.ContainsFunc(d.Ports, func(p RDMAPort) bool { return p.Layer == "Ethernet" }) {
			r.roce(f.Net(d.Net))
		}
		f.RDMA = append(f.RDMA, d)
	}
	slices.SortFunc(f.RDMA, func(a, b RDMA) int { return strings.Compare(a.Name, b.Name) })
}

// behind is "ACTIVE" of "4: ACTIVE".
func behind(s string) string {
	_, w, _ := strings.Cut(s, ": ")
	return w
}

// providers are the parts of libibverbs by the driver of the card.
var providers = map[string]string{"mlx5_core": "mlx5", "mlx4_core": "mlx4", "ice": "irdma", "i40e": "irdma",
	"bnxt_en": "bnxt_re", "efa": "efa", "cxgb4": "cxgb4", "hns3": "hns",
	"qede": "qedr", "mana": "mana", "hfi1": "hfi1verbs", "vmw_pvrdma": "vmw_pvrdma", "erdma": "erdma"}

func provider(f *Facts, d *RDMA) string {
	switch p := f.Device(d.PCI); {
	case p != nil:
		return providers[p.Driver]
	case d.Software && d.Node == "RNIC":
		return "siw"
	case d.Software && d.Node == "CA":
		return "rxe"
	}
	return ""
}

func (r *reader) rdmaPort(at string, id int, vlans map[string]int) RDMAPort {
	x := RDMAPort{ID: id, State: behind(r.word(at + "/state")), Physical: behind(r.word(at + "/phys_state")),
		Layer: r.word(at + "/link_layer"), Rate: r.word(at + "/rate"),
		LID: r.number(at+"/lid", 0), SM: r.number(at+"/sm_lid", 0), Counters: map[string]uint64{}}
	for _, dir := range []string{at + "/hw_counters", at + "/counters"} {
		for _, c := range r.list(dir) {
			if !slices.Contains(rdmaCounters, c) {
				continue
			}
			if v := r.number(dir+"/"+c, 0); v > 0 {
				x.Counters[c] = max(x.Counters[c], uint64(v))
			}
		}
		delete(r.missing, "/"+dir) // drivers have none, one or both
	}
	for _, i := range r.numbered(at+"/gids", "") {
		if i >= mostGIDs {
			break
		}
		n := strconv.Itoa(i)
		s, ok := r.text(at + "/gids/" + n)
		if !ok { // a recording has only those in use
			delete(r.missing, "/"+at+"/gids/"+n)
			continue
		}
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			r.miss(at+"/gids/"+n, badContent("an address", s))
			continue
		}
		if a.IsUnspecified() {
			continue
		}
		g := GID{Index: i, Addr: a.String(), Type: r.word(at + "/gid_attrs/types/" + n)}
		if x.Layer == "Ethernet" {
			g.Net = r.word(at + "/gid_attrs/ndevs/" + n)
			g.VLAN = vlans[g.Net]
		}
		x.GIDs = append(x.GIDs, g)
	}
	return x
}

// vlans are the numbers of VLANs by the names of their interfaces.
func (r *reader) vlans() map[string]int {
	const name = "proc/net/vlan/config"
	s, ok := r.text(name)
	if !ok { // most machines have none
		delete(r.missing, "/"+name)
	}
	return parseVLANs(s)
}

// parseVLANs reads lines "eth0.100 | 100 | eth0"; those of another form are the heading.
func parseVLANs(s string) map[string]int {
	out := map[string]int{}
	for line := range strings.Lines(s) {
		f := strings.Split(line, "|")
		if len(f) != 3 {
			continue
		}
		if id, err := strconv.Atoi(strings.TrimSpace(f[1])); err == nil && id > 0 && id < 4095 {
			out[strings.TrimSpace(f[0])] = id
		}
	}
	return out
}

// roce asks the driver of a RoCE card's interface how it keeps loss and congestion away.
func (r *reader) roce(n *Net) {
	if n == nil || n.DCB != nil {
		return
	}
	r.object(dcbDir+"/"+n.Name, &n.DCB)
	at, ok := r.link("sys/class/net/" + n.Name)
	if !ok || !r.is(at+"/ecn") {
		return
	}
	n.ECN = &ECN{Notifies: r.priorities(at + "/ecn/roce_np/enable"), Reacts: r.priorities(at + "/ecn/roce_rp/enable")}
}

// priorities are the numbers of the files that have a 1.
func (r *reader) priorities(dir string) (out []int) {
	for _, p := range r.numbered(dir, "") {
		if r.number(dir+"/"+strconv.Itoa(p), 0) != 0 {
			out = append(out, p)
		}
	}
	return out
}

// libraryDirs are where distributions keep libraries.
func libraryDirs(arch string) []string {
	return []string{"usr/lib/" + arch + "-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib", "lib64", "lib"}
}

// The series of librte_eal from DPDK 22.11 on: one more each year.
const firstSeries, lastSeries = 23, 30

// dpdk looks for the files of DPDK: what programs are built with, and what they load.
func (r *reader) dpdk(f *Facts) {
	for _, dir := range libraryDirs(f.Arch) {
		if pc := dir + "/pkgconfig/libdpdk.pc"; f.DPDK.Build == "" && r.is(pc) {
			f.DPDK.Build = "/" + pc
		}
		for n := firstSeries; n <= lastSeries; n++ {
			if name := fmt.Sprintf("%s/librte_eal.so.%d", dir, n); r.is(name) {
				f.DPDK.Runtime = append(f.DPDK.Runtime, "/"+name)
			}
		}
	}
}

func (r *reader) verbs(f *Facts) {
	const class = "sys/class/infiniband_verbs"
	v := &f.Verbs
	v.Kernel, v.KernelCM = r.is(class), r.is("sys/class/misc/rdma_cm")
	if v.Kernel {
		for _, name := range r.list(class) {
			if !strings.HasPrefix(name, "uverbs") {
				continue
			}
			dev := r.word(class + "/" + name + "/ibdev")
			for i := range f.RDMA {
				if f.RDMA[i].Name == dev {
					f.RDMA[i].File = name
				}
			}
		}
		r.object(filesFile, &v.Files)
	}
	if v.Kernel && len(f.RDMA) > 0 {
		r.object(VerbsFile, &v.Asked)
	}
	const mode = "sys/module/ib_core/parameters/netns_mode"
	switch r.word(mode) {
	case "Y":
		v.Namespaces = "shared"
	case "N":
		v.Namespaces = "exclusive"
	default:
		delete(r.missing, "/"+mode) // without InfiniBand in the kernel
	}
	for _, dir := range libraryDirs(f.Arch) {
		if v.Library == "" && r.is(dir+"/libibverbs.so.1") {
			v.Library = "/" + dir + "/libibverbs.so.1"
		}
		if v.Manager == "" && r.is(dir+"/librdmacm.so.1") {
			v.Manager = "/" + dir + "/librdmacm.so.1"
		}
		parts := dir + "/libibverbs"
		if !r.is(parts) {
			continue
		}
		for _, name := range r.list(parts) {
			p, ok := providerName(name)
			if ok && r.is(parts+"/"+name) && !slices.Contains(v.Providers, p) {
				v.Providers = append(v.Providers, p)
			}
		}
	}
	slices.Sort(v.Providers)
}

// providerName is "mlx5" of "libmlx5-rdmav34.so".
func providerName(file string) (string, bool) {
	name, rest, ok := strings.Cut(strings.TrimPrefix(file, "lib"), "-rdmav")
	return name, ok && name != "" && strings.HasPrefix(file, "lib") && strings.HasSuffix(rest, ".so")
}

// lockRules are the limits of locked memory in the files of PAM and systemd, in the order in which
// these read them.
func (r *reader) lockRules() (out []LockRule) {
	dirs := func(dir, suffix string) (files []string) {
		if !r.is(dir) {
			return nil
		}
		for _, n := range r.list(dir) {
			if strings.HasSuffix(n, suffix) {
				files = append(files, dir+"/"+n)
			}
		}
		return files
	}
	quietly := func(name string) string {
		s, ok := r.text(name)
		if !ok {
			delete(r.missing, "/"+name) // most machines have none of these
		}
		return s
	}
	for _, name := range append([]string{"etc/security/limits.conf"}, dirs("etc/security/limits.d", ".conf")...) {
		out = append(out, parseLockRules("/"+name, quietly(name))...)
	}
	for _, x := range []struct{ file, who string }{{"etc/systemd/system.conf", "services"},
		{"etc/systemd/user.conf", "user services"}} {
		for _, name := range append([]string{x.file}, dirs(x.file+".d", ".conf")...) {
			for line := range strings.Lines(quietly(name)) {
				if v, ok := strings.CutPrefix(strings.TrimSpace(line), lockOfSystemd); ok {
					out = append(out, LockRule{"/" + name, x.who, "-", strings.TrimSpace(v)})
				}
			}
		}
	}
	return out
}

const lockOfSystemd = "DefaultLimitMEMLOCK="

// parseLockRules reads the lines of limits.conf(5) about locked memory: who, kind, "memlock",
// value.
func parseLockRules(file, s string) (out []LockRule) {
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) == 4 && f[2] == "memlock" {
			out = append(out, LockRule{file, f[0], f[1], f[3]})
		}
	}
	return out
}
