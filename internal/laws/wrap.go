package laws

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/scanner"
	"go/token"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	textColumns = 100
	codeColumns = 120
	rowColumns  = 160
)

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// Wrap returns a Go file with its long lines wrapped: comments at 100 columns, code at 120, where a
// tab has four. It moves a comment at the end of a long line above it, and breaks code after commas
// and operators, at the outermost one that makes the line fit. It breaks a string only where
// nothing else helps, and leaves rows of tables, generated files and directives as they are.
func Wrap(src []byte) ([]byte, error) {
	if generated.Match(src) {
		return src, nil
	}
	src, err := format.Source(src)
	if err != nil {
		return nil, err
	}
	for range 100 { // each round changes a long line into shorter ones, or stops
		out, err := format.Source(comments(breaks(src)))
		if err != nil {
			return nil, err
		}
		if bytes.Equal(out, src) {
			break
		}
		src = out
	}
	return src, nil
}

// columns returns the width of a line whose tabs have four columns.
func columns(line string) int { return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t") }

// A tok is a token with its place.
type tok struct {
	offset int
	tok    token.Token
	lit    string
}

// tokens returns the tokens of a file by line, the first line being 1.
func tokens(src []byte) map[int][]tok {
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	lines := map[int][]tok{}
	for {
		pos, t, lit := s.Scan()
		if t == token.EOF {
			return lines
		}
		if t == token.SEMICOLON && lit == "\n" {
			continue
		}
		l := file.Line(pos)
		lines[l] = append(lines[l], tok{file.Offset(pos), t, lit})
	}
}

// breaks breaks each line of code that is too long once.
func breaks(src []byte) []byte {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, "", src, parser.ParseComments)
	if err != nil {
		return src
	}
	at := func(p token.Pos) int { return fset.Position(p).Offset }
	lineOf := func(p token.Pos) int { return fset.Position(p).Line }

	blocks := map[int]*ast.BlockStmt{} // the outermost block of a line that begins and ends on it
	noSplit := map[int]bool{}          // strings that are no expressions
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			l := lineOf(n.Lbrace)
			if len(n.List) > 0 && l == lineOf(n.Rbrace) && blocks[l] == nil {
				blocks[l] = n
			}
		case *ast.ImportSpec:
			noSplit[at(n.Path.Pos())] = true
		case *ast.Field:
			if n.Tag != nil {
				noSplit[at(n.Tag.Pos())] = true
			}
		}
		return true
	})

	lines := bytes.SplitAfter(src, []byte("\n"))
	toks := tokens(src)
	var out bytes.Buffer
	start := 0
	for i, raw := range lines {
		line, here := string(bytes.TrimRight(raw, "\n")), toks[i+1]
		out.WriteString(breakLine(line, start, here, blocks[i+1], at, noSplit))
		if len(line) < len(raw) {
			out.WriteByte('\n')
		}
		start += len(raw)
	}
	return out.Bytes()
}

// row reports whether a line is one element of a table.
func row(line string) bool {
	s := strings.TrimSpace(line)
	return strings.HasPrefix(s, "{") && strings.HasSuffix(s, "},")
}

func breakLine(line string, start int, toks []tok, block *ast.BlockStmt, at func(token.Pos) int,
	noSplit map[int]bool) string {
	limit := codeColumns
	if row(line) {
		limit = rowColumns
	}
	if columns(line) <= limit || len(toks) == 0 {
		return line
	}
	if last := toks[len(toks)-1]; last.tok == token.COMMENT {
		if len(toks) == 1 {
			return line // comments wraps it
		}
		if strings.HasPrefix(last.lit, "//") && !strings.HasPrefix(last.lit, "//go:") &&
			!strings.HasPrefix(last.lit, "//nolint") {
			code := strings.TrimRight(line[:last.offset-start], " \t")
			indent := line[:len(line)-len(strings.TrimLeft(line, "\t"))]
			if strings.HasSuffix(code, "{") {
				return code + "\n" + indent + "\t" + last.lit
			}
			return indent + last.lit + "\n" + code
		}
		return line
	}
	if block != nil {
		open, end := at(block.Lbrace)-start, at(block.Rbrace)-start
		var b strings.Builder
		b.WriteString(line[:open+1])
		for _, s := range block.List {
			b.WriteString("\n" + strings.TrimRight(line[at(s.Pos())-start:at(s.End())-start], " "))
		}
		b.WriteString("\n" + line[end:])
		return b.String()
	}

	// The outermost place after which the line may end, and of those the last that fits.
	depth, best, bestDepth := 0, 0, 1<<30
	for i, t := range toks {
		switch t.tok {
		case token.LPAREN, token.LBRACK, token.LBRACE:
			depth++
		case token.RPAREN, token.RBRACK, token.RBRACE:
			depth--
		}
		binary := t.tok == token.LAND || t.tok == token.LOR ||
			(t.tok == token.ADD || t.tok == token.OR) && i > 0 && operand(toks[i-1])
		if !binary && t.tok != token.COMMA || i == len(toks)-1 {
			continue
		}
		end := t.offset - start + len(t.tok.String())
		c := columns(line[:end])
		if c > codeColumns || c < columns(line)-codeColumns || c < 50 {
			continue
		}
		d := 2 * depth
		if binary && t.tok != token.LAND && t.tok != token.LOR {
			d++
		}
		if d <= bestDepth {
			best, bestDepth = end, d
		}
	}
	if best == 0 {
		best = lastPlace(line, start, toks)
	}
	if best > 0 {
		return line[:best] + "\n" + strings.TrimLeft(line[best:], " ")
	}
	for _, t := range toks {
		from := t.offset - start
		if t.tok != token.STRING || t.lit[0] != '"' || noSplit[t.offset] || columns(line[:from]) > codeColumns-20 {
			continue
		}
		end := from + len(t.lit)
		if columns(line[:end]) <= codeColumns {
			continue
		}
		for cut := end - 8; cut > from+20; cut-- {
			if line[cut-1] == ' ' && columns(line[:cut]) <= codeColumns-3 && !strings.Contains(line[from:end], "://") {
				return line[:cut] + "\" +\n\"" + line[cut:]
			}
		}
	}
	return line
}

// lastPlace returns the last place that fits after a comma, an operator or an assignment.
func lastPlace(line string, start int, toks []tok) (best int) {
	for i, t := range toks {
		end := t.offset - start + len(t.tok.String())
		switch t.tok {
		case token.LAND, token.LOR, token.COMMA:
		case token.ADD, token.OR:
			if i == 0 || !operand(toks[i-1]) {
				continue
			}
		default:
			continue
		}
		if c := columns(line[:end]); i < len(toks)-1 && c <= codeColumns && c > 30 {
			best = end
		}
	}
	return best
}

// operand reports whether a token ends an operand, so that an operator after it is binary.
func operand(t tok) bool {
	switch t.tok {
	case token.IDENT, token.INT, token.FLOAT, token.CHAR, token.STRING, token.RPAREN, token.RBRACK, token.RBRACE:
		return true
	}
	return false
}

// comments wraps paragraphs of comments of which a line is too long.
func comments(src []byte) []byte {
	whole := map[int]bool{} // lines that only have a comment of the kind that is wrapped
	for l, t := range tokens(src) {
		if len(t) == 1 && t[0].tok == token.COMMENT && strings.HasPrefix(t[0].lit, "//") {
			whole[l] = true
		}
	}
	lines := strings.Split(string(src), "\n")
	var out []string
	for i := 0; i < len(lines); {
		if !whole[i+1] || !prose(lines[i]) {
			out = append(out, lines[i])
			i++
			continue
		}
		indent := lines[i][:strings.Index(lines[i], "//")]
		end, long := i, false
		for end < len(lines) && whole[end+1] && strings.HasPrefix(lines[end], indent+"//") &&
			(end == i || !item(lines[end]) && (prose(lines[end]) || item(lines[i]) && continues(lines[end]))) {
			long = long || columns(lines[end]) > textColumns
			end++
		}
		if long {
			out = append(out, fillComment(indent, lines[i:end])...)
		} else {
			out = append(out, lines[i:end]...)
		}
		i = end
	}
	return []byte(strings.Join(out, "\n"))
}

var list = regexp.MustCompile(`^( *)(-|\*|\d+\.) +`)

func body(line string) string { return line[strings.Index(line, "//")+2:] }
func item(line string) bool   { return list.MatchString(body(line)) }

// continues reports whether a comment can be a further line of an item of a list.
func continues(line string) bool {
	return strings.HasPrefix(body(line), "   ") && strings.TrimSpace(body(line)) != ""
}

// prose reports whether a comment is text of a paragraph: no directive, heading, code or URL.
func prose(line string) bool {
	b := body(line)
	return strings.HasPrefix(b, " ") && strings.TrimSpace(b) != "" && !strings.HasPrefix(b, " #") &&
		(!strings.HasPrefix(b, "  ") || item(line)) && !strings.HasPrefix(strings.TrimSpace(b), "Output:") &&
		!strings.HasPrefix(strings.TrimSpace(b), "+build") && !strings.Contains(b, "  |")
}

// fillComment writes the words of the lines again, as many in a line as fit.
func fillComment(indent string, lines []string) (out []string) {
	first, rest := indent+"// ", indent+"// "
	text := make([]string, len(lines))
	for i, l := range lines {
		text[i] = strings.TrimSpace(body(l))
	}
	if m := list.FindString(body(lines[0])); m != "" {
		first = indent + "//" + m
		rest = indent + "//" + strings.Repeat(" ", len(m))
		text[0] = body(lines[0])[len(m):]
	}
	line, words := first, 0
	for _, w := range strings.Fields(strings.Join(text, " ")) {
		if words > 0 && columns(line)+1+columns(w) > textColumns {
			out = append(out, line)
			line, words = rest, 0
		}
		if words > 0 {
			line += " "
		}
		line += w
		words++
	}
	return append(out, line)
}
