package host

import (
	"encoding/binary"
	"encoding/csv"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mostCPU is a bound of numbers of processors, beyond which a list is damaged.
const mostCPU = 1 << 14

// ParseList reads a list of processors or nodes such as "0-3,8", also empty. The numbers come
// sorted, each once.
func ParseList(s string) (out []int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		from, to, isRange := strings.Cut(part, "-")
		lo, err := strconv.Atoi(from)
		hi := lo
		if err == nil && isRange {
			hi, err = strconv.Atoi(to)
		}
		if err != nil || lo < 0 || hi < lo || hi >= mostCPU {
			return nil, badContent("a list such as 0-3,8", s)
		}
		for n := lo; n <= hi; n++ {
			out = append(out, n)
		}
		if len(out) > 4*mostCPU {
			return nil, badContent("a list such as 0-3,8", s)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// List is the other direction: "0-3,8". Its argument is sorted.
func List(l []int) string {
	var b strings.Builder
	for i := 0; i < len(l); {
		j := i
		for j+1 < len(l) && l[j+1] == l[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(l[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(l[j]))
		}
		i = j + 1
	}
	return b.String()
}

// ParseMask reads a mask of processors as /sys has it, "ff,00000001", the highest first. The
// numbers come sorted.
func ParseMask(s string) (out []int, err error) {
	words := strings.Split(s, ",")
	if len(words) > mostCPU/32 {
		return nil, badContent("a mask of processors", s)
	}
	for i, w := range words {
		n, err := strconv.ParseUint(w, 16, 32)
		if err != nil {
			return nil, badContent("a mask of processors", s)
		}
		base := 32 * (len(words) - 1 - i)
		for b := range 32 {
			if n>>b&1 != 0 {
				out = append(out, base+b)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// Mask is the other direction. Its argument is sorted.
func Mask(l []int) string {
	words := []uint32{0}
	for _, n := range l {
		for len(words) <= n/32 {
			words = append(words, 0)
		}
		words[n/32] |= 1 << (n % 32)
	}
	slices.Reverse(words)
	var b strings.Builder
	for i, w := range words {
		if i == 0 {
			fmt.Fprintf(&b, "%x", w)
		} else {
			fmt.Fprintf(&b, ",%08x", w)
		}
	}
	return b.String()
}

// kernelOptions are the options of the kernel's command line that matter here, and whose values
// tell nothing about whose machine it is.
var kernelOptions = []string{"isolcpus", "nohz_full", "nohz", "rcu_nocbs", "rcu_nocb_poll", "irqaffinity", "iommu",
	"intel_iommu", "amd_iommu", "iommu.passthrough",
	"iommu.strict", "hugepages", "hugepagesz", "default_hugepagesz", "transparent_hugepage", "intel_idle.max_cstate",
	"processor.max_cstate", "idle", "mitigations",
	"nosmt", "numa_balancing", "numa", "intel_pstate", "amd_pstate", "cpufreq.default_governor", "skew_tick",
	"nosoftlockup", "tsc", "clocksource", "pci", "pcie_aspm",
	"pcie_acs_override", "pcie_aspm.policy", "lockdown", "module_blacklist", "vfio-pci.ids", "kthread_cpus",
	"nmi_watchdog", "preempt", "swiotlb"}

// parseCmdline keeps the known options of the kernel's command line, in order. What is behind -- is
// for the first process.
func parseCmdline(s string) (out []Option) {
	for w := range strings.FieldsSeq(s) {
		if w == "--" || len(out) == 64 {
			break
		}
		name, value, _ := strings.Cut(w, "=")
		if slices.Contains(kernelOptions, name) {
			out = append(out, Option{name, value})
		}
	}
	return out
}

// parseLimits finds the limits of locked memory, in bytes, in /proc/self/limits. Unlimited is the
// largest number.
func parseLimits(s string) (soft, hard uint64, ok bool) {
	for line := range strings.Lines(s) {
		rest, ok := strings.CutPrefix(line, "Max locked memory")
		if !ok {
			continue
		}
		f := strings.Fields(rest)
		if len(f) == 0 {
			return 0, 0, false
		}
		if soft, ok = parseLimit(f[0]); ok && len(f) > 1 {
			hard, _ = parseLimit(f[1])
		}
		return soft, max(soft, hard), ok
	}
	return 0, 0, false
}

// parseLimit reads a limit in bytes.
func parseLimit(s string) (uint64, bool) {
	if s == "unlimited" {
		return ^uint64(0), true
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}

// parseFields reads lines "Name: value" of files such as /proc/self/status and /proc/cpuinfo; of
// two of one name the first counts.
func parseFields(s string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(s) {
		name, value, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if _, there := out[name]; ok && !there {
			out[name] = strings.TrimSpace(value)
		}
	}
	return out
}

// kilobytes reads "123 kB", in bytes.
func kilobytes(s string) (uint64, bool) {
	f := strings.Fields(s)
	if len(f) == 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(f[0], 10, 50)
	return n << 10, err == nil
}

// parseNodeMemory reads total and free bytes of /sys/devices/system/node/nodeN/meminfo.
func parseNodeMemory(s string) (total, free uint64) {
	for line := range strings.Lines(s) {
		_, rest, _ := strings.Cut(line, "Mem")
		name, value, _ := strings.Cut(rest, ":")
		n, ok := kilobytes(value)
		switch {
		case !ok:
		case name == "Total":
			total = n
		case name == "Free":
			free = n
		}
	}
	return total, free
}

// parseSoftnet adds up the processors of /proc/net/softnet_stat: hexadecimal columns, a line for
// each.
func parseSoftnet(s string) (out Softnet) {
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		for i, to := range []*uint64{&out.Packets, &out.Dropped, &out.Squeezed} {
			if n, err := strconv.ParseUint(f[i], 16, 32); err == nil {
				*to += n
			}
		}
	}
	return out
}

// parseSpeed reads the speed of a PCI Express link, "16.0 GT/s PCIe", in GT/s; 0: unknown.
func parseSpeed(s string) float64 {
	f := strings.Fields(s)
	if len(f) < 2 || f[1] != "GT/s" {
		return 0
	}
	v, err := strconv.ParseFloat(f[0], 64)
	if err != nil || v < 0 || v > 1000 {
		return 0
	}
	return v
}

// parseResource reads the address ranges of a PCI device: "start end flags" in each line, the first
// six of them its BARs.
func parseResource(s string) (out []uint64) {
	const memory = 0x200
	i := 0
	for line := range strings.Lines(s) {
		if i == 6 {
			break
		}
		f := strings.Fields(line)
		if len(f) != 3 {
			break
		}
		start, err1 := strconv.ParseUint(f[0], 0, 64)
		end, err2 := strconv.ParseUint(f[1], 0, 64)
		flags, err3 := strconv.ParseUint(f[2], 0, 64)
		if err1 != nil || err2 != nil || err3 != nil {
			break
		}
		if flags&memory != 0 && end > start && end-start < 1<<62 {
			out = append(out, end-start+1)
		}
		i++
	}
	return out
}

// Places and values of PCI Express capabilities (PCI Express Base Specification, 7.5.3 and 7.7.8;
// linux/pci_regs.h).
const (
	pciStatus      = 0x06
	pciStatusCaps  = 1 << 4
	pciCapPointer  = 0x34
	pciCapExpress  = 0x10
	pciExtended    = 0x100
	pciExtendedACS = 0x000d
	expressFlags   = 0x02
	expressDevCap  = 0x04
	expressDevCtl  = 0x08
	expressLen     = 0x0c
	acsControl     = 0x06
)

// capability is a place in a device's configuration space.
type capability struct {
	id       uint16
	at       int
	extended bool
}

// capabilities walks both lists of capabilities, each place at most once.
func capabilities(c []byte) (out []capability) {
	if len(c) < 64 || c[pciStatus]&pciStatusCaps == 0 {
		return nil
	}
	seen := map[int]bool{}
	for at := int(c[pciCapPointer] &^ 3); at >= 64 && at+2 <= min(len(c), 256) && !seen[at]; at = int(c[at+1] &^ 3) {
		seen[at] = true
		out = append(out, capability{uint16(c[at]), at, false})
	}
	for at := pciExtended; at >= pciExtended && at+4 <= len(c) && !seen[at]; {
		seen[at] = true
		h := binary.LittleEndian.Uint32(c[at:])
		if h == 0 || h == 0xffffffff {
			break
		}
		out = append(out, capability{uint16(h), at, true})
		at = int(h >> 20 &^ 3)
	}
	return out
}

// parseConfig reads what matters of a device's configuration space. Without root the kernel shows
// only its first 64 bytes.
func parseConfig(c []byte, p *PCI) {
	le := binary.LittleEndian
	for _, x := range capabilities(c) {
		switch {
		case !x.extended && x.id == pciCapExpress && x.at+expressLen <= len(c):
			p.Express = true
			p.Port = int(le.Uint16(c[x.at+expressFlags:]) >> 4 & 0xf)
			p.MaxPayload = 128 << (le.Uint32(c[x.at+expressDevCap:]) & 7)
			ctl := le.Uint16(c[x.at+expressDevCtl:])
			p.Payload, p.ReadRequest = 128<<(ctl>>5&7), 128<<(ctl>>12&7)
		case x.extended && x.id == pciExtendedACS && x.at+8 <= len(c):
			p.ACS = &ACS{Does: le.Uint16(c[x.at+acsControl:])}
		}
	}
}

// queueOf finds the number of the queue in the name that a driver gives its interrupt: eth0-TxRx-3,
// virtio1-input.0, mlx5_comp2@pci:...
var queueOf = regexp.MustCompile(`(?i)(?:txrx|tx-rx|rxtx|rx-tx|rx|tx|input|output|comp|queue|fp|q)[-_.]?(\d{1,5})(?:@.*)?$`)

// Queue is the number of the queue that an interrupt of this name serves; -1: none.
func Queue(interrupt string) int {
	m := queueOf.FindStringSubmatch(interrupt)
	if m == nil {
		return -1
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return -1
	}
	return n
}

// smiQuery is what nvidia-smi is asked for; parseSMI reads its answer.
var smiQuery = []string{"pci.bus_id", "name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem",
	"clocks.max.mem", "persistence_mode", "temperature.gpu"}

// parseSMI reads the answer of nvidia-smi --format=csv,noheader,nounits. A value that it does not
// have it writes as [N/A].
func parseSMI(s string) (out []GPU, err error) {
	r := csv.NewReader(strings.NewReader(s))
	r.TrimLeadingSpace, r.FieldsPerRecord, r.LazyQuotes = true, len(smiQuery), true
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("the answer of nvidia-smi: %w", err)
	}
	for _, f := range rows {
		number := func(i int) int {
			n, err := strconv.ParseFloat(strings.TrimSpace(f[i]), 64)
			if err != nil || n < 0 || n > 1e6 {
				return 0
			}
			return int(n)
		}
		out = append(out, GPU{Addr: shortAddr(f[0]), Name: f[1], Version: f[2], Clock: number(3), MaxClock: number(4),
			MemoryClock:    number(5),
			MaxMemoryClock: number(6), Persistent: strings.EqualFold(f[7], "enabled"), Celsius: number(8)})
	}
	return out, nil
}

// shortAddr is a PCI address as the kernel writes it: nvidia-smi gives the domain eight digits, and
// capitals.
func shortAddr(s string) string {
	s = strings.ToLower(strings.TrimSpace(s))
	if len(s) == len("00000000:00:00.0") && strings.HasPrefix(s, "0000") {
		s = s[4:]
	}
	return s
}

var pciAddr = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]$`)
