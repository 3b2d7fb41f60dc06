package guest

import (
	"fmt"
	"slices"
	"strings"
)

// Program is a program of the host that goes into a guest, with the Debian package that brings it.
type Program struct {
	Name    string
	Package string
}

// NIC is a network card of a guest. In the guest the interface has this name.
type NIC struct {
	Name    string
	Model   string // qemu's name of the device
	Options string // further properties of the device, separated by commas
	// more than 1 gives a virtio card a tap device of the host, without a cable; it takes root,
	// else it has one queue
	Queues int
	Hub    int // cards of the same number are joined inside the machine, as by a hub; 0 is no cable at all
}

// Profile is a kind of guest, as data.
type Profile struct {
	Name     string
	About    string    // what it is for, in a line
	Modules  []string  // kernel modules, loaded in this order, each after those it depends on
	Programs []Program // programs of the host with their libraries; those of busybox are always there
	// further files of the host by absolute path, patterns of filepath.Glob; libraries bring theirs
	// along
	Files   []string
	Package string   // the Debian package that brings Files
	Recent  bool     // a kernel newer than the distribution's, see newer.go
	Machine []string // arguments of qemu
	Kernel  []string // arguments of the kernel
	Memory  int      // MiB of one guest
	CPUs    int
	NICs    []NIC
	Link    NIC    // the card of the cable between two guests; its interface is link0
	Setup   string // lines for the shell of the guest, run as root before the program
}

var iproute = []Program{{"ip", "iproute2"}, {"tc", "iproute2"}, {"ss", "iproute2"}}

// Net has queueing disciplines that the host may lack (netem, fq, etf, tbf), kernel TLS, DCTCP, and
// two e1000e cards joined by a cable, which send pages without a copy when asked to (MSG_ZEROCOPY).
// Their interfaces are nic0 and nic1, both down.
var Net = Profile{
	Name:  "net",
	About: "netem, fq, etf, tbf, kTLS, DCTCP; e1000e pair nic0-nic1 with real MSG_ZEROCOPY",
	Modules: []string{"e1000e", "veth", "sch_netem", "sch_fq", "sch_etf", "sch_tbf", "sch_ingress", "cls_flower",
		"act_mirred",
		"tls", "ghash_generic", "ctr", "gcm", "tcp_dctcp", "tcp_bbr"},
	Programs: iproute,
	Memory:   768,
	CPUs:     2,
	NICs:     []NIC{{Name: "nic0", Model: "e1000e", Hub: 1}, {Name: "nic1", Model: "e1000e", Hub: 1}},
	Link:     NIC{Model: "e1000e"},
}

// Rdma has Soft-RoCE (rdma_rxe) with user verbs, the connection manager and the usual tools. The
// device rxe0 is on link0 where there are two guests, else on roce0, 10.8.0.1, which leads nowhere:
// it speaks with itself.
var Rdma = Profile{
	Name:  "rdma",
	About: "Soft-RoCE (rxe0) with user verbs, rdma_cm, perftest, rping",
	Modules: []string{"configfs", "crc32_generic", "crc32c_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm", "sch_netem",
		"dummy", "virtio_pci", "virtio_net"},
	Programs: append([]Program{
		{"rdma", "iproute2"}, {"ibv_devinfo", "ibverbs-utils"}, {"rping", "rdmacm-utils"}, {"rdma_client", "rdmacm-utils"},
		{"rdma_server", "rdmacm-utils"}, {"ucmatose", "rdmacm-utils"}, {"udaddy", "rdmacm-utils"}, {"ib_write_bw", "perftest"}, {"ib_read_bw", "perftest"},
		{"ib_send_bw", "perftest"}, {"ib_write_lat", "perftest"}, {"ib_read_lat", "perftest"}, {"ib_send_lat", "perftest"}, {"ib_atomic_bw", "perftest"},
		{"ib_atomic_lat", "perftest"}}, iproute...),
	Files: []string{"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so", "/etc/libibverbs.d/rxe.driver",
		"/usr/lib/x86_64-linux-gnu/libgcc_s.so.1", "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
		"/usr/lib/x86_64-linux-gnu/librdmacm.so.1"},
	Package: "ibverbs-providers libibverbs1 librdmacm1 libgcc-s1",
	Memory:  512,
	CPUs:    2,
	Link:    NIC{Model: "virtio-net-pci", Options: "host_mtu=4200"},
	Setup: `dev=link0
if [ ! -e /sys/class/net/link0 ]; then
	dev=roce0
	ip link add roce0 type dummy && ip addr add 10.8.0.1/24 dev roce0 && ip link set roce0 up || fail "no roce0"
fi
rdma link add rxe0 type rxe netdev $dev || fail "no rxe0 on $dev"`,
}

// Nics has network cards behind an IOMMU, for drivers in user space: e1000e (nic0), vmxnet3 (nic1)
// and virtio-net (nic2), huge pages, and vfio-pci to bind the cards to. nic0 and nic1 are joined by
// a cable; nic2 has four queues where this process is root, see TapEnv. No kernel driver of a card
// is loaded.
var Nics = Profile{
	Name:     "nics",
	About:    "e1000e, vmxnet3, virtio-net behind an emulated IOMMU; vfio-pci, huge pages",
	Modules:  []string{"vfio_iommu_type1", "vfio_pci"},
	Programs: iproute,
	Machine:  []string{"-device", "intel-iommu,intremap=on,device-iotlb=on"},
	Kernel:   []string{"intel_iommu=on", "hugepages=128"},
	Memory:   1024,
	CPUs:     2,
	NICs: []NIC{{Name: "nic0", Model: "e1000e", Hub: 1}, {Name: "nic1", Model: "vmxnet3", Hub: 1},
		{Name: "nic2", Model: "virtio-net-pci", Options: "disable-legacy=on,iommu_platform=on,ats=on", Queues: 4}},
	Setup: "mkdir -p /dev/hugepages; mount -t hugetlbfs hugetlbfs /dev/hugepages || fail 'no hugetlbfs'",
}

// Numa has two NUMA nodes with 384 MiB and one processor each.
var Numa = Profile{
	Name:  "numa",
	About: "two NUMA nodes with memory and a processor each",
	Machine: []string{
		"-object", "memory-backend-ram,id=m0,size=384M", "-object", "memory-backend-ram,id=m1,size=384M",
		"-numa", "node,nodeid=0,memdev=m0,cpus=0", "-numa", "node,nodeid=1,memdev=m1,cpus=1", "-numa",
		"dist,src=0,dst=1,val=20"},
	Memory: 768,
	CPUs:   2,
}

// Profiles are all profiles.
func Profiles() []Profile { return []Profile{Net, Rdma, Nics, Numa} }

// ProfileByName finds a profile.
func ProfileByName(name string) (Profile, error) {
	all := Profiles()
	if i := slices.IndexFunc(all, func(p Profile) bool { return p.Name == name }); i >= 0 {
		return all[i], nil
	}
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	return Profile{}, fmt.Errorf("guest: no profile %q; there are %s", name, strings.Join(names, ", "))
}
