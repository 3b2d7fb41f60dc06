package sections_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/sections"
)

// files are ours, and DAQIRI's.
func files(own string, theirs ...string) []string {
	out := []string{own}
	for _, name := range theirs {
		out = append(out, example(name))
	}
	return out
}

// account checks one direction whose ends were in one process: each message came, or a socket says
// that it dropped it.
func account(t *testing.T, m *sections.Messages, iterations int) {
	t.Helper()
	drops := m.Drops.Total()
	if m.Sent != uint64(iterations) || m.Unique+drops != m.Sent || m.Packets != m.Unique ||
		m.Checked != m.Unique*uint64(m.Size) || m.Rest != 0 {
		t.Errorf("%d drops, %+v", drops, *m)
	}
	if m.Protocol == "tcp" && drops != 0 {
		t.Errorf("%d messages over TCP were dropped", drops)
	}
	if m.Latency == nil || uint64(m.Latency.N) != m.Unique {
		t.Errorf("latency %+v of %d messages", m.Latency, m.Unique)
	}
}

// The socket files run as they are, both ends in one process.
func TestSocketsOneProcess(t *testing.T) {
	for _, x := range []struct {
		files      []string
		iterations int
		directions int
	}{
		{files("testdata/tcp.yaml"), 200, 2},
		{files("testdata/udp.yaml"), 3000, 1},
		{files("", "daqiri_bench_socket_tcp_tx_rx.yaml", "daqiri_bench_socket_udp_tx_rx.yaml")[1:], 1000, 2},
	} {
		for _, name := range x.files {
			t.Run(filepath.Base(name), func(t *testing.T) {
				h := host(t, "ip addr add 10.250.0.1/32 dev lo", "ip addr add 10.250.0.2/32 dev lo")
				o := start(t, h, job{File: name})()
				if len(o.Sockets) != x.directions {
					t.Fatalf("%d directions: %+v", len(o.Sockets), o.Sockets)
				}
				for i := range o.Sockets {
					account(t, &o.Sockets[i], x.iterations)
				}
			})
		}
	}
}

// The two ends as two processes, whichever begins: every message comes over TCP, and the receiver
// knows the numbers of those that do not over UDP. Both processes end by themselves.
func TestSocketsTwoProcesses(t *testing.T) {
	for _, name := range files("testdata/tcp.yaml", "daqiri_bench_socket_tcp_tx_rx.yaml") {
		for _, first := range []string{"server", "client"} {
			t.Run(filepath.Base(name)+" "+first+" first", func(t *testing.T) {
				h := host(t)
				second := map[string]string{"server": "client", "client": "server"}[first]
				a := start(t, h, job{File: name, Role: first})
				b := start(t, h, job{File: name, Role: second})
				for _, o := range []outcome{a(), b()} {
					if len(o.Sockets) != 2 {
						t.Fatalf("%+v", o.Sockets)
					}
					out, in := o.Sockets[0], o.Sockets[1]
					if out.Here || !in.Here || out.Sent == 0 || in.Packets != out.Sent || in.Unique != in.Packets ||
						in.Missing != 0 || in.Checked != in.Unique*uint64(in.Size) {
						t.Errorf("%+v\n%+v", out, in)
					}
				}
			})
		}
	}
}

// Over UDP the server ends when it has its messages, and knows by their numbers what it did not
// get.
func TestSocketsTwoProcessesUDP(t *testing.T) {
	h := host(t, "ip addr add 10.250.0.1/32 dev lo", "ip addr add 10.250.0.2/32 dev lo")
	// The client sends until the server has its messages, so that it does not matter when either
	// begins.
	stop, client := startStoppable(t, h, job{File: "testdata/udp.yaml", Role: "client",
		Set:  []string{"socket_bench_client.iterations=0", "interfaces[udp_client].tx.queues[0].rate=20Mbps"},
		Stop: true})
	s := start(t, h, job{File: "testdata/udp.yaml", Role: "server", Settle: time.Second})()
	stop()
	c := client()
	if len(c.Sockets) != 1 || len(s.Sockets) != 1 {
		t.Fatalf("%+v\n%+v", c.Sockets, s.Sockets)
	}
	out, in := c.Sockets[0], s.Sockets[0]
	if out.Here || out.Sent == 0 || !in.Here || in.Packets == 0 || in.Unique != in.Packets ||
		in.Unique+in.Missing > out.Sent || in.Checked != in.Unique*512 {
		t.Errorf("%+v\n%+v", out, in)
	}
}
