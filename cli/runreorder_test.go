package cli

import (
	"encoding/binary"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/stage/app"
)

const runReorder = `penstock:
  memory_regions:
    - {name: packets, kind: host, num_bufs: 256, buf_size: 2KiB}
    - {name: batches, kind: MEMORY, num_bufs: 8, buf_size: 64}
  interfaces:
    - name: in
      socket: {mode: server, local: "udp://SINK"}
      rx:
        queues: [{memory_regions: [packets]}]
        reorder:
          - name: samples
            reorder_type: TYPE
            memory_region: batches
            payload_byte_offset: 4
            flow_ids: [0]
            data_types: {input_type: int16, output_type: fp32, endianness: network}
            method: {seq_packets_per_batch: {sequence_number: {bit_offset: 0, bit_width: 32}, packets_per_batch: 4}}
  transfers: {listen: ["tcp://127.0.0.1:0"]}
  applications:
    - {name: keep, kind: sink, interface: in, tensor: {name: t, dtype: f32, shape: [1, 8]}}
`

// Datagrams in any order become batches, each of which a sink gives out as a tensor, and the counts
// say what was whole. With a GPU the batches are in its memory.
func TestRunReorder(t *testing.T) {
	t.Run("cpu", func(t *testing.T) { testRunReorder(t, "cpu", "host", 5303) })
	t.Run("gpu", func(t *testing.T) { testRunReorder(t, "gpu", "device", 5304) })
}

func testRunReorder(t *testing.T, kind, memory string, port int) {
	at := loopAt(port)
	file := confFile(t, "reorder.yaml", strings.NewReplacer("SINK", at, "TYPE", kind, "MEMORY",
		memory).Replace(runReorder))
	r := startRun(t, file, "--interval", "100ms", "--gpu-runtime", "host")
	s := r.next("started")
	c, err := net.Dial("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var want []byte
	send := func(seq uint32) {
		p := binary.BigEndian.AppendUint32(nil, seq)
		for k := range uint32(2) {
			p = binary.BigEndian.AppendUint16(p, uint16(1000*seq+k))
		}
		if _, err := c.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	for _, seq := range []uint32{2, 5, 1, 3, 0, 7, 4, 6} { // two batches
		send(seq)
	}
	for k := range 8 {
		want = binary.LittleEndian.AppendUint32(want, math.Float32bits(float32(1000*(4+k/2)+k%2)))
	}
	for r.next("sample").Applications[0].Packets < 2 {
	}
	for i := 0; ; i++ { // until the second tensor is there
		got := filepath.Join(t.TempDir(), "t")
		run(t, 0, "t: 32 B", "get", strings.TrimPrefix(s.Addresses[0], "tcp://")+"/t", "-o", got)
		b, err := os.ReadFile(got)
		if err != nil {
			t.Fatal(err)
		}
		if math.Float32frombits(binary.LittleEndian.Uint32(b)) == 4000 {
			same(t, got, want)
			break
		}
	}
	for _, seq := range []uint32{9, 11, 8, 24} { // one of four is lost, and a later batch has the others leave
		send(seq)
	}
	for !strings.Contains(string(r.next("sample").Applications[0].Tensor), `"generations":3,`) {
		// Packets counts before the tensor is there
	}
	// What is known of a batch has its tensor's name and more.
	got := filepath.Join(t.TempDir(), "batch")
	run(t, 0, "t/batch: 64 B", "get", strings.TrimPrefix(s.Addresses[0], "tcp://")+"/t/batch", "-o", got)
	b, err := os.ReadFile(got)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int]int64{app.BatchGeneration: 3, app.BatchID: 2, app.BatchPackets: 3,
		app.BatchPerBatch: 4, app.BatchPresent: 0b1011} {
		if v := int64(binary.LittleEndian.Uint64(b[8*i:])); v != want {
			t.Errorf("element %d about the batch is %d, want %d", i, v, want)
		}
	}
	if err := r.p.Signal(sys.Interrupts()[1]); err != nil {
		t.Fatal(err)
	}
	e := r.end(0)
	if want := `"missing":0,"short":0,"bytes":96,"filled":0,"of":1,"waits":0,"batches":{"batches":3,"packets":11,"missing":1,"last":2,`; !strings.Contains(string(e.Applications[0].Tensor), want) {
		t.Errorf("%s, want %s", e.Applications[0].Tensor, want)
	}
	counts := map[string]uint64{}
	for _, x := range e.Stages {
		if x.Where != "in/0 reorder" {
			t.Errorf("%+v", x)
		}
		counts[x.Event] = x.Count
	}
	if counts["samples: whole"] != 2 || counts["samples: packets"] != 11 || counts["samples: partial"] != 1 ||
		len(e.Drops) != 1 || e.Drops[0].Reason != "closed" {
		t.Errorf("%v, %+v", counts, e.Drops)
	}
}

// The summary has what stages counted, a line each.
func TestSummaryOfStages(t *testing.T) {
	text := summary(&runSample{Stages: []runStage{{"a/0 reorder", "p: whole", 3, 0}, {"a/0 reorder", "p: lost", 0, 0},
		{"a/0 reorder", "p: packets", 24, 0}, {"b/1 reorder", "q: whole", 1, 0}}})
	if !strings.Contains(text, "\na/0 reorder: p: whole 3, p: packets 24\nb/1 reorder: q: whole 1\n") {
		t.Error(text)
	}
}

// OpenCL builds its kernels when a file is opened, and the run says so before.
func TestRunOpenCL(t *testing.T) {
	peers.PoCL(t)
	file := confFile(t, "reorder.yaml", strings.NewReplacer("SINK", loopAt(5305), "TYPE", "gpu", "MEMORY",
		"device").Replace(runReorder))
	out, errOut, status := penstock(t, "run", "--duration", "1ms", "--gpu-runtime", "opencl", file)
	if _, after, _ := strings.Cut(out, "opening: opencl 0: "); status != 0 || !strings.Contains(after, "\nrunning\n") {
		t.Errorf("status %d\n%s%s", status, out, errOut)
	}
}
