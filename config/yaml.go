package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Bounds of a file. They are far beyond what people write, and keep every file's check below a
// second.
const (
	maxFile        = 1 << 20 // bytes
	maxUnfolded    = 50_000  // values that come through aliases, besides those in the file
	maxDiagnostics = 1000
	maxNesting     = 100 // of brackets and of indentation
)

// entry is a key and its value.
type entry struct{ key, value *yaml.Node }

// parse reads the one document of a text. Without one, it has reported why.
func (d *decoder) parse(text []byte) (root *yaml.Node) {
	d.lines = bytes.Count(text, []byte("\n")) + 1
	if len(text) > maxFile {
		d.add(Error, CodeSyntax, Pos{1, 1}, 1, "", fmt.Sprintf("the file has %s", about(int64(len(text)))),
			fmt.Sprintf("at most %s", about(maxFile)), "")
		return nil
	}
	if at, deep := nesting(text); deep {
		d.add(Error, CodeSyntax, at, 1, "", fmt.Sprintf("more than %d levels of nesting", maxNesting), "",
			"a configuration has eight")
		return nil
	}
	if !d.characters(text) {
		return nil
	}
	var doc, second yaml.Node
	text = withoutDirective(text)
	lines := &lineReader{text: text}
	dec := yaml.NewDecoder(lines)
	err := guarded(func() error { return dec.Decode(&doc) })
	if errors.Is(err, io.EOF) || err == nil && (doc.Kind != yaml.DocumentNode || len(doc.Content) == 0) {
		d.add(Error, CodeRoot, Pos{1, 1}, 1, "", "the file is empty", "a configuration below penstock: or daqiri:",
			"penstock config generate writes one")
		return nil
	}
	if err == nil {
		err = guarded(func() error { return dec.Decode(&second) })
		if err == nil {
			at := Pos{second.Line, second.Column}
			d.add(Error, CodeSyntax, at, 1, "", "a second document begins here", "one document in a file",
				"put it into a file of its own")
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		d.syntax(err, text, lines.read)
		return nil
	}
	d.most = nodes(&doc) + maxUnfolded
	return doc.Content[0]
}

// nodes counts the nodes of a file, aliases as one.
func nodes(n *yaml.Node) int {
	sum := 1
	for _, c := range n.Content {
		sum += nodes(c)
	}
	return sum
}

// withoutDirective makes a comment of "%YAML 1.2" in front of the document: the library reads 1.2,
// and refuses the word for it.
func withoutDirective(text []byte) []byte {
	at := 0
	for line := range bytes.Lines(text) {
		switch {
		case bytes.HasPrefix(line, []byte("%YAML 1.")):
			out := bytes.Clone(text)
			out[at] = '#'
			return out
		case len(bytes.TrimSpace(line)) > 0 && line[0] != '#':
			return text
		}
		at += len(line)
	}
	return text
}

// guarded turns a panic of the YAML library into an error: its input may come from anywhere.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: not readable (%v)", r)
		}
	}()
	return f()
}

// nesting finds text that is nested too deeply, before a recursive parser sees it.
func nesting(text []byte) (Pos, bool) {
	brackets, line := 0, 0
	for row := range bytes.Lines(text) {
		line++
		spaces := len(row) - len(bytes.TrimLeft(row, " -?:"))
		if len(bytes.TrimSpace(row[:spaces])) > maxNesting { // a row of "- - - - -"
			return Pos{line, 1}, true
		}
		for i, c := range row {
			switch c {
			case '[', '{':
				if brackets++; brackets > maxNesting {
					return Pos{line, 1 + utf8.RuneCount(row[:i])}, true
				}
			case ']', '}':
				brackets = max(0, brackets-1)
			case '#':
				if i == 0 || row[i-1] == ' ' {
					goto next
				}
			}
		}
	next:
	}
	return Pos{}, false
}

// resolve follows aliases. nil means that the budget is spent.
func (d *decoder) resolve(n *yaml.Node) *yaml.Node {
	for {
		if d.visits++; d.visits > d.most {
			if d.visits == d.most+1 {
				d.add(Error, CodeSyntax, posOf(n), 1, "", fmt.Sprintf("the file unfolds to more than %d values",
					d.most), "", "aliases (*name) of aliases multiply: write out what is meant")
			}
			return nil
		}
		if n.Kind != yaml.AliasNode {
			return n
		}
		if n.Alias == nil {
			return nil
		}
		n = n.Alias
	}
}

func posOf(n *yaml.Node) Pos { return Pos{n.Line, n.Column} }

// widthOf is how many characters a scalar takes in the file, about.
func widthOf(n *yaml.Node) int {
	if n.Kind != yaml.ScalarNode {
		return 1
	}
	w := utf8.RuneCountInString(n.Value)
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
		w += 2
	}
	return max(1, w)
}

// entries are the keys of a map in their order, those that it takes over with << last. A key that
// is there twice is reported.
func (d *decoder) entries(n *yaml.Node, path string, depth int) []entry {
	seen := map[string]*yaml.Node{}
	var out []entry
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := d.resolve(n.Content[i])
		if k == nil {
			return out
		}
		if k.Kind != yaml.ScalarNode {
			d.add(Error, CodeType, posOf(k), 1, path, "a key that is "+called(k), "a word", "")
			continue
		}
		if k.Tag == "!!merge" {
			merged = append(merged, n.Content[i+1])
			continue
		}
		if first := seen[k.Value]; first != nil {
			d.related(d.add(Error, CodeDuplicate, posOf(k), widthOf(k), join(path, k.Value),
				fmt.Sprintf("the key %q is here a second time", k.Value), "", "remove one of them"),
				posOf(first), "it is here first")
			continue
		}
		seen[k.Value] = k
		out = append(out, entry{k, n.Content[i+1]})
	}
	for _, m := range merged {
		for _, e := range d.merge(m, path, depth) {
			if seen[e.key.Value] == nil {
				seen[e.key.Value] = e.key
				out = append(out, e)
			}
		}
	}
	return out
}

// merge is what << takes over.
func (d *decoder) merge(n *yaml.Node, path string, depth int) []entry {
	m := d.resolve(n)
	switch {
	case m == nil:
		return nil
	case depth > 8:
		d.add(Error, CodeSyntax, posOf(n), 1, path, "more than 8 maps take each other over with <<", "", "")
		return nil
	case m.Kind == yaml.MappingNode:
		return d.entries(m, path, depth+1)
	case m.Kind == yaml.SequenceNode:
		var out []entry
		for _, x := range m.Content {
			out = append(out, d.merge(x, path, depth+1)...)
		}
		return out
	}
	d.add(Error, CodeType, posOf(n), widthOf(n), path, "<< takes over "+called(m), "a map, as in <<: *name", "")
	return nil
}

// called says what a node is.
func called(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!null":
		return "nothing"
	case "!!bool":
		return "a truth (" + shown(n.Value) + ")"
	case "!!int", "!!float":
		return "a number (" + shown(n.Value) + ")"
	}
	return "a text (" + shown(n.Value) + ")"
}

// shown is a value as a message quotes it: not too long, and no control characters.
func shown(s string) string {
	const longest = 60
	if r := []rune(s); len(r) > longest {
		s = string(r[:longest]) + "..."
	}
	return strconv.Quote(s)
}

// written is a scalar as it stands in the file: numbers without quotes, texts with them.
func written(n *yaml.Node) string {
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 && (n.Tag == "!!int" || n.Tag == "!!float") &&
		len(n.Value) < 60 {
		return n.Value
	}
	return shown(n.Value)
}
