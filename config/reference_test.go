package config

import (
	_ "embed" // the words in front of the tables
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/engine/drivers"
)

//go:generate go test -run ^TestGeneratedFiles$ -update .

//go:embed reference.md
var introduction string

// Reference is docs/config.md: every key with its type, its default and its meaning, from the
// table, but for those of benchmarks.
func Reference() []byte {
	var b strings.Builder
	before, after, _ := strings.Cut(introduction, "<!-- engines -->\n")
	b.WriteString(before)
	engineTable(&b)
	b.WriteString(after)
	tables(&b, false)
	return []byte(b.String())
}

// BenchReference is docs/bench-config.md: the keys of benchmarks.
func BenchReference() []byte {
	var b strings.Builder
	b.WriteString("# Keys of benchmarks\n\nGenerated from the table of keys in package config by `make generate`; " +
		"do not " +
		"edit. `penstock bench\nstream` reads these sections ([bench-stream.md](bench-stream.md)); " +
		"[config.md](config.md) " +
		"has all other\nkeys.\n")
	tables(&b, true)
	return []byte(b.String())
}

// ofBench says whether a section describes a benchmark.
func (s *section) ofBench() bool { return strings.HasPrefix(s.name, "bench_") }

// link is a link to a section from the page of the sections that are no benchmarks.
func (s *section) link() string {
	page := ""
	if s.ofBench() {
		page = "bench-config.md"
	}
	return fmt.Sprintf("[%s](%s#%[1]s)", s.name, page)
}

// tables are the keys of all sections, or those of benchmarks alone.
func tables(b *strings.Builder, bench bool) {
	for _, s := range allSections() {
		if s.ofBench() != bench {
			continue
		}
		fmt.Fprintf(b, "\n### %s\n\n%s\n", s.name, s.doc)
		if at := s.paths(); len(at) > 0 {
			fmt.Fprintf(b, "\nAt `%s`.\n", strings.Join(at, "`, `"))
		}
		b.WriteString("\n| key | in DAQIRI | value | default | meaning |\n|---|---|---|---|---|\n")
		for i := range s.keys {
			if k := &s.keys[i]; k.gone == "" {
				k.row(b)
			}
		}
		for i := range s.keys {
			if k := &s.keys[i]; k.gone != "" {
				fmt.Fprintf(b, "\n`%s` is refused: %s.\n", k.name, k.gone)
			}
		}
	}
}

// engineTable lists the engines.
func engineTable(b *strings.Builder) {
	b.WriteString("| engine | addresses | | needs |\n|---|---|---|---|\n")
	for _, s := range drivers.Table() {
		var at, needs []string
		for _, x := range s.Schemes {
			at = append(at, "`"+x+"://`")
		}
		if s.Needs.Interface {
			at = append(at, "a network interface")
		}
		if s.Bus {
			at = append(at, "a place on the PCI bus")
		}
		needs = append(append(needs, s.Needs.Capabilities...), s.Needs.Libraries...)
		if s.Needs.Kernel != [2]int{} {
			needs = append(needs, fmt.Sprintf("Linux %d.%d", s.Needs.Kernel[0], s.Needs.Kernel[1]))
		}
		doc := s.Doc
		if !s.Built() {
			doc += " Not built: " + s.Absent + "."
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", strings.Join(append([]string{s.Name}, s.Aliases...), "`, `"),
			strings.Join(at, ", "), doc, strings.Join(needs, ", "))
	}
}

// paths are the places of a section.
func (s *section) paths() []string {
	if len(s.keys) == 0 || s == schema() {
		return nil
	}
	var out []string
	var walk func(x *section, path string)
	walk = func(x *section, path string) {
		for i := range x.keys {
			k := &x.keys[i]
			if k.sub == nil {
				continue
			}
			p := join(path, k.name)
			if k.list {
				p += "[]"
			}
			if k.sub == s {
				out = append(out, p)
			}
			walk(k.sub, p)
		}
	}
	walk(schema(), "")
	return out
}

func (k *key) row(b *strings.Builder) {
	name, theirs := "`"+k.name+"`", "same"
	switch {
	case k.old != "":
		name, theirs = "("+k.old+")", "`"+k.name+"`"
	case k.ours:
		theirs = ""
	case k.daqiri != "":
		theirs = "`" + k.daqiri + "`"
	case len(k.also) > 0:
		theirs = "also `" + strings.Join(k.also, "`, `") + "`"
	}
	what := ""
	switch {
	case k.sub != nil && k.list:
		what = "list of " + k.sub.link()
	case k.sub != nil:
		what = k.sub.link()
	case k.kind == nil:
		what = "map"
	case k.list:
		what = "list of " + k.kind.name
	default:
		what = k.kind.name
	}
	def := ""
	switch {
	case k.needed:
		def = "needed"
	case k.derived != "":
		def = k.derived
	case k.def != "":
		def = "`" + k.def + "`"
	}
	fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", name, theirs, strings.ReplaceAll(what, "|", "\\|"), def,
		strings.ReplaceAll(k.doc, "|", "\\|"))
}
