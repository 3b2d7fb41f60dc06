package flow

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ProblemKind says what sort of problem a rule has.
type ProblemKind uint8

// The kinds of problems. Ambiguous and Unreachable are warnings: the set means something, perhaps
// not what was meant.
const (
	Invalid       ProblemKind = iota // a value that cannot be
	Contradiction                    // values that no packet can have together
	Duplicate                        // an ID or a name that an earlier rule has
	Unsupported                      // beyond the engine: see Check
	Ambiguous                        // meets another rule of the same priority and disagrees with it
	Unreachable                      // rules before it take every packet that it accepts
)

var kindNames = [...]string{"invalid", "contradiction", "duplicate", "unsupported", "ambiguous", "unreachable"}

func (k ProblemKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Warning reports whether a set with a problem of this kind can be used all the same.
func (k ProblemKind) Warning() bool { return k == Ambiguous || k == Unreachable }

// Problem is one thing that is wrong with a set of rules.
type Problem struct {
	Kind  ProblemKind
	Rule  int    // index in the set
	Name  string // of the rule, may be empty
	Other int    // index of the other rule of a pair; -1 if there is none
	Field string // in the words of the text form, such as "udp dst" or "action 2"
	Text  string // what is there, what was expected, how to fix it
}

func (p *Problem) Error() string { return "flow: " + p.String() }

func (p Problem) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rule %d", p.Rule)
	if p.Name != "" {
		b.WriteByte(' ')
		b.WriteString(strconv.Quote(p.Name))
	}
	fmt.Fprintf(&b, ": %s: %s", p.Field, p.Text)
	if p.Kind.Warning() {
		fmt.Fprintf(&b, " (%v)", p.Kind)
	}
	return b.String()
}

// Problems is everything that is wrong with a set, by rule, kind and field. As an error it lists
// all of it.
type Problems []Problem

func (p Problems) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "flow: %d problems in the rules", len(p))
	if len(p) == 1 {
		b.Reset()
		b.WriteString("flow: 1 problem in the rules")
	}
	for i := range p {
		b.WriteString("\n\t")
		b.WriteString(p[i].String())
	}
	return b.String()
}

// Unwrap returns each problem as an error, a *Problem.
func (p Problems) Unwrap() []error {
	out := make([]error, len(p))
	for i := range p {
		out[i] = &p[i]
	}
	return out
}

// Err returns the problems that are not warnings, or nil.
func (p Problems) Err() error {
	var e Problems
	for i := range p {
		if !p[i].Kind.Warning() {
			e = append(e, p[i])
		}
	}
	if e == nil {
		return nil
	}
	return e
}

func (p Problems) sort() {
	slices.SortFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.Other, b.Other), cmp.Compare(a.Text, b.Text))
	})
}

// report collects the problems of one rule.
type report struct {
	*Problems
	rule int
	name string
}

func (r report) add(k ProblemKind, field, format string, args ...any) {
	r.pair(k, -1, field, format, args...)
}

func (r report) pair(k ProblemKind, other int, field, format string, args ...any) {
	*r.Problems = append(*r.Problems, Problem{k, r.rule, r.name, other, field, fmt.Sprintf(format, args...)})
}
