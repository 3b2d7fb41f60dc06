package cli

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/host/tune"
	"github.com/penstock-io/penstock/packet"
)

// readHost reads what a configuration is compared with. What cannot be read is left out: the
// comparison says less then.
func readHost(ctx context.Context) (*config.Host, error) {
	h := systemHost(host.Read(ctx, os.DirFS("/"))) // what is a file, and no more
	h.Name, _ = os.Hostname()                      // without one, a generated file has another name
	cards, err := tune.Interfaces(ctx)
	if err != nil {
		return nil, err
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		x := config.HostInterface{Name: l.Name, Up: l.Flags&net.FlagUp != 0, Loopback: l.Flags&net.FlagLoopback != 0,
			MTU: l.MTU, Node: -1}
		if len(l.HardwareAddr) == len(x.MAC) {
			x.MAC = packet.MAC(l.HardwareAddr)
		}
		addrs, _ := l.Addrs() // an interface that went away has none
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				x.Addresses = append(x.Addresses, p)
			}
		}
		slices.SortFunc(x.Addresses, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		if i := slices.IndexFunc(cards, func(c tune.Interface) bool { return c.Name == l.Name }); i >= 0 {
			c := cards[i]
			x.Driver, x.Node, x.Queues, x.Speed = c.Driver, c.Node, c.Queues, config.Rate(c.Speed)
			if strings.Count(c.Bus, ":") == 2 {
				x.PCI = c.Bus
			}
		}
		h.Interfaces = append(h.Interfaces, x)
	}
	slices.SortFunc(h.Interfaces, func(a, b config.HostInterface) int { return strings.Compare(a.Name, b.Name) })
	return h, nil
}

// systemHost is what is known of processors, NUMA nodes and huge pages.
func systemHost(f *host.Facts) *config.Host {
	h := new(config.Host)
	for _, c := range f.CPUs {
		h.Cores = append(h.Cores, c.ID)
	}
	for i := range f.GPUs {
		if g := &f.GPUs[i]; !g.Integrated {
			h.GPUs++
		} else if p := f.Device(g.Addr); p != nil && p.Driver == "nvidia" {
			h.GPUs++
		}
	}
	for _, n := range f.Nodes {
		node := config.HostNode{ID: n.ID, Memory: config.Size(n.Free)}
		for _, c := range n.CPUs {
			if slices.Contains(h.Cores, c) { // those that are switched off belong to a node as well
				node.Cores = append(node.Cores, c)
			}
		}
		for _, p := range n.Huge {
			node.Huge = append(node.Huge, config.HostPages{Size: config.Size(p.Size), Total: p.Total, Free: p.Free})
		}
		h.Nodes = append(h.Nodes, node)
	}
	return h
}
