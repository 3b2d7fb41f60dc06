package system

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/rdma"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/packet/burst"
)

// onFake is the engine rdma on the stand-in for libibverbs, with a script.
func onFake(t *testing.T, script string) *engine.Table {
	t.Helper()
	path, err := fake.Build()
	if errors.Is(err, fake.ErrMissing) {
		testenv.Missing(t, "the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	lib, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := lib.Symbol("penstock_fake_script")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"reset", script} {
		if wrong := dl.GoString(callString(t, f, s)); wrong != "" {
			t.Fatalf("script %q: %s", s, wrong)
		}
	}
	table, err := engine.NewTable(rdma.New(path))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// DAQIRI's files of RDMA connections open where there is a device with their addresses, and carry
// messages both ways. The client connects when the program says to whom, as DAQIRI's does.
func TestDAQIRIOverRDMA(t *testing.T) {
	pid := os.Getpid()
	local := netip.AddrFrom4([4]byte{127, byte(64 + pid>>16), byte(pid >> 8), byte(pid)})
	table := onFake(t, fmt.Sprintf("mode wire; gid 1 2 ::ffff:%v v2", local))
	all := daqiriFiles(t)
	for _, name := range []string{"daqiri_bench_rdma_tx_rx.yaml", "daqiri_bench_rdma_tx_rx_spark.yaml",
		"daqiri_bench_rdma_tx_rx_spark_netns.yaml"} {
		cfg := all[name]
		if cfg == nil {
			t.Errorf("there is no %s", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			cfg.MasterCore = -1
			for i := range cfg.Regions {
				r := &cfg.Regions[i]
				r.Kind, r.NUMA, r.BufSize = "host", -1, 1<<20
			}
			names := map[string]string{}
			var port int
			for i := range cfg.Interfaces {
				p := &cfg.Interfaces[i]
				p.Rx.Queues[0].CPUCore, p.Tx.Queues[0].CPUCore = -1, -1
				p.Socket.Local.Host = local
				if names[p.Socket.Mode] = p.Name; p.Socket.Mode == "server" {
					port = p.Socket.Local.Port
				}
			}
			s, err := Open(t.Context(), cfg, Options{Logger: silent, Engines: table})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			client := s.Port(names["client"]).(*rdma.Port)
			id, err := client.Connect(t.Context(), netip.AddrPortFrom(local, uint16(port)))
			if err != nil {
				t.Fatal(err)
			}
			in := burst.NewSegmented(4, 16)
			send := func(from string, conn uint32, text string) {
				t.Helper()
				b := burst.New(1)
				if n, err := txOf(t, s, names[from], 0).Alloc(b, 1, len(text)); n != 1 {
					t.Fatal(err)
				}
				copy(b.Bytes(0, 0), text)
				b.SetConn(0, conn)
				if err := txOf(t, s, names[from], 0).Send(b); err != nil {
					t.Fatal(err)
				}
			}
			received := func(at, want string) (conn uint32) {
				t.Helper()
				if err := rxOf(t, s, names[at], 0).Recv(t.Context(), in); err != nil {
					t.Fatal(err)
				}
				if got := string(in.Bytes(0, 0)); got != want {
					t.Fatalf("%q, expected %q", got, want)
				}
				defer in.Release()
				return in.Conn(0)
			}
			long := strings.Repeat("a message of many bytes ", 20000)
			for range 3 {
				send("client", id, long)
				send("server", received("server", long), "answer")
				received("client", "answer")
			}
			shown := map[string]float64{}
			for _, f := range s.Metrics() {
				for _, x := range f.Samples {
					shown[f.Name+" "+strings.Join(x.Values, " ")] = x.Value
				}
			}
			for _, want := range []string{"connections_total " + names["client"] + " connected",
				"connections_total " + names["server"] + " accepted",
				"queue_pairs_total " + names["client"], "queue_pairs_total " + names["server"]} {
				if shown["penstock_rdma_"+want] < 1 {
					t.Errorf("the metric %s is %v", want, shown["penstock_rdma_"+want])
				}
			}
		})
	}
}

// Without a device the plan says what is missing and how to get it, and nothing is opened.
func TestNoRDMA(t *testing.T) {
	text := `penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 64, buf_size: 2048}]
  interfaces:
    - name: one
      socket: {mode: server, local: "roce://127.0.0.1:4096"}
      rx: {queues: [{batch_size: 8}]}
`
	cfg, problems := config.Load("rdma.yaml", []byte(text), config.Options{})
	if cfg == nil {
		t.Fatal(problems.Text(nil))
	}
	table, err := engine.NewTable(rdma.New("/nowhere/libibverbs.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := MakePlan(cfg, Options{Engines: table})
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Err(); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "libibverbs") ||
		!strings.Contains(err.Error(), "apt-get install") ||
		!strings.Contains(err.Error(), "rdma.yaml:4:") {
		t.Errorf("%v", err)
	}
	// A device that does not have the address.
	table = onFake(t, "")
	cfg, _ = config.Load("rdma.yaml", []byte(text), config.Options{})
	s, err := Open(t.Context(), cfg, Options{Logger: silent, Engines: table})
	if err == nil {
		s.Close()
	}
	if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(),
		"no RDMA device has the address 127.0.0.1") {
		t.Errorf("%v", err)
	}
}
