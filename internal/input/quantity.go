// Package input parses values that people write: quantities with units, and unknown words with the
// nearest known one.
//
//	n, err := input.Quantity("4KiB", input.Sizes, 1)  // 4096
//	word := input.Nearest("lisen", []string{"listen", "local"}) // listen
package input

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// Unit is the name of a unit and how many of the first unit of its list it is.
type Unit struct {
	Name string
	Of   int64
}

// Sizes, Rates and Times are the units of bytes, of bits per second and of time, the base unit
// first.
var (
	Sizes = []Unit{{"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
		{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}
	Rates = []Unit{{"bps", 1}, {"kbps", 1e3}, {"Mbps", 1e6}, {"Gbps", 1e9}, {"Tbps", 1e12},
		{"b/s", 1}, {"kb/s", 1e3}, {"Mb/s", 1e6}, {"Gb/s", 1e9}, {"Tb/s", 1e12}}
	Times = []Unit{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}, {"µs", 1e3}}
)

// maxNumber bounds the length of a number with a unit: longer ones are not numbers that a person
// means.
const maxNumber = 40

// Quantity reads a number with a unit. bare is what a number without one counts, 0 for "it must
// have one": then the error is ErrNoUnit. An error says what is wrong, without the text itself.
func Quantity(s string, units []Unit, bare int64) (int64, error) {
	if s == "" {
		return 0, fmt.Errorf("is empty")
	}
	if s[0] == '-' {
		return 0, fmt.Errorf("is less than nothing")
	}
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.') {
		i++
	}
	number, name := s[:i], strings.TrimSpace(s[i:])
	if number == "" || strings.Count(number, ".") > 1 || number[0] == '.' || number[len(number)-1] == '.' ||
		len(s) > maxNumber {
		return 0, fmt.Errorf("is not a number with a unit")
	}
	of := bare
	if name != "" {
		of = 0
		for _, u := range units {
			if u.Name == name {
				of = u.Of
			}
		}
		if of == 0 {
			var names []string
			for _, u := range units {
				names = append(names, u.Name)
			}
			return 0, fmt.Errorf("has the unknown unit %q%s", name, unitHint(name, names))
		}
	} else if strings.Trim(number, "0.") == "" {
		return 0, nil
	} else if bare == 0 {
		return 0, ErrNoUnit
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, fmt.Errorf("is not a number with a unit")
	}
	r.Mul(r, new(big.Rat).SetInt64(of))
	if !r.IsInt() {
		return 0, fmt.Errorf("is not a whole number of %s", units[0].Name)
	}
	if !r.Num().IsInt64() {
		return 0, fmt.Errorf("is too large")
	}
	return r.Num().Int64(), nil
}

// ErrNoUnit says that a number has no unit and needs one.
var ErrNoUnit = fmt.Errorf("has no unit")

// unitHint names the unit that was probably meant: K and k are the usual traps.
func unitHint(name string, names []string) string {
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return fmt.Sprintf(": did you mean %s?", n)
		}
	}
	for _, n := range names {
		if strings.EqualFold(n[:1], name[:1]) && n != "m" {
			return fmt.Sprintf(": did you mean %s?", n)
		}
	}
	return ""
}

// Exact writes n in the largest of the first count units that divides it.
func Exact(n int64, units []Unit, count int) string {
	best := units[0]
	for _, u := range units[:count] {
		if n != 0 && n%u.Of == 0 && u.Of > best.Of {
			best = u
		}
	}
	return strconv.FormatInt(n/best.Of, 10) + best.Name
}
