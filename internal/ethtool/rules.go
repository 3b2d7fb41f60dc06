package ethtool

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/sys"
)

// Offsets of struct ethtool_rxnfc.
const (
	rxnfcFlowType = 4
	rxnfcData     = 8
	rxnfcSpec     = 16
	rxnfcCount    = rxnfcSpec + specLen // or the RSS context
	rxnfcPlaces   = rxnfcCount + 4
	rxnfcLen      = 192

	chooses   = 0x80000000 // RX_CLS_LOC_SPECIAL: the driver chooses places itself
	mostRules = 1 << 20
)

// ErrFull: the card's table has no place left.
var ErrFull = errors.New("the card's table of rules is full")

// RuleTable is the size of a card's table of n-tuple rules.
type RuleTable struct {
	Rules   int  // that are there
	Size    int  // places; 0 where the driver does not say
	Chooses bool // the driver chooses a place by itself, and its order is unknown
}

// RuleTable asks for the size of the table. A table of size 0 that holds no rule means that the
// card has none, or that the feature FeatureNtuple is off.
func (d *Device) RuleTable() (t RuleTable, err error) {
	t, _, err = d.ruleTable()
	return t, err
}

func (d *Device) ruleTable() (t RuleTable, places []uint32, err error) {
	const what = "n-tuple rules"
	b := make([]byte, rxnfcLen)
	if err := d.do(what, cmdRuleCount, b); err != nil {
		return t, nil, err
	}
	n := native.Uint32(b[rxnfcCount:])
	if n > mostRules {
		return t, nil, d.wrap(what, fmt.Errorf("%d rules: %w", n, ErrMalformed))
	}
	t.Rules, t.Chooses = int(n), native.Uint64(b[rxnfcData:])&chooses != 0
	// A few more than it said: another program may add some. With too little room the driver
	// refuses and writes nothing beyond it.
	room := n + 16
	b = make([]byte, max(rxnfcLen, rxnfcPlaces+4*int(room)))
	native.PutUint32(b[rxnfcCount:], room)
	if err := d.do(what, cmdRules, b); err != nil {
		return t, nil, err
	}
	if n = native.Uint32(b[rxnfcCount:]); n > room {
		return t, nil, d.wrap(what, fmt.Errorf("%d rules in room for %d: %w", n, room, ErrMalformed))
	}
	t.Rules, t.Size = int(n), int(native.Uint64(b[rxnfcData:])&^chooses)
	for i := range int(n) {
		places = append(places, native.Uint32(b[rxnfcPlaces+4*i:]))
	}
	slices.Sort(places)
	return t, places, nil
}

// Rules lists the card's n-tuple rules by their place.
func (d *Device) Rules() ([]FlowSpec, error) {
	_, places, err := d.ruleTable()
	if err != nil {
		return nil, err
	}
	out := make([]FlowSpec, 0, len(places))
	for _, p := range places {
		s, err := d.Rule(p)
		if err != nil {
			if sys.IsErrno(err, sys.ENOENT) { // deleted since
				continue
			}
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// Rule reads the rule at a place.
func (d *Device) Rule(location uint32) (FlowSpec, error) {
	b := make([]byte, rxnfcLen)
	native.PutUint32(b[rxnfcSpec+specLocation:], location)
	if err := d.do(fmt.Sprintf("n-tuple rule %d", location), cmdRule, b); err != nil {
		return FlowSpec{}, err
	}
	s := decodeSpec(b[rxnfcSpec:])
	if native.Uint32(b[rxnfcSpec:])&flowRSS != 0 {
		s.Context = native.Uint32(b[rxnfcCount:])
	}
	return s, nil
}

// InsertRule puts a rule into the card's table, reads it back, and returns it with its place. A
// rule at the same place is replaced. With AnyLocation it gets the last free place, where it stands
// behind all others, or the one that the driver chooses. Where the card keeps less than was asked
// for (a driver that takes no notice of a mask), the rule is taken out again and the error wraps
// ErrRefused.
func (d *Device) InsertRule(s FlowSpec) (FlowSpec, error) {
	what := "n-tuple rule " + s.String()
	switch s.Type {
	case FlowTCP4, FlowUDP4, FlowTCP6, FlowUDP6, FlowIP4, FlowIP6, FlowEther:
	default:
		return s, d.wrap(what, fmt.Errorf("expected one of the types that this package knows: %w", ErrNotSupported))
	}
	if s.Location == AnyLocation {
		t, places, err := d.ruleTable()
		if err != nil {
			return s, err
		}
		if !t.Chooses {
			at := int64(t.Size) - 1
			for slices.Contains(places, uint32(at)) && at >= 0 {
				at--
			}
			if at < 0 {
				if t.Size == 0 {
					return s, d.wrap(what,
						fmt.Errorf("the card has no table of rules; \"ethtool -K %s ntuple on\" may give it one: %w",
							d.name, ErrNotSupported))
				}
				return s, d.wrap(what, fmt.Errorf("%w: %d places", ErrFull, t.Size))
			}
			s.Location = uint32(at)
		}
	}
	b := make([]byte, rxnfcLen)
	s.encode(b[rxnfcSpec:])
	native.PutUint32(b[rxnfcCount:], s.Context)
	if err := d.do(what, cmdInsertRule, b); err != nil {
		if errors.Is(err, sys.ENOSPC) {
			err = fmt.Errorf("%w: %w", ErrFull, err)
		}
		return s, err
	}
	s.Location = native.Uint32(b[rxnfcSpec+specLocation:])
	got, err := d.Rule(s.Location)
	if err != nil {
		return s, errors.Join(err, d.DeleteRule(s.Location))
	}
	if !got.Same(s) {
		err := fmt.Errorf("the card keeps %v instead: %w", got, ErrRefused)
		return s, d.wrap(what, errors.Join(err, d.DeleteRule(s.Location)))
	}
	return s, nil
}

// DeleteRule takes a rule out of the card's table.
func (d *Device) DeleteRule(location uint32) error {
	b := make([]byte, rxnfcLen)
	native.PutUint32(b[rxnfcSpec+specLocation:], location)
	return d.do(fmt.Sprintf("n-tuple rule %d", location), cmdDeleteRule, b)
}
