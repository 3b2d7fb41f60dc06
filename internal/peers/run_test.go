package peers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// This binary, started again with this variable, runs something of this package and waits to be
// killed.
const again = "PENSTOCK_PEERS_AGAIN"

func TestMain(m *testing.M) {
	switch os.Getenv(again) {
	case "":
		os.Exit(m.Run())
	case "home":
		h, err := newHome("test")
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		// A program that keeps writing into the directory, with a quiet child of its own.
		// And it makes a file in shared memory as libfabric does.
		p, err := command{args: []string{"sh", "-c",
			`echo > "/dev/shm/$$:0:0"; sleep 1000 >/dev/null 2>&1 & echo $$ $!; while :; do echo > "$1/b$$"; done`,
			"sh", h.dir},
			home: h, onOutput: func(b []byte) {
				fmt.Println(h.dir, strings.TrimSpace(string(b)))
			}}.start(context.Background())
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		p.wait()
	}
}

// gone waits until a process does not exist any more, or is only waited for by its parent.
func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		// another process's child makes no event
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d is still there: %s", pid, b)
		}
	}
}

// A process that is killed takes its peers and their directories with it.
func TestNothingOutlivesAKill(t *testing.T) {
	testenv.Once(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), again+"=home")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	f := strings.Fields(line)
	if err != nil || len(f) != 3 {
		cmd.Process.Kill()
		cmd.Wait()
		t.Fatalf("%q, %v", line, err)
	}
	dir := f[0]
	var pids [2]int
	for i, s := range f[1:] {
		if pids[i], err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	gone(t, pids[0])
	gone(t, pids[1])
	for _, name := range []string{dir, sharedFiles(pids[0])} {
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { // as above
			found, err := filepath.Glob(name)
			if err != nil {
				t.Fatal(err)
			}
			if len(found) == 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s is still there", found)
			}
		}
	}
}

func TestHome(t *testing.T) {
	before, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHome("test")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := h.remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(h.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", h.dir, err)
	}
	after, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(after) > len(before)+1 { // the listing has one itself, and another one of its own
		t.Errorf("descriptors %v before, %v after, %v", before, after, err)
	}
}

// The limit ends a program with all that it started, and the error has what it said.
func TestLimit(t *testing.T) {
	// On a busy machine the shell may be killed before it has said anything: then it gets more
	// time.
	for limit := 300 * time.Millisecond; limit < time.Minute; limit *= 5 {
		p, err := command{args: []string{"sh", "-c", "echo hello; sleep 1000 & echo child $!; wait"},
			limit: limit}.start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.wait()
		if !errors.Is(err, context.DeadlineExceeded) &&
			(err == nil || !strings.Contains(err.Error(), "still running after "+limit.String())) {
			t.Errorf("%v", err)
		}
		if _, pid, ok := strings.Cut(strings.TrimSpace(string(out)), "child "); ok {
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			gone(t, n)
			return
		}
	}
	t.Error("the shell never said anything")
}

// What a program leaves running when it ends is killed, and what libfabric leaves in shared memory
// is removed.
func TestLeftovers(t *testing.T) {
	p, err := command{args: []string{"sh", "-c",
		`echo > "/dev/shm/$$:0:0"; sleep 1000 >/dev/null 2>&1 & echo $!`}}.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.wait()
	if err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(sharedFiles(p.pid)); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
}

func TestFailureSaysWhat(t *testing.T) {
	_, err := command{args: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}}.run(t.Context())
	for _, want := range []string{"sh", "exit status 3", "out", "err"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q in it", err, want)
		}
	}
	_, err = command{args: []string{"sh", "-c", "yes '" + strings.Repeat("x", 1000) + "'"}}.run(t.Context())
	if err == nil || len(err.Error()) > 2000 {
		t.Errorf("a program that prints for ever: %.300v", err)
	}
	if _, err := (command{args: []string{"/no/such/program"}}).run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// A server that ends early is an error that carries what it said; so is a client that fails, and
// its server does not stay.
func TestPairFails(t *testing.T) {
	tries := 0
	_, err := pair{command: func(int) (server, client []string) {
		tries++
		return []string{"sh", "-c", "echo no such device; exit 3"}, []string{"true"}
	}}.run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no such device") || tries != 3 {
		t.Errorf("%d tries, %v", tries, err)
	}
	// A real server, of this process's own making would not do: it must be one of the program's.
	// Python has one.
	python, err := testenv.Tool("python3", "python3")
	if err != nil {
		testenv.Missing(t, "python3, to make a server of", err)
	}
	var file string
	_, err = pair{command: func(port int) (server, client []string) {
		file = filepath.Join(t.TempDir(), "pid")
		return []string{python, "-c", "import os, socket, sys, time\nopen(sys.argv[2], 'w').write(str(os.getpid()))\n" +
				"s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\nprint('a server', " +
				"flush=True)\ntime.sleep(1000)", strconv.Itoa(port), file},
			[]string{"sh", "-c", "echo a client >&2; exit 4"}
	}}.run(t.Context())
	for _, want := range []string{"exit status 4", "a client", "a server"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q in it", err, want)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
}

// A port that another process listens on is not the server's.
func TestListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if !(&child{pid: os.Getpid()}).listens(port) {
		t.Error("this process listens, and it is not seen")
	}
	p, err := command{args: []string{"sleep", "1000"}}.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	if p.listens(port) {
		t.Error("a program is said to listen on a port of this process")
	}
	if err := sys.Kill(p.pid, sys.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.waitListening(port); !errors.Is(err, errNoPort) {
		t.Errorf("waiting for a program that was killed: %v", err)
	}
}
