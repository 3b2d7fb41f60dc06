package dpdk

import (
	"errors"
	"io/fs"
	"strings"
)

// advices are what to do about errors of DPDK, by words of its log; the first that is found counts.
// An entry with an error counts where that is wrapped as well.
var advices = []struct {
	words []string
	err   error
	do    string
}{
	{[]string{"cannot open shared object", "symbol lookup", "Cannot init plugins", "invalid ELF header",
		"file too short"}, nil,
		"a file of drivers is not there, does not fit this DPDK, or others may write to its directory: look at " +
			"drivers:, and at ldd of the file"},
	{[]string{"ioctl failed (SIOCGIFINDEX)", "Unable to get interface", "Failed to initialize interface",
		"interface does not exist"}, nil,
		"there is no such interface in this network namespace: look at iface= in the address, and at ip link"},
	{[]string{"Could not open AF_PACKET socket", "Unable to set TUNSETIFF", "Unable to open TUN/TAP"}, nil,
		"rights are missing: a driver over the kernel takes CAP_NET_RAW and CAP_NET_ADMIN: run it as root, or give them"},
	{[]string{"Failed to create umem"}, nil,
		"AF_XDP takes CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, and locked memory: raise the limit (ulimit -l, " +
			"LimitMEMLOCK=infinity), or give CAP_IPC_LOCK"},
	{[]string{"Cannot set up DMA remapping, error 22"}, nil,
		"the IOMMU does not translate addresses as high as those of this memory (of 39 bits, on some machines): say " +
			"memory: lent, which copies"},
	{[]string{"No free hugepages", "no free hugepages", "FIRST attempt to get hugepages", "Not enough memory available",
		"Cannot get hugepage information", "couldn't allocate memory due to IOVA", "No mounted hugetlbfs",
		"not enough hugepages"}, nil,
		"give the machine huge pages (penstock tune host --hugepages 512MiB --apply), or say huge: off"},
	{[]string{"IOVA as 'PA'", "Cannot use IOVA as 'PA'", "physical addresses are unavailable", "IOVA as PA"}, nil,
		"physical addresses take root (CAP_SYS_ADMIN for /proc/self/pagemap): say iova: va, or run it as root"},
	{[]string{"IOMMU type", "no suitable IOMMU", "IOMMU support not", "VFIO group is not viable", "not viable"}, nil,
		"the card's whole IOMMU group has to be with vfio-pci, behind an IOMMU that is switched on (intel_iommu=on, " +
			"amd_iommu=on): penstock tune driver CARD --driver vfio-pci --apply"},
	{[]string{"DMA mapping failed", "cannot set up DMA remapping", "Cannot allocate memory", "rlimit", "mlock"}, nil,
		"locked memory is short: raise the limit (ulimit -l, LimitMEMLOCK=infinity), or give CAP_IPC_LOCK"},
	{[]string{"Driver cannot attach the device (net_"}, nil,
		"the driver does not take the device with these arguments: look at the address, and at the lines above"},
	{[]string{"is not managed by UIO driver", "not managed by VFIO driver", "Driver cannot attach the device",
		"no driver found"}, nil,
		"bind the card to vfio-pci (penstock tune driver CARD --driver vfio-pci --apply); cards of Mellanox stay " +
			"with mlx5_core, and need DPDK with the driver mlx5"},
	{[]string{"failed to parse device", "Unable to find a bus for the device", "Failed to attach device"}, nil,
		"this DPDK has no driver for it: look at the name, and install the drivers (on Debian: apt-get install " +
			"dpdk), or name their files (drivers:)"},
	{[]string{"Cannot create lock on", "Is another primary process running"}, nil,
		"another process uses the same file_prefix: give each its own, or leave it out"},
	{[]string{"invalid parameter for --lcores", "invalid coremap", "No online lcores", "is unavailable"}, nil,
		"the process does not have these processors: look at cores:, and at taskset -p"},
	{[]string{"/dev/vfio", "Permission denied", "Operation not permitted"}, fs.ErrPermission,
		"rights are missing: run it as root, or give the user /dev/vfio/GROUP and CAP_IPC_LOCK (and CAP_NET_ADMIN, " +
			"CAP_NET_RAW to drivers over the kernel)"},
}

// advice is what to do about an error of DPDK that came with these lines of its log; "" where
// nothing is known.
func advice(err error, log string) string {
	text := log
	if err != nil {
		text += "\n" + err.Error()
	}
	for _, a := range advices {
		if a.err != nil && errors.Is(err, a.err) {
			return a.do
		}
		for _, w := range a.words {
			if strings.Contains(text, w) {
				return a.do
			}
		}
	}
	return ""
}
