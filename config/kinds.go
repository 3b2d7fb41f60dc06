package config

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/input"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/stage/record"
	"github.com/penstock-io/penstock/tensor"
)

// scalar is a value as it is written.
type scalar struct {
	text   string
	quoted bool
	loose  bool // in a DAQIRI file: numbers and truths may be quoted, and truths may be yes and no
	old    bool // under DAQIRI's name of the key, which may say a unit
}

// kind is what the value of a key may be.
type kind struct {
	name   string // in tables: "size"
	expect string // in messages: "a size from 1B to 1TiB, such as 4096, 4KiB or 2MiB"
	// parse returns the value, or what is wrong with it, to be read behind the quoted text: "has no
	// unit".
	parse  func(s scalar) (any, string)
	format func(v reflect.Value) string
	schema map[string]any // of JSON Schema; old where DAQIRI's name allows more
	old    map[string]any
	words  []string // that it may be; for suggestions
}

func text(what string) *kind {
	return &kind{name: what, expect: what,
		parse: func(s scalar) (any, string) {
			if s.text == "" && !s.quoted {
				return nil, "is empty"
			}
			return s.text, ""
		},
		schema: map[string]any{"type": []any{"string", "number"}},
	}
}

func boolean() *kind {
	return &kind{name: "bool", expect: "true or false",
		parse: func(s scalar) (any, string) {
			if s.quoted && !s.loose {
				return nil, "is a text, because of its quotes"
			}
			switch s.text {
			case "true", "True", "TRUE":
				return true, ""
			case "false", "False", "FALSE":
				return false, ""
			}
			if s.loose {
				switch strings.ToLower(s.text) {
				case "yes", "on", "y":
					return true, ""
				case "no", "off", "n":
					return false, ""
				}
			}
			return nil, "is neither"
		},
		schema: map[string]any{"type": "boolean"},
		old:    map[string]any{"enum": []any{true, false, "true", "false", "yes", "no", "on", "off", "y", "n"}},
	}
}

// integer is a whole number, decimal or with 0x.
func integer(lo, hi int64) *kind {
	k := &kind{name: fmt.Sprintf("number, %d to %d", lo, hi),
		expect: fmt.Sprintf("a whole number from %d to %d", lo, hi),
		parse:  func(s scalar) (any, string) { return parseInt(s, lo, hi) },
		schema: map[string]any{"type": "integer", "minimum": lo, "maximum": hi},
		old: map[string]any{"anyOf": []any{map[string]any{"type": "integer", "minimum": lo, "maximum": hi},
			map[string]any{"type": "string", "pattern": "^-?(0[xX][0-9a-fA-F]+|[0-9]+)$"}}},
	}
	if lo == hi {
		k.name, k.expect = fmt.Sprintf("number, %d", lo), fmt.Sprintf("%d", lo)
	}
	if hi == math.MaxInt32 {
		k.name = fmt.Sprintf("number, %d or more", lo)
	}
	return k
}

// real is a finite number.
func real() *kind {
	return &kind{name: "number", expect: "a number such as 0.25 or -3e5",
		parse: func(s scalar) (any, string) {
			if s.quoted && !s.loose {
				return nil, "is a text, because of its quotes"
			}
			x, err := strconv.ParseFloat(s.text, 64)
			switch {
			case errors.Is(err, strconv.ErrRange) || math.IsInf(x, 0) || math.IsNaN(x):
				return nil, "is out of range"
			case err != nil || strings.ContainsAny(s.text, "xX_"):
				return nil, "is not a number"
			}
			return x, ""
		},
		schema: map[string]any{"type": "number"},
	}
}

// factor is a real number but 0.
func factor() *kind {
	k := real()
	of := k.parse
	k.parse = func(s scalar) (any, string) {
		x, wrong := of(s)
		if x == 0.0 {
			return nil, "makes every value the same"
		}
		return x, wrong
	}
	k.expect += ", not 0"
	return k
}

// hexadecimal is an integer that is written with 0x.
func hexadecimal(lo, hi int64, digits int) *kind {
	k := integer(lo, hi)
	k.name = fmt.Sprintf("number, 0x%x to 0x%x", lo, hi)
	k.expect = fmt.Sprintf("a number from 0x%x to 0x%x", lo, hi)
	k.format = func(v reflect.Value) string { return fmt.Sprintf("0x%0*x", digits, v.Uint()) }
	return k
}

func parseInt(s scalar, lo, hi int64) (any, string) {
	if s.quoted && !s.loose {
		return nil, "is a text, because of its quotes"
	}
	digits, base, sign := s.text, 10, int64(1)
	if d, ok := strings.CutPrefix(digits, "-"); ok {
		digits, sign = d, -1
	}
	if len(digits) > 2 && (digits[:2] == "0x" || digits[:2] == "0X") {
		digits, base = digits[2:], 16
	} else if len(digits) > 1 && digits[0] == '0' && strings.Trim(digits, "01234567") == "" {
		return nil, fmt.Sprintf("begins with 0: some readers of YAML take that as octal, others as decimal; write %s",
			strings.TrimLeft(digits, "0"))
	}
	n, err := strconv.ParseUint(digits, base, 63)
	if err != nil {
		if _, err := strconv.ParseFloat(s.text, 64); err == nil {
			if strings.Trim(s.text, "-0123456789") == "" {
				return nil, "is out of range"
			}
			return nil, "is not a whole number"
		}
		if _, err := input.Quantity(s.text, slices.Concat(input.Sizes, input.Rates, input.Times), 0); err == nil {
			return nil, "has a unit, and this is a plain number"
		}
		return nil, "is not a number"
	}
	v := int64(n) * sign
	if v < lo || v > hi {
		return nil, "is out of range"
	}
	return v, ""
}

// word is one of a few words. An alias is written other=word.
func word(words ...string) *kind {
	alias := map[string]string{}
	var main, all []string
	for _, w := range words {
		other, w, is := strings.Cut(w, "=")
		if is {
			alias[other] = w
			all = append(all, other)
			continue
		}
		main, all = append(main, other), append(all, other)
	}
	enum := func(l []string) (out []any) {
		for _, w := range l {
			out = append(out, w)
		}
		return
	}
	return &kind{name: strings.Join(main, ", "), expect: oneOf(main), words: all,
		parse: func(s scalar) (any, string) {
			if w, ok := alias[s.text]; ok {
				return w, ""
			}
			for _, w := range main {
				if w == s.text {
					return w, ""
				}
			}
			return nil, "is not one of the words"
		},
		schema: map[string]any{"enum": enum(main)},
		old:    map[string]any{"enum": enum(all)},
	}
}

// loose lets the schema take aliases too, also in files in our format.
func loose(k *kind) *kind {
	k.schema = k.old
	return k
}

// element is a type of elements, by any name that package tensor takes (f16, fp16, float16); it is
// kept and printed by that package's own.
func element(types ...tensor.DType) *kind {
	var words []string
	for _, t := range types {
		words = append(words, t.String())
		for _, w := range t.Words() {
			words = append(words, w+"="+t.String())
		}
	}
	k := loose(word(words...))
	known := k.parse
	k.parse = func(s scalar) (any, string) {
		if t, err := tensor.ParseDType(s.text); err == nil {
			s.text = t.String()
		}
		return known(s)
	}
	return k
}

// oneOf lists words for a message: "a, b or c".
func oneOf(words []string) string {
	shown := make([]string, len(words))
	for i, w := range words {
		shown[i] = w
		if w == "" {
			shown[i] = `""`
		}
	}
	if len(shown) < 2 {
		return strings.Join(shown, "")
	}
	return strings.Join(shown[:len(shown)-1], ", ") + " or " + shown[len(shown)-1]
}

func size(lo, hi Size) *kind {
	k := measured("size", "4096, 4KiB or 2MiB", int64(lo), int64(hi), input.Sizes, 1, 1, func(n int64) (any, string) {
		return Size(n), Size(n).String()
	})
	k.format = func(v reflect.Value) string { return Size(v.Int()).String() }
	return k
}

// ring is a time or a size, of what is kept in memory.
func ring() *kind {
	k := &kind{name: "time or size", expect: "a time or a size, such as 30s or 1GiB"}
	k.parse = func(s scalar) (any, string) {
		o, err := record.ParseRing(s.text)
		if err != nil {
			return nil, "is neither, or out of range: a ring has up to 1h, or 1MiB to 1TiB"
		}
		return o, ""
	}
	k.format = func(v reflect.Value) string { return v.Interface().(record.Ring).String() }
	k.schema = map[string]any{"anyOf": []any{span(0, time.Hour, 0).schema, size(0, 1<<40).schema}}
	return k
}

// boundary is a size, or a truth: DAQIRI's files have both, and its programs look at neither.
func boundary() *kind {
	k := size(0, 65535)
	of := k.parse
	k.parse = func(s scalar) (any, string) {
		if _, wrong := boolean().parse(s); wrong == "" && !s.quoted {
			return Size(0), ""
		}
		return of(s)
	}
	k.schema = map[string]any{"anyOf": []any{k.schema, boolean().schema}}
	k.old = k.schema
	return k
}

// rate is in bits per second; bare is what a number without a unit counts under DAQIRI's name of
// the key.
func rate(hi Rate, bare int64) *kind {
	k := measured("rate", "10Gbps or 500Mbps", 0, int64(hi), input.Rates, 0, bare, func(n int64) (any, string) {
		return Rate(n), Rate(n).String()
	})
	k.format = func(v reflect.Value) string { return Rate(v.Uint()).String() }
	return k
}

func span(lo, hi time.Duration, bare time.Duration) *kind {
	k := measured("time", "50us, 2ms or 1s", int64(lo), int64(hi), input.Times, 0, int64(bare),
		func(n int64) (any, string) {
			return time.Duration(n), duration(time.Duration(n))
		})
	k.format = func(v reflect.Value) string { return duration(time.Duration(v.Int())) }
	return k
}

func measured(name, such string, lo, hi int64, units []input.Unit, bare, oldBare int64,
	value func(int64) (any, string)) *kind {
	_, least := value(lo)
	_, most := value(hi)
	k := &kind{name: fmt.Sprintf("%s, %s to %s", name, least, most),
		expect: fmt.Sprintf("a %s from %s to %s, such as %s", name, least, most, such)}
	k.parse = func(s scalar) (any, string) {
		b := bare
		if s.old {
			b = oldBare
		}
		n, err := input.Quantity(s.text, units, b)
		if err == input.ErrNoUnit {
			return nil, fmt.Sprintf("has no unit: write %s%s, say", s.text,
				map[bool]string{true: "us", false: "Mbps"}[name == "time"])
		}
		if err != nil {
			return nil, err.Error()
		}
		if n < lo || n > hi {
			return nil, "is out of range"
		}
		v, _ := value(n)
		return v, ""
	}
	var names []string
	for _, u := range units {
		names = append(names, regexp.QuoteMeta(u.Name))
	}
	with := map[string]any{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)? ?(` + strings.Join(names, "|") + `)?$`}
	any1 := map[string]any{"anyOf": []any{map[string]any{"type": "integer", "minimum": 0}, with}}
	k.old = any1
	k.schema = any1
	if bare == 0 {
		k.schema = map[string]any{"anyOf": []any{map[string]any{"const": 0}, with}}
	}
	return k
}

func macAddress() *kind {
	return &kind{name: "MAC", expect: "an Ethernet address such as 02:00:5e:10:00:01",
		parse: func(s scalar) (any, string) {
			m, err := packet.ParseMAC(s.text)
			if err != nil {
				return nil, "is not an Ethernet address"
			}
			return m, ""
		},
		schema: map[string]any{"type": "string", "pattern": "^[0-9A-Fa-f]{2}([:.-]?[0-9A-Fa-f]{2}){5}$"},
	}
}

func ipAddress() *kind {
	return &kind{name: "IP address", expect: "an IPv4 or IPv6 address such as 10.0.0.1 or fd00::1",
		parse: func(s scalar) (any, string) {
			if s.loose {
				s.text = leadingZeros.ReplaceAllString(s.text, "$1")
			}
			a, err := netip.ParseAddr(s.text)
			if err != nil || a.Zone() != "" {
				return nil, "is not an IP address"
			}
			return a, ""
		},
		schema: map[string]any{"type": "string", "pattern": "^[0-9A-Fa-f:.]+$"},
	}
}

// leadingZeros finds the zeros in front of numbers of one digit, which mean the same to readers
// that take them for octal.
var leadingZeros = regexp.MustCompile(`\b0+([0-7])\b`)

func ipPrefix() *kind {
	return &kind{name: "IP address or CIDR block",
		expect: "an IPv4 or IPv6 address or block such as 10.0.0.1, 10.0.0.0/8 or fd00::/64",
		parse: func(s scalar) (any, string) {
			if a, err := netip.ParseAddr(s.text); err == nil && a.Zone() == "" {
				return netip.PrefixFrom(a, a.BitLen()), ""
			}
			p, err := netip.ParsePrefix(s.text)
			if err != nil {
				return nil, "is neither an IP address nor a block"
			}
			if p != p.Masked() {
				return nil, fmt.Sprintf("has bits beyond its /%d: write %v, or %v/%d for the one address", p.Bits(),
					p.Masked(), p.Addr(), p.Addr().BitLen())
			}
			return p, ""
		},
		format: func(v reflect.Value) string {
			p := v.Interface().(netip.Prefix)
			if p.IsSingleIP() {
				return p.Addr().String()
			}
			return p.String()
		},
		schema: map[string]any{"type": "string", "pattern": "^[0-9A-Fa-f:.]+(/[0-9]+)?$"},
	}
}

// ports is a number of 16 bits or a range of them.
func ports() *kind {
	return &kind{name: "number or range", expect: "a number from 0 to 65535, or a range such as 4096-4103",
		parse: func(s scalar) (any, string) {
			var r flow.Range
			if err := r.UnmarshalText([]byte(strings.ReplaceAll(s.text, " ", ""))); err != nil {
				if strings.Contains(err.Error(), "begins above") {
					return nil, "begins above its end"
				}
				return nil, "is neither a number nor a range"
			}
			return r, ""
		},
		schema: map[string]any{"anyOf": []any{map[string]any{"type": "integer", "minimum": 0, "maximum": 65535},
			map[string]any{"type": "string",
				"pattern": "^(0[xX][0-9a-fA-F]+|[0-9]+)( *- *(0[xX][0-9a-fA-F]+|[0-9]+))?$"}}},
	}
}

func vlanID() *kind {
	return &kind{name: "0 to 4095 or untagged", expect: "a VLAN number from 0 to 4095, or untagged",
		parse: func(s scalar) (any, string) {
			var v flow.VLAN
			if err := v.UnmarshalText([]byte(s.text)); err != nil {
				return nil, "is neither"
			}
			return v, ""
		},
		schema: map[string]any{"anyOf": []any{map[string]any{"const": "untagged"},
			map[string]any{"type": "integer", "minimum": 0, "maximum": 4095}}},
	}
}

var protoNames = map[string]packet.Proto{"icmp": 1, "tcp": 6, "udp": 17, "gre": 47, "icmpv6": 58, "sctp": 132}

func proto() *kind {
	return &kind{name: "protocol", expect: "icmp, tcp, udp, gre, icmpv6, sctp or a number from 0 to 255",
		words: []string{"icmp", "tcp", "udp", "gre", "icmpv6", "sctp"},
		parse: func(s scalar) (any, string) {
			if p, ok := protoNames[s.text]; ok {
				return p, ""
			}
			s.quoted = false
			n, wrong := parseInt(s, 0, 255)
			if wrong != "" {
				return nil, "is not a protocol"
			}
			return packet.Proto(n.(int64)), ""
		},
		format: func(v reflect.Value) string {
			for n, p := range protoNames {
				if uint64(p) == v.Uint() {
					return n
				}
			}
			return strconv.FormatUint(v.Uint(), 10)
		},
		schema: map[string]any{"anyOf": []any{map[string]any{"enum": []any{"icmp", "tcp", "udp", "gre", "icmpv6",
			"sctp"}},
			map[string]any{"type": "integer", "minimum": 0, "maximum": 255}}},
	}
}

func endpoint() *kind {
	return &kind{name: "endpoint",
		expect: "udp://, tcp:// or roce://, an IP address and a port, such as udp://10.0.0.1:5000",
		parse: func(s scalar) (any, string) {
			e, err := parseEndpoint(s.text)
			if err != nil {
				return nil, err.Error()
			}
			return e, ""
		},
		schema: map[string]any{"type": "string", "pattern": "^(udp|tcp|roce|rdma)://"},
	}
}

// core is the number of a processor, -1 for none.
func core() *kind { return integer(-1, 4095) }

// formatOf writes a value as the file would.
func (k *kind) formatOf(v reflect.Value) string {
	if k.format != nil {
		return k.format(v)
	}
	switch v.Kind() {
	case reflect.Int, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		if v.CanInt() {
			return strconv.FormatInt(v.Int(), 10)
		}
		if _, named := v.Interface().(flow.VLAN); !named {
			return strconv.FormatUint(v.Uint(), 10)
		}
	}
	return fmt.Sprint(v.Interface())
}
