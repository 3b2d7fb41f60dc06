package host

// RDMA is an RDMA device.
type RDMA struct {
	Name string `json:"name"`
	PCI  string `json:"pci,omitempty"`
	Net  string `json:"interface,omitempty"` // that belongs to it
	// "CA": InfiniBand and RoCE; "RNIC": iWARP; others: see /sys/class/infiniband/*/node_type
	Node string `json:"node,omitempty"`
	// Provider is the part of libibverbs that drives it, such as "mlx5" or "rxe"; empty: not known.
	Provider string `json:"provider,omitempty"`
	// Software: there is no card, the processor does the work.
	Software bool       `json:"software,omitempty"`
	File     string     `json:"file,omitempty"` // its character device below /dev/infiniband; empty: none
	Ports    []RDMAPort `json:"ports,omitempty"`
}

// RDMAPort is a port of an RDMA device.
type RDMAPort struct {
	ID       int    `json:"id"`
	State    string `json:"state,omitempty"`          // "ACTIVE"
	Physical string `json:"physical_state,omitempty"` // "LinkUp", "Polling"
	Layer    string `json:"link_layer,omitempty"`     // "Ethernet", "InfiniBand"
	Rate     string `json:"rate,omitempty"`           // "200 Gb/sec (4X HDR)"
	// LID is the port's address in an InfiniBand subnet, and SM that of its subnet manager; 0:
	// none.
	LID      int               `json:"lid,omitempty"`
	SM       int               `json:"sm_lid,omitempty"`
	GIDs     []GID             `json:"gids,omitempty"`     // those that are in use, by their index
	Counters map[string]uint64 `json:"counters,omitempty"` // those that show trouble, if not 0
}

// GID is an address of a port.
type GID struct {
	Index int `json:"index"`
	// Addr is an IP address: of a RoCE port one of its interface's, IPv4 as ::ffff:10.0.0.1. A
	// recording has another one of its kind.
	Addr string `json:"address"`
	Type string `json:"type,omitempty"`      // "RoCE v2", "IB/RoCE v1"; empty: the kernel does not say
	Net  string `json:"interface,omitempty"` // whose address it is
	VLAN int    `json:"vlan,omitempty"`      // of that interface; 0: none
}

// Verbs is what programs need to use RDMA devices: the kernel's files and the libraries.
type Verbs struct {
	Library   string   `json:"library,omitempty"`   // the file of libibverbs; empty: not found
	Manager   string   `json:"manager,omitempty"`   // that of librdmacm
	Providers []string `json:"providers,omitempty"` // parts of libibverbs that are installed, such as "mlx5"
	// Kernel: the kernel has devices for programs (ib_uverbs). KernelCM: and connections
	// (rdma_ucm).
	Kernel   bool `json:"kernel,omitempty"`
	KernelCM bool `json:"kernel_cm,omitempty"`
	// Namespaces: "shared", where all network namespaces see all devices, or "exclusive"; empty:
	// not known.
	Namespaces string       `json:"namespaces,omitempty"`
	Files      []DeviceFile `json:"files,omitempty"`
	// Asked is what libibverbs itself says; nil: not asked, because there is no device, or no way
	// to ask.
	Asked *VerbsAnswer `json:"asked,omitempty"`
}

// VerbsAnswer is what libibverbs says.
type VerbsAnswer struct {
	Error   string        `json:"error,omitempty"` // why the library cannot be used; empty: it can
	Devices []VerbsDevice `json:"devices,omitempty"`
}

// VerbsDevice is a device that libibverbs lists.
type VerbsDevice struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"` // why it cannot be opened; empty: it can
	// why it does not take memory as a dma-buf; empty: it does, or was not opened
	DMABuf string      `json:"dma_buf,omitempty"`
	Ports  []VerbsPort `json:"ports,omitempty"`
}

// VerbsPort is a port of a device as libibverbs has it.
type VerbsPort struct {
	ID     int `json:"id"`
	MTU    int `json:"active_mtu"` // bytes of payload of a packet
	MaxMTU int `json:"max_mtu"`
	GID    int `json:"gid"` // index of the default address; -1: none
}

// Device is what libibverbs says about a device; nil: nothing.
func (a *VerbsAnswer) Device(name string) *VerbsDevice {
	if a == nil {
		return nil
	}
	for i := range a.Devices {
		if a.Devices[i].Name == name {
			return &a.Devices[i]
		}
	}
	return nil
}

// Port is what libibverbs says about a port; nil: nothing.
func (a *VerbsAnswer) Port(device string, id int) *VerbsPort {
	d := a.Device(device)
	if d == nil {
		return nil
	}
	for i := range d.Ports {
		if d.Ports[i].ID == id {
			return &d.Ports[i]
		}
	}
	return nil
}

// DeviceFile is a character device below /dev/infiniband.
type DeviceFile struct {
	Name  string `json:"name"`            // uverbs0, rdma_cm
	Mode  string `json:"mode,omitempty"`  // of the file: 0666
	Error string `json:"error,omitempty"` // why this process cannot open it; empty: it can
}

// DCB is data center bridging of an interface, as its driver tells.
type DCB struct {
	PFCKnown bool  `json:"pfc_known"`
	PFC      []int `json:"pfc,omitempty"` // priorities with flow control
	// Pauses are the pause frames of all priorities since the driver was loaded, sent and received.
	Sent     uint64      `json:"sent,omitempty"`
	Received uint64      `json:"received,omitempty"`
	DSCP     map[int]int `json:"dscp,omitempty"` // priorities by DSCP
}

// ECN is on which priorities a RoCE card takes part in congestion control (DCQCN).
type ECN struct {
	Notifies []int `json:"notifies,omitempty"` // the receiver of marked packets notifies the sender
	Reacts   []int `json:"reacts,omitempty"`   // and the sender slows down
}

// LockRule is a limit of locked memory that a file gives to processes that begin later.
type LockRule struct {
	File string `json:"file"`
	// as limits.conf(5) has it, or "services" and "user services" of systemd; a recording has
	// "user" and "@group" for names
	Who   string `json:"who"`
	Kind  string `json:"kind"`  // "soft", "hard", "-" for both
	Value string `json:"value"` // KiB in limits.conf, or "unlimited"; as systemd writes sizes there
}
