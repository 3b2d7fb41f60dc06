package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/input"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/transfer/path"
)

// Check completes a Config that a program wrote (engines, names, depths; what Load does for a file)
// and says what is wrong with it. There are no places in a file then: Diagnostic.Path says what is
// meant. host may be nil.
func (c *Config) Check(host *Host) Diagnostics {
	d := &decoder{cfg: c, broken: map[string]bool{}, around: map[string]bool{}}
	c.derive(nil)
	d.check(host)
	d.diags.Sort()
	return d.diags
}

// report adds a diagnostic about the value at a path, or the section around it.
func (d *decoder) report(s Severity, code Code, path, message, expected, hint string) int {
	at := d.cfg.nearestSource(path)
	return d.add(s, code, at.At, max(1, at.Width), path, message, expected, hint)
}

// also is a related place, by path.
func (d *decoder) also(i int, path, text string) { d.related(i, d.cfg.nearestSource(path).At, text) }

func (d *decoder) region(name string) (*Region, int) {
	if i, ok := d.regions[name]; ok {
		return &d.cfg.Regions[i], i
	}
	return nil, -1
}

// regionNames are the names of the regions, each once.
func (d *decoder) regionNames() (out []string) {
	for i := range d.cfg.Regions {
		if n := d.cfg.Regions[i].Name; n != "" && d.regions[n] == i {
			out = append(out, n)
		}
	}
	return out
}

func (d *decoder) iface(name string) (*Interface, int) {
	if i, ok := d.ifaces[name]; ok {
		return &d.cfg.Interfaces[i], i
	}
	return nil, -1
}

// index notes where names are.
func (d *decoder) index() {
	d.regions, d.ifaces = map[string]int{}, map[string]int{}
	for i := range d.cfg.Regions {
		if _, there := d.regions[d.cfg.Regions[i].Name]; !there {
			d.regions[d.cfg.Regions[i].Name] = i
		}
	}
	for i := range d.cfg.Interfaces {
		if _, there := d.ifaces[d.cfg.Interfaces[i].Name]; !there {
			d.ifaces[d.cfg.Interfaces[i].Name] = i
		}
	}
}

// check is everything that takes more than one key.
func (d *decoder) check(h *Host) {
	c := d.cfg
	d.index()
	d.unique("memory_regions", "a memory region", len(c.Regions), func(i int) string { return c.Regions[i].Name })
	d.unique("interfaces", "an interface", len(c.Interfaces), func(i int) string { return c.Interfaces[i].Name })
	d.unique("applications", "an application", len(c.Applications), func(i int) string {
		return c.Applications[i].Name
	})
	d.checkStream()
	used := map[string]bool{}
	for i := range c.Interfaces {
		d.checkPort(&c.Interfaces[i], item("interfaces", i), used)
	}
	for i := range c.Regions {
		d.checkRegion(&c.Regions[i], item("memory_regions", i), used)
	}
	d.checkShares()
	d.checkCores()
	d.checkApplications()
	d.checkBenches()
	d.checkNode()
	if h != nil {
		d.checkHost(h)
	}
}

// unique reports names that are there twice.
func (d *decoder) unique(path, what string, n int, name func(int) string) {
	first := map[string]int{}
	for i := range n {
		s := name(i)
		if s == "" || d.cfg.sources[join(item(path, i), "name")].Origin == FromRule {
			continue
		}
		if k, twice := first[s]; twice {
			d.also(d.report(Error, CodeDuplicate, join(item(path, i), "name"), fmt.Sprintf("%s is called %s already",
				what, shown(s)), "another name", ""), join(item(path, k), "name"), "it is here first")
			continue
		}
		first[s] = i
	}
}

// uniqueID reports numbers that are there twice.
func (d *decoder) uniqueID(path, key, what string, n int, id func(int) int, zero bool) {
	first := map[int]int{}
	for i := range n {
		v := id(i)
		if v == 0 && !zero || d.broken[join(item(path, i), key)] {
			continue
		}
		if k, twice := first[v]; twice {
			d.also(d.report(Error, CodeDuplicate, join(item(path, i), key), fmt.Sprintf("%s has the %s %d already",
				what, key, v), "another number", ""), join(item(path, k), key), "it is here first")
			continue
		}
		first[v] = i
	}
}

// checkStream compares what DAQIRI's file says of all interfaces.
func (d *decoder) checkStream() {
	c, s := d.cfg, d.legacy.stream
	if s == nil {
		return
	}
	stream := s.parsed.(string)
	conflict := func(path, message, expected, hint string) {
		d.related(d.report(Error, CodeConflict, path, message, expected, hint), posOf(s.value), "stream_type is here")
	}
	// DAQIRI's engine ibverbs carries both: frames here (verbs), connections by addresses with
	// roce://.
	if e := c.Engine.Spec(); e != nil && (stream == "socket" && e.Capabilities.Frames && !e.Needs.RDMA ||
		stream == "raw" && !e.Capabilities.Frames && !e.Needs.RDMA) {
		conflict("engine", fmt.Sprintf("engine: %s does not carry stream_type: %s", e.Name, stream),
			map[string]string{"socket": "default, socket or ibverbs",
				"raw": "default, ibverbs, dpdk, xdp or afpacket"}[stream], "")
	}
	for i := range c.Interfaces {
		p := &c.Interfaces[i]
		path := item("interfaces", i)
		switch {
		case stream == "socket" && p.Socket == nil && p.Sections == nil && !d.unclear(path) &&
			!strings.Contains(p.Address, "://"):
			conflict(path, fmt.Sprintf("stream_type is socket, and the interface %s has no socket_config",
				shown(p.Name)), "", "add it, or write stream_type: raw")
		case stream == "raw" && p.Socket != nil:
			conflict(join(path, "socket"), fmt.Sprintf("stream_type is raw, and the interface %s has a socket_config",
				shown(p.Name)), "", "remove it, or write stream_type: socket")
		}
	}
	if l := d.legacy.loopback; l != nil && l.parsed == "sw" && len(c.Interfaces) != 1 && !d.unread("interfaces") {
		d.add(Error, CodeConflict, posOf(l.value), widthOf(l.value), "loopback", fmt.Sprintf("loopback: sw with %s",
			plural(len(c.Interfaces), "interface")), "one interface, whose tx leads to its rx",
			"with engine: sim several interfaces can be joined")
	}
}

func (d *decoder) checkPort(p *Interface, path string, used map[string]bool) {
	d.checkEngine(p, path)
	d.checkSocket(p, path)
	if p.Rx != nil {
		d.checkRx(p, join(path, "rx"), used)
		d.checkRoom(p, path, p.MTU, "the MTU")
	}
	if p.Tx != nil {
		d.checkTx(p, join(path, "tx"), used)
	}
}

func (d *decoder) checkSocket(p *Interface, path string) {
	s := p.Socket
	if s == nil || s.Mode == "" {
		return
	}
	path = join(path, "socket")
	local, remote := join(path, "local"), join(path, "remote")
	names := [2]string{"local", "remote"}
	if d.cfg.dialect != Ours {
		names = [2]string{"local_addr", "remote_addr"}
	}
	bad := func(at, message, expected, hint string) { d.report(Error, CodeConflict, at, message, expected, hint) }
	broken := d.around[path] // what could not be read was reported
	if l, r := s.Local.Scheme, s.Remote.Scheme; l != "" && r != "" && l != r {
		d.also(d.report(Error, CodeConflict, remote, fmt.Sprintf("%s is of %s, and %s of %s", names[0], l, names[1], r),
			"one protocol", ""), local, names[0]+" is here")
	}
	switch {
	case broken:
	case s.Mode == "server" && (s.Local.IsZero() || s.Local.Port == 0):
		bad(local, fmt.Sprintf("the server %s has no port to be reached at", shown(p.Name)),
			names[0]+" with a port, such as udp://10.0.0.1:5000", "")
	case s.Mode == "client" && p.Engine.needs().RDMA && !s.Remote.IsZero() && d.cfg.dialect != Ours:
		bad(remote, fmt.Sprintf("the client %s has %s", shown(p.Name), names[1]),
			"none: an RDMA client gets the address when it connects", "remove it")
	case s.Mode == "client" && p.Engine.needs().Buffers && (s.Remote.Port == 0 || !s.Remote.Host.IsValid()):
		bad(remote, fmt.Sprintf("the client %s does not know its server", shown(p.Name)),
			names[1]+" with a host and a port, such as udp://10.0.0.1:5000", "")
	}
	if s.Local.Host.IsValid() && s.Remote.Host.IsValid() && s.Local.Host.Unmap().Is4() != s.Remote.Host.Unmap().Is4() {
		d.also(d.report(Error, CodeConflict, remote, fmt.Sprintf("%s and %s are of different IP versions", s.Local.Host,
			s.Remote.Host), "both IPv4 or both IPv6", ""), local, names[0]+" is here")
	}
	if a, err := netip.ParseAddr(p.Address); err == nil && d.cfg.dialect != Ours && s.Local.Host.IsValid() &&
		a != s.Local.Host {
		d.also(d.report(Warning, CodeConflict, join(path[:strings.LastIndexByte(path, '.')], "address"),
			fmt.Sprintf("address is %v, and %s is %v", a, names[0], s.Local.Host), "the same", ""), local,
			names[0]+" is here")
	}
	if n, _ := strconv.Atoi(p.Sections[socketSectionName]["max_payload_size"]); n > 65507 &&
		(s.Local.Scheme == "udp" || s.Remote.Scheme == "udp") {
		d.report(Warning, CodeValue, join(path, "max_payload_size"),
			fmt.Sprintf("max_payload_size: no datagram has a payload of %d bytes", n), "at most 65507",
			"longer ones are refused when they are sent")
	}
}

func (d *decoder) checkRegion(r *Region, path string, used map[string]bool) {
	if r.Kind != "" && r.BufSize > 0 && r.NumBufs > 0 && r.Bytes() > 1<<44 {
		d.report(Error, CodeValue, join(path, "num_bufs"), fmt.Sprintf("the region takes %s", about(int64(r.Bytes()))),
			"at most 16 TiB", "")
	}
	if !r.Owned && d.cfg.sources != nil {
		d.report(Note, CodeMeaning, join(path, "owned"),
			fmt.Sprintf("the memory of %s is the program's: it gives it when it opens the configuration",
				shown(r.Name)), "", "")
	}
	for k, a := range r.Access {
		if a != "local" && a != "" { // what cannot be read is empty
			d.report(Needs, CodeNotBuilt, join(path, item("access", k)),
				fmt.Sprintf("access: %s of %s: no peer reads or writes the memory of streams over RDMA", a,
					shown(r.Name)), "local",
				"remove it: transfers export memory by name")
		}
	}
	if !used[r.Name] && r.Name != "" && len(d.cfg.Interfaces) > 0 && !d.connected() &&
		!d.unread("interfaces", "interfaces.rx", "interfaces.tx", "interfaces.rx.queues", "interfaces.tx.queues",
			"interfaces.rx.queues.memory_regions", "interfaces.tx.queues.memory_regions") {
		d.report(Warning, CodeReference, path, fmt.Sprintf("no queue uses the memory region %s", shown(r.Name)), "",
			"it would be allocated all the same: remove it, or name it in a queue")
	}
}

// connected reports whether an interface is for RDMA connections, whose memory is named when it is
// used.
func (d *decoder) connected() bool {
	return slices.ContainsFunc(d.cfg.Interfaces, func(p Interface) bool { return p.Engine.fabric() })
}

// interfaceAt is the path of the interface that something is in.
func interfaceAt(path string) string { return path[:strings.IndexByte(path, ']')+1] }

// regionsOf checks the regions that a queue names.
func (d *decoder) regionsOf(p *Interface, names []string, path string, depth, batch int, used map[string]bool) {
	at := join(path, "memory_regions")
	switch {
	case len(names) > 2:
		d.report(Error, CodeValue, at, fmt.Sprintf("memory_regions has %s", plural(len(names), "region")),
			"one, or two: headers and payload",
			"DAQIRI takes up to four and cuts each packet by the buf_size of each; here all that follows the headers "+
				"is one segment: add the sizes up in the second region")
	case len(names) == 0 && p.Engine.lends() && strings.Contains(path, "].rx."):
	case len(names) == 0 && !p.Engine.fabric() && !d.broken[at] && !d.unclear(interfaceAt(path)):
		if s, ok := d.cfg.sources[at]; !ok || s.At.IsZero() || d.cfg.sources == nil {
			d.report(Error, CodeMissingKey, path, "a queue has no memory_regions",
				"the name of a region of memory_regions", "")
		} else {
			d.report(Error, CodeMissingKey, at, "memory_regions is empty", "the name of a region", "")
		}
	}
	if len(names) == 0 && p.Engine.fabric() && p.Engine.Built() && !d.broken[at] {
		d.report(Needs, CodeMissingKey, path,
			"the queue names no memory_regions, and the names of the regions do not say which is meant",
			"the name of a region of memory_regions", "")
	}
	if len(names) == 2 {
		if r, i := d.region(names[0]); r != nil && r.Kind == "device" {
			d.also(d.report(Error, CodeConflict, item(at, 0),
				fmt.Sprintf("headers would be in %s, which is device memory: the processor reads headers", names[0]),
				"a region of kind host, huge or host_pinned first, then the payload's",
				"one region of kind device takes whole packets"), join(item("memory_regions", i), "kind"),
				"its kind is here")
		}
	}
	for k, name := range names[:min(len(names), 16)] {
		if name == "" || d.full() {
			continue
		}
		here := item(at, k)
		r, i := d.region(name)
		if r == nil {
			if d.unread("memory_regions", "memory_regions.name") {
				continue // what it names may be one that could not be read
			}
			known := d.regionNames()
			hint := "add it below memory_regions"
			if near := input.Nearest(name, known); near != "" {
				hint = fmt.Sprintf("did you mean %s?", near)
				used[near] = true
			}
			expected := listed(known)
			if len(known) == 0 {
				expected = ""
			}
			d.report(Error, CodeReference, here, fmt.Sprintf("there is no memory region %s", shown(name)), expected,
				hint)
			continue
		}
		used[name] = true
		if r.NumBufs == 0 {
			continue
		}
		slots := join(item("memory_regions", i), "num_bufs")
		if depth > r.NumBufs && !d.broken[join(path, "depth")] {
			d.also(d.report(Error, CodeConflict, join(path, "depth"),
				fmt.Sprintf("depth %d is more than the %d slots of %s", depth, r.NumBufs, name),
				fmt.Sprintf("at most %d, better half of it", r.NumBufs),
				"the ring can never be full: make num_bufs larger, or depth smaller"), slots, "num_bufs is here")
		}
		if batch > r.NumBufs && !d.broken[join(path, "batch_size")] {
			d.also(d.report(Error, CodeConflict, join(path, "batch_size"),
				fmt.Sprintf("batch_size %d is more than the %d slots of %s", batch, r.NumBufs, name),
				fmt.Sprintf("at most %d", r.NumBufs),
				"no burst can ever be full: make num_bufs larger, or batch_size smaller"), slots, "num_bufs is here")
		}
	}
}

// checkShares looks at regions that several queues take from.
func (d *decoder) checkShares() {
	type sum struct{ depth, queues int }
	sums := map[string]*sum{}
	var order []string
	for i := range d.cfg.Interfaces {
		for _, q := range d.cfg.Interfaces[i].queues(item("interfaces", i)) {
			for _, name := range *q.regions {
				if sums[name] == nil {
					sums[name] = &sum{}
					order = append(order, name)
				}
				s := sums[name]
				s.depth, s.queues = s.depth+*q.depth, s.queues+1
			}
		}
	}
	for _, name := range order {
		s := sums[name]
		if r, i := d.region(name); r != nil && s.queues > 1 && s.depth > r.NumBufs && r.NumBufs > 0 {
			d.report(Warning, CodeConflict, join(item("memory_regions", i), "num_bufs"),
				fmt.Sprintf("the %d queues that share %s can hold %d packets at once, and it has %d slots", s.queues,
					shown(name), s.depth, r.NumBufs),
				fmt.Sprintf("%d or more, or smaller depths", s.depth), "one queue can take what the other needs")
		}
	}
}

// checkNode looks at transfers, security, registry and metrics.
func (d *decoder) checkNode() {
	if s := d.cfg.Security; s != nil {
		if _, err := path.ParseUsers(s.AllowUID); err != nil {
			d.report(Error, CodeValue, "security.allow_uid", err.Error(), "user numbers such as \"1000,1001\", or any",
				"")
		}
	}
	c := d.cfg
	if c.Metrics != nil && c.Metrics.Listen != "" {
		if _, _, err := net.SplitHostPort(c.Metrics.Listen); err != nil {
			d.report(Error, CodeValue, "metrics.listen",
				fmt.Sprintf("listen: %s is not a host and a port", shown(c.Metrics.Listen)),
				"both, such as 127.0.0.1:9095", "")
		}
	}
	if c.Registry != nil && c.Registry.URL != "" {
		scheme, _, ok := strings.Cut(c.Registry.URL, "://")
		if !ok || scheme != "etcd" && scheme != "file" && scheme != "p2p" {
			d.report(Error, CodeValue, "registry.url", fmt.Sprintf("url: %s names no registry", shown(c.Registry.URL)),
				"etcd://HOST:PORT, file:///DIR or p2p://", "")
		} else {
			d.report(Needs, CodeNotBuilt, "registry", "registries are not built", "",
				"transfers: peers: names the nodes until then")
		}
	}
	t := c.Transfers
	if t == nil {
		return
	}
	d.unique("transfers.peers", "a peer", len(t.Peers), func(i int) string { return t.Peers[i].Name })
	if t.DeadAfter > 0 && t.DeadAfter <= t.HeartbeatEvery {
		d.also(d.report(Error, CodeConflict, "transfers.dead_after",
			fmt.Sprintf("a peer would be given up after %s, and signs of life come every %s", duration(t.DeadAfter),
				duration(t.HeartbeatEvery)), "dead_after of two heartbeats or more", ""),
			"transfers.heartbeat", "heartbeat is here")
	}
	if t.Window == 1 {
		d.report(Error, CodeValue, "transfers.window", "window: 1 is too small: one operation is kept for revocations",
			"0, or 2 to 65535", "")
	}
	d.checkPaths(t)
	insecure := c.Security != nil && c.Security.Insecure
	known := c.Security != nil
	address := func(path, a string, listens bool) {
		scheme, rest, ok := strings.Cut(a, "://")
		if !ok || scheme != "tcp" && scheme != "unix" || rest == "" {
			d.report(Error, CodeValue, path, fmt.Sprintf("%s is not an address of a node", shown(a)),
				"tcp://HOST:PORT or unix:///PATH", "")
			return
		}
		if scheme == "unix" {
			return
		}
		host, port, err := net.SplitHostPort(rest)
		if err != nil || port == "" {
			d.report(Error, CodeValue, path, fmt.Sprintf("%s has no port", shown(a)), "tcp://HOST:PORT", "")
			return
		}
		ip, err := netip.ParseAddr(host)
		local := host == "localhost" || err == nil && ip.IsLoopback()
		if !local && !insecure && !known {
			what := "is reached beyond this machine"
			if listens {
				what = "can be reached from beyond this machine"
			}
			d.report(Warning, CodeConflict, path, fmt.Sprintf("%s %s, and there is no section security", shown(a),
				what), "security: {identity: DIR}",
				"penstock pair makes an identity; without one the node refuses such addresses")
		}
	}
	for i, a := range t.Listen {
		address(item("transfers.listen", i), a, true)
	}
	for i := range t.Peers {
		if d.broken[item("transfers.peers", i)+".address"] {
			continue
		}
		address(item("transfers.peers", i)+".address", t.Peers[i].Address, false)
	}
	if s := c.Security; s != nil && s.Insecure && s.Floor == "encrypted" {
		d.also(d.report(Error, CodeConflict, "security.insecure", "insecure: true contradicts floor: encrypted", "",
			"remove one of them"), "security.floor", "floor is here")
	}
}

// maxPairs is how many pairs of flows are compared in all: it takes about a microsecond for each,
// and more where they overlap.
const maxPairs = 400 * 400

// validate looks at rules, and at how they meet each other as long as there are not too many.
func (d *decoder) validate(rules []flow.Rule, path string) flow.Problems {
	if d.pairs += len(rules) * len(rules); d.pairs <= maxPairs {
		return flow.Validate(rules)
	}
	d.report(Note, CodeMeaning, path,
		fmt.Sprintf("too many flows (%d) to compare with each other: check does not report flows that hide others",
			len(rules)), "", "")
	var out flow.Problems
	for i := range rules {
		for _, p := range flow.Validate(rules[i : i+1]) {
			p.Rule = i
			out = append(out, p)
		}
	}
	return out
}
