package system

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
)

// Each of DAQIRI's files with a reorder plan runs, with a network in memory in place of cards, the
// runtime host in place of a GPU, ordinary memory in place of huge pages, any core and no timeout:
// packets in any order, one of them lost, become batches in the file's region. What stands for
// what:
//
//	raw_tx_rx_reorder_seq_1024      the GPU, device to device; one packet of 3072 is lost, and one batch is partial
//	raw_tx_rx_reorder_seq_1024_cpu  the processor, huge to huge; the same
//	raw_sw_loopback_reorder_seq_1024 the processor, huge to huge; the same, of packets without a flow id
//	raw_rx_reorder_seq_ppb          the GPU, device to device, 128 packets of a batch; the file has the number in the length of the IPv4 header, which only
//	                                packets of no flow can have there: its plan takes those
func TestDAQIRIReorders(t *testing.T) {
	want := map[string]int{ // packets of a batch
		"daqiri_bench_raw_tx_rx_reorder_seq_1024.yaml": 1024, "daqiri_bench_raw_tx_rx_reorder_seq_1024_cpu.yaml": 1024,
		"daqiri_bench_raw_sw_loopback_reorder_seq_1024.yaml": 1024, "daqiri_bench_raw_rx_reorder_seq_ppb.yaml": 128,
	}
	for name, cfg := range daqiriFiles(t) {
		for i := range cfg.Interfaces {
			if rx := cfg.Interfaces[i].Rx; rx != nil && len(rx.Reorder) > 0 && want[name] == 0 {
				t.Errorf("%s has a reorder plan, and no test", name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile("../config/testdata/daqiri/" + name)
			if err != nil {
				t.Fatal(err)
			}
			text = []byte(strings.NewReplacer("<0000:00:00.0>", "eth0", "<00:00:00:00:00:00>", "02:77:00:00:00:01",
				"<1.2.3.4>", "1.2.3.4", "<5.6.7.8>", "5.6.7.8").Replace(string(text)))
			cfg, said := config.Load(name, text, config.Options{})
			if cfg == nil {
				t.Fatal(said.Text(text))
			}
			per := want[name]
			i := slices.IndexFunc(cfg.Interfaces, func(p config.Interface) bool { return p.Rx != nil })
			p := cfg.Interfaces[i]
			r := &p.Rx.Reorder[0]
			p.Engine, p.Address = "sim", "sim://"+name+"?loop"
			// a test's machine may be slow
			p.Rx.Queues[0].CPUCore, p.Rx.Queues[0].Timeout, p.Rx.Queues[0].Depth = -1, 0, 4096
			cfg.BenchTx, cfg.BenchRx, cfg.MasterCore, cfg.Interfaces = nil, nil, -1, []config.Interface{p}
			for k := range cfg.Regions {
				x := &cfg.Regions[k]
				if x.Kind == "huge" {
					x.Kind, x.NUMA = "host", -1
				}
				if x.Name == r.Region {
					x.NumBufs = 16
				}
				x.NumBufs = min(x.NumBufs, 4096)
			}
			source := cfg.Regions[0]
			source.Name, source.Kind, source.NUMA = "source", "host", -1
			cfg.Regions = append(cfg.Regions, source)
			cfg.Interfaces[0].Tx = &config.Tx{Queues: []config.TxQueue{{Name: "tx", Regions: []string{"source"},
				CPUCore: -1, BatchSize: 64}}}
			field := r.Method.PacketsPerBatch.Sequence
			if field.Offset == 128 {
				r.FlowIDs, cfg.Interfaces[0].Rx.FlowIsolation = []int{0}, false
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
			const batches, size = 3, 200
			random := rand.New(rand.NewPCG(1, 1))
			var frames [][]byte
			var data []byte
			frame := func(n int) []byte {
				f := packet.UDPFrame{SrcMAC: packet.MAC{2, 0x77, 0, 0, 0, 0}, DstMAC: packet.MAC{2, 0x77, 0, 0, 0, 1},
					Src: netip.MustParseAddrPort("1.2.3.4:5000"), Dst: netip.MustParseAddrPort("5.6.7.8:5000")}
				b := make([]byte, r.PayloadOffset+size)
				for k := range b {
					b[k] = byte(random.Uint32())
				}
				if _, err := f.Fill(b, len(b)-f.HeaderLen()); err != nil {
					t.Fatal(err)
				}
				at := field.Offset / 8
				if field.Width == 32 {
					binary.BigEndian.PutUint32(b[at:], uint32(n))
				} else {
					binary.BigEndian.PutUint16(b[at:], uint16(n%1024)<<6)
				}
				return b
			}
			for n := range batches * per {
				b := frame(n)
				if data = append(data, b[r.PayloadOffset:]...); n != per+5 {
					frames = append(frames, b)
				}
			}
			for k := 0; k < len(frames); k += per / 2 { // any order, within a half of a batch
				part := frames[k:min(k+per/2, len(frames))]
				random.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
			}
			for n := batches; n < batches+3; n++ { // these push the window on
				frames = append(frames, frame(n*per))
			}
			clear(data[(per+5)*size:][:size])
			sent := make(chan struct{})
			go func() { defer close(sent); sendFrames(t, txOf(t, s, p.Name, 0), frames...) }()
			b := burst.New(2)
			for got := int64(0); got < batches; {
				if err := rxOf(t, s, p.Name, 0).Recv(t.Context(), b); err != nil {
					t.Fatal(err)
				}
				for i := range b.Len() {
					x := reorder.Of(b, i)
					if x == nil || x.ID != got || x.Place != size || x.PerBatch != per || x.Whole() != (got != 1) ||
						got == 1 && x.Has(5) {
						t.Fatalf("batch %d is %+v", got, x)
					}
					bytesOf := b.Bytes(i, 0)
					if r.Type == "gpu" {
						bytesOf = fetch(t, b.Segment(i, 0))
					}
					if !bytes.Equal(bytesOf, data[int(got)*per*size:][:per*size]) {
						t.Fatalf("the bytes of batch %d are others", got)
					}
					got++
				}
				b.Release()
			}
			<-sent
			q := s.Snapshot().Interfaces[0].Rx[0]
			if !slices.Contains(q.Stages[0].Counts, engine.Count{Name: r.Name + ": partial", N: 1}) ||
				q.Stages[0].Stats.Drops.Total() != 0 {
				t.Errorf("%+v", q.Stages)
			}
		})
	}
}
