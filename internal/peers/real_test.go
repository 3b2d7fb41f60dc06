package peers_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"image/png"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/internal/sys"
)

// cpus are two processors that exist, which may be the same one.
func cpus(t *testing.T) peers.CPUs {
	t.Helper()
	a, err := sys.Processor(0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := sys.Processor(1)
	if err != nil {
		b = a
	}
	return peers.CPUs{Client: a, Server: b}
}

func TestIperf3(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "iperf3")
	r, err := peers.Iperf3(t.Context(), peers.Iperf3Test{Size: 128 << 10, Bytes: 64 << 20, CPUs: cpus(t)})
	if err != nil {
		t.Fatal(err)
	}
	// The client stops when it has sent enough, by whole writes; the receiver counts what had come
	// by then.
	if !(r.GBps > 0) || r.Bytes == 0 || r.Bytes > 128<<20 {
		t.Errorf("%+v", r)
	}
}

func TestOpenSSL(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "openssl")
	program, err := testpeers.OpenSSLStream()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []peers.OpenSSLTest{{Size: 64 << 10, Messages: 33},
		{Size: 3 << 20, Messages: 4, Slots: 3, Chunk: 16 << 10, Congestion: "reno"}} {
		o.Program, o.CPUs = program, cpus(t)
		r, err := peers.OpenSSL(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if !(r.GBps > 0) || r.Bytes != o.Size*uint64(o.Messages) {
			t.Errorf("%+v: %+v", o, r)
		}
	}
	if _, err := peers.OpenSSL(t.Context(), peers.OpenSSLTest{Program: program, Size: 64, Messages: 1,
		Congestion: "no-such-thing", CPUs: cpus(t)}); err == nil || !strings.Contains(err.Error(), "no-such-thing") {
		t.Errorf("an unknown congestion control: %v", err)
	}
}

func TestUCX(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "ucx")
	for _, o := range []peers.UCXTest{
		{Transports: "tcp", Test: "tag_lat", Size: 64, Messages: 200, Percentile: 99},
		{Transports: "posix", Test: "ucp_put_bw", Size: 65536, Messages: 200, Percentile: 50},
	} {
		o.CPUs = cpus(t)
		r, err := peers.UCX(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if !(r.GBps > 0 && r.Percentile > 0 && r.MessagesPerS > 0) {
			t.Errorf("%+v: %+v", o, r)
		}
	}
}

// What a tool says when it cannot is in the error.
func TestUCXRefusal(t *testing.T) {
	testpeers.Need(t, "ucx")
	_, err := peers.UCX(t.Context(), peers.UCXTest{Transports: "tcp", Test: "no_such_test", Size: 64, Messages: 10,
		Percentile: 50, CPUs: cpus(t)})
	if err == nil || !strings.Contains(err.Error(), "Invalid option argument for -t") {
		t.Errorf("%v; want the tool's own words", err)
	}
}

func TestLibfabric(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "fi")
	for _, provider := range []string{"tcp", "shm"} {
		r, err := peers.Libfabric(t.Context(), peers.LibfabricTest{Provider: provider, Size: 4096, Messages: 50,
			CPUs: cpus(t)})
		if err != nil {
			t.Fatal(err)
		}
		if !(r.GBps > 0 && r.Microseconds > 0) {
			t.Errorf("%s: %+v", provider, r)
		}
	}
}

func TestTestpmd(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "testpmd")
	ports, err := peers.Packets(t.Context(), peers.PacketTest{Devices: []string{"net_ring0", "net_ring1"},
		Duration: 100 * time.Millisecond, CPUs: cpus(t)})
	if err != nil {
		t.Fatal(err)
	}
	if len(ports) != 2 {
		t.Fatalf("%+v", ports)
	}
	// Two ports whose rings lead back to themselves: what one has sent it gets back, but for the
	// bursts that are under way.
	for _, p := range ports {
		if p.TX == 0 || p.RX > p.TX || p.TX-p.RX > 256 || p.TXDropped != 0 || p.RXErrors != 0 {
			t.Errorf("%+v", p)
		}
	}
}

// pcap writes a capture of UDP packets over Ethernet, one for each payload, a microsecond apart:
// libpcap's file format, draft "PCAP Capture File Format", with a length that is longer than what
// was captured for the last packet.
func pcap(t *testing.T, payloads ...string) (file string) {
	t.Helper()
	var b []byte
	b = binary.LittleEndian.AppendUint32(b, 0xa1b2c3d4)
	b = binary.LittleEndian.AppendUint16(b, 2)
	b = binary.LittleEndian.AppendUint16(b, 4)
	b = binary.LittleEndian.AppendUint64(b, 0)
	b = binary.LittleEndian.AppendUint32(b, 65535)
	b = binary.LittleEndian.AppendUint32(b, 1) // Ethernet
	for i, payload := range payloads {
		var p []byte
		p = append(p, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0)
		ip := []byte{0x45, 0, 0, 0, 0, byte(i), 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
		binary.BigEndian.PutUint16(ip[2:], uint16(20+8+len(payload)))
		sum := uint32(0)
		for j := 0; j < len(ip); j += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[j:]))
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
		p = append(p, ip...)
		p = binary.BigEndian.AppendUint16(p, uint16(4000+i))
		p = binary.BigEndian.AppendUint16(p, 5000)
		p = binary.BigEndian.AppendUint16(p, uint16(8+len(payload)))
		p = append(append(p, 0, 0), payload...)
		b = binary.LittleEndian.AppendUint32(b, 1_700_000_000)
		b = binary.LittleEndian.AppendUint32(b, uint32(i))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	file = filepath.Join(t.TempDir(), "test.pcap")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestTshark(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "tshark")
	file := pcap(t, "penstock", "", "a,b\tc")
	packets, err := peers.Dissect(t.Context(), peers.Dissection{File: file,
		Fields:  []string{"udp.payload", "ip.checksum.status"},
		Options: []string{"ip.check_checksum:TRUE"}})
	if err != nil || len(packets) != 3 {
		t.Fatalf("%+v, %v", packets, err)
	}
	for i, payload := range []string{"penstock", "", "a,b\tc"} {
		p := packets[i]
		good := "1" // what tshark calls a checksum that is right
		if p.Number != i+1 || p.Time.UnixMicro() != 1_700_000_000_000_000+int64(i) || p.Length != 42+len(payload) ||
			p.Captured != p.Length ||
			p.Source != netip.MustParseAddr("10.0.0.1") || p.Target != netip.MustParseAddr("10.0.0.2") ||
			p.SourcePort != uint16(4000+i) ||
			p.ToPort != 5000 || !slices.Contains(p.Protocols, "udp") ||
			!slices.Equal(p.Fields, []string{fmt.Sprintf("%x", payload), good}) {
			t.Errorf("packet %d: %+v", i, p)
		}
	}
	packets, err = peers.Dissect(t.Context(), peers.Dissection{File: file, Filter: "udp.srcport == 4002"})
	if err != nil || len(packets) != 1 || packets[0].Number != 3 {
		t.Errorf("filtered: %+v, %v", packets, err)
	}
	packets, err = peers.Dissect(t.Context(), peers.Dissection{File: file, Filter: "udp.srcport == 4000",
		DecodeAs: []string{"udp.port==5000,dns"}})
	if err != nil || len(packets) != 1 || !slices.Contains(packets[0].Protocols, "dns") {
		t.Errorf("decoded as DNS: %+v, %v", packets, err)
	}
	// A file that is none is an error with tshark's reason.
	if err := os.WriteFile(file, []byte("no capture at all, but long enough to have a header"), 0o644); err != nil {
		t.Fatal(err)
	}
	if p, err := peers.Dissect(t.Context(), peers.Dissection{File: file}); err == nil ||
		!strings.Contains(err.Error(), "isn't a capture file") {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestOpenCL(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "pocl")
	devices, err := peers.OpenCLDevices(t.Context())
	if err != nil || len(devices) == 0 || devices[0].ComputeUnits == 0 || devices[0].Memory == 0 {
		t.Errorf("%+v, %v", devices, err)
	}
}

func TestEtcd(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "etcd")
	ctx := t.Context()
	e, err := peers.StartEtcd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			e.Stop()
		}
	}()
	value := []byte("tcp://10.0.0.1:7000\x00\xff\n")
	first, err := e.Put(ctx, "/nodes/a", value)
	if err != nil {
		t.Fatal(err)
	}
	second, err := e.Put(ctx, "/nodes/b", []byte("-w"))
	if err != nil || second != first+1 {
		t.Errorf("revisions %d and %d, %v", first, second, err)
	}
	if got, ok, err := e.Get(ctx, "/nodes/a"); err != nil || !ok || !bytes.Equal(got, value) {
		t.Errorf("%q, %v, %v; want %q", got, ok, err, value)
	}
	if got, ok, err := e.Get(ctx, "/nodes/c"); err != nil || ok {
		t.Errorf("a key that nobody put: %q, %v, %v", got, ok, err)
	}
	// Its JSON gateway, which is how a program without gRPC talks to it.
	resp, err := http.Post(e.URL+"/v3/kv/range", "application/json",
		strings.NewReader(`{"key":"L25vZGVzLw==","range_end":"L25vZGVzMA==","count_only":true}`))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	text.ReadFrom(resp.Body)
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if !strings.Contains(text.String(), `"count":"2"`) {
		t.Errorf("by JSON: %s", &text)
	}
	stopped = true
	if err := e.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := e.Put(ctx, "/nodes/a", nil); err == nil {
		t.Error("a server that was stopped takes values")
	}
}

func TestChromium(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "chromium")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/":
			fmt.Fprint(w, `<!doctype html><title>t</title><style>body{margin:0;background:rgb(0,0,255)}#a{width:100px;height:50px;background:rgb(255,0,0)}</style>
				<div id="a"></div><p id="sum">none</p><p id="got">none</p><script>
				document.getElementById("sum").textContent = "sum " + (40 + 2);
				fetch("/figure").then(r => r.text()).then(s => { document.getElementById("got").textContent = "got " + s; });
				</script>`)
		case "/figure":
			fmt.Fprint(w, "17")
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	page := peers.Page{URL: server.URL, Width: 320, Height: 200, Settle: 2 * time.Second, Logf: t.Logf}
	dom, err := peers.ChromiumDOM(t.Context(), page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`<p id="sum">sum 42</p>`, `<p id="got">got 17</p>`} {
		if !strings.Contains(dom, want) {
			t.Errorf("no %s in %s", want, dom)
		}
	}
	shot, err := peers.ChromiumShot(t.Context(), page)
	if err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	if b := picture.Bounds(); b.Dx() != 320 || b.Dy() != 200 {
		t.Errorf("the picture is %v", b)
	}
	// In the red box, beside it.
	for _, x := range []struct{ x, y, red, blue int }{{50, 25, 0xffff, 0}, {200, 25, 0, 0xffff}} {
		if r, g, b, _ := picture.At(x.x, x.y).RGBA(); int(r) != x.red || g != 0 || int(b) != x.blue {
			t.Errorf("at %d, %d the picture is %04x %04x %04x", x.x, x.y, r, g, b)
		}
	}
}

// A page that is not there is an error, and not Chromium's own page about it.
func TestChromiumWithoutServer(t *testing.T) {
	testenv.Once(t)
	testpeers.Need(t, "chromium")
	server := httptest.NewServer(nil)
	server.Close()
	dom, err := peers.ChromiumDOM(t.Context(), peers.Page{URL: server.URL, Logf: t.Logf})
	if err == nil || !strings.Contains(err.Error(), "ERR_CONNECTION_REFUSED") {
		t.Errorf("%v, %.200s", err, dom)
	}
}

func TestContextEndsARun(t *testing.T) {
	testpeers.Need(t, "iperf3")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := peers.Iperf3(ctx, peers.Iperf3Test{Size: 1000, Bytes: 1 << 40, CPUs: cpus(t)}); err == nil {
		t.Error("ran although its context had ended")
	}
	ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := peers.Iperf3(ctx, peers.Iperf3Test{Size: 1000, Bytes: 1 << 50, CPUs: cpus(t)}); err == nil {
		t.Error("a petabyte was sent in half a second")
	}
}
