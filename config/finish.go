package config

import (
	"fmt"
	"math/bits"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"go.yaml.in/yaml/v3"
)

// legacy is what DAQIRI says of all interfaces at once.
type legacy struct {
	stream, loopback *given
}

// from notes that a value came from the place of another key.
func (d *decoder) from(path string, g *given) {
	n := d.resolve(g.value)
	if n == nil {
		return
	}
	d.cfg.note(path, Source{Origin: FromFile, At: posOf(n), Width: widthOf(n), Text: n.Value})
}

// both reports an old key beside the one that replaced it.
func (d *decoder) both(c *cursor, old, now string) bool {
	a, b := c.got[old], c.got[now]
	if a == nil || b == nil {
		return false
	}
	d.related(d.add(Error, CodeConflict, posOf(a.at), widthOf(a.at), join(c.path, now),
		fmt.Sprintf("%s and %s are both there", a.at.Value, b.at.Value), "one of them", "remove "+a.at.Value),
		posOf(b.at), b.at.Value+" is here")
	return true
}

func finishRoot(d *decoder, c *cursor) {
	cfg := d.cfg
	if g := c.is("log_level"); g != nil {
		if cfg.given("logging.level") {
			d.report(Error, CodeConflict, "logging.level", "log_level and logging: level are both there", "one of them",
				"remove log_level")
		} else {
			cfg.Logging.Level = g.parsed.(string)
			d.from("logging.level", g)
		}
	}
	if cfg.dialect != Ours && cfg.Engine != Auto && cfg.Engine.fabric() && cfg.Engine.Built() {
		d.report(Error, CodeRemovedKey, "engine", "engine: rdma is not read any more",
			"default, dpdk, ibverbs or socket", "addresses with roce:// choose it")
		cfg.Engine = Auto
	}
	d.legacy = legacy{c.is("stream_type"), c.is("loopback")}
	if d.legacy.stream == nil && c.lacks("stream_type") && cfg.dialect != Ours {
		d.add(Warning, CodeMissingKey, posOf(c.node), 1, "", "the configuration has no stream_type", "raw or socket",
			"DAQIRI needs it; here the addresses say it")
	}
	if g := d.legacy.loopback; g != nil && g.parsed == "" {
		d.legacy.loopback = nil
	}
}

func finishRegion(d *decoder, c *cursor) {
	r := c.v.Addr().Interface().(*Region)
	onGPU := r.OnGPU()
	if g := c.is("affinity"); g != nil && !d.both(c, "affinity", "numa") && !d.both(c, "affinity", "gpu") {
		n := int(g.parsed.(int64))
		switch {
		case onGPU:
			r.GPU = n
			d.from(join(c.path, "gpu"), g)
		case n > 1023:
			d.add(Error, CodeValue, posOf(g.value), widthOf(g.value), join(c.path, "numa"),
				fmt.Sprintf("affinity: there is no NUMA node %d", n), "a whole number from 0 to 1023", "")
		default:
			r.NUMA = n
			d.from(join(c.path, "numa"), g)
		}
	}
	if r.Kind != "" {
		if g := c.is("numa"); g != nil && onGPU {
			d.add(Warning, CodeNoEffect, posOf(g.at), widthOf(g.at), join(c.path, "numa"),
				fmt.Sprintf("numa says nothing of memory of kind %s", r.Kind), "", "gpu says where it is")
		}
		if g := c.is("gpu"); g != nil && !onGPU {
			d.add(Warning, CodeNoEffect, posOf(g.at), widthOf(g.at), join(c.path, "gpu"),
				fmt.Sprintf("gpu says nothing of memory of kind %s", r.Kind), "", "numa says where it is")
		}
		for _, name := range []string{"page_size", "fallback"} {
			if g := c.is(name); g != nil && r.Kind != "huge" {
				d.add(Warning, CodeNoEffect, posOf(g.at), widthOf(g.at), join(c.path, name),
					fmt.Sprintf("%s says nothing of memory of kind %s", name, r.Kind), "", "it is for kind: huge")
			}
		}
	}
	if r.PageSize != 2<<20 && r.PageSize != 1<<30 {
		d.report(Error, CodeValue, join(c.path, "page_size"),
			fmt.Sprintf("page_size: there are no huge pages of %v", r.PageSize), "2MiB or 1GiB", "")
	}
	if bits.OnesCount64(uint64(r.Align)) != 1 {
		d.report(Error, CodeValue, join(c.path, "align"), fmt.Sprintf("align: %v is not a power of two", r.Align),
			"64B, 2KiB or 4KiB, say", "")
	}
}

func finishInterface(d *decoder, c *cursor) {
	i := c.v.Addr().Interface().(*Interface)
	if c.lacks("address") && i.Socket == nil && !d.unread(join(c.path, "socket"), join(c.path, "socket.mode")) {
		d.add(Error, CodeMissingKey, posOf(c.node), 1, join(c.path, "address"), "an interface has no address",
			"an address, or a section "+c.sec.byName["socket"].written(d.cfg.dialect), "add it")
	}
	if i.Rx == nil && i.Tx == nil && c.lacks("rx") && c.lacks("tx") {
		d.add(Warning, CodeMissingKey, posOf(c.node), 1, c.path, "an interface has neither rx nor tx", "",
			"nothing can be received or sent on it")
	}
}

func finishSocket(d *decoder, c *cursor) {
	s := c.v.Addr().Interface().(*Socket)
	if c.got["mode"] == nil && (d.cfg.dialect != Ours || slices.ContainsFunc([]string{"local", "remote", "local_ip",
		"local_port", "remote_ip", "remote_port"}, func(k string) bool {
		return c.got[k] != nil
	})) {
		d.breaks(join(c.path, "mode"))
		if !c.typo["mode"] {
			d.add(Error, CodeMissingKey, posOf(c.node), 1, c.path, "socket has no mode", "", "add it")
		}
	}
	for _, side := range []struct {
		to       string
		e        *Endpoint
		ip, port string
	}{{"local", &s.Local, "local_ip", "local_port"}, {"remote", &s.Remote, "remote_ip", "remote_port"}} {
		if d.both(c, side.ip, side.to) || d.both(c, side.port, side.to) {
			continue
		}
		if g := c.is(side.ip); g != nil {
			side.e.Scheme, side.e.Host = "udp", g.parsed.(netip.Addr)
			d.from(join(c.path, side.to), g)
		}
		if g := c.is(side.port); g != nil {
			side.e.Scheme, side.e.Port = "udp", int(g.parsed.(int64))
			if c.is(side.ip) == nil {
				d.from(join(c.path, side.to), g)
			}
		}
	}
}

// finishMatch takes over what DAQIRI writes differently.
func finishMatch(d *decoder, c *cursor) {
	m := c.v.Addr().Interface().(*Match)
	if g := c.is("ethernet"); g != nil {
		d.ethernet(c, m, g)
	}
	if d.cfg.dialect != Ours {
		for i, r := range []*flow.Opt[flow.Range]{&m.UDPSrc, &m.UDPDst, &m.IPLen} {
			name := []string{"udp_src", "udp_dst", "ip_len"}[i]
			if g := c.is(name); g != nil && r.Set && r.Value == (flow.Range{}) {
				*r = flow.Opt[flow.Range]{}
				d.add(Note, CodeMeaning, posOf(g.value), widthOf(g.value), join(c.path, name),
					g.at.Value+": 0 means any in DAQIRI's files, so the flow does not match on it", "",
					"remove the key")
			}
		}
	}
	for _, name := range []string{"val", "mask"} {
		if g := c.is(name); g != nil && c.lacks("flex_item_id") {
			d.add(Error, CodeMissingKey, posOf(g.at), widthOf(g.at), join(c.path, name), name+" without flex_item_id",
				"the flex item that is meant", "")
		}
	}
	if g := c.is("flex_item_id"); g != nil && c.lacks("val") {
		d.add(Error, CodeMissingKey, posOf(g.at), widthOf(g.at), join(c.path, "val"), "flex_item_id without val",
			"the bits that it must have", "")
	}
	for _, pair := range [][2]string{{"udp_src", "tcp_dst"}, {"udp_src", "tcp_src"}, {"udp_dst", "tcp_src"},
		{"udp_dst", "tcp_dst"}} {
		a, b := c.is(pair[0]), c.is(pair[1])
		if a != nil && b != nil {
			d.related(d.add(Error, CodeConflict, posOf(b.at), widthOf(b.at), join(c.path, pair[1]),
				fmt.Sprintf("no packet has %s and %s", pair[0], pair[1]), "one of them", "make two flows"), posOf(a.at),
				pair[0]+" is here")
			break
		}
	}
}

// rename gives the one identifier of a message the name that it has in messages of its type, and
// returns the names it had and has: DAQIRI takes both.
func (e *ECPRI) rename() (from, to string) {
	switch {
	case !e.Type.Set || e.Type.Value > 2 || e.PCID.Set == e.RTCID.Set:
	case e.Type.Value == 2 && e.PCID.Set:
		e.PCID, e.RTCID = e.RTCID, e.PCID
		return "pc_id", "rtc_id"
	case e.Type.Value < 2 && e.RTCID.Set:
		e.PCID, e.RTCID = e.RTCID, e.PCID
		return "rtc_id", "pc_id"
	}
	return "", ""
}

func finishECPRI(d *decoder, c *cursor) {
	if from, to := c.v.Addr().Interface().(*ECPRI).rename(); from != "" {
		d.from(join(c.path, to), c.got[from])
	}
}

type etherMatch struct {
	Src flow.Opt[packet.MAC] `cfg:"src"`
	Dst flow.Opt[packet.MAC] `cfg:"dst"`
}

// etherSection is DAQIRI's ethernet below match.
var etherSection = sync.OnceValue(func() *section {
	s := &section{name: "ethernet", title: "ethernet",
		keys: []key{{name: "src", kind: macAddress()}, {name: "dst", kind: macAddress()}}}
	s.resolve(reflect.TypeFor[etherMatch](), map[string]bool{})
	return s
})

func (d *decoder) ethernet(c *cursor, m *Match, g *given) {
	n := d.resolve(g.value)
	if n == nil {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.typed(n, join(c.path, "ethernet"), "ethernet", "a map with src and dst", "")
		return
	}
	if d.both(c, "ethernet", "eth_src") || d.both(c, "ethernet", "eth_dst") {
		return
	}
	var e etherMatch
	path := join(c.path, "ethernet")
	d.section(n, etherSection(), reflect.ValueOf(&e).Elem(), path, nil)
	m.EthSrc, m.EthDst = e.Src, e.Dst
	for _, from := range []string{"src", "dst"} {
		to := "eth_" + from
		if s, ok := d.cfg.sources[join(path, from)]; ok {
			d.cfg.note(join(c.path, to), s)
			delete(d.cfg.sources, join(path, from))
		}
	}
}

// uses says which keys mean something for an action.
var uses = map[string][]string{
	"queue":        {"id", "ids"},
	"vlan_push":    {"vlan_id", "pcp", "dei", "ethertype"},
	"tunnel_decap": {"tunnel"},
	"tunnel_encap": {"tunnel"},
}

func finishAction(d *decoder, c *cursor) {
	a := c.v.Addr().Interface().(*Action)
	if a.Type == "" {
		return
	}
	for i := range c.sec.keys {
		name := c.sec.keys[i].name
		if g := c.is(name); g != nil && name != "type" && !slices.Contains(uses[a.Type], name) {
			d.add(Error, CodeConflict, posOf(g.at), widthOf(g.at), join(c.path, name),
				fmt.Sprintf("the action %s takes no %s", a.Type, name), "", usesHint(a.Type))
		}
	}
	need := func(name string) {
		if c.lacks(name) {
			d.add(Error, CodeMissingKey, posOf(c.node), 1, join(c.path, name),
				fmt.Sprintf("the action %s has no %s", a.Type, name), "", "add it")
		}
	}
	switch a.Type {
	case "queue":
		id, ids := c.got["id"], c.got["ids"]
		switch {
		case id != nil && ids != nil:
			d.related(d.add(Error, CodeConflict, posOf(ids.at), widthOf(ids.at), join(c.path, "ids"),
				"id and ids are both there", "id for one queue, ids for several", ""), posOf(id.at), "id is here")
		case c.lacks("id") && c.lacks("ids"):
			d.add(Error, CodeMissingKey, posOf(c.node), 1, c.path, "the action queue names no queue",
				"id for one queue, ids for several", "add it")
		case ids != nil && !ids.unset && len(a.IDs) == 1 && !d.unread(item(join(c.path, "ids"), 0)):
			a.ID, a.IDs = flow.Some(a.IDs[0]), nil
			d.cfg.note(join(c.path, "id"), d.cfg.sources[item(join(c.path, "ids"), 0)])
		case ids != nil && !ids.unset && (len(a.IDs) == 0 || len(a.IDs) > flow.IndirectionEntries):
			d.add(Error, CodeValue, posOf(ids.value), 1, join(c.path, "ids"),
				fmt.Sprintf("ids has %s", plural(len(a.IDs), "queue")), fmt.Sprintf("1 to %d", flow.IndirectionEntries),
				"")
		}
	case "vlan_push":
		need("vlan_id")
		if !a.TPID.IsTag() {
			d.report(Error, CodeValue, join(c.path, "ethertype"),
				fmt.Sprintf("ethertype: 0x%04x is not that of a tag", uint16(a.TPID)), "0x8100, 0x88a8 or 0x9100", "")
			d.breaks(join(c.path, "ethertype"))
		}
	case "tunnel_decap", "tunnel_encap":
		need("tunnel")
	}
}

func usesHint(action string) string {
	if u := uses[action]; len(u) > 0 {
		return action + " uses " + strings.Join(u, ", ")
	}
	return action + " has no settings"
}

func finishMethod(d *decoder, c *cursor) {
	a, b := c.got["seq_batch_number"], c.got["seq_packets_per_batch"]
	switch {
	case a != nil && b != nil:
		d.related(d.add(Error, CodeConflict, posOf(b.at), widthOf(b.at), c.path,
			"method has seq_batch_number and seq_packets_per_batch", "exactly one of them", "remove one"), posOf(a.at),
			"the other is here")
	case c.lacks("seq_batch_number") && c.lacks("seq_packets_per_batch"):
		d.add(Error, CodeMissingKey, posOf(c.node), 1, c.path,
			"method has neither seq_batch_number nor seq_packets_per_batch", "exactly one of them", "")
	}
}
