package share

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// ErrPattern means that a pattern of a Filter is none.
var ErrPattern = errors.New("share: bad pattern")

// Filter chooses names by patterns, in the order in which they were added: the first that matches a
// name decides, and a name that none matches is taken. The zero value and nil take every name.
//
// A pattern is as in path.Match, for each component of a name; the component ** stands for any
// number of them, also none, and at the end for one or more. Without a slash it matches a component
// anywhere in the name; with one, the name from its beginning, where a slash at the beginning only
// says that. What matches a directory matches every name below it, and a pattern that ends with a
// slash matches directories alone.
type Filter struct{ rules []rule }

type rule struct {
	include  bool
	parts    []string
	anywhere bool // one component, anywhere
	dirs     bool // no files
}

// Include adds a pattern whose names are taken.
func (f *Filter) Include(pattern string) error { return f.add(pattern, true) }

// Exclude adds a pattern whose names are left out.
func (f *Filter) Exclude(pattern string) error { return f.add(pattern, false) }

func (f *Filter) add(pattern string, include bool) error {
	body, dirs := strings.CutSuffix(pattern, "/")
	r := rule{include: include, dirs: dirs, anywhere: !strings.Contains(body, "/")}
	r.parts = strings.Split(strings.TrimPrefix(body, "/"), "/")
	for _, p := range r.parts {
		switch _, err := path.Match(p, ""); {
		case err != nil:
			return fmt.Errorf("%w: %q: expected a pattern such as *.bin, logs/ or run[0-9]/**/tmp; a [ ends with ], "+
				"and a \\ stands before the character that it makes plain", ErrPattern, pattern)
		case p == "":
			return fmt.Errorf("%w: %q has an empty component: expected something before, between and behind slashes",
				ErrPattern, pattern)
		}
	}
	if last := &r.parts[len(r.parts)-1]; *last == "**" { // what is below is matched anyway
		*last = "*"
	}
	f.rules = append(f.rules, r)
	return nil
}

// Takes reports whether a name is chosen.
func (f *Filter) Takes(name string) bool {
	if f == nil {
		return true
	}
	parts := strings.Split(name, "/")
	for _, r := range f.rules {
		if r.matches(parts, false) {
			return r.include
		}
	}
	return true
}

// prunes reports whether every name below a directory is left out.
func (f *Filter) prunes(dir string) bool {
	if f == nil {
		return false
	}
	parts := strings.Split(dir, "/")
	for _, r := range f.rules {
		if r.include { // it may match a name below
			return false
		}
		if r.matches(parts, true) {
			return true
		}
	}
	return false
}

// matches reports whether the rule matches a name, or a directory that it is in. dir says that the
// name itself is one.
func (r *rule) matches(name []string, dir bool) bool {
	last := len(name)
	if r.dirs && !dir {
		last--
	}
	if r.anywhere {
		return slices.ContainsFunc(name[:last], func(c string) bool { return matchPart(r.parts[0], c) })
	}
	for n := 1; n <= last; n++ {
		if matchParts(r.parts, name[:n]) {
			return true
		}
	}
	return false
}

// matchParts matches components as a whole. As with the star of a plain pattern, only the last **
// ever has to be tried again.
func matchParts(pattern, name []string) bool {
	p, n := 0, 0
	star, from := -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == "**":
			star, from = p, n
			p++
		case p < len(pattern) && matchPart(pattern[p], name[n]):
			p, n = p+1, n+1
		case star >= 0:
			from++
			p, n = star+1, from
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == "**" {
		p++
	}
	return p == len(pattern)
}

func matchPart(pattern, component string) bool {
	ok, err := path.Match(pattern, component)
	return ok && err == nil // add has checked the pattern
}
