package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/engine"
)

// defaultDepth is that of engine.RxSpec and engine.TxSpec.
const defaultDepth = 1024

var pciAddress = regexp.MustCompile(`^([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)

// rule notes that a value was derived.
func (c *Config) rule(path, format string, args ...any) {
	if c.sources == nil {
		return
	}
	c.sources[path] = Source{Origin: FromRule, Why: fmt.Sprintf(format, args...)}
}

// derive sets what follows from other values. Deriving again changes nothing.
func (c *Config) derive(d *decoder) {
	regions := map[string]*Region{}
	for i := range c.Regions {
		if regions[c.Regions[i].Name] == nil {
			regions[c.Regions[i].Name] = &c.Regions[i]
		}
	}
	for i := range c.Interfaces {
		p := &c.Interfaces[i]
		path := item("interfaces", i)
		c.engineOf(p, path, d)
		c.addressOf(p, path)
		if p.Engine.fabric() && p.Engine.Built() {
			c.deriveRegions(p, path)
		}
		for _, q := range p.queues(path) {
			c.deriveQueue(p, &q, regions)
		}
		if p.Rx != nil {
			for k := range p.Rx.Queues {
				c.deriveSplit(&p.Rx.Queues[k], join(path, item("rx.queues", k)), regions)
			}
			for k := range p.Rx.Flows {
				c.deriveFlow(&p.Rx.Flows[k], join(path, item("rx.flows", k)), k)
			}
		}
		if p.Tx != nil {
			for k := range p.Tx.Flows {
				c.deriveFlow(&p.Tx.Flows[k], join(path, item("tx.flows", k)), k)
			}
		}
	}
	for i := range c.Applications {
		if a := &c.Applications[i]; a.Name == "" && a.Kind != "" && a.Interface != "" {
			a.Name = fmt.Sprintf("%s-%s-%d", a.Kind, a.Interface, a.Queue)
			c.rule(item("applications", i)+".name", "kind, interface and queue")
		}
	}
}

func (c *Config) deriveFlow(f *Flow, path string, k int) {
	if f.Name == "" {
		f.Name = fmt.Sprintf("flow_%d", k)
		c.rule(join(path, "name"), "the place in the list")
	}
}

func (c *Config) deriveQueue(p *Interface, q *queue, regions map[string]*Region) {
	if c.sources != nil && !c.given(join(q.path, "id")) {
		*q.id = q.place
		c.rule(join(q.path, "id"), "the place in the list")
	}
	if *q.name == "" {
		*q.name = fmt.Sprintf("%s-%s%d", p.Name, q.direction, *q.id)
		c.rule(join(q.path, "name"), "the interface and the id")
	}
	if *q.depth == 0 {
		*q.depth = c.depth(*q.regions, regions, join(q.path, "depth"))
	}
}

func (c *Config) deriveSplit(q *RxQueue, path string, regions map[string]*Region) {
	if q.SplitAt != 0 || len(q.Regions) != 2 {
		return
	}
	if r := regions[q.Regions[0]]; r != nil && r.BufSize <= 65535 {
		q.SplitAt = int(r.BufSize)
		c.rule(join(path, "split_at"), "buf_size of %s", r.Name)
	}
}

// deriveRegions gives queues of RDMA connections that name no memory what is meant for them.
// DAQIRI's files leave that to their programs, which go by the names of regions: DATA_RX_GPU_SERVER
// is for what a server receives.
func (c *Config) deriveRegions(p *Interface, path string) {
	mode := ""
	if p.Socket != nil {
		mode = p.Socket.Mode
	}
	for _, q := range p.queues(path) {
		if len(*q.regions) > 0 {
			continue
		}
		if name, why := c.regionFor(q.direction, mode); name != "" {
			*q.regions = []string{name}
			c.rule(join(q.path, "memory_regions"), "%s", why)
		}
	}
}

// regionFor is the one region whose name has the words, or as many of them as any has; "" if there
// is no such one.
func (c *Config) regionFor(direction, mode string) (name, why string) {
	for _, words := range [][]string{{direction, mode}, {direction}, {}} {
		n := 0
		for i := range c.Regions {
			parts := strings.FieldsFunc(strings.ToLower(c.Regions[i].Name), func(r rune) bool {
				return r == '_' || r == '-' || r == '.' || r == ' '
			})
			if !slices.ContainsFunc(words, func(w string) bool { return w == "" || !slices.Contains(parts, w) }) {
				name = c.Regions[i].Name
				n++
			}
		}
		switch {
		case n == 1 && len(words) == 0:
			return name, "it is the only region"
		case n == 1:
			return name, "its name says so: " + strings.Join(words, ", ")
		case n > 1:
			return "", ""
		}
	}
	return "", ""
}

// depth is that of a queue whose memory is in the regions.
func (c *Config) depth(names []string, regions map[string]*Region, path string) int {
	n, why := defaultDepth, "what engines take"
	for _, name := range names {
		if r := regions[name]; r != nil && r.NumBufs > 0 && r.NumBufs < n {
			n, why = r.NumBufs, "num_bufs of "+name
		}
	}
	c.rule(path, "%s", why)
	return n
}

// engineOf chooses the engine of an interface that names none.
func (c *Config) engineOf(p *Interface, path string, d *decoder) {
	at := join(path, "engine")
	if p.Engine != "" && p.Engine != Auto {
		return
	}
	set := func(e Engine, format string, args ...any) {
		p.Engine = e
		c.rule(at, format, args...)
	}
	loop := ""
	if d != nil && d.legacy.loopback != nil {
		loop = d.legacy.loopback.parsed.(string)
	}
	scheme := p.Address
	if s := p.Socket; s != nil {
		scheme = s.Local.String()
		if s.Local.IsZero() {
			scheme = s.Remote.String()
		}
	}
	before, _, isURL := strings.Cut(scheme, "://")
	stream := ""
	if d != nil && d.legacy.stream != nil {
		stream = d.legacy.stream.parsed.(string)
	}
	loops := func(s *engine.Spec) bool { return s.Option("loop", "") != nil }
	onBus := func(s *engine.Spec) bool { return s.Bus }
	named := find(func(s *engine.Spec) bool {
		_, ok := p.Sections[s.FileSection()]
		return ok && len(s.Schemes) == 0
	})
	switch {
	case isURL && find(func(s *engine.Spec) bool { return slices.Contains(s.Schemes, before) }) != "":
		set(find(func(s *engine.Spec) bool { return slices.Contains(s.Schemes, before) }), "the address %s", scheme)
	case named != "" && !named.needs().Interface:
		set(named, "the section %s", named.Spec().FileSection())
	case loop == "sw":
		set(find(loops), "loopback: sw, which is a port of the engine %s that is looped to itself", find(loops))
	case loop == "hw":
		set(find(onBus), "loopback: hw, which is made inside the card")
	case c.Engine != "" && c.Engine != Auto:
		set(c.Engine, "engine of the configuration")
	case stream != "" && stream != "raw":
		set(Engine(stream), "stream_type: %s", stream)
	case p.Socket != nil:
		set(find(func(s *engine.Spec) bool { return s.FileSection() == socketSectionName }), "it is for sockets")
	case named != "":
		set(named, "the section %s", named.Spec().FileSection())
	case pciAddress.MatchString(p.Address) && c.dialect != Ours:
		set(find(onBus), "the address is that of a card on the PCI bus, which DAQIRI opens with ibverbs")
	case pciAddress.MatchString(p.Address):
		set(find(onBus), "the address is that of a card on the PCI bus")
	default:
		set(find(func(s *engine.Spec) bool { return s.Needs.Interface }), "the address is a network interface")
	}
}

// addressOf makes the address that an engine opens of what a socket section says.
func (c *Config) addressOf(p *Interface, path string) {
	at := join(path, "address")
	switch {
	case p.Engine.plain() && !strings.Contains(p.Address, "://") && p.Name != "":
		name := p.Address
		if name == "loopback" || name == "" {
			name = p.Name
		}
		if p.Address == "loopback" {
			name += "?loop"
		}
		p.Address = p.Engine.Spec().Schemes[0] + "://" + name
		c.rule(at, "the engine %s", p.Engine)
	case p.Engine.needs().IP && p.Socket != nil && p.Socket.Mode != "":
		if u := p.Socket.url(); u != "" {
			p.Address = u
			c.rule(at, "the section socket")
		}
	}
	const retry = "connect_retry"
	if s := p.Engine.Spec(); s != nil && p.Socket != nil && p.Socket.Mode == "client" &&
		s.Option(retry, p.scheme()) != nil && p.Sections[socketSectionName][retry] == "" {
		put(&p.Sections, socketSectionName, retry, "1s")
		c.rule(join(path, join(socketSectionName, retry)), "mode: client")
	}
}

// url is the address of the engine socket, "" if something is missing.
func (s *Socket) url() string {
	switch e := s.Local; {
	case s.Mode == "server" && e.Scheme == "tcp" && e.Port > 0:
		return "tcp://" + e.hostPort() + "?listen=1"
	case s.Mode == "server" && e.Scheme == "udp" && e.Port > 0:
		return "udp://" + e.hostPort()
	case s.Mode == "server" && e.Scheme == "roce" && e.Port > 0:
		return "roce://" + e.hostPort() + "?listen=1"
	case s.Mode == "client" && e.Scheme == "roce" && s.Remote.IsZero() && e.Host.IsValid():
		e.Port = 0 // a port that connects has any
		return e.String()
	case s.Mode != "client" || s.Remote.Port == 0 || !s.Remote.Host.IsValid() || !e.IsZero() &&
		e.Scheme != s.Remote.Scheme:
		return ""
	case s.Remote.Scheme == "roce" && e.IsZero():
		return "roce://" + s.Remote.hostPort()
	case s.Remote.Scheme == "roce":
		return "roce://" + s.Remote.hostPort() + "?local=" + e.Host.String()
	case s.Remote.Scheme == "tcp" && e.IsZero():
		return "tcp://" + s.Remote.hostPort()
	case s.Remote.Scheme == "tcp":
		return "tcp://" + s.Remote.hostPort() + "?local=" + e.hostPort()
	case s.Remote.Scheme == "udp" && e.IsZero():
		return "udp://:0?remote=" + s.Remote.hostPort()
	case s.Remote.Scheme == "udp":
		return "udp://" + e.hostPort() + "?remote=" + s.Remote.hostPort()
	}
	return ""
}
