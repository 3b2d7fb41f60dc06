package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/packet/pcap"
	"github.com/penstock-io/penstock/stage/replay"
)

// capture writes a file of packets that are some microseconds apart, the last one cut if it says
// so.
func capture(t *testing.T, link pcap.Link, packets, size int, cut bool) string {
	t.Helper()
	b := pcap.PcapNG.AppendHeader(nil, &pcap.Interface{Link: link})
	for i := range packets {
		data := make([]byte, size)
		copy(data, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, byte(i >> 8), byte(i)})
		p := pcap.Packet{Time: 1_700_000_000_000_000_000 + int64(i)*50_000, Captured: size, Length: size}
		if cut && i == packets-1 {
			p.Length++
		}
		b = pcap.PcapNG.EndPacket(append(pcap.PcapNG.AppendPacket(b, &p), data...), &p)
	}
	name := filepath.Join(t.TempDir(), "a.pcapng")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestReplay(t *testing.T) {
	good, cut, user := capture(t, pcap.Ethernet, 1000, 100, false), capture(t, pcap.Ethernet, 10, 100, true),
		capture(t, pcap.User0, 10, 100, false)
	bad := write(t, filepath.Join(t.TempDir(), "bad"), []byte("no capture"))
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{good, "sim://a?loop", "--check", "sim://a?loop"}, 0,
			"came        1000 packets: 0 missing, 0 changed, 0 repeated, 0 reordered, 0 extra"},
		{[]string{good, good, "sim://a", "--check", "sim://b", "--pps", "1e5"}, 0, "came        2000 packets: 0 missing"},
		{[]string{good, user, "sim://a", "--rate", "1Gbit", "--to", "25ms"}, 0, "skipped     10 of another link type, 500 outside of the time"},
		{[]string{good, "sim://a", "--loop", "3", "--speed", "1000x"}, 0, "sent        3000 packets, 300000 bytes"},
		{[]string{cut, good, "sim://a"}, 1, "packet 10: 100 bytes of 101"},
		{[]string{cut, "sim://a", "--pad"}, 0, "sent        10 packets, 1001 bytes"},
		{[]string{user, "udp://127.0.0.1:0?remote=127.0.0.1:9"}, 0, "sent        10 packets, 1000 bytes"},
		{[]string{user, "sim://a"}, 1, "no packet was sent: 10 of another link type"},
		{[]string{good, "sim://a", "--from", "2023-11-14T22:13:20.049950Z", "--to", "1h"}, 0, "sent        1 packets"},
		{[]string{good, "sim://a", "--to", time.Unix(1_700_000_000, 0).Format("15:04:05") + ".025"}, 0, "sent        500 packets"},
		{[]string{bad, "sim://a"}, 1, "expected a capture file"},
		{[]string{good + "x", "sim://a"}, 3, "no such file"},
		{[]string{good, "sim://a", "--speed", "-1x"}, 2, "--speed \"-1x\": expected recorded"},
		{[]string{good, "sim://a", "--speed", "2x", "--pps", "1"}, 2, "exclude each other"},
		{[]string{good, "sim://a", "--rate", "fast"}, 2, "--rate \"fast\": expected bits a second"},
		{[]string{good, "sim://a", "--from", "noon"}, 2, "--from \"noon\": expected 10s"},
		{[]string{good, "sim://a", "--rewrite", "ip=1"}, 2, "--rewrite: \"ip=1\": expected two addresses"},
		{[]string{"-", "sim://a", "--loop", "0"}, 2, "with the standard input"},
		{[]string{good, "no-such-interface"}, 10, "no-such-interface"},
		{[]string{good, "eth0", "--engine", "xpd"}, 1, "xpd"},
	} {
		out, errOut, status := penstock(t, append([]string{"replay"}, c.args...)...)
		if status != c.status || !strings.Contains(out+errOut, c.want) {
			t.Errorf("%v: exit status %d: %s%s; expected %d, %s", c.args, status, out, errOut, c.status, c.want)
		}
	}
	// What comes on the standard input is sent, and all of it is one object.
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	status := Main([]string{"replay", "-", "sim://pipe?loop", "--check", "sim://pipe?loop", "--json"},
		bytes.NewReader(b), &out, &errOut)
	var r replay.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || status != 0 || r.Packets != 1000 || r.Check == nil ||
		r.Check.Came != 1000 {
		t.Errorf("exit status %d: %s%s", status, &out, &errOut)
	}
}

// Between two interfaces every packet comes as it was sent, with every engine; what
// does not come there is missing.
func TestReplayInterfaces(t *testing.T) {
	h := netns.New(t, netns.Topology{Hosts: 1}).Hosts[0]
	for _, c := range []string{"sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1",
		"ip link add v0 mtu 9000 type veth peer name v1 mtu 9000", "ip link set v0 up", "ip link set v1 up"} {
		if _, err := h.Output(t.Context(), strings.Fields(c)[0], strings.Fields(c)[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (text string, status int) {
		t.Helper()
		var out, errOut bytes.Buffer
		if err := h.Do(func() error {
			status = Main(append([]string{"replay"}, args...), strings.NewReader(""), &out, &errOut)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return out.String() + errOut.String(), status
	}
	engines := []string{"afpacket"}
	if err := drivers.Get("xdp").New().Available(); err != nil {
		testenv.Missing(t, "AF_XDP", err)
	} else {
		engines = append(engines, "xdp")
	}
	small, large := capture(t, pcap.Ethernet, 500, 54, false), capture(t, pcap.Ethernet, 100, 9014, false)
	for _, e := range engines {
		for file, n := range map[string]int{small: 500, large: 100} {
			text, status := run(file, "v0", "--engine", e, "--check", "v1")
			if want := fmt.Sprintf("came        %d packets: 0 missing, 0 changed", n); status != 0 ||
				!strings.Contains(text, want) {
				t.Errorf("%s, %d packets: exit status %d: %s", e, n, status, text)
			}
		}
	}
	if text, status := run(small, "v0", "--check", "lo"); status != 1 ||
		!strings.Contains(text, "500 did not come to lo") {
		t.Errorf("exit status %d: %s", status, text)
	}
	if text, status := run(capture(t, pcap.Ethernet, 1, 9019, false), "v0"); status != 1 ||
		!strings.Contains(text, "1 too long") {
		t.Errorf("exit status %d: %s", status, text)
	}
}
