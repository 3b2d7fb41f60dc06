package sections_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// cable is a host with two network interfaces that are joined: v0 and v1. Nothing else sends on
// them.
func cable(t *testing.T, mtu, queues int) *netns.Host {
	t.Helper()
	return host(t, "sysctl -q -w net.ipv6.conf.all.disable_ipv6=1", "sysctl -q -w net.ipv6.conf.default.disable_ipv6=1",
		fmt.Sprintf("ip link add v0 mtu %d numtxqueues %d numrxqueues %d type veth peer name v1 mtu %d numtxqueues "+
			"%d numrxqueues %d", mtu, queues, queues, mtu, queues, queues),
		"ip link set v0 address 02:00:00:00:00:01", "ip link set v1 address 02:00:00:00:00:02", "ip link set v0 up",
		"ip link set v1 up")
}

// filled fills in what DAQIRI's files leave open, for an engine.
func filled(engine string, more ...string) []string {
	return append([]string{"engine=" + engine, "interfaces[tx_port].address=v0", "interfaces[rx_port].address=v1",
		"bench_tx[*].eth_dst_addr=02:00:00:00:00:02",
		"bench_tx[*].ip_src_addr=10.0.0.1", "bench_tx[*].ip_dst_addr=10.0.0.2"}, more...)
}

// Between two interfaces of one machine every packet that was sent is received, or dropped for a
// reason that is known, with every engine that can run what the file says.
func TestBetweenInterfaces(t *testing.T) {
	const packets = 3000
	for _, x := range []struct {
		file    string
		theirs  string
		engines []string
		mtu     int
		senders int
		split   bool
		set     []string
	}{
		{file: "testdata/pair.yaml", engines: []string{"afpacket", "xdp"}, mtu: 1500, senders: 2},
		{file: "testdata/split.yaml", engines: []string{"afpacket", "xdp"}, mtu: 1500, senders: 1},
		{file: "testdata/tagged.yaml", engines: []string{"afpacket"}, mtu: 1500, senders: 1},
		{theirs: "daqiri_bench_raw_tx_rx.yaml", engines: []string{"afpacket", "xdp"}, mtu: 9000, senders: 1,
			set: []string{"bench_tx[*].payload_size=1000", "memory_regions[*].num_bufs=10240"}},
		{theirs: "daqiri_bench_raw_tx_rx_hds.yaml", engines: []string{"afpacket"}, mtu: 1500, senders: 1},
		{theirs: "daqiri_bench_raw_tx_rx_vlan.yaml", engines: []string{"afpacket"}, mtu: 9000, senders: 1,
			set: []string{"memory_regions[Data_TX_GPU].buf_size=8080", "memory_regions[*].num_bufs=10240"}},
		{theirs: "daqiri_bench_raw_tx_rx_4q.yaml", engines: []string{"afpacket"}, mtu: 9000, senders: 4,
			set: []string{"memory_regions[*].num_bufs=2048", "interfaces[*].tx.queues[*].batch_size=256",
				"interfaces[*].rx.queues[*].batch_size=256"}},
	} {
		name := x.file
		if x.theirs != "" {
			name = example(x.theirs)
		}
		for _, engine := range x.engines {
			t.Run(filepath.Base(name)+" "+engine, func(t *testing.T) {
				h := cable(t, x.mtu, 2)
				o := start(t, h, job{File: name, Set: filled(engine, x.set...), Packets: packets})()
				a := o.Account
				if a == nil || a.Sent != uint64(x.senders*packets) || a.Unattributed != 0 || !a.Exact() ||
					a.Received == 0 {
					t.Fatalf("%+v", a)
				}
				sum := uint64(0)
				for _, r := range o.Received {
					sum += r.Unique
					// Order is not asked for: the kernel has a queue for each processor, and
					// senders move between them.
					if r.Unique != r.Packets || r.Checked == 0 && r.Packets > 0 {
						t.Errorf("%+v", r)
					}
				}
				if sum != a.Received {
					t.Errorf("%d received, and %d entered", sum, a.Received)
				}
			})
		}
	}
}

// Senders in one process and receivers in another one: the receivers know packets of penstock by
// their numbers, and take no others.
func TestSendersElsewhere(t *testing.T) {
	h := cable(t, 1500, 2)
	// Packets are sent until enough have come, so that it does not matter which process begins.
	stop, sending := startStoppable(t, h, job{File: "testdata/pair.yaml",
		Set: filled("afpacket", "bench_rx=[]", "interfaces[tx_port].tx.queues[*].rate=10Mbps"), Stop: true})
	in := start(t, h, job{File: "testdata/pair.yaml", Set: filled("afpacket", "bench_tx=[]"), Packets: 1000})()
	stop()
	out := sending()
	if in.Account != nil || out.Account != nil || len(out.Sent) != 2 || len(in.Received) != 2 ||
		len(out.Received) != 0 || len(in.Sent) != 0 {
		t.Fatalf("%+v\n%+v", out, in)
	}
	n := in.Received[0].Unique + in.Received[1].Unique
	if n < 1000 || n != in.Received[0].Packets+in.Received[1].Packets || n > out.Sent[0].Packets+out.Sent[1].Packets ||
		!strings.Contains(in.Table, "packets of 2 senders of other") {
		t.Errorf("%+v\n%+v", out.Sent, in.Received)
	}
	for _, s := range out.Sent {
		if s.Left == 0 || s.Left > s.Packets {
			t.Errorf("%+v", s)
		}
	}
}
