package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
)

// Engine is the word that chooses an engine: Auto, or a name of the table of package
// engine/drivers.
type Engine string

// Auto leaves the choice of the engine to the address.
const Auto Engine = "auto"

// Spec describes the engine; nil for Auto and for words that are not engines.
func (e Engine) Spec() *engine.Spec { return drivers.Get(string(e)) }

// Built reports whether an engine is part of this program. Whether it can run on a machine,
// engine.Engine.Available tells.
func (e Engine) Built() bool { s := e.Spec(); return s != nil && s.Built() }

// frames reports whether its packets are whole Ethernet frames, steered by flows.
func (e Engine) frames() bool { s := e.Spec(); return s == nil || s.Capabilities.Frames }

// fabric reports whether its ports are connections of a fabric whose devices fetch memory: queues
// may leave it unnamed.
func (e Engine) fabric() bool {
	s := e.Spec()
	return s != nil && !s.Capabilities.Frames && s.Capabilities.Connections && !s.Needs.Buffers
}

// lends reports whether its receive queues may leave their memory unnamed: they lend the device's.
func (e Engine) lends() bool {
	s := e.Spec()
	return s != nil && s.Capabilities.Pools == engine.PoolsOptional
}

// plain reports whether its addresses are names with a scheme in front of them: neither interfaces
// nor IP addresses.
func (e Engine) plain() bool {
	s := e.Spec()
	return s != nil && len(s.Schemes) > 0 && !s.Needs.Interface && !s.Needs.IP
}

// needs is what it needs of a machine.
func (e Engine) needs() engine.Needs {
	if s := e.Spec(); s != nil {
		return s.Needs
	}
	return engine.Needs{}
}

// find is the first engine of the table that is as a function says; "" if none is.
func find(is func(*engine.Spec) bool) Engine {
	for _, s := range drivers.Table() {
		if is(s) {
			return Engine(s.Name)
		}
	}
	return ""
}

// sectionOf is the section of a file that has an option of a port.
func sectionOf(s *engine.Spec, o *engine.Option) string {
	if o.Section != "" {
		return o.Section
	}
	return s.FileSection()
}

// socketSectionName is the section whose other keys make the address of a port.
const socketSectionName = "socket"

// engineWord is the names of all engines.
func engineWord() *kind {
	words := []string{string(Auto)}
	other := []string{"default=" + string(Auto)}
	for _, s := range drivers.Table() {
		words = append(words, s.Name)
		for _, a := range s.Aliases {
			other = append(other, a+"="+s.Name)
		}
	}
	return word(append(words, other...)...)
}

// inFiles reports whether a file may say an option: parts of addresses are in addresses only, but
// for engines that nothing opens.
func inFiles(s *engine.Spec, o *engine.Option) bool { return o.Field != "" || !s.Built() }

// engineSections are the sections of an interface, or of one of its queues, with options of
// engines, in the order of the table. The options of the section socket are not in them.
func engineSections(of engine.Of) (out []key) {
	for _, s := range drivers.Table() {
		name, suffix := s.FileSection(), [...]string{"", "_rx", "_tx"}[of]
		keys := optionKeys(of, name)
		if len(keys) == 0 || of == engine.OfPort && name == socketSectionName {
			continue
		}
		theirs := ""
		if of == engine.OfPort {
			theirs = s.DAQIRI
		}
		out = append(out, key{name: name, daqiri: theirs, ours: theirs == "" && s.Built(),
			doc: "For the engine " + s.Name + ".",
			sub: &section{name: name + suffix, title: name, doc: "Options of the engine " + s.Name + ": " + s.Doc,
				keys: keys, engines: true}})
	}
	return out
}

// optionKeys are the options of all engines that are in a section.
func optionKeys(of engine.Of, section string) (out []key) {
	for _, s := range drivers.Table() {
		for i := range s.Options {
			o := &s.Options[i]
			at := sectionOf(s, o)
			if of != engine.OfPort {
				at = s.FileSection()
			}
			if o.Of != of || at != section || !inFiles(s, o) {
				continue
			}
			if slices.ContainsFunc(out, func(k key) bool { return k.name == o.Key }) {
				continue // of several engines: the first one describes it
			}
			k := optionKey(o)
			k.ours = o.DAQIRI == "" && s.Built()
			out = append(out, k)
		}
	}
	return out
}

// optionKey is the key of an option.
func optionKey(o *engine.Option) key {
	k := key{name: o.Key, kind: optionKind(o), list: o.List, uniq: o.List && o.Type == engine.Int, def: o.Default,
		needed: o.Needed, doc: o.Doc, opt: o}
	if o.DAQIRI != o.Key {
		k.daqiri = o.DAQIRI
	}
	return k
}

// optionKind is what the value of an option may be.
func optionKind(o *engine.Option) *kind {
	switch o.Type {
	case engine.Bool:
		return boolean()
	case engine.Int:
		return integer(o.Min, o.Max)
	case engine.Bytes:
		return size(Size(o.Min), Size(o.Max))
	case engine.Time:
		bare := time.Duration(0) // of DAQIRI's name, which may say a unit
		for suffix, d := range map[string]time.Duration{"_s": time.Second, "_ms": time.Millisecond,
			"_us": time.Microsecond} {
			if strings.HasSuffix(o.DAQIRI, suffix) {
				bare = d
			}
		}
		return span(time.Duration(o.Min), time.Duration(o.Max), bare)
	case engine.Word:
		return word(o.Words...)
	case engine.IP:
		return ipAddress()
	}
	k := text(cmp.Or(o.Form, "a text"))
	plain := k.parse
	k.parse = func(s scalar) (any, string) {
		v, wrong := plain(s)
		if wrong != "" {
			return nil, wrong
		}
		if o.List && strings.Contains(s.text, ",") {
			return nil, "has a comma"
		}
		var e *engine.SettingError
		if _, err := o.Value(s.text); errors.As(err, &e) {
			return nil, "is not one: " + e.Wrong
		}
		return v, ""
	}
	return k
}

// put puts the text of an option into the sections of an interface or a queue.
func put(all *map[string]engine.Settings, section, key, text string) {
	if *all == nil {
		*all = map[string]engine.Settings{}
	}
	if (*all)[section] == nil {
		(*all)[section] = engine.Settings{}
	}
	(*all)[section][key] = text
}

// scheme is that of the address, "" of a name.
func (p *Interface) scheme() string {
	before, _, isURL := strings.Cut(p.Address, "://")
	if !isURL {
		return ""
	}
	return before
}

// settings are the options of the port that belong to its engine and to its kind of address: those
// of its sections, and what follows from other keys.
func (p *Interface) settings(s *engine.Spec) engine.Settings {
	out := engine.Settings{}
	for i := range s.Options {
		o := &s.Options[i]
		if o.Of != engine.OfPort || s.Option(o.Key, p.scheme()) != o || !inFiles(s, o) {
			continue
		}
		if v, ok := p.Sections[sectionOf(s, o)][o.Key]; ok {
			out[o.Key] = v
		} else if v := p.follows(o.Follows); v != "" {
			out[o.Key] = v
		}
	}
	return out
}

// follows is the value of an option that another key of the interface sets, "" if it is not there.
func (p *Interface) follows(key string) string {
	switch {
	case p.Rx == nil:
	case key == "rx.queues" && len(p.Rx.Queues) > 0:
		return strconv.Itoa(len(p.Rx.Queues))
	case key == "rx.hardware_timestamps" && p.Rx.HardwareTimestamps:
		return "true"
	}
	return ""
}

// Asked is an option of an interface that the doctor asks about.
type Asked struct {
	What  string // engine.Option.Asks
	Path  string // of the option in the interface, "xdp.ring"; of a list, one of each value: "xdp.queues[1]"
	Value any    // as engine.Option.Value has it
}

// Asked are the options of the interface that the doctor asks about, those of the address and of
// the file.
func (p *Interface) Asked() (out []Asked) {
	s := p.Engine.Spec()
	if s == nil {
		return nil
	}
	a, _ := s.Address(p.Address) // that it is wrong, Check says
	set := p.settings(s)
	maps.Copy(set, a.Settings)
	for i := range s.Options {
		o := &s.Options[i]
		text, ok := set[o.Key]
		if !ok && o.Asks != "" && o.Default != "" {
			text, ok = o.Default, true
		}
		if !ok || o.Asks == "" || o.AsksFor != "" && text != o.AsksFor || s.Option(o.Key, p.scheme()) != o {
			continue
		}
		at := join(sectionOf(s, o), o.Key)
		if _, in := a.Settings[o.Key]; in {
			at = "address"
		}
		parts := []string{text}
		if o.List {
			parts = strings.Split(text, ",")
		}
		for k, part := range parts {
			path := at
			if o.List && at != "address" {
				path = item(at, k)
			}
			if v, err := o.Value(part); err == nil {
				out = append(out, Asked{o.Asks, path, v})
			}
		}
	}
	return out
}

// portSpec is the interface for its engine, with what is wrong with its options.
func (p *Interface) portSpec() (engine.PortSpec, error) {
	out := engine.PortSpec{Name: p.Name, Address: p.Address, MTU: p.MTU, Isolated: p.Rx != nil && p.Rx.FlowIsolation}
	if p.Rx != nil {
		out.RxQueues = len(p.Rx.Queues)
	}
	if p.Tx != nil {
		out.TxQueues = len(p.Tx.Queues)
	}
	s := p.Engine.Spec()
	if s == nil {
		return out, nil
	}
	var err error
	out.Options, err = s.Port(p.Address, p.settings(s))
	return out, err
}

// PortSpec is the interface for its engine, with the engine's options.
func (p *Interface) PortSpec() engine.PortSpec {
	s, _ := p.portSpec() // Check says what is wrong
	return s
}

// queueOptions are the options of a queue for the engine; err says what is wrong with them.
func (p *Interface) queueOptions(of func(*engine.Spec, engine.Address, engine.Settings) (any, error),
	sections map[string]engine.Settings) (any, error) {
	s := p.Engine.Spec()
	if s == nil || !s.Built() {
		return nil, nil
	}
	a, err := s.Address(p.Address)
	if err != nil {
		return nil, nil // Check says it of the port
	}
	return of(s, a, sections[s.FileSection()])
}

func (p *Interface) rxSpec(k int) (engine.RxSpec, error) {
	q := &p.Rx.Queues[k]
	o, err := p.queueOptions((*engine.Spec).Rx, q.Sections)
	return engine.RxSpec{Name: q.Name, ID: engine.Queue(q.ID), SplitAt: q.SplitAt, Depth: q.Depth,
		Timestamps: p.Rx.Timestamps, HardwareTime: p.Rx.HardwareTimestamps, Options: o}, err
}

func (p *Interface) txSpec(k int) (engine.TxSpec, error) {
	q := &p.Tx.Queues[k]
	o, err := p.queueOptions((*engine.Spec).Tx, q.Sections)
	return engine.TxSpec{Name: q.Name, ID: engine.Queue(q.ID), Headroom: q.Headroom, Depth: q.Depth,
		Rate: uint64(q.Rate), SendAt: p.Tx.AccurateSend,
		SourceMAC: slices.Contains(q.Offloads, "tx_eth_src"), Options: o}, err
}

// RxSpec is the receive queue k of the interface for its engine, without its pools: those of
// RxQueue.Regions, in that order.
func (p *Interface) RxSpec(k int) engine.RxSpec {
	s, _ := p.rxSpec(k)
	return s
}

// TxSpec is the transmit queue k of the interface for its engine, without its pools.
func (p *Interface) TxSpec(k int) engine.TxSpec {
	s, _ := p.txSpec(k)
	return s
}

// checkEngine is what the engine of an interface says of it: of its address, its options and those
// of its queues.
func (d *decoder) checkEngine(p *Interface, path string) {
	s := p.Engine.Spec()
	if s == nil {
		return
	}
	if !s.Built() {
		d.report(Needs, CodeNotBuilt, join(path, "engine"),
			fmt.Sprintf("interface %s: the engine %s is not built: %s", shown(p.Name), p.Engine, s.Absent), "", "")
	}
	d.checkSections(s, engine.OfPort, p, &p.Sections, path)
	var ask engine.Ask
	fail := func(at string, err error) {
		var e *engine.SettingError
		if !errors.As(err, &e) {
			message := strings.TrimSuffix(err.Error(), ": "+engine.ErrInvalid.Error())
			place := func(o *engine.Option) string { return join(path, join(sectionOf(s, o), o.Key)) }
			message, at := d.ofFields(message, s.Options, join(path, "address"), place)
			d.report(Error, CodeValue, at, message, "", "")
			return
		}
		place := join(path, "address")
		switch o := s.Option(e.Key, p.scheme()); {
		case e.Path != "":
			place = join(path, e.Path)
		case e.Address != "" && strings.Contains(e.Address, "?") || o == nil:
		case at != path:
			place = join(at, join(s.FileSection(), o.Key))
		default:
			place = join(path, join(sectionOf(s, o), o.Key))
		}
		message := e.Problem()
		if place == join(path, "address") {
			message = fmt.Sprintf("the engine %s cannot open %s: %s", s.Name, shown(p.Address), message)
		}
		d.report(Error, CodeValue, place, message, e.Expected, e.Hint)
	}
	if p.Rx != nil {
		for k := range p.Rx.Queues {
			at := join(path, item("rx.queues", k))
			d.checkSections(s, engine.OfRx, p, &p.Rx.Queues[k].Sections, at)
			q, err := p.rxSpec(k)
			if err != nil {
				fail(at, err)
			}
			ask.Rx = append(ask.Rx, engine.RxAsk{RxSpec: q, Memory: d.memory(p.Rx.Queues[k].Regions)})
		}
	}
	if p.Tx != nil {
		for k := range p.Tx.Queues {
			at := join(path, item("tx.queues", k))
			d.checkSections(s, engine.OfTx, p, &p.Tx.Queues[k].Sections, at)
			q, err := p.txSpec(k)
			if err != nil {
				fail(at, err)
			}
			ask.Tx = append(ask.Tx, engine.TxAsk{TxSpec: q, Memory: d.memory(p.Tx.Queues[k].Regions)})
		}
	}
	if p.Address == "" || !s.Built() || d.unclear(path) {
		return
	}
	var err error
	var found []*engine.SettingError
	if ask.Port, err = p.portSpec(); err == nil {
		_, found, err = engine.Check(s.New(), &ask)
	}
	if err != nil {
		fail(path, err)
	}
	said := map[string]bool{} // what belongs to the port each queue meets
	for _, e := range found {
		if said[e.Path+e.Problem()] {
			continue
		}
		said[e.Path+e.Problem()] = true
		severity, code := Error, CodeValue
		if errors.Is(e, engine.ErrUnsupported) { // of another engine it would be right
			severity, code = Needs, CodeNotBuilt
		}
		d.report(severity, code, join(path, e.Path), fmt.Sprintf("the engine %s: %s", s.Name, e.Problem()), e.Expected,
			e.Hint)
	}
}

// ofFields is a message about the fields of a program's options in the words of a file, which has
// other names for them. Its place is that of the last of these options that the file has.
func (d *decoder) ofFields(message string, options []engine.Option, place string,
	at func(*engine.Option) string) (string, string) {
	for i := range options {
		o := &options[i]
		for _, field := range strings.Fields(o.Field) {
			word := regexp.MustCompile(`\b(Options\.)?` + regexp.QuoteMeta(strings.TrimPrefix(field, "!")) + `\b`)
			if word.MatchString(message) && o.Of == engine.OfPort {
				if message = word.ReplaceAllString(message, o.Key); d.cfg.given(at(o)) {
					place = at(o)
				}
			}
		}
	}
	return message, place
}

// memory are the regions of a queue as engines are asked about them; nil where one of them is not
// there, or is not made from the file.
func (d *decoder) memory(regions []string) (out []engine.PoolSpec) {
	if len(regions) > 2 { // regionsOf has said it
		return nil
	}
	for _, name := range regions {
		r, _ := d.region(name)
		if r == nil || r.BufSize <= 0 || !r.Owned {
			return nil
		}
		out = append(out, r.PoolSpec())
	}
	return out
}

// unclear reports whether something could not be read that says what the engine or the address of
// an interface is, or is an option of it.
func (d *decoder) unclear(path string) bool {
	names := []string{"engine", "address", "mtu"}
	for _, k := range schema().byName["interfaces"].sub.keys {
		if k.sub != nil && k.sub.engines {
			names = append(names, k.name)
		}
	}
	return slices.ContainsFunc(names, func(n string) bool { return d.broken[join(path, n)] || d.around[join(path, n)] })
}

// checkSections finds options that say nothing to the engine. Those of a file of DAQIRI's do not
// count.
func (d *decoder) checkSections(s *engine.Spec, of engine.Of, p *Interface, all *map[string]engine.Settings,
	path string) {
	sections, severity := *all, Error
	if d.cfg.dialect != Ours { // DAQIRI's programs do not look
		severity = Warning
	}
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		at := join(path, name)
		theirs := func(s *engine.Spec) bool {
			return slices.ContainsFunc(s.Options, func(o engine.Option) bool {
				return o.Of == of && sectionOf(s, &o) == name && inFiles(s, &o)
			})
		}
		if !theirs(s) {
			grave := severity
			if of := find(theirs); !of.Built() {
				grave = Warning // nothing opens it in any case
			}
			d.also(d.report(grave, CodeNoEffect, at, fmt.Sprintf("the section %s says nothing to the engine %s", name,
				s.Name), "", "remove it, or choose engine: "+string(find(theirs))), join(path, "engine"),
				"the engine is "+s.Name)
			if d.cfg.dialect != Ours && find(theirs).Built() {
				d.ignore(at)
				delete(sections, name)
			}
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(sections[name])) {
			o := s.Option(key, p.scheme())
			if o == nil || o.Of != of {
				what := "the engine " + s.Name
				if scheme := p.scheme(); scheme != "" {
					what += " with " + scheme + "://"
				}
				d.report(severity, CodeNoEffect, join(at, key), fmt.Sprintf("%s says nothing to %s", key, what), "",
					"remove it")
				if d.cfg.dialect != Ours {
					d.ignore(join(at, key))
					if delete(sections[name], key); len(sections[name]) == 0 {
						delete(sections, name)
					}
				}
			}
		}
	}
	if len(sections) == 0 {
		*all = nil
	}
}

// ignore notes where the file says something that does not count.
func (d *decoder) ignore(path string) {
	if at := d.cfg.sources[path].At; !at.IsZero() {
		d.cfg.ignored = append(d.cfg.ignored, at)
	}
}

// sections is the map of options in the struct of an interface or a queue.
func sectionsOf(v reflect.Value) *map[string]engine.Settings {
	return v.FieldByName("Sections").Addr().Interface().(*map[string]engine.Settings)
}
