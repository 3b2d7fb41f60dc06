package host

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// DefaultRoutes are the interfaces that have a default route, of either version of IP, in the
// network namespace of the calling thread.
func DefaultRoutes(tree fs.FS) (out []string, err error) {
	const dir = "proc/thread-self/net/"
	rejects := func(flags string) bool { // RTF_REJECT: a route that leads nowhere
		n, err := strconv.ParseUint(flags, 16, 32)
		return err != nil || n&0x200 != 0
	}
	four, err := fs.ReadFile(tree, dir+"route")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(four)) { // Iface Destination Gateway Flags RefCnt Use Metric Mask ...
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" && !rejects(f[3]) {
			out = append(out, f[0])
		}
	}
	six, err := fs.ReadFile(tree, dir+"ipv6_route")
	if errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(six)) {
		// destination, its length, source, its length, next hop, metric, references, use, flags,
		// interface
		f := strings.Fields(line)
		if len(f) < 10 || f[1] != "00" || rejects(f[8]) {
			continue
		}
		if a, err := hex.DecodeString(f[0]); err == nil && !slices.ContainsFunc(a, func(b byte) bool {
			return b != 0
		}) {
			out = append(out, f[9])
		}
	}
	return out, nil
}

// CarriesDefault says which interface with a default route receives by a device, which is an
// interface or the place of a card on the PCI bus: itself, or a VLAN, bond, bridge or the like on
// top of it. It is "" where none does.
func CarriesDefault(tree fs.FS, device string) (string, error) {
	routed, err := DefaultRoutes(tree)
	if err != nil {
		return "", err
	}
	todo := append([]string{device}, InterfacesOf(tree, device)...)
	for i := 0; i < len(todo); i++ {
		if slices.Contains(routed, todo[i]) {
			return todo[i], nil
		}
		// the pattern is right, and an interface that went away has none
		above, _ := fs.Glob(tree, "sys/class/net/"+todo[i]+"/upper_*")
		for _, file := range above {
			if name := strings.TrimPrefix(path.Base(file), "upper_"); !slices.Contains(todo, name) {
				todo = append(todo, name)
			}
		}
	}
	return "", nil
}

// InterfacesOf are the interfaces of a PCI device, or of an RDMA device, in this network namespace,
// also those of a virtio device below it, sorted.
func InterfacesOf(tree fs.FS, device string) (out []string) {
	card := "sys/bus/pci/devices/" + strings.ToLower(device)
	if strings.Count(device, ":") == 1 { // 03:00.0
		card = "sys/bus/pci/devices/0000:" + strings.ToLower(device)
	}
	for _, pattern := range []string{card + "/net/*", card + "/virtio*/net/*",
		"sys/class/infiniband/" + device + "/device/net/*"} {
		files, _ := fs.Glob(tree, pattern)
		for _, f := range files {
			out = append(out, path.Base(f))
		}
	}
	slices.Sort(out)
	return out
}
