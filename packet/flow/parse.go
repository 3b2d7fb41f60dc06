package flow

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/input"
	"github.com/penstock-io/penstock/packet"
)

// SyntaxError says where a text is not a rule. Line counts from 1 and is 0 when the text was one
// rule; Column counts bytes from 1.
type SyntaxError struct {
	Line, Column int
	Problem      string // what is there, what was expected, how to fix it
}

func (e *SyntaxError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("flow: line %d, column %d: %s", e.Line, e.Column, e.Problem)
	}
	return fmt.Sprintf("flow: column %d: %s", e.Column, e.Problem)
}

// ParseRules reads one rule per line. Empty lines and lines that begin with # are skipped. The
// error joins a *SyntaxError for each line that is not a rule; the rules of the other lines are
// returned with it.
func ParseRules(text string) ([]Rule, error) {
	var rules []Rule
	var errs []error
	n := 0
	for line := range strings.Lines(text) {
		n++
		if s := strings.TrimSpace(line); s == "" || s[0] == '#' {
			continue
		}
		r, err := ParseRule(line)
		var syntax *SyntaxError
		if errors.As(err, &syntax) {
			syntax.Line = n
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		rules = append(rules, r)
	}
	return rules, errors.Join(errs...)
}

// ParseRule reads the text form of a rule:
//
//	rule    = { "id" N | "name" NAME | "prio" N | "mark" N } match "->" action { "," action }
//	match   = "any" | term { term }
//	term    = "eth" { "src" MAC | "dst" MAC | "type" N }
//	        | "vlan" ( N | "untagged" ) | "inner-vlan" ( N | "untagged" )
//	        | "ip" { "src" CIDR | "dst" CIDR | "len" RANGE | "proto" N }
//	        | ( "udp" | "tcp" | "port" ) { "src" RANGE | "dst" RANGE }
//	        | "flex" OFFSET VALUE [ "/" MASK ]
//	        | "ecpri" { "type" N | "pc_id" N | "rtc_id" N }
//	action  = "queue" N | "rss" RANGE { RANGE } | "drop" | "kernel" | "vlan-pop"
//	        | "vlan-push" N { "pcp" N | "dei" N | "tpid" N } | TUNNEL "-decap"
//	        | TUNNEL "-encap" { "eth-src" MAC | "eth-dst" MAC | "ip-src" ADDR | "ip-dst" ADDR | "ttl" N | "tos" N
//	                            | "udp-src" N | "udp-dst" N | "vni" N | "flow-id" N | "proto" N }
//
// Numbers are decimal or 0x; a RANGE is "5" or "5-10"; a NAME that is not a plain word is quoted as
// in Go; a CIDR may be a bare address. "port" asks for ports without saying of which protocol,
// which Validate does not accept: it is there so that every Match has a text. The error is a
// *SyntaxError. ParseRule checks the form; whether the rule makes sense is for Validate.
func ParseRule(text string) (Rule, error) {
	p := parser{text: text}
	var r Rule
	err := p.run(func() {
		p.ruleHead(&r)
		p.match(&r.Match)
		p.expect("->")
		for {
			r.Actions = append(r.Actions, p.action())
			if !p.accept(",") {
				break
			}
		}
		p.end()
	})
	if err != nil {
		return Rule{}, err
	}
	return r, nil
}

// parser walks over words. It fails by panicking with a *SyntaxError, which run catches.
type parser struct {
	text       string
	at         int    // where the next word is looked for
	word       string // the word that peek found, "" at the end
	start      int    // where it begins
	isQuoted   bool
	havePeeked bool
	more       []string // words that could go on with the last term
}

func (p *parser) run(f func()) (err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *SyntaxError:
			err = e
		default:
			panic(e)
		}
	}()
	f()
	return nil
}

func (p *parser) fail(format string, args ...any) {
	panic(&SyntaxError{Column: p.start + 1, Problem: fmt.Sprintf(format, args...)})
}

func (p *parser) peek() string {
	if p.havePeeked {
		return p.word
	}
	p.havePeeked, p.isQuoted = true, false
	rest := p.text[p.at:]
	trimmed := strings.TrimLeft(rest, " \t\r\n")
	p.start = p.at + len(rest) - len(trimmed)
	n := 0
	switch {
	case trimmed == "":
	case trimmed[0] == ',':
		n = 1
	case trimmed[0] == '"':
		q, err := strconv.QuotedPrefix(trimmed)
		if err != nil {
			p.fail("a quoted name does not end")
		}
		p.word, _ = strconv.Unquote(q)
		p.at = p.start + len(q)
		p.isQuoted = true
		return p.word
	case strings.HasPrefix(trimmed, "->"):
		n = 2
	default:
		n = len(trimmed)
		if i := strings.IndexAny(trimmed, " \t\r\n,"); i >= 0 {
			n = i
		}
		if i := strings.Index(trimmed[:n], "->"); i >= 0 {
			n = i
		}
	}
	p.word = trimmed[:n]
	p.at = p.start + n
	return p.word
}

func (p *parser) next() string {
	w := p.peek()
	p.havePeeked = false
	return w
}

func (p *parser) accept(w string) bool {
	if p.peek() == w && !p.isQuoted {
		p.next()
		return true
	}
	return false
}

// oneOf reads the next word if it is one of the words, and returns "" otherwise.
func (p *parser) oneOf(words ...string) string {
	for _, w := range words {
		if p.accept(w) {
			return w
		}
	}
	return ""
}

func (p *parser) expect(w string) {
	if !p.accept(w) {
		p.unexpected(w)
	}
}

func (p *parser) unexpected(expected ...string) {
	w := p.peek()
	if w == "" && !p.isQuoted {
		p.fail("the text ends: expected %s", strings.Join(expected, ", "))
	}
	p.fail("%q: expected %s%s", w, strings.Join(expected, ", "), nearest(w, expected))
}

func (p *parser) end() {
	if p.peek() != "" || p.isQuoted {
		p.fail("%q: expected the end", p.word)
	}
}

// value reads one word and lets f make something of it; errors of f point at the word.
func (p *parser) value(what string, f func(string) error) {
	w := p.peek()
	if p.isQuoted || w == "" || w == "," || w == "->" {
		p.unexpected(what)
	}
	if err := f(w); err != nil {
		p.fail("%s: %v", what, err)
	}
	p.next()
}

func (p *parser) number(what string, limit uint64) (n uint64) {
	p.value(what, func(w string) (err error) { n, err = number(w, limit); return })
	return n
}

func (p *parser) once(set bool, what string) {
	if set {
		p.fail("%s is given twice: a match is an AND, keep one", what)
	}
}

func (p *parser) ruleHead(r *Rule) {
	for {
		switch p.oneOf("id", "name", "prio", "mark") {
		case "id":
			r.ID = uint32(p.number("id", MaxRuleID))
		case "name":
			r.Name = p.peek()
			if !p.isQuoted && (r.Name == "" || r.Name == "," || r.Name == "->") {
				p.unexpected("a name")
			}
			p.next()
		case "mark":
			r.Mark = Some(uint32(p.number("mark", MaxRuleID)))
		case "prio":
			p.value("prio", func(w string) error {
				n, err := strconv.ParseInt(w, 10, 32)
				r.Priority = int32(n)
				if err != nil {
					return fmt.Errorf("%q is not a priority: expected %d to %d", w, -1<<31, 1<<31-1)
				}
				return nil
			})
		default:
			return
		}
	}
}

var terms = []string{"any", "eth", "vlan", "inner-vlan", "ip", "udp", "tcp", "port", "flex", "ecpri"}

func (p *parser) match(m *Match) {
	if p.accept("any") {
		return
	}
	for n := 0; ; n++ {
		switch p.oneOf(terms[1:]...) {
		case "eth":
			p.fields(func(w string) { p.eth(m, w) }, "src", "dst", "type")
		case "vlan":
			p.once(m.VLAN.Set, "vlan")
			m.VLAN = Some(p.vlan("vlan"))
		case "inner-vlan":
			p.once(m.InnerVLAN.Set, "inner-vlan")
			m.InnerVLAN = Some(p.vlan("inner-vlan"))
		case "ip":
			p.fields(func(w string) { p.ip(m, w) }, "src", "dst", "len", "proto")
		case "udp":
			p.ports(m, packet.ProtoUDP)
		case "tcp":
			p.ports(m, packet.ProtoTCP)
		case "port":
			p.ports(m, 0)
		case "flex":
			p.flex(m)
		case "ecpri":
			p.fields(func(w string) { p.ecpri(m, w) }, "type", "pc_id", "rtc_id")
		default:
			if w := p.peek(); n == 0 || w != "->" && w != "" || p.isQuoted {
				expected := slices.Concat(p.more, terms[1:])
				if n == 0 {
					expected = terms
				}
				p.unexpected(expected...)
			}
			return
		}
	}
}

// fields reads field names and their values until another word comes; at least one.
func (p *parser) fields(f func(string), words ...string) {
	for n := 0; ; n++ {
		w := p.oneOf(words...)
		if w == "" {
			if n == 0 {
				p.unexpected(words...)
			}
			p.more = words
			return
		}
		f(w)
	}
}

func (p *parser) vlan(what string) (v VLAN) {
	p.value(what, func(w string) error { return v.UnmarshalText([]byte(w)) })
	return v
}

func (p *parser) mac(what string) (a packet.MAC) {
	p.value(what, func(w string) (err error) { a, err = packet.ParseMAC(w); return })
	return a
}

func (p *parser) eth(m *Match, w string) {
	switch w {
	case "src":
		p.once(m.EthSrc.Set, "eth src")
		m.EthSrc = Some(p.mac("eth src"))
	case "dst":
		p.once(m.EthDst.Set, "eth dst")
		m.EthDst = Some(p.mac("eth dst"))
	case "type":
		p.once(m.EtherType.Set, "eth type")
		m.EtherType = Some(packet.EtherType(p.number("eth type", 0xffff)))
	}
}

func (p *parser) rangeOf(what string) (r Range) {
	p.value(what, func(w string) error { return r.UnmarshalText([]byte(w)) })
	return r
}

// prefix reads a CIDR or a bare address, which stands for all its bits.
func (p *parser) prefix(what string) (x netip.Prefix) {
	p.value(what, func(w string) (err error) {
		if !strings.Contains(w, "/") {
			a, err := netip.ParseAddr(w)
			if err != nil || a.Zone() != "" {
				return fmt.Errorf("%q is not an address: expected such as 10.0.0.0/8 or 2001:db8::/32", w)
			}
			x = netip.PrefixFrom(a, a.BitLen())
			return nil
		}
		if x, err = netip.ParsePrefix(w); err != nil {
			return fmt.Errorf("%q is not a prefix: expected such as 10.0.0.0/8 or 2001:db8::/32", w)
		}
		return nil
	})
	return x
}

func (p *parser) ip(m *Match, w string) {
	switch w {
	case "src":
		p.once(m.Src.IsValid(), "ip src")
		m.Src = p.prefix("ip src")
	case "dst":
		p.once(m.Dst.IsValid(), "ip dst")
		m.Dst = p.prefix("ip dst")
	case "len":
		p.once(m.Length.Set, "ip len")
		m.Length = Some(p.rangeOf("ip len"))
	case "proto":
		p.once(m.Proto.Set, "ip proto")
		m.Proto = Some(packet.Proto(p.number("ip proto", 255)))
	}
}

func (p *parser) ports(m *Match, proto packet.Proto) {
	if proto != 0 {
		if m.Proto.Set && m.Proto.Value != proto {
			p.fail("two protocols in one match: keep one")
		}
		m.Proto = Some(proto)
	}
	for n := 0; ; n++ {
		switch p.oneOf("src", "dst") {
		case "src":
			p.once(m.SrcPort.Set, "source port")
			m.SrcPort = Some(p.rangeOf("source port"))
		case "dst":
			p.once(m.DstPort.Set, "destination port")
			m.DstPort = Some(p.rangeOf("destination port"))
		default:
			if proto == 0 && n == 0 {
				p.unexpected("src", "dst")
			}
			p.more = []string{"src", "dst"}
			return
		}
	}
}

func (p *parser) flex(m *Match) {
	f := Flex{Mask: 0xffffffff}
	f.Offset = uint16(p.number("flex offset", MaxFlexOffset))
	p.value("flex value", func(w string) error {
		v, k, masked := strings.Cut(w, "/")
		n, err := number(v, 0xffffffff)
		if err != nil {
			return err
		}
		f.Value = uint32(n)
		if masked {
			n, err = number(k, 0xffffffff)
			f.Mask = uint32(n)
		}
		return err
	})
	m.Flex = append(m.Flex, f)
}

func (p *parser) ecpri(m *Match, w string) {
	switch e := &m.ECPRI; w {
	case "type":
		p.once(e.Type.Set, "ecpri type")
		e.Type = Some(uint8(p.number("ecpri type", 255)))
	case "pc_id":
		p.once(e.PCID.Set, "ecpri pc_id")
		e.PCID = Some(uint16(p.number("ecpri pc_id", 0xffff)))
	case "rtc_id":
		p.once(e.RTCID.Set, "ecpri rtc_id")
		e.RTCID = Some(uint16(p.number("ecpri rtc_id", 0xffff)))
	}
}

var actionWords = []string{"queue", "rss", "drop", "kernel", "vlan-pop", "vlan-push", "vxlan-decap", "gre-decap",
	"nvgre-decap",
	"vxlan-encap", "gre-encap", "nvgre-encap"}

func (p *parser) action() Action {
	switch w := p.oneOf(actionWords...); w {
	case "queue":
		return Queue(uint16(p.number("queue", 0xffff)))
	case "rss":
		return p.rss()
	case "drop":
		return Action{Kind: Drop}
	case "kernel":
		return Action{Kind: ToKernel}
	case "vlan-pop":
		return Action{Kind: PopVLAN}
	case "vlan-push":
		return p.pushVLAN()
	case "":
		p.unexpected(actionWords...)
		panic("unreachable")
	default:
		var a Action
		name, kind, _ := strings.Cut(w, "-")
		if err := a.Tunnel.Type.UnmarshalText([]byte(name)); err != nil {
			panic(err)
		}
		if a.Kind = Decap; kind == "encap" {
			a.Kind = Encap
			p.encap(&a.Tunnel)
		}
		return a
	}
}

func (p *parser) rss() Action {
	a := Action{Kind: RSS}
	for n := 0; ; n++ {
		if w := p.peek(); n > 0 && !p.isQuoted && (w == "" || w == ",") {
			return a
		}
		r := p.rangeOf("rss queues")
		if len(a.Queues)+int(r.Hi-r.Lo) >= IndirectionEntries {
			p.fail("more than %d queues", IndirectionEntries)
		}
		for q := int(r.Lo); q <= int(r.Hi); q++ {
			a.Queues = append(a.Queues, uint16(q))
		}
	}
}

func (p *parser) pushVLAN() Action {
	a := Action{Kind: PushVLAN}
	a.Tag.ID = uint16(p.number("vlan-push", MaxVLAN))
	for {
		switch p.oneOf("pcp", "dei", "tpid") {
		case "pcp":
			a.Tag.PCP = uint8(p.number("pcp", 7))
		case "dei":
			a.Tag.DEI = p.number("dei", 1) == 1
		case "tpid":
			a.Tag.TPID = packet.EtherType(p.number("tpid", 0xffff))
		default:
			return a
		}
	}
}

func (p *parser) addr(what string) (a netip.Addr) {
	p.value(what, func(w string) (err error) {
		if a, err = netip.ParseAddr(w); err != nil || a.Zone() != "" {
			return fmt.Errorf("%q is not an address", w)
		}
		return nil
	})
	return a
}

func (p *parser) encap(t *Tunnel) {
	for {
		switch w := p.oneOf("eth-src", "eth-dst", "ip-src", "ip-dst", "ttl", "tos", "udp-src", "udp-dst", "vni",
			"flow-id", "proto"); w {
		case "eth-src":
			t.EthSrc = p.mac(w)
		case "eth-dst":
			t.EthDst = p.mac(w)
		case "ip-src":
			t.Src = p.addr(w)
		case "ip-dst":
			t.Dst = p.addr(w)
		case "ttl":
			t.TTL = uint8(p.number(w, 255))
		case "tos":
			t.TOS = uint8(p.number(w, 255))
		case "udp-src":
			t.SrcPort = uint16(p.number(w, 0xffff))
		case "udp-dst":
			t.DstPort = uint16(p.number(w, 0xffff))
		case "vni":
			t.VNI = uint32(p.number(w, 1<<32-1))
		case "flow-id":
			t.FlowID = uint8(p.number(w, 255))
		case "proto":
			t.Protocol = packet.EtherType(p.number(w, 0xffff))
		default:
			return
		}
	}
}

// nearest suggests the one of words that w was probably meant to be; "" if none is near.
func nearest(w string, words []string) string {
	if near := input.Nearest(w, words); near != "" {
		return fmt.Sprintf(" (did you mean %s?)", near)
	}
	return ""
}
