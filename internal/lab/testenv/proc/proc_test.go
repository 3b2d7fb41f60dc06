package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// roleEnv makes this test binary another program.
const roleEnv = "PENSTOCK_PROC_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); role {
	case "":
		os.Exit(m.Run())
	case "echo": // repeats its input
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			fmt.Println("echo:", in.Text())
		}
		fmt.Println("end of input")
	case "harness": // starts a process that starts another one, says who they are, and waits
		p, err := Launch(Spec{Path: "sh", Args: []string{"-c", "sleep 1000 & echo grandchild $!; wait"}})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		m, err := p.WaitLine(context.Background(), regexp.MustCompile(`grandchild (\d+)`))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("child", p.PID(), "grandchild", m[1], "watcher", watcher.cmd.Process.Pid)
		bufio.NewReader(os.Stdin).ReadByte()
	case "noisy":
		w := bufio.NewWriter(os.Stdout)
		for i := range 100_000 {
			fmt.Fprintln(w, "line", i)
		}
		fmt.Fprintln(w, strings.Repeat("x", 1<<20))
		fmt.Fprint(w, "no newline at the end")
		w.Flush()
		os.Exit(7)
	default:
		panic(role)
	}
	os.Exit(0)
}

func role(t testing.TB, name string) Spec {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Path: exe, Env: []string{roleEnv + "=" + name}}
}

// soon is a context with more time than anything here needs on any machine.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestExitAndOutput(t *testing.T) {
	p := Start(t, Spec{Path: "sh", Args: []string{"-c", "echo to stdout; echo to stderr >&2; echo $WORD; exit 3"},
		Env: []string{"WORD=penstock"}})
	e, err := p.Wait(soon(t))
	if err != nil || e.Code != 3 || e.Signal != 0 || e.OK() {
		t.Fatalf("exit %+v, %v", e, err)
	}
	for _, want := range []string{"to stdout\n", "to stderr\n", "penstock\n"} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("output %q lacks %q", p.Output(), want)
		}
	}
	if e.MaxRSS == 0 {
		t.Error("a process without memory")
	}
	if err := p.Kill(); err != nil {
		t.Errorf("killing a process that ended: %v", err)
	}
}

func TestStartOfNothing(t *testing.T) {
	before := descriptors(t)
	if _, err := Launch(Spec{Path: "/no/such/program"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after a start that failed", before, after)
	}
}

func descriptors(t testing.TB) int {
	t.Helper()
	if err := ready(); err != nil {
		t.Fatal(err)
	}
	u, err := Use(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return u.FDs
}

func TestConversation(t *testing.T) {
	spec := role(t, "echo")
	spec.Input = true
	var seen []string
	spec.OnLine = func(l string) { seen = append(seen, l) }
	p := Start(t, spec)
	for i := range 3 {
		fmt.Fprintf(p.Input(), "word %d\n", i)
		// The same question again and again: NextLine goes on where it was.
		if m, err := p.NextLine(soon(t), regexp.MustCompile(`word (\d)`)); err != nil || m[1] != strconv.Itoa(i) {
			t.Fatalf("answer %q, %v", m, err)
		}
	}
	if m, err := p.WaitLine(soon(t), regexp.MustCompile(`word (\d)`)); err != nil || m[1] != "0" {
		t.Errorf("WaitLine found %q, %v; expected the first line", m, err)
	}
	p.Input().Close()
	if e, err := p.Wait(soon(t)); err != nil || !e.OK() {
		t.Errorf("exit %v, %v", e, err)
	}
	if len(seen) != 4 || seen[3] != "end of input" {
		t.Errorf("OnLine saw %q", seen)
	}
	_, err := p.WaitLine(soon(t), regexp.MustCompile("never printed"))
	if err == nil || !strings.Contains(err.Error(), "exit status 0") || !strings.Contains(err.Error(), "end of input") {
		t.Errorf("error %v does not say how the process ended and what it printed", err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	p := Start(t, role(t, "noisy"))
	if e, err := p.Wait(soon(t)); err != nil || e.Code != 7 {
		t.Fatalf("exit %v, %v", e, err)
	}
	out := p.Output()
	if len(out) > 64<<10 {
		t.Errorf("%d bytes were kept", len(out))
	}
	for _, want := range []string{"line 0\n", "line 99\n[... 99502 lines]\n", "line 99999\n",
		"[... 1044480 more bytes]\nno newline at the end\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q", want)
		}
	}
	if strings.Contains(out, "line 50000") {
		t.Error("the middle was kept")
	}
	if _, err := p.WaitLine(soon(t), regexp.MustCompile(`^no newline`)); err != nil {
		t.Error(err)
	}
	if m, err := p.NextLine(soon(t), regexp.MustCompile(`^line (99\d\d\d)$`)); err != nil || m[1] != "99602" {
		t.Errorf("first of the last lines: %q, %v", m, err)
	}
	if m, err := p.NextLine(soon(t), regexp.MustCompile(`^line (\d+)$`)); err != nil || m[1] != "99603" {
		t.Errorf("next of the last lines: %q, %v", m, err)
	}
}

func TestWaitLineEndsWithItsContext(t *testing.T) {
	p := Start(t, Spec{Path: "sleep", Args: []string{"1000"}})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.WaitLine(ctx, regexp.MustCompile("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestStopContinueKill(t *testing.T) {
	spec := role(t, "echo")
	spec.Input = true
	p := Start(t, spec)
	for range 5 {
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		if u, err := Use(p.PID()); err != nil || u.State != "T" {
			t.Fatalf("state %q, %v after Stop", u.State, err)
		}
		fmt.Fprintln(p.Input(), "are you there")
		if err := p.Continue(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.NextLine(soon(t), regexp.MustCompile("are you there")); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	e, err := p.Wait(soon(t))
	if err != nil || e.Signal != sys.SIGKILL || e.Code != -1 {
		t.Errorf("exit %v, %v", e, err)
	}
	if _, ok := readState(p.PID()); ok {
		t.Error("the killed process is still in the table of processes")
	}
	if err := p.Stop(); err == nil {
		t.Error("a dead process was stopped")
	}
}

func TestRestart(t *testing.T) {
	spec := role(t, "echo")
	spec.Input = true
	p := Start(t, spec)
	q := p.Restart()
	if e, err := p.Wait(soon(t)); err != nil || e.Signal != sys.SIGKILL {
		t.Errorf("the first: %v, %v", e, err)
	}
	fmt.Fprintln(q.Input(), "again")
	if _, err := q.WaitLine(soon(t), regexp.MustCompile("echo: again")); err != nil {
		t.Error(err)
	}
}

// What a process leaves behind goes with it: also children that let go of their parent or keep its
// output open, and also when the process ended in good order.
func TestOrphansDieWithTheGroup(t *testing.T) {
	for _, end := range []string{"exit 0", "kill -9 $$", "sleep 1000"} {
		p := Start(t, Spec{Path: "sh", Args: []string{"-c", "(sleep 1000 & echo orphan $!); " + end}})
		m, err := p.WaitLine(soon(t), regexp.MustCompile(`orphan (\d+)`))
		if err != nil {
			t.Fatal(err)
		}
		if end == "sleep 1000" {
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Wait(soon(t)); err != nil {
			t.Fatal(err)
		}
		pid, _ := strconv.Atoi(m[1])
		if s, ok := readState(pid); ok {
			t.Errorf("%s: orphan %d is still there: %+v", end, pid, s)
		}
	}
}

// The thread that started a process may not end before it, whatever the caller's goroutine does.
func TestProcessOutlivesItsStartersThread(t *testing.T) {
	spec := role(t, "echo")
	spec.Input = true
	var p *Process
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // without Unlock: the thread ends with the goroutine
		p = Start(t, spec)
	})
	wg.Wait()
	fmt.Fprintln(p.Input(), "still alive")
	if _, err := p.WaitLine(soon(t), regexp.MustCompile("echo: still alive")); err != nil {
		t.Error(err)
	}
}

// A harness that gets SIGKILL takes its children with it, and theirs.
func TestNothingOutlivesAKilledHarness(t *testing.T) {
	for _, watched := range []bool{false, true} {
		// Without this package at the top the grandchildren have only the harness's watcher.
		t.Run(fmt.Sprintf("watched=%t", watched), func(t *testing.T) {
			spec := role(t, "harness")
			var line string
			var kill func()
			if watched {
				spec.Input = true
				p := Start(t, spec)
				m, err := p.WaitLine(soon(t), regexp.MustCompile(`child \d+ grandchild.*`))
				if err != nil {
					t.Fatal(err)
				}
				line = m[0]
				kill = func() {
					if err := p.Kill(); err != nil {
						t.Fatal(err)
					}
				}
			} else {
				cmd := exec.Command(spec.Path)
				cmd.Env = append(os.Environ(), spec.Env...)
				in, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				defer in.Close()
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if line, err = bufio.NewReader(out).ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				kill = func() {
					cmd.Process.Kill()
					cmd.Wait() // says that it was killed
				}
			}
			var pids [3]int
			if _, err := fmt.Sscanf(line, "child %d grandchild %d watcher %d", &pids[0], &pids[1],
				&pids[2]); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			for i, pid := range pids {
				if s, ok := readState(pid); !ok || s.code == 'Z' {
					t.Fatalf("process %d (%d) does not run before the kill", i, pid)
				}
			}
			kill()
			for i, pid := range pids {
				deadline := time.Now().Add(2 * time.Minute)
				for {
					s, ok := readState(pid)
					if !ok || s.code == 'Z' {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("process %d (%d) outlives the harness: %+v", i, pid, s)
					}
					sys.WaitExit(pid, time.Second)
				}
				if !watched {
					sys.Reap(pid) // this process is the subreaper of all that became orphans
				}
			}
		})
	}
}

// recorder is a TB that lets a test look at what a test would have said.
type recorder struct {
	testenv.TB
	failed   bool
	log      strings.Builder
	cleanups []func()
}

func (r *recorder) Helper()                   {}
func (r *recorder) Failed() bool              { return r.failed }
func (r *recorder) Logf(f string, a ...any)   { fmt.Fprintf(&r.log, f+"\n", a...) }
func (r *recorder) Errorf(f string, a ...any) { r.failed = true; r.Logf(f, a...) }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...) }
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) end() {
	for _, f := range r.cleanups {
		f()
	}
}

func TestOutputIsLoggedOnlyOnFailure(t *testing.T) {
	for _, failed := range []bool{false, true} {
		r := &recorder{}
		p := Start(r, Spec{Path: "sh", Args: []string{"-c", "echo a word; sleep 1000"}})
		if _, err := p.WaitLine(soon(t), regexp.MustCompile("a word")); err != nil {
			t.Fatal(err)
		}
		r.failed = failed
		r.end()
		if got := strings.Contains(r.log.String(), "a word"); got != failed {
			t.Errorf("failed %t: log %q", failed, r.log.String())
		}
		select {
		case <-p.Done():
		default:
			t.Error("the process outlives its test")
		}
	}
	r := &recorder{}
	if Start(r, Spec{Path: "/no/such/program"}); !r.failed {
		t.Error("a program that does not exist was started")
	}
}

// A member of the group that does not die is a failure, not a wait without end.
func TestEndSaysWhatIsLeft(t *testing.T) {
	p := Start(t, Spec{Path: "sleep", Args: []string{"1000"}})
	err := group{leader: p.PID(), session: true}.end(-time.Second)
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(p.PID())) {
		t.Errorf("error %v", err)
	}
}

func TestPenstock(t *testing.T) {
	bin, err := Penstock()
	if err != nil {
		t.Fatal(err)
	}
	p := Start(t, Spec{Path: bin, Args: []string{"version"}})
	if e, err := p.Wait(soon(t)); err != nil || !e.OK() {
		t.Errorf("penstock version: %v, %v\n%s", e, err, p.Output())
	}
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	a, errA := sources(root)
	b, errB := sources(root)
	if errA != nil || errB != nil || a != b {
		t.Errorf("keys %s, %s; %v, %v", a, b, errA, errB)
	}
}

func TestSelf(t *testing.T) {
	if os.Getenv("PENSTOCK_PROC_SELF") != "" {
		fmt.Println("here I am")
		syscall.Kill(os.Getpid(), syscall.SIGTERM)
		select {}
	}
	p := Start(t, Self(t, "PENSTOCK_PROC_SELF=1"))
	if e, err := p.Wait(soon(t)); err != nil || e.Signal != syscall.SIGTERM ||
		!strings.Contains(p.Output(), "here I am") {
		t.Errorf("exit %v, %v\n%s", e, err, p.Output())
	}
}
