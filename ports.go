package penstock

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/engine/verbs"
	"github.com/penstock-io/penstock/engine/xdp"
	"github.com/penstock-io/penstock/mem"
)

// portOptions are what the sections socket, roce, xdp and afpacket of an interface say, for its engine; nil for others.
func portOptions(c *config.Interface) any {
	switch c.Engine {
	case config.Sockets:
		return socketOptions(c)
	case config.RDMA:
		return verbsOptions(c)
	case config.AFP:
		return afpacketOptions(c.AFPacket)
	case config.AFXDP:
		return xdpOptions(c)
	}
	return nil
}

func socketOptions(c *config.Interface) any {
	s := c.Socket
	if s == nil {
		s = &config.Socket{ConnectTimeout: -1}
	}
	if strings.HasPrefix(c.Address, "tcp://") {
		o := socket.TCPOptions{ReceiveBuffer: int(s.ReceiveBuffer), SendBuffer: int(s.SendBuffer), MaxPayload: s.MaxPayload}
		if s.Mode == "client" {
			o.Reconnect, o.BackoffMin, o.BackoffMax = s.ConnectRetry > 0, s.ConnectRetry, s.ConnectRetry
			o.Background, o.ConnectTimeout = s.ConnectTimeout == 0, s.ConnectTimeout
		}
		return o
	}
	o := socket.UDPOptions{ReceiveBuffer: int(s.ReceiveBuffer), SendBuffer: int(s.SendBuffer), MaxPayload: s.MaxPayload}
	if c.Rx != nil {
		o.Queues = len(c.Rx.Queues)
	}
	return o
}

func verbsOptions(c *config.Interface) verbs.Options {
	var o verbs.Options
	if c.RoCE != nil && c.RoCE.Transport != "" {
		o.Transport, _ = verbs.ParseTransport(c.RoCE.Transport) // package config knows the same ones
	}
	if c.RoCE != nil && c.RoCE.Connect != "" {
		o.Connect, _ = verbs.ParseConnector(c.RoCE.Connect)
	}
	if s := c.Socket; s != nil && s.Mode == "client" {
		o.Reconnect, o.BackoffMin, o.BackoffMax = s.ConnectRetry > 0, s.ConnectRetry, s.ConnectRetry
		o.Background, o.ConnectTimeout = s.ConnectTimeout == 0, max(s.ConnectTimeout, 0)
	}
	return o
}

var fanouts = map[string]afpacket.Fanout{"": afpacket.FanoutNone, "none": afpacket.FanoutNone, "hash": afpacket.FanoutHash, "cpu": afpacket.FanoutCPU, "rollover": afpacket.FanoutRollover}

func afpacketOptions(a *config.AFPacket) afpacket.Options {
	if a == nil {
		return afpacket.Options{}
	}
	return afpacket.Options{Frames: a.Frames, FrameSize: int(a.FrameSize), Fanout: fanouts[a.Fanout], Sockets: a.Sockets, Promiscuous: a.Promiscuous, QdiscBypass: a.QdiscBypass}
}

var (
	binds    = map[string]xdp.Bind{"": xdp.BindAuto, "auto": xdp.BindAuto, "zerocopy": xdp.BindZeroCopy, "copy": xdp.BindCopy}
	attaches = map[string]xdp.Attach{"": xdp.AttachAuto, "auto": xdp.AttachAuto, "native": xdp.AttachNative, "generic": xdp.AttachGeneric}
)

func xdpOptions(c *config.Interface) xdp.Options {
	o := xdp.Options{HardwareTime: c.Rx != nil && c.Rx.HardwareTimestamps}
	x := c.XDP
	if x == nil {
		return o
	}
	o.Bind, o.Attach, o.Ring, o.Spare, o.BusyPoll, o.NoChains = binds[x.Bind], attaches[x.Attach], x.Ring, x.Spare, x.BusyPoll, !x.Chains
	if len(x.Queues) > 0 {
		o.Queues = slices.Clone(x.Queues)
	}
	if x.Spare == 0 { // which the engine takes for its default
		o.Spare = -1
	}
	return o
}

// settings are the fields of options that are not zero, for people.
func settings(options any) (out []string) {
	v := reflect.ValueOf(options)
	if !v.IsValid() || v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && !v.Field(i).IsZero() {
			out = append(out, fmt.Sprintf("%s=%v", f.Name, v.Field(i).Interface()))
		}
	}
	return out
}

// group is interfaces of the engine xdp that exchange packets with the kernel through one memory, so that what one of them received
// another one sends without a copy.
type group struct {
	name   string
	ifaces []int // by place in the configuration
	area   []int // regions that are carved from one area of memory, which is the home of the group; none: home is as it is
	home   int   // the region whose slots the kernel receives into; -1: none is fit for that
	chunk  int   // bytes
	spare  int   // see xdp.MemoryOptions
}

// chunkOf is the distance of the slots of a region, and whether AF_XDP can use them in place.
func chunkOf(r *config.Region) (int, bool) {
	align := max(r.Align, 1)
	n := int((r.BufSize + align - 1) / align * align)
	return n, n == 2048 || n == 4096
}

// planGroups finds the interfaces of the engine xdp that share regions, or that an application forwards between.
func (p *Plan) planGroups() {
	of := map[string]int{} // first interface by region
	parent := make([]int, len(p.cfg.Interfaces))
	for i := range parent {
		parent[i] = i
	}
	find := func(i int) int {
		for parent[i] != i {
			i = parent[i]
		}
		return i
	}
	join := func(a, b int) { // the first one leads
		a, b = find(a), find(b)
		parent[max(a, b)] = min(a, b)
	}
	named := map[string]int{}
	for i := range p.cfg.Interfaces {
		c := &p.cfg.Interfaces[i]
		if c.Engine != config.AFXDP {
			continue
		}
		named[c.Name] = i
		for _, name := range regionsOf(c) {
			if first, ok := of[name]; ok {
				join(first, i)
			} else {
				of[name] = i
			}
		}
	}
	for _, a := range p.cfg.Applications {
		from, ok := named[a.Interface]
		if to, too := named[a.To]; ok && too && a.Kind == "forward" {
			join(from, to)
		}
	}
	for i := range p.cfg.Interfaces {
		if p.cfg.Interfaces[i].Engine == config.AFXDP && find(i) == i {
			var members []int
			for k := range parent {
				if p.cfg.Interfaces[k].Engine == config.AFXDP && find(k) == i {
					members = append(members, k)
				}
			}
			p.planGroup(members)
		}
	}
}

// regionsOf are the regions that the queues of an interface name, receive queues first, each once.
func regionsOf(c *config.Interface) (out []string) {
	add := func(names []string) {
		for _, n := range names {
			if !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	if c.Rx != nil {
		for _, q := range c.Rx.Queues {
			add(q.Regions)
		}
	}
	if c.Tx != nil {
		for _, q := range c.Tx.Queues {
			add(q.Regions)
		}
	}
	return out
}

func (p *Plan) planGroup(members []int) {
	g := group{ifaces: members, home: -1, spare: -1}
	var regions []int
	for _, i := range members {
		c := &p.cfg.Interfaces[i]
		for _, name := range regionsOf(c) {
			k := slices.IndexFunc(p.cfg.Regions, func(r config.Region) bool { return r.Name == name })
			if k >= 0 && !slices.Contains(regions, k) {
				regions = append(regions, k)
			}
		}
		spare := 2048 // as the engine has it
		if c.XDP != nil {
			spare = c.XDP.Spare
		}
		g.spare = max(g.spare, spare)
	}
	if g.spare == 0 {
		g.spare = -1
	}
	for _, k := range regions {
		r := &p.cfg.Regions[k]
		if p.hidden(r.Name) != nil {
			continue // the kernel does not reach it
		}
		n, fit := chunkOf(r)
		if !fit {
			p.note(fmt.Sprintf("memory_regions[%d].buf_size", k), fmt.Sprintf("the slots of %s are %d bytes apart, so the engine xdp copies each packet", r.Name, n),
				"slots of 2KiB or 4KiB are received into and sent from in place")
			continue
		}
		if g.home < 0 {
			g.home, g.chunk = k, n
		}
		if h := &p.cfg.Regions[g.home]; n == g.chunk && r.Owned && h.Owned && r.Kind == h.Kind && r.NUMA == h.NUMA && r.PageSize == h.PageSize && r.Fallback == h.Fallback &&
			(r.Kind == "host" || r.Kind == "huge") {
			g.area = append(g.area, k)
		}
	}
	if len(g.area) < 2 {
		g.area = nil
		if len(members) < 2 || g.home < 0 {
			return // the port does it by itself
		}
	}
	g.name = "xdp-" + p.cfg.Interfaces[members[0]].Name
	for _, i := range members {
		p.Interfaces[i].Memory = g.name
	}
	p.groups = append(p.groups, g)
}

// openRegions makes the pools.
func (s *System) openRegions() error {
	for _, g := range s.plan.groups {
		if len(g.area) > 0 {
			if err := s.openArea(&g); err != nil {
				return err
			}
		}
	}
	for i := range s.plan.cfg.Regions {
		r := &s.plan.cfg.Regions[i]
		if s.pools[r.Name] != nil {
			continue
		}
		pool := s.plan.o.Regions[r.Name]
		if r.Owned {
			var err error
			o := r.PoolOptions()
			o.Memory.Provider = s.provider(r)
			if pool, err = mem.NewPool(o); err != nil {
				return s.at(fmt.Sprintf("memory_regions[%d]", i), fmt.Sprintf("region %q", r.Name), err)
			}
			s.regions = append(s.regions, region{r.Name, pool})
		}
		s.pools[r.Name] = pool
	}
	return nil
}

// openArea carves regions from one area of memory.
func (s *System) openArea(g *group) (err error) {
	cfg := s.plan.cfg
	home := cfg.Regions[g.home].PoolOptions()
	o, size := home.Memory, 0
	for _, k := range g.area {
		size += g.chunk * cfg.Regions[k].NumBufs
	}
	o.Name, o.Size = g.name, size
	area, err := mem.Alloc(o)
	if err != nil {
		return s.at(fmt.Sprintf("memory_regions[%d]", g.home), fmt.Sprintf("the memory %q, which several regions are carved from", g.name), err)
	}
	s.areas = append(s.areas, area)
	at := 0
	for _, k := range g.area {
		r := &cfg.Regions[k]
		po := r.PoolOptions()
		po.Region, po.Offset, po.Memory = area, at, mem.Options{}
		pool, err := mem.NewPool(po)
		if err != nil {
			return s.at(fmt.Sprintf("memory_regions[%d]", k), fmt.Sprintf("region %q", r.Name), err)
		}
		s.regions = append(s.regions, region{r.Name, pool})
		s.pools[r.Name] = pool
		at += g.chunk * r.NumBufs
	}
	return nil
}

// openGroups makes the memory that interfaces of the engine xdp share. It is kept by their ports.
func (s *System) openGroups() (byInterface map[int]*xdp.Memory, done func() error, err error) {
	byInterface = map[int]*xdp.Memory{}
	var all []*xdp.Memory
	done = func() (err error) {
		for _, m := range all {
			err = errors.Join(err, m.Close())
		}
		return err
	}
	for _, g := range s.plan.groups {
		m, err := xdp.NewMemory(xdp.MemoryOptions{Region: s.pools[s.plan.cfg.Regions[g.home].Name].Region(), Chunk: g.chunk, Spare: g.spare})
		if err != nil {
			return nil, nil, errors.Join(s.at(fmt.Sprintf("memory_regions[%d]", g.home), fmt.Sprintf("the memory %q of the engine xdp", g.name), err), done())
		}
		all = append(all, m)
		for _, i := range g.ifaces {
			byInterface[i] = m
		}
	}
	return byInterface, done, nil
}
