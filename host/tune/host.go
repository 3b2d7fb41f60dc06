package tune

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/internal/ethtool"
)

// errGone means that what a setting was about is not there any more: an interrupt, an interface.
var errGone = errors.New("the file no longer exists")

// machine is this machine, or a test's. Values are text in one form, so that they can be compared.
type machine interface {
	// facts finds out all that a plan takes. What it cannot find out is in facts.unknown.
	facts(ctx context.Context, iface string) (facts, error)
	// hostFacts finds out what a plan of the host takes.
	hostFacts(ctx context.Context) (*host.Facts, error)
	// identity says which device it is, on which boot of the machine.
	identity(iface string) (identity, error)
	// settings lists what a change of the interface may have for consequence.
	settings(iface string) []Setting
	get(iface string, s Setting) (string, error)
	set(iface string, s Setting, value string) error
	// refuses says why a setting must not become a value, as what it is about is used; nil if it
	// may.
	refuses(iface string, s Setting, value string) error
	// needs is the right that setting takes, and what of it this process lacks.
	needs(iface string, s Setting) (right, missing string)
}

// identity tells devices apart that have one name.
type identity struct {
	Boot    string `json:"boot"`    // of the kernel: /proc/sys/kernel/random/boot_id
	Network string `json:"network"` // the network namespace; "pci" for PCI devices
	// of the interface; 0: there is none; -1: it is about the host, or about a PCI device
	Index int    `json:"index"`
	Bus   string `json:"bus"` // address of the card; empty for software
}

// facts is all that a plan takes. Pointers are nil, maps and slices empty, where the device has
// none or it is not known.
type facts struct {
	driver, kind   string
	up             bool
	mtu            int
	minMTU, maxMTU int
	channels       *ethtool.Channels
	rings          *ethtool.Rings
	coalesce       *ethtool.Coalesce
	features       map[string]ethtool.Feature
	rss            string    // as get gives it; empty: none
	udpHash        [2]string // the settings hashes, as get gives them; empty: none
	xdp            *ethtool.XDP
	xdpMode        string // of a program that is attached
	xdpProgram     uint32
	deferIRQs      string // napi_defer_hard_irqs; empty: not known
	flushTimeout   string // gro_flush_timeout
	irqs           []irq
	steering       []steering // of queues
	node           int        // NUMA node of the device; -1: none, or not known
	cpus           []int      // near the device
	hugePages      []hugePages
	lockLimit      uint64 // bytes that this process may lock; the largest number: no limit
	mayLock        bool   // CAP_IPC_LOCK
	governors      []string
	isolated       string // list of processors; "none" where it is known that there are none
	irqBalance     bool
	unknown        []Unknown
}

type irq struct {
	number   int
	name     string
	queue    int
	affinity string // list of processors
}

// steering is the processors of a queue: RPS of one that receives, XPS of one that sends.
type steering struct {
	kind  string // "rps", "xps"
	queue int
	cpus  string // as get gives it
}

type hugePages struct {
	size, node  int // node -1: the whole machine
	total, free int
}
