package dpdk

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/engine"
)

// Buffers is where the packets of a port lie.
type Buffers uint8

// The places.
const (
	BuffersAuto    Buffers = iota // in place, but for drivers that are known not to take external buffers
	BuffersInPlace                // in the slots of pools
	BuffersLent                   // in memory of DPDK
)

// Huge says whether EAL takes its memory from huge pages.
type Huge uint8

// The choices.
const (
	HugeAuto Huge = iota // where the machine has enough free ones
	HugeOn
	HugeOff
)

// RSS is how a card spreads what no rule matches over the receive queues of a port.
type RSS uint8

// The ways.
const (
	RSSNone  RSS = iota // all for the first queue
	RSSIP               // by the addresses
	RSSPorts            // by the addresses and ports
)

// EAL are the options of DPDK's environment, which are the process's: all ports have the same.
type EAL struct {
	// Cores are those that EAL's own threads run on, as a list: "0", "2-3,5"; "" for all of the process. The engine's queues run where their callers
	// run.
	Cores string
	// Heap is EAL's own memory in bytes, for mbufs and for what drivers keep; 0 for 256 MiB.
	Heap int
	// Huge says where it comes from.
	Huge Huge
	// FilePrefix tells processes with DPDK apart; "" makes one of the process id. Nothing is shared either way.
	FilePrefix string
	// Drivers are files or folders of poll-mode drivers besides those that libdpdk finds itself.
	Drivers []string
	// Log is the least level of EAL's log that errors carry, "" for warning.
	Log string
}

// Options are the options of a port, given as engine.PortSpec.Options. The zero value is right for most.
type Options struct {
	EAL
	Buffers Buffers
	// Promiscuous has the port take frames for other stations.
	Promiscuous bool
	// RSS and RSSKey spread packets over receive queues. The key is hexadecimal, as long as the card's; "" is the driver's.
	RSS    RSS
	RSSKey string
}

// Defaults.
const (
	defaultMemory = 256 << 20
	maxMemory     = 1 << 40
)

// logLevels are EAL's, by number.
var logLevels = []string{"", "emergency", "alert", "critical", "error", "warning", "notice", "info", "debug"}

func (o *Options) complete() error {
	bad := func(key, value, wrong, expected string) error {
		return &engine.SettingError{Engine: Name, Key: key, Value: value, Wrong: wrong, Expected: expected}
	}
	switch {
	case o.Heap < 0 || o.Heap > maxMemory:
		return bad("memory", fmt.Sprint(o.Heap), "it is out of range", "1MiB to 1TiB")
	case o.Buffers > BuffersLent || o.Huge > HugeOff || o.RSS > RSSPorts:
		return bad("", "", "a constant has a value that is none of its type", "")
	case strings.ContainsAny(o.FilePrefix, "/% \t\n"):
		return bad("file_prefix", o.FilePrefix, "it is a part of names of files", "letters and digits")
	}
	for _, r := range o.Cores {
		if !strings.ContainsRune("0123456789,-", r) {
			return bad("cores", o.Cores, "it is no list of cores", "2-3,5")
		}
	}
	if o.Log != "" && level(o.Log) == 0 {
		return bad("log", o.Log, "there is no such level", strings.Join(logLevels[1:], ", "))
	}
	if _, err := o.key(); err != nil {
		return bad("rss_key", o.RSSKey, "it is not hexadecimal", "two digits for each byte")
	}
	if o.Heap == 0 {
		o.Heap = defaultMemory
	}
	if o.Log == "" {
		o.Log = "warning"
	}
	return nil
}

func (o *Options) key() ([]byte, error) {
	return hex.DecodeString(strings.ReplaceAll(o.RSSKey, ":", ""))
}

func level(word string) int {
	for i, w := range logLevels {
		if w == word {
			return i
		}
	}
	return 0
}

// Args are the arguments of EAL. huge says whether there are huge pages, cores what the process may run on, and pid is its id.
//
// No device is looked for: ports are attached one by one. The main lcore is a thread that may run on all of the cores, so that EAL pins nothing to one.
func (e *EAL) Args(huge bool, cores string, pid int) []string {
	if e.Cores != "" {
		cores = e.Cores
	}
	prefix := e.FilePrefix
	if prefix == "" {
		prefix = fmt.Sprintf("penstock%d", pid)
	}
	args := []string{"--lcores", "0@(" + cores + ")", "-m", fmt.Sprint((e.Heap + 1<<20 - 1) >> 20), "--file-prefix", prefix,
		"--no-telemetry", "--iova-mode", "va", "--allow", "0000:00:00.0"}
	if huge {
		args = append(args, "--in-memory", "--single-file-segments")
	} else {
		args = append(args, "--no-huge", "--no-shconf")
	}
	for _, d := range e.Drivers {
		args = append(args, "-d", d)
	}
	return append(args, "--log-level", fmt.Sprintf("*:%d", level(e.Log)))
}

// driver is the name of the poll-mode driver of a virtual device: net_memif of net_memif0,role=server; "" of a place on the PCI bus.
func driver(where string) string {
	name, _, _ := strings.Cut(where, ",")
	if !strings.HasPrefix(name, "net_") && !strings.HasPrefix(name, "virtio_user") && !strings.HasPrefix(name, "eth_") {
		return ""
	}
	return strings.TrimRight(name, "0123456789")
}

// external reports whether the driver of a device takes buffers that are not in memory of DPDK, and why not.
func external(where string) (ok bool, why string) {
	switch driver(where) {
	case "net_af_xdp":
		return false, "net_af_xdp receives into one area of DPDK's own memory (UMEM)"
	case "net_virtio_user", "virtio_user":
		return false, "the other end of virtio-user maps DPDK's own memory"
	case "net_memif":
		if strings.Contains(where, "zero-copy=yes") {
			return false, "the other end of memif with zero-copy=yes maps DPDK's own memory"
		}
	}
	return true, ""
}

// reads reports whether the driver also sends from memory that is not DPDK's.
func reads(where string) bool {
	ok, _ := external(where)
	return ok || driver(where) == "net_af_xdp" // which copies what is not in its area
}

// dials reports whether the driver connects to another process when it starts, and only then.
func dials(where string) bool {
	return driver(where) == "net_memif" && !strings.Contains(where, "role=server")
}
