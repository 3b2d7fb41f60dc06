package laws

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "wrap the pages and write docs/packages.md")

// pageColumns is the width of a page.
const pageColumns = 100

// unwrapped are the pages that a program writes, and the changelog.
var unwrapped = regexp.MustCompile(`/(docs/(?:bench-)?cli|docs/(?:bench-)?config|docs/packages|CHANGELOG)\.md$`)

// Lines of pages end at column 100; tables, code blocks, links and code spans stay whole.
func TestPagesAreWrapped(t *testing.T) {
	for _, page := range pages(t) {
		if unwrapped.MatchString(page) {
			continue
		}
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text := wrapPage(string(b))
		if text == string(b) {
			continue
		}
		if *update {
			if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		t.Errorf("%s has long lines: run go test ./internal/laws -run ^TestPagesAreWrapped$ -update", page)
	}
}

// No page has more than 3,000 words.
func TestPagesAreShort(t *testing.T) {
	const most = 3000
	word := regexp.MustCompile(`\S*[\pL\pN]\S*`)
	for _, page := range pages(t) {
		if unwrapped.MatchString(page) {
			continue
		}
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(word.FindAll(b, -1)); n > most {
			t.Errorf("%s has %d words, and no page has more than %d: split or shorten it", page, n, most)
		}
	}
}

func TestWrapPage(t *testing.T) {
	w := strings.Repeat("word ", 19) + "word" // 99 columns
	for _, x := range []struct{ name, page, want string }{
		{"short", "a\nb\n", "a\nb\n"},
		{"paragraph", w + " more\nend\n", w + "\nmore end\n"},
		{"item", "- " + w + "\n  end\n- b\n", "- " + w[:94] + "\n  word end\n- b\n"},
		{"item of an item", "- a\n  1. " + w + "\n", "- a\n  1. " + w[:94] + "\n     word\n"},
		{"paragraph of an item", "- a\n\n  " + w + " x\n", "- a\n\n  " + w[:94] + "\n  word x\n"},
		{"link", w + " [a b](c) d\n", w + "\n[a b](c) d\n"},
		{"link at the end", w[:94] + " [a b](c) d\n", w[:94] + "\n[a b](c) d\n"},
		{"code", w[:94] + " `a b`, d\n", w[:94] + "\n`a b`, d\n"},
		{"code over lines of an item", "- " + w + " `a\n  b`\n", "- " + w[:94] + "\n  word `a b`\n"},
		{"a dash begins no line", w + " - d\n", w[:94] + "\nword - d\n"},
		{"table", "| " + w + " | a |\n", "| " + w + " | a |\n"},
		{"fence", "```\n" + w + " more\n```\n", "```\n" + w + " more\n```\n"},
		{"indented code", "a\n\n    " + w + " more\n", "a\n\n    " + w + " more\n"},
		{"address", "https://" + strings.Repeat("a", 120) + " b\n", "https://" + strings.Repeat("a", 120) + "\nb\n"},
	} {
		if got := wrapPage(x.page); got != x.want {
			t.Errorf("%s: got\n%s\nexpected\n%s", x.name, got, x.want)
		} else if again := wrapPage(got); again != got {
			t.Errorf("%s: a second time gives\n%s\nafter\n%s", x.name, again, got)
		}
	}
}

var (
	marker = regexp.MustCompile(`^ *([-*+]|\d+[.)]) +`)
	tied   = regexp.MustCompile(`^([-*+>|=]+|#+|\d+[.)])$`) // words that are syntax at the start of a line
	atom   = regexp.MustCompile("(?:`[^`]*`|\\[[^\\]]*\\]\\([^)]*\\)|\\S)+")
)

// wrapPage fills the paragraphs and list items that have a line over 100 columns.
func wrapPage(page string) string {
	var out, block []string
	flush := func() {
		for _, line := range block {
			if utf8.RuneCountInString(line) > pageColumns {
				block = fill(block)
				break
			}
		}
		out, block = append(out, block...), nil
	}
	item := 0 // the column of the text of the present list item
	fenced, blank := false, true
	for line := range strings.SplitSeq(page, "\n") {
		trimmed := strings.TrimLeft(line, " ")
		indent := len(line) - len(trimmed)
		fence := strings.HasPrefix(trimmed, "```")
		if blank && trimmed != "" && !marker.MatchString(line) {
			item = min(item, indent)
		}
		code := blank && indent >= item+4
		switch {
		case fence || fenced || code || trimmed == "" || strings.ContainsAny(trimmed[:1], "|#<"):
			flush()
			out = append(out, line)
			fenced = fenced != fence
		case marker.MatchString(line):
			flush()
			item = len(marker.FindString(line))
			fallthrough
		default:
			block = append(block, line)
		}
		blank = trimmed == "" || code
	}
	flush()
	return strings.Join(out, "\n")
}

// fill writes the words of a paragraph into lines of at most 100 columns.
func fill(block []string) []string {
	first := marker.FindString(block[0])
	rest := strings.Repeat(" ", len(block[0])-len(strings.TrimLeft(block[0], " ")))
	if first != "" {
		rest = strings.Repeat(" ", len(first))
	} else {
		first = rest
	}
	block[0] = block[0][len(first):]
	for i, line := range block {
		block[i] = strings.TrimSpace(line)
	}
	var words []string
	for _, word := range atom.FindAllString(strings.Join(block, " "), -1) {
		if n := len(words); n > 0 && tied.MatchString(word) {
			words[n-1] += " " + word
			continue
		}
		words = append(words, word)
	}
	var out []string
	line, begun := first, false
	for _, word := range words {
		if begun && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > pageColumns {
			out, line, begun = append(out, line), rest, false
		}
		if begun {
			line += " "
		}
		line, begun = line+word, true
	}
	return append(out, line)
}
