package identity

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// write replaces a file of a directory as a tool outside would.
func write(t testing.TB, dir, name string, b []byte, mode fs.FileMode) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := writeFile(path, b, mode); err != nil {
		t.Fatal(err)
	}
}

// node makes a directory with the files of a node.
func node(t testing.TB, a *Authority, name string, roots ...*x509.Certificate) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "id")
	if err := makeDir(dir); err != nil {
		t.Fatal(err)
	}
	put(t, dir, a, name, roots...)
	return dir
}

// put writes new files for a node into its directory.
func put(t testing.TB, dir string, a *Authority, name string, roots ...*x509.Certificate) {
	t.Helper()
	c, err := a.Credentials(name, IssueOptions{Roots: roots})
	if err != nil {
		t.Fatal(err)
	}
	if err := save(dir, c); err != nil {
		t.Fatal(err)
	}
}

// changes are what an identity took from its files, and refused to take, since the last call of
// kinds.
type changes struct {
	of              *Identity
	loaded, refused uint64
}

func (c *changes) kinds() string {
	loaded, refused := c.of.loaded.Load(), c.of.loadErrors.Load()
	out := strings.Repeat("loaded ", int(loaded-c.loaded)) + strings.Repeat("refused ", int(refused-c.refused))
	c.loaded, c.refused = loaded, refused
	return strings.TrimSpace(out)
}

// reload reads files that changed, in turn with others that do.
func reload(i *Identity) error {
	i.watch.turn.Lock()
	defer i.watch.turn.Unlock()
	i.reload()
	return errors.Join(i.watch.credentials.failure(), i.watch.rules.failure())
}

func open(t testing.TB, dir string, o Options) *Identity {
	t.Helper()
	i, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	return i
}

// always looks at the files each time it is asked.
var always = Options{Interval: -1}

func meet(t testing.TB, server, client *Identity) (Peer, error) {
	t.Helper()
	s, _, serr, cerr := shake(t, server.Server(), client.Client(server.Name()))
	if err := errors.Join(serr, cerr); err != nil {
		return Peer{}, err
	}
	return PeerOf(s)
}

func TestRotation(t *testing.T) {
	ca := authority(t)
	dir := node(t, ca, "a")
	a, b := open(t, dir, always), issue(t, ca, "b", IssueOptions{})
	log := changes{of: a}
	config := a.Client("b") // kept, as a pool of connections would
	first := a.Self()
	if p, err := meet(t, b, a); err != nil || p != first {
		t.Fatalf("%+v, %v", p, err)
	}
	if k := log.kinds(); k != "" {
		t.Errorf("taken without a change: %s", k)
	}
	put(t, dir, ca, "a")
	s, _, serr, cerr := shake(t, b.Server(), config)
	if err := errors.Join(serr, cerr); err != nil {
		t.Fatal(err)
	}
	p, err := PeerOf(s)
	if err != nil || p == first || p != a.Self() || p.Name != "a" {
		t.Errorf("after a change: %+v, %v", p, err)
	}
	if k := log.kinds(); k != "loaded" {
		t.Errorf("taken: %q", k)
	}
	// The same content under a new time stamp is no change.
	node, err := os.ReadFile(filepath.Join(dir, NodeFile))
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, NodeFile, node, 0o600)
	if _, err := meet(t, b, a); err != nil || log.kinds() != "" || a.Stats().Loaded != 1 {
		t.Errorf("the same file again: %v, %+v", err, a.Stats())
	}
}

// Files that cannot be used leave the identity as it is, tell once, and are taken when they are
// whole.
func TestBadFilesChangeNothing(t *testing.T) {
	ca, other := authority(t), authority(t)
	dir := node(t, ca, "a")
	good, err := os.ReadFile(filepath.Join(dir, NodeFile))
	if err != nil {
		t.Fatal(err)
	}
	goodCA, _ := os.ReadFile(filepath.Join(dir, CAFile))
	b := issue(t, ca, "b", IssueOptions{})
	a := open(t, dir, always)
	self := a.Self()
	mixed := func() []byte { // a certificate and the key of another
		c, err := ca.Credentials("a", IssueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		x, _ := encodeNode(c.Certificate)
		cut := strings.Index(string(x), "-----BEGIN PRIVATE")
		return append(x[:cut:cut], good[strings.Index(string(good), "-----BEGIN PRIVATE"):]...)
	}
	of := func(a *Authority, name string, o IssueOptions) []byte {
		c, err := a.Credentials(name, o)
		if err != nil {
			t.Fatal(err)
		}
		x, err := encodeNode(c.Certificate)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	for _, c := range []struct {
		what, file string
		content    []byte
		mode       fs.FileMode
		want       error
	}{
		{"half written", NodeFile, good[:len(good)-40], 0o600, ErrCredentials},
		{"without its key", NodeFile, good[:strings.Index(string(good), "-----BEGIN PRIVATE")], 0o600, ErrCredentials},
		{"empty", NodeFile, nil, 0o600, ErrCredentials},
		{"another one's key", NodeFile, mixed(), 0o600, ErrCredentials},
		{"of another authority", NodeFile, of(other, "a", IssueOptions{}), 0o600, ErrUntrusted},
		{"of another name", NodeFile, of(ca, "c", IssueOptions{}), 0o600, ErrCredentials},
		{"over", NodeFile, of(ca, "a", IssueOptions{NotBefore: time.Now().Add(-2 * time.Hour), Valid: time.Hour}), 0o600, ErrExpired},
		{"readable for all", NodeFile, of(ca, "a", IssueOptions{}), 0o644, ErrPermissions},
		{"too large", NodeFile, append(make([]byte, maxFile), good...), 0o600, ErrCredentials},
		{"no roots", CAFile, []byte("# none\n"), 0o644, ErrCredentials},
		{"half a root", CAFile, append(goodCA[:len(goodCA):len(goodCA)], goodCA[:100]...), 0o644, ErrCredentials},
		{"other roots", CAFile, encodeCertificates(other.cert), 0o644, ErrUntrusted},
		{"writable for all", CAFile, goodCA, 0o666, ErrPermissions},
	} {
		before := a.Stats()
		write(t, dir, c.file, c.content, c.mode)
		for range 3 {
			if p, err := meet(t, b, a); err != nil || p != self {
				t.Errorf("%s: handshake with %+v, %v", c.what, p, err)
			}
		}
		s := a.Stats()
		if s.Self != self || s.LoadErrors != before.LoadErrors+1 || s.Loaded != before.Loaded ||
			!strings.Contains(s.LoadError, dir) {
			t.Errorf("%s: %+v", c.what, s)
		}
		if err := reload(a); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
		if strings.Contains(s.LoadError, "PRIVATE") {
			t.Errorf("%s: the error shows the file: %s", c.what, s.LoadError)
		}
		write(t, dir, CAFile, goodCA, 0o644)
		write(t, dir, NodeFile, good, 0o600)
		if err := reload(a); err != nil || a.Stats().LoadError != "" {
			t.Errorf("%s: repaired: %v, %+v", c.what, err, a.Stats())
		}
	}
	// Also a file that is gone, or not a file.
	os.Remove(filepath.Join(dir, NodeFile))
	if err := reload(a); !errors.Is(err, ErrMissing) {
		t.Errorf("removed: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, NodeFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := reload(a); !errors.Is(err, ErrCredentials) {
		t.Errorf("a directory: %v", err)
	}
	if p, err := meet(t, b, a); err != nil || p != self {
		t.Errorf("after all that: %+v, %v", p, err)
	}
}

// Certificate and key may be two files, which no tool can replace in one step.
func TestSeparateFiles(t *testing.T) {
	ca := authority(t)
	dir := filepath.Join(t.TempDir(), "id")
	if err := makeDir(dir); err != nil {
		t.Fatal(err)
	}
	split := func() (cert, key []byte) {
		c, err := ca.Credentials("a", IssueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		x, err := encodeNode(c.Certificate)
		if err != nil {
			t.Fatal(err)
		}
		cut := strings.Index(string(x), "-----BEGIN PRIVATE")
		return x[:cut], x[cut:]
	}
	cert, key := split()
	write(t, dir, "tls.crt", cert, 0o644)
	write(t, dir, "tls.key", key, 0o600)
	write(t, dir, "ca.crt", encodeCertificates(ca.cert), 0o644)
	o := always
	o.Cert, o.Key, o.CA = "tls.crt", "tls.key", "ca.crt"
	a := open(t, dir, o)
	log := changes{of: a}
	b := issue(t, ca, "b", IssueOptions{})
	cert, key = split()
	write(t, dir, "tls.crt", cert, 0o644)
	if _, err := meet(t, b, a); err != nil || log.kinds() != "refused" {
		t.Errorf("between the two: %v", err)
	}
	write(t, dir, "tls.key", key, 0o600)
	if _, err := meet(t, b, a); err != nil || log.kinds() != "loaded" {
		t.Errorf("after both: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "tls.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, o); !errors.Is(err, ErrPermissions) || !strings.Contains(err.Error(), "chmod 600 ") {
		t.Errorf("a key that all can read: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	ca := authority(t)
	if _, err := Open(filepath.Join(t.TempDir(), "none"), Options{}); !errors.Is(err, ErrMissing) ||
		!strings.Contains(err.Error(), "penstock pair") {
		t.Errorf("no directory: %v", err)
	}
	if _, err := Open(t.TempDir(), Options{}); !errors.Is(err, ErrMissing) {
		t.Errorf("an empty directory: %v", err)
	}
	dir := node(t, ca, "a")
	for _, c := range []struct {
		path string
		mode fs.FileMode
		want string
	}{{dir, 0o770, "chmod go-w"}, {filepath.Join(dir, NodeFile), 0o604, "chmod 600"},
		{filepath.Join(dir, CAFile), 0o664, "chmod go-w"}} {
		fi, err := os.Stat(c.path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(c.path, c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, Options{}); !errors.Is(err, ErrPermissions) ||
			!strings.Contains(err.Error(), c.want+" "+c.path) {
			t.Errorf("%s with mode %o: %v", c.path, c.mode, err)
		}
		if err := os.Chmod(c.path, fi.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, PolicyFile, []byte("allow a reed\n"), 0o644)
	var at *SyntaxError
	if _, err := Open(dir, Options{}); !errors.As(err, &at) || at.Line != 1 ||
		!strings.HasPrefix(err.Error(), filepath.Join(dir, PolicyFile)+":1: ") {
		t.Errorf("rules with a mistake: %v", err)
	}
	os.Remove(filepath.Join(dir, PolicyFile))
	if _, err := Open(dir, Options{Policy: "elsewhere"}); !errors.Is(err, ErrPolicy) || errors.Is(err, ErrMissing) {
		// the identity is not missing
		t.Errorf("a file of rules that was asked for and is not there: %v", err)
	}
	if i, err := Open(dir, Options{}); err != nil || i.Rights("x") != 0 {
		t.Errorf("without rules: %v", err)
	}
	write(t, dir, PolicyFile, nil, 0o644)
	if i, err := Open(dir, Options{}); err != nil || i.Rights("x") != 0 {
		t.Errorf("with an empty file of rules: %v", err)
	}
}

func TestRulesChange(t *testing.T) {
	ca := authority(t)
	dir := node(t, ca, "a")
	a, b := open(t, dir, always), issue(t, ca, "b", IssueOptions{})
	log := changes{of: a}
	if a.Rights("b") != 0 {
		t.Error("rights without rules")
	}
	for _, c := range []struct {
		text   string
		rights Rights
		denied bool
		taken  string
	}{
		{"allow b read\n", Read, false, "loaded"},
		{"allow b reed\n", Read, false, "refused"},
		{"default list\ndeny name b\n", List, true, "loaded"},
		{"default list\ndeny serial " + b.Self().Serial + "\n", List, true, "loaded"},
		{"default write\n", Write, false, "loaded"},
	} {
		write(t, dir, PolicyFile, []byte(c.text), 0o600)
		if r := a.Rights("b"); r != c.rights {
			t.Errorf("%q: %v", c.text, r)
		}
		if d := a.Denied("b", b.Self().Serial); d != c.denied {
			t.Errorf("%q: denied %v", c.text, d)
		}
		if _, err := meet(t, a, b); errors.Is(err, ErrDenied) != c.denied || err != nil != c.denied {
			t.Errorf("%q: %v", c.text, err)
		}
		if k := log.kinds(); k != c.taken {
			t.Errorf("%q: taken: %q", c.text, k)
		}
	}
	// A new certificate does not change what others may do.
	put(t, dir, ca, "a")
	if r, k := a.Rights("b"), log.kinds(); r != Write || k != "loaded" {
		t.Errorf("rights after a rotation: %v; taken: %q", r, k)
	}
	// A file that is gone takes all rights along, and says so until it is back.
	os.Remove(filepath.Join(dir, PolicyFile))
	if r := a.Rights("b"); r != 0 || log.kinds() != "refused" {
		t.Errorf("without the file: %v", r)
	}
	if r, s := a.Rights("b"), a.Stats().LoadError; r != 0 || log.kinds() != "" ||
		!strings.Contains(s, PolicyFile+" was removed") {
		t.Errorf("later: %v, %q", r, s)
	}
	write(t, dir, PolicyFile, []byte("default write\n"), 0o600)
	if r, s := a.Rights("b"), a.Stats().LoadError; r != Write || log.kinds() != "loaded" || s != "" {
		t.Errorf("with the file again: %v, %q", r, s)
	}
	// Mistakes in the rules do not keep new certificates out.
	self := a.Self()
	write(t, dir, PolicyFile, []byte("?"), 0o600)
	put(t, dir, ca, "a")
	if err := reload(a); !errors.Is(err, ErrPolicy) || a.Self() == self {
		t.Errorf("%v, %+v", err, a.Self())
	}
	log.kinds()
	r, err := ParseRules([]byte("default status\n"))
	if err != nil {
		t.Fatal(err)
	}
	if a.SetRules(r); a.Rights("b") != Status || a.Rules() != r || log.kinds() != "loaded" {
		t.Error("SetRules")
	}
}

// Files are looked at once per interval, not at each question.
func TestInterval(t *testing.T) {
	ca := authority(t)
	dir := node(t, ca, "a")
	var now atomic.Int64
	start := time.Now()
	clock := func() time.Time { return start.Add(time.Duration(now.Load())) }
	a := open(t, dir, Options{Clock: clock})
	write(t, dir, PolicyFile, []byte("default read\n"), 0o600)
	for at, want := range map[time.Duration]Rights{time.Second - 1: 0, 0: 0} {
		now.Store(int64(at))
		if r := a.Rights("b"); r != want {
			t.Errorf("after %v: %v", at, r)
		}
	}
	now.Store(int64(time.Second))
	if r := a.Rights("b"); r != Read {
		t.Errorf("after a second: %v", r)
	}
	write(t, dir, PolicyFile, []byte("default write\n"), 0o600)
	if r := a.Rights("b"); r != Read {
		t.Errorf("in the same second: %v", r)
	}
	// A clock that is set back does not stop the looking.
	now.Store(int64(-time.Minute))
	if r := a.Rights("b"); r != Write {
		t.Errorf("after the clock was set back: %v", r)
	}
}

// A write that leaves size and time stamp as they were, within one tick of the file system's clock,
// is found: a time stamp is believed only when it is old.
func TestSameStamp(t *testing.T) {
	ca := authority(t)
	dir := node(t, ca, "a")
	path := filepath.Join(dir, PolicyFile)
	young, old := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	rewrite := func(text string, stamp time.Time) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil { // in place: the same inode
			t.Fatal(err)
		}
		if err := os.Chtimes(path, stamp, stamp); err != nil {
			t.Fatal(err)
		}
	}
	rewrite("default read\n", young)
	a := open(t, dir, always)
	rewrite("default list\n", young)
	if r := a.Rights("b"); r != List {
		t.Errorf("a change under a young stamp is not seen: %v", r)
	}
	rewrite("default none\n", old)
	if r := a.Rights("b"); r != 0 {
		t.Errorf("a change of the stamp is not seen: %v", r)
	}
	// This is the price: a change that hides behind an old stamp is not seen.
	rewrite("default read\n", old)
	if r := a.Rights("b"); r != 0 {
		t.Errorf("files are read although nothing changed: %v", r)
	}
}

// Handshakes go on while files change all the time; none fails and none sees half a change. The
// race detector looks on.
func TestRotationUnderHandshakes(t *testing.T) {
	ca := authority(t)
	dir := node(t, ca, "a")
	a, b := open(t, dir, always), issue(t, ca, "b", IssueOptions{})
	const rounds = 12
	var seen sync.Map
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				server, client := a, b
				if k%2 == 1 {
					server, client = b, a
				}
				s, c, serr, cerr := shake(t, server.Server(), client.Client(""))
				if serr != nil || cerr != nil {
					t.Errorf("handshake: %v, %v", serr, cerr)
					return
				}
				if k%2 == 0 {
					s = c
				}
				p, err := PeerOf(s)
				if err != nil || p.Name != "a" {
					t.Errorf("%+v, %v", p, err)
				}
				seen.Store(p.Serial, true)
				a.Rights("b")
				a.Stats()
			}
		})
	}
	good, err := os.ReadFile(filepath.Join(dir, NodeFile))
	if err != nil {
		t.Fatal(err)
	}
	for n := range rounds {
		if n%3 == 2 {
			write(t, dir, NodeFile, good[:len(good)/2], 0o600)
		} else {
			put(t, dir, ca, "a")
		}
		reload(a)
		if p, err := meet(t, b, a); err != nil || p != a.Self() {
			t.Errorf("round %d: %+v, %v", n, p, err)
		}
		seen.Store(a.Self().Serial, true)
	}
	close(stop)
	wg.Wait()
	different := 0
	seen.Range(func(any, any) bool { different++; return true })
	if s := a.Stats(); different < 3 || s.Loaded < rounds/2 || s.LoadErrors < rounds/4 {
		t.Errorf("%d certificates seen, %+v", different, s)
	}
}

// A certificate that was installed too early is taken up when its time comes, without another
// change of the files.
func TestEarlyCertificate(t *testing.T) {
	ca := authority(t)
	dir := node(t, ca, "a")
	var off atomic.Int64
	start := time.Now()
	o := always
	o.Clock = func() time.Time { return start.Add(time.Duration(off.Load())) }
	a := open(t, dir, o)
	log := changes{of: a}
	self := a.Self()
	c, err := ca.Credentials("a", IssueOptions{NotBefore: start.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if err := save(dir, c); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a.Rights("b")
	}
	if k := log.kinds(); k != "refused" || a.Self() != self || a.Stats().LoadErrors != 1 {
		t.Errorf("too early: %q, %+v", k, a.Stats())
	}
	off.Store(int64(2 * time.Hour))
	a.Rights("b")
	if k := log.kinds(); k != "loaded" || a.Self() == self || a.Stats().LoadError != "" {
		t.Errorf("in time: %q, %+v", k, a.Stats())
	}
	if err := reload(a); err != nil || log.kinds() != "" {
		t.Errorf("nothing new: %v", err)
	}
}

// Rules of another place give the rights. What the directory's own rules deny stays out all the
// same, also what is denied later, and also when that file is gone or broken.
func TestDenialsBesideAnotherPolicy(t *testing.T) {
	ca := authority(t)
	dir := node(t, ca, "a")
	other := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(other, []byte("default all\ndeny name c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, c := issue(t, ca, "b", IssueOptions{}), issue(t, ca, "c", IssueOptions{})
	a := open(t, dir, Options{Policy: other, Interval: -1})
	in := func(when string, peer *Identity, want bool) {
		t.Helper()
		if _, err := meet(t, a, peer); (err == nil) != want {
			t.Errorf("%s, %s: %v", when, peer.Name(), err)
		}
	}
	in("before", b, true)
	in("before", c, false)
	for _, deny := range []func() (*Rules, error){
		func() (*Rules, error) { return Deny(dir, "b", "") }, func() (*Rules, error) { return Undeny(dir, "b", "") },
		func() (*Rules, error) { return Deny(dir, "", b.Self().Serial) }} {
		rules, err := deny()
		if err != nil {
			t.Fatal(err)
		}
		in(rules.String(), b, !rules.Denied("b", b.Self().Serial))
		if got := a.Rules(); got.Denied("b", b.Self().Serial) != rules.Denied("b", b.Self().Serial) ||
			!got.Denied("c", "") || got.Rights("b") != All {
			t.Errorf("the rules in use are %v", got)
		}
	}
	write(t, dir, PolicyFile, []byte("what\n"), 0o600)
	in("a broken file", b, false)
	if _, err := Open(dir, Options{Policy: other}); !errors.Is(err, ErrPolicy) {
		t.Errorf("opened with a broken file: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, PolicyFile)); err != nil {
		t.Fatal(err)
	}
	in("no file", b, false)
	if s := a.Stats(); !strings.Contains(s.LoadError, "was removed: what it denied stays denied") {
		t.Errorf("%+v", s)
	}
	// The directory's rules give no rights here, and theirs are not lost with them.
	write(t, dir, PolicyFile, []byte("allow c all\n"), 0o600)
	in("nothing is denied", b, true)
	in("nothing is denied", c, false)
	if s := a.Stats(); s.LoadError != "" {
		t.Errorf("%+v", s)
	}
}

// A peer is told the command that gives it rights, with what that needs and without a path.
func TestToPermit(t *testing.T) {
	ca := authority(t)
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	own, dir := filepath.Join(home, "penstock"), node(t, ca, "a")
	if err := os.Rename(dir, own); err != nil {
		t.Fatal(err)
	}
	dir = node(t, ca, "a")
	other := filepath.Join(home, "rules")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, i := range map[string]*Identity{
		"run on a: penstock pair allow b read":                                                 open(t, own, always),
		"run on a: penstock pair allow b read --dir DIR, with the directory of its --identity": open(t, dir, always),
		`write "allow b read" into the file of rules of a (--policy)`: open(t, dir,
			Options{Policy: other}),
	} {
		if got := i.ToPermit("b", "read"); got != want {
			t.Errorf("%q, expected %q", got, want)
		}
	}
}
