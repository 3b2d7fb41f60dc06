package share

import (
	"errors"
	"path"
	"strings"
	"testing"
)

// filterOf reads "+PATTERN" and "-PATTERN".
func filterOf(t testing.TB, rules ...string) *Filter {
	t.Helper()
	f := &Filter{}
	for _, r := range rules {
		add := f.Exclude
		if r[0] == '+' {
			add = f.Include
		}
		if err := add(r[1:]); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func TestFilter(t *testing.T) {
	for _, c := range []struct{ rules, taken, left string }{
		{"", "a a/b .x", ""},
		{"-*.tmp", "a a/b x.tmpl", "x.tmp a/x.tmp a.tmp/b"},
		{"-/*.tmp", "a/x.tmp", "x.tmp x.tmp/a"},
		{"-cache", "a/cached", "cache cache/a a/cache/b/c a/cache"},
		{"-cache/", "cache a/cache", "cache/a a/cache/b"},
		{"-/cache/", "cache a/cache/b", "cache/a"},
		{"-a/b", "x/a/b a/bc a", "a/b a/b/c"},
		{"-a/*", "a b", "a/b a/b/c"},
		{"-a/**", "a b/a/c", "a/b a/b/c"},
		{"-**/tmp", "a/tmpl", "tmp a/tmp a/b/tmp a/tmp/b"},
		{"-a/**/z", "a/b z x/a/z", "a/z a/b/z a/b/c/z"},
		{"-a/**/b/**/z", "a/z a/b a/x/z", "a/b/z a/x/b/y/z a/b/b/z a/x/y/b/z"},
		{"-**", "", "a a/b"},
		{"-run[0-9]", "run runx", "run1 run2/a"},
		{`-\*`, "a", "* a/*"},
		{"-?", "ab", "a ab/c"},
		{"+*.bin -*", "a.bin a/b.bin a.bin/x", "a a/b"},
		{"-* +*.bin", "", "a.bin a"},
		{"+keep.tmp -*.tmp", "keep.tmp a/keep.tmp b", "x.tmp"},
		{"+a/b -a", "a/b a/b/c b", "a a/c"},
		{"-x +x/y", "y", "x/y"},
	} {
		f := filterOf(t, strings.Fields(c.rules)...)
		for _, n := range strings.Fields(c.taken) {
			if !f.Takes(n) {
				t.Errorf("%q leaves out %s", c.rules, n)
			}
		}
		for _, n := range strings.Fields(c.left) {
			if f.Takes(n) {
				t.Errorf("%q takes %s", c.rules, n)
			}
		}
	}
	if f := (*Filter)(nil); !f.Takes("a") || f.prunes("a") {
		t.Error("no filter leaves something out")
	}
	for _, p := range []string{"", "/", "//", "a//b", "[", "a/[x", `\`} {
		if err := new(Filter).Exclude(p); !errors.Is(err, ErrPattern) {
			t.Errorf("%q: %v", p, err)
		}
	}
}

func FuzzFilter(f *testing.F) {
	f.Add("a/**/b", "*.c", "a/x/b/y.c")
	f.Add("**", "x/", "x/y")
	f.Add("/**/**/a*", "b", "b/c")
	f.Fuzz(func(t *testing.T, one, two, name string) {
		x := &Filter{}
		if x.Exclude(one) != nil || x.Include(two) != nil || x.Exclude(one+"/"+two) != nil {
			return
		}
		for i := range name { // a directory that is left out has nothing that is taken
			if name[i] == '/' && x.prunes(name[:i]) && x.Takes(name) {
				t.Fatalf("%q, %q: %q is taken, and %q left out", one, two, name, name[:i])
			}
		}
		p, n := strings.Split(one, "/"), strings.Split(name, "/")
		if len(p)+len(n) < 24 && matchParts(p, n) != plainly(p, n) {
			t.Fatalf("%q and %q: %t", p, n, matchParts(p, n))
		}
	})
}

// plainly is matchParts as its definition reads.
func plainly(pattern, name []string) bool {
	switch {
	case len(pattern) == 0:
		return len(name) == 0
	case pattern[0] == "**":
		return plainly(pattern[1:], name) || len(name) > 0 && plainly(pattern, name[1:])
	case len(name) == 0:
		return false
	}
	ok, err := path.Match(pattern[0], name[0])
	return ok && err == nil && plainly(pattern[1:], name[1:])
}
