package sections_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/sections"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/rdma"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	netns.Main()
	if text := os.Getenv(jobEnv); text != "" {
		runtime.LockOSThread() // interfaces are opened in the namespace of this thread
		if err := work(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const jobEnv = "PENSTOCK_SECTIONS_TEST_JOB"

// job is a run in a process of its own, in a network namespace of its own where that is needed.
type job struct {
	File     string
	Text     string // of the file; "": read it
	Set      []string
	Role     string
	Packets  uint64
	Samples  int
	Duration time.Duration
	Settle   time.Duration
	Stop     bool   // end when the standard input does
	Verbs    string // libibverbs to use instead of the system's
	Apart    bool   // each role is a run of its own, at the same time
}

// outcome is what such a run found.
type outcome struct {
	Sent     []sections.Sent
	Received []sections.Received
	Account  *sections.Account
	Sockets  []sections.Messages
	Latency  []sections.LatencyResult
	Table    string
	Changes  int
}

// work does a job and prints its outcome.
func work(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	if j.Text == "" {
		b, err := os.ReadFile(j.File)
		if err != nil {
			return err
		}
		j.Text = string(b)
	}
	var co config.Options
	var err error
	for _, s := range j.Set {
		x, err := config.ParseSetting(s)
		if err != nil {
			return err
		}
		co.Set = append(co.Set, x)
	}
	c, said := config.Load(filepath.Base(j.File), []byte(j.Text), co)
	if c == nil {
		return said.Err()
	}
	o := sections.Options{Role: j.Role, Packets: j.Packets, Samples: j.Samples, Warmup: -1, Duration: j.Duration,
		Settle: j.Settle}
	changes := sections.Fit(c, machine())
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if j.Stop {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	if j.Verbs != "" {
		if o.Engines, err = engine.NewTable(rdma.New(j.Verbs)); err != nil {
			return err
		}
	}
	server := make(chan error, 1)
	if o.Role = j.Role; j.Apart {
		so := o
		o.Role, so.Role = "client", "server"
		sc, _ := config.Load(filepath.Base(j.File), []byte(j.Text), co)
		sections.Fit(sc, machine())
		go func() {
			_, err := sections.Run(ctx, sc, sections.MakePlan(sc, so), nil, so)
			server <- err
		}()
	} else {
		server <- nil
	}
	r, err := sections.Run(ctx, c, sections.MakePlan(c, o), changes, o)
	if err = errors.Join(err, <-server); err != nil {
		return err
	}
	var b, table strings.Builder
	if err := r.Write(&b); err != nil {
		return err
	}
	if err := r.Table(&table); err != nil {
		return err
	}
	out := outcome{r.Sent, r.Received, r.Account, r.Sockets, r.Latency, table.String(), len(changes)}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// start begins a job in a host, and returns how to wait for its outcome.
func start(t *testing.T, h *netns.Host, j job) func() outcome {
	t.Helper()
	_, wait := startStoppable(t, h, j)
	return wait
}

// startStoppable is start of a job that stop can end before its time.
func startStoppable(t *testing.T, h *netns.Host, j job) (stop func(), wait func() outcome) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if j.Duration == 0 {
		j.Duration = -1
	}
	if j.Settle == 0 {
		j.Settle = 30 * time.Second
	}
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	cmd := h.Command(self)
	// else each waits for a second
	cmd.Env = append(os.Environ(), jobEnv+"="+string(text),
		"GORACE="+strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0"))
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	stop = func() {}
	if j.Stop {
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stop = func() { in.Close() }
		t.Cleanup(stop)
	}
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	return stop, func() (o outcome) {
		t.Helper()
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%s %s: %v\n%s", j.File, j.Role, err, problems.String())
		}
		if err := json.Unmarshal([]byte(out.String()), &o); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
		t.Log("\n" + o.Table)
		return o
	}
}

// host is a network namespace without a network, but for what the commands make of it.
func host(t *testing.T, commands ...string) *netns.Host {
	t.Helper()
	h := netns.New(t, netns.Topology{Hosts: 1}).Hosts[0]
	for _, c := range append([]string{"ip link set lo up"}, commands...) {
		words := strings.Fields(c)
		if _, err := h.Output(t.Context(), words[0], words[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	return h
}
