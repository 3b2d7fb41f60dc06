package host

// Facts is what a machine is. Slices are sorted, so that two readings of one machine are equal.
type Facts struct {
	Kernel  string   `json:"kernel,omitempty"`  // release: 6.8.0-49-generic
	Arch    string   `json:"arch,omitempty"`    // x86_64, aarch64
	Product string   `json:"product,omitempty"` // of the machine, as its firmware says
	Virtual bool     `json:"virtual,omitempty"` // a hypervisor is below
	Options []Option `json:"options,omitempty"` // of the kernel's command line
	// Lockdown is the kernel's lockdown: "none", "integrity", "confidentiality"; empty: not known.
	Lockdown string `json:"lockdown,omitempty"`

	CPUs     []CPU `json:"cpus"` // online
	Offline  []int `json:"offline,omitempty"`
	Isolated []int `json:"isolated,omitempty"`
	Tickless []int `json:"tickless,omitempty"` // nohz_full

	Memory uint64     `json:"memory_bytes,omitempty"`
	Nodes  []Node     `json:"nodes"`
	Huge   []HugePool `json:"huge_pages,omitempty"` // of the whole machine, by size
	THP    string     `json:"transparent_huge_pages,omitempty"`

	Softnet Softnet           `json:"softnet"`
	Sysctls map[string]string `json:"sysctls,omitempty"` // by the name with dots

	PCI     []PCI    `json:"pci"`
	Nets    []Net    `json:"interfaces"`
	RDMA    []RDMA   `json:"rdma,omitempty"`
	Verbs   Verbs    `json:"verbs"`
	DPDK    DPDK     `json:"dpdk,omitzero"`
	GPUs    []GPU    `json:"gpus,omitempty"`
	Modules []string `json:"modules,omitempty"` // of those that matter here
	Drivers []string `json:"drivers,omitempty"` // of PCI devices, of those that matter here, also built into the kernel

	IRQAffinity []int `json:"default_irq_affinity,omitempty"`

	ClockSource  string    `json:"clock_source,omitempty"`
	ClockSources []string  `json:"clock_sources,omitempty"`
	Time         *TimeSync `json:"time,omitempty"` // nil: not known
	Daemons      []string  `json:"daemons,omitempty"`

	Process Process `json:"process"`

	// Missing is what could not be read, by path, and why.
	Missing map[string]string `json:"missing,omitempty"`
}

// DPDK is what of DPDK is installed in the usual directories.
type DPDK struct {
	Build   string   `json:"build,omitempty"`   // libdpdk.pc, with which programs are built; empty: not found
	Runtime []string `json:"runtime,omitempty"` // files of librte_eal, of which a program loads the one of its series
}

// Softnet is what the kernel's side of receiving has counted since the boot, over all processors
// (/proc/net/softnet_stat).
type Softnet struct {
	Packets  uint64 `json:"packets"`
	Dropped  uint64 `json:"dropped"`  // the backlog was full (net.core.netdev_max_backlog)
	Squeezed uint64 `json:"squeezed"` // the time or budget ended before the work did (net.core.netdev_budget)
}

// Option is one option of the kernel's command line.
type Option struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// CPU is a processor as the scheduler sees it: a thread of a core.
type CPU struct {
	ID       int    `json:"id"`
	Siblings []int  `json:"siblings,omitempty"`
	Governor string `json:"governor,omitempty"` // of its frequency; empty: none, or not known
	Idle     []Idle `json:"idle,omitempty"`
}

// Idle is a state in which a processor sleeps.
type Idle struct {
	Name     string `json:"name"`
	Micros   int    `json:"wake_us"` // that it takes to wake up
	Disabled bool   `json:"disabled,omitempty"`
}

// Node is a NUMA node.
type Node struct {
	ID    int        `json:"id"`
	CPUs  []int      `json:"cpus"`
	Total uint64     `json:"memory_bytes,omitempty"`
	Free  uint64     `json:"free_bytes,omitempty"`
	Huge  []HugePool `json:"huge_pages,omitempty"`
}

// HugePool is the huge pages of one size, of a node or of the machine.
type HugePool struct {
	Size  uint64 `json:"page_bytes"`
	Total int    `json:"total"`
	Free  int    `json:"free"`
	// of the free ones, promised to mappings; only counted for the whole machine
	Reserved int `json:"reserved,omitempty"`
}

// PCI is a PCI device.
type PCI struct {
	Addr   string `json:"addr"`             // 0000:17:00.0
	Parent string `json:"parent,omitempty"` // the bridge above it; empty: a root complex
	Root   string `json:"root"`             // the root complex: pci0000:16
	Vendor uint16 `json:"vendor"`
	Device uint16 `json:"device"`
	Class  uint32 `json:"class"` // base class, class, interface: 0x020000 is an Ethernet card
	Driver string `json:"driver,omitempty"`
	Node   int    `json:"node"` // NUMA node; -1: none, or not known
	Group  int    `json:"iommu_group"`
	// GroupType is what the IOMMU does for the group: "DMA", "DMA-FQ" (translates), "identity"
	// (lets everything through); empty: not known.
	GroupType string `json:"iommu_type,omitempty"`

	Speed    float64 `json:"gt_per_s,omitempty"` // of the link now; 0: not known
	MaxSpeed float64 `json:"max_gt_per_s,omitempty"`
	Width    int     `json:"lanes,omitempty"`
	MaxWidth int     `json:"max_lanes,omitempty"`

	Express     bool     `json:"express,omitempty"`      // its capability could be read; else the next ones are 0
	Port        int      `json:"port_type,omitempty"`    // PortDownstream, or another
	Payload     int      `json:"payload,omitempty"`      // bytes of a packet on the link at most, as set
	MaxPayload  int      `json:"max_payload,omitempty"`  // that the device can
	ReadRequest int      `json:"read_request,omitempty"` // bytes of one read request at most
	ACS         *ACS     `json:"acs,omitempty"`          // access control of a bridge
	BARs        []uint64 `json:"bars,omitempty"`         // bytes of its windows into its memory
}

// PortDownstream is the downstream port of a switch, in PCI.Port.
const PortDownstream = 6

// ACS is access control services of a bridge: bits of what it does.
type ACS struct {
	Does uint16 `json:"does"`
}

// acsDetour are the bits with which a bridge sends what one device below it wants of another up to
// the root first: source validation does not, request and completion redirect and upstream
// forwarding do.
const acsDetour = 1<<2 | 1<<3

// Detours reports whether traffic between two devices below the bridge goes up to the root complex.
func (a *ACS) Detours() bool { return a != nil && a.Does&acsDetour != 0 }

// Bridge reports whether the device is a bridge to other PCI devices.
func (p *PCI) Bridge() bool { return p.Class>>8 == 0x0604 }

// Network reports whether the device is a network card.
func (p *PCI) Network() bool { return p.Class>>16 == 0x02 }

// Display reports whether the device is a GPU or another accelerator with memory.
func (p *PCI) Display() bool { return p.Class>>16 == 0x03 || p.Class>>16 == 0x12 }

// Storage reports whether the device is an NVMe disk.
func (p *PCI) Storage() bool { return p.Class>>8 == 0x0108 }

// BytesPerSecond is what the link carries in one direction at most, after its line code; 0: not
// known.
func (p *PCI) BytesPerSecond() float64 { return linkRate(p.Speed, p.Width) }

// linkRate is a link's rate: 8b/10b up to 5 GT/s, 128b/130b up to 32, 236 of 256 bytes of a flit
// above (PCI Express Base Specification 6.0).
func linkRate(speed float64, width int) float64 {
	code := 128.0 / 130
	switch {
	case speed <= 5:
		code = 0.8
	case speed > 32:
		code = 236.0 / 256
	}
	return speed * 1e9 * code / 8 * float64(width)
}

// Net is a network interface.
type Net struct {
	Name    string `json:"name"`
	Driver  string `json:"driver,omitempty"`
	PCI     string `json:"pci,omitempty"` // address of its card
	Virtual bool   `json:"virtual,omitempty"`
	Type    int    `json:"type"` // ARPHRD: 1 Ethernet, 32 InfiniBand, 772 loopback
	Up      bool   `json:"up"`
	Carrier string `json:"state,omitempty"` // operstate: "up", "down", "unknown"
	MTU     int    `json:"mtu,omitempty"`
	Mbits   int    `json:"mbit_per_s,omitempty"` // 0: not known
	Node    int    `json:"node"`                 // NUMA node; -1: none, or not known
	Master  string `json:"master,omitempty"`     // the bond or bridge that it is in
	Clock   int    `json:"ptp_clock"`            // number; -1: none

	Statistics map[string]uint64 `json:"statistics,omitempty"`
	IRQs       []IRQ             `json:"interrupts,omitempty"`
	Ethtool    *Ethtool          `json:"ethtool,omitempty"` // nil: not asked
	// nil: not asked (it is only of interfaces with an RDMA device), or the driver has none
	DCB *DCB `json:"dcb,omitempty"`
	ECN *ECN `json:"ecn,omitempty"` // nil: the driver does not show it
}

// IRQ is an interrupt of a card.
type IRQ struct {
	Queue     int   `json:"queue"`               // -1: of no queue
	CPUs      []int `json:"cpus"`                // where it may go
	Effective []int `json:"effective,omitempty"` // where it goes
}

// Ethtool is what the driver of an interface says.
type Ethtool struct {
	Driver     string            `json:"driver,omitempty"`
	RxQueues   int               `json:"rx_queues,omitempty"`
	MaxQueues  int               `json:"max_queues,omitempty"`
	RxRing     int               `json:"rx_ring,omitempty"`
	MaxRxRing  int               `json:"max_rx_ring,omitempty"`
	Pause      *Pause            `json:"pause,omitempty"`    // nil: it has none, or does not say
	Features   map[string]string `json:"features,omitempty"` // "on", "off", "on [fixed]", "off [fixed]"
	XDP        string            `json:"xdp,omitempty"`      // what the driver declares: "basic redirect xsk-zerocopy"
	XDPKnown   bool              `json:"xdp_known,omitempty"`
	XDPMode    string            `json:"xdp_mode,omitempty"` // of a program that is attached
	HardwareRx bool              `json:"hardware_rx_time,omitempty"`
	StampsAll  bool              `json:"stamps_all,omitempty"`
	Clock      int               `json:"clock"`              // PTP clock of its times; -1: none
	Counters   map[string]uint64 `json:"counters,omitempty"` // those that count loss and pauses, if not 0
	Errors     map[string]string `json:"errors,omitempty"`   // what could not be asked, and why
}

// Pause is IEEE 802.3x flow control.
type Pause struct {
	Rx bool `json:"rx"`
	Tx bool `json:"tx"`
}

// GPU is what the driver says of a GPU. Clocks are in MHz, 0: not known.
type GPU struct {
	Addr           string `json:"addr"`
	Name           string `json:"name,omitempty"`
	Version        string `json:"driver_version,omitempty"`
	Open           bool   `json:"open_modules,omitempty"` // NVIDIA's open kernel modules, which can do dma-buf
	Clock          int    `json:"clock_mhz,omitempty"`
	MaxClock       int    `json:"max_clock_mhz,omitempty"`
	MemoryClock    int    `json:"memory_clock_mhz,omitempty"`
	MaxMemoryClock int    `json:"max_memory_clock_mhz,omitempty"`
	Persistent     bool   `json:"persistent,omitempty"`
	Celsius        int    `json:"celsius,omitempty"`
	// Integrated: it shares the machine's memory. Asked says that nvidia-smi answered for it.
	Integrated bool `json:"integrated,omitempty"`
	Asked      bool `json:"asked,omitempty"`
}

// TimeSync is what the kernel knows of its own clock.
type TimeSync struct {
	Synchronised bool  `json:"synchronised"`
	MaxError     int64 `json:"max_error_us"`
}

// Process is what this process may do.
type Process struct {
	Capabilities uint64 `json:"capabilities"` // bits as in man 7 capabilities
	CapsKnown    bool   `json:"capabilities_known"`
	Locked       uint64 `json:"locked_memory_limit"` // bytes; the largest number: no limit
	LockedKnown  bool   `json:"locked_memory_known"`
	// LockedHard is how far the process may raise the limit itself.
	LockedHard uint64     `json:"locked_memory_hard_limit"`
	LockRules  []LockRule `json:"locked_memory_rules,omitempty"` // what the machine's files give to others
	CPUs       []int      `json:"cpus,omitempty"`                // where it may run
	Nodes      []int      `json:"nodes,omitempty"`               // whose memory it may have
}

// Capabilities, as bits of Process.Capabilities.
const (
	CapNetAdmin = 12
	CapNetRaw   = 13
	CapIPCLock  = 14
	CapSysRawIO = 17
	CapSysAdmin = 21
	CapPerfmon  = 38
	CapBPF      = 39
)

// Can reports whether the process has a capability.
func (p *Process) Can(bit int) bool { return p.Capabilities>>bit&1 != 0 }
