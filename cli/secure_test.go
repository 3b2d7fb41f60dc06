package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/transfer/identity"
)

// identities makes a directory with an authority for "server" and one for each other name.
func identities(t *testing.T, names ...string) (dirs map[string]string) {
	t.Helper()
	dirs = map[string]string{"server": filepath.Join(t.TempDir(), "server")}
	a, _, err := identity.Setup(dirs["server"], "server", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		bundle, _, err := a.Export(name, identity.IssueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		dirs[name] = filepath.Join(t.TempDir(), name)
		if _, err := identity.Import(dirs[name], bundle); err != nil {
			t.Fatal(err)
		}
	}
	return dirs
}

func TestServeWithIdentity(t *testing.T) {
	dirs := identities(t, "worker", "guest", "denied")
	outsider := identities(t)["server"]
	served := t.TempDir()
	b := content(100_000, 10)
	write(t, filepath.Join(served, "w"), b)
	policy := write(t, filepath.Join(t.TempDir(), "policy"),
		[]byte("allow worker read,write,list\nallow guest list\ndeny name denied\n"))
	p := proc.Start(t, program("serve", served, "--writable", "--listen", "tcp://127.0.0.1:0", "--identity",
		dirs["server"], "--policy", policy))
	m, err := p.WaitLine(limit(t), servedNamed)
	if err != nil {
		t.Fatal(err)
	}
	addr := m[1]
	out := filepath.Join(t.TempDir(), "w")
	run(t, 0, "over tcp", "get", "tcp://server@"+addr+"/w", "-o", out, "--identity", dirs["worker"], "--path", "tcp")
	same(t, out, b)
	run(t, 0, "", "put", out, addr+"/new", "--identity", dirs["worker"], "--expect", "server")
	run(t, 0, "w\n", "ls", addr, "--identity", dirs["guest"])
	run(t, exitNotPermitted, "may list on this node", "get", addr+"/w", "-o", out+"2", "--identity", dirs["guest"])
	run(t, exitNotPermitted, "may list on this node, not write; to permit it, write \"allow guest write,list\" "+
		"into the file of rules of server (--policy)", "put", out, addr+"/newer", "--identity", dirs["guest"])
	run(t, exitNotPermitted, "", "ls", "tcp://another@"+addr, "--identity", dirs["worker"])
	run(t, exitNotPermitted, "refuses the certificate of this node", "ls", addr, "--identity", dirs["denied"])
	run(t, exitNotPermitted, "", "ls", addr, "--identity", outsider)
	run(t, exitNotPermitted, "", "ls", addr, "--identity", "none")
	run(t, exitNotPermitted, "there is no identity", "ls", addr, "--identity", t.TempDir())
	run(t, exitUsage, "without an identity", "ls", addr, "--identity", "none", "--expect", "server")
	run(t, exitUsage, "names its peer by itself", "ls", "tcp://server@"+addr, "--identity", dirs["worker"], "--expect",
		"server")
	run(t, exitUsage, "add an identity", "serve", served, "--identity", "none", "--policy", policy)
	for _, want := range []string{": TLS; peers with a certificate", "allow worker", "peer worker: fetched w, 100.0 kB",
		"peer worker: put new, 100.0 kB"} {
		if _, err := p.WaitLine(limit(t), regexp.MustCompile(regexp.QuoteMeta(want))); err != nil {
			// some lines come a moment later
			t.Error(err)
		}
	}
	// What the identity's own rules deny stays out, whatever those of --policy say.
	run(t, 0, "deny name worker", "pair", "deny", "worker", "--dir", dirs["server"])
	for _, want := range []string{"the rules are now", "allow worker read,write,list", "deny name denied",
		"deny name worker"} {
		if _, err := p.WaitLine(limit(t), regexp.MustCompile(want)); err != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
	run(t, exitNotPermitted, "refuses the certificate of this node", "ls", addr, "--identity", dirs["worker"])
	if strings.Contains(p.Output(), "PLAINTEXT") {
		t.Errorf("serve warns of TLS:\n%s", p.Output())
	}
}

// A file of rules that is wrong at the start is an error with its place, and serve and status
// report one that becomes wrong later.
func TestBrokenRules(t *testing.T) {
	dirs := identities(t, "worker")
	policy := filepath.Join(dirs["server"], "policy")
	serve := []string{"serve", t.TempDir(), "--listen", "tcp://127.0.0.1:0", "--identity", dirs["server"]}
	write(t, policy, []byte("allow worker all\nallow guest reed\n"))
	run(t, 1, policy+":2: rights \"reed\"", serve...)
	run(t, 1, "elsewhere does not exist", append(serve, "--policy", "elsewhere")...)
	write(t, policy, []byte("allow worker all\n"))
	p := proc.Start(t, program(serve...))
	m, err := p.WaitLine(limit(t), servedNamed)
	if err != nil {
		t.Fatal(err)
	}
	write(t, policy, []byte("allow worker list\nallow guest reed\n"))
	said := regexp.MustCompile("WARNING: .*" + regexp.QuoteMeta(policy+":2: rights \"reed\""))
	said2 := regexp.MustCompile("ERROR: .*" + regexp.QuoteMeta(policy+":2: rights \"reed\""))
	end := limit(t)
	for { // it looks once per second
		out, errOut, status := penstock(t, "status", m[1], "--identity", dirs["worker"])
		if status != 0 {
			t.Fatalf("exit status %d: %s", status, errOut)
		}
		if said2.MatchString(out) {
			break
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-end.Done():
			t.Fatalf("the status does not say that the rules are wrong:\n%s", out)
		}
	}
	penstock(t, "status", m[1], "--identity", dirs["worker"]) // serve reports at the latest when the next peer comes
	if _, err := p.WaitLine(limit(t), said); err != nil {
		t.Error(err)
	}
	if err := os.Remove(policy); err != nil {
		t.Fatal(err)
	}
	for { // likewise
		_, errOut, status := penstock(t, "status", m[1], "--identity", dirs["worker"])
		if status == exitNotPermitted && strings.Contains(errOut, "penstock pair allow worker ") {
			break
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-end.Done():
			t.Fatalf("without rules: exit status %d\n%s", status, errOut)
		}
	}
}
