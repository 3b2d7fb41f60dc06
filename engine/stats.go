package engine

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/metrics"
)

// Drop is the reason why a packet went no further.
type Drop uint8

// The reasons. Each packet is counted once, by the queue or port that dropped it.
const (
	DropNoBuffers   Drop = iota // the pool had no free slot
	DropQueueFull               // the receive queue held as many packets as its depth: the consumer is too slow
	DropKernel                  // the kernel's socket buffer or ring was full: the consumer is too slow
	DropNIC                     // the NIC had no descriptor or buffer, or its link paused
	DropTooLong                 // longer than the memory for one packet, or than the MTU
	DropBadFrame                // garbage: cut off or malformed headers
	DropBadChecksum             // a checksum is wrong, or was left to a device and cannot be computed
	DropNoRule                  // no steering rule matched, and the port is isolated: the kernel keeps it
	DropRule                    // a rule says drop
	DropNoQueue                 // a rule names a queue that is not there (any more)
	DropFlushed                 // thrown away on request
	DropClosed                  // the queue or port was closed
	DropDown                    // the link, the peer or the accelerator was down
	DropNoRoute                 // no route or no link address for the destination
	DropRefused                 // the kernel or the device refused to send it
	// its time to be sent had passed by more than the queue tolerates, or its batch had left
	DropLate
	DropTransform       // a rule's VLAN or tunnel action could not be done
	DropInjected        // the simulator lost it on purpose
	DropNoDeviceBuffers // the pool in an accelerator's memory had no free slot
	DropDuplicate       // another packet with the same number came before
	DropStray           // its sequence number is far from those of the packets around it
	DropIncomplete      // a packet of its batch is missing
	DropUnattributed    // lost for a reason that is not known
	NumDrops
)

var dropNames = [NumDrops]string{"no-buffers", "queue-full", "kernel", "nic", "too-long", "bad-frame", "bad-checksum",
	"no-rule", "rule", "no-queue",
	"flushed", "closed", "down", "no-route", "refused", "late", "transform", "injected", "no-device-buffers",
	"duplicate", "stray", "incomplete", "unattributed"}

// String is the name as metrics and tables show it.
func (d Drop) String() string {
	if d < NumDrops {
		return dropNames[d]
	}
	return fmt.Sprintf("drop %d", uint8(d))
}

// Drops are numbers of packets by reason.
type Drops [NumDrops]uint64

// Total is the number of packets dropped for any reason.
func (d *Drops) Total() uint64 {
	var n uint64
	for _, k := range d {
		n += k
	}
	return n
}

// Add adds the numbers of o.
func (d *Drops) Add(o *Drops) {
	for i, k := range o {
		d[i] += k
	}
}

// String lists the reasons that occurred.
func (d *Drops) String() string {
	var s []string
	for i, k := range d {
		if k > 0 {
			s = append(s, fmt.Sprintf("%s %d", Drop(i), k))
		}
	}
	if s == nil {
		return "none"
	}
	return strings.Join(s, ", ")
}

// DropCounters count drops; one writer, any number of readers.
type DropCounters [NumDrops]metrics.Counter

// Inc counts one packet.
func (c *DropCounters) Inc(d Drop) { c[d].Inc() }

// Add counts n packets.
func (c *DropCounters) Add(d Drop, n uint64) { c[d].Add(n) }

// AddTo adds the counts to d.
func (c *DropCounters) AddTo(d *Drops) {
	for i := range c {
		d[i] += c[i].Load()
	}
}

// RxStats are counts of one receive queue since it was opened, or sums of such.
type RxStats struct {
	Packets, Bytes uint64 // given to the owner
	Drops          Drops  // by reason, on the way to the owner
	// Copied is the number of payload bytes that this process copied on the way, beyond what the
	// kernel or NIC wrote.
	Copied uint64
	Polls  uint64 // TryRecv calls
	Empty  uint64 // of which found nothing
	// Calls is the number of system calls, 0 for engines without.
	Calls uint64
}

// Add adds the numbers of o.
func (s *RxStats) Add(o *RxStats) {
	s.Packets += o.Packets
	s.Bytes += o.Bytes
	s.Drops.Add(&o.Drops)
	s.Copied += o.Copied
	s.Polls += o.Polls
	s.Empty += o.Empty
	s.Calls += o.Calls
}

// SumRx adds to sum what receive queues have counted.
func SumRx[Q interface{ Stats(*RxStats) }](sum *RxStats, lists ...[]Q) {
	for _, queues := range lists {
		for _, q := range queues {
			var one RxStats
			q.Stats(&one)
			sum.Add(&one)
		}
	}
}

// TxStats are counts of one transmit queue since it was opened, or sums of such.
type TxStats struct {
	Packets, Bytes uint64 // that left
	Drops          Drops  // given to Send and not sent
	Forwarded      uint64 // packets of received bursts, part of Packets
	Copied         uint64 // payload bytes copied in this process
	Full           uint64 // Allocs and Forwards that found fewer descriptors than asked for
	NoBuffers      uint64 // Allocs that found less memory than asked for
	Calls          uint64 // system calls
	Queued         uint64 // packets given to Send that have not left yet
	// SendError is how much later than its time each timed packet left, in nanoseconds, and
	// TooEarly those that left before it.
	TimedPackets, TooEarly uint64
	LateMax, LateSum       uint64 // ns
}

// Add adds the numbers of o.
func (s *TxStats) Add(o *TxStats) {
	s.Packets += o.Packets
	s.Bytes += o.Bytes
	s.Drops.Add(&o.Drops)
	s.Forwarded += o.Forwarded
	s.Copied += o.Copied
	s.Full += o.Full
	s.NoBuffers += o.NoBuffers
	s.Calls += o.Calls
	s.Queued += o.Queued
	s.TimedPackets += o.TimedPackets
	s.TooEarly += o.TooEarly
	s.LateMax = max(s.LateMax, o.LateMax)
	s.LateSum += o.LateSum
}

// SumTx adds to sum what transmit queues have counted.
func SumTx[Q interface{ Stats(*TxStats) }](sum *TxStats, lists ...[]Q) {
	for _, queues := range lists {
		for _, q := range queues {
			var one TxStats
			q.Stats(&one)
			sum.Add(&one)
		}
	}
}

// PortStats are counts of one port.
type PortStats struct {
	Rx RxStats // of all its queues that are and were
	Tx TxStats
	// Drops are packets that reached the port and no queue.
	Drops Drops
	// Kernel is the number of packets that were left to the kernel, by rule or by isolation.
	Kernel uint64
	// LinkChanges is how often the link went up or down.
	LinkChanges uint64
}
