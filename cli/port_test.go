package cli

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
)

// tunnel brings connections to an address of this machine to another one, as "ssh -L" does. Those
// beyond most hang.
func tunnel(t *testing.T, to string, most int64) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var came atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if came.Add(1) > most {
				t.Cleanup(func() { c.Close() })
				continue
			}
			go func() {
				defer c.Close()
				d, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer d.Close()
				go func() {
					io.Copy(d, c)
					d.(*net.TCPConn).CloseWrite()
				}()
				io.Copy(c, d)
			}()
		}
	}()
	return l.Addr().String()
}

// A tunnel to the one port of serve is all that ls, get, put and mirror need.
func TestFilesThroughATunnel(t *testing.T) {
	for _, secure := range []bool{false, true} {
		dir, here := t.TempDir(), t.TempDir()
		b := content(3<<20, 9)
		write(t, filepath.Join(dir, "one"), b)
		dirs := map[string]string{}
		flags := func(name string, args ...string) []string { return args }
		if secure {
			dirs = identities(t, "alice")
			policy := write(t, filepath.Join(t.TempDir(), "policy"), []byte("allow alice read,write,list\n"))
			flags = func(name string, args ...string) []string {
				if args = append(args, "--identity", dirs[name]); name == "server" {
					args = append(args, "--policy", policy)
				}
				return args
			}
		}
		p := proc.Start(t, program(flags("server", "serve", dir, "--writable", "--listen", "127.0.0.1:0")...))
		m, err := p.WaitLine(limit(t), regexp.MustCompile(`tcp://(?:server@)?(127\.0\.0\.1:\d+)`))
		if err != nil {
			t.Fatal(err)
		}
		addr := tunnel(t, m[1], 1000)
		run(t, 0, "one", flags("alice", "ls", addr)...)
		run(t, 0, "over tcp", flags("alice", "get", addr+"/one", "-o", filepath.Join(here, "one"), "--path", "tcp")...)
		same(t, filepath.Join(here, "one"), b)
		run(t, 0, "over tcp", flags("alice", "put", filepath.Join(here, "one"), addr+"/two", "--path", "tcp")...)
		same(t, filepath.Join(dir, "two"), b)
		run(t, 0, "2 files fetched", flags("alice", "mirror", addr, filepath.Join(here, "all"), "--path", "tcp")...)
	}
}

// What lets one connection through and no second one is named, with its address, once a dial was
// not answered.
func TestGetWithoutAWay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "one"), content(1<<20, 9))
	_, to := serve(t, dir)
	addr := tunnel(t, to, 1)
	start := time.Now()
	out, errOut, status := penstock(t, "get", addr+"/one", "-o", filepath.Join(dir, "there"), "--path", "tcp,verbs")
	if text := out + errOut; status != exitUnreachable || !strings.Contains(text, "tcp: dial "+addr) ||
		strings.Contains(text, "verbs:") || time.Since(start) > 30*time.Second {
		t.Errorf("status %d after %v: %s", status, time.Since(start), text)
	}
	if _, err := os.Stat(filepath.Join(dir, "there")); err == nil {
		t.Error("the file is there")
	}
}

// TestListenAddresses: what serve listens on is what it was given.
func TestListenAddresses(t *testing.T) {
	for given, want := range map[string]string{"127.0.0.1:0": `tcp://127\.0\.0\.1:\d+`,
		"0.0.0.0:0": `tcp://0\.0\.0\.0:\d+`, ":0": `tcp://\[::\]:\d+`, "localhost:0": `tcp://127\.0\.0\.1:\d+`} {
		p := proc.Start(t, program("serve", t.TempDir(), "--insecure", "--listen", given))
		if _, err := p.WaitLine(limit(t), regexp.MustCompile(want)); err != nil {
			t.Errorf("%s: %v: %s", given, err, p.Output())
		}
	}
}
