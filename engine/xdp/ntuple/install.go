package ntuple

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/ethtool"
)

// ErrOrder: the card chooses places itself, and two entries disagree about a packet, so that their
// order would count.
var ErrOrder = errors.New("ntuple: the card does not keep an order of rules")

// Card is a network card's table of n-tuple rules: an *ethtool.Device.
type Card interface {
	RuleTable() (ethtool.RuleTable, error)
	Rules() ([]ethtool.FlowSpec, error)
	InsertRule(ethtool.FlowSpec) (ethtool.FlowSpec, error)
	DeleteRule(location uint32) error
}

// Table is the table of a card, as it was when it was opened, with what was changed by way of it
// since. One goroutine uses it.
type Table struct {
	card    Card
	size    int
	chooses bool
	rules   []ethtool.FlowSpec
}

// OpenTable reads a card's table. The error wraps ethtool.ErrNotSupported where the card has none.
func OpenTable(card Card) (*Table, error) {
	t, err := card.RuleTable()
	if err != nil {
		return nil, fmt.Errorf("ntuple: %w", err)
	}
	if t.Size == 0 && t.Rules == 0 && !t.Chooses {
		return nil, fmt.Errorf("ntuple: the card has no table of rules; the feature %s may be off: %w",
			ethtool.FeatureNtuple, ethtool.ErrNotSupported)
	}
	rules, err := card.Rules()
	if err != nil {
		return nil, fmt.Errorf("ntuple: %w", err)
	}
	return &Table{card: card, size: t.Size, chooses: t.Chooses, rules: rules}, nil
}

// Rules are the rules that are there.
func (t *Table) Rules() []ethtool.FlowSpec { return slices.Clone(t.rules) }

// Room is how many more rules there is room for; -1 where the card does not say.
func (t *Table) Room() int {
	if t.size == 0 {
		return -1
	}
	return max(0, t.size-len(t.rules))
}

// Chooses reports whether the card chooses places, so that an order of rules means nothing to it.
func (t *Table) Chooses() bool { return t.chooses }

// Has reports whether this very rule is there: at its place, and saying the same.
func (t *Table) Has(s ethtool.FlowSpec) bool { return t.index(s) >= 0 }

func (t *Table) index(s ethtool.FlowSpec) int {
	return slices.IndexFunc(t.rules, func(r ethtool.FlowSpec) bool { return r.Location == s.Location && r.Same(s) })
}

// Insert puts rules into the card, all or none, and returns them with their places: the last ones
// that are free, the first rule at the lowest. So rules that are there already keep their
// precedence, and a set whose last rule is inserted first is in order. The error wraps
// ethtool.ErrFull where there is no room, ethtool.ErrNotSupported and ethtool.ErrRefused where the
// driver does not take such a rule, and ErrOrder where the card chooses places and one of the rules
// disagrees with another one, or with one of among.
func (t *Table) Insert(rules, among []ethtool.FlowSpec) (in []ethtool.FlowSpec, err error) {
	if t.chooses {
		for i, r := range rules {
			for _, o := range slices.Concat(among, rules[:i]) {
				if disagree(&r, &o) {
					return nil, fmt.Errorf("%w: %v and %v can meet in a packet: make their matches disjoint", ErrOrder,
						o, r)
				}
			}
		}
	}
	places, err := t.places(len(rules))
	if err != nil {
		return nil, err
	}
	for i, s := range rules {
		s.Location = places[i]
		got, err := t.card.InsertRule(s)
		if err != nil {
			err = fmt.Errorf("ntuple: entry %d of %d: %w", i+1, len(rules), err)
			for _, s := range in {
				err = errors.Join(err, t.Delete(s))
			}
			return nil, err
		}
		in = append(in, got)
		t.rules = append(t.rules, got)
	}
	return in, nil
}

// places are the last free places of the table, ascending.
func (t *Table) places(n int) ([]uint32, error) {
	out := make([]uint32, n)
	if t.chooses {
		for i := range out {
			out[i] = ethtool.AnyLocation
		}
		return out, nil
	}
	taken := make(map[uint32]bool, len(t.rules))
	for _, r := range t.rules {
		taken[r.Location] = true
	}
	i := n
	for at := t.size - 1; at >= 0 && i > 0; at-- {
		if !taken[uint32(at)] {
			i--
			out[i] = uint32(at)
		}
	}
	if i > 0 {
		return nil, fmt.Errorf("ntuple: %w: %d entries, room for %d of %d", ethtool.ErrFull, n, n-i, t.size)
	}
	return out, nil
}

// Delete takes a rule out of the card. One that is not there any more, or another one at its place,
// is no error and stays.
func (t *Table) Delete(s ethtool.FlowSpec) error {
	i := t.index(s)
	if i < 0 {
		return nil
	}
	if err := t.card.DeleteRule(s.Location); err != nil {
		return fmt.Errorf("ntuple: take out %v: %w", s, err)
	}
	t.rules = slices.Delete(t.rules, i, i+1)
	return nil
}

// disagree reports whether two rules can accept the same packet and send it to different places.
func disagree(x, y *ethtool.FlowSpec) bool {
	return (x.Queue != y.Queue || x.Drop != y.Drop) && meet(x, y)
}

// kind is what packets of a type have in common: the version of IP, and the protocol; 0: any.
func kind(t ethtool.FlowType) (version, proto uint8) {
	switch t {
	case ethtool.FlowTCP4:
		return 4, 6
	case ethtool.FlowUDP4:
		return 4, 17
	case ethtool.FlowTCP6:
		return 6, 6
	case ethtool.FlowUDP6:
		return 6, 17
	case ethtool.FlowIP4:
		return 4, 0
	case ethtool.FlowIP6:
		return 6, 0
	}
	return 0, 0
}

// meet reports whether a packet can be accepted by both. It may say so where there is none, which
// is the safe side.
func meet(x, y *ethtool.FlowSpec) bool {
	xv, xp := kind(x.Type)
	yv, yp := kind(y.Type)
	if xv != 0 && yv != 0 && xv != yv || xp != 0 && yp != 0 && xp != yp {
		return false
	}
	for _, p := range []struct {
		proto uint8
		other *ethtool.FlowSpec
	}{{xp, y}, {yp, x}} {
		if p.proto != 0 && p.other.Mask.Proto == 0xff && p.other.Value.Proto != p.proto {
			return false
		}
	}
	for _, p := range []struct {
		version uint8
		other   *ethtool.FlowSpec
	}{{xv, y}, {yv, x}} {
		types := map[uint8]uint16{4: 0x0800, 6: 0x86dd}
		if want, ok := types[p.version]; ok && p.other.Mask.EtherType == 0xffff && p.other.Value.EtherType != want {
			return false
		}
	}
	a, b, m, n := &x.Value, &y.Value, &x.Mask, &y.Mask
	apart := func(a, b, m, n uint32) bool { return (a^b)&m&n != 0 }
	for i := range a.DstMAC {
		if apart(uint32(a.DstMAC[i]), uint32(b.DstMAC[i]), uint32(m.DstMAC[i]), uint32(n.DstMAC[i])) ||
			apart(uint32(a.SrcMAC[i]), uint32(b.SrcMAC[i]), uint32(m.SrcMAC[i]), uint32(n.SrcMAC[i])) {
			return false
		}
	}
	for i := range a.Src {
		if apart(uint32(a.Src[i]), uint32(b.Src[i]), uint32(m.Src[i]), uint32(n.Src[i])) ||
			apart(uint32(a.Dst[i]), uint32(b.Dst[i]), uint32(m.Dst[i]), uint32(n.Dst[i])) {
			return false
		}
	}
	return !apart(uint32(a.EtherType), uint32(b.EtherType), uint32(m.EtherType), uint32(n.EtherType)) &&
		!apart(uint32(a.SrcPort), uint32(b.SrcPort), uint32(m.SrcPort), uint32(n.SrcPort)) &&
		!apart(uint32(a.DstPort), uint32(b.DstPort), uint32(m.DstPort), uint32(n.DstPort)) &&
		!apart(uint32(a.Proto), uint32(b.Proto), uint32(m.Proto), uint32(n.Proto)) &&
		!apart(uint32(a.VLAN), uint32(b.VLAN), uint32(m.VLAN), uint32(n.VLAN))
}
