package config_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/option"
	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/verbs"
	"pgregory.net/rapid"
)

// sameOptions compares options; their own fields that are not exported are for tests of package
// verbs.
var sameOptions = cmp.Options{cmpopts.IgnoreUnexported(verbs.Options{}), cmp.Comparer(func(a, b netip.Addr) bool {
	return a == b
})}

func bounds(min, max uint64) verbs.Bounds { return verbs.Bounds{Min: min, Max: max} }

// verbsCases are each key of the section verbs, as it is written, and what the driver is made with.
var verbsCases = []struct {
	key, value string
	want       func(o *verbs.Options)
}{
	{"device", "mlx5_0", func(o *verbs.Options) { o.Device = "mlx5_0" }},
	{"port", "2", func(o *verbs.Options) { o.Port = 2 }},
	{"gid", "0", func(o *verbs.Options) { o.GID = new(int) }},
	{"gid", "3", func(o *verbs.Options) { n := 3; o.GID = &n }},
	{"for", "10.0.0.2", func(o *verbs.Options) { o.For = netip.MustParseAddr("10.0.0.2") }},
	{"for", "fd00::2", func(o *verbs.Options) { o.For = netip.MustParseAddr("fd00::2") }},
	{"queue_pairs", "8", func(o *verbs.Options) { o.QueuePairs = 8 }},
	{"depth", "128", func(o *verbs.Options) { o.Depth = 128 }},
	{"depth", "8192", func(o *verbs.Options) { o.Depth = 8192 }},
	{"timeout", "31", func(o *verbs.Options) { o.Timeout = 31 }},
	{"piece", "1MiB", func(o *verbs.Options) { o.Piece = bounds(1<<20, 1<<20) }},
	{"piece", "4096-1GiB", func(o *verbs.Options) { o.Piece = bounds(4096, 1<<30) }},
	{"signal", "64", func(o *verbs.Options) { o.Signal = bounds(64, 64) }},
	{"signal", "1 - 32", func(o *verbs.Options) { o.Signal = bounds(1, 32) }},
	{"ahead", "64KiB", func(o *verbs.Options) { o.Ahead = bounds(64<<10, 64<<10) }},
	{"ahead", "1MiB-1GiB", func(o *verbs.Options) { o.Ahead = bounds(1<<20, 1<<30) }},
	{"inline", "0", func(o *verbs.Options) { o.NoInline = true }},
	{"inline", "0-128", func(o *verbs.Options) { o.Inline = bounds(0, 128) }},
	{"inline", "64KiB", func(o *verbs.Options) { o.Inline = bounds(64<<10, 64<<10) }},
	{"windows", "false", func(o *verbs.Options) { o.NoWindows = true }},
	{"windows", "true", func(*verbs.Options) {}},
	{"library", "/opt/lib/libibverbs.so.1", func(o *verbs.Options) { o.Library = "/opt/lib/libibverbs.so.1" }},
}

// optionsOf are the options of the path verbs of a file.
func optionsOf(t *testing.T, c *config.Config) verbs.Options {
	t.Helper()
	for _, u := range c.Transfers.PathUses() {
		if u.Name == "verbs" {
			o, _ := u.New(false)
			if err := option.List(u.Options).Set(option.OfPort, "", u.Settings, o); err != nil {
				t.Error(err)
			}
			return *o.(*verbs.Options)
		}
	}
	t.Fatal("the file has no path verbs")
	return verbs.Options{}
}

// Each key reaches the options of the driver, from its section and from the list of paths.
func TestVerbsKeys(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range verbsCases {
		seen[c.key] = true
		var want verbs.Options
		c.want(&want)
		for _, text := range []string{"verbs: {" + c.key + ": " + c.value + "}",
			`paths: ["verbs?` + c.key + "=" + c.value + `"]`} {
			cfg := mustLoad(t, "penstock: {transfers: {"+text+"}}")
			if d := cmp.Diff(want, optionsOf(t, cfg), sameOptions); d != "" {
				t.Errorf("a file with %s:\n%s", text, d)
			}
		}
	}
	for _, o := range verbs.Spec.Options {
		if !seen[o.Key] {
			t.Errorf("%s is not tested", o.Key)
		}
	}
}

// What is refused says what was expected, at its place, in the section and in the list.
func TestPathRefusals(t *testing.T) {
	for _, c := range []struct {
		settings string // joined by &
		want     []string
	}{
		{"queue_pair=2", []string{"queue_pair", "did you mean queue_pairs?"}},
		{"colour=red", []string{"colour", "device, port"}},
		{"port=256", []string{"256", "out of range", "0 to 255"}},
		{"gid=-1", []string{"out of range", "0 to 65535"}},
		{"for=host", []string{"IP address"}},
		{"queue_pairs=0", []string{"out of range", "1 to 8"}},
		{"depth=127", []string{"out of range", "128 to 8192"}},
		{"timeout=67ms", []string{"timeout"}},
		{"piece=4095", []string{"out of range", "4KiB to 1GiB", "64KiB-8MiB"}},
		{"piece=8MiB-64KiB", []string{"begins above its end"}},
		{"piece=1M", []string{"unknown unit"}},
		{"signal=65", []string{"out of range", "1 to 64"}},
		{"signal=4-", []string{"is not a whole number"}},
		{"inline=65537", []string{"out of range", "64KiB"}},
		{"windows=maybe", []string{"is neither"}},
		{"rails=2", []string{"rails"}},
		{"gid=1&for=10.0.0.2", []string{"gid and for are both there"}},
	} {
		section := "penstock:\n  transfers:\n    verbs:\n"
		for s := range strings.SplitSeq(c.settings, "&") {
			section += "      " + strings.Replace(s, "=", ": ", 1) + "\n"
		}
		for text, line := range map[string]int{section: 4,
			"penstock:\n  transfers:\n    paths:\n      - \"verbs?" + c.settings + "\"\n": 4} {
			_, all := config.Load("f.yaml", []byte(text), config.Options{})
			if e := all.Only(config.Error); len(e) != 1 || e[0].At.Line < line || e[0].At.Column == 0 {
				t.Errorf("%s: %v: expected one error, at its line", text, all)
			}
			for _, w := range c.want {
				if err := all.Err(); err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("%s: %v; expected %q in it", text, err, w)
				}
			}
		}
	}
}

// All paths of the table are there where the file does not list them; a list that leaves one out
// contradicts its section.
func TestPaths(t *testing.T) {
	for text, want := range map[string]string{
		"{}":                           "shm tcp verbs",
		"{verbs: {}}":                  "shm tcp verbs*",
		"{verbs: {}, paths: [verbs]}":  "verbs*",
		"{paths: [tcp]}":               "tcp",
		`{paths: ["tcp?ktls=on",shm]}`: "tcp?ktls=on* shm",
		`{paths: [tcp, "verbs?depth=300"], verbs: {depth: 200, port: 1}}`: "tcp verbs?depth=300&port=1*",
		`{tcp: {zero_copy: true}, verbs: {library: "/a+b&c"}, paths: [tcp, verbs]}`: "tcp?zero_copy=true* " +
			"verbs?library=/a%2Bb%26c*",
	} {
		c := mustLoad(t, "penstock: {transfers: "+text+"}")
		var got []string
		for _, u := range c.Transfers.PathUses() {
			text := u.Text()
			s, settings, err := drivers.Find(text)
			if err != nil || s != u.Spec || len(settings) != len(u.Settings) || len(settings) > 0 &&
				!cmp.Equal(settings, u.Settings) {
				t.Errorf("%s is read as %v, %v", text, settings, err)
			}
			if u.At != "" {
				text += "*"
			}
			got = append(got, text)
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s: paths %s, expected %s", text, got, want)
		}
		again := mustLoad(t, string(c.YAML()))
		if !again.Equal(c) {
			t.Errorf("%s: printed as\n%s", text, c.YAML())
		}
	}
	_, all := config.Load("f", []byte("penstock:\n  transfers:\n    paths: [shm, tcp]\n    verbs: {queue_pairs: 2}\n"),
		config.Options{})
	if e := all.Only(config.Error); len(e) != 1 || e[0].At.Line != 4 ||
		!strings.Contains(e[0].String(), "paths leaves out") || len(e[0].Related) != 1 {
		t.Errorf("%v", all)
	}
	// A program that writes the section itself is checked as well.
	c := mustLoad(t, "penstock: {transfers: {verbs: {}}}")
	if err := c.Check(nil).Err(); err != nil {
		t.Error(err)
	}
	c.Transfers.Sections["verbs"] = option.Settings{"depth": "5"}
	if err := c.Check(nil).Err(); err == nil || !strings.Contains(err.Error(), `depth is "5"`) {
		t.Error(err)
	}
	c.Transfers.Sections, c.Transfers.Paths = nil, []string{"rdma"}
	if err := c.Check(nil).Err(); err == nil || !strings.Contains(err.Error(), `there is no path "rdma"`) {
		t.Error(err)
	}
}

// A file that is printed has the same options, in any order and number.
func TestPathsText(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var settings []string
		for _, o := range verbs.Spec.Options {
			var of []string
			for _, c := range verbsCases {
				if c.key == o.Key && o.Key != "for" { // which contradicts gid
					of = append(of, c.value)
				}
			}
			if of != nil && rapid.Bool().Draw(rt, o.Key) {
				settings = append(settings, o.Key+": "+rapid.SampledFrom(of).Draw(rt, "value of "+o.Key))
			}
		}
		file := "penstock: {transfers: {verbs: {" + strings.Join(rapid.Permutation(settings).Draw(rt, "order"), ", ") +
			"}}}"
		c := mustLoad(t, file)
		uses := c.Transfers.PathUses()
		c2 := mustLoad(t, `penstock: {transfers: {paths: ["`+uses[2].Text()+`"]}}`)
		if d := cmp.Diff(optionsOf(t, c), optionsOf(t, c2), sameOptions); d != "" {
			rt.Fatalf("%s and %s:\n%s", file, uses[2].Text(), d)
		}
	})
}

// FuzzPath: whatever is typed, the answer is a driver, or an error.
func FuzzPath(f *testing.F) {
	for _, c := range verbsCases {
		f.Add("verbs?" + c.key + "=" + c.value)
	}
	f.Add("verbs?gid=1&for=10.0.0.1&queue_pairs=2")
	f.Add("verbs?piece=-&=&&a[")
	f.Fuzz(func(t *testing.T, text string) {
		s, settings, err := drivers.Find(text)
		if err != nil {
			return
		}
		u := config.PathUse{Spec: s, Settings: settings}
		_, again, err := drivers.Find(u.Text())
		if err != nil || len(again) != len(settings) || len(again) > 0 && !cmp.Equal(again, settings) {
			t.Errorf("%q is written as %q: %v", text, u.Text(), err)
		}
		if d, err := s.Driver(settings, false); err == nil && d.Name() != s.Name {
			t.Errorf("%q makes the path %s", text, d.Name())
		}
	})
}

// The file that docs/verbs.md shows is right, and the command line beside it says the same.
func TestFileOfTheVerbsPage(t *testing.T) {
	page, err := os.ReadFile("../docs/verbs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "## From the command line and from configurations\n")
	text, _, ok2 := strings.Cut(rest[max(0, strings.Index(rest, "    penstock:")):], "\n\n")
	_, line, ok3 := strings.Cut(rest, "--path 'tcp,")
	if !ok || !ok2 || !ok3 {
		t.Fatal("there is no file, or no command line")
	}
	line, _, _ = strings.Cut(line, "'")
	uses := mustLoad(t, strings.ReplaceAll("\n"+text, "\n    ", "\n")).Transfers.PathUses()
	_, settings, err := drivers.Find(line)
	if err != nil || len(uses) != 2 || !cmp.Equal(settings, uses[1].Settings) {
		t.Errorf("the command line %q, the file %v: %v", line, uses, err)
	}
}
