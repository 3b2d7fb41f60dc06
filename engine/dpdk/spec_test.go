package dpdk

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
)

// The arguments of DPDK for options, on machines with and without huge pages and IOMMU.
func TestArguments(t *testing.T) {
	rich := machine{PID: 7, CPUs: "0-63", Huge: true}
	poor := machine{PID: 7, CPUs: "0-1", Direct: true}
	for _, c := range []struct {
		address string
		on      machine
		want    string
	}{
		{"0000:3b:00.0", rich, "--lcores=0@(0-63) --no-telemetry --in-memory --single-file-segments --iova-mode=va --allow=ffff:ff:1f.7"},
		{"0000:3b:00.0", poor, "--lcores=0@(0-1) --no-telemetry --no-huge --no-shconf -m 256 --iova-mode=pa --allow=ffff:ff:1f.7"},
		{"0000:3b:00.0?iova=va&huge=on", poor, "--lcores=0@(0-1) --no-telemetry --in-memory --single-file-segments --iova-mode=va --allow=ffff:ff:1f.7"},
		{"dpdk://net_null0?cores=8&cores=2&cores=3&eal_memory=3000001", rich,
			"--lcores=0@(2-3,8) --no-telemetry --in-memory --single-file-segments -m 3 --iova-mode=va " +
				"--allow=ffff:ff:1f.7"},
		{"dpdk://net_null0?in_memory=0&huge_dir=/mnt/huge&iova=pa", rich,
			"--lcores=0@(0-63) --no-telemetry --huge-dir=/mnt/huge --file-prefix=penstock7 --iova-mode=pa " +
				"--allow=ffff:ff:1f.7"},
		{"dpdk://net_null0?in_memory=0&huge=off&file_prefix=mine&eal_memory=64MiB", rich,
			"--lcores=0@(0-63) --no-telemetry --no-huge --file-prefix=mine -m 64 --iova-mode=va --allow=ffff:ff:1f.7"},
		{"dpdk://net_null0?log=debug&log=pmd.net.*:info&drivers=/opt/pmd.so&eal_args=--legacy-mem&eal_args=--socket-limit%3D512", rich,
			"--lcores=0@(0-63) --no-telemetry --in-memory --single-file-segments --iova-mode=va --allow=ffff:ff:1f.7 " +
				"--log-level=debug --log-level=pmd.net.*:info -d /opt/pmd.so --legacy-mem --socket-limit=512"},
	} {
		_, o, err := resolve(&engine.PortSpec{Address: c.address})
		if err != nil {
			t.Errorf("%s: %v", c.address, err)
			continue
		}
		if got := strings.Join(o.startArgs(nil, c.on), " "); got != c.want {
			t.Errorf("%s: arguments\n%s, expected\n%s", c.address, got, c.want)
		}
		running := []string{"as", "it", "runs"}
		if joins := slices.Equal(o.startArgs(running, c.on), running); joins == o.EAL.given() {
			t.Errorf("%s: takes the EAL that runs: %v", c.address, joins)
		}
	}
}

// Options that are wrong are refused with their name, what was expected, and ErrInvalid.
func TestMistakes(t *testing.T) {
	for address, want := range map[string]string{
		"0000:3b:00.0?descriptors=4":                     "Descriptors 4: expected 8 to 65536",
		"0000:3b:00.0?descriptors=65537":                 "out of range",
		"0000:3b:00.0?memory=mine":                       "auto, in_place, lent",
		"0000:3b:00.0?rss_key=6d:5":                      "hexadecimal",
		"0000:3b:00.0?rss_types=ip&rss_types=ip":         "ip twice",
		"0000:3b:00.0?cores=1&cores=1":                   "each once",
		"0000:3b:00.0?file_prefix=x":                     "in_memory: false",
		"0000:3b:00.0?file_prefix=../x&in_memory=0":      "letters, digits",
		"0000:3b:00.0?huge_dir=/mnt":                     "in_memory: false",
		"0000:3b:00.0?huge_dir=mnt&in_memory=0":          "path from the root",
		"0000:3b:00.0?log=loud":                          "emergency, alert",
		"0000:3b:00.0?log=a%20b:debug":                   "TYPE:LEVEL",
		"0000:3b:00.0?drivers=pmd.so":                    "path from the root",
		"0000:3b:00.0?eal_args=--vdev%3Dnet_null0":       "--legacy-mem",
		"0000:3b:00.0?eal_args=--legacy-mem%3D1":         "expected --legacy-mem",
		"0000:3b:00.0?eal_args=--socket-mem":             "--socket-mem=VALUE",
		"0000:3b:00.0?eal_args=--vfio-vf-token%3Dsecret": "--legacy-mem",
		"dpdk://":                     "no device",
		"dpdk://../../etc":            "no device",
		"dpdk://net_ring0,nodeaction": "no name and value",
		"dpdk://a name":               "no device",
		"xdp://eth0":                  "not of this engine",
		"0000:3b:00.0?descriptor=4":   "did you mean descriptors?",
	} {
		_, _, err := resolve(&engine.PortSpec{Address: address})
		if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: %v, expected %q", address, err, want)
		}
	}
}

// Addresses become what DPDK calls devargs.
func TestAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"0000:3B:00.0":                          "0000:3b:00.0",
		"3b:00.1":                               "0000:3b:00.1",
		"dpdk://0000:3b:00.0,dv_flow_en=1":      "0000:3b:00.0,dv_flow_en=1",
		"dpdk://net_af_xdp0,iface=w0?log=debug": "net_af_xdp0,iface=w0",
		"net_ring0":                             "net_ring0",
		"dpdk://eth0":                           "eth0",
		"dpdk://net_pcap0,rx_pcap=/a/b.pcap":    "net_pcap0,rx_pcap=/a/b.pcap",
	} {
		a, _, err := resolve(&engine.PortSpec{Address: address})
		if err != nil || a.Where != want {
			t.Errorf("%s: %q, %v, expected %q", address, a.Where, err, want)
		}
	}
}

// What is not on the machine is said before DPDK is asked, and what is there is held by one port.
func TestDevices(t *testing.T) {
	for address, want := range map[string]string{
		"ffff:ff:1f.6": "lspci -D",
		"nosuchif":     "no interface nosuchif",
		"lo":           "dpdk://net_af_packet0,iface=lo",
	} {
		a, _, err := resolve(&engine.PortSpec{Address: address})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := findDevice(&a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", address, err, want)
		}
	}
	if holds, err := findDevice(&engine.Address{Where: "net_ring0,nodeaction=x"}); err != nil ||
		holds != "device net_ring0" {
		t.Error(holds, err)
	}
}

// Lines that DPDK 22.11 writes when it fails lead to the fix.
func TestAdvice(t *testing.T) {
	for line, want := range map[string]string{
		"EAL: No free 2048 kB hugepages reported on node 0\nEAL: FATAL: Cannot get hugepage information.":             "--hugepages",
		"EAL: Not enough memory available! Requested: 24105MB, available: 1024MB\nEAL: Cannot init memory":            "--hugepages",
		"EAL: FATAL: Cannot use IOVA as 'PA' since physical addresses are not available":                              "iova: va",
		"EAL: 0000:3b:00.0 VFIO group is not viable! Not all devices in IOMMU group bound to VFIO or unbound":         "IOMMU group",
		"EAL: Cannot set up DMA remapping, error 12 (Cannot allocate memory)":                                         "locked memory",
		"EAL: Using IOMMU type 1 (Type 1)\nEAL: Cannot set up DMA remapping, error 22 (Invalid argument)":             "memory: lent",
		"EAL: Driver cannot attach the device (0000:3b:00.0)":                                                         "bind the card",
		"EAL: Cannot create lock on '/var/run/dpdk/rte/config'. Is another primary process running?":                  "file_prefix",
		"EAL: lcore 9 unavailable\nEAL: invalid coremap syntax":                                                       "cores:",
		"EAL: Cannot open /dev/vfio/12: Permission denied":                                                            "rights",
		"EAL: /opt/pmd.so: cannot open shared object file: No such file or directory":                                 "drivers:",
		"EAL: Detected CPU lcores: 2\nEAL: /opt/pmd.so: file too short\nEAL: Cannot init plugins":                     "drivers:",
		"open_packet_iface(): Could not open AF_PACKET socket\nEAL: Driver cannot attach the device (net_af_packet0)": "CAP_NET_RAW",
		"EAL: Detected CPU lcores: 2\nEAL: something else":                                                            "",
	} {
		if got := advice(fmt.Errorf("rte_eal_init"), line); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: %q, expected %q", line, got, want)
		}
	}
}
