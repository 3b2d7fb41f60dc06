package metrics

import (
	"errors"
	"slices"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestAtMost compares with counting the samples one by one.
func TestAtMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vs := samples.Draw(t, "values")
		s := record(vs)
		bounds := append(samples.Draw(t, "bounds"), vs...)
		slices.Sort(bounds)
		var last uint64
		for _, b := range bounds {
			var most, least uint64 // values that are at most b, and those of which the buckets must know it
			for _, v := range vs {
				if v <= b {
					most++
				}
				if _, high := Bounds(bucketOf(v)); high <= b {
					least++
				}
			}
			got := s.AtMost(b)
			if got > most || got < least || got < last {
				t.Fatalf("%d values are at most %d, expected %d to %d, and not below %d", got, b, least, most, last)
			}
			last = got
		}
		if got := s.AtMost(^uint64(0)); got != uint64(len(vs)) {
			t.Fatalf("%d of %d values are at most the largest there is", got, len(vs))
		}
	})
}

func TestCheck(t *testing.T) {
	h := record([]uint64{1})
	good := []Family{
		{Name: "penstock_bytes_total", Help: "Bytes.", Kind: KindCounter, Labels: []string{"path"},
			Samples: []Sample{{Values: []string{"a"}}, {Values: []string{"b"}, Value: 3}}},
		{Name: "penstock_peers", Help: "Peers.", Kind: KindGauge, Samples: []Sample{{Value: -1}}},
		{Name: "penstock_wait_seconds", Help: "Waits.", Kind: KindHistogram, Scale: 1e-9, Bounds: LatencyBounds, Samples: []Sample{{Histogram: h}}},
	}
	for _, f := range good {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
	}
	with := func(i int, change func(f *Family)) Family {
		f := good[i]
		f.Samples = slices.Clone(f.Samples)
		change(&f)
		return f
	}
	for what, f := range map[string]Family{
		"upper case":        with(0, func(f *Family) { f.Name = "penstock_Bytes_total" }),
		"empty":             with(0, func(f *Family) { f.Name = "" }),
		"no help":           with(0, func(f *Family) { f.Help = " " }),
		"no total":          with(0, func(f *Family) { f.Name = "penstock_bytes" }),
		"total of a gauge":  with(1, func(f *Family) { f.Name = "penstock_peers_total" }),
		"milliseconds":      with(2, func(f *Family) { f.Name = "penstock_wait_ms" }),
		"count":             with(1, func(f *Family) { f.Name = "penstock_peers_count" }),
		"kind":              with(1, func(f *Family) { f.Kind = 0 }),
		"bounds":            with(2, func(f *Family) { f.Bounds = []uint64{2, 1} }),
		"bounds of a gauge": with(1, func(f *Family) { f.Bounds = []uint64{1} }),
		"le":                with(0, func(f *Family) { f.Labels = []string{"le"} }),
		"label twice":       with(0, func(f *Family) { f.Labels = []string{"a", "a"}; f.Samples = nil }),
		"too few values":    with(0, func(f *Family) { f.Samples[0].Values = nil }),
		"same values":       with(0, func(f *Family) { f.Samples[1].Values = []string{"a"} }),
		"not UTF-8":         with(0, func(f *Family) { f.Samples[1].Values = []string{"\xff"} }),
		"negative":          with(0, func(f *Family) { f.Samples[1].Value = -1 }),
		"no snapshot":       with(2, func(f *Family) { f.Samples[0].Histogram = nil }),
		"snapshot":          with(1, func(f *Family) { f.Samples[0].Histogram = h }),
	} {
		if err := f.Check(); !errors.Is(err, ErrFamily) {
			t.Errorf("%s: error %v", what, err)
		}
	}
}

func TestLabelValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.Custom(func(t *rapid.T) string {
			return string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		})).Draw(t, "text")
		for range rapid.IntRange(0, 7).Draw(t, "double") {
			s += s
			if len(s) > 1000 {
				break
			}
		}
		v := LabelValue(s)
		if !utf8.ValidString(v) || len(v) > MaxLabelValue {
			t.Fatalf("%q of %q", v, s)
		}
		for _, r := range v {
			if r < ' ' || r == 0x7f {
				t.Fatalf("%q of %q", v, s)
			}
		}
		if LabelValue(v) != v {
			t.Fatalf("%q becomes %q", v, LabelValue(v))
		}
	})
	for s, want := range map[string]string{"worker": "worker", "wörker 1": "wörker 1", "a\nb\x1b": "a?b?",
		"\xffx": "?x"} {
		if v := LabelValue(s); v != want {
			t.Errorf("%q of %q, expected %q", v, s, want)
		}
	}
}
