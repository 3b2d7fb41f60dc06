package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	lines  *bufio.Scanner
	err    chan error
	stderr bytes.Buffer
	cancel context.CancelFunc
}

func listen(t *testing.T, args ...string) *first {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	f := &first{lines: bufio.NewScanner(r), err: make(chan error, 1), cancel: cancel}
	root := New(strings.NewReader(""), w, &f.stderr)
	root.SetArgs(append([]string{"pair", "--listen", "127.0.0.1:0"}, args...))
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

// invitation reads up to the line with the command for the second machine.
func (f *first) invitation(t *testing.T) string {
	t.Helper()
	for f.lines.Scan() {
		if _, rest, ok := strings.Cut(f.lines.Text(), "penstock pair '"); ok {
			link, _, _ := strings.Cut(rest, "'")
			return link
		}
	}
	t.Fatalf("no invitation: %v", <-f.err)
	return ""
}

// rest is what it prints until its end.
func (f *first) rest() (string, error) {
	var b strings.Builder
	for f.lines.Scan() {
		b.WriteString(f.lines.Text() + "\n")
	}
	return b.String(), <-f.err
}

func TestPair(t *testing.T) {
	home, away := filepath.Join(t.TempDir(), "id"), filepath.Join(t.TempDir(), "id")
	f := listen(t, "--dir", home, "--name", "a")
	link := f.invitation(t)
	out, errOut, status := inside(t, "", "pair", link, "--dir", away, "--name", "b")
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
	for _, want := range []string{"Paired", b.Self.Serial, b.Self.Fingerprint, "Next: penstock serve"} {
		if !strings.Contains(rest, want) {
			t.Errorf("the first machine does not print %q:\n%s", want, rest)
		}
	}
	for _, want := range []string{"Paired", b.Self.Serial, a.Issuer, "node       b", "Next: penstock serve", "penstock ls tcp://"} {
		if !strings.Contains(out, want) {
			t.Errorf("the second machine does not print %q:\n%s", want, out)
		}
	}
	code := link[strings.Index(link, "#")+1:]
	if strings.Contains(rest+out, code) {
		t.Error("the code is printed after it was used")
	}
	// The code works once.
	if _, errOut, status := inside(t, "", "pair", link, "--dir", filepath.Join(t.TempDir(), "x"), "--name", "c"); status != exitUnreachable || errOut == "" || strings.Contains(errOut, code) {
		t.Errorf("again: status %d, %s", status, errOut)
	}
	// What is there now.
	out, _, _ = inside(t, "", "pair", "list", "--dir", home)
	if n := strings.Count(out, "valid"); n != 2 || !strings.Contains(out, b.Self.Serial) {
		t.Errorf("list:\n%s", out)
	}
	if out, _, status = inside(t, "", "pair", "show", "--dir", away); status != 0 || !strings.Contains(out, b.Self.Serial) || !strings.Contains(out, a.Issuer) {
		t.Errorf("show: status %d\n%s", status, out)
	}
	if _, errOut, status = inside(t, "", "pair", "list", "--dir", away); status != 1 || !strings.Contains(errOut, "holds no authority") {
		t.Errorf("list at the second machine: status %d, %s", status, errOut)
	}
	// A program that denies b says so, and JSON has the same.
	if err := os.WriteFile(filepath.Join(home, identity.PolicyFile), []byte("default all\ndeny name b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, _ = inside(t, "", "pair", "list", "--dir", home, "--json")
	if es := lines(t, out); len(es) != 2 || es[0].Peer.State != "valid" || es[1].Peer.State != "denied" || es[1].Peer.Name != "b" {
		t.Errorf("list --json: %s", out)
	}
	out, _, _ = inside(t, "", "pair", "show", "--dir", home, "--json")
	if es := lines(t, out); len(es) != 1 || es[0].Node.Serial != a.Self.Serial || !es[0].Authority || es[0].Rules != "default all\ndeny name b\n" || len(es[0].Roots) != 1 {
		t.Errorf("show --json: %s", out)
	}
}

func TestPairJSONAndStandardInput(t *testing.T) {
	home, away := filepath.Join(t.TempDir(), "id"), filepath.Join(t.TempDir(), "id")
	f := listen(t, "--dir", home, "--name", "a", "--json", "--for", "b")
	if !f.lines.Scan() {
		t.Fatal(<-f.err)
	}
	e := lines(t, f.lines.Text())[0]
	if e.Event != "listening" || e.Node.Name != "a" || !e.Authority || e.Invitation == "" || !strings.HasPrefix(e.Invitation, e.Listen+"#") {
		t.Fatalf("%+v", e)
	}
	if _, errOut, status := inside(t, e.Invitation+"\n", "pair", "-", "--dir", away, "--name", "c"); status != 1 || !strings.Contains(errOut, "another name") {
		t.Errorf("another name: status %d, %s", status, errOut)
	}
	out, errOut, status := inside(t, e.Invitation+"\n", "pair", "-", "--dir", away, "--name", "b", "--json")
	if status != 0 {
		t.Fatal(errOut)
	}
	joined := lines(t, out)[0]
	rest, err := f.rest()
	if err != nil {
		t.Fatal(err)
	}
	paired := lines(t, rest)[0]
	if joined.Event != "paired" || paired.Event != "paired" || *joined.Node != *paired.Peer || joined.Issuer != paired.Issuer || paired.Invitation != "" {
		t.Errorf("joiner %s, host %s", out, rest)
	}
}

func TestPairRenew(t *testing.T) {
	home, away := filepath.Join(t.TempDir(), "id"), filepath.Join(t.TempDir(), "id")
	f := listen(t, "--dir", home, "--name", "a", "--valid", "1h")
	if _, errOut, status := inside(t, "", "pair", f.invitation(t), "--dir", away, "--name", "b"); status != 0 {
		t.Fatal(errOut)
	}
	f.rest()
	before, err := identity.Inspect(home)
	if err != nil {
		t.Fatal(err)
	}
	out, errOut, status := inside(t, "", "pair", "renew", "--dir", home)
	if after, err := identity.Inspect(home); status != 0 || err != nil || after.Self.Serial == before.Self.Serial || !strings.Contains(out, after.Self.Serial) {
		t.Errorf("status %d, %s, %v\n%s", status, errOut, err, out)
	}
	if _, errOut, status = inside(t, "", "pair", "renew", "--dir", away); status != 2 || !strings.Contains(errOut, "--for b") {
		t.Errorf("without an authority: status %d, %s", status, errOut)
	}
	// A name that has a certificate is not given away, unless the first machine says so.
	f = listen(t, "--dir", home)
	if _, errOut, status = inside(t, "", "pair", "renew", f.invitation(t), "--dir", away); status != 1 || !strings.Contains(errOut, "--for b") {
		t.Errorf("renewal that was not asked for: status %d, %s", status, errOut)
	}
	f.cancel()
	if _, err := f.rest(); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("interrupted: %v", err)
	}
	f = listen(t, "--dir", home, "--for", "b")
	if out, errOut, status = inside(t, "", "pair", "renew", f.invitation(t), "--dir", away); status != 0 || !strings.Contains(out, "365 days") && !strings.Contains(out, "364 days") {
		t.Errorf("renewal: status %d, %s\n%s", status, errOut, out)
	}
	if _, err := f.rest(); err != nil {
		t.Error(err)
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
	if status != 0 || !strings.Contains(errOut, "private key") || !strings.Contains(out, "pair import "+file) {
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
		{[]string{"export", "c", "-o", file, "--dir", home}, 1, "exists"},
		{[]string{"export", "c", "--dir", home}, 2, "-o FILE"},
		{[]string{"export", "c", "-o", "-", "--json", "--dir", home}, 2, "--json"},
		{[]string{"export", "C", "-o", file, "--dir", home}, 2, "expected 1 to 63"},
		{[]string{"export", "--dir", home}, 2, "name of a node"},
		{[]string{"export", "c", "-o", file + "2", "--dir", away}, 1, "pair"},
		{[]string{"import", "--dir", away}, 2, "expected a file"},
		{[]string{"import", file + "2", "--dir", away}, exitNotFound, "no such file"},
		{[]string{"import", file, "--dir", home}, 1, "authority"},
	} {
		if out, errOut, status := inside(t, "", append([]string{"pair"}, c.args...)...); status != c.status || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("%v: status %d, %q and %q; expected %d and %q", c.args, status, out, errOut, c.status, c.want)
		}
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, errOut, status = inside(t, "", "pair", "import", file, "--dir", away); status != 0 || !strings.Contains(errOut, "others can read") || !strings.Contains(out, "rm "+file) {
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
		{[]string{"h:1#x", "--listen", ":0"}, 2, "one of them"},
		{[]string{"h:1"}, 2, "no #"},
		{[]string{"h:1#short"}, 2, "5 characters"},
		{[]string{"-"}, 2, "no #"},
		{[]string{"--listen", "7071"}, 2, "expected HOST:PORT"},
		{[]string{"--listen", ":0", "--name", "A"}, 2, "--name"},
		{[]string{"--listen", ":0", "--for", "../x"}, 2, "--for"},
		{[]string{"--listen", ":0", "--timeout", "0s"}, 2, "--timeout"},
		{[]string{"--listen", ":0", "--valid", "-1h"}, 2, "--valid"},
		{[]string{"--listen", "127.0.0.1:0", "--address", "a b"}, 2, "--address"},
		{[]string{"--listen", "127.0.0.1:0", "--name", "a", "--for", "a"}, 1, "own name"},
		{[]string{"--listen", ln.Addr().String()}, 1, "address already in use"},
		{[]string{"show"}, exitNotPermitted, "penstock pair"},
		{[]string{"show", "x"}, 2, `unexpected argument "x"`},
		{[]string{"list"}, exitNotPermitted, "penstock pair"},
		{[]string{"renew"}, exitNotPermitted, "penstock pair"},
		{[]string{"--frobnicate"}, 2, "--frobnicate"},
	} {
		out, errOut, status := inside(t, "", append([]string{"pair", "--dir", filepath.Join(home, c.want)}, c.args...)...)
		if status != c.status || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("pair %v: status %d, %q and %q; expected %d and %q", c.args, status, out, errOut, c.status, c.want)
		}
	}
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
		{"box.example", "", "box.example:7071"}, {"box:9", "", "box:9"}, {"::1", "", "[::1]:7071"}, {"", "192.0.2.1", "192.0.2.1:7071"}, {"", "box", "box:7071"},
	} {
		p := pairing{address: c.address}
		if got, err := p.reach(c.host, at); got != c.want || err != nil {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
	for host, want := range map[string]string{"GPU-7.Example.org": "gpu-7.example.org", "my box": "my-box", "_x_": "x"} {
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
		f := listen(t, "--dir", dir, "--name", "a")
		f.invitation(t)
		f.cancel()
		f.rest()
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
	if es := lines(t, out); status != 0 || len(es) != 1 || len(es[0].Roots) != 1 || es[0].Roots[0].SHA256 == other.Issuer {
		t.Errorf("distrust: status %d, %s\n%s", status, errOut, out)
	}
	out, errOut, status = inside(t, "", "pair", "deny", "gpu-*", "--dir", one)
	if status != 0 || !strings.Contains(out, "default all\ndeny name gpu-*\n") {
		t.Errorf("deny: status %d, %s\n%s", status, errOut, out)
	}
	if out, errOut, status = inside(t, "", "pair", "deny", "--serial", "ff", "--dir", one); status != 0 || !strings.Contains(out, "deny serial ff\n") {
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
	} {
		out, errOut, status := inside(t, "", append(append([]string{"pair"}, c.args...), "--dir", one)...)
		if status != c.status || !strings.Contains(errOut, c.want) || out != "" {
			t.Errorf("pair %v: status %d, %q and %q; expected %d and %q", c.args, status, out, errOut, c.status, c.want)
		}
	}
}
