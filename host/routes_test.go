package host

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

// TestCarriesDefault: the device below the default route is found, also through interfaces on top
// of it, and routes that lead nowhere do not count.
func TestCarriesDefault(t *testing.T) {
	const header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
	four := func(dev, flags string) string {
		return header + dev + "\t00000000\t0100000A\t" + flags + "\t0\t0\t0\t00000000\t0\t0\t0\n"
	}
	six := func(dev, flags string) string {
		return strings.Repeat("0", 32) + " 00 " + strings.Repeat("0", 32) +
			" 00 fe800000000000000000000000000001 00000400 1 0 " + flags + " " + dev + "\n"
	}
	for _, c := range []struct{ name, four, six, device, want string }{
		{"none", header, "", "eth0", ""},
		{"IPv4", four("eth0", "0003"), "", "eth0", "eth0"},
		{"another", four("eth1", "0003"), "", "eth0", ""},
		{"IPv6", header, six("eth0", "00000003"), "eth0", "eth0"},
		{"unreachable IPv6, as every machine has on lo", header, six("lo", "00200200"), "lo", ""},
		{"unreachable IPv4", four("eth0", "0200"), "", "eth0", ""},
		{"a network", strings.Replace(four("eth0", "0003"), "\t00000000\t0100", "\t0000000A\t0100", 1), "", "eth0", ""},
		{"VLAN on a bond", four("bond0.7", "0003"), "", "eth0", "bond0.7"},
		{"card", four("eth0", "0003"), "", "0000:0A:00.0", "eth0"},
		{"card of the first domain", four("eth0", "0003"), "", "0A:00.0", "eth0"},
		{"RDMA device", four("eth0", "0003"), "", "mlx5_0", "eth0"},
		{"virtio", four("eth9", "0003"), "", "0000:0b:00.0", "eth9"},
	} {
		tree := fstest.MapFS{
			"proc/thread-self/net/route":                          {Data: []byte(c.four)},
			"proc/thread-self/net/ipv6_route":                     {Data: []byte(c.six)},
			"sys/class/net/eth0/upper_bond0":                      {Mode: fs.ModeDir},
			"sys/class/net/bond0/upper_bond0.7":                   {Mode: fs.ModeDir},
			"sys/class/net/bond0/lower_eth0":                      {Mode: fs.ModeDir},
			"sys/bus/pci/devices/0000:0a:00.0/net/eth0":           {Mode: fs.ModeDir},
			"sys/class/infiniband/mlx5_0/device/net/eth0":         {Mode: fs.ModeDir},
			"sys/bus/pci/devices/0000:0b:00.0/virtio3/net/eth9/x": {},
		}
		if got, err := CarriesDefault(tree, c.device); got != c.want || err != nil {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
	}
	if _, err := CarriesDefault(fstest.MapFS{}, "eth0"); err == nil {
		t.Error("without the kernel's table of routes there is an answer")
	}
	if got, err := DefaultRoutes(fstest.MapFS{"proc/thread-self/net/route": {Data: []byte(four("eth0",
		"0003"))}}); len(got) != 1 || err != nil {
		// without IPv6
		t.Error(got, err)
	}
}
