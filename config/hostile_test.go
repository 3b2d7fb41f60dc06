package config_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"go.yaml.in/yaml/v3"
)

// hostile are texts that are made to take long, or much memory; by is how much smaller the large
// ones are than what is read at most.
func hostile(by int) map[string]string {
	r := func(s string, n int) string {
		if n > 5000 {
			n /= by
		}
		return strings.Repeat(s, n)
	}
	bomb := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c <= 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n", c, c, c-1, c-1, c-1, c-1, c-1,
			c-1, c-1, c-1, c-1)
	}
	queues := "x-q: &q {memory_regions: [m]}\nx-qs: &qs [" + r("*q, ", 2000/by) +
		"*q]\nx-i: &i {name: a, address: b, rx: {queues: *qs}, tx: {queues: *qs}}\n"
	merge := "x-a: &a0 {name: a}\n"
	for i := range 30 {
		merge += fmt.Sprintf("x-a%d: &a%d\n  <<: [*a%d, *a%d, *a%d]\n", i, i+1, i, i, i)
	}
	return map[string]string{
		"bomb":          bomb + "penstock: {memory_regions: *k, interfaces: *k}\n",
		"bomb of lists": bomb + "interfaces: *k\n",
		"queues":        queues + "penstock: {interfaces: [" + r("*i, ", 2000/by) + "*i]}\n",
		"merges":        merge + "penstock: {memory_regions: [*a30]}\n",
		"itself":        "penstock: &a {memory_regions: [*a], interfaces: [{name: x, rx: *a}]}\n",
		"merges itself": "penstock: &a\n  <<: *a\n",
		"brackets":      r("[", 1<<20-1),
		"braces":        r("{a: ", 1<<18-1),
		"dashes":        r("- ", 1<<19-1),
		"questions":     r("? ", 1<<19-1),
		"indentation": func() string {
			s := ""
			for i := range 1300 {
				s += r(" ", i) + "a:\n"
			}
			return s
		}(),
		"one line": "penstock: {x-a: " + r("a", 1<<19) + "}",
		"long key": r("k", 1<<19) + ": 1\npenstock: {}\n",
		"many keys": "penstock:\n" + func() string {
			var b strings.Builder
			for i := range 60000 / by {
				fmt.Fprintf(&b, "  k%d: 1\n", i)
			}
			return b.String()
		}(),
		"the same key": "penstock:\n" + r("  version: 1\n", 50000),
		"many regions": "penstock:\n  memory_regions:\n" + func() string {
			var b strings.Builder
			for i := range 20000 / by {
				fmt.Fprintf(&b, "  - {name: r%d}\n", i)
			}
			return b.String()
		}(),
		"many wrong names": "penstock:\n  memory_regions: [{name: a, kind: host, num_bufs: 1, buf_size: 1}]\n  " +
			"interfaces: [{name: p, address: e, rx: {queues: [{memory_regions: [" + r("b,", 200000) + "b]}]}}]\n",
		"too large": strings.Repeat("#\n", 1<<20),
		"quotes":    `penstock: "` + r(`\x41`, 1<<17) + `"`,
		"comments":  r("# c\n", 1<<18-10) + "penstock: {}\n",
		"anchors": func() string {
			var b strings.Builder
			for i := range 40000 / by {
				fmt.Fprintf(&b, "a%d: &a%d 1\n", i, i)
			}
			return b.String()
		}(),
		"numbers":   "penstock: {master_core: " + r("9", 1<<19) + "}",
		"fraction":  "penstock: {memory_regions: [{buf_size: 0." + r("0", 1<<19) + "1GiB}]}",
		"documents": r("---\n", 1<<18-1),
		"flows": "penstock:\n  memory_regions: [{name: m, kind: host, num_bufs: 4096, buf_size: 64}]\n  " +
			"interfaces:\n  - name: p\n    address: e\n    rx:\n      queues: [{memory_regions: [m]}]\n      flows:\n" +
			r("      - {match: {udp_dst: 1-60000, ip_src: 10.0.0.0/8}, actions: [{type: queue, id: 0}]}\n", 8000),
		"disjoint flows": "penstock:\n  memory_regions: [{name: m, kind: host, num_bufs: 4096, buf_size: 64}]\n  " +
			"interfaces:\n  - name: p\n    address: e\n    rx:\n      queues: [{memory_regions: [m]}, " +
			"{memory_regions: [m]}]\n      flows:\n" + func() string {
			var b strings.Builder
			for i := range 8000 / by {
				fmt.Fprintf(&b,
					"      - {match: {udp_dst: %d-65000, udp_src: 0-%d}, actions: [{type: queue, id: %d}]}\n", i, i,
					i%2)
			}
			return b.String()
		}(),
		"not text":    "\x00\x01\xff\xfe",
		"half a rune": "penstock: \xc3",
	}
}

// Hostile text ends in a bounded number of diagnostics. That it ends soon is what the time limit of
// the test is for.
func TestHostileText(t *testing.T) {
	for name, text := range hostile(8) {
		t.Run(name, func(t *testing.T) {
			c, d := config.Load("f", []byte(text), config.Options{Host: testHost()})
			if c == nil && d.Err() == nil {
				t.Error("neither a Config nor an error")
			}
			if name == "queues" && !strings.Contains(d.Text(nil), "unfolds to more than") {
				// the others have no place where they would unfold
				t.Errorf("it is unfolded: %s", d.Summary())
			}
			if len(d) > 1001 {
				t.Errorf("%d diagnostics", len(d))
			}
			if out := d.Text([]byte(text)); len(out) > 2<<20 {
				t.Errorf("%d bytes of text", len(out))
			}
		})
	}
}

func FuzzLoad(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*.yaml", "testdata/bad/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	for _, s := range []string{"penstock: &a {interfaces: [*a]}", "penstock:\n  <<: [1]\n",
		"{version: 1, interfaces: [{name: <a>, rx: {queues: [{memory_regions: [<b>]}]}}]}"} {
		f.Add([]byte(s))
	}
	host := testHost()
	f.Fuzz(func(t *testing.T, text []byte) {
		c, d := config.Load("f", text, config.Options{Host: host})
		if (c == nil) != (d.Err() != nil) {
			t.Fatalf("Config %v, error %v", c != nil, d.Err())
		}
		lines := bytes.Count(text, []byte("\n")) + 1
		for i, x := range d {
			if x.At.Line < 0 || x.At.Line > lines || x.Message == "" || x.Code == "" || i > 0 && x.At.Line != 0 &&
				x.At.Line < d[i-1].At.Line {
				t.Fatalf("%+v of %d lines", x, lines)
			}
		}
		d.Text(text)
		if _, again := config.Load("f", text, config.Options{Host: host}); !reflect.DeepEqual(d, again) {
			t.Fatalf("the second time it says something else:\n%v\n%v", d, again)
		}
		if c == nil {
			return
		}
		if _, _, err := config.Migrate("f", text); err != nil {
			return // with aliases in odd places it says that it cannot
		}
		if d.Count(config.Needs) > 0 && bytes.Contains(text, []byte("<")) {
			return // a placeholder cannot be printed
		}
		if d.Count(config.Warning) > 0 {
			return // what is odd need not be odd in the same way when it is printed
		}
		printed := c.YAML()
		again, problems := config.Load("printed", printed, config.Options{})
		if again == nil || !again.Equal(c) {
			t.Fatalf("printed as\n%s\n%s", printed, problems.Text(printed))
		}
	})
}

// shuffle changes the order of the keys of all maps.
func shuffle(n *yaml.Node, r *rand.Rand) {
	if n.Kind == yaml.MappingNode {
		var pairs [][2]*yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			pairs = append(pairs, [2]*yaml.Node{n.Content[i], n.Content[i+1]})
		}
		r.Shuffle(len(pairs), func(i, k int) { pairs[i], pairs[k] = pairs[k], pairs[i] })
		n.Content = nil
		for _, p := range pairs {
			n.Content = append(n.Content, p[0], p[1])
		}
	}
	for _, c := range n.Content {
		shuffle(c, r)
	}
}

// The order of keys changes nothing but places.
func TestOrderOfKeysSaysNothing(t *testing.T) {
	all := files(t)
	for _, name := range []string{"keys", "values", "references", "flows", "overlap", "here", "sockets", "daqiri_old",
		"node", "types"} {
		b, err := os.ReadFile("testdata/bad/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		all[name] = b
	}
	for name, text := range all {
		if bytes.Contains(text, []byte("&")) {
			continue // anchors must come before their aliases
		}
		c, d := config.Load("f", text, config.Options{Host: testHost()})
		for seed := range uint64(5) {
			var doc yaml.Node
			body := bytes.Replace(text, []byte("%YAML 1.2\n---\n"), nil, 1)
			if err := yaml.Unmarshal(body, &doc); err != nil {
				t.Fatal(name, err)
			}
			shuffle(&doc, rand.New(rand.NewPCG(seed, 1)))
			mixed, err := yaml.Marshal(&doc)
			if err != nil {
				t.Fatal(err)
			}
			c2, d2 := config.Load("f", mixed, config.Options{Host: testHost()})
			if c != nil && (c2 == nil || !c2.Equal(c)) {
				t.Errorf("%s: in another order it is another configuration:\n%s", name, mixed)
			}
			if a, b := words(d), words(d2); !slices.Equal(a, b) {
				t.Errorf("%s: in another order it says\n%s\ninstead of\n%s", name, strings.Join(b, "\n"),
					strings.Join(a, "\n"))
			}
		}
	}
}

func words(d config.Diagnostics) (out []string) {
	for _, x := range d {
		out = append(out, fmt.Sprint(x.Severity, " ", x.Path, " ", x.Message, " ", x.Expected, " ", x.Hint))
	}
	slices.Sort(out)
	return out
}

// large is a file of about n lines.
func large(n int) []byte {
	var b bytes.Buffer
	b.WriteString("penstock:\n  memory_regions:\n")
	for i := range n / 20 {
		fmt.Fprintf(&b, "    - name: m%d\n      kind: host\n      num_bufs: 4096\n      buf_size: 2KiB\n", i)
	}
	b.WriteString("  interfaces:\n")
	at := 0
	for p := 0; at < n/20; p++ {
		fmt.Fprintf(&b, "    - name: p%d\n      address: eth%d\n      rx:\n        queues:\n", p, p)
		first := at
		for q := 0; q < 16 && at < n/20; q++ {
			fmt.Fprintf(&b, "          - id: %d\n            batch_size: 64\n            timeout: 2ms\n            "+
				"memory_regions: [m%d]\n", q, at)
			at++
		}
		b.WriteString("        flows:\n")
		for q := range at - first {
			fmt.Fprintf(&b, "          - name: f%d\n            id: %d\n            match:\n              udp_src: "+
				"%d\n              udp_dst: 4096-4103\n              ip_src: 10.0.0.0/8\n            actions:\n      "+
				"        - type: queue\n                id: %d\n", q, q+1, 1000+q, q)
		}
	}
	return b.Bytes()
}

// BenchmarkLoad loads a file of 10,000 lines; the aim is less than 200 ms.
func BenchmarkLoad(b *testing.B) {
	text := large(11_700)
	if n := bytes.Count(text, []byte("\n")); n < 10_000 || n > 11_000 {
		b.Fatalf("%d lines", n)
	}
	if _, d := config.Load("f", text, config.Options{}); d.Err() != nil {
		b.Fatal(d.Err())
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		config.Load("f", text, config.Options{})
	}
	b.ReportMetric(float64(bytes.Count(text, []byte("\n"))), "lines")
}

func BenchmarkHostile(b *testing.B) {
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for n := range hostile(1) {
			if !yield(n) {
				return
			}
		}
	}) {
		text := []byte(hostile(1)[name])
		b.Run(strings.ReplaceAll(name, " ", "_"), func(b *testing.B) {
			for b.Loop() {
				config.Load("f", text, config.Options{})
			}
		})
	}
}
