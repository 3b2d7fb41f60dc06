package dpdk

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// HugeMode says whether DPDK's own memory is in huge pages.
type HugeMode uint8

// The modes.
const (
	HugeAuto HugeMode = iota // where the machine has some
	HugeOn
	HugeOff
)

var hugeModes = []string{"auto", "on", "off"}

// String is the word of the mode in configurations.
func (m HugeMode) String() string { return word(hugeModes, int(m)) }

func word(words []string, i int) string {
	if i < len(words) {
		return words[i]
	}
	return strconv.Itoa(i)
}

// IOVAMode says by which addresses devices reach memory.
type IOVAMode uint8

// The modes.
const (
	IOVAAuto     IOVAMode = iota // virtual, but for a card without an IOMMU
	IOVAVirtual                  // those of the process, through the IOMMU
	IOVAPhysical                 // those of the machine: as root only
)

var iovaModes = []string{"auto", "va", "pa"}

// String is the word of the mode in configurations.
func (m IOVAMode) String() string { return word(iovaModes, int(m)) }

// EAL is how DPDK is set up in this process. The first port that is opened decides: another one has
// the same, or says nothing of it (the zero value), and is an error otherwise.
type EAL struct {
	// Cores are the processors on which DPDK's own threads run, nil for all that the process has.
	// Threads of Go stay where they are.
	Cores []int
	// EALMemory is the memory in bytes that DPDK takes at its start, rounded up to MiB. 0: with
	// huge pages none, it takes more when it needs it; without them 256 MiB, of which untouched
	// pages cost nothing.
	EALMemory int
	// FilePrefix is the name under which several processes share DPDK's files; "" makes one for
	// this process. Only without in-memory mode.
	FilePrefix string
	// Files keeps DPDK's files (/run/dpdk, huge pages with names), so that other processes, such as
	// dpdk-proc-info, can look in. Without it everything is in memory without a name, and goes with
	// the process whatever ends it.
	Files bool
	Huge  HugeMode
	// HugeDir is where huge pages are mounted, with Files; "" lets DPDK look.
	HugeDir string
	IOVA    IOVAMode
	// Log are levels, such as "debug" for all, or "pmd.net.*:debug".
	Log []string
	// Drivers are files of drivers, or directories of them, that are loaded besides those that the
	// build has.
	Drivers []string
	// EALArgs are other arguments of DPDK: some of those that change no part of what this package
	// relies on.
	EALArgs []string
}

// machine is what the arguments depend on besides the options.
type machine struct {
	PID    int
	CPUs   string // those of the process, as a list: "0-3,8"
	Huge   bool   // huge pages are free
	Memory int    // bytes that the machine has
	Direct bool   // the card is bound to a driver without an IOMMU
}

var (
	logLevels  = []string{"emergency", "alert", "critical", "error", "warning", "notice", "info", "debug"}
	logPattern = regexp.MustCompile(`^[A-Za-z0-9_.*?\[\]^$|()+-]+$`)
	prefixWord = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	// ealArgs are those that EALArgs may have, and whether they have a value.
	ealArgs = map[string]bool{"--legacy-mem": false, "--match-allocations": false, "--huge-worker-stack": false,
		"--no-hpet": false, "--base-virtaddr": true,
		"--socket-mem": true, "--socket-limit": true, "--vfio-intr": true, "--force-max-simd-bitwidth": true,
		"--mbuf-pool-ops-name": true}
	ealValue = regexp.MustCompile(`^[A-Za-z0-9_,.x-]+$`)
)

// check says what is wrong with the options, by the name of the field; "" where nothing is.
func (o *EAL) check() string {
	for i, c := range o.Cores {
		if c < 0 || c > 4095 || slices.Contains(o.Cores[:i], c) {
			return fmt.Sprintf("Cores has %d: expected numbers from 0 to 4095, each once", c)
		}
	}
	switch {
	case o.EALMemory < 0:
		return fmt.Sprintf("EALMemory is %d: expected a number of bytes", o.EALMemory)
	case o.FilePrefix != "" && !prefixWord.MatchString(o.FilePrefix):
		return fmt.Sprintf("FilePrefix is %q: expected letters, digits, dots and dashes, at most 64", o.FilePrefix)
	case o.FilePrefix != "" && !o.Files:
		return fmt.Sprintf("FilePrefix is %q, and DPDK keeps everything in memory: expected none, or in_memory: false",
			o.FilePrefix)
	case o.Huge > HugeOff:
		return fmt.Sprintf("Huge is %d: expected auto, on or off", o.Huge)
	case o.HugeDir != "" && (!o.Files || o.Huge == HugeOff):
		return fmt.Sprintf("HugeDir is %q, and DPDK makes no files with huge pages: expected none, or in_memory: false",
			o.HugeDir)
	case o.HugeDir != "" && !filepath.IsAbs(o.HugeDir):
		return fmt.Sprintf("HugeDir is %q: expected a path from the root", o.HugeDir)
	case o.IOVA > IOVAPhysical:
		return fmt.Sprintf("IOVA is %d: expected auto, va or pa", o.IOVA)
	}
	for _, l := range o.Log {
		pattern, level, ok := strings.Cut(l, ":")
		if !ok {
			pattern, level = "lib", l
		}
		if !slices.Contains(logLevels, level) || !logPattern.MatchString(pattern) {
			return fmt.Sprintf("Log has %q: expected a level (%s), or TYPE:LEVEL such as pmd.net.*:debug", l,
				strings.Join(logLevels, ", "))
		}
	}
	for _, d := range o.Drivers {
		if !filepath.IsAbs(d) {
			return fmt.Sprintf("Drivers has %q: expected a path from the root", d)
		}
	}
	for _, a := range o.EALArgs {
		name, value, has := strings.Cut(a, "=")
		needs, known := ealArgs[name]
		switch {
		case !known:
			return fmt.Sprintf("EALArgs has %q: expected some of %s", a, strings.Join(knownArgs(), ", "))
		case needs != has || has && !ealValue.MatchString(value):
			return fmt.Sprintf("EALArgs has %q: expected %s", a, argForm(name))
		}
	}
	return ""
}

func argForm(name string) string {
	if ealArgs[name] {
		return name + "=VALUE"
	}
	return name
}

func knownArgs() (out []string) {
	for name := range ealArgs {
		out = append(out, argForm(name))
	}
	slices.Sort(out)
	return out
}

// given reports whether anything is set.
func (o *EAL) given() bool {
	return len(o.Cores)+len(o.Log)+len(o.Drivers)+len(o.EALArgs)+o.EALMemory != 0 || o.FilePrefix != "" || o.Files ||
		o.HugeDir != "" || o.Huge != 0 || o.IOVA != 0
}

// startArgs are the arguments to start with: those of the EAL that runs, where the options say
// nothing.
func (o *EAL) startArgs(running []string, m machine) []string {
	if running != nil && !o.given() {
		return running
	}
	return o.args(m)
}

// args are the arguments of rte_eal_init, after the name of the program. They have no secrets:
// ports log them.
func (o *EAL) args(m machine) []string {
	cpus := m.CPUs
	if len(o.Cores) > 0 {
		cpus = list(o.Cores)
	}
	// One lcore, which may run on all of these: with -l there would be a thread for each, which
	// only sleeps.
	out := []string{"--lcores=0@(" + cpus + ")", "--no-telemetry"}
	huge := o.Huge == HugeOn || o.Huge == HugeAuto && m.Huge
	memory := o.EALMemory
	switch {
	case !huge:
		// Not together with --in-memory, which is what has no files: --no-shconf has none either.
		out = append(out, "--no-huge")
		if memory == 0 {
			memory = 256 << 20
		}
		if !o.Files {
			out = append(out, "--no-shconf")
		}
	case !o.Files:
		// One file for all pages, as other processes get memory by file (memif without a copy,
		// virtio-user).
		out = append(out, "--in-memory", "--single-file-segments")
	case o.HugeDir != "":
		out = append(out, "--huge-dir="+o.HugeDir)
	}
	if prefix := o.FilePrefix; o.Files {
		if prefix == "" {
			prefix = "penstock" + strconv.Itoa(m.PID)
		}
		out = append(out, "--file-prefix="+prefix)
	}
	if memory > 0 {
		out = append(out, "-m", strconv.Itoa((memory+1<<20-1)>>20))
	}
	iova := "va"
	if o.IOVA == IOVAPhysical || o.IOVA == IOVAAuto && m.Direct {
		iova = "pa"
	}
	// No card is allowed but one that is not there: so none is taken at the start, and those that
	// ports name later are.
	out = append(out, "--iova-mode="+iova, "--allow=ffff:ff:1f.7")
	for _, l := range o.Log {
		out = append(out, "--log-level="+l)
	}
	for _, d := range o.Drivers {
		out = append(out, "-d", d)
	}
	return append(out, o.EALArgs...)
}

// list is a list of numbers with ranges: 0-3,8.
func list(numbers []int) string {
	var b strings.Builder
	sorted := slices.Sorted(slices.Values(numbers))
	for i := 0; i < len(sorted); {
		k := i
		for k+1 < len(sorted) && sorted[k+1] == sorted[k]+1 {
			k++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, sorted[i])
		if k > i {
			fmt.Fprintf(&b, "-%d", sorted[k])
		}
		i = k + 1
	}
	return b.String()
}
