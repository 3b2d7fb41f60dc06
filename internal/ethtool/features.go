package ethtool

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/sys"
)

// Names of features that matter to receiving, as the kernel spells them (net/ethtool/common.c).
const (
	FeatureGRO        = "rx-gro"           // the kernel joins packets of a flow
	FeatureHardGRO    = "rx-gro-hw"        // the card does, so that they can be taken apart again
	FeatureLRO        = "rx-lro"           // the card does, and they cannot
	FeatureNtuple     = "rx-ntuple-filter" // the card steers by n-tuple rules
	FeatureTC         = "hw-tc-offload"    // the card carries out rules of tc
	FeatureHash       = "rx-hashing"       // the card tells a packet's RSS hash
	FeatureRxVLAN     = "rx-vlan-hw-parse" // the card takes VLAN tags out of frames
	FeatureRxChecksum = "rx-checksum"
)

// aliases are the short names of ethtool(8) for features that it lets users set.
var aliases = map[string]string{"gro": FeatureGRO, "lro": FeatureLRO, "ntuple": FeatureNtuple,
	"ntuple-filters": FeatureNtuple,
	"hw-tc":          FeatureTC, "rxhash": FeatureHash, "rxvlan": FeatureRxVLAN, "rx": FeatureRxChecksum}

// Feature is an offload of a device.
type Feature struct {
	Name      string
	Active    bool // it is on
	Requested bool // a user asked for it; it may be off for lack of another
	Fixed     bool // it cannot be changed
}

// Features asks for all features, in the kernel's order. A feature that the driver does not know is
// Fixed and not Active.
func (d *Device) Features() ([]Feature, error) {
	names, err := d.strings("features", stringsFeatures)
	if err != nil {
		return nil, err
	}
	blocks, err := d.features(len(names))
	if err != nil {
		return nil, err
	}
	var out []Feature
	for i, n := range names {
		if n == "" { // a bit that is no feature any more
			continue
		}
		bit := func(word int) bool { return native.Uint32(blocks[16*(i/32)+4*word:])>>(i%32)&1 != 0 }
		available, requested, active, never := bit(0), bit(1), bit(2), bit(3)
		out = append(out, Feature{Name: n, Active: active, Requested: requested, Fixed: !available || never})
	}
	return out, nil
}

// features returns struct ethtool_get_features_block of each 32 features.
func (d *Device) features(n int) ([]byte, error) {
	size := (n + 31) / 32
	b := make([]byte, 8+16*size)
	native.PutUint32(b[4:], uint32(size))
	return b[8:], d.do("features", cmdFeatures, b)
}

// Feature asks for one feature, by the kernel's name for it or that of ethtool(8). The error wraps
// ErrNotSupported where this kernel has no feature of the name.
func (d *Device) Feature(name string) (Feature, error) {
	if long, ok := aliases[name]; ok {
		name = long
	}
	all, err := d.Features()
	if err != nil {
		return Feature{}, err
	}
	if i := slices.IndexFunc(all, func(f Feature) bool { return f.Name == name }); i >= 0 {
		return all[i], nil
	}
	return Feature{}, d.wrap("feature "+name, sys.EOPNOTSUPP)
}

// SetFeature turns a feature on or off, and looks whether it is. The error wraps ErrNotSupported
// where the feature is fixed, and ErrRefused where it did not come to be, because it depends on
// another.
func (d *Device) SetFeature(name string, on bool) error {
	if long, ok := aliases[name]; ok {
		name = long
	}
	what := fmt.Sprintf("feature %s %s", name, onOff(on))
	names, err := d.strings(what, stringsFeatures)
	if err != nil {
		return err
	}
	i := slices.Index(names, name)
	if i < 0 {
		return d.wrap(what, sys.EOPNOTSUPP)
	}
	if f, err := d.Feature(name); err != nil {
		return err
	} else if f.Fixed && f.Active != on {
		return d.wrap(what, fmt.Errorf("the driver does not let it be changed: %w", ErrNotSupported))
	}
	size := (len(names) + 31) / 32
	b := make([]byte, 8+8*size)
	native.PutUint32(b[4:], uint32(size))
	native.PutUint32(b[8+8*(i/32):], 1<<(i%32))         // which one
	native.PutUint32(b[8+8*(i/32)+4:], one(on)<<(i%32)) // what it shall be
	if err := d.do(what, cmdSetFeatures, b); err != nil {
		return err
	}
	f, err := d.Feature(name)
	if err == nil && f.Active != on {
		err = d.wrap(what, fmt.Errorf("it is still %s, as it depends on another feature or on the device's state: %w",
			onOff(f.Active), ErrRefused))
	}
	return err
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
