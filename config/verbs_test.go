package config_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/transfer/path/verbs"
	"pgregory.net/rapid"
)

// plainVerbs are the options of an empty section.
func plainVerbs() verbs.Options {
	return verbs.Options{QueuePairs: verbs.DefaultQueuePairs, Depth: verbs.DefaultDepth, Timeout: verbs.DefaultTimeout}
}

// sameOptions compares options; their own fields that are not exported are for tests of package
// verbs.
var sameOptions = cmp.Options{cmpopts.IgnoreUnexported(verbs.Options{}), cmp.Comparer(func(a, b netip.Addr) bool {
	return a == b
})}

func bounds(min, max uint64) verbs.Bounds { return verbs.Bounds{Min: min, Max: max} }

// verbsCases are each key of the section, as it is written, and what the driver is made with.
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
	{"piece", "1MiB", func(o *verbs.Options) { o.Tune.Piece = bounds(1<<20, 1<<20) }},
	{"piece", "4096-1GiB", func(o *verbs.Options) { o.Tune.Piece = bounds(4096, 1<<30) }},
	{"signal", "64", func(o *verbs.Options) { o.Tune.Signal = bounds(64, 64) }},
	{"signal", "1 - 32", func(o *verbs.Options) { o.Tune.Signal = bounds(1, 32) }},
	{"ahead", "64KiB", func(o *verbs.Options) { o.Tune.Ahead = bounds(64<<10, 64<<10) }},
	{"ahead", "1MiB-1GiB", func(o *verbs.Options) { o.Tune.Ahead = bounds(1<<20, 1<<30) }},
	{"inline", "0", func(o *verbs.Options) { o.NoInline = true }},
	{"inline", "0-128", func(o *verbs.Options) { o.Tune.Inline = bounds(0, 128) }},
	{"inline", "64KiB", func(o *verbs.Options) { o.Tune.Inline = bounds(64<<10, 64<<10) }},
	{"windows", "false", func(o *verbs.Options) { o.NoWindows = true }},
	{"windows", "true", func(*verbs.Options) {}},
	{"library", "/opt/lib/libibverbs.so.1", func(o *verbs.Options) { o.Library = "/opt/lib/libibverbs.so.1" }},
}

// Each key reaches the options of the driver, from a file and from the command line, and is taken
// by the driver.
func TestVerbsKeys(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range verbsCases {
		seen[c.key] = true
		want := plainVerbs()
		c.want(&want)
		cfg := mustLoad(t, "penstock: {transfers: {verbs: {"+c.key+": "+c.value+"}}}")
		if d := cmp.Diff(want, cfg.Transfers.Verbs.Options(), sameOptions); d != "" {
			t.Errorf("a file with %s: %s:\n%s", c.key, c.value, d)
		}
		v, err := config.ParseVerbs([]string{c.key + "=" + c.value})
		if err != nil {
			t.Errorf("%s=%s: %v", c.key, c.value, err)
			continue
		}
		if d := cmp.Diff(want, v.Options(), sameOptions); d != "" {
			t.Errorf("%s=%s:\n%s", c.key, c.value, d)
		}
		if err := v.Options().Check(); err != nil {
			t.Errorf("%s=%s: the driver refuses it: %v", c.key, c.value, err)
		}
	}
	for _, k := range config.VerbsKeys() {
		if !seen[k] {
			t.Errorf("%s is not tested", k)
		}
	}
}

// What is refused says what was expected, in both places with the same words.
func TestVerbsRefusals(t *testing.T) {
	for _, c := range []struct {
		settings string // joined by commas
		want     []string
	}{
		{"queue_pair=2", []string{"queue_pair", "did you mean queue_pairs?"}},
		{"colour=red", []string{"colour", "device, port"}},
		{"transport=uc", []string{"the key transport is not read any more", "reliable connections"}},
		{"meet=cm", []string{"the key meet is not read any more", "over their session"}},
		{"initiators=8", []string{"the key initiators is not read any more", "queue_pairs"}},
		{"rails=2", []string{"the key rails is not read any more", "queue_pairs"}},
		{"port=256", []string{`"256" is out of range`, "0 to 255"}},
		{"gid=-1", []string{"out of range", "0 to 65535"}},
		{"for=host", []string{`"host" is not an IP address`}},
		{"queue_pairs=0", []string{"out of range", "1 to 8"}},
		{"queue_pairs=9", []string{"out of range", "1 to 8"}},
		{"depth=127", []string{"out of range", "128 to 8192"}},
		{"depth=8193", []string{"out of range", "128 to 8192"}},
		{"timeout=0", []string{"out of range", "1 to 31"}},
		{"timeout=67ms", []string{"has a unit"}},
		{"piece=4095", []string{"out of range", "4KiB to 1GiB", "64KiB-8MiB"}},
		{"piece=8MiB-64KiB", []string{"begins above its end"}},
		{"piece=1M", []string{"unknown unit"}},
		{"piece=1KiB-8MiB", []string{"out of range"}},
		{"signal=65", []string{"out of range", "1 to 64"}},
		{"signal=4-", []string{"is not a number"}},
		{"ahead=1KiB", []string{"out of range", "64KiB"}},
		{"inline=65537", []string{"out of range", "64KiB"}},
		{"windows=maybe", []string{"is neither", "true or false"}},
		{"gid=1,for=10.0.0.2", []string{"gid and for are both there", "one of them"}},
	} {
		settings := strings.Split(c.settings, ",")
		_, err := config.ParseVerbs(settings)
		text := "penstock:\n  transfers:\n    verbs:\n"
		for _, s := range settings {
			text += "      " + strings.Replace(s, "=", ": ", 1) + "\n"
		}
		_, all := config.Load("f.yaml", []byte(text), config.Options{})
		for what, err := range map[string]error{"command line": err, "file": all.Err()} {
			if err == nil {
				t.Errorf("%s: %s: passed", what, c.settings)
				continue
			}
			for _, w := range c.want {
				if what == "file" && strings.HasPrefix(w, `"`) && !strings.Contains(err.Error(), w) {
					w = strings.ReplaceAll(w, `"`, "") // numbers stand there without quotes
				}
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s: %s: %v; expected %q in it", what, c.settings, err, w)
				}
			}
		}
		if len(all.Only(config.Error)) != 1 || all.Only(config.Error)[0].At.Line < 4 {
			t.Errorf("%s: %v: expected one error, at its line", c.settings, all)
		}
	}
	for settings, want := range map[string]string{"device": "expected KEY=VALUE", "": "expected KEY=VALUE",
		"=uc": "unknown key", "port=1,port=2": "port is there twice", "device=": "is empty",
		"device.x=1": "unknown key", "a[0]=1": "unknown key"} {
		if _, err := config.ParseVerbs(strings.Split(settings, ",")); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; expected %q", settings, err, want)
		}
	}
}

// RDMA is one of the paths where the file does not list them; a list that leaves it out contradicts
// the section.
func TestVerbsIsAPath(t *testing.T) {
	for text, want := range map[string]string{
		"{}":                          "shm tcp verbs",
		"{verbs: {}}":                 "shm tcp verbs",
		"{verbs: {}, paths: [verbs]}": "verbs",
		"{paths: [tcp]}":              "tcp",
	} {
		c := mustLoad(t, "penstock: {transfers: "+text+"}")
		if got := strings.Join(c.Transfers.Paths, " "); got != want {
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
	for want, spoil := range map[string]func(v *config.VerbsPaths){
		"Depth is 5": func(v *config.VerbsPaths) { v.Depth = 5 },
	} {
		c := mustLoad(t, "penstock: {transfers: {verbs: {}}}")
		if err := c.Check(nil).Err(); err != nil {
			t.Error(err)
		}
		spoil(c.Transfers.Verbs)
		if err := c.Check(nil).Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// drawVerbs is settings that are right by themselves.
func drawVerbs(t *rapid.T) []string {
	var out []string
	for _, k := range config.VerbsKeys() {
		var of []string
		for _, c := range verbsCases {
			if c.key == k {
				of = append(of, c.value)
			}
		}
		if rapid.Bool().Draw(t, k) {
			out = append(out, k+"="+rapid.SampledFrom(of).Draw(t, "value of "+k))
		}
	}
	return rapid.Permutation(out).Draw(t, "order")
}

// String writes what ParseVerbs reads, and a file with the same settings says the same.
func TestVerbsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		settings := drawVerbs(t)
		v, err := config.ParseVerbs(settings)
		if err != nil {
			return // two that contradict each other
		}
		text := v.String()
		var again *config.VerbsPaths
		if text == "" {
			again, err = config.ParseVerbs(nil)
		} else {
			again, err = config.ParseVerbs(strings.Split(text, ","))
		}
		if err != nil || again.String() != text || !cmp.Equal(v.Options(), again.Options(), sameOptions) {
			t.Fatalf("%q: written as %q: %v", settings, text, err)
		}
		file := "penstock: {transfers: {verbs: {" + strings.ReplaceAll(strings.Join(settings, ", "), "=", ": ") + "}}}"
		c, all := config.Load("f", []byte(file), config.Options{})
		if c == nil {
			t.Fatalf("%s: %v", file, all.Err())
		}
		if got := c.Transfers.Verbs.String(); got != text {
			t.Fatalf("%s: a file says %q, the command line %q", file, got, text)
		}
	})
}

// FuzzParseVerbs: whatever is typed, the answer is settings that the driver takes, or an error.
func FuzzParseVerbs(f *testing.F) {
	for _, c := range verbsCases {
		f.Add(c.key + "=" + c.value)
	}
	f.Add("gid=1,for=10.0.0.1,queue_pairs=2")
	f.Add("piece=-,=,,a[")
	f.Fuzz(func(t *testing.T, s string) {
		v, err := config.ParseVerbs(strings.Split(s, ","))
		if err != nil {
			return
		}
		if err := v.Options().Check(); err != nil {
			t.Errorf("%q passed, and the driver refuses it: %v", s, err)
		}
		text := v.String()
		if text == "" {
			return
		}
		again, err := config.ParseVerbs(strings.Split(text, ","))
		if err != nil || again.String() != text {
			t.Errorf("%q is written as %q: %v", s, text, err)
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
	if !ok || !ok2 {
		t.Fatal("there is no file")
	}
	c := mustLoad(t, strings.ReplaceAll("\n"+text, "\n    ", "\n"))
	_, line, _ := strings.Cut(rest, "--path tcp,verbs --verbs ")
	line, _, _ = strings.Cut(line, " ")
	line, _, _ = strings.Cut(line, "\n")
	v, err := config.ParseVerbs(strings.Split(line, ","))
	if err != nil || c.Transfers.Verbs == nil || v.String() != c.Transfers.Verbs.String() || v.String() == "" {
		t.Errorf("the command line %q, the file %v: %v", line, c.Transfers.Verbs, err)
	}
}
