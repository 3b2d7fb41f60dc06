package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/config"
)

// NeedsOf is what a configuration wants of the machine that it is opened on: interfaces, cores,
// memory, sockets and GPUs, each with its place in the file. What is a placeholder, or belongs to a
// part that needs nothing of the machine (the engine sim), is left out. The needs pass Check.
func NeedsOf(c *config.Config) Needs {
	b := builder{c: c, names: map[string]string{}}
	// of a file that names none the machine's others do not matter
	b.n.Interfaces, b.n.GPUs, b.n.Whole = []Interface{}, []string{}, true
	for i := range c.Interfaces {
		b.iface(i)
	}
	if c.Transfers != nil {
		for i, a := range c.Transfers.Listen {
			b.listener(i, a)
		}
		if len(c.Interfaces) == 0 { // transfers go by whatever there is
			b.n.Interfaces = nil
		}
		for _, u := range c.Transfers.PathUses() {
			if !u.RDMA || u.At == "" { // a file that gives the path options wants it
				continue
			}
			b.n.RDMA = []string{AnyDevice}
			if d := u.Settings["device"]; d != "" && !strings.ContainsAny(d, "/ ") {
				b.n.RDMA[0] = d
			}
		}
	}
	b.frames()
	for i := range c.Regions {
		b.region(i)
	}
	b.cores()
	if l := c.Latency; l != nil && l.PTPDevice != "" {
		b.n.Timed = append(b.n.Timed, b.place("bench_latency.ptp_device"))
	}
	return b.n
}

// builder makes needs of a configuration.
type builder struct {
	c     *config.Config
	n     Needs
	names map[string]string // of interfaces of the file to Interface.Name
}

func (b *builder) place(format string, args ...any) Place {
	path := fmt.Sprintf(format, args...)
	at := b.c.At(path)
	return Place{b.c.Name(), at.Line, at.Column, path}
}

func (b *builder) iface(i int) {
	p := &b.c.Interfaces[i]
	path := fmt.Sprintf("interfaces[%d]", i)
	if p.Tx != nil && p.Tx.AccurateSend {
		b.n.Timed = append(b.n.Timed, b.place("%s.tx.accurate_send", path))
	}
	switch w := wants(string(p.Engine)); {
	case w.Interface && p.Address == "": // a placeholder
		return
	case w.Interface:
	case slices.Contains(Engines(), string(p.Engine)):
		b.socket(p, path)
		return
	default:
		return
	}
	name := p.Engine.Spec().Device(p.Address)
	if name == "" { // a virtual device: nothing of the machine's
		return
	}
	b.names[p.Name] = name
	x := Interface{Name: name, Engine: string(p.Engine), MTU: p.MTU, At: b.place("%s.address", path),
		Places: map[string]Place{}}
	if p.MTU > 0 {
		x.Places["mtu"] = b.place("%s.mtu", path)
	}
	for _, q := range p.Asked() {
		at := b.place("%s.%s", path, q.Path)
		n, _ := q.Value.(int64)
		switch q.What {
		case "queues":
			if int(n)+1 > x.Queues {
				x.Queues, x.Places["queues"] = int(n)+1, at
			}
		case "busy_poll":
			x.BusyPoll = q.Value != time.Duration(0)
		case "zero_copy":
			x.ZeroCopy, x.Places[q.What] = true, at
		case "native":
			x.Native, x.Places[q.What] = true, at
		case "chains":
			x.Chains = q.Value == true
		}
	}
	if p.Rx != nil {
		if x.HardwareTime = p.Rx.HardwareTimestamps; x.HardwareTime {
			x.Places["hardware_time"] = b.place("%s.rx.hardware_timestamps", path)
		}
		for k := range p.Rx.Queues {
			q := &p.Rx.Queues[k]
			if q.Depth > x.Depth {
				x.Depth, x.Places["depth"] = q.Depth, b.place("%s.rx.queues[%d].depth", path, k)
			}
			if f := b.slots(q.Regions) - p.Grows(q.ID); f > 0 && (x.slot == 0 || f < x.slot) && !p.Joins() &&
				wants(string(p.Engine)).Frames {
				x.slot, x.slotAt = f, b.place("%s.rx.queues[%d].memory_regions", path, k)
			}
			if f := b.slots(q.Regions); f > x.Frame {
				x.Frame, x.Places["frame_bytes"] = f, b.place("%s.rx.queues[%d].memory_regions", path, k)
			}
		}
	}
	for k := range b.n.Interfaces { // two sections may be about one card: one sends, one receives
		if o := &b.n.Interfaces[k]; o.Name == x.Name && o.Engine == x.Engine {
			o.join(x)
			return
		}
	}
	b.n.Interfaces = append(b.n.Interfaces, x)
}

// join adds what another section of a file wants of the same interface.
func (i *Interface) join(o Interface) {
	for _, x := range []struct {
		key   string
		to    *int
		other int
	}{{"mtu", &i.MTU, o.MTU}, {"queues", &i.Queues, o.Queues}, {"frame_bytes", &i.Frame, o.Frame},
		{"depth", &i.Depth, o.Depth}} {
		if x.other > *x.to {
			*x.to, i.Places[x.key] = x.other, o.Places[x.key]
		}
	}
	for _, x := range []struct {
		key   string
		to    *bool
		other bool
	}{{"hardware_time", &i.HardwareTime, o.HardwareTime}, {"zero_copy", &i.ZeroCopy, o.ZeroCopy},
		{"native", &i.Native, o.Native}} {
		if x.other && !*x.to {
			*x.to, i.Places[x.key] = true, o.Places[x.key]
		}
	}
	if o.slot > 0 && (i.slot == 0 || o.slot < i.slot) {
		i.slot, i.slotAt = o.slot, o.slotAt
	}
	i.BusyPoll, i.Chains = i.BusyPoll && o.BusyPoll, i.Chains || o.Chains
}

// mostFrame is longer than any frame: buffers may have room for more.
const mostFrame = 1 << 20

// slots is how many bytes of a packet fit into a slot of each of these regions together.
func (b *builder) slots(regions []string) (sum int) {
	for _, name := range regions {
		if i := slices.IndexFunc(b.c.Regions, func(r config.Region) bool { return r.Name == name }); i >= 0 {
			sum = min(sum+int(min(b.c.Regions[i].BufSize, mostFrame)), mostFrame)
		}
	}
	return sum
}

func (b *builder) socket(p *config.Interface, path string) {
	b.names[p.Name] = p.Name
	x := Socket{Name: p.Name, Engine: string(p.Engine), At: b.place("%s", path), Places: map[string]Place{}}
	local := ownAddress(p.Address)
	if local.IsValid() {
		x.Places["local"] = b.place("%s.address", path)
	}
	udp := strings.HasPrefix(p.Address, "udp:")
	if s := p.Socket; s != nil {
		if s.Local.Host.IsValid() {
			local, x.Places["local"] = s.Local.Host, b.place("%s.socket.local", path)
		}
	}
	for _, q := range p.Asked() {
		n, _ := q.Value.(int64)
		at := b.place("%s.%s", path, q.Path)
		switch {
		case n == 0:
		case q.What == "receive_buffer_bytes":
			x.Receive, x.Places[q.What] = uint64(n), at
		case q.What == "send_buffer_bytes":
			x.Send, x.Places[q.What] = uint64(n), at
		case q.What == "packet_bytes" && udp:
			headers := 20 + 8
			if (local.IsValid() && local.Unmap().Is6()) || p.Socket != nil && p.Socket.Remote.Host.IsValid() &&
				p.Socket.Remote.Host.Unmap().Is6() {
				headers = 40 + 8
			}
			x.Packet, x.Places[q.What] = int(n)+headers, at
		}
	}
	switch {
	case local.IsMulticast(): // no machine has it
		x.Group = local.Unmap().String()
	case local.IsValid() && !local.IsUnspecified():
		x.Local = local.Unmap().String()
	}
	b.n.Sockets = append(b.n.Sockets, x)
}

// ownAddress is the IP address of this machine in an address of the engine socket, or of one that
// is an IP address; the zero Addr if there is none.
func ownAddress(address string) netip.Addr {
	if a, err := netip.ParseAddr(address); err == nil {
		return a
	}
	u, err := url.Parse(address)
	if err != nil {
		return netip.Addr{}
	}
	host := u.Hostname()
	if u.Scheme == "tcp" && u.Query().Get("listen") == "" { // that is the other end
		host, _, _ = net.SplitHostPort(u.Query().Get("local"))
	}
	a, _ := netip.ParseAddr(host) // what is no address is none of this machine's that can be looked for
	return a
}

func (b *builder) listener(i int, address string) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "tcp" {
		return
	}
	a, err := netip.ParseAddr(u.Hostname())
	if err != nil || a.IsUnspecified() {
		return
	}
	at := b.place("transfers.listen[%d]", i)
	b.n.Sockets = append(b.n.Sockets, Socket{Name: at.Path, Local: a.Unmap().String(), At: at})
}

// etherHeader is in frames, and not in what an MTU counts.
const etherHeader = 14

// frames raises MTUs to the frames that benchmarks send, and says where a frame takes several
// buffers.
func (b *builder) frames() {
	raise := func(name string, bytes config.Size, at Place) {
		for k := range b.n.Interfaces {
			x := &b.n.Interfaces[k]
			if mtu := int(min(bytes, 65535+etherHeader)) - etherHeader; x.Name == b.names[name] && mtu > x.MTU {
				x.MTU, x.Places["mtu"] = mtu, at
			}
		}
	}
	for i := range b.c.BenchTx {
		t := &b.c.BenchTx[i]
		raise(t.Interface, t.HeaderSize+t.PayloadSize, b.place("bench_tx[%d].payload_size", i))
	}
	if l := b.c.Latency; l != nil {
		for _, name := range []string{l.TxInterface, l.RxInterface} {
			raise(name, l.HeaderSize+l.PayloadSize, b.place("bench_latency.payload_size"))
		}
	}
	for k := range b.n.Interfaces {
		x := &b.n.Interfaces[k]
		if x.Chains = x.Chains && x.Frame > 0 && x.MTU+etherHeader > x.Frame; x.Chains {
			// the file allows it, and it comes to that
			x.Places["chains"] = x.Places["mtu"]
		}
	}
}

func (b *builder) region(i int) {
	r := &b.c.Regions[i]
	if r.Kind == "" || r.Bytes() <= 0 || !r.Owned { // a placeholder, or the program's own
		return
	}
	m := Memory{Name: r.Name, Kind: r.Kind, Bytes: uint64(r.Bytes()), Node: AnyNode,
		At: b.place("memory_regions[%d]", i)}
	named := false
	for k := range b.c.Interfaces {
		p := &b.c.Interfaces[k]
		if !uses(p, r.Name) {
			continue
		}
		named = true
		m.Locked = m.Locked || wants(string(p.Engine)).Pins
		if name := b.names[p.Name]; name != "" && !slices.Contains(m.Interfaces, name) {
			m.Interfaces = append(m.Interfaces, name)
		}
	}
	if !named { // connections over RDMA name their memory when they use it
		m.Locked = slices.ContainsFunc(b.c.Interfaces, func(p config.Interface) bool {
			return wants(string(p.Engine)).RDMA && wants(string(p.Engine)).IP
		})
	}
	switch r.Kind {
	case "device", "host_pinned":
		if b.c.GPURuntime == "host" {
			m.Kind = "host" // which stands in for a GPU
			break
		} else if b.c.GPURuntime == "opencl" {
			break // it numbers its devices, processors among them, itself: the plan of package system asks it
		}
		m.GPU = fmt.Sprint(r.GPU)
		if !slices.Contains(b.n.GPUs, m.GPU) {
			b.n.GPUs = append(b.n.GPUs, m.GPU)
		}
	case "huge":
		m.Page, m.Fallback = uint64(r.PageSize), r.Fallback
		fallthrough
	default:
		m.Node = max(r.NUMA, AnyNode)
	}
	b.n.Memory = append(b.n.Memory, m)
}

// uses reports whether a queue of an interface, or a reorder plan, has its packets in a region.
func uses(p *config.Interface, region string) bool {
	if p.Rx != nil {
		for k := range p.Rx.Queues {
			if slices.Contains(p.Rx.Queues[k].Regions, region) {
				return true
			}
		}
		for k := range p.Rx.Reorder {
			if p.Rx.Reorder[k].Region == region {
				return true
			}
		}
	}
	return p.Tx != nil && slices.ContainsFunc(p.Tx.Queues, func(q config.TxQueue) bool {
		return slices.Contains(q.Regions, region)
	})
}

func (b *builder) cores() {
	for _, u := range b.c.CoreUses() {
		x := Use{Core: u.Core, What: u.What, Polls: u.Polls, At: b.place("%s", u.Path)}
		if name := b.names[u.Interface]; slices.ContainsFunc(b.n.Interfaces, func(i Interface) bool {
			return i.Name == name
		}) {
			x.Interface = name
		}
		b.n.Uses = append(b.n.Uses, x)
		if !slices.Contains(b.n.Cores, u.Core) {
			b.n.Cores = append(b.n.Cores, u.Core)
		}
	}
	slices.Sort(b.n.Cores)
}

// located are the needs with the interfaces that the addresses of sockets are on; addrs is nil
// where the machine's addresses are not known.
func (n Needs) located(addrs map[netip.Addr]string) Needs {
	n.Interfaces, n.Sockets = slices.Clone(n.Interfaces), slices.Clone(n.Sockets)
	for i := range n.Sockets {
		s := &n.Sockets[i]
		a, err := netip.ParseAddr(s.Local)
		switch {
		case err != nil:
			continue
		case a.IsLoopback(): // which every machine has
			s.Looked, s.Interface = true, "lo"
			continue
		}
		s.Looked, s.Interface = addrs != nil, addrs[a.WithZone("")]
		if s.Interface == "" || s.Engine == "" {
			continue
		}
		if !slices.ContainsFunc(n.Interfaces, func(x Interface) bool {
			return x.Name == s.Interface && x.Engine == s.Engine
		}) {
			n.Interfaces = append(n.Interfaces, Interface{Name: s.Interface, Engine: s.Engine, At: s.Places["local"]})
		}
	}
	return n
}

// addresses are the IP addresses of this machine with the interface that each is on; nil where they
// cannot be read.
func addresses() map[netip.Addr]string {
	out := map[netip.Addr]string{}
	links, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, l := range links {
		all, _ := l.Addrs() // an interface that went away has none
		for _, a := range all {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				out[p.Addr().Unmap().WithZone("")] = l.Name
			}
		}
	}
	return out
}
