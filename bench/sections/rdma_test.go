package sections_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/sections"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// onRDMA makes jobs of this test run on the stand-in for libibverbs, whose two devices have these
// addresses.
func onRDMA(t *testing.T, client, server string) (lib string) {
	t.Helper()
	lib, err := fake.Build()
	if errors.Is(err, fake.ErrMissing) {
		testenv.Missing(t, "the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(fake.ScriptEnv, "mode wire; gid 0 5 ::ffff:"+client+" v2; gid 1 5 ::ffff:"+server+" v2")
	return lib
}

// The RDMA file runs with both ends in one run, and with each end in a run of its own, whose client
// does not begin after its server.
func TestRDMABench(t *testing.T) {
	for name, apart := range map[string]bool{"together": false, "apart": true} {
		t.Run(name, func(t *testing.T) {
			lib := onRDMA(t, "127.100.1.1", "127.100.3.1")
			o := start(t, host(t), job{File: "testdata/rdma.yaml", Verbs: lib, Apart: apart})()
			if !apart {
				if len(o.Sockets) != 2 {
					t.Fatalf("%d directions: %+v", len(o.Sockets), o.Sockets)
				}
				for i := range o.Sockets {
					account(t, &o.Sockets[i], 300)
					if n := o.Sockets[i].Drops.Total(); n > 0 {
						t.Errorf("%d messages were dropped", n)
					}
				}
				if !strings.Contains(o.Table, "client to server over rdma") {
					t.Error(o.Table)
				}
				return
			}
			if len(o.Sockets) != 2 { // of the client: what it sent, and what came
				t.Fatalf("%d directions: %+v", len(o.Sockets), o.Sockets)
			}
			if s, r := o.Sockets[0], o.Sockets[1]; s.Sent != 300 || s.Here || r.Unique != 300 ||
				r.Checked != 300*40000 || r.Missing+r.Damaged+r.Foreign+r.Duplicates != 0 {
				t.Errorf("%+v\n%+v", s, r)
			}
		})
	}
}

// DAQIRI's own files run, in memory of the processor and with fewer and smaller messages.
func TestRDMABenchOfDAQIRI(t *testing.T) {
	for name, at := range map[string][2]string{
		"daqiri_bench_rdma_tx_rx.yaml":       {"10.100.1.1", "10.100.3.1"},
		"daqiri_bench_rdma_tx_rx_spark.yaml": {"1.1.1.1", "2.2.2.2"},
	} {
		file := example(name)
		t.Run(name, func(t *testing.T) {
			set := []string{"rdma_bench_server.message_size=100000", "rdma_bench_client.message_size=100000",
				"rdma_bench_server.iterations=40", "rdma_bench_client.iterations=40"}
			for _, r := range []string{"DATA_RX_GPU_SERVER", "DATA_TX_GPU_SERVER", "DATA_TX_GPU_CLIENT",
				"DATA_RX_GPU_CLIENT"} {
				set = append(set, "memory_regions["+r+"].kind=host", "memory_regions["+r+"].buf_size=131072")
			}
			lib := onRDMA(t, at[0], at[1])
			h := host(t, "ip addr add "+at[0]+"/32 dev lo", "ip addr add "+at[1]+"/32 dev lo")
			o := start(t, h, job{File: file, Set: set, Verbs: lib})()
			if len(o.Sockets) != 2 {
				t.Fatalf("%d directions: %+v", len(o.Sockets), o.Sockets)
			}
			for i := range o.Sockets {
				account(t, &o.Sockets[i], 40)
			}
		})
	}
}

// A connection that breaks while messages are sent is an error that says how many did not arrive,
// not a result.
func TestRDMABenchBroken(t *testing.T) {
	lib := onRDMA(t, "127.100.1.1", "127.100.3.1")
	t.Setenv(fake.ScriptEnv, os.Getenv(fake.ScriptEnv)+"; status send 50 REM_OP_ERR")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text := `{"File":"testdata/rdma.yaml","Verbs":"` + filepath.ToSlash(lib) + `","Duration":-1,"Settle":30000000000}`
	cmd := netns.New(t, netns.Topology{Hosts: 1}).Hosts[0].Command(self)
	cmd.Env = append(os.Environ(), jobEnv+"="+text)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "messages were dropped (down") {
		t.Errorf("%v\n%s", err, out)
	}
}

// What cannot run is said with its place.
func TestRDMABenchRefused(t *testing.T) {
	file, err := os.ReadFile("testdata/rdma.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ from, to, want string }{
		{"server_address: 127.100.3.1, server_port: 4096, rx", "server_address: 127.100.3.1, server_port: 4097, rx",
			"rdma_bench_server: no interface is the server of 127.100.3.1:4097 over roce://"},
		{"client_address: 127.100.1.1", "client_address: 127.100.1.2", "rdma_bench_client: no interface is the client of 127.100.3.1:4096 over roce://"},
		{"message_size: 40000, client", "message_size: 70000, client", "my_client takes 65536 at most"},
		{"transport_mode: RC", "transport_mode: UD", "the MTU of the device"},
		{"rdma_bench_client:", "socket_bench_client: {server: false, send: true, message_size: 8, server_address: " +
			"127.0.0.1, server_port: 7}\nrdma_bench_client:", "do not run at once"},
	} {
		c, said := config.Load("rdma.yaml", []byte(strings.Replace(string(file), x.from, x.to, 1)), config.Options{})
		if c == nil {
			t.Fatal(said.Err())
		}
		if err := sections.MakePlan(c, sections.Options{}).Err(); err == nil ||
			!strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, expected %q", x.to, err, x.want)
		}
	}
}
