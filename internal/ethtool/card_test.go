package ethtool

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/netlink"
	"github.com/penstock-io/penstock/internal/sys"
	"pgregory.net/rapid"
)

// card is a network card in software: it answers commands as a driver would, byte by byte.
type card struct {
	size     int               // of the table of rules
	rules    map[uint32][]byte // struct ethtool_rx_flow_spec
	chooses  bool
	forget   bool // takes no notice of masks of ports
	table    []uint32
	key      []byte
	words    map[uint32][]uint32 // of plain commands, by the command that reads
	names    map[uint32][]string
	counters []uint64
	stuck    bool     // features do not follow what is wanted
	feature  []uint32 // available, requested, active, never changed
	refuse   map[uint32]sys.Errno
}

var setters = map[uint32]uint32{cmdSetChannels: cmdChannels, cmdSetRings: cmdRings, cmdSetCoalesce: cmdCoalesce}

func (c *card) device() *Device { return &Device{name: "card0", fd: -1, call: c.call} }

func (c *card) call(b []byte) (int, sys.Errno) {
	command := native.Uint32(b)
	if e := c.refuse[command]; e != 0 {
		return 0, e
	}
	if w, ok := c.words[command]; ok {
		for i, x := range w {
			native.PutUint32(b[4+4*i:], x)
		}
		return 0, 0
	}
	if of, ok := setters[command]; ok {
		w, ok := c.words[of]
		if !ok {
			return 0, sys.EOPNOTSUPP
		}
		for i := range w {
			if of != cmdChannels && of != cmdRings || i >= 4 { // the first four are maxima
				w[i] = native.Uint32(b[4+4*i:])
			}
		}
		return 0, 0
	}
	switch command {
	case cmdStringsCount:
		mask, n := native.Uint64(b[8:]), 0
		for set, names := range c.names {
			if mask>>set&1 != 0 {
				n = len(names)
			} else {
				mask &^= 1 << set
			}
		}
		if n == 0 {
			mask = 0
		}
		native.PutUint64(b[8:], mask)
		native.PutUint32(b[16:], uint32(n))
	case cmdStrings:
		names := c.names[native.Uint32(b[4:])]
		native.PutUint32(b[8:], uint32(len(names)))
		for i, n := range names {
			copy(b[12+32*i:][:32], n)
		}
	case cmdFeatures:
		for i, w := range c.feature {
			native.PutUint32(b[8+4*i:], w)
		}
	case cmdSetFeatures:
		valid, wanted := native.Uint32(b[8:]), native.Uint32(b[12:])
		valid &= c.feature[0]
		c.feature[1] = c.feature[1]&^valid | wanted&valid
		if !c.stuck {
			c.feature[2] = c.feature[1]
		}
	case cmdCounters:
		native.PutUint32(b[4:], uint32(len(c.counters)))
		for i, x := range c.counters {
			native.PutUint64(b[8+8*i:], x)
		}
	case cmdRSS, cmdSetRSS:
		return 0, c.rss(command, b)
	case cmdRuleCount, cmdRules, cmdRule, cmdInsertRule, cmdDeleteRule:
		return 0, c.rule(command, b)
	default:
		return 0, sys.EOPNOTSUPP
	}
	return 0, 0
}

func (c *card) rss(command uint32, b []byte) sys.Errno {
	entries, key := int(native.Uint32(b[8:])), int(native.Uint32(b[12:]))
	if command == cmdSetRSS {
		switch entries {
		case rssNoChange:
			if key != len(c.key) {
				return sys.EINVAL
			}
			copy(c.key, b[rssHeader:])
		case 0:
			for i := range c.table {
				c.table[i] = uint32(i % 4)
			}
		case len(c.table):
			for i := range c.table {
				c.table[i] = native.Uint32(b[rssHeader+4*i:])
			}
		default:
			return sys.EINVAL
		}
		return 0
	}
	native.PutUint32(b[8:], uint32(len(c.table)))
	native.PutUint32(b[12:], uint32(len(c.key)))
	if entries == len(c.table) && key == len(c.key) {
		for i, q := range c.table {
			native.PutUint32(b[rssHeader+4*i:], q)
		}
		copy(b[rssHeader+4*entries:], c.key)
	}
	return 0
}

func (c *card) rule(command uint32, b []byte) sys.Errno {
	spec := b[rxnfcSpec : rxnfcSpec+specLen]
	at := native.Uint32(spec[specLocation:])
	special := uint64(0)
	if c.chooses {
		special = chooses
	}
	switch command {
	case cmdRuleCount:
		native.PutUint32(b[rxnfcCount:], uint32(len(c.rules)))
		native.PutUint64(b[rxnfcData:], special)
	case cmdRules:
		if int(native.Uint32(b[rxnfcCount:])) < len(c.rules) {
			return sys.EMSGSIZE
		}
		native.PutUint64(b[rxnfcData:], uint64(c.size))
		i := 0
		for p := range c.rules {
			native.PutUint32(b[rxnfcPlaces+4*i:], p)
			i++
		}
		native.PutUint32(b[rxnfcCount:], uint32(i))
	case cmdRule:
		r, ok := c.rules[at]
		if !ok {
			return sys.ENOENT
		}
		copy(spec, r)
	case cmdInsertRule:
		if c.chooses && at == AnyLocation {
			for at = 0; c.rules[at] != nil; at++ {
			}
		}
		if int(at) >= c.size {
			return sys.ENOSPC
		}
		native.PutUint32(spec[specLocation:], at)
		keep := slices.Clone(spec)
		if c.forget {
			clear(keep[specMask+8 : specMask+12])
		}
		c.rules[at] = keep
	case cmdDeleteRule:
		if c.rules[at] == nil {
			return sys.ENOENT
		}
		delete(c.rules, at)
	}
	return 0
}

func anyKey(t *rapid.T, name string, typ FlowType) (k FlowKey) {
	bytes := func(n int) []byte { return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, name) }
	word := func() uint16 { return rapid.Uint16().Draw(t, name) }
	k.DstMAC, k.VLANType, k.VLAN = [6]byte(bytes(6)), word(), word()
	k.Data = [2]uint32{rapid.Uint32().Draw(t, name), rapid.Uint32().Draw(t, name)}
	four := typ == FlowTCP4 || typ == FlowUDP4 || typ == FlowIP4
	if typ == FlowEther {
		k.SrcMAC, k.EtherType = [6]byte(bytes(6)), word()
		return k
	}
	n := 16
	if four {
		n = 4
	}
	copy(k.Src[:], bytes(n))
	copy(k.Dst[:], bytes(n))
	k.TOS = bytes(1)[0]
	if typ == FlowIP4 || typ == FlowIP6 {
		k.Proto, k.L4 = bytes(1)[0], rapid.Uint32().Draw(t, name)
	} else {
		k.SrcPort, k.DstPort = word(), word()
	}
	return k
}

func anySpec(t *rapid.T) (s FlowSpec) {
	s.Type = rapid.SampledFrom([]FlowType{FlowTCP4, FlowUDP4, FlowTCP6, FlowUDP6, FlowIP4, FlowIP6, FlowEther}).Draw(t,
		"type")
	s.Mask = anyKey(t, "mask", s.Type)
	s.Value = anyKey(t, "value", s.Type)
	s.Drop = rapid.Bool().Draw(t, "drop")
	if !s.Drop {
		s.Queue = uint64(rapid.Uint32().Draw(t, "queue"))
	}
	s.Location = rapid.Uint32Range(0, 9).Draw(t, "location")
	return s
}

// What a rule says survives the kernel's structure.
func TestSpecRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := anySpec(t)
		var b [specLen]byte
		s.encode(b[:])
		got := decodeSpec(b[:])
		if s.Mask.VLAN == 0 && s.Mask.VLANType == 0 && s.Mask.Data == [2]uint32{} { // then the values do not count
			s.Value.VLAN, s.Value.VLANType, s.Value.Data = 0, 0, [2]uint32{}
		}
		if s.Type != FlowEther && s.Mask.DstMAC == [6]byte{} {
			s.Value.DstMAC = [6]byte{}
		}
		if got != s && !(s.Type == FlowIP4) || !got.Same(s) {
			t.Fatalf("%+v became %+v", s, got)
		}
	})
}

// The card's table is what a map would be, whatever is put in and taken out.
func TestRulesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &card{size: 10, rules: map[uint32][]byte{}, chooses: rapid.Bool().Draw(t, "chooses")}
		d := c.device()
		model := map[uint32]FlowSpec{}
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				s := anySpec(t)
				if rapid.Bool().Draw(t, "anywhere") {
					s.Location = AnyLocation
				}
				got, err := d.InsertRule(s)
				if s.Location == AnyLocation && len(model) == c.size {
					if !errors.Is(err, ErrFull) {
						t.Fatalf("into a full table: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if s.Location != AnyLocation && got.Location != s.Location || !got.Same(s) {
					t.Fatalf("%v became %v", s, got)
				}
				if _, taken := model[got.Location]; s.Location == AnyLocation && taken {
					t.Fatalf("%v replaced another", got)
				}
				model[got.Location] = got
			},
			"delete": func(t *rapid.T) {
				at := rapid.Uint32Range(0, 9).Draw(t, "at")
				err := d.DeleteRule(at)
				if _, ok := model[at]; ok != (err == nil) {
					t.Fatalf("delete %d: %v", at, err)
				}
				delete(model, at)
			},
			"": func(t *rapid.T) {
				all, err := d.Rules()
				if err != nil || len(all) != len(model) {
					t.Fatalf("%d rules, expected %d; %v", len(all), len(model), err)
				}
				for i, s := range all {
					if !s.Same(model[s.Location]) || i > 0 && all[i-1].Location >= s.Location {
						t.Fatalf("%v, expected %v", s, model[s.Location])
					}
				}
			},
		})
	})
}

func TestRuleThatTheCardDoesNotKeep(t *testing.T) {
	c := &card{size: 4, rules: map[uint32][]byte{}, forget: true}
	d := c.device()
	s := FlowSpec{Type: FlowUDP4, Value: FlowKey{DstPort: 5000}, Mask: FlowKey{DstPort: 0xffff}, Queue: 2,
		Location: AnyLocation}
	_, err := d.InsertRule(s)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "udp4 dst-port 5000 -> queue 2") ||
		len(c.rules) != 0 {
		t.Errorf("%v; the card has %d rules", err, len(c.rules))
	}
	c.forget = false
	got, err := d.InsertRule(s)
	if err != nil || got.Location != 3 || got.String() != "3: udp4 dst-port 5000 -> queue 2" {
		t.Errorf("%v, %v", got, err)
	}
	none := (&card{rules: map[uint32][]byte{}}).device()
	if _, err := none.InsertRule(s); !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), "ntuple on") {
		t.Error(err)
	}
	for e, want := range map[sys.Errno]error{sys.EPERM: ErrNotPermitted, sys.EOPNOTSUPP: ErrNotSupported,
		sys.EINVAL: ErrRefused,
		sys.ENODEV: ErrNoDevice, sys.ENOSPC: ErrFull} {
		c.refuse = map[uint32]sys.Errno{cmdInsertRule: e}
		if _, err := d.InsertRule(s); !errors.Is(err, want) || !errors.Is(err, e) {
			t.Errorf("%v: %v", e, err)
		}
	}
	if _, err := d.InsertRule(FlowSpec{Type: 0x77}); !errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}
}

func TestSettingsOfACard(t *testing.T) {
	c := &card{
		words: map[uint32][]uint32{
			cmdChannels: {0, 0, 1, 16, 0, 0, 1, 8}, cmdRings: {4096, 0, 0, 4096, 512, 0, 0, 512},
			cmdCoalesce: make([]uint32, 22)},
		names: map[uint32][]string{stringsFeatures: {"rx-gro", "", "rx-lro", "rx-ntuple-filter"}},
		// rx-lro is fixed: not available
		feature: []uint32{0b1001, 0b0001, 0b0001, 0},
		table:   []uint32{0, 1, 2, 3, 0, 1, 2, 3}, key: []byte{1, 2, 3},
	}
	c.words[cmdCoalesce][15] = 77 // one that the type has no name for
	d := c.device()
	ch, err := d.Channels()
	if err != nil || ch.MaxCombined != 16 || ch.RxQueues() != 8 || ch.TxQueues() != 8 {
		t.Fatal(ch, err)
	}
	ch.Combined = 4
	if err := d.SetChannels(ch); err != nil || c.words[cmdChannels][7] != 4 || c.words[cmdChannels][6] != 1 {
		t.Error(err, c.words[cmdChannels])
	}
	if err := d.SetChannels(Channels{Combined: -1}); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
	r, err := d.Rings()
	if err != nil || r.MaxRx != 4096 || r.Tx != 512 {
		t.Fatal(r, err)
	}
	r.Rx = 2048
	if err := d.SetRings(r); err != nil || !slices.Equal(c.words[cmdRings][4:], []uint32{2048, 0, 0, 512}) {
		t.Error(err, c.words[cmdRings])
	}
	co, err := d.Coalesce()
	co.AdaptiveRx, co.TxMicros = true, 9
	if err := errors.Join(err, d.SetCoalesce(co)); err != nil || c.words[cmdCoalesce][15] != 77 ||
		c.words[cmdCoalesce][9] != 1 || c.words[cmdCoalesce][4] != 9 {
		t.Error(err, c.words[cmdCoalesce])
	}
	if err := d.SetFeature("ntuple", true); err != nil || c.feature[2] != 0b1001 {
		t.Errorf("%v, %b", err, c.feature[2])
	}
	if err := d.SetFeature("lro", true); !errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}
	c.stuck = true
	if err := d.SetFeature("gro", false); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "still on") {
		t.Error(err)
	}
	if f, err := d.Feature("gro"); err != nil || f != (Feature{"rx-gro", true, false, false}) {
		t.Error(f, err)
	}
	rss, err := d.RSS()
	if err != nil || !rss.Default(4) || rss.Default(3) || len(rss.Key) != 3 {
		t.Fatal(rss, err)
	}
	if err := d.SetRSSTable([]uint32{1, 1, 1, 1, 0, 0, 0, 0}); err != nil || c.table[0] != 1 {
		t.Error(err, c.table)
	}
	if err := d.SetRSSTable(nil); err != nil || c.table[3] != 3 {
		t.Error(err, c.table)
	}
	if _, err := d.Speed(); !errors.Is(err, ErrNotSupported) {
		t.Error(err)
	}
}

func TestHashFieldsText(t *testing.T) {
	for text, want := range map[string]HashFields{"": 0, "sdfn": HashTuple, "sd": HashSrc | HashDst,
		"mvt": HashMAC | HashVLAN | HashProto} {
		if got, err := ParseHashFields(text); err != nil || got != want || got.String() != text {
			t.Errorf("%q: %#x %q, %v", text, uint32(got), got, err)
		}
	}
	if _, err := ParseHashFields("sdx"); err == nil {
		t.Error("sdx was read")
	}
}

// Answers of any length and content are read without reading beyond them.
func FuzzNetlink(f *testing.F) {
	f.Add(request(rtmNewLink, 0, append(make([]byte, 16),
		netlink.AppendAttribute(nil, linkName, []byte("eth0\x00"))...)))
	f.Add(request(netlink.Error, 0, []byte{0, 0, 0, 0}))
	f.Add(dcbAnswer(8, []byte{appDSCP, 3, 26, 0}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		for m, rest, ok := netlink.Next(b); ok; m, rest, ok = netlink.Next(rest) {
			parseLink(m)
			parseXDP(m.Body)
			parseDCB(m)
		}
	})
}

func FuzzSpec(f *testing.F) {
	f.Add(make([]byte, specLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < specLen {
			return
		}
		s := decodeSpec(b)
		_ = s.String()
		var again [specLen]byte
		s.encode(again[:])
		if got := decodeSpec(again[:]); !got.Same(s) {
			t.Fatalf("%+v became %+v", s, got)
		}
	})
}
