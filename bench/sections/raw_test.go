package sections_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/bench/sections"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine/sim"
)

// machine is a small one: two cores, no huge pages, no GPU.
func machine() *config.Host {
	return &config.Host{Cores: []int{0, 1}, Nodes: []config.HostNode{{ID: 0, Cores: []int{0, 1}, Memory: 1 << 34}}}
}

// load reads a file, fits it to the small machine, and plans it.
func load(t *testing.T, name string, o sections.Options, set ...string) (*config.Config, []sections.Change,
	*sections.Plan) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return loadText(t, name, text, o, set...)
}

func loadText(t *testing.T, name string, text []byte, o sections.Options, set ...string) (*config.Config,
	[]sections.Change, *sections.Plan) {
	t.Helper()
	var co config.Options
	for _, s := range set {
		x, err := config.ParseSetting(s)
		if err != nil {
			t.Fatal(err)
		}
		co.Set = append(co.Set, x)
	}
	c, said := config.Load(filepath.Base(name), text, co)
	if c == nil {
		t.Fatal(said.Err())
	}
	changes := sections.Fit(c, machine())
	return c, changes, sections.MakePlan(c, o)
}

// until bounds a run. What ends runs in tests are numbers of packets.
func until(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// run runs a file and checks what holds for every result.
func run(t *testing.T, name string, o sections.Options, set ...string) *sections.Result {
	t.Helper()
	o.Duration, o.Settle = -1, 30*time.Second
	c, changes, p := load(t, name, o, set...)
	r, err := sections.Run(until(t), c, p, changes, o)
	if err != nil {
		t.Fatal(err)
	}
	check(t, r)
	return r
}

func check(t *testing.T, r *sections.Result) {
	t.Helper()
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := paired.Read(&b); err != nil {
		t.Error(err)
	}
	var table bytes.Buffer
	if err := r.Table(&table); err != nil {
		t.Error(err)
	}
	t.Log("\n" + table.String())
	for _, x := range r.Received {
		if x.Packets != x.Unique+x.Duplicates+x.Damaged+x.Foreign {
			t.Errorf("the counts of a receiver do not add up: %+v", x)
		}
	}
	if a := r.Account; a != nil && a.Sent != a.Received+a.Lost {
		t.Errorf("%+v", a)
	}
}

// example is one of DAQIRI's own files.
func example(name string) string { return filepath.Join("../../config/testdata/daqiri", name) }

// The loopback file runs as it is, and every packet that was sent came or was dropped for a reason
// that is known. What the machine does not have is replaced, and each of that is said.
func TestLoopback(t *testing.T) {
	for _, name := range []string{"testdata/loopback.yaml", example("daqiri_bench_raw_sw_loopback.yaml")} {
		t.Run(filepath.Base(name), func(t *testing.T) {
			const packets = 50_000
			r := run(t, name, sections.Options{Packets: packets})
			a := r.Account
			if a == nil || a.Sent != packets || !a.Exact() || a.Unattributed != 0 || a.Received == 0 {
				t.Fatalf("%+v", a)
			}
			x := r.Received[0]
			if x.Packets != a.Received || x.Unique != a.Received || x.Checked != 1000*a.Received ||
				x.Bytes != 1064*a.Received {
				t.Errorf("%+v", x)
			}
			if len(r.Changes) != 7 { // two regions, master core, two queues, sender, receiver
				t.Errorf("%d changes: %v", len(r.Changes), r.Changes)
			}
		})
	}
}

// A run that is interrupted ends soon, and what was sent by then is accounted for.
func TestInterrupted(t *testing.T) {
	o := sections.Options{Duration: -1, Settle: 30 * time.Second}
	c, changes, p := load(t, "testdata/loopback.yaml", o)
	ctx, cancel := context.WithCancel(until(t))
	before := sim.Default.Ledger().Sent
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		defer cancel()
		look := time.NewTicker(time.Millisecond)
		defer look.Stop()
		for ctx.Err() == nil && sim.Default.Ledger().Sent < before+20_000 {
			<-look.C
		}
	}()
	defer func() { <-stopped }()
	r, err := sections.Run(ctx, c, p, changes, o)
	if err != nil {
		t.Fatal(err)
	}
	check(t, r)
	if a := r.Account; a == nil || a.Sent < 20_000 || !a.Exact() || a.Unattributed != 0 {
		t.Errorf("%+v", a)
	}
}
