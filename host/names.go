package host

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Vendors of PCI devices (pci-ids.ucw.cz).
const (
	vendorNVIDIA   = 0x10de
	vendorAMD      = 0x1002
	vendorIntel    = 0x8086
	vendorMellanox = 0x15b3
)

var vendors = map[uint16]string{
	vendorNVIDIA: "NVIDIA", vendorAMD: "AMD", vendorIntel: "Intel", vendorMellanox: "Mellanox", 0x14e4: "Broadcom",
	0x1077: "Marvell", 0x1d0f: "Amazon",
	0x1af4: "Virtio", 0x1022: "AMD", 0x1dd8: "Pensando", 0x1924: "Solarflare", 0x1425: "Chelsio", 0x15ad: "VMware",
	0x1b36: "QEMU", 0x1ae0: "Google",
	0x1414: "Microsoft", 0x144d: "Samsung", 0x10b5: "PLX", 0x1000: "Broadcom", 0x11f8: "Microchip", 0x19e5: "Huawei",
	0x177d: "Cavium", 0x10ec: "Realtek",
	0x1a03: "ASPEED", 0x1234: "QEMU", 0x13b5: "Arm", 0x1c5c: "SK hynix", 0x15b7: "SanDisk", 0x1344: "Micron",
	0x1cc4: "Union", 0x1912: "Renesas",
}

// devices are cards and bridges of the field. A device that is not in it goes by its vendor and
// number.
var devices = map[[2]uint16]string{
	{vendorMellanox, 0x1013}: "ConnectX-4", {vendorMellanox, 0x1015}: "ConnectX-4 Lx",
	{vendorMellanox, 0x1017}: "ConnectX-5", {vendorMellanox, 0x1019}: "ConnectX-5 Ex",
	{vendorMellanox, 0x101b}: "ConnectX-6", {vendorMellanox, 0x101d}: "ConnectX-6 Dx",
	{vendorMellanox, 0x101f}: "ConnectX-6 Lx",
	{vendorMellanox, 0x1021}: "ConnectX-7", {vendorMellanox, 0x1023}: "ConnectX-8",
	{vendorMellanox, 0xa2d6}: "BlueField-2", {vendorMellanox, 0xa2dc}: "BlueField-3",
	{vendorMellanox, 0x101e}: "ConnectX virtual function", {vendorMellanox, 0x1979}: "ConnectX-7 PCIe switch",
	{vendorMellanox, 0x1976}: "BlueField PCIe switch",
	{vendorIntel, 0x10fb}:    "82599", {vendorIntel, 0x1563}: "X550", {vendorIntel, 0x1572}: "X710",
	{vendorIntel, 0x1583}: "XL710", {vendorIntel, 0x158b}: "XXV710",
	{vendorIntel, 0x1592}: "E810-C", {vendorIntel, 0x1593}: "E810-C", {vendorIntel, 0x159b}: "E810-XXV",
	{vendorIntel, 0x12d2}: "E830",
	{vendorIntel, 0x15f2}: "I225-LM", {vendorIntel, 0x15f3}: "I225-V", {vendorIntel, 0x125c}: "I226-V",
	{vendorIntel, 0x1533}: "I210", {vendorIntel, 0x1521}: "I350",
	{vendorIntel, 0x10d3}: "82574L", {vendorIntel, 0x100e}: "82540EM", {vendorIntel, 0x51f0}: "Wi-Fi AX211",
	{vendorIntel, 0x2725}: "Wi-Fi AX210",
	{0x14e4, 0x1750}:      "BCM57508", {0x14e4, 0x1760}: "BCM57608", {0x14e4, 0x16d7}: "BCM57414",
	{0x1d0f, 0xec20}: "ENA",
	{0x1d0f, 0xefa0}: "EFA", {0x1d0f, 0xefa1}: "EFA",
	{0x1d0f, 0xefa2}: "EFA", {0x1ae0, 0x0042}: "gVNIC", {0x15ad, 0x07b0}: "VMXNET3", {0x1af4, 0x1000}: "network card",
	{0x1af4, 0x1041}: "network card",
	{0x1af4, 0x1001}: "disk", {0x1af4, 0x1042}: "disk", {0x1af4, 0x1044}: "random numbers", {0x1af4, 0x1053}: "socket",
	{0x1af4, 0x1058}: "memory", {0x1af4, 0x1045}: "balloon",
	{0x10ec, 0x8168}: "RTL8111", {0x10ec, 0x8125}: "RTL8125", {0x10ec, 0x8127}: "RTL8127",
	{vendorNVIDIA, 0x1db6}: "V100 PCIe", {vendorNVIDIA, 0x20b5}: "A100 PCIe 80GB",
	{vendorNVIDIA, 0x20b2}: "A100 SXM4 80GB", {vendorNVIDIA, 0x20f1}: "A100 PCIe 40GB",
	{vendorNVIDIA, 0x2235}: "A40", {vendorNVIDIA, 0x2230}: "RTX A6000", {vendorNVIDIA, 0x26b5}: "L40",
	{vendorNVIDIA, 0x26b9}: "L40S", {vendorNVIDIA, 0x27b8}: "L4",
	{vendorNVIDIA, 0x2330}: "H100 SXM5", {vendorNVIDIA, 0x2331}: "H100 PCIe", {vendorNVIDIA, 0x2335}: "H200 SXM",
	{vendorNVIDIA, 0x2342}: "GH200",
	{vendorNVIDIA, 0x2901}: "B200", {vendorNVIDIA, 0x2bb5}: "RTX PRO 6000 Blackwell Server",
	{vendorNVIDIA, 0x2e12}: "GB10", {vendorNVIDIA, 0x22a3}: "NVSwitch",
	{vendorAMD, 0x740f}: "Instinct MI210", {vendorAMD, 0x740c}: "Instinct MI250X",
	{vendorAMD, 0x74a1}: "Instinct MI300X", {vendorAMD, 0x74a5}: "Instinct MI325X",
	{0x10b5, 0x8747}: "PEX 8747", {0x10b5, 0x9765}: "PEX 9765", {0x1000, 0xc030}: "PEX890xx switch",
	{0x1000, 0xc010}: "PEX880xx switch", {0x11f8, 0x4036}: "Switchtec",
	{0x1b36, 0x000c}: "PCIe root port", {0x1b36, 0x0001}: "PCI bridge", {0x1234, 0x1111}: "VGA",
	{0x1a03, 0x2000}: "VGA of the management chip",
}

// Name is what the device is in words, from a small table of the field: "Mellanox ConnectX-7".
func (p *PCI) Name() string {
	v := vendors[p.Vendor]
	d := devices[[2]uint16{p.Vendor, p.Device}]
	switch {
	case v != "" && d != "":
		return v + " " + d
	case v != "":
		return fmt.Sprintf("%s %s %04x", v, p.Kind(), p.Device)
	}
	return fmt.Sprintf("%s %04x:%04x", p.Kind(), p.Vendor, p.Device)
}

// Kind is the device's class in a word or two.
func (p *PCI) Kind() string {
	switch {
	case p.Bridge():
		return "bridge"
	case p.Class>>8 == 0x0280:
		return "wireless card"
	case p.Network():
		return "network card"
	case p.Class>>16 == 0x12:
		return "accelerator"
	case p.Display():
		return "display"
	case p.Storage():
		return "NVMe"
	case p.Class>>16 == 0x01:
		return "storage"
	case p.Class>>16 == 0x06:
		return "host bridge"
	}
	return "device"
}

// Fill writes a text in lines of at most so many columns, the first behind head and the others
// behind indent.
func Fill(b *strings.Builder, columns int, head, indent, text string) {
	b.WriteString(head)
	n := utf8.RuneCountInString(head)
	for i, w := range strings.Fields(text) {
		l := utf8.RuneCountInString(w)
		switch {
		case i == 0:
		case n+1+l > columns:
			b.WriteString("\n" + indent)
			n = utf8.RuneCountInString(indent)
		default:
			b.WriteByte(' ')
			n++
		}
		b.WriteString(w)
		n += l
	}
	b.WriteByte('\n')
}
