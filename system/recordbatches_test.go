package system

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/stage/app"
	"github.com/penstock-io/penstock/tensor/safetensors"
)

// load prints an npy file as JSON.
const load = `
import json, sys, numpy
a = numpy.load(sys.argv[1])
print(json.dumps({"Shape": a.shape, "Type": a.dtype.str, "Rows": a.reshape(a.shape[0], -1).tolist()}))
`

// Batches of a reorder plan, in memory of the host, of a device that is this process, and of PoCL,
// go to files as one tensor, which numpy reads; a device copies its memory, and each byte once.
func TestRecordBatches(t *testing.T) {
	python := testpeers.NeedPython(t, "numpy")
	testpeers.PoCL(t)
	for _, x := range []struct{ runtime, kind, executor string }{{"auto", "host", "cpu"}, {"host", "device", "gpu"},
		{"opencl", "device", "gpu"}} {
		t.Run(x.runtime, func(t *testing.T) {
			dir := t.TempDir()
			file := func(name string) string { return filepath.Join(dir, name) }
			s := mustOpen(t, strings.NewReplacer("DIR", dir, "KIND", x.kind, "CPU", x.executor, "RUNTIME", x.runtime,
				"PACKETS", map[string]string{"cpu": "host", "gpu": "host_pinned"}[x.executor]).
				Replace(`penstock:
  gpu_runtime: RUNTIME
  memory_regions:
    - {name: a, kind: PACKETS, num_bufs: 256, buf_size: 2KiB}
    - {name: b, kind: host, num_bufs: 256, buf_size: 2KiB}
    - {name: batches, kind: KIND, num_bufs: 8, buf_size: 1KiB}
  interfaces:
    - name: loop
      engine: sim
      address: sim://recordbatches-RUNTIME?loop
      rx:
        queues:
          - memory_regions: [a]
            stages:
              - {type: record, record: DIR/a.npy, format: npy}
              - {type: record, record: DIR/a.raw, format: raw, rotate: {packets: 1}}
        flows: [{name: samples, id: 7, match: {udp_dst: 5000}, action: {type: queue, id: 0}}]
        reorder:
          - name: samples
            reorder_type: CPU
            memory_region: batches
            payload_byte_offset: 46
            flow_ids: [7]
            data_types: {input_type: int16, output_type: fp32, endianness: network}
            method: {seq_packets_per_batch: {sequence_number: {bit_offset: 336, bit_width: 32}, packets_per_batch: 8}}
      tx: {queues: [{memory_regions: [b]}]}
  applications: [{kind: sink, interface: loop, record: DIR/a.safetensors, format: safetensors}]
`), Options{})
			const header, n, words = 42, 4, 9
			var want [][]float64
			for k := range uint32(8 * (n + 2)) {
				f := udpFrame(t, 5000, k)
				if k%8 == 0 && k < 8*n {
					want = append(want, nil)
				}
				for at := header + 4; at < len(f); at += 2 {
					v := int16(k*1000 + uint32(at))
					binary.BigEndian.PutUint16(f[at:], uint16(v))
					if k == 13 {
						v = 0
					}
					if k < 8*n {
						want[k/8] = append(want[k/8], float64(v))
					}
				}
				if k != 13 {
					sendFrames(t, txOf(t, s, "loop", 0), f)
				}
			}
			taken := func() app.Snapshot { return s.Snapshot().Applications[0].Snapshot }
			until(t, "the batches", func() bool { return taken().Taken >= n })
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			in, rows := int(taken().Taken), int(s.Snapshot().Interfaces[0].Rx[0].Stages[1].Record.Packets)
			// What waited for the application when it ended is in the files of the stages alone.
			size := uint64(rows * 8 * words * 4)
			if x.kind == "host" {
				size = 0 // what devices copy
			}
			for _, q := range s.Snapshot().Interfaces[0].Rx[0].Stages[1:] {
				if q.Record.Bounced != size || q.Stats.Copied != size || q.Record.Packets != uint64(rows) ||
					q.Record.Lost != nil {
					t.Errorf("%+v, %+v, expected %d batches, %d bytes copied", q, q.Record, rows, size)
				}
			}
			var got struct {
				Shape []int
				Type  string
				Rows  [][]float64
			}
			if err := python.Run(t.Context(), load, nil, &got, file("a.npy")); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Shape, []int{rows, 8, words}) || got.Type != "<f4" {
				t.Fatalf("%v %s", got.Shape, got.Type)
			}
			for i := range want {
				if !slices.Equal(got.Rows[i], want[i]) {
					t.Errorf("batch %d: %v, expected %v", i, got.Rows[i], want[i])
				}
			}
			st, err := safetensors.Open(file("a.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			raw := read(t, file("a.npy"))[1024:]
			all, _ := st.Tensor("batches")
			if string(all.Bytes()) != string(raw[:len(all.Bytes())]) ||
				fmt.Sprint(all.Desc) != fmt.Sprintf("f32[%d 8 9]", in) {
				t.Errorf("%v", all.Desc)
			}
			ids, _ := st.Tensor("id")
			packets, _ := st.Tensor("packets")
			for i := range n {
				id, k := binary.LittleEndian.Uint64(ids.Bytes()[8*i:]),
					binary.LittleEndian.Uint64(packets.Bytes()[8*i:])
				if id != uint64(i) || k != 8 && i != 1 || k != 7 && i == 1 {
					t.Errorf("batch %d: number %d, %d packets", i, id, k)
				}
			}
			if m := st.Metadata(); m["plan"] != "samples" || m["packets_per_batch"] != "8" ||
				m["missing_packets"] != "1" ||
				m["lost_batches"] != "0" {
				t.Errorf("%v", m)
			}
			for i := range rows { // a file each
				if b := read(t, file(fmt.Sprintf("a-%05d.raw", i+1))); string(b) != string(raw[i*len(b):][:len(b)]) {
					t.Errorf("batch %d has other bytes", i)
				}
			}
		})
	}
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
