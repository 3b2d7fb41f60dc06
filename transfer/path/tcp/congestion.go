package tcp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/internal/sys"
)

// CongestionSystem is the value of Options.CongestionControl that takes what
// net.ipv4.tcp_congestion_control says, on loopback as well.
const CongestionSystem = "system"

func sysctl(name string) string {
	s, err := sys.ReadSetting("/proc/sys/net/ipv4/" + name)
	if err != nil {
		return ""
	}
	return s
}

// systemCongestion is the congestion control that the system gives to connections by default.
func systemCongestion() string { return sysctl("tcp_congestion_control") }

// availableCongestion lists what the kernel has loaded.
func availableCongestion() []string {
	list := strings.Fields(sysctl("tcp_available_congestion_control"))
	slices.Sort(list)
	return list
}

// loadedCongestion is availableCongestion, read once: what is loaded later is not missed.
var loadedCongestion = sync.OnceValue(availableCongestion)

func paced(name string) bool { return strings.HasPrefix(name, "bbr") }

// unpaced is what takes the place of the system's choice on loopback, "" if nothing does. Pacing is
// for queues in a network, of which loopback has none, and costs half of the rate of puts of 1 MiB
// there (docs/measurements/tcp.md).
func unpaced(host netip.Addr, system string, available []string) string {
	if host.IsLoopback() && paced(system) {
		for _, name := range []string{"cubic", "reno"} {
			if slices.Contains(available, name) {
				return name
			}
		}
	}
	return ""
}

// initialCongestion sets the congestion control of a socket before it connects or listens: one that
// has paced a connection once leaves it paced.
func (o *Options) initialCongestion(fd int, host netip.Addr) error {
	name := o.CongestionControl
	switch name {
	case CongestionSystem:
		return nil
	case "":
		// A new socket has the system's choice. Only one that paces needs a look at what there is.
		if system, err := sys.Congestion(fd); err == nil && host.IsLoopback() && paced(system) {
			if name = unpaced(host, system, loadedCongestion()); name != "" {
				sys.SetCongestion(fd, name) // if this process may not, it is the system's; Explain reads it back
			}
		}
		return nil
	}
	if err := sys.SetCongestion(fd, name); err != nil {
		return fmt.Errorf("tcp: congestion control %q: %w; this kernel has %s (%q takes the system's choice)",
			name, err, strings.Join(availableCongestion(), ", "), CongestionSystem)
	}
	return nil
}

// congestion says which congestion control a connection has, and why.
func (o *Options) congestion(fd int) string {
	name, err := sys.Congestion(fd)
	switch system := systemCongestion(); {
	case err != nil:
		return "unknown: " + err.Error()
	case o.CongestionControl == CongestionSystem:
		return name + ", the system's choice, as configured"
	case o.CongestionControl != "":
		return name + ", as configured"
	case name == system:
		return name + ", the system's choice"
	default:
		return fmt.Sprintf("%s, because the system's choice (%s) paces, which serves nothing on loopback", name, system)
	}
}
