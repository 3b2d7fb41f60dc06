package paired

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func compared(t *testing.T, a, b *Report, margin float64) (*Comparison, string) {
	t.Helper()
	c, err := Compare("a.json", a, "b.json", b, margin)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := c.Table(&out); err != nil {
		t.Fatal(err)
	}
	return c, out.String()
}

func TestCompare(t *testing.T) {
	a, b := sample(t, 1), sample(t, 1.3)
	b.Began, b.Method.Seed, b.Build.Commit = b.Began.Add(time.Hour), 43, "fedcba9876543210"
	b.Rows[3].Name = "pool get only"
	c, out := compared(t, a, b, DefaultMargin)
	golden(t, "compare.txt", []byte(out))
	for l := range strings.Lines(out) {
		if len(l) > width+1 {
			t.Errorf("%d columns: %s", len(l)-1, l)
		}
	}
	if len(c.Rows) != 3 || c.Count(Better) != 3 || len(c.OnlyA) != 1 || c.OnlyA[0] != "pool get+put" ||
		len(c.OnlyB) != 1 || len(c.Warnings) != 0 {
		t.Errorf("%+v", c)
	}
	// Rates went up by 1.3 and times down: both are better.
	if r := c.Rows[0].Ratio; !about(r.Median, 1.3, 0.02) || c.Rows[0].P > 0.001 {
		t.Errorf("%+v", c.Rows[0])
	}
	if r := c.Rows[1].Ratio; !about(r.Median, 1/1.3, 0.02) || r.Verdict != Better {
		t.Errorf("%+v", c.Rows[1])
	}
	if o := c.Rows[2].Others; len(o) != 3 || !about(o[0].Ratio, 1, 1e-9) || !about(o[1].Ratio, 1.3, 1e-9) {
		t.Errorf("%+v", o)
	}
	// The other way round everything is worse.
	if c, _ := compared(t, b, a, DefaultMargin); c.Count(Worse) != 3 {
		t.Errorf("%+v", c.Rows)
	}
	// A margin beyond the difference.
	if c, _ := compared(t, a, b, 0.5); c.Count(Same) != 3 {
		t.Errorf("%+v", c.Rows)
	}
	var j bytes.Buffer
	if err := c.Write(&j); err != nil {
		t.Fatal(err)
	}
	var back Comparison
	if err := json.Unmarshal(j.Bytes(), &back); err != nil || back.Format != CompareFormat || len(back.Rows) != 3 {
		t.Errorf("%+v, %v", back, err)
	}
}

// A file beside itself: everything is the same, and it is said that it is one run.
func TestCompareWithItself(t *testing.T) {
	a := sample(t, 1)
	for i := range a.Rows[2].Ours.Samples { // however rough
		a.Rows[2].Ours.Samples[i] *= float64(1 + i%5)
	}
	for i := range a.Rows[2].Theirs {
		a.Rows[2].Theirs[i].Ratio = &Ratio{Target: 1}
	}
	if err := a.Rows[2].derive(); err != nil {
		t.Fatal(err)
	}
	c, out := compared(t, a, a, 0)
	if c.Count(Same) != len(a.Rows) || !strings.Contains(out, "WARNING: A and B are of the same run") {
		t.Errorf("%+v\n%s", c.Rows, out)
	}
}

func TestCompareVerdicts(t *testing.T) {
	rough := func(i int) float64 { return 8 + float64(i*7%5) }
	rough2 := func(i int) float64 { return 8.3 + float64(i*3%5) }
	for name, c := range map[string]struct {
		a, b func(int) float64
		n    int
		want Verdict
	}{
		"same":         {wobble(10), wobble(10.1), 20, Same},
		"better":       {wobble(10), wobble(12), 20, Better},
		"worse":        {wobble(12), wobble(10), 20, Worse},
		"rough":        {rough, rough2, 20, Inconclusive},
		"six each":     {wobble(10), wobble(12), 6, Better},
		"too few":      {wobble(10), wobble(12), 5, Inconclusive},
		"a little bit": {wobble(10), wobble(10.5), 20, Inconclusive}, // just at the margin
		// Medians of 10 and 12, but as often lower as higher: the two tests disagree.
		"two faces": {func(i int) float64 {
			return pick(i%10 < 7, 10., 100)
		}, func(i int) float64 { return pick(i%10 < 7, 12., 1) }, 40, Inconclusive},
	} {
		report := func(f func(int) float64) *Report {
			r := sample(t, 1)
			p := plan(f, nil)
			p.Pairs = c.n
			r.Rows = []Row{*mustRun(t, p)}
			return r
		}
		m, _ := compared(t, report(c.a), report(c.b), DefaultMargin)
		because := map[string]string{"too few": "5 samples; a verdict takes 6", "two faces": "p = ",
			"rough": "reaches across 0.9524 or 1.05"}[name]
		if q := m.Rows[0].Ratio; q.Verdict != c.want || (q.Why == "") != (c.want != Inconclusive) ||
			!strings.Contains(q.Why, because) {
			t.Errorf("%s: %+v, p = %v; want %s", name, q, m.Rows[0].P, c.want)
		}
	}
}

// What changed for programs that did not change was the machine.
func TestCompareTakesOutDrift(t *testing.T) {
	report := func(ours, theirs float64, version string) *Report {
		r := sample(t, 1)
		p := plan(wobble(ours), wobble(theirs))
		p.Theirs[0].Version = version
		r.Rows = []Row{*mustRun(t, p)}
		return r
	}
	for name, c := range map[string]struct {
		ours, theirs float64
		version      string
		want         Verdict
	}{
		"nothing but the machine":   {20, 20, "1", Inconclusive},
		"more than the machine":     {20, 12, "1", Better},
		"the machine became slower": {20, 8, "1", Better},
		"slower machine":            {8, 8, "1", Inconclusive},
		"slower program":            {8, 10, "1", Worse},
		"another version":           {20, 20, "2", Better},
	} {
		m, _ := compared(t, report(10, 10, "1"), report(c.ours, c.theirs, c.version), DefaultMargin)
		if q := m.Rows[0].Ratio; q.Verdict != c.want {
			t.Errorf("%s: %+v; want %s", name, q, c.want)
		}
	}
}

func TestCompareWarns(t *testing.T) {
	for want, change := range map[string]func(*Report){
		"DIFFERENT MACHINES":        func(r *Report) { r.Machine.CPU = "another processor" },
		"processor: a processor /":  func(r *Report) { r.Machine.CPU = "another processor" },
		"cores: 2 / 64":             func(r *Report) { r.Machine.Cores = 64 },
		"kernel: 6.18 / 6.19":       func(r *Report) { r.Machine.Kernel = "6.19" },
		"governor: unknown / power": func(r *Report) { r.Machine.Governor = "powersave" },
		"L3 32 MiB": func(r *Report) {
			r.Machine.Caches = append(r.Machine.Caches, Cache{3, "unified", 32 << 10, "0"})
		},
		"A is of bench transfer":    func(r *Report) { r.Bench = "ring" },
		"built differently":         func(r *Report) { r.Build.Flags = "GOAMD64=v3" },
		"race detector":             func(r *Report) { r.Build.Flags = "-race=true" },
		"up to 1.5 processors":      func(r *Report) { r.Rows[0].Gate = &GateLog{Looks: 1, Median: 1.5, Max: 2} },
		"GB/s in A and in Mop/s in": func(r *Report) { r.Rows[0].Unit = MopsPerSec },
		"turbo: unknown / off":      func(r *Report) { r.Machine.Turbo = "off" },
		"failed in B: impossible":   func(r *Report) { r.Rows[0].Failed = "impossible" },
	} {
		a, b := sample(t, 1), sample(t, 1)
		b.Began = b.Began.Add(time.Second)
		change(b)
		_, out := compared(t, a, b, DefaultMargin)
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) && want != "GB/s in A and in Mop/s in" ||
			strings.Contains(out, "same run") {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	a, b := sample(t, 1), sample(t, 1)
	a.Rows[0].Failed = "impossible"
	if c, _ := compared(t, a, b, 0.05); len(c.Skipped) != 1 ||
		!strings.Contains(c.Skipped[0], "failed in A: impossible") {
		t.Errorf("%+v", c.Skipped)
	}
	a = sample(t, 1)
	b.Rows[0].Unit = MopsPerSec
	if c, _ := compared(t, a, b, 0.05); len(c.Rows) != len(a.Rows)-1 || len(c.Skipped) != 1 ||
		!strings.Contains(c.Skipped[0], "in GB/s in A and in Mop/s in B") {
		t.Errorf("%+v", c.Skipped)
	}
	if _, err := Compare("a", a, "b", a, 1); err == nil {
		t.Error("a margin of 100 % passed")
	}
	if _, err := Compare("a", a, "b", a, -0.1); err == nil {
		t.Error("a margin below 0 passed")
	}
}

// Figures of two devices, or of a device and of the host, are not compared, and the reason names
// them.
func TestCompareOtherDevice(t *testing.T) {
	for want, spoil := range map[string]func(*Memory) *Memory{
		"memory of cuda 0: a card in A and of cuda 0: a card and opencl 0: another in B": func(m *Memory) *Memory {
			m.RemoteDevice = "opencl 0: another"
			return m
		},
		"memory of cuda 0: a card in A and of none in B": func(m *Memory) *Memory {
			m.LocalDevice = ""
			return m
		},
		"memory of an accelerator in one of them only": func(*Memory) *Memory {
			return nil
		},
	} {
		a, b := sample(t, 1), sample(t, 1)
		b.Rows[0].Memory = spoil(b.Rows[0].Memory)
		c, _ := compared(t, a, b, DefaultMargin)
		if len(c.Rows) != 3 || len(c.Skipped) != 1 || !strings.Contains(c.Skipped[0], want) {
			t.Errorf("%d rows; skipped %q, want %q", len(c.Rows), c.Skipped, want)
		}
	}
}
