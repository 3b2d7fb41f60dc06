package paired

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// Machine is what a figure depends on besides the program. Texts that could not be found out are
// "unknown".
type Machine struct {
	CPU        string     `json:"cpu"`
	Cores      int        `json:"cores"` // processors that this process may use
	MaxProcs   int        `json:"gomaxprocs"`
	Caches     []Cache    `json:"caches,omitempty"` // of the first of these processors
	NUMANodes  int        `json:"numa_nodes"`       // with memory
	MemoryMiB  uint64     `json:"memory_mib"`
	FreeMiB    uint64     `json:"available_mib"`
	HugeFree   uint64     `json:"huge_pages_free"` // of 2 MiB
	Kernel     string     `json:"kernel"`
	Virtual    bool       `json:"hypervisor"` // the processor says that it is a virtual one
	Governor   string     `json:"governor"`   // of the processors' frequency
	Turbo      string     `json:"turbo"`      // "on", "off" or "unknown"
	Congestion string     `json:"congestion_control"`
	Load       [3]float64 `json:"load"` // averages of 1, 5 and 15 minutes when the run began
	// Accelerator is the device that was measured: runtime, name, architecture, driver, bus; empty
	// where none took part.
	Accelerator string `json:"accelerator,omitempty"`
}

// Cache is a cache of a processor.
type Cache struct {
	Level  int    `json:"level"`
	Type   string `json:"type"` // "data", "instruction" or "unified"
	KiB    uint64 `json:"kib"`
	Shared string `json:"shared_by"` // processors, in the kernel's list format
}

// Build is the program that measured.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`   // of the source, "unknown" where the build did not record it
	Modified bool   `json:"modified"` // the source was not exactly that of the commit
	Go       string `json:"go"`
	Flags    string `json:"flags,omitempty"` // that change figures: -race, -tags, CGO_ENABLED
}

// ThisMachine looks at the machine.
func ThisMachine() Machine {
	m := machineOf(os.DirFS("/"))
	m.Cores, m.MaxProcs = runtime.NumCPU(), runtime.GOMAXPROCS(0)
	if k, err := sys.KernelRelease(); err == nil {
		m.Kernel = k
	}
	if n, err := sys.MemAvailable(); err == nil {
		m.FreeMiB = n >> 20
	}
	if h, err := sys.HugePageState(2<<20, -1); err == nil {
		m.HugeFree = uint64(h.Free)
	}
	if c, err := sys.DefaultCongestion(); err == nil {
		m.Congestion = c
	}
	if n, err := sys.MemoryNodes(); err == nil {
		m.NUMANodes = max(1, len(n))
	}
	return m
}

const unknown = "unknown"

// machineOf reads what the kernel tells in files.
func machineOf(root fs.FS) Machine {
	m := Machine{CPU: unknown, NUMANodes: 1, Kernel: unknown, Governor: unknown, Turbo: unknown, Congestion: unknown}
	if s, ok := text(root, "proc/cpuinfo"); ok {
		m.CPU = cpuModel(s)
		m.Virtual = slices.Contains(strings.Fields(cpuField(s, "flags")), "hypervisor")
	}
	if s, ok := text(root, "proc/meminfo"); ok {
		if f := strings.Fields(cpuField(s, "MemTotal")); len(f) == 2 && f[1] == "kB" {
			kib, _ := strconv.ParseUint(f[0], 10, 64)
			m.MemoryMiB = kib >> 10
		}
	}
	if s, ok := text(root, "proc/loadavg"); ok {
		f := strings.Fields(s)
		for i := range min(len(f), len(m.Load)) {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil && v >= 0 {
				m.Load[i] = v
			}
		}
	}
	const cpus = "sys/devices/system/cpu/"
	names, _ := fs.Glob(root, cpus+"cpu[0-9]*/cpufreq/scaling_governor")
	var governors []string
	for _, n := range names {
		if s, ok := text(root, n); ok && s != "" && !slices.Contains(governors, s) {
			governors = append(governors, s)
		}
	}
	if len(governors) > 0 {
		m.Governor = strings.Join(governors, ", ")
	}
	if s, ok := text(root, cpus+"intel_pstate/no_turbo"); ok {
		m.Turbo = pick(s == "0", "on", "off")
	} else if s, ok := text(root, cpus+"cpufreq/boost"); ok {
		m.Turbo = pick(s == "0", "off", "on")
	}
	first, err := sys.Processor(0)
	if err != nil {
		first = 0
	}
	names, _ = fs.Glob(root, fmt.Sprintf("%scpu%d/cache/index[0-9]*", cpus, first))
	for _, dir := range names {
		if c, ok := cacheAt(root, dir); ok {
			m.Caches = append(m.Caches, c)
		}
	}
	return m
}

func text(root fs.FS, name string) (string, bool) {
	b, err := fs.ReadFile(root, name)
	return strings.TrimSpace(string(b)), err == nil
}

func cacheAt(root fs.FS, dir string) (c Cache, ok bool) {
	level, _ := text(root, dir+"/level")
	kind, _ := text(root, dir+"/type")
	size, _ := text(root, dir+"/size")
	c.Shared, _ = text(root, dir+"/shared_cpu_list")
	c.Type = strings.ToLower(kind)
	var err1, err2 error
	c.Level, err1 = strconv.Atoi(level)
	c.KiB, err2 = strconv.ParseUint(strings.TrimSuffix(size, "K"), 10, 64)
	return c, err1 == nil && err2 == nil
}

// cpuField finds the value of a key in lines of the form "key : value".
func cpuField(text, key string) string {
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// cpuModel finds the name of the first processor in the text of /proc/cpuinfo, which differs
// between architectures.
func cpuModel(text string) string {
	for _, key := range []string{"model name", "Model", "CPU part", "cpu"} {
		if v := cpuField(text, key); v != "" {
			return v
		}
	}
	return unknown
}

// ThisBuild tells how this program was built.
func ThisBuild() Build {
	b := Build{Version: "devel", Commit: unknown, Go: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH}
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := bi.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	var flags []string
	for _, kv := range bi.Settings {
		switch kv.Key {
		case "vcs.revision":
			b.Commit = kv.Value
		case "vcs.modified":
			b.Modified = kv.Value == "true"
		case "-race", "-tags", "-msan", "-asan", "CGO_ENABLED", "GOAMD64", "GOARM64", "GOEXPERIMENT":
			flags = append(flags, kv.Key+"="+kv.Value)
		}
	}
	b.Flags = strings.Join(flags, " ")
	return b
}

// short is the beginning of a commit's name.
func (b Build) short() string {
	s := b.Commit
	if len(s) > 12 && s != unknown {
		s = s[:12]
	}
	if b.Modified {
		s += " and changes"
	}
	return s
}

// differences says in what two machines differ that changes figures, one line each: the first
// one's, then the second's.
func (m Machine) differences(o Machine) (lines []string) {
	say := func(what string, a, b any) {
		if a, b := fmt.Sprint(a), fmt.Sprint(b); a != b {
			lines = append(lines, fmt.Sprintf("%s: %s / %s", what, a, b))
		}
	}
	say("processor", m.CPU, o.CPU)
	say("cores", m.Cores, o.Cores)
	say("GOMAXPROCS", m.MaxProcs, o.MaxProcs)
	say("caches", m.caches(), o.caches())
	say("NUMA nodes", m.NUMANodes, o.NUMANodes)
	say("memory in MiB", m.MemoryMiB, o.MemoryMiB)
	say("kernel", m.Kernel, o.Kernel)
	say("virtual machine", m.Virtual, o.Virtual)
	say("frequency governor", m.Governor, o.Governor)
	say("turbo", m.Turbo, o.Turbo)
	say("TCP congestion control", m.Congestion, o.Congestion)
	say("accelerator", m.Accelerator, o.Accelerator)
	return lines
}

func (m Machine) caches() string {
	var parts []string
	for _, c := range m.Caches {
		if c.Type == "instruction" {
			continue
		}
		size := fmt.Sprintf("%d KiB", c.KiB)
		if c.KiB >= 1<<10 && c.KiB%(1<<10) == 0 {
			size = fmt.Sprintf("%d MiB", c.KiB>>10)
		}
		parts = append(parts, fmt.Sprintf("L%d %s", c.Level, size))
	}
	if parts == nil {
		return unknown
	}
	return strings.Join(parts, ", ")
}
