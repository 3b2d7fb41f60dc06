package system

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
)

// A reorder plan of a file makes batches of the packets of its flows, in the order of their
// numbers, converted; other packets pass.
func TestReorderOfAFile(t *testing.T) {
	for _, split := range []string{"memory_regions: [a]", "memory_regions: [a, b], split_at: 42"} {
		for _, poll := range []string{"event", "direct"} {
			s := mustOpen(t, twoRegions+`
    - {name: batches, kind: host, num_bufs: 8, buf_size: 1KiB}
  interfaces:
    - name: loop
      engine: sim
      address: sim://`+t.Name()+`?loop
      rx:
        queues: [{`+split+`, poll_mode: `+poll+`}]
        flows: [{name: samples, id: 7, match: {udp_dst: 5000}, action: {type: queue, id: 0}}, {name: rest, id: 8, match: {udp_dst: 5001}, action: {type: queue, id: 0}}]
        reorder:
          - name: samples
            reorder_type: cpu
            memory_region: batches
            payload_byte_offset: 46
            flow_ids: [7]
            data_types: {input_type: int16, output_type: fp32, endianness: network}
            method: {seq_packets_per_batch: {sequence_number: {bit_offset: 336, bit_width: 32}, packets_per_batch: 8}}
      tx: {queues: [{memory_regions: [b]}]}
`, Options{})
			frames := [][]byte{udpFrame(t, 5001, 1)}
			const header = packet.EthernetLen + 28
			var want []byte
			for n := range uint32(32) {
				f := udpFrame(t, 5000, n)
				for at := header + 4; at < len(f); at += 2 {
					v := int16(n*1000 + uint32(at))
					binary.BigEndian.PutUint16(f[at:], uint16(v))
					want = binary.LittleEndian.AppendUint32(want, math.Float32bits(float32(v)))
				}
				if n != 13 {
					frames = append(frames, f)
				}
			}
			rand.New(rand.NewPCG(1, 1)).Shuffle(len(frames), func(i, j int) {
				frames[i], frames[j] = frames[j], frames[i]
			})
			for i := range 3 { // the rest of what pushes the window on
				frames = append(frames, udpFrame(t, 5000, uint32(32+8*i)))
			}
			sendFrames(t, txOf(t, s, "loop", 0), frames...)
			const place = 9 * 4
			var got []byte
			var whole []bool
			passed := 0
			for len(got) < len(want) || passed < 1 {
				b := burst.New(8)
				if err := rxOf(t, s, "loop", 0).Recv(t.Context(), b); err != nil {
					t.Fatal(err)
				}
				for i := range b.Len() {
					x := reorder.Of(b, i)
					if x == nil {
						passed++
						continue
					}
					if got, whole = append(got, b.Bytes(i, 0)...), append(whole, x.Whole()); x.Place != place ||
						x.ID != int64(len(whole)-1) || x.Has(5) != (x.ID != 1) {
						t.Errorf("%+v", x)
					}
				}
				b.Release()
			}
			clear(want[13*place:][:place])
			if !bytes.Equal(got, want) || passed != 1 || !slices.Equal(whole, []bool{true, false, true, true}) {
				t.Errorf("%s %s: %d bytes of %d, %d packets passed, batches %v", split, poll, len(got), len(want),
					passed, whole)
			}
			q := s.Snapshot().Interfaces[0].Rx[0]
			if len(q.Stages) != 1 || q.Stages[0].Type != "reorder" ||
				!slices.Contains(q.Stages[0].Counts, engine.Count{Name: "samples: whole", N: 3}) {
				t.Errorf("%+v", q.Stages)
			}
			if text := s.Plan().Text(); !strings.Contains(text, "stages reorder") {
				t.Error(text)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// With the keys window and payload_size of a file, packets that overtake each other by many, of
// which the first one is short, are all in their batches.
func TestReorderWindowOfAFile(t *testing.T) {
	const per, batches, off = 64, 30, 420
	for _, c := range []struct {
		keys string
		all  bool
	}{{"", false}, {"window: 16, payload_size: 18, ", true}} {
		s := mustOpen(t, twoRegions+`
    - {name: batches, kind: host, num_bufs: 64, buf_size: 4KiB}
  interfaces:
    - name: loop
      engine: sim
      address: sim://`+t.Name()+`?loop
      rx:
        queues: [{memory_regions: [a]}]
        reorder:
          - {name: r, reorder_type: cpu, `+c.keys+
			`memory_region: batches, payload_byte_offset: 46, flow_ids: [0], method: {seq_packets_per_batch: {sequence_number: {bit_offset: 336, bit_width: 32}, packets_per_batch: 64}}}
      tx: {queues: [{memory_regions: [b]}]}
`, Options{})
		r := rand.New(rand.NewPCG(1, 1))
		order, when := make([]int, per*batches), make([]int, per*batches)
		for k := range order {
			order[k], when[k] = k, k+r.IntN(2*off+1)-off
		}
		slices.SortStableFunc(order, func(a, b int) int { return when[a] - when[b] })
		var frames [][]byte
		for k, n := range order {
			f := udpFrame(t, 5000, uint32(per*16+n))
			if k == 0 {
				f = f[:50] // its payload is short
			}
			frames = append(frames, f)
		}
		for i := range 40 { // what has all batches leave
			frames = append(frames, udpFrame(t, 5000, uint32(per*(16+batches+i))))
		}
		counts := func() (n map[string]uint64, drops engine.Drops) {
			n = map[string]uint64{}
			x := s.Snapshot().Interfaces[0].Rx[0].Stages[0]
			for _, c := range x.Counts {
				n[c.Name] = c.N
			}
			return n, x.Stats.Drops
		}
		q, b := rxOf(t, s, "loop", 0), burst.New(64)
		for at := 0; at < len(frames); at += 32 {
			sendFrames(t, txOf(t, s, "loop", 0), frames[at:min(at+32, len(frames))]...)
			until(t, "the packets", func() bool {
				_, _ = q.TryRecv(b)
				b.Release()
				n, drops := counts()
				return n["r: packets"]+drops.Total() == uint64(min(at+32, len(frames)))
			})
		}
		n, drops := counts()
		t.Logf("%q: %v, %d late, %d too long", c.keys, n, drops[engine.DropLate], drops[engine.DropTooLong])
		if whole := n["r: whole"] == batches && drops.Total() == 0; whole != c.all {
			t.Errorf("%q: %v, %v", c.keys, n, drops)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// refusedPlan is the error of a plan with these keys, with batches in this memory.
func refusedPlan(t *testing.T, memory, keys string, per int) error {
	t.Helper()
	_, err := Open(t.Context(), mustLoad(t, twoRegions+"    - "+memory+`
  gpu_runtime: host
  interfaces:
    - name: loop
      engine: sim
      address: sim://`+t.Name()+`?loop
      rx:
        queues: [{memory_regions: [a]}]
        reorder:
          - {name: r, `+keys+`, memory_region: batches, payload_byte_offset: 46, flow_ids: [0], method: {seq_packets_per_batch: {sequence_number: {bit_offset: 336, bit_width: 32}, packets_per_batch: `+fmt.Sprint(per)+`}}}
`), Options{})
	if err == nil || !strings.Contains(err.Error(), "test.yaml:14:") {
		t.Errorf("%s: %v", keys, err)
	}
	return err
}

// What the stage would refuse the plan refuses, with its place.
func TestReorderPlanRefused(t *testing.T) {
	for want, memory := range map[string]string{
		"has 128 bytes or more, and a slot of \"batches\" 64": "{name: batches, kind: host, num_bufs: 8, buf_size: 64}",
		"the processor does not reach the memory": "{name: batches, kind: device, num_bufs: 8, " +
			"buf_size: 1KiB}",
	} {
		err := refusedPlan(t, memory, "reorder_type: cpu", 128)
		if !errors.Is(err, ErrMissing) || !errors.Is(err, reorder.ErrPlan) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

// A plan for a processor that is not there is refused, and the error says which one would do.
func TestReorderElsewhere(t *testing.T) {
	for keys, want := range map[string]string{
		"reorder_engine: hw, cyclic_sequence: true, reorder_type: cpu": "which no engine here supports",
		"reorder_type: gpu": "expected memory of kind device or host_pinned",
	} {
		err := refusedPlan(t, "{name: batches, kind: host, num_bufs: 8, buf_size: 64KiB}", keys, 8)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", keys, err, want)
		}
	}
}

// A plan whose flows go to two queues makes one line of batches, which leave by the first queue;
// the applications of both go on.
func TestReorderOfTwoQueues(t *testing.T) {
	s := mustOpen(t, twoRegions+`
    - {name: batches, kind: host, num_bufs: 8, buf_size: 1KiB}
  interfaces:
    - name: loop
      engine: sim
      address: sim://`+t.Name()+`?loop
      rx:
        queues: [{memory_regions: [a]}, {memory_regions: [a]}]
        flows:
          - {name: even, id: 7, match: {udp_dst: 5000}, action: {type: queue, id: 0}}
          - {name: odd, id: 8, match: {udp_dst: 5001}, action: {type: queue, id: 1}}
          - {name: rest, id: 9, match: {udp_dst: 5002}, action: {type: queue, id: 1}}
        reorder:
          - name: samples
            reorder_type: cpu
            memory_region: batches
            payload_byte_offset: 46
            flow_ids: [7, 8]
            method: {seq_packets_per_batch: {sequence_number: {bit_offset: 336, bit_width: 32}, packets_per_batch: 8}}
      tx: {queues: [{memory_regions: [b]}]}
`, Options{})
	var frames [][]byte
	for n := range uint32(32) {
		frames = append(frames, udpFrame(t, uint16(5000+n%2), n))
	}
	frames = append(frames, udpFrame(t, 5002, 1))
	sendFrames(t, txOf(t, s, "loop", 0), frames...)
	b := burst.New(8)
	if err := rxOf(t, s, "loop", 1).Recv(t.Context(), b); err != nil {
		// what passes comes behind all that this queue brings
		t.Fatal(err)
	}
	if b.Len() != 1 || reorder.Of(b, 0) != nil {
		t.Fatalf("%d packets at the second queue, the first %+v", b.Len(), reorder.Of(b, 0))
	}
	b.Release()
	for n := int64(0); n < 4; {
		if err := rxOf(t, s, "loop", 0).Recv(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		for i := range b.Len() {
			if x := reorder.Of(b, i); x == nil || x.ID != n || !x.Whole() {
				t.Fatalf("batch %d is %+v", n, x)
			}
			n++
		}
		b.Release()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A stage that records packets, in the first place, stands before the plan: the file has each
// packet, and what is behind it has batches.
func TestRecordBeforeReorder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.pcapng")
	s := mustOpen(t, twoRegions+`
    - {name: batches, kind: host, num_bufs: 8, buf_size: 1KiB}
  interfaces:
    - name: loop
      engine: sim
      address: sim://`+t.Name()+`?loop
      rx:
        queues: [{memory_regions: [a], stages: [{type: record, record: `+file+`}, {type: checksum}]}]
        reorder:
          - name: samples
            reorder_type: cpu
            memory_region: batches
            payload_byte_offset: 46
            flow_ids: [0]
            method: {seq_packets_per_batch: {sequence_number: {bit_offset: 336, bit_width: 32}, packets_per_batch: 8}}
      tx: {queues: [{memory_regions: [b]}]}
`, Options{})
	if got := s.Plan().Interfaces[0].Rx[0].Stages; !slices.Equal(got, []string{"record", "reorder", "checksum"}) {
		t.Errorf("stages %v", got)
	}
	for n := range uint32(8) {
		sendFrames(t, txOf(t, s, "loop", 0), udpFrame(t, 5000, n))
	}
	b := burst.New(8)
	if err := rxOf(t, s, "loop", 0).Recv(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if x := reorder.Of(b, 0); x == nil || !x.Whole() {
		t.Errorf("%+v", x)
	}
	b.Release()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint32(8) {
		if !bytes.Contains(got, udpFrame(t, 5000, n)) {
			t.Errorf("packet %d is not in the file", n)
		}
	}
}
