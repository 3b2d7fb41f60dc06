package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

const file = `penstock:
  gpu_runtime: RUNTIME
  memory_regions:
    - {name: packets, kind: host, num_bufs: 1024, buf_size: 64B}
    - {name: batches, kind: device, num_bufs: 8, buf_size: 1KiB}
  interfaces:
    - name: port
      address: udp://127.0.0.1:0
      rx:
        queues: [{memory_regions: [packets]}]
        reorder:
          - name: samples
            reorder_type: gpu
            memory_region: batches
            flow_ids: [0]
            payload_byte_offset: 4
            payload_size: 16
            data_types: {input_type: int16, output_type: fp16, endianness: network}
            method: {seq_packets_per_batch: {sequence_number: {bit_offset: 0, bit_width: 32}, packets_per_batch: 32}}
  applications: [{kind: count, interface: port}]
`

// A batch in memory of a device is printed with the samples that were sent.
func TestRun(t *testing.T) {
	for _, runtime := range []string{"host", "opencl"} {
		t.Run(runtime, func(t *testing.T) {
			if runtime == "opencl" {
				peers.PoCL(t)
			}
			ctx, stop := context.WithCancel(t.Context())
			r, w := io.Pipe()
			ended := make(chan error, 1)
			go func() {
				err := run(ctx, w, "rx.yaml", []byte(strings.Replace(file, "RUNTIME", runtime, 1)))
				w.CloseWithError(err)
				ended <- err
			}()
			lines := bufio.NewReader(r)
			at, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			c, err := net.Dial("udp", strings.TrimPrefix(strings.TrimSpace(at), "receiving at udp://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for n := range 32 {
				p := binary.BigEndian.AppendUint32(nil, uint32(n))
				for i := range 8 {
					p = binary.BigEndian.AppendUint16(p, uint16(n+i-2))
				}
				if _, err := c.Write(p); err != nil {
					t.Fatal(err)
				}
			}
			line, err := lines.ReadString('\n')
			if want := "batch 0: 32 of 32 packets, f16[32 8]: -2 -1 0 1\n"; line != want || err != nil {
				t.Errorf("%q, %v; want %q", line, err, want)
			}
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	for text, want := range map[string]string{"penstock: {x: 1}": "x", "penstock: {version: 1}": "no interfaces"} {
		if err := run(t.Context(), io.Discard, "rx.yaml", []byte(text)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
