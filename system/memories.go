package system

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
)

// memoryShare is an engine.MemoryShare with interfaces and regions by their places in the
// configuration.
type memoryShare struct {
	name string
	engine.MemoryShare
}

// planMemories asks each engine what its interfaces do with their regions, and which memory they
// share.
func (p *Plan) planMemories() {
	p.uses = make([][]string, len(p.cfg.Regions))
	for _, e := range p.table.Engines() {
		needs, ports, regions := p.memoryNeeds(e.Name())
		if len(ports) == 0 {
			continue
		}
		plan := engine.PlanMemory(e, needs)
		for i, a := range plan.Answers {
			at := regions[i]
			if a.Use != engine.UseUnknown {
				p.uses[at] = append(p.uses[at], fmt.Sprintf("%s: %v", e.Name(), a.Use))
			}
			if a.Why != "" {
				p.note(fmt.Sprintf("memory_regions[%d].buf_size", at), a.Why, a.Hint)
			}
		}
		for _, s := range plan.Shares {
			s.Ports, s.Parts, s.Home = placesOf(ports, s.Ports), placesOf(regions, s.Parts), regions[s.Home]
			name := e.Name() + "-" + p.cfg.Interfaces[s.Ports[0]].Name
			for _, i := range s.Ports {
				p.Interfaces[i].Memory = name
			}
			p.shares = append(p.shares, memoryShare{name, s})
		}
	}
}

// placesOf are the elements of all at these places.
func placesOf(all, at []int) (out []int) {
	for _, i := range at {
		out = append(out, all[i])
	}
	return out
}

// memoryNeeds are the interfaces of an engine and the regions of their queues, receive queues
// first, with their places in the configuration.
func (p *Plan) memoryNeeds(name string) (n *engine.MemoryNeeds, ports, regions []int) {
	n = &engine.MemoryNeeds{}
	named := map[string]int{}
	for i := range p.cfg.Interfaces {
		c := &p.cfg.Interfaces[i]
		if string(c.Engine) != name {
			continue
		}
		spec := c.PortSpec()
		named[c.Name] = len(ports)
		for _, region := range regionsOf(c) {
			at := slices.IndexFunc(p.cfg.Regions, func(r config.Region) bool { return r.Name == region })
			if at < 0 {
				continue
			}
			k := slices.Index(regions, at)
			if k < 0 {
				k = len(regions)
				regions, n.Memories = append(regions, at), append(n.Memories, p.memoryNeed(at))
			}
			n.Memories[k].Ports = append(n.Memories[k].Ports, len(ports))
		}
		ports, n.Ports = append(ports, i), append(n.Ports, spec)
	}
	for _, a := range p.cfg.Applications {
		from, ok := named[a.Interface]
		if to, too := named[a.To]; ok && too && a.Kind == "forward" {
			n.Forwards = append(n.Forwards, [2]int{from, to})
		}
	}
	return n, ports, regions
}

func (p *Plan) memoryNeed(at int) engine.MemoryNeed {
	r := &p.cfg.Regions[at]
	n := engine.MemoryNeed{Name: r.Name, Kind: r.MemKind(), CPU: p.hidden(r.Name) == nil, Stride: r.Stride()}
	if given := p.o.Regions[r.Name]; given != nil && !r.Owned {
		n.Kind, n.Stride = given.Region().Kind(), given.Stride()
	}
	if r.Owned && (r.Kind == "host" || r.Kind == "huge") && p.share(at) == nil {
		n.Alike = 1 + slices.IndexFunc(p.cfg.Regions, func(o config.Region) bool {
			return o.Owned && o.Kind == r.Kind && o.NUMA == r.NUMA && o.PageSize == r.PageSize &&
				o.Fallback == r.Fallback
		})
	}
	return n
}

// share is the memory that a region shares with other regions, nil if it shares none.
func (p *Plan) share(region int) *memoryShare {
	for i := range p.shares {
		if slices.Contains(p.shares[i].Parts, region) {
			return &p.shares[i]
		}
	}
	return nil
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

// openRegions makes the pools.
func (s *System) openRegions() error {
	for i := range s.plan.shares {
		if m := &s.plan.shares[i]; len(m.Parts) > 0 {
			if err := s.openArea(m); err != nil {
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

// openArea divides regions from one area of memory.
func (s *System) openArea(m *memoryShare) (err error) {
	cfg := s.plan.cfg
	o, sizes := cfg.Regions[m.Home].PoolOptions().Memory, make([]int, len(m.Parts))
	for i, k := range m.Parts {
		sizes[i] = s.plan.memoryNeed(k).Stride * cfg.Regions[k].NumBufs
		o.Size += sizes[i]
	}
	o.Name = m.name
	area, err := mem.Alloc(o)
	if err != nil {
		return s.at(fmt.Sprintf("memory_regions[%d]", m.Home),
			fmt.Sprintf("the memory %q, which several regions are parts of", m.name), err)
	}
	s.areas = append(s.areas, area)
	at := 0
	for i, k := range m.Parts {
		r := &cfg.Regions[k]
		po := r.PoolOptions()
		po.Region, po.Offset, po.Memory = area, at, mem.Options{}
		pool, err := mem.NewPool(po)
		if err != nil {
			return s.at(fmt.Sprintf("memory_regions[%d]", k), fmt.Sprintf("region %q", r.Name), err)
		}
		s.regions = append(s.regions, region{r.Name, pool})
		s.pools[r.Name] = pool
		at += sizes[i]
	}
	return nil
}

// openShares makes the memory that interfaces share. The System keeps it for those that are opened
// again.
func (s *System) openShares() (byInterface map[int]engine.SharedMemory, err error) {
	byInterface = map[int]engine.SharedMemory{}
	var all []engine.SharedMemory
	s.shares = func() (err error) {
		for _, m := range all {
			err = errors.Join(err, m.Close())
		}
		return err
	}
	for i := range s.plan.shares {
		x := &s.plan.shares[i]
		m, err := x.Open(s.pools[s.plan.cfg.Regions[x.Home].Name].Region())
		if err != nil {
			return nil, s.at(fmt.Sprintf("memory_regions[%d]", x.Home),
				fmt.Sprintf("the memory %q, which interfaces share", x.name), err)
		}
		all = append(all, m)
		for _, k := range x.Ports {
			byInterface[k] = m
		}
	}
	return byInterface, nil
}
