package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/mem"
)

// Main makes this process a worker if Run started it as one, and ends it then; otherwise it does
// nothing. A program that calls Run calls Main first of all. The environment variable
// PENSTOCK_SOAK_WORKER tells.
func Main() {
	text := os.Getenv(workerEnv)
	switch text {
	case "":
		return
	case noWorker:
		os.Exit(0)
	}
	w := &worker{out: os.Stdout}
	if err := json.Unmarshal([]byte(text), &w.c); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", workerEnv, err)
		os.Exit(2)
	}
	if err := w.run(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", w.c.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// worker is one process that moves bytes.
type worker struct {
	c      config
	serial atomic.Uint64
	lives  int // nodes opened

	denials int // so far

	mu  sync.Mutex // guards out: one write for one line
	out io.Writer
}

func (w *worker) tell(l line) {
	b, err := json.Marshal(&l)
	if err != nil {
		panic(err) // strings and numbers
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out.Write(append(b, '\n')) // the harness is there as long as this process
}

// key names a transfer.
func (w *worker) key() string { return fmt.Sprintf("%s#%d", w.c.Name, w.serial.Add(1)) }

// holding is what a process holds.
type holding struct {
	goroutines, fds int
	anon            uint64
}

func held() (holding, error) {
	u, err := proc.Use(os.Getpid())
	return holding{runtime.NumGoroutine(), u.FDs, u.Anon}, err
}

// maxGrowth is by how many bytes the private memory of a worker may be larger in the end: what Go's
// runtime and the C library keep.
const maxGrowth = 96 << 20

func (w *worker) run(in io.Reader) error {
	commands := make(chan string)
	go func() {
		defer close(commands)
		for s := bufio.NewScanner(in); s.Scan(); {
			commands <- s.Text()
		}
	}()
	if err := warm(); err != nil {
		return err
	}
	start, err := held()
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(w.c.Seed, seedOf(w.c.Name)))
	for {
		h, err := w.open(r.Uint64())
		if err != nil {
			return err
		}
		again := true
		for ends := false; !ends; {
			cmd, ok := <-commands
			switch {
			case !ok, cmd == cFinish:
				again, ends = false, true
			case cmd == cRenew:
				h.quiet()
				ends = true
			case cmd == cLeave:
				ends = true
			case cmd == cQuiet:
				h.quiet()
				w.tell(line{T: tQuiet, Node: h.name})
			default:
				h.disturb(cmd)
			}
		}
		left := h.close()
		if more := w.leftovers(start); more != "" {
			left = append(left, more)
		}
		w.tell(line{T: tClosed, Node: h.name, Text: strings.Join(left, "; "), Sums: h.sums})
		if !again {
			return nil
		}
	}
}

// warm does once what makes the runtime open descriptors for good.
func warm() error {
	r, err := mem.Alloc(mem.Options{Name: "soak warm", Size: 1 << 20})
	if err != nil {
		return err
	}
	r.Close()
	<-time.After(time.Millisecond)
	return warmNet()
}

// leftovers waits until regions, leases, goroutines and descriptors are back to what they were, and
// says what is not.
func (w *worker) leftovers(start holding) string {
	ctx, cancel := context.WithTimeout(context.Background(), w.c.Patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		runtime.GC() // transfer/path/shm leaves the socket to a peer that does not answer to it
		now, err := held()
		if err != nil {
			return err.Error()
		}
		leaks := mem.LeakReport()
		if len(leaks) == 0 && now.goroutines <= start.goroutines && now.fds <= start.fds {
			break
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		var b strings.Builder
		if len(leaks) > 0 {
			fmt.Fprintf(&b, "%v", leaks)
		}
		if now.fds > start.fds {
			fmt.Fprintf(&b, "%d descriptors, %d at the start: %s; ", now.fds, start.fds, descriptors())
		}
		if now.goroutines > start.goroutines {
			fmt.Fprintf(&b, "%d goroutines, %d at the start; ", now.goroutines, start.goroutines)
			w.stacks("goroutines left")
		}
		return b.String()
	}
	debug.FreeOSMemory()
	if now, err := held(); err != nil {
		return err.Error()
	} else if now.anon > start.anon+maxGrowth {
		return fmt.Sprintf("%d MiB of private memory, %d MiB at the start", now.anon>>20, start.anon>>20)
	}
	return ""
}

// stacks prints what every goroutine does, to help find the reason of a complaint.
func (w *worker) stacks(why string) {
	buf := make([]byte, 1<<20)
	fmt.Fprintf(os.Stderr, "soak: %s: %s:\n%s\n", w.c.Name, why, buf[:runtime.Stack(buf, true)])
}

// descriptors lists what this process has open.
func descriptors() string {
	var out []string
	all, _ := os.ReadDir("/proc/self/fd")
	for _, d := range all {
		if to, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil {
			out = append(out, d.Name()+" "+to)
		}
	}
	return strings.Join(out, ", ")
}
