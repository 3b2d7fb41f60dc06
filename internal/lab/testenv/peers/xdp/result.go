package xdp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/penstock-io/penstock/internal/peers"
)

// Result is what came of one command. Counters are of the command, those of the kernel since the
// command before on the same interfaces.
type Result struct {
	Packets uint64        // of the size that was asked for
	Bytes   uint64        // of those
	Chunks  uint64        // descriptors that passed, those of other packets included
	Wall    time.Duration // Receive, live: from the first packet until the ring was empty for the last time
	CPU     time.Duration // processor time of the thread, the kernel's on its behalf included
	Matched uint64        // packets whose headers were read or written
	Checked uint64        // bytes that were right, each one looked at
	Bad     uint64        // packets with a wrong byte
	Gaps    uint64        // packets that did not follow the one before, by their sequence numbers
	Other   uint64        // packets of another size, which are not the sender's
	Calls   uint64        // system calls

	// What the kernel counted (XDP_STATISTICS), of both interfaces together where there are two.
	Dropped    uint64 // packets for which there was no chunk, or no room in one
	RingFull   uint64 // packets for which there was no room in the receive ring
	NoChunks   uint64 // packets that found the fill ring empty
	RxInvalid  uint64 // descriptors of the fill ring that the kernel refused
	TxInvalid  uint64 // descriptors to send that the kernel refused
	InFlight   uint64 // descriptors that are with the kernel to be sent, after the command
	FillChunks uint64 // chunks in the fill ring, after the command
}

// line is how the program prints a result.
type line struct {
	Op         string `json:"op"`
	Packets    uint64 `json:"packets"`
	Bytes      uint64 `json:"bytes"`
	Descs      uint64 `json:"descs"`
	Wall       int64  `json:"ns"`
	CPU        int64  `json:"cpu_ns"`
	Matched    uint64 `json:"matched"`
	Checked    uint64 `json:"checked"`
	Bad        uint64 `json:"bad"`
	Gaps       uint64 `json:"gaps"`
	Other      uint64 `json:"other"`
	Calls      uint64 `json:"calls"`
	Dropped    uint64 `json:"rx_dropped"`
	RingFull   uint64 `json:"rx_ring_full"`
	NoChunks   uint64 `json:"fill_ring_empty"`
	RxInvalid  uint64 `json:"rx_invalid"`
	TxInvalid  uint64 `json:"tx_invalid"`
	InFlight   uint64 `json:"tx_flight"`
	FillChunks uint64 `json:"fill_chunks"`
}

// ready is the first line.
type ready struct {
	Op    string `json:"op"`
	Slots int    `json:"slots"`
	Chunk int    `json:"chunk"`
	Ports int    `json:"ports"`
}

func outputError(b []byte, format string, a ...any) error {
	return fmt.Errorf("peers/xdp: %w: %s: %.300q", peers.ErrOutput, fmt.Sprintf(format, a...), b)
}

// decode reads one line of JSON with nothing unknown in it.
func decode(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return outputError(b, "%v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return outputError(b, "more than one value in a line")
	}
	return nil
}

// parseReady reads the line that says that all sockets are bound.
func parseReady(b []byte, c *Config) error {
	var r ready
	if err := decode(b, &r); err != nil {
		return err
	}
	if r.Op != "ready" || r.Slots != c.Slots || r.Chunk != c.Chunk || r.Ports != len(c.Interfaces) {
		return outputError(b, "expected ready with %d slots of %d bytes on %d interfaces", c.Slots, c.Chunk,
			len(c.Interfaces))
	}
	return nil
}

// parse reads the answer to a command about packets of size bytes.
func parse(b []byte, op Op, size int) (Result, error) {
	var l line
	if err := decode(b, &l); err != nil {
		return Result{}, err
	}
	bad := func(format string, a ...any) (Result, error) { return Result{}, outputError(b, format, a...) }
	switch {
	case l.Op != string(op):
		return bad("the answer to %q: expected one to %q", l.Op, op)
	case l.Wall < 0 || l.CPU < 0:
		return bad("a negative time")
	case size <= 0 || l.Bytes/uint64(size) != l.Packets || l.Bytes%uint64(size) != 0:
		return bad("%d bytes in %d packets of %d", l.Bytes, l.Packets, size)
	case l.Descs < l.Packets:
		return bad("fewer chunks than packets")
	case l.Matched > l.Packets || l.Bad > l.Packets || l.Gaps > l.Packets || l.Checked > l.Bytes:
		return bad("more was looked at than there was")
	}
	return Result{Packets: l.Packets, Bytes: l.Bytes, Chunks: l.Descs, Wall: time.Duration(l.Wall),
		CPU: time.Duration(l.CPU), Matched: l.Matched,
		Checked: l.Checked, Bad: l.Bad, Gaps: l.Gaps, Other: l.Other, Calls: l.Calls, Dropped: l.Dropped,
		RingFull: l.RingFull, NoChunks: l.NoChunks,
		RxInvalid: l.RxInvalid, TxInvalid: l.TxInvalid, InFlight: l.InFlight, FillChunks: l.FillChunks}, nil
}
