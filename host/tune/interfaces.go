package tune

import (
	"context"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/ethtool"
)

// Interface is what there is to know about a network interface before it is tuned.
type Interface struct {
	Name   string `json:"name"`
	Driver string `json:"driver,omitempty"`
	Kind   string `json:"kind,omitempty"` // "veth", "bond"; empty for hardware
	Bus    string `json:"bus,omitempty"`  // address of the card
	Up     bool   `json:"up"`
	MTU    int    `json:"mtu"`
	Speed  uint64 `json:"bits_per_second,omitempty"` // 0: not known
	Queues int    `json:"queues,omitempty"`          // receive queues in use
	Most   int    `json:"most_queues,omitempty"`     // that the device can have
	Node   int    `json:"numa_node"`                 // -1: none, or not known

	// XDP is what the driver declares: "basic redirect xsk-zerocopy"; empty where it has none. With
	// XDPUnknown the kernel does not say.
	XDP        string `json:"xdp,omitempty"`
	XDPUnknown bool   `json:"xdp_unknown,omitempty"`
	Metadata   string `json:"xdp_metadata,omitempty"` // of received packets: "timestamp hash"
	Mode       string `json:"xdp_mode,omitempty"`     // of a program that is attached
	Program    uint32 `json:"xdp_program,omitempty"`  // its number
}

// AFXDP says in a word what AF_XDP can be on the interface: "zero-copy", "native" (with a copy),
// "generic", or "unknown". What a driver declares it may still refuse in some configurations.
func (i Interface) AFXDP() string {
	switch {
	case i.XDPUnknown:
		return "unknown"
	case has(i.XDP, "xsk-zerocopy"):
		return "zero-copy"
	case has(i.XDP, "basic") && has(i.XDP, "redirect"):
		return "native"
	}
	return "generic"
}

// has reports whether a word is in a list.
func has(list, word string) bool { return slices.Contains(strings.Fields(list), word) }

// Interfaces lists the network interfaces of the calling thread's network namespace without the
// loopback device. It needs no rights.
func Interfaces(ctx context.Context) ([]Interface, error) {
	links, err := ethtool.Links()
	if err != nil {
		return nil, err
	}
	var out []Interface
	for _, l := range links {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if l.Loopback {
			continue
		}
		i := Interface{Name: l.Name, Kind: l.Kind, Up: l.Up, MTU: l.MTU, Node: linux{}.node(l.Name), Mode: l.XDPMode,
			Program: l.XDPProgram,
			Queues:  l.RxQueues, Most: l.RxQueues}
		if d, err := ethtool.Open(l.Name); err == nil {
			if x, err := d.Driver(); err == nil {
				i.Driver, i.Bus = x.Name, x.Bus
			}
			if c, err := d.Channels(); err == nil {
				i.Queues, i.Most = c.RxQueues(), max(c.MaxCombined, c.MaxRx)
			}
			if v, err := d.Speed(); err == nil {
				i.Speed = v
			}
			d.Close()
		}
		x, err := ethtool.XDPOf(l.Index)
		i.XDP, i.Metadata, i.XDPUnknown = x.Features.String(), x.RxMetadata.String(), err != nil
		out = append(out, i)
	}
	return out, nil
}
