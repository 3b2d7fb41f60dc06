package metrics

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// FamilyKind says what the samples of a Family are.
type FamilyKind uint8

// The kinds of families.
const (
	KindCounter   FamilyKind = iota + 1 // only grows, until whatever counts restarts
	KindGauge                           // a level
	KindHistogram                       // a distribution
)

func (k FamilyKind) String() string {
	switch k {
	case KindCounter:
		return "counter"
	case KindGauge:
		return "gauge"
	case KindHistogram:
		return "histogram"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Family is one metric with all its samples: the form in which packages hand their counts to
// exporters, so that an exporter knows nothing of the packages and they nothing of it.
type Family struct {
	// Name as exporters show it: lower case with underscores, the unit last and in base units
	// (seconds, bytes), "_total" after that for counters: penstock_bytes_total. See Check.
	Name   string
	Help   string // one sentence
	Kind   FamilyKind
	Labels []string // names of the labels, the same for all samples; no set of values may come twice
	// Scale turns the values of histograms into base units: 1e-9 for nanoseconds. 0 means 1.
	Scale float64
	// Bounds are the upper ends of the buckets in which a histogram is shown, rising, before
	// scaling. nil: LatencyBounds.
	Bounds  []uint64
	Samples []Sample
}

// Sample is one value of a family.
type Sample struct {
	Values    []string           // of the labels, in their order
	Value     float64            // of a counter or gauge
	Histogram *HistogramSnapshot // of a histogram; the exporter only reads it
}

// Source gives families when it is asked; it may be called from any goroutine.
type Source func() []Family

// LatencyBounds are bounds for durations in nanoseconds: 1, 2 and 5 of each power of ten from 1 us
// to 10 s.
var LatencyBounds = []uint64{1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 2e8, 5e8,
	1e9, 2e9, 5e9, 1e10}

// AtMost is how many of the values are at most v, as far as the buckets tell: values in the bucket
// of v count as larger unless v is the highest of it. So a value up to 1/SubBuckets below v may be
// missing, none above v is counted, and the result never decreases with v.
func (s *HistogramSnapshot) AtMost(v uint64) uint64 {
	last := bucketOf(v)
	if _, high := Bounds(last); high > v {
		last--
	}
	var n uint64
	for i := 0; i <= last; i++ {
		n += s.Counts[i]
	}
	return n
}

// ErrFamily is what Check finds; match it with errors.Is.
var ErrFamily = errors.New("metrics: family breaks a rule")

var (
	familyName = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	// notBase are endings of units that are not base units
	// (https://prometheus.io/docs/practices/naming/).
	notBase = []string{"_ns", "_us", "_ms", "_milliseconds", "_microseconds", "_nanoseconds", "_minutes", "_hours",
		"_kb", "_mb", "_kib", "_mib",
		"_kilobytes", "_megabytes", "_bits", "_percent"}
	reserved = []string{"_bucket", "_count", "_sum", "_info_total"}
)

// Check keeps the rules of names that monitoring systems expect (those of `promtool check metrics`
// and of OpenMetrics): a family has a help text; a counter ends in _total and nothing else does;
// units are base units; labels have valid names, "le" and "quantile" are not among them; each
// sample has a value for each label and no two have the same; values are valid UTF-8; counters are
// not negative.
func (f *Family) Check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: %s", ErrFamily, f.Name, fmt.Sprintf(format, args...))
	}
	base := strings.TrimSuffix(f.Name, "_total")
	switch {
	case !familyName.MatchString(f.Name):
		return bad("name: expected words of a-z and 0-9 with underscores between them")
	case strings.TrimSpace(f.Help) == "":
		return bad("no help text")
	case f.Kind < KindCounter || f.Kind > KindHistogram:
		return bad("%v: expected a counter, gauge or histogram", f.Kind)
	case (f.Kind == KindCounter) != (base != f.Name):
		return bad("%v: the name of a counter ends in _total, no other does", f.Kind)
	case f.Kind != KindHistogram && (f.Bounds != nil || f.Scale != 0):
		return bad("%v with bounds or scale, which are for histograms", f.Kind)
	case !slices.IsSorted(f.Bounds):
		return bad("bounds that do not rise")
	}
	for _, s := range notBase {
		if strings.HasSuffix(base, s) {
			return bad("%s is no base unit: use seconds, bytes or a ratio", s)
		}
	}
	for _, s := range reserved {
		if strings.HasSuffix(f.Name, s) {
			return bad("%s is reserved", s)
		}
	}
	for i, l := range f.Labels {
		if !familyName.MatchString(l) || l == "le" || l == "quantile" || slices.Contains(f.Labels[:i], l) {
			return bad("label %q: expected another name", l)
		}
	}
	seen := map[string]bool{}
	for _, s := range f.Samples {
		switch {
		case len(s.Values) != len(f.Labels):
			return bad("a sample with %d values for %d labels", len(s.Values), len(f.Labels))
		case (f.Kind == KindHistogram) != (s.Histogram != nil):
			return bad("%v: a histogram snapshot belongs to histograms, and to them only", f.Kind)
		case f.Kind == KindCounter && !(s.Value >= 0):
			return bad("a counter of %v", s.Value)
		}
		for _, v := range s.Values {
			if !utf8.ValidString(v) {
				return bad("label value %q is not UTF-8: use LabelValue", v)
			}
		}
		key := fmt.Sprintf("%q", s.Values)
		if seen[key] {
			return bad("two samples with the labels %s", key)
		}
		seen[key] = true
	}
	return nil
}

// MaxLabelValue is the length in bytes to which LabelValue cuts.
const MaxLabelValue = 128

// LabelValue makes a text that came from elsewhere fit to be a label's value: valid UTF-8, without
// control characters, at most MaxLabelValue bytes. Two texts may become the same.
func LabelValue(s string) string {
	if len(s) > MaxLabelValue {
		s = s[:MaxLabelValue]
		for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
		if r, n := utf8.DecodeLastRuneInString(s); r == utf8.RuneError && n == 1 {
			s = s[:len(s)-1] // the start of a character that was cut
		}
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
	return s
}
