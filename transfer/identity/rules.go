package identity

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
)

// Rules say what peers may do, by the name in their certificate, and who gets no handshake at all.
// They are immutable.
//
// The file of rules is text, one rule in a line; "#" begins a comment:
//
//	# what each peer may do: read, write, list, status; all; none
//	allow trainer    all
//	allow gpu-*      read,list
//	default          none
//
//	# who is kept out, also with a valid certificate
//	deny name   old-*
//	deny serial 5f0c62f0c0ffee
//
// The first allow whose pattern matches a name holds. A pattern is a name in which one * may stand
// for any characters, also none. An allow that no name can reach, because one above it matches
// everything it does, is an error, and so is anything said twice. Without a default line, names
// that no allow matches have no rights.
//
// A nil *Rules, as an empty file, gives no rights to anyone.
type Rules struct {
	allow     []Rule
	otherwise Rights
	names     []string
	serials   map[string]bool
	order     []string // serials as given
}

// Rule gives rights to the names that a pattern matches.
type Rule struct {
	Pattern string
	Rights  Rights
}

// Limits of a file of rules.
const (
	maxRules  = 4096
	maxSerial = 40 // hexadecimal digits: 20 octets, RFC 5280 section 4.1.2.2
)

// SyntaxError says where a file of rules is wrong. It wraps [ErrPolicy].
type SyntaxError struct {
	File string // "": the text did not come from a file
	Line int    // counted from 1
	What string // what is wrong and what was expected
}

func (e *SyntaxError) Error() string {
	if e.File != "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.What)
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.What)
}

// Unwrap makes it match ErrPolicy.
func (e *SyntaxError) Unwrap() error { return ErrPolicy }

// ParseRules reads the text of a file of rules. The error is a [*SyntaxError].
func ParseRules(text []byte) (*Rules, error) { return parseRules("", text) }

// parseRules is ParseRules with the name of the file for errors.
func parseRules(file string, text []byte) (*Rules, error) {
	r := &Rules{serials: map[string]bool{}}
	lineOf := map[int]int{} // of an allow
	defaultAt, line, count := 0, 0, 0
	if len(text) > maxFile {
		return nil, &SyntaxError{file, 1, fmt.Sprintf("the file has %d bytes, expected at most %d", len(text), maxFile)}
	}
	for raw := range strings.SplitSeq(string(text), "\n") {
		line++
		bad := func(format string, args ...any) error { return &SyntaxError{file, line, fmt.Sprintf(format, args...)} }
		raw = strings.TrimSuffix(raw, "\r")
		raw, _, _ = strings.Cut(raw, "#")
		for k := range len(raw) {
			if c := raw[k]; c != '\t' && (c < ' ' || c > '~') {
				return nil, bad("column %d: character %q; expected printable ASCII", k+1, c)
			}
		}
		w := strings.Fields(raw)
		if len(w) == 0 {
			continue
		}
		if count++; count > maxRules {
			return nil, bad("more than %d rules", maxRules)
		}
		args := func(n int, form string) error {
			if len(w) != n {
				return bad("%d words; expected: %s", len(w), form)
			}
			return nil
		}
		switch w[0] {
		case "allow":
			if err := args(3, "allow PATTERN RIGHTS"); err != nil {
				return nil, err
			}
			rights, err := ParseRights(w[2])
			if err != nil {
				return nil, bad("%s", rightsProblem(w[2]))
			}
			if defaultAt != 0 {
				return nil, bad("allow after default of line %d; expected default after the last allow", defaultAt)
			}
			if what := r.addAllow(Rule{w[1], rights}); what != "" {
				if k := r.covering(w[1]); k >= 0 {
					what += fmt.Sprintf(" (line %d)", lineOf[k])
				}
				return nil, bad("%s", what)
			}
			lineOf[len(r.allow)-1] = line
		case "default":
			if err := args(2, "default RIGHTS"); err != nil {
				return nil, err
			}
			if defaultAt != 0 {
				return nil, bad("default is already on line %d", defaultAt)
			}
			rights, err := ParseRights(w[1])
			if err != nil {
				return nil, bad("%s", rightsProblem(w[1]))
			}
			r.otherwise, defaultAt = rights, line
		case "deny":
			const form = "deny name PATTERN, or deny serial HEXADECIMAL"
			if err := args(3, form); err != nil {
				return nil, err
			}
			what := ""
			switch w[1] {
			case "name":
				what = r.addName(w[2])
			case "serial":
				what = r.addSerial(w[2])
			default:
				return nil, bad("%q; expected: %s", clip(w[1]), form)
			}
			if what != "" {
				return nil, bad("%s", what)
			}
		default:
			return nil, bad("%q; expected allow, default or deny", clip(w[0]))
		}
	}
	return r, nil
}

func rightsProblem(s string) string {
	return fmt.Sprintf("rights %q; expected none, all, or a list such as read,write,list,status with each once and "+
		"no spaces", clip(s))
}

// addAllow, addName and addSerial say what is wrong, or "".
func (r *Rules) addAllow(a Rule) string {
	if what := checkPattern(a.Pattern); what != "" {
		return what
	}
	if k := r.covering(a.Pattern); k >= 0 {
		return fmt.Sprintf("%q can never hold: %q stands above it and matches first", a.Pattern, r.allow[k].Pattern)
	}
	r.allow = append(r.allow, a)
	return ""
}

func (r *Rules) addName(p string) string {
	if what := checkPattern(p); what != "" {
		return what
	}
	for _, n := range r.names {
		if covers(n, p) {
			return fmt.Sprintf("%q is already denied by %q", p, n)
		}
	}
	r.names = append(r.names, p)
	return ""
}

func (r *Rules) addSerial(s string) string {
	if s == "" || len(s) > maxSerial || strings.Trim(s, "0123456789abcdef") != "" {
		return fmt.Sprintf("serial number %q; expected 1 to %d lower case hexadecimal digits", clip(s), maxSerial)
	}
	n, _ := new(big.Int).SetString(s, 16)
	s = n.Text(16)
	if r.serials[s] {
		return fmt.Sprintf("serial number %s is already denied", s)
	}
	r.serials[s] = true
	r.order = append(r.order, s)
	return ""
}

// covering is the first allow that matches everything that pattern p does; -1: there is none.
func (r *Rules) covering(p string) int {
	for k, a := range r.allow {
		if covers(a.Pattern, p) {
			return k
		}
	}
	return -1
}

// checkPattern says what is wrong with a pattern, or "".
func checkPattern(p string) string {
	const expected = "expected a name, in which one * may stand for any characters"
	if p == "" || len(p) > MaxName+1 {
		return fmt.Sprintf("pattern %q has %d characters; %s", clip(p), len(p), expected)
	}
	if !strings.Contains(p, "*") {
		if CheckName(p) != nil {
			return fmt.Sprintf("pattern %q can match no name; %s", clip(p), expected)
		}
		return ""
	}
	if strings.Count(p, "*") > 1 {
		return fmt.Sprintf("pattern %q has more than one *; %s", clip(p), expected)
	}
	for k := range len(p) {
		if c := p[k]; !alnum(c) && !strings.ContainsRune("*.-_", rune(c)) {
			return fmt.Sprintf("pattern %q: character %d; %s", clip(p), k+1, expected)
		}
	}
	return ""
}

// match reports whether a pattern matches a name.
func match(p, name string) bool {
	before, after, star := strings.Cut(p, "*")
	if !star {
		return p == name
	}
	return len(name) >= len(before)+len(after) && strings.HasPrefix(name, before) && strings.HasSuffix(name, after)
}

// covers reports whether pattern p matches whatever pattern q matches.
func covers(p, q string) bool {
	qb, qa, qstar := strings.Cut(q, "*")
	if !qstar {
		return match(p, q)
	}
	pb, pa, pstar := strings.Cut(p, "*")
	return pstar && strings.HasPrefix(qb, pb) && strings.HasSuffix(qa, pa)
}

// Rights are those of the first allow that matches a name, or the default. A name that no node can
// have, such as the "" of a peer without a certificate, has none.
func (r *Rules) Rights(name string) Rights {
	if r == nil {
		return 0
	}
	if len(name) == 0 || len(name) > MaxName {
		return 0
	}
	for k := range r.allow {
		if match(r.allow[k].Pattern, name) {
			return r.allow[k].Rights
		}
	}
	return r.otherwise
}

// Rule is the first allow that matches a name; false: none does, and the default holds.
func (r *Rules) Rule(name string) (Rule, bool) {
	if r == nil {
		return Rule{}, false
	}
	k := r.covering(name)
	if k < 0 {
		return Rule{}, false
	}
	return r.allow[k], true
}

// Denied reports whether a name or the serial number of a certificate is kept out.
func (r *Rules) Denied(name, serial string) bool {
	if r == nil {
		return false
	}
	if r.serials[serial] {
		return true
	}
	for _, p := range r.names {
		if match(p, name) {
			return true
		}
	}
	return false
}

// withDenials are rules with the denials of others besides.
func (r *Rules) withDenials(of *Rules) *Rules {
	if r == nil || of == nil {
		return r
	}
	out := *r
	out.names, out.order = slices.Clip(r.names), slices.Clip(r.order)
	if out.serials = maps.Clone(r.serials); out.serials == nil {
		out.serials = map[string]bool{}
	}
	for _, n := range of.names {
		out.addName(n) // or it is denied already
	}
	for _, s := range of.order {
		out.addSerial(s)
	}
	return &out
}

// String is a file of rules that [ParseRules] reads as the same rules.
func (r *Rules) String() string {
	if r == nil {
		return "default none\n"
	}
	var b strings.Builder
	for _, a := range r.allow {
		fmt.Fprintf(&b, "allow %s %v\n", a.Pattern, a.Rights)
	}
	fmt.Fprintf(&b, "default %v\n", r.otherwise)
	for _, n := range r.names {
		fmt.Fprintf(&b, "deny name %s\n", n)
	}
	for _, s := range r.order {
		fmt.Fprintf(&b, "deny serial %s\n", s)
	}
	return b.String()
}
