package identity

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

func newDir(t testing.TB) string { return filepath.Join(t.TempDir(), "sub", "id") }

func setup(t testing.TB, dir, name string) *Authority {
	t.Helper()
	a, made, err := Setup(dir, name, 0)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	return a
}

func TestSetup(t *testing.T) {
	dir := newDir(t)
	ca := setup(t, dir, "a")
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", fi.Mode(), err)
	}
	for name, mode := range map[string]os.FileMode{NodeFile: 0o600, AuthorityFile: 0o600, IssuedFile: 0o600,
		CAFile: 0o644} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 {
		t.Errorf("files left: %v, %v", entries, err)
	}
	a := open(t, dir, Options{})
	again, made, err := Setup(dir, "", 0)
	if err != nil || made || !again.cert.Equal(ca.cert) {
		t.Errorf("again: made %v, %v", made, err)
	}
	if _, _, err := Setup(dir, "b", 0); !errors.Is(err, ErrExists) {
		t.Errorf("again with another name: %v", err)
	}
	if _, _, err := Setup(newDir(t), "", 0); !errors.Is(err, ErrName) {
		t.Errorf("without a name: %v", err)
	}
	b := issue(t, ca, "b", IssueOptions{})
	if _, err := meet(t, a, b); err != nil {
		t.Error(err)
	}
	// A program that was stopped half way goes on where it was.
	os.Remove(filepath.Join(dir, NodeFile))
	if again, made, err = Setup(dir, "a", 0); err != nil || !made || !again.cert.Equal(ca.cert) {
		t.Errorf("half way: made %v, %v", made, err)
	}
	os.Remove(filepath.Join(dir, AuthorityFile))
	if _, _, err := Setup(dir, "a", 0); !errors.Is(err, ErrExists) {
		t.Errorf("a node of another machine's authority: %v", err)
	}
	if _, err := OpenAuthority(dir); !errors.Is(err, ErrMissing) {
		t.Errorf("no authority: %v", err)
	}
}

// Several programs set one directory up at a time: there is one authority in the end, and its node
// is whole.
func TestSetupAtATime(t *testing.T) {
	dir := newDir(t)
	var wg sync.WaitGroup
	got := make([]*Authority, 6)
	for k := range got {
		wg.Go(func() {
			a, _, err := Setup(dir, "a", 0)
			if err != nil {
				t.Error(err)
				return
			}
			got[k] = a
		})
	}
	wg.Wait()
	for _, a := range got {
		if a == nil || !a.cert.Equal(got[0].cert) {
			t.Fatal("several authorities")
		}
	}
	open(t, dir, Options{})
}

func TestInspectAndRenew(t *testing.T) {
	dir := newDir(t)
	ca := setup(t, dir, "a")
	c, err := Inspect(dir)
	if err != nil || c.Self.Name != "a" || c.Issuer != Fingerprint(ca.cert) || len(c.Roots) != 1 ||
		c.Authority == nil || c.Rules != nil {
		t.Fatalf("%+v, %v", c, err)
	}
	a := open(t, dir, always)
	p, err := ca.Renew(IssueOptions{Valid: time.Hour})
	if err != nil || p.Name != "a" || p.Serial == c.Self.Serial {
		t.Fatalf("%+v, %v", p, err)
	}
	b := issue(t, ca, "b", IssueOptions{})
	if got, err := meet(t, b, a); err != nil || got != p {
		t.Errorf("%+v, %v; expected %+v", got, err, p)
	}
	// A certificate that has ended can be looked at and renewed, not used.
	old := &Authority{cert: ca.cert, key: ca.key, dir: dir, clock: func() time.Time { return time.Now() }}
	if _, err := old.Renew(IssueOptions{NotBefore: time.Now().Add(-2 * time.Hour), Valid: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrExpired) {
		t.Errorf("ended: %v", err)
	}
	if c, err := Inspect(dir); err != nil || !c.Self.NotAfter.Before(time.Now()) {
		t.Errorf("ended: %+v, %v", c, err)
	}
	if _, err := ca.Renew(IssueOptions{}); err != nil {
		t.Error(err)
	}
	open(t, dir, Options{})
	issued, err := ca.Issued()
	if err != nil || len(issued) != 5 || issued[0].Serial != c.Self.Serial || issued[2].Name != "b" {
		t.Errorf("issued: %+v, %v", issued, err)
	}
	if have, err := ca.Has("b"); !have || err != nil {
		t.Errorf("b: %v, %v", have, err)
	}
	if have, err := ca.Has("c"); have || err != nil {
		t.Errorf("c: %v, %v", have, err)
	}
	if _, err := authority(t).Renew(IssueOptions{}); !errors.Is(err, ErrMissing) {
		t.Errorf("an authority in memory: %v", err)
	}
}

func TestExportAndImport(t *testing.T) {
	home, away := newDir(t), newDir(t)
	ca := setup(t, home, "a")
	bundle, p, err := ca.Export("b", IssueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Import(away, bundle)
	if err != nil || c.Self != p || c.Authority != nil {
		t.Fatalf("%+v, %v", c, err)
	}
	if fi, err := os.Stat(filepath.Join(away, NodeFile)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	a, b := open(t, home, Options{}), open(t, away, Options{})
	if got, err := meet(t, a, b); err != nil || got != p {
		t.Errorf("%+v, %v", got, err)
	}
	_, key, _ := strings.Cut(string(bundle), "PRIVATE KEY-----\n")
	key = key[:20]
	// The same name again renews; everything else would lose what is there.
	renewal, _, _ := ca.Export("b", IssueOptions{})
	if c, err := Import(away, renewal); err != nil || c.Self == p {
		t.Errorf("renewal: %+v, %v", c, err)
	}
	before, _ := os.ReadFile(filepath.Join(away, NodeFile))
	other, _, _ := ca.Export("c", IssueOptions{})
	foreignCA := authority(t)
	foreign, _, _ := foreignCA.Export("b", IssueOptions{})
	own, _, _ := foreignCA.Export("a", IssueOptions{})
	ended, _, _ := ca.Export("b", IssueOptions{NotBefore: time.Now().Add(-2 * time.Hour), Valid: time.Hour})
	for _, c := range []struct {
		what, dir string
		bundle    []byte
		want      error
	}{
		{"another name", away, other, ErrExists},
		{"another authority", away, foreign, ErrExists},
		{"over an authority", home, own, ErrExists},
		{"ended", away, ended, ErrExpired},
		{"empty", away, nil, ErrCredentials},
		{"cut off", away, bundle[:len(bundle)-30], ErrCredentials},
		{"without roots", away, bundle[:bytes.LastIndex(bundle, []byte("-----BEGIN CERT"))], ErrCredentials},
		{"without the key", away, bytes.Replace(bundle, []byte("PRIVATE KEY"), []byte("PUBLIC KEYS"), 2), ErrCredentials},
		{"the roots only", away, encodeCertificates(ca.cert), ErrCredentials},
	} {
		if _, err := Import(c.dir, c.bundle); !errors.Is(err, c.want) || strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v, expected %v", c.what, err, c.want)
		}
	}
	if after, _ := os.ReadFile(filepath.Join(away, NodeFile)); !bytes.Equal(before, after) {
		t.Error("a refused import changed the files")
	}
	if _, _, err := ca.Export("../b", IssueOptions{}); !errors.Is(err, ErrName) {
		t.Errorf("a bad name: %v", err)
	}
}

func TestBundleCarriesAllRoots(t *testing.T) {
	dir := newDir(t)
	ca, next := setup(t, dir, "a"), authority(t)
	write(t, dir, CAFile, encodeCertificates(next.cert, ca.cert), 0o644)
	c, err := ca.Credentials("b", IssueOptions{})
	if err != nil || len(c.Roots) != 2 || !c.Roots[0].Equal(ca.cert) || !c.Roots[1].Equal(next.cert) {
		t.Errorf("%d roots, %v", len(c.Roots), err)
	}
}

// The list of what was issued outlives a line that was cut off, and everything that is not a line
// of it.
func TestIssuedIsTolerant(t *testing.T) {
	dir := newDir(t)
	ca := setup(t, dir, "a")
	f, err := os.OpenFile(filepath.Join(dir, IssuedFile), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("x ../y 2030-01-01T00:00:00Z\n\nabc b yesterday\nabc b 2030-01-0")
	f.Close()
	if _, err := ca.Credentials("c", IssueOptions{}); err != nil {
		t.Fatal(err)
	}
	issued, err := ca.Issued()
	if err != nil || len(issued) != 2 || issued[0].Name != "a" || issued[1].Name != "c" {
		t.Errorf("%+v, %v", issued, err)
	}
}

// What belongs to another user is refused, wherever it is read, also behind a link, and when a
// running node looks again.
func TestOwner(t *testing.T) {
	const other = 12345
	ca := authority(t)
	own := func(path string, uid int) {
		t.Helper()
		if err := os.Chown(path, uid, -1); err != nil {
			testenv.Missing(t, "the right to give files away", err)
		}
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ErrPermissions) || !strings.Contains(err.Error(), "belongs to user 12345") ||
			!strings.Contains(err.Error(), "chown ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, name := range []string{NodeFile, CAFile, PolicyFile} {
		dir := node(t, ca, "a")
		write(t, dir, PolicyFile, []byte("default none\n"), 0o644)
		own(filepath.Join(dir, name), other)
		_, err := Open(dir, Options{})
		refused(name, err)
		_, err = Inspect(dir)
		refused(name, err)
		away := filepath.Join(t.TempDir(), name)
		if err := os.Rename(filepath.Join(dir, name), away); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(away, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		_, err = Open(dir, Options{})
		refused("a link to "+name, err)
		own(away, os.Geteuid())
		if _, err := Open(dir, Options{}); err != nil {
			t.Errorf("%s given back: %v", name, err)
		}
	}
	dir := newDir(t)
	home := setup(t, dir, "a")
	id := open(t, dir, always)
	own(filepath.Join(dir, IssuedFile), other)
	_, err := home.Issued()
	refused(IssuedFile, err)
	_, err = home.Credentials("b", IssueOptions{})
	refused("writing to "+IssuedFile, err)
	own(filepath.Join(dir, AuthorityFile), other)
	_, err = OpenAuthority(dir)
	refused(AuthorityFile, err)
	old := filepath.Join(dir, NodeFile)
	past := time.Now().Add(-time.Hour) // so that its time stamp is believed
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(dir, CAFile), past, past); err != nil {
		t.Fatal(err)
	}
	id.Rights("b")
	own(old, other)
	id.Rights("b")
	if s := id.Stats(); s.LoadErrors != 1 || !strings.Contains(s.LoadError, "belongs to user") {
		t.Errorf("a running node: %+v", s)
	}
	own(dir, other)
	_, err = Open(dir, Options{})
	refused("the directory", err)
}

// Only root, as in secrets of Kubernetes, and the effective user may own an identity.
func TestOwners(t *testing.T) {
	for _, c := range []struct {
		owner uint32
		user  int
		ok    bool
	}{{0, 0, true}, {0, 1000, true}, {1000, 1000, true}, {1000, 1001, false}, {1000, 0, false}} {
		if err := checkOwner("x", c.owner, c.user); (err == nil) != c.ok || err != nil &&
			!errors.Is(err, ErrPermissions) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A group of this process may read the key of root and of no other user; a group may write
// nothing.
func TestModes(t *testing.T) {
	const mine, other = 54321, 54322
	path := filepath.Join(t.TempDir(), "key")
	write(t, filepath.Dir(path), "key", nil, 0o600)
	for _, c := range []struct {
		owner, group int
		mode         os.FileMode
		secret, ok   bool
	}{
		{0, mine, 0o440, true, true}, {0, mine, 0o640, true, true}, {0, other, 0o600, true, true},
		{0, other, 0o440, true, false}, {0, mine, 0o444, true, false}, {0, mine, 0o460, true, false},
		{0, mine, 0o450, true, false}, {0, mine, 0o660, true, false}, {mine, mine, 0o440, true, false},
		{mine, mine, 0o400, true, true}, {0, other, 0o444, false, true}, {0, mine, 0o664, false, false},
		{0, mine, 0o446, false, false},
	} {
		if err := os.Chown(path, c.owner, c.group); err != nil {
			testenv.Missing(t, "the right to give files away", err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		err = checkMode(path, fi, c.secret, []int{7, mine})
		if found := fmt.Sprintf("mode %04o", c.mode); (err == nil) != c.ok || err != nil &&
			(!errors.Is(err, ErrPermissions) || !strings.Contains(err.Error(), found) ||
				!strings.Contains(err.Error(), "expected 06") ||
				!strings.Contains(err.Error(), "fix it with: chmod ")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestDefaultDir(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", "/somewhere")
	if d, err := DefaultDir(); d != "/somewhere/penstock" || err != nil {
		t.Errorf("%q, %v", d, err)
	}
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "")
	if _, err := DefaultDir(); err == nil || !strings.Contains(err.Error(), "XDG_CONFIG_HOME") {
		t.Errorf("no home: %v", err)
	}
}

// A file that cannot be replaced stays, and nothing is left beside it.
func TestWriteFileFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(filepath.Join(dir, "x"), []byte("y"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if err := writeFile(filepath.Join(dir, "no", "x"), nil, 0o600); err == nil {
		t.Error("a file in a directory that is not there was written")
	}
}
