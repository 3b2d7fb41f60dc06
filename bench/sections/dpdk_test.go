//go:build dpdk

package sections_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/config"
)

// overDPDK replaces the cards of a file by virtual devices over v0 and v1, which have frames of
// 1,514 bytes, and fills in what the file leaves open.
func overDPDK(t *testing.T, name string, text []byte) (set []string, c *config.Config) {
	t.Helper()
	c, said := config.Load(name, text, config.Options{})
	if c == nil {
		t.Fatal(said.Err())
	}
	set = []string{"memory_regions[*].num_bufs=1024", "interfaces[*].rx.reorder=[]",
		"interfaces[*].rx.queues[*].batch_size=128", "interfaces[*].tx.queues[*].batch_size=128"}
	for _, d := range c.Needs() {
		if d.Code != config.CodePlaceholder {
			continue
		}
		end, n := "src", 1
		if strings.Contains(d.Path, "dst") {
			end, n = "dst", 2
		}
		switch value := d.Path[strings.LastIndexByte(d.Path, '.')+1:]; {
		case strings.Contains(value, "eth_"+end):
			set = append(set, fmt.Sprintf("%s=02:00:00:00:00:%02d", d.Path, n))
		case strings.Contains(value, "ip"):
			set = append(set, fmt.Sprintf("%s=10.0.0.%d", d.Path, n))
		}
	}
	for i, p := range c.Interfaces {
		queues, link := 1, "v0"
		if p.Tx != nil {
			queues = len(p.Tx.Queues)
		}
		if p.Rx != nil {
			queues, link = len(p.Rx.Queues), "v1"
		}
		set = append(set, fmt.Sprintf("interfaces[%d].address=dpdk://net_af_packet%d,iface=%s,qpairs=%d,framesz=2048,framecnt=2048,blocksz=4096?huge=off&memory=lent", i, i, link, queues))
	}
	for i, x := range c.BenchTx {
		if x.PayloadSize > 1000 {
			set = append(set, fmt.Sprintf("bench_tx[%d].payload_size=1000", i))
		}
	}
	return set, c
}

// Each of DAQIRI's files for raw streams runs over DPDK, but for the cards, the placeholders and
// the lengths of packets and bursts. Files that only receive get their packets from another
// process.
func TestDAQIRIOverDPDK(t *testing.T) {
	files, err := filepath.Glob(example("daqiri_*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const packets = 500
	ran := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		set, c := overDPDK(t, name, text)
		if strings.Contains(name, "loopback") || len(c.BenchRx) == 0 {
			continue // one port is both ends, without a card; and streams over sockets
		}
		ran++
		t.Run(filepath.Base(name), func(t *testing.T) {
			h := cable(t, 1500, 4)
			if strings.Contains(name, "dynamic") {
				// its program adds rules while it runs: without them nothing would come
				set = append(set, "interfaces[rx_port].rx.flow_isolation=false")
			}
			if len(c.BenchTx) == 0 {
				stop, sending := startStoppable(t, h, job{File: "testdata/pair.yaml", Stop: true,
					Set: filled("afpacket", "bench_rx=[]", "interfaces[tx_port].tx.queues[*].rate=10Mbps",
						"bench_tx[*].udp_src_port=4095-4097", "bench_tx[*].udp_dst_port=4095-4097")})
				o := start(t, h, job{File: name, Set: set, Packets: packets})()
				stop()
				sent, got, all := sending(), uint64(0), uint64(0)
				for i, r := range o.Received {
					// Of what comes while the driver opens the sockets of several queues, each gets
					// a copy, which counts as received.
					got, all = got+r.Unique, all+r.Packets
					if r.Unique == 0 || r.Unique+r.Duplicates != r.Packets {
						t.Errorf("receiver %d: %+v", i, r)
					}
				}
				if all < packets || got > sent.Sent[0].Packets+sent.Sent[1].Packets {
					t.Errorf("%d packets of %+v", got, sent.Sent)
				}
				return
			}
			o := start(t, h, job{File: name, Set: set, Packets: packets})()
			if a := o.Account; a == nil || a.Sent != uint64(len(c.BenchTx)*packets) || a.Received != a.Sent ||
				!a.Exact() {
				t.Errorf("%+v", a)
			}
		})
	}
	if ran < 15 {
		t.Errorf("%d files ran", ran)
	}
}
