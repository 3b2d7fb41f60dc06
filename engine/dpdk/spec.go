package dpdk

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
)

// Name is the name of the engine in configurations.
const Name = "dpdk"

// Spec describes the engine.
var Spec = engine.Spec{
	Name: Name, Doc: "Whole frames by DPDK's poll-mode drivers, past the kernel, into the pools themselves. Only in " +
		"builds with the tag dpdk.",
	New: func() engine.Engine { return New() }, Schemes: []string{"dpdk"},
	Card: func(a engine.Address) string {
		if device, _, _ := strings.Cut(a.Where, ","); !virtual.MatchString(device) {
			return device
		}
		return ""
	},
	Options: append([]engine.Option{
		{Key: "descriptors", Type: engine.Int, Min: 0, Max: maxDescriptors, Unit: "descriptors", Default: "0",
			Field: "Descriptors",
			Doc:   "Size of the ring of each queue of the device; 0: as the depth of the queue asks."},
		{Key: "memory", Type: engine.Word, Words: memoryModes, Default: "auto", Field: "Memory",
			Doc: "Where the port receives: in the pools themselves, or in memory of DPDK's, which queues without " +
				"pools lend and others copy from. `auto`: in place where the driver can."},
		{Key: "rss_key", Type: engine.Text, Field: "RSSKey", Parse: parseKey,
			Doc: "Key of the hash that spreads packets over queues, bytes in hexadecimal: `6d:5a:...`, as many as " +
				"the NIC takes; without it the driver's own."},
		{Key: "rss_types", Type: engine.Word, List: true, Words: rssTypes, Field: "RSSTypes",
			Doc: "What is hashed. Without it the addresses, and the ports of TCP and UDP."},
		{Key: "promiscuous", Type: engine.Bool, Default: "false", Field: "Promiscuous", Doc: "Also frames for other MAC addresses."},

		{Key: "cores", Type: engine.Int, List: true, Min: 0, Max: 4095, Field: "Cores",
			Doc: "Processors for DPDK's own threads; without it all that the process has. This and the next options " +
				"are of the process: the first port that is opened decides."},
		{Key: "eal_memory", Type: engine.Bytes, Min: 0, Max: 1 << 40, Default: "0B", Field: "EALMemory",
			Doc: "Memory that DPDK takes at its start; 0: what it needs, when it needs it, and 256 MiB without " +
				"huge pages."},
		{Key: "file_prefix", Type: engine.Text, Field: "FilePrefix", Doc: "Name of DPDK's files, with `in_memory: false`; without it one of this process."},
		{Key: "in_memory", Type: engine.Bool, Default: "true", Field: "!Files", Doc: "DPDK makes no files. `false`: other processes of DPDK can look in."},
		{Key: "huge", Type: engine.Word, Words: hugeModes, Default: "auto", Field: "Huge",
			Doc: "Whether DPDK's own memory is in huge pages. `auto`: where the machine has free ones."},
		{Key: "huge_dir", Type: engine.Text, Field: "HugeDir", Doc: "Where huge pages are mounted, with `in_memory: false`."},
		{Key: "iova", Type: engine.Word, Words: iovaModes, Default: "auto", Field: "IOVA",
			Doc: "Addresses by which cards reach memory: virtual, or physical. `auto`: virtual, but for a card " +
				"without an IOMMU."},
		{Key: "log", Type: engine.Text, List: true, Field: "Log", Doc: "Levels of DPDK's log: `debug`, or of a part of it: `pmd.net.*:debug`."},
		{Key: "drivers", Type: engine.Text, List: true, Field: "Drivers", Doc: "Files of drivers to load, or directories of them."},
		{Key: "eal_args", Type: engine.Text, List: true, Field: "EALArgs", Doc: "Other arguments of DPDK: " + strings.Join(knownArgs(), ", ") + "."},
	}, pace.Settings...),
	PortOptions:  func(string) any { return new(Options) },
	TxOptions:    func() any { return new(pace.Options) },
	Capabilities: (*Engine)(nil).Capabilities(),
	Needs: engine.Needs{Interface: true, Takes: true, VFIO: true, Pins: true,
		Capabilities: []string{"CAP_IPC_LOCK"}},
	Rings: func(packets int) engine.Settings {
		return engine.Settings{"descriptors": fmt.Sprint(min(packets, 4096))}
	},
	// Slots with room for the longest packet of most ports behind the 128 bytes that drivers leave
	// free.
	Slots: []int{2048, 4096, 16384},
	Pair: func(uint64) (engine.Engine, string, string, func() error, error) {
		// Unix sockets without a file: names of this process, and of this pair.
		n := pairs.Add(1)
		end := func(role string, k int64) string {
			return fmt.Sprintf("dpdk://net_memif%d,role=%s,socket=penstock-%d-%d,socket-abstract=yes", k, role,
				os.Getpid(), n)
		}
		return New(), end("client", 900+2*n), end("server", 901+2*n), func() error { return nil }, nil
	},
}

var pairs atomic.Int64

// resolve returns the address and the options of a port, with the defaults filled in. Address.Where
// is what DPDK calls devargs.
func resolve(spec *engine.PortSpec) (engine.Address, Options, error) {
	a, o, err := engine.ReadPort(&Spec, spec, (*Options).complete)
	if err == nil {
		a.Where, err = devargs(a)
	}
	return a, o, err
}

var (
	busPlace = regexp.MustCompile(`^(?:([0-9a-fA-F]{4}):)?([0-9a-fA-F]{2}):([0-1][0-9a-fA-F])\.([0-7])$`)
	virtual  = regexp.MustCompile(`^net_[a-z0-9_]+$`)
	linkName = regexp.MustCompile(`^[^\s/:,=?]{1,15}$`)
)

// memifArgs are the arguments of net_memif (rte_eth_memif.c).
var memifArgs = []string{"bsize", "id", "mac", "owner-gid", "owner-uid", "role", "rsize", "secret", "socket",
	"socket-abstract", "zero-copy"}

// devargs is what names the device of an address to DPDK: a place on the bus or the name of a
// virtual device, and the driver's arguments.
func devargs(a engine.Address) (string, error) {
	device, more, _ := strings.Cut(a.Where, ",")
	bad := func(wrong, hint string) (string, error) {
		return "", &engine.SettingError{Engine: Name, Address: a.Text, Wrong: wrong,
			Expected: "a place on the PCI bus (0000:3b:00.0), a virtual device (dpdk://net_af_xdp0,iface=eth0), or an interface whose card is on the bus", Hint: hint}
	}
	for arg := range strings.SplitSeq(more, ",") {
		if name, _, ok := strings.Cut(arg, "="); more != "" && (!ok || name == "") {
			return bad(fmt.Sprintf("the driver's argument %q has no name and value", arg), "")
		} else if more != "" && driver(device) == "net_memif" && !slices.Contains(memifArgs, name) {
			// it would ignore all of them
			return bad(fmt.Sprintf("net_memif has no argument %q", name), "it has "+strings.Join(memifArgs, ", "))
		}
	}
	if more != "" {
		more = "," + more
	}
	switch place := busPlace.FindStringSubmatch(device); {
	case place != nil:
		if place[1] == "" {
			device = "0000:" + device
		}
		return strings.ToLower(device) + more, nil
	case virtual.MatchString(device):
		return device + more, nil
	case device == "" || device == "." || device == ".." || !linkName.MatchString(device):
		return bad(fmt.Sprintf("%q is no device", device), "")
	}
	return device + more, nil // an interface: only the machine knows its card
}

// driver is the name of the driver of a virtual device: net_memif of net_memif0,role=server.
func driver(where string) string {
	name, _, _ := strings.Cut(where, ",")
	return strings.TrimRight(name, "0123456789")
}

// cardOf is the place on the bus of the device in devargs: of an interface that of its card. "" if
// it has none.
func cardOf(devargs string) string {
	device, _, _ := strings.Cut(devargs, ",")
	if busPlace.MatchString(device) {
		return device
	}
	if virtual.MatchString(device) || !linkName.MatchString(device) {
		return ""
	}
	at, err := filepath.EvalSymlinks("/sys/class/net/" + device + "/device")
	for ; err == nil && len(at) > 1; at = filepath.Dir(at) {
		if busPlace.MatchString(filepath.Base(at)) { // of virtio the card is above the device
			return filepath.Base(at)
		}
	}
	return ""
}
