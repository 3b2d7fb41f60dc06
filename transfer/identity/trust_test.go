package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// The move of docs/security.md with the functions behind the commands, file by file.
func TestMoveByCommands(t *testing.T) {
	oldDir, newDirectory, away := newDir(t), newDir(t), newDir(t)
	oldCA, newCA := setup(t, oldDir, "a"), setup(t, newDirectory, "a")
	bundle, _, err := oldCA.Export("b", IssueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Import(away, bundle); err != nil {
		t.Fatal(err)
	}
	a, b := open(t, oldDir, always), open(t, away, always)
	works := func(when string) {
		t.Helper()
		if _, err := meet(t, a, b); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		if _, err := meet(t, b, a); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	works("before")
	must := func(c Contents, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pemOld, pemNew := encodeCertificates(oldCA.cert), encodeCertificates(newCA.cert)
	must(Trust(oldDir, pemNew))
	works("a trusts both")
	must(Trust(away, pemNew))
	must(Trust(newDirectory, pemOld))
	works("all trust both")
	again, err := Trust(away, append(pemNew, pemOld...))
	if err != nil || len(again.Roots) != 2 {
		t.Errorf("twice: %d roots, %v", len(again.Roots), err)
	}
	if _, err := Distrust(away, Fingerprint(oldCA.cert)); !errors.Is(err, ErrCredentials) {
		t.Errorf("the root of the node's own certificate was removed: %v", err)
	}
	// b gets its certificate by pairing, a by a file.
	v, done, _ := host(t, newCA, PairingOptions{Self: "a", For: "b"})
	must(Join(t.Context(), v, away, "b", JoinOptions{}))
	if o := <-done; o.err != nil {
		t.Fatal(o.err)
	}
	works("b is of the new authority")
	bundle, _, err = newCA.Export("a", IssueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Import(oldDir, bundle); !errors.Is(err, ErrExists) {
		t.Errorf("an authority was given another identity: %v", err)
	}
	if err := os.Rename(filepath.Join(oldDir, AuthorityFile), filepath.Join(t.TempDir(), "away")); err != nil {
		t.Fatal(err)
	}
	must(Import(oldDir, bundle))
	works("both are of the new authority")
	if _, err := Distrust(newDirectory, Fingerprint(newCA.cert)); !errors.Is(err, ErrCredentials) {
		t.Errorf("an authority removed its own root: %v", err)
	}
	for _, dir := range []string{oldDir, away, newDirectory} {
		c, err := Distrust(dir, Fingerprint(oldCA.cert)[:8])
		if err != nil || len(c.Roots) != 1 || !c.Roots[0].Equal(newCA.cert) {
			t.Errorf("%d roots, %v", len(c.Roots), err)
		}
	}
	works("after")
	if a.Stats().LoadErrors+b.Stats().LoadErrors != 0 {
		t.Errorf("%+v, %+v", a.Stats(), b.Stats())
	}
	for _, f := range []string{"", "1234567", Fingerprint(oldCA.cert), strings.Repeat("0", 64)} {
		if _, err := Distrust(away, f); !errors.Is(err, ErrCredentials) {
			t.Errorf("%q: %v", f, err)
		}
	}
	leaf, err := newCA.Credentials("c", IssueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Trust(away, encodeCertificates(leaf.Certificate.Leaf)); !errors.Is(err, ErrCredentials) {
		t.Errorf("a node as root: %v", err)
	}
	var many []byte
	for range maxRoots {
		many = append(many, encodeCertificates(authority(t).cert)...)
	}
	if _, err := Trust(away, many); !errors.Is(err, ErrCredentials) {
		t.Errorf("too many roots: %v", err)
	}
}

func TestDeny(t *testing.T) {
	dir := newDir(t)
	ca := setup(t, dir, "a")
	a, b, c := open(t, dir, always), issue(t, ca, "b", IssueOptions{}), issue(t, ca, "c", IssueOptions{})
	if _, err := Deny(dir, "b", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := meet(t, a, b); !errors.Is(err, ErrDenied) {
		t.Errorf("b: %v", err)
	}
	if _, err := meet(t, a, c); err != nil || a.Rights("c") != 0 {
		t.Errorf("c: %v, %v: a file of denials gave rights", a.Rights("c"), err)
	}
	if _, err := Deny(dir, "", c.Self().Serial); err != nil {
		t.Fatal(err)
	}
	if _, err := meet(t, a, c); !errors.Is(err, ErrDenied) {
		t.Errorf("c by serial number: %v", err)
	}
	// What people wrote stays, and the file stays what it is.
	const mine = "# mine\nallow x read # why"
	if err := os.WriteFile(filepath.Join(dir, PolicyFile), []byte(mine), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, PolicyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := Deny(dir, "old-*", ""); err != nil || !r.Denied("old-1", "") || r.Rights("x") != Read {
		t.Errorf("%v, %v", r, err)
	}
	path := filepath.Join(dir, PolicyFile)
	if text, err := os.ReadFile(path); err != nil || string(text) != mine+"\ndeny name old-*\n" {
		t.Errorf("%q, %v", text, err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	before, _ := os.ReadFile(path)
	for _, x := range [][2]string{{"", ""}, {"b", "1"}, {"a", ""}, {"*", ""}, {"old-2", ""}, {"b c", ""}, {"b#", ""},
		{"b\nallow y all", ""}, {"B", ""}, {"", "XY"}, {"", "1 2"}} {
		if _, err := Deny(dir, x[0], x[1]); !errors.Is(err, ErrPolicy) {
			t.Errorf("%q: %v", x, err)
		}
	}
	if after, _ := os.ReadFile(path); string(after) != string(before) {
		t.Errorf("refused, but written: %q", after)
	}
}

// A fleet moves from one authority to the next, one node and one step at a time, and all nodes can
// talk at each moment.
func TestMoveToAnotherAuthority(t *testing.T) {
	from, to := authority(t), authority(t)
	names := []string{"a", "b", "c"}
	dirs := make([]string, len(names))
	nodes := make([]*Identity, len(names))
	for k, n := range names {
		dirs[k] = node(t, from, n)
		nodes[k] = open(t, dirs[k], always)
	}
	all := func(when string) {
		t.Helper()
		for _, s := range nodes {
			for _, c := range nodes {
				if _, err := meet(t, s, c); err != nil {
					t.Fatalf("%s: %s dials %s: %v", when, c.Name(), s.Name(), err)
				}
			}
		}
	}
	steps := []struct {
		what string
		do   func(k int)
	}{
		{"trust both", func(k int) { write(t, dirs[k], CAFile, encodeCertificates(from.cert, to.cert), 0o644) }},
		{"certificates of the new one", func(k int) { put(t, dirs[k], to, names[k], from.cert) }},
		{"trust the new one only", func(k int) { write(t, dirs[k], CAFile, encodeCertificates(to.cert), 0o644) }},
	}
	all("before")
	for _, s := range steps {
		for k := range names {
			s.do(k)
			all(s.what + " at " + names[k])
		}
	}
	for k, n := range nodes {
		if x := n.Stats(); x.LoadErrors != 0 { // between ca.pem and node.pem nothing is ever wrong
			t.Errorf("%s: %+v", names[k], x)
		}
	}
	old := issue(t, from, "d", IssueOptions{Roots: []*x509.Certificate{to.cert}})
	if _, err := meet(t, nodes[0], old); !errors.Is(err, ErrUntrusted) {
		t.Errorf("a certificate of the old authority: %v", err)
	}
}

// Allow changes one rule and nothing else, and refuses one that would not hold.
// TestRulesBehindALink changes rules that are a link to a file elsewhere: it is that file that
// changes, and the link stays.
func TestRulesBehindALink(t *testing.T) {
	dir, elsewhere := newDir(t), filepath.Join(t.TempDir(), "rules")
	setup(t, dir, "a")
	path := filepath.Join(dir, PolicyFile)
	if err := errors.Join(os.WriteFile(elsewhere, []byte("# ours\n"), 0o600), os.Symlink(elsewhere, path)); err != nil {
		t.Fatal(err)
	}
	if _, err := Allow(dir, "b", Read); err != nil {
		t.Fatal(err)
	}
	if _, err := Deny(dir, "c", ""); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(elsewhere); err != nil || string(text) != "# ours\nallow b read\ndeny name c\n" {
		t.Errorf("%q, %v", text, err)
	}
	if to, err := os.Readlink(path); err != nil || to != elsewhere {
		t.Errorf("the link leads to %q, %v", to, err)
	}
}

func TestAllow(t *testing.T) {
	dir := newDir(t)
	setup(t, dir, "a")
	path := filepath.Join(dir, PolicyFile)
	step := func(pattern string, rights Rights, want string) {
		t.Helper()
		r, err := Allow(dir, pattern, rights)
		text, _ := os.ReadFile(path)
		if err != nil || string(text) != want {
			t.Fatalf("%v\n%s\nexpected\n%s", err, text, want)
		}
		if rule, ok := r.Rule(strings.ReplaceAll(pattern, "*", "x")); !ok || rule != (Rule{pattern, rights}) {
			t.Errorf("%s: %+v holds", pattern, rule)
		}
	}
	step("b", Read|List, "allow b read,list\n")
	step("b", All, "allow b all\n")
	step("gpu-*", Read, "allow b all\nallow gpu-* read\n")
	step("gpu-*", 0, "allow b all\nallow gpu-* none\n")
	if r, err := dirRules(dir); err != nil || r.Rights("gpu-1") != 0 || r.Rights("c") != 0 || r.Rights("b") != All {
		t.Errorf("%v, %v", r, err)
	}
	// What a pattern matches already stands above it, the narrower the higher.
	step("gpu-1*", Read, "allow b all\nallow gpu-1* read\nallow gpu-* none\n")
	step("gpu-17", All, "allow b all\nallow gpu-17 all\nallow gpu-1* read\nallow gpu-* none\n")
	for pattern, want := range map[string]string{"": "pattern", "B": "pattern", "x y": "pattern",
		"*a*": "more than one"} {
		if _, err := Allow(dir, pattern, Read); !errors.Is(err, ErrPolicy) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", pattern, err)
		}
	}
	if _, err := Allow(dir, "c", All+1); !errors.Is(err, ErrPolicy) {
		t.Errorf("rights that are none: %v", err)
	}
	// A file that people wrote, without a line feed at its end.
	write(t, dir, PolicyFile, []byte("# mine\nallow\tall   all# why\n# the others\n#\ndefault none # so\ndeny "+
		"name old-*"), 0o640)
	step("all", Read, "# mine\nallow\tall   read# why\n# the others\n#\ndefault none # so\ndeny name old-*\n")
	step("c", Write, "# mine\nallow\tall   read# why\nallow c write\n# the others\n#\ndefault none # so\ndeny name "+
		"old-*\n")
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", fi, err)
	}
	write(t, dir, PolicyFile, []byte("deny name old-*\n# the others\ndefault none\n"), 0o640)
	step("c", Write, "deny name old-*\nallow c write\n# the others\ndefault none\n")
	for _, name := range []string{"old-1", "old-1*"} {
		if _, err := Allow(dir, name, Read); !errors.Is(err, ErrPolicy) ||
			!strings.Contains(err.Error(), "penstock pair undeny 'old-*' --dir "+dir) {
			t.Errorf("%s, which is denied: %v", name, err)
		}
	}
	// A denial is taken back as it was written, and nothing else is.
	for _, c := range [][2]string{{"old-1", ""}, {"", ""}, {"old-*", "1f"}, {"", "1f"}} {
		if _, err := Undeny(dir, c[0], c[1]); !errors.Is(err, ErrPolicy) {
			t.Errorf("no such denial %q: %v", c, err)
		}
	}
	if _, err := Deny(dir, "", "1f"); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{"", "1f"}, {"old-*", ""}} {
		if _, err := Undeny(dir, c[0], c[1]); err != nil {
			t.Errorf("%q: %v", c, err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "allow c write\n# the others\ndefault none\n" {
		t.Errorf("%q, %v", text, err)
	}
	write(t, dir, PolicyFile, []byte("deny name old-*\nallow c write\n"), 0o640)
	// What was introduced keeps its rule, unless it is to be replaced.
	for _, c := range []struct {
		name   string
		rights Rights
		keep   bool
		want   Rule
		fails  bool
	}{
		{"d", Read, true, Rule{"d", Read}, false}, {"d", All, true, Rule{"d", Read}, false}, {"d", All, false, Rule{"d", All}, false},
		{"c", Read, true, Rule{"c", Write}, false}, {"x*", Read, true, Rule{}, true}, {"old-1", Read, true, Rule{}, true},
	} {
		got, err := Introduce(dir, c.name, c.rights, c.keep)
		if (err != nil) != c.fails || err == nil && got != c.want {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
	}
	write(t, dir, PolicyFile, []byte("allow gpu-* none\n"), 0o640)
	if got, err := Introduce(dir, "gpu-1", Read, true); err != nil || got != (Rule{"gpu-*", 0}) {
		t.Errorf("a pattern holds: %+v, %v", got, err)
	}
	if _, err := Introduce(dir, "gpu-1", Read, false); !errors.Is(err, ErrPolicy) {
		t.Errorf("a pattern is in the way: %v", err)
	}
	// Many at a time lose nothing.
	var wg sync.WaitGroup
	for k := range 16 {
		wg.Go(func() {
			if _, err := Allow(dir, fmt.Sprintf("n%d", k), Read); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if r, err := dirRules(dir); err != nil || len(r.allow) != 17 {
		t.Errorf("%v, %v", r, err)
	}
}
