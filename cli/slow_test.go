package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// slowHosts are a server of a directory and a client, on a link.
type slowHosts struct {
	t      *testing.T
	server *netns.Link
	client *netns.Host
	addr   string
	flags  []string // of the client
	serve  *exec.Cmd
	shown  bytes.Buffer // what serve has printed, when it has ended
}

var plaintext = []string{"--insecure", "--identity", "none"}

// newSlowHosts are those of plaintext, on a link that loses one packet in a hundred.
func newSlowHosts(t *testing.T, root string, flags ...string) *slowHosts {
	t.Helper()
	return newHosts(t, netns.LinkSpec{Delay: 10 * time.Millisecond, Loss: 0.01, Rate: 1e9, Queue: 4 << 20, Seed: 11},
		root, append(flags, plaintext...), plaintext)
}

func newHosts(t *testing.T, link netns.LinkSpec, root string, serverFlags, clientFlags []string) *slowHosts {
	t.Helper()
	n := netns.New(t, netns.Topology{Link: link})
	server := n.Hosts[1].Link()
	h := &slowHosts{t: t, server: server, client: n.Hosts[0], addr: server.IPv4.String() + ":7070", flags: clientFlags}
	h.serve = h.command(n.Hosts[1], append([]string{"serve", root, "--listen", h.addr}, serverFlags...)...)
	h.serve.Stdout, h.serve.Stderr = &h.shown, &h.shown
	if err := n.Hosts[1].Start(h.serve); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.serve.Process.Kill(); h.serve.Wait() })
	for end := time.Now().Add(30 * time.Second); ; {
		if out, err := h.run("ls", h.addr); err == nil {
			return h
		} else if time.Now().After(end) {
			t.Fatalf("the server does not answer: %v: %s", err, out)
		}
	}
}

func (h *slowHosts) command(host *netns.Host, args ...string) *exec.Cmd {
	cmd := host.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	return cmd
}

func (h *slowHosts) run(args ...string) (string, error) {
	cmd := h.command(h.client, append(args, h.flags...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := h.client.Run(cmd)
	return out.String(), err
}

// connections is how many the server has with peers.
func (h *slowHosts) connections() (n int) {
	host := h.server.Host()
	cmd := host.Command("cat", "/proc/net/tcp")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := host.Run(cmd); err != nil {
		h.t.Error(err)
	}
	for line := range strings.Lines(out.String()) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], ":1B9E") && f[3] == "01" {
			// port 7070, established
			n++
		}
	}
	return n
}

// same compares all files of two directories.
func (h *slowHosts) same(want, got string) {
	h.t.Helper()
	n := 0
	err := filepath.WalkDir(want, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(want, p)
		a, err := os.ReadFile(p)
		b, berr := os.ReadFile(filepath.Join(got, rel))
		if n++; berr != nil || !bytes.Equal(a, b) {
			berr = fmt.Errorf("%s is another file there: %w", rel, berr)
		}
		return errors.Join(err, berr)
	})
	if err != nil || n == 0 {
		h.t.Errorf("%d files: %v", n, err)
	}
}

// Many small files and a large one come over a long and lossy link, also when the link is cut on
// the way; what is there is not moved again.
func TestMirrorOverALongLink(t *testing.T) {
	t.Parallel()
	root, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	r := rand.NewChaCha8([32]byte{1})
	for i := range 400 {
		b := make([]byte, 4096)
		if i == 0 {
			b = make([]byte, 24<<20)
		}
		r.Read(b)
		p := filepath.Join(root, fmt.Sprintf("d%d/f%03d", i%5, i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o777), os.WriteFile(p, b, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	h := newSlowHosts(t, root)
	cut := make(chan bool)
	go func() { // the session is lost on the way
		defer close(cut)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(time.Millisecond) {
			if h.server.Counts().Sent > 4000 {
				break
			}
		}
		if n := h.connections(); n != 1+tcp.LongStreams {
			t.Errorf("%d connections, expected one for control and %d for data", n, tcp.LongStreams)
		}
		h.server.Down()
		<-time.After(4 * time.Second)
		h.server.Up()
	}()
	text, err := h.run("mirror", h.addr, out)
	if err != nil || !strings.Contains(text, "400 files fetched") {
		t.Fatalf("%v: %s", err, text)
	}
	<-cut
	h.same(root, out)
	before := h.server.Counts()
	if before.Lost < 50 || before.Cut == 0 {
		t.Errorf("the link: %+v", before)
	}
	text, err = h.run("mirror", h.addr, out)
	if sent := h.server.Counts().Sent - before.Sent; err != nil || !strings.Contains(text, "400 kept") || sent > 700 {
		t.Errorf("again %v, %d packets: %s", err, sent, text)
	}
}

// A link may be slow: 1 Mb/s, a round trip of 600 ms, two packets in a hundred lost. No silence of
// it is taken for a dead peer, with TLS and without, and nothing is tried twice.
func TestGetOverASlowLink(t *testing.T) {
	t.Parallel()
	dirs := identities(t, "worker")
	root, out := t.TempDir(), filepath.Join(t.TempDir(), "f")
	b := content(400_000, 1)
	write(t, filepath.Join(root, "f"), b)
	policy := write(t, filepath.Join(t.TempDir(), "policy"), []byte("allow worker read,list\n"))
	link := netns.LinkSpec{Delay: 300 * time.Millisecond, Rate: 1e6, Loss: 0.02, Queue: 256 << 10, Seed: 3}
	for _, c := range []struct{ server, client []string }{
		{[]string{"--identity", dirs["server"], "--policy", policy}, []string{"--identity", dirs["worker"]}},
		{plaintext, plaintext},
	} {
		h := newHosts(t, link, root, c.server, append(c.client, "--timeout", "60s", "--retry", "0"))
		if text, err := h.run("get", h.addr+"/f", "-f", "-o", out); err != nil {
			t.Errorf("%v: %s", err, text)
		}
		same(t, out, b)
		if lost := h.server.Counts().Lost; lost == 0 {
			t.Error("the link lost nothing")
		}
	}
}

// TestRecordingSlowLink records the commands for files over a link of 20 ms that loses one packet
// in a hundred.
func TestRecordingSlowLink(t *testing.T) {
	r := recordMachine(t)
	local, incoming := filepath.Join(r.dir, "run7"), filepath.Join(r.dir, "incoming")
	for i := range 4 {
		write(t, filepath.Join(local, fmt.Sprintf("shard%d/%03d.json", i%2, i)), content(2000, uint64(i)))
	}
	write(t, filepath.Join(local, "weights.bin"), content(1_000_000, 1))
	if err := errors.Join(os.Mkdir(incoming, 0o755),
		os.Symlink("run7", filepath.Join(incoming, "latest"))); err != nil {
		t.Fatal(err)
	}
	r.say("two hosts, a round trip of 20 ms, 1 Gb/s, one packet in a hundred is lost; the server: penstock serve " +
		"incoming --writable --removable")
	h := newSlowHosts(t, incoming, "--writable", "--removable", "--rescan", "0")
	run := func(ok bool, args ...string) {
		t.Helper()
		here := make([]string, len(args))
		for i, a := range args {
			if here[i] = a; a == "run7" || a == "copy" || a == "w.bin" {
				here[i] = filepath.Join(r.dir, a)
			}
		}
		out, err := h.run(here...)
		if (err == nil) != ok {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
		out = regexp.MustCompile(`(?m)^.* % .*\n`).ReplaceAllString(out, "") // how far it is, on a machine that is slow
		r.show("penstock "+strings.Join(args, " "), strings.ReplaceAll(out, r.dir+"/", ""))
	}
	run(true, "put", "run7", h.addr, "--dry-run")
	run(true, "put", "run7", h.addr)
	run(true, "put", "run7", h.addr)
	run(true, "ls", h.addr)
	run(true, "get", h.addr+"/run7/weights.bin", "-o", "w.bin", "--limit", "20MB")
	same(t, filepath.Join(r.dir, "w.bin"), content(1_000_000, 1))
	run(true, "mirror", h.addr, "copy", "--exclude", "*.bin")
	same(t, filepath.Join(r.dir, "copy/run7/shard1/003.json"), content(2000, 3))
	run(true, "ls", h.addr, "--left-out")
	run(true, "rm", h.addr+"/run7/weights.bin")
	run(false, "get", h.addr+"/run7/weights.bin", "-o", "w.bin", "--force")
	run(true, "rm", "-r", h.addr+"/run7/")
	if err := h.serve.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := h.serve.Wait(); err != nil {
		t.Error(err)
	}
	r.say("and what the server printed, until Ctrl-C:")
	// if the last peer goes at that moment
	shown := regexp.MustCompile(`(?m)(: gone): transfer: closed by this side.*$`).ReplaceAllString(h.shown.String(),
		"$1")
	shown = regexp.MustCompile(`cli\.test-\d+`).ReplaceAllString(shown, "penstock-4711")
	r.show("penstock serve incoming --writable --removable", strings.ReplaceAll(shown, r.dir+"/", ""))
	r.finish("slow-link")
}
