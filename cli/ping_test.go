package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
)

// ping runs penstock ping --json, which has to succeed.
func ping(t *testing.T, args ...string) (r pingReport) {
	t.Helper()
	out, _ := run(t, 0, "", append([]string{"ping", "--json", "--count", "7"}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if c := r.Control; c.Count != 7 || c.P50 <= 0 || c.P99 < c.P50 || c.Max < c.P99 {
		t.Errorf("the control connection: %+v", c)
	}
	return r
}

// A ping says by which path, what that costs, and of each other path why not.
func TestPing(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), []byte("a"))
	_, addr := serve(t, dir)
	r := ping(t, addr)
	if r.Addr != "tcp://"+addr || r.Peer == "" || !r.SameHost || r.Refused != "" || r.Path == nil ||
		r.Path.Name != "shm" || r.Path.UserCopies != 1 || r.Path.KernelCopies != 0 ||
		r.Path.Latency.Count != 7 || r.Path.Latency.P50 <= 0 || !strings.Contains(r.Path.Why, "lowest expected time") {
		t.Errorf("%+v, %+v", r, r.Path)
	}
	why := map[string]bool{}
	for _, c := range r.Path.Candidates {
		if c.Reason == "" || c.Usable != (c.Latency > 0 && c.BytesPerSecond > 0) {
			t.Errorf("%+v", c)
		}
		why[c.Path] = c.Usable
	}
	if usable, there := why["tcp"]; len(why) != 3 || !usable || !there {
		t.Errorf("candidates %+v", r.Path.Candidates)
	}
	if r = ping(t, addr, "--path", "tcp"); r.Path.Name != "tcp" || r.Path.KernelCopies != 2 || r.Path.UserCopies != 0 {
		t.Errorf("over tcp: %+v", r.Path)
	}
	out, _ := run(t, 0, "", "ping", addr, "--count", "3")
	for _, want := range []string{"control      p50 ", "path         shm: lowest expected time", "latency      p50 ",
		"copied once in user space", "\n  tcp  ", "\n  verbs  "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	fits(t, "ping", out)
	run(t, exitUnreachable, "", "ping", "127.0.0.1:1", "--retry", "0")
	run(t, exitUsage, "expected an address without a name", "ping", addr+"/a")
	run(t, exitUsage, "--count 0", "ping", addr, "--count", "0")
}

// Over TLS a client needs any right to get an answer, and the right to read to open a path.
func TestPingRights(t *testing.T) {
	dirs := identities(t, "reader", "lister", "outsider")
	policy := write(t, filepath.Join(t.TempDir(), "policy"), []byte("allow reader read\nallow lister list\n"))
	p := proc.Start(t, program("serve", t.TempDir(), "--listen", "tcp://127.0.0.1:0", "--identity", dirs["server"],
		"--policy", policy))
	m, err := p.WaitLine(limit(t), servedNamed)
	if err != nil {
		t.Fatal(err)
	}
	r := ping(t, m[1], "--identity", dirs["reader"], "--path", "tcp")
	if r.Peer != "server" || r.Security != "encrypted" || r.Path == nil || r.Path.Name != "tcp" ||
		r.Path.Security != r.Security {
		t.Errorf("%+v, %+v", r, r.Path)
	}
	// docs/concepts.md counts the same copies, of a program that encrypts and of a kernel that
	// does.
	concepts, err := os.ReadFile("../docs/concepts.md")
	if err != nil {
		t.Fatal(err)
	}
	words, known := map[[2]int]string{{3, 2}: "three more in user space",
		{0, 2}: "None more if the kernel encrypts"}[[2]int{r.Path.UserCopies, r.Path.KernelCopies}]
	if !known || !strings.Contains(string(concepts), "| TCP | two, by the kernel") ||
		!strings.Contains(string(concepts),
			words) {
		t.Errorf("ping counts %d and %d copies, docs/concepts.md differs", r.Path.UserCopies, r.Path.KernelCopies)
	}
	if r = ping(t, m[1], "--identity", dirs["lister"]); r.Path != nil ||
		!strings.Contains(r.Refused, "may list on this node") {
		t.Errorf("of a peer that may list: %+v", r)
	}
	out, _ := run(t, 0, "path         none opens: ", "ping", m[1], "--identity", dirs["lister"])
	fits(t, "ping", out)
	run(t, exitNotPermitted, "has no rights", "ping", m[1], "--identity", dirs["outsider"])
}
