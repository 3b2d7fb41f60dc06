package system

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

// daqiriFiles loads DAQIRI's own files.
func daqiriFiles(t *testing.T) map[string]*config.Config {
	t.Helper()
	out := map[string]*config.Config{}
	names, err := filepath.Glob("../config/testdata/daqiri/*.yaml")
	if err != nil || len(names) < 20 {
		t.Fatalf("%d of DAQIRI's files, %v", len(names), err)
	}
	for _, n := range names {
		text, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		cfg, problems := config.Load(filepath.Base(n), text, config.Options{})
		if cfg == nil {
			t.Fatal(problems.Text(text))
		}
		out[filepath.Base(n)] = cfg
	}
	return out
}

// Each of DAQIRI's files has a plan, and what is missing is exactly what one finds in the file:
// placeholders, engines, memory of GPUs, plans of reordering, flows of tx, times of cards, cores.
func TestPlansOfDAQIRI(t *testing.T) {
	cores := map[int]bool{-1: true}
	for i := range 4096 {
		n, err := sys.Processor(i)
		if err != nil {
			t.Fatal(err)
		}
		cores[n] = true
	}
	card, err := openRuntime("auto")
	if err == nil {
		card.Close()
	}
	noGPU := err != nil
	for name, cfg := range daqiriFiles(t) {
		want := map[string]bool{}
		for _, d := range cfg.Needs() {
			if d.Code == config.CodePlaceholder {
				want[d.Path] = true
			}
		}
		core := func(path string, n int) {
			if !cores[n] {
				want[path] = true
			}
		}
		core("master_core", cfg.MasterCore)
		for i, r := range cfg.Regions {
			if r.OnGPU() && noGPU {
				want[fmt.Sprintf("memory_regions[%d].kind", i)] = true
			}
			if !r.Owned {
				want[fmt.Sprintf("memory_regions[%d].owned", i)] = true
			}
		}
		for i, p := range cfg.Interfaces {
			at := fmt.Sprintf("interfaces[%d]", i)
			if e, err := Engines().Get(string(p.Engine)); e == nil || err != nil {
				want[at+".engine"] = true
			}
			if p.Rx != nil {
				for k, q := range p.Rx.Queues {
					if q.PollMode == "indirect" {
						core(fmt.Sprintf("%s.rx.queues[%d].cpu_core", at, k), q.CPUCore)
					}
				}
				if p.Rx.HardwareTimestamps && p.Engine.Built() && p.Engine != "xdp" {
					want[at+".rx.hardware_timestamps"] = true
				}
			}
			if p.Tx != nil && len(p.Tx.Flows) > 0 {
				want[at+".tx.flows"] = true
			}
		}
		plan, err := makePlan(cfg, Options{}) // whatever interfaces and pages this machine has
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := map[string]bool{}
		for _, d := range plan.Missing {
			if got[d.Path] {
				t.Errorf("%s: %s is said twice", name, d.Path)
			}
			if got[d.Path] = true; d.At.IsZero() || d.File != name || d.Message == "" {
				t.Errorf("%s: %+v", name, d)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: missing are\n\t%v\nexpected\n\t%v", name, slices.Sorted(maps.Keys(got)),
				slices.Sorted(maps.Keys(want)))
		}
		if (plan.Err() == nil) != (len(want) == 0) {
			t.Errorf("%s: %v", name, plan.Err())
		}
		for line := range strings.Lines(plan.Text()) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > columns &&
				strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%s: a line of %d columns: %s", name, n, line)
			}
		}
	}
}

// DAQIRI's loop through memory of GPUs opens as it is, with cores of any machine, and with the
// runtime host where there is no card: packets are made by the device, sent from its memory, and
// arrive in it.
func TestDAQIRIOpensOnDevices(t *testing.T) {
	const name = "daqiri_bench_raw_sw_loopback.yaml"
	cfg := daqiriFiles(t)[name]
	if cfg == nil {
		t.Fatalf("there is no %s", name)
	}
	cfg.MasterCore = -1
	p := &cfg.Interfaces[0]
	p.Rx.Queues[0].CPUCore = -1
	for i := range cfg.Regions {
		if r := &cfg.Regions[i]; r.Kind != "device" {
			t.Fatalf("the region %s is of kind %s", r.Name, r.Kind)
		}
	}
	s, err := Open(t.Context(), cfg, Options{Logger: silent, GPURuntime: "host"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	stream, err := s.GPU(0).NewStream(gpu.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	const n = 200
	out, in := burst.New(n), burst.New(n)
	if k, err := txOf(t, s, p.Name, 0).Alloc(out, n, 1000); k != n || err != nil {
		t.Fatal(k, err)
	}
	for i := range n {
		to, err := gpumem.Span(out.Segment(i, 0))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Write(to, frame(i, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := txOf(t, s, p.Name, 0).Send(out); err != nil {
		t.Fatal(err)
	}
	for got := 0; got < n; {
		if err := rxOf(t, s, p.Name, 0).Recv(t.Context(), in); err != nil {
			t.Fatalf("after %d packets: %v", got, err)
		}
		for i := range in.Len() {
			f := fetch(t, in.Segment(i, 0))
			if want := frame(got, 1000); in.Bytes(i, 0) != nil || !bytes.Equal(f[12:], want[12:]) ||
				!bytes.Equal(f[:6], want[:6]) {
				// the queue writes its own address
				t.Fatalf("packet %d is another one", got)
			}
			got++
		}
		in.Release()
	}
}

// With memory and cores of any machine the loop and the sockets of DAQIRI's files open, and carry
// packets.
func TestDAQIRIOpens(t *testing.T) {
	all := daqiriFiles(t)
	// An address that no other process has: pids are of 22 bits at most.
	pid := os.Getpid()
	local := netip.AddrFrom4([4]byte{127, byte(64 + pid>>16), byte(pid >> 8), byte(pid)})
	for _, name := range []string{"daqiri_bench_raw_sw_loopback.yaml", "daqiri_bench_socket_udp_tx_rx.yaml",
		"daqiri_bench_socket_tcp_tx_rx.yaml"} {
		cfg := all[name]
		if cfg == nil {
			t.Errorf("there is no %s", name)
			continue
		}
		cfg.MasterCore = -1
		for i := range cfg.Regions {
			if r := &cfg.Regions[i]; r.Kind != "host" {
				r.Kind, r.NUMA = "host", -1
			}
		}
		for i := range cfg.Interfaces {
			p := &cfg.Interfaces[i]
			for k := range p.Rx.Queues {
				p.Rx.Queues[k].CPUCore = -1
			}
			if s := p.Socket; s != nil {
				s.Local.Host = local
				if s.Remote.Port != 0 {
					s.Remote.Host = local
				}
			}
		}
		t.Run(name, func(t *testing.T) {
			s, err := Open(t.Context(), cfg, Options{Logger: silent})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			// From the last interface to the first: of sockets, from the client to the server.
			last := s.Interfaces()[len(cfg.Interfaces)-1].Name
			if cfg.Interfaces[0].Socket != nil && cfg.Interfaces[0].Socket.Mode != "server" {
				t.Fatal("the first interface is no server")
			}
			b := burst.New(8)
			const n, size = 5, 800
			if got, err := txOf(t, s, last, 0).Alloc(b, n, size); got != n || err != nil {
				t.Fatal(got, err)
			}
			for i := range n {
				for k := range b.Bytes(i, 0) {
					b.Bytes(i, 0)[k] = byte(i)
				}
			}
			mac := strings.Contains(name, "raw")
			if err := txOf(t, s, last, 0).Send(b); err != nil {
				t.Fatal(err)
			}
			bytes := 0
			in := burst.New(64)
			for bytes < n*size {
				if err := rxOf(t, s, cfg.Interfaces[0].Name, 0).Recv(t.Context(), in); err != nil {
					t.Fatalf("%v after %d bytes", err, bytes)
				}
				for i := range in.Len() {
					p := in.Bytes(i, 0)
					for k, v := range p {
						if v != byte((bytes+k)/size) && !(mac && k >= 6 && k < 12) {
							// where the queue writes its own address
							t.Fatalf("byte %d is %d", bytes+k, v)
						}
					}
					bytes += len(p)
				}
				in.Release()
			}
		})
	}
}
