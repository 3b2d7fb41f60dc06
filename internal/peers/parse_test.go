package peers

import (
	"errors"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func golden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }

// The recorded outputs are of UCX 1.13.1, libfabric 1.17.0, iperf 3.12 (the name of the machine and
// the cookie were replaced), DPDK 22.11.11, tcpreplay 4.4.3, tshark 4.0.17, clinfo 3.0.23.
func TestRecordedOutput(t *testing.T) {
	u, err := parseUCX(golden(t, "ucx_tag_lat.txt"))
	// 64 bytes in 0.160 us at the 99th percentile; the rates are overall, in units of 2^20 bytes.
	if err != nil || u.Percentile != 0.160 || !near(u.GBps, 1.43*1.048576e-3) || u.MessagesPerS != 23349 {
		t.Errorf("ucx latency: %+v, %v", u, err)
	}
	u, err = parseUCX(golden(t, "ucx_put_bw.txt"))
	if err != nil || !near(u.GBps, 86684.96*1.048576e-3) {
		t.Errorf("ucx rate: %+v, %v", u, err)
	}
	f, err := parseLibfabric(golden(t, "fi_pingpong.txt"))
	if err != nil || f.GBps != 0.66426 || f.Microseconds != 1578.56 {
		t.Errorf("fi: %+v, %v", f, err)
	}
	i, err := parseIperf3(golden(t, "iperf3.json"))
	if err != nil || !near(i.GBps, 14069175706.667622/8e9) || i.Bytes != 1763704832 || i.Congestion != "bbr" {
		t.Errorf("iperf3: %+v, %v", i, err)
	}
	i, err = parseIperf3UDP(golden(t, "iperf3_udp.json"))
	if err != nil || !near(i.GBps, 306707238.51867914/8e9) || i.Bytes != 14141504 || i.Packets != 9607 ||
		i.Lost != 15818 || i.Time != 368860*time.Microsecond {
		t.Errorf("iperf3, UDP: %+v, %v", i, err)
	}
	replay, err := parseReplay(golden(t, "tcpreplay.txt"))
	if want := (Replayed{Packets: 3, Bytes: 153, Time: 32 * time.Microsecond, Successful: 3}); err != nil ||
		replay != want {
		t.Errorf("tcpreplay: %+v, %v", replay, err)
	}
}

func TestRecordedLists(t *testing.T) {
	cl, err := parseOpenCL(golden(t, "clinfo.json"))
	if err != nil || len(cl) != 1 || cl[0].Platform != "Portable Computing Language" || cl[0].ComputeUnits != 2 ||
		cl[0].Driver != "3.1+debian" ||
		cl[0].Memory != 6401101824 || !strings.HasPrefix(cl[0].Name, "pthread-") {
		t.Errorf("clinfo: %+v, %v", cl, err)
	}
	packets, err := parsePacketFields(golden(t, "tshark.txt"), 1)
	if err != nil || len(packets) != 3 {
		t.Fatalf("tshark: %+v, %v", packets, err)
	}
	p := packets[1]
	if p.Number != 2 || !p.Time.Equal(time.Unix(1700000001, 1_000_000)) || p.Length != 51 || p.Captured != 51 ||
		p.SourcePort != 4001 ||
		p.ToPort != 5000 || p.Source != netip.MustParseAddr("10.0.0.1") ||
		p.Target != netip.MustParseAddr("10.0.0.2") ||
		!slices.Equal(p.Protocols, []string{"eth", "ethertype", "ip", "udp", "data"}) ||
		!slices.Equal(p.Fields, []string{"70656e73746f636b31"}) {
		t.Errorf("tshark: %+v", p)
	}
}

func TestRecordedPackets(t *testing.T) {
	ports, err := parsePackets(golden(t, "testpmd.txt"))
	if err != nil || len(ports) != 2 {
		t.Fatalf("%+v, %v", ports, err)
	}
	// The last of two looks, and the counts of the forwarding.
	if p := ports[0]; p.Port != 0 || p.RX != 32714368 || p.TX != 32714400 || p.RXPerSecond != 32509216 ||
		p.TXPerSecond != 32509216 {
		t.Errorf("port 0: %+v", p)
	}
	if p := ports[1]; p.Port != 1 || p.RX != 32714368 || p.RXPerSecond != 32815457 || p.TXPerSecond != 32509198 ||
		p.RXDropped != 0 {
		t.Errorf("port 1: %+v", p)
	}
}

// parsers are all of them, with the recordings that they can read. check says what must hold of a
// result, whatever the input.
var parsers = []struct {
	name  string
	files []string
	parse func([]byte) (ok bool, err error)
}{
	{"ucx_perftest", []string{"ucx_tag_lat.txt", "ucx_put_bw.txt"}, func(b []byte) (bool, error) {
		r, err := parseUCX(b)
		return r.GBps > 0 && r.Percentile > 0 && r.MessagesPerS > 0, err
	}},
	{"fi_pingpong", []string{"fi_pingpong.txt"}, func(b []byte) (bool, error) {
		r, err := parseLibfabric(b)
		return r.GBps > 0 && r.Microseconds > 0, err
	}},
	{"iperf3", []string{"iperf3.json"}, func(b []byte) (bool, error) {
		r, err := parseIperf3(b)
		return r.GBps > 0 && r.Bytes > 0, err
	}},
	{"iperf3 UDP", []string{"iperf3_udp.json"}, func(b []byte) (bool, error) {
		r, err := parseIperf3UDP(b)
		return r.GBps > 0 && r.Packets > 0, err
	}},
	{"testpmd", []string{"testpmd.txt"}, func(b []byte) (bool, error) {
		r, err := parsePackets(b)
		return len(r) > 0, err
	}},
	{"tcpreplay", []string{"tcpreplay.txt"}, func(b []byte) (bool, error) {
		r, err := parseReplay(b)
		return r.Time >= 0, err
	}},
	{"clinfo", []string{"clinfo.json"}, func(b []byte) (bool, error) {
		_, err := parseOpenCL(b)
		return true, err
	}},
	{"tshark", []string{"tshark.txt"}, func(b []byte) (bool, error) {
		r, err := parsePacketFields(b, 1)
		for _, p := range r {
			if len(p.Fields) != 1 {
				return false, err
			}
		}
		return true, err
	}},
}

// What a tool prints when it fails must not become a figure.
func TestParsersRefuse(t *testing.T) {
	refused := map[string][]string{
		"ucx_perftest": {"a,b\n1,2\n",
			"iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n1,nan,1,1,1,1,1,1\n",
			"iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n1,1,1,1,1,0,1,1\n"},
		"fi_pingpong": {"bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n",
			"bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n1m 1 =1 2m 0.00s 0.0 " +
				"0.0 0.0\n"},
		"iperf3": {`{"error":"unable to connect to server"}`, `{"end":{}}`},
		"iperf3 UDP": {`{"error":"unable to connect to server"}`, `{"end":{}}`,
			`{"end":{"sum_received":{"bits_per_second":1,"bytes":1,"seconds":1,"packets":1,"lost_packets":2}}}`,
			`{"end":{"sum_received":{"bits_per_second":1,"bytes":1,"seconds":1}}}`,
			`{"end":{"sum_received":{"bits_per_second":1,"bytes":1,"seconds":1,"packets":2,"lost_packets":2}}}`,
			`{"end":{"sum_received":{"bits_per_second":1,"bytes":1,"seconds":1e300,"packets":1}}}`,
			`{"end":{"sum_received":{"bits_per_second":1e-320,"bytes":1,"seconds":1,"packets":1}}}`},
		"testpmd": {"EAL: Error - exiting with code: 1\n",
			"######################## NIC statistics for port 0  ########################\n  RX-packets: 1\n"},
		"tcpreplay": {"Fatal Error in tcpreplay.c\n", "Actual: 3 packets (153 bytes) sent in 0.000032 seconds\n"},
		"clinfo": {`{"platforms":[],"devices":[{"online":[{"CL_DEVICE_NAME":"x"}]}]}`,
			`{"platforms":[{}],"devices":[{"online":[{}]}]}`},
		"tshark": {"1\t2\n", "x\t1700000000.0\t51\t51\teth\t\t\t\t\t\t\t\t\t\n",
			"1\t1700000000.0\t51\t51\teth\t10.0.0\t\t\t\t\t\t\t\t\n", "1\t1.0\t51\t51\teth\t\t\t\t\t\t\t70000\t1\t\n"},
	}
	for _, p := range parsers {
		bad := append(refused[p.name], "connect() failed: Connection refused\n")
		if p.name != "tshark" { // no packets is an answer
			bad = append(bad, "")
		}
		for _, b := range bad {
			if _, err := p.parse([]byte(b)); err == nil {
				t.Errorf("%s: %q passed", p.name, b)
			} else if !errors.Is(err, ErrOutput) && !strings.HasPrefix(p.name, "iperf3") {
				t.Errorf("%s: %q: %v; want ErrOutput", p.name, b, err)
			}
		}
		for _, file := range p.files {
			whole := golden(t, file)
			if ok, err := p.parse(whole); err != nil || !ok {
				t.Errorf("%s: %s is refused: %v, %v", p.name, file, ok, err)
			}
			for _, n := range []int{len(whole)/3 - 1, len(whole)*2/3 + 1} {
				if _, err := p.parse(whole[:n]); err == nil {
					t.Errorf("%s: %s, truncated to %d bytes, passed", p.name, file, n)
				}
			}
		}
	}
}

func FuzzParsers(f *testing.F) {
	for i, p := range parsers {
		for _, file := range p.files {
			f.Add(uint8(i), golden(f, file))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		p := parsers[int(which)%len(parsers)]
		if ok, err := p.parse(b); err == nil && !ok {
			t.Errorf("%s: a result that cannot be", p.name)
		}
	})
}
