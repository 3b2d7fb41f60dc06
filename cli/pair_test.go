package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/transfer/identity"
)

// inside runs the program in this process and returns what it printed and its exit status.
func inside(t *testing.T, in string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errOut bytes.Buffer
	status = Main(args, strings.NewReader(in), &out, &errOut)
	return out.String(), errOut.String(), status
}

func lines(t *testing.T, text string) (out []pairEvent) {
	t.Helper()
	for line := range strings.Lines(text) {
		var e pairEvent
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, e)
	}
	return out
}

// first is the first machine while it waits.
type first struct {
	lines  chan string // with room for all: it does not wait for its reader
	err    chan error
	stderr bytes.Buffer
	cancel context.CancelFunc
}

func listen(t *testing.T, args ...string) *first {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	f := &first{lines: make(chan string, 1000), err: make(chan error, 1), cancel: cancel}
	root := New(strings.NewReader(""), w, &f.stderr)
	args = append([]string{"pair", "--listen", "127.0.0.1:0"}, args...)
	if !slices.Contains(args, "--fingerprint") {
		args = append(args, "--yes")
	}
	root.SetArgs(args)
	go func() {
		defer close(f.lines)
		for in := bufio.NewScanner(r); in.Scan(); {
			f.lines <- in.Text()
		}
	}()
	go func() {
		err := root.ExecuteContext(ctx)
		w.Close()
		f.err <- err
	}()
	t.Cleanup(func() {
		cancel()
		r.Close()
	})
	return f
}

// invitation reads up to the address and the code for the second machine.
func (f *first) invitation(t *testing.T) (address, code string) {
	t.Helper()
	for line := range f.lines {
		line = strings.TrimSpace(line)
		if words := strings.Fields(line); len(words) >= 3 && words[0] == "penstock" && words[1] == "pair" &&
			strings.Contains(words[2], ":") {
			address = words[2]
		} else if identity.LooksLikeCode(line) && address != "" {
			return address, line
		}
	}
	t.Fatalf("no invitation: %v", <-f.err)
	return "", ""
}

// join runs a command of the second machine, which gets the code on its standard input.
func (f *first) join(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	address, code := f.invitation(t)
	if args[0] == "renew" {
		args = append([]string{"renew", address}, args[1:]...)
	} else {
		args = append([]string{address}, args...)
	}
	return inside(t, code+"\n", append([]string{"pair", "--code", "-"}, args...)...)
}

// rest is what it prints until its end.
func (f *first) rest() (string, error) {
	var b strings.Builder
	for line := range f.lines {
		b.WriteString(line + "\n")
	}
	return b.String(), <-f.err
}

func TestPair(t *testing.T) {
	home, away := filepath.Join(t.TempDir(), "id"), filepath.Join(t.TempDir(), "id")
	f := listen(t, "--dir", home, "--name", "a")
	address, code := f.invitation(t)
	out, errOut, status := inside(t, code+"\n", "pair", address, "--code", "-", "--dir", away, "--name", "b")
	if status != 0 || errOut != "" {
		t.Fatalf("status %d: %s", status, errOut)
	}
	rest, err := f.rest()
	if err != nil {
		t.Fatal(err)
	}
	a, err := identity.Inspect(home)
	if err != nil {
		t.Fatal(err)
	}
	b, err := identity.Inspect(away)
	if err != nil {
		t.Fatal(err)
	}
	key, err := identity.KeyFingerprint(publicKey(t, away))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Paired: b at 127.0.0.1:", b.Self.Serial, b.Self.Fingerprint, grouped(key),
		"Next: penstock serve",
		`b may do here: read,list (by the rule "allow b read,list")`, "penstock pair allow b RIGHTS --dir " + home} {
		if !strings.Contains(rest, want) {
			t.Errorf("the first machine does not print %q:\n%s", want, rest)
		}
	}
	for _, want := range []string{"Paired with a at " + address, b.Self.Serial, a.Issuer, grouped(key), "node       b",
		"Next: penstock serve FILE|DIR --listen tcp://127.0.0.1:7070   on a",
		"penstock ls tcp://a@127.0.0.1:7070 --identity ",
		`a may do here: read,list (by the rule "allow a read,list")`} {
		if !strings.Contains(out, want) {
			t.Errorf("the second machine does not print %q:\n%s", want, out)
		}
	}
	if strings.Contains(rest+out, code) {
		t.Error("the code is printed after it was used")
	}
	// The code works once.
	if _, errOut, status := inside(t, code, "pair", address, "--code", "-", "--dir", filepath.Join(t.TempDir(), "x"),
		"--name", "c"); status != exitUnreachable || errOut == "" || strings.Contains(errOut, code) {
		t.Errorf("again: status %d, %s", status, errOut)
	}
	// What is there now.
	out, _, _ = inside(t, "", "pair", "list", "--dir", home)
	if n := strings.Count(out, "valid"); n != 2 || !strings.Contains(out, b.Self.Serial) {
		t.Errorf("list:\n%s", out)
	}
	if out, _, status = inside(t, "", "pair", "show", "--dir", away); status != 0 ||
		!strings.Contains(out, b.Self.Serial) || !strings.Contains(out, a.Issuer) ||
		!strings.Contains(out, "rules      allow a read,list\n           default none\n") {
		t.Errorf("show: status %d\n%s", status, out)
	}
	if _, errOut, status = inside(t, "", "pair", "list", "--dir", away); status != exitNotPermitted ||
		!strings.Contains(errOut, "holds no authority") {
		t.Errorf("list at the second machine: status %d, %s", status, errOut)
	}
	// A program that denies b says so, and JSON has the same.
	if err := os.WriteFile(filepath.Join(home, identity.PolicyFile), []byte("default all\ndeny name b\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	out, _, _ = inside(t, "", "pair", "list", "--dir", home, "--json")
	if es := lines(t, out); len(es) != 2 || es[0].Peer.State != "valid" || es[1].Peer.State != "denied" ||
		es[1].Peer.Name != "b" {
		t.Errorf("list --json: %s", out)
	}
	out, _, _ = inside(t, "", "pair", "show", "--dir", home, "--json")
	if es := lines(t, out); len(es) != 1 || es[0].Node.Serial != a.Self.Serial || !es[0].Authority ||
		es[0].Rules != "default all\ndeny name b\n" || len(es[0].Roots) != 1 {
		t.Errorf("show --json: %s", out)
	}
}

func TestPairJSONAndStandardInput(t *testing.T) {
	home, away := filepath.Join(t.TempDir(), "id"), filepath.Join(t.TempDir(), "id")
	f := listen(t, "--dir", home, "--name", "a", "--json", "--for", "b")
	line, ok := <-f.lines
	if !ok {
		t.Fatal(<-f.err)
	}
	e := lines(t, line)[0]
	if e.Event != "listening" || e.Node.Name != "a" || !e.Authority || e.Address != e.Listen ||
		!identity.LooksLikeCode(e.Code) {
		t.Fatalf("%+v", e)
	}
	file := write(t, filepath.Join(t.TempDir(), "code"), []byte(e.Code+"\n"))
	if _, errOut, status := inside(t, "", "pair", e.Address, "--code", file, "--dir", away, "--name",
		"c"); status != 1 || !strings.Contains(errOut, "another name") {
		t.Errorf("another name: status %d, %s", status, errOut)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	out, errOut, status := inside(t, "", "pair", e.Address, "--code", file, "--dir", away, "--name", "b", "--json",
		"--allow", "all")
	if status != 0 || !strings.Contains(errOut, "others can read") {
		t.Fatal(status, errOut)
	}
	waiting, joined := lines(t, out)[0], lines(t, out)[1]
	rest, err := f.rest()
	if err != nil {
		t.Fatal(err)
	}
	es := lines(t, rest)
	refused, asked, paired := es[0], es[1], es[2]
	if refused.Event != "refused" || refused.Candidate.Name != "c" || refused.Why == "" || asked.Event != "candidate" ||
		asked.Candidate.Name != "b" {
		t.Errorf("host %s", rest)
	}
	if waiting.Event != "waiting" || waiting.Key != asked.Candidate.Fingerprint ||
		*paired.Candidate != *asked.Candidate {
		t.Errorf("joiner %s, host %s", out, rest)
	}
	if joined.Event != "paired" || paired.Event != "paired" || *joined.Node != *paired.Peer ||
		joined.Issuer != paired.Issuer || joined.Host != "a" ||
		*joined.Allowed != (allowed{"a", "all"}) || *paired.Allowed != (allowed{"b", "read,list"}) ||
		strings.Contains(out+rest, e.Code) {
		t.Errorf("joiner %s, host %s", out, rest)
	}
}

func TestPairRenew(t *testing.T) {
	home, away := filepath.Join(t.TempDir(), "id"), filepath.Join(t.TempDir(), "id")
	f := listen(t, "--dir", home, "--name", "a", "--valid", "1h")
	if _, errOut, status := f.join(t, "--dir", away, "--name", "b"); status != 0 {
		t.Fatal(errOut)
	}
	f.rest()
	before, err := identity.Inspect(home)
	if err != nil {
		t.Fatal(err)
	}
	out, errOut, status := inside(t, "", "pair", "renew", "--dir", home)
	if after, err := identity.Inspect(home); status != 0 || err != nil || after.Self.Serial == before.Self.Serial ||
		!strings.Contains(out, after.Self.Serial) {
		t.Errorf("status %d, %s, %v\n%s", status, errOut, err, out)
	}
	if _, errOut, status = inside(t, "", "pair", "renew", "--dir", away); status != 2 ||
		!strings.Contains(errOut, "--for b") {
		t.Errorf("without an authority: status %d, %s", status, errOut)
	}
	// A name that has a certificate is not given away, unless the first machine says so.
	f = listen(t, "--dir", home)
	if _, errOut, status = f.join(t, "renew", "--dir", away); status != 1 || !strings.Contains(errOut, "--for b") {
		t.Errorf("renewal that was not asked for: status %d, %s", status, errOut)
	}
	f.cancel()
	if _, err := f.rest(); !errors.Is(err, errInterrupted) {
		t.Errorf("interrupted: %v", err)
	}
	// A renewal changes no rules, on neither side, and says what they are.
	for _, dir := range []string{home, away} {
		if err := os.WriteFile(filepath.Join(dir, identity.PolicyFile), []byte("default none\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f = listen(t, "--dir", home, "--for", "b")
	if out, errOut, status = f.join(t, "renew", "--dir", away); status != 0 || !strings.Contains(out, "365 days") &&
		!strings.Contains(out, "364 days") {
		t.Errorf("renewal: status %d, %s\n%s", status, errOut, out)
	}
	if rest, err := f.rest(); err != nil || !strings.Contains(rest, "b may do here: none (no rule matches)") {
		t.Errorf("%v\n%s", err, rest)
	}
	for _, dir := range []string{home, away} {
		if text, err := os.ReadFile(filepath.Join(dir, identity.PolicyFile)); err != nil ||
			string(text) != "default none\n" {
			t.Errorf("renewal changed the rules: %q, %v", text, err)
		}
	}
}

func TestPairExportAndImport(t *testing.T) {
	home, away := filepath.Join(t.TempDir(), "id"), filepath.Join(t.TempDir(), "id")
	f := listen(t, "--dir", home, "--name", "a")
	f.invitation(t)
	f.cancel()
	f.rest()
	file := filepath.Join(t.TempDir(), "b.pem")
	out, errOut, status := inside(t, "", "pair", "export", "b", "-o", file, "--dir", home)
	if status != 0 || !strings.Contains(errOut, "private key") || !strings.Contains(out, "pair import "+file) ||
		!strings.Contains(out, "b may do here: ") || !strings.Contains(out, "pair allow b RIGHTS --dir "+home) {
		t.Fatalf("status %d, %s\n%s", status, errOut, out)
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"export", "b", "-o", file + "2", "--dir", home}, 1, "--again"},
		{[]string{"export", "c", "-o", file, "--dir", home}, exitExists, "exists"},
		{[]string{"export", "c", "--dir", home}, 2, "-o FILE"},
		{[]string{"export", "c", "-o", "-", "--json", "--dir", home}, 2, "--json"},
		{[]string{"export", "C", "-o", file, "--dir", home}, 2, "expected 1 to 63"},
		{[]string{"export", "--dir", home}, 2, "name of a node"},
		{[]string{"export", "c", "-o", file + "2", "--dir", away}, exitNotPermitted, "pair"},
		{[]string{"import", "--dir", away}, 2, "expected a file"},
		{[]string{"import", file + "2", "--dir", away}, exitNotFound, "no such file"},
		{[]string{"import", file, "--dir", home}, 1, "authority"},
	} {
		if out, errOut, status := inside(t, "", append([]string{"pair"}, c.args...)...); status != c.status ||
			!strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("%v: status %d, %q and %q; expected %d and %q", c.args, status, out, errOut, c.status, c.want)
		}
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, errOut, status = inside(t, "", "pair", "import", file, "--dir", away); status != 0 ||
		!strings.Contains(errOut, "others can read") || !strings.Contains(out, "rm "+file) {
		t.Errorf("import: status %d, %s\n%s", status, errOut, out)
	}
	bundle, errOut, status := inside(t, "", "pair", "export", "c", "-o", "-", "--dir", home)
	if status != 0 {
		t.Fatal(errOut)
	}
	third := filepath.Join(t.TempDir(), "id")
	if _, errOut, status = inside(t, bundle, "pair", "import", "-", "--dir", third); status != 0 || errOut != "" {
		t.Errorf("import from standard input: status %d, %s", status, errOut)
	}
	for dir, name := range map[string]string{away: "b", third: "c"} {
		if i, err := identity.Open(dir, identity.Options{}); err != nil || i.Name() != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPairMistakes(t *testing.T) {
	home := filepath.Join(t.TempDir(), "id")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{nil, 2, "--listen HOST:PORT on the first machine"},
		{[]string{"a", "b"}, 2, `unexpected argument "b"`},
		{[]string{"h:1", "--listen", ":0"}, 2, "one of them"},
		{[]string{"h:1"}, 2, "no terminal"},
		{[]string{"h:1", "--code", "-"}, 2, "0 characters"},
		{[]string{"h:1", "--code", filepath.Join(home, "none")}, exitNotFound, "no such file"},
		{[]string{"h", "--code", "-"}, 2, "expected the port that the first machine printed"},
		{[]string{"h:1", "--allow", "everything"}, 2, "--allow"},
		{[]string{"h:1", "--yes"}, 2, "first machine"},
		{[]string{"h:1", "--fingerprint", "x"}, 2, "first machine"},
		{[]string{"--listen", ":0", "--code", "-"}, 2, "second machine"},
		{[]string{"--listen", ":0"}, 2, "there is no terminal on which"},
		{[]string{"--listen", ":0", "--yes", "--fingerprint", "x"}, 2, "exclude"},
		{[]string{"--listen", ":0", "--fingerprint", "x"}, 2, "64 hexadecimal"},
		{[]string{"--listen", "7071", "--yes"}, 2, "did you mean :7071 "},
		{[]string{"--listen", ":0", "--name", "A"}, 2, "--name"},
		{[]string{"--listen", ":0", "--for", "../x"}, 2, "--for"},
		{[]string{"--listen", ":0", "--timeout", "0s"}, 2, "--timeout"},
		{[]string{"--listen", ":0", "--valid", "-1h"}, 2, "--valid"},
		{[]string{"--listen", "127.0.0.1:0", "--address", "a b", "--yes"}, 2, "--address"},
		{[]string{"--listen", "127.0.0.1:0", "--name", "a", "--for", "a", "--yes"}, 1, "own name"},
		{[]string{"--listen", ln.Addr().String(), "--yes"}, 1, "address already in use\n  Another program has port "},
		{[]string{"show"}, exitNotPermitted, "penstock pair"},
		{[]string{"show", "x"}, 2, `unexpected argument "x"`},
		{[]string{"list"}, exitNotPermitted, "penstock pair"},
		{[]string{"renew"}, exitNotPermitted, "penstock pair"},
		{[]string{"--frobnicate"}, 2, "--frobnicate"},
	} {
		out, errOut, status := inside(t, "", append([]string{"pair", "--dir", filepath.Join(home, c.want)},
			c.args...)...)
		if status != c.status || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("pair %v: status %d, %q and %q; expected %d and %q", c.args, status, out, errOut, c.status, c.want)
		}
	}
}

// A code in an argument is refused before anything else, wherever it stands, and is not repeated.
func TestPairRefusesCodesInArguments(t *testing.T) {
	f := listen(t, "--dir", filepath.Join(t.TempDir(), "id"), "--name", "a")
	address, code := f.invitation(t)
	away := filepath.Join(t.TempDir(), "id")
	for _, args := range [][]string{{address + "#" + code}, {code}, {address, code}, {address, "--code", code},
		{address, "--code", address + "#" + code},
		{address + "#" + code[:20]}, {address, code[1:]}, {"renew", address, code}, {"renew", address + "#" + code}} {
		out, errOut, status := inside(t, code, append(append([]string{"pair"}, args...), "--dir", away)...)
		if status != exitUsage || out != "" || !strings.Contains(errOut, "burned") ||
			!strings.Contains(errOut, "--code -") || strings.Contains(errOut, code[1:20]) {
			t.Errorf("%d arguments: status %d, %q, %q", len(args), status, out, errOut)
		}
	}
	if _, err := os.Stat(away); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused command left something: %v", err)
	}
}

// The host takes the key whose fingerprint is given, also where another machine knows the code.
func TestPairByFingerprint(t *testing.T) {
	home, away := filepath.Join(t.TempDir(), "id"), filepath.Join(t.TempDir(), "id")
	out, errOut, status := inside(t, "", "pair", "key", "--dir", away)
	if status != 0 || len(strings.TrimSpace(out)) != 64 {
		t.Fatal(out, errOut)
	}
	f := listen(t, "--dir", home, "--name", "a", "--allow", "read,write", "--fingerprint",
		grouped(strings.TrimSpace(out)))
	address, code := f.invitation(t)
	if _, errOut, status := inside(t, code, "pair", address, "--code", "-", "--dir", filepath.Join(t.TempDir(), "x"),
		"--name", "b"); status != exitNotPermitted || !strings.Contains(errOut, "not confirmed") {
		t.Errorf("another machine with the code: status %d, %s", status, errOut)
	}
	if _, errOut, status := inside(t, code, "pair", address, "--code", "-", "--dir", away, "--name", "b"); status != 0 {
		t.Error(errOut)
	}
	rest, err := f.rest()
	if err != nil || !strings.Contains(rest, "Refused b at 127.0.0.1:") ||
		!strings.Contains(rest, `by the rule "allow b read,write"`) {
		t.Errorf("%v\n%s", err, rest)
	}
	// Rights that are asked for are not given where another rule comes first: then nothing is.
	if err := os.WriteFile(filepath.Join(home, identity.PolicyFile), []byte("allow gpu-* none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f = listen(t, "--dir", home, "--allow", "all")
	if _, _, status := f.join(t, "--dir", filepath.Join(t.TempDir(), "id"), "--name", "gpu-1"); status == 0 {
		t.Error("joined")
	}
	if _, err := f.rest(); err == nil || !strings.Contains(err.Error(),
		`gpu-1 gets none (by the rule "allow gpu-* none") here`) {
		t.Errorf("a rule in the way: %v", err)
	}
	f = listen(t, "--dir", home)
	if _, errOut, status := f.join(t, "--dir", filepath.Join(t.TempDir(), "id"), "--name", "gpu-1"); status != 0 {
		t.Error(errOut)
	}
	if rest, err := f.rest(); err != nil || !strings.Contains(rest,
		`gpu-1 may do here: none (by the rule "allow gpu-* none")`) {
		t.Errorf("%v\n%s", err, rest)
	}
}

func TestPairAllow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "id")
	f := listen(t, "--dir", dir, "--name", "a")
	f.invitation(t)
	f.cancel()
	f.rest()
	if out, errOut, status := inside(t, "", "pair", "allow", "gpu-*", "read,list", "--dir", dir); status != 0 ||
		!strings.HasSuffix(out, "allow gpu-* read,list\ndefault none\n") {
		t.Errorf("status %d, %s\n%s", status, errOut, out)
	}
	out, errOut, status := inside(t, "", "pair", "allow", "gpu-*", "none", "--dir", dir, "--json")
	if es := lines(t, out); status != 0 || len(es) != 1 || es[0].Rules != "allow gpu-* none\ndefault none\n" {
		t.Errorf("status %d, %s\n%s", status, errOut, out)
	}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{nil, 2, "expected the name"},
		{[]string{"b"}, 2, "expected the name"},
		{[]string{"b", "read", "x"}, 2, `unexpected argument "x"`},
		{[]string{"b", "everything"}, 2, "not a right"},
		{[]string{"B", "read"}, 2, "pattern"},
	} {
		out, errOut, status := inside(t, "", append(append([]string{"pair", "allow"}, c.args...), "--dir", dir)...)
		if status != c.status || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("pair allow %v: status %d, %q and %q; expected %d and %q", c.args, status, out, errOut, c.status,
				c.want)
		}
	}
	run(t, 0, "allow gpu-7 read\nallow gpu-* none\ndefault none\n\n"+
		`The new rule stands above "allow gpu-* none", which matched gpu-7 until now.`, "pair", "allow", "gpu-7",
		"read",
		"--dir", dir)
}

// Two people on two terminals: the code is not shown where it is typed, and the host takes only a
// machine that its person confirms.
func TestPairOnTerminals(t *testing.T) {
	dir := t.TempDir()
	on := func(args ...string) *proc.Process {
		spec := program(args...)
		spec.Dir, spec.Columns, spec.Rows = dir, 160, 60
		return proc.Start(t, spec)
	}
	shows := func(p *proc.Process, re string) []string {
		t.Helper()
		r := regexp.MustCompile(re)
		text, err := p.Terminal().Wait(limit(t), r)
		if err != nil {
			t.Fatal(err)
		}
		return r.FindStringSubmatch(text)
	}
	for _, yes := range []bool{false, true} {
		host := on("pair", "--listen", "127.0.0.1:0", "--dir", "first", "--name", "a")
		m := shows(host, `penstock pair (127\.0\.0\.1:\d+)\s+and give[^\n]*\s+([-\w]{68})\s(?s:.*)Waiting on`)
		joiner := on("pair", m[1], "--dir", "second", "--name", "b")
		shows(joiner, `The code that .* printed \(it is not shown\):`)
		joiner.Terminal().Type(m[2] + "\n")
		there := shows(joiner, `fingerprint  ([0-9a-f ]{71})\n`)
		here := shows(host, `fingerprint  ([0-9a-f ]{71})\n(?s:.*)\[y/N\]`)
		if there[1] != here[1] {
			t.Errorf("the joiner shows %s and the host %s", there[1], here[1])
		}
		// Another machine that knows the code does not get its fingerprint below the question.
		if _, errOut, status := inside(t, m[2]+"\n", "pair", m[1], "--code", "-", "--dir", filepath.Join(dir, "rival"),
			"--name", "c"); status != exitNotPermitted {
			t.Errorf("a rival: status %d, %s", status, errOut)
		}
		if again := shows(host,
			`Refused c at (?s:.*)about b:\n\n  fingerprint  ([0-9a-f ]{71})\n\s*Does [^\n]*\[y/N\] *\n*$`); again[1] != here[1] {
			t.Errorf("the host asks about %s and then about %s", here[1], again[1])
		}
		answer, status := "n\n", exitFailure
		if yes {
			answer, status = "y\n", 0
		}
		host.Terminal().Type(answer)
		h, err := host.Wait(limit(t))
		j, err2 := joiner.Wait(limit(t))
		if err != nil || err2 != nil || h.Code != status || (j.Code == 0) != yes {
			t.Fatalf("host %v %v:\n%s\njoiner %v %v:\n%s", h, err, host.Output(), j, err2, joiner.Output())
		}
		if strings.Contains(joiner.Output(), m[2]) {
			t.Errorf("the joiner's terminal shows the code:\n%s", joiner.Output())
		}
		if strings.Contains(joiner.Output(), "Paired") != yes || strings.Contains(host.Output(), "Paired") != yes {
			t.Errorf("answer %q\n%s\n%s", answer, host.Output(), joiner.Output())
		}
	}
	// Ctrl-C while the code is asked for ends the command and gives the terminal its echo back.
	joiner := on("pair", "127.0.0.1:1", "--dir", "third", "--name", "c")
	shows(joiner, `it is not shown`)
	joiner.Terminal().Type("\x03")
	if e, err := joiner.Wait(limit(t)); err != nil || e.Code != exitInterrupted {
		t.Errorf("%v, %v: %s", e, err, joiner.Output())
	}
}

// publicKey is the key of the node of a directory.
func publicKey(t *testing.T, dir string) *ecdsa.PublicKey {
	t.Helper()
	c, err := tls.LoadX509KeyPair(filepath.Join(dir, identity.NodeFile), filepath.Join(dir, identity.NodeFile))
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf.PublicKey.(*ecdsa.PublicKey)
}

func TestPairFindsItsAddress(t *testing.T) {
	addr := func(s string) net.Addr {
		ip, n, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		n.IP = ip
		return n
	}
	for want, in := range map[string][]string{
		"127.0.0.1":   {"127.0.0.1/8", "::1/128", "fe80::1/64"},
		"192.0.2.7":   {"127.0.0.1/8", "2001:db8::1/64", "192.0.2.7/24", "198.51.100.1/24"},
		"2001:db8::1": {"::1/128", "2001:db8::1/64", "169.254.1.1/16"},
	} {
		var as []net.Addr
		for _, s := range in {
			as = append(as, addr(s))
		}
		if got := outward(as); got != want {
			t.Errorf("%v: %s, expected %s", in, got, want)
		}
	}
	at := &net.TCPAddr{IP: net.IPv6unspecified, Port: 7071}
	for _, c := range []struct{ address, host, want string }{
		{"box.example", "", "box.example:7071"}, {"box:9", "", "box:9"}, {"::1", "", "[::1]:7071"},
		{"", "192.0.2.1", "192.0.2.1:7071"}, {"", "box", "box:7071"},
	} {
		p := pairing{address: c.address}
		if got, err := p.reach(c.host, at); got != c.want || err != nil {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
	for host, want := range map[string]string{"GPU-7.Example.org": "gpu-7.example.org", "my box": "my-box",
		"_x_": "x"} {
		if got, err := nodeName(host); got != want || err != nil {
			t.Errorf("%q: %q, %v", host, got, err)
		}
	}
	if _, err := nodeName("ÄÖ"); !errors.Is(err, identity.ErrName) || !strings.Contains(err.Error(), "--name") {
		t.Errorf("a host name that does not do: %v", err)
	}
}

func TestPairTrustAndDeny(t *testing.T) {
	one, two := filepath.Join(t.TempDir(), "id"), filepath.Join(t.TempDir(), "id")
	for _, dir := range []string{one, two} {
		run(t, 0, "Made an authority", "pair", "init", "--dir", dir, "--name", "a")
	}
	if out, _, _ := inside(t, "", "pair", "init", "--dir", one); strings.Contains(out, "Made") ||
		!strings.Contains(out, "node       a\n") {
		t.Errorf("init of what is there:\n%s", out)
	}
	other, err := identity.Inspect(two)
	if err != nil {
		t.Fatal(err)
	}
	out, errOut, status := inside(t, "", "pair", "trust", filepath.Join(two, identity.CAFile), "--dir", one)
	if status != 0 || strings.Count(out, "trusts ") != 2 || !strings.Contains(out, other.Issuer) {
		t.Errorf("trust: status %d, %s\n%s", status, errOut, out)
	}
	out, errOut, status = inside(t, "", "pair", "distrust", strings.ToUpper(other.Issuer[:12]), "--dir", one, "--json")
	if es := lines(t, out); status != 0 || len(es) != 1 || len(es[0].Roots) != 1 ||
		es[0].Roots[0].SHA256 == other.Issuer {
		t.Errorf("distrust: status %d, %s\n%s", status, errOut, out)
	}
	out, errOut, status = inside(t, "", "pair", "deny", "gpu-*", "--dir", one)
	if status != 0 || !strings.Contains(out, "default none\ndeny name gpu-*\n") {
		t.Errorf("deny: status %d, %s\n%s", status, errOut, out)
	}
	if out, errOut, status = inside(t, "", "pair", "deny", "--serial", "ff", "--dir", one); status != 0 ||
		!strings.Contains(out, "deny serial ff\n") {
		t.Errorf("deny --serial: status %d, %s\n%s", status, errOut, out)
	}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"trust"}, 2, "expected a file"},
		{[]string{"trust", "/nonexistent/x"}, exitNotFound, "/nonexistent/x"},
		{[]string{"trust", filepath.Join(one, "policy")}, exitNotPermitted, "PEM"},
		{[]string{"distrust"}, 2, "SHA-256"},
		{[]string{"distrust", "12345678"}, exitNotPermitted, "no root"},
		{[]string{"deny"}, 2, "name of a node"},
		{[]string{"deny", "a"}, 2, "this node itself"},
		{[]string{"deny", "b*c*"}, 2, "more than one *"},
		{[]string{"deny", "gpu-7"}, 2, "already denied"},
		{[]string{"allow", "gpu-7", "read"}, 2, "penstock pair undeny 'gpu-*' --dir " + one},
		{[]string{"undeny", "gpu-7"}, 2, `no line "deny name gpu-7"`},
		{[]string{"init", "--name", "B"}, 2, "--name"},
	} {
		out, errOut, status := inside(t, "", append(append([]string{"pair"}, c.args...), "--dir", one)...)
		if status != c.status || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("pair %v: status %d, %q and %q; expected %d and %q", c.args, status, out, errOut, c.status, c.want)
		}
	}
	run(t, 0, "gpu-7 is DENIED here", "pair", "export", "gpu-7", "-o", filepath.Join(one, "x"), "--dir", one)
	run(t, 0, "default none\ndeny serial ff\n", "pair", "undeny", "gpu-*", "--dir", one)
	run(t, 0, "gpu-8 may do here: none", "pair", "export", "gpu-8", "-o", filepath.Join(one, "y"), "--dir", one)
	if out, errOut, status := inside(t, "", "pair", "undeny", "--serial", "ff", "--dir", one); status != 0 ||
		strings.Contains(out, "deny ") {
		t.Errorf("undeny --serial: status %d, %s\n%s", status, errOut, out)
	}
}
