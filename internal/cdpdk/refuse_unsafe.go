//go:build dpdk && invariants

package cdpdk

// #include "shim.h"
// #include "record.h"
// #include <rte_flow.h>
import "C"

import (
	"syscall"
	"unsafe"
)

// Refusals is the number of functions of DPDK that Refuse knows.
var Refusals = int(C.ps_refuse(-1, 0))

// Refuse has function n answer with an error from now on, and all others as they do; -1 for none.
// It is for tests.
func Refuse(n int, e syscall.Errno) { C.ps_refuse(C.int(n), C.int(e)) }

// Actions of rules that a device of a test may be without.
const (
	NoAction = -1
	NoMarks  = C.RTE_FLOW_ACTION_TYPE_MARK
	NoQueues = C.RTE_FLOW_ACTION_TYPE_QUEUE
)

// Feature is what a device of a test has, beyond net_ring, or what is wrong with it.
type Feature uint32

// The features.
const (
	Splits  Feature = C.PS_SPLIT   // receives headers and the rest into two pools
	Times   Feature = C.PS_TIMES   // a clock, times of reception, sending at a time
	Rates   Feature = C.PS_RATES   // limits the rate of a transmit queue
	Cuts    Feature = C.PS_CUT     // checksums, and segmentation of TCP
	Hashes  Feature = C.PS_HASH    // RSS with its hash, which is always 0x5eed
	Queues  Feature = C.PS_QUEUES  // receive queues that start and stop while the port runs
	Slow    Feature = C.PS_SLOW    // takes one packet of 32
	Down    Feature = C.PS_DOWN    // its link is down
	Removed Feature = C.PS_REMOVED // it was unplugged
	Losses  Feature = C.PS_LOSSES  // counts 3 packets missed, 5 errors, 11 without an mbuf, 13 not sent
)

// Record has devices take each rule of rte_flow that does not have an action, count 7 packets of
// 100 bytes for each that counts, and mark all that is received as taken by the newest rule; and
// gives them features. Refuse ends that. It is for tests.
func Record(without int, has Feature) { C.ps_record(C.int(without), C.uint32_t(has)) }

// Becomes changes the features of devices that run.
func Becomes(has Feature) { C.ps_record_has(C.uint32_t(has)) }

// Recording is what such devices have seen since Record.
type Recording struct {
	Rules      int    // that they have
	Configured int    // how often
	RSSKey     []byte // of the port
	RuleKey    int    // length of the key of a rule with RSS
	Spread     int    // queues over which RSS spreads
	Mbps       int    // limit of a queue
	Timed      int    // packets sent with a time
	Time       uint64 // the last one
	// packets to segment, and of the last one its segment size and the length of its headers
	Cuts, Cut, Headers     int
	RxOffloads, TxOffloads uint64
}

// Recorded is what devices have seen.
func Recorded() Recording {
	var c C.struct_ps_recorded
	C.ps_record_seen(&c)
	return Recording{
		Rules: int(c.flows), Configured: int(c.configured),
		RSSKey: C.GoBytes(unsafe.Pointer(&c.key_bytes[0]), C.int(c.key)), RuleKey: int(c.flow_key),
		Spread: int(c.spread),
		Mbps:   int(c.mbps), Timed: int(c.timed), Time: uint64(c.time), Cuts: int(c.cuts), Cut: int(c.cut),
		Headers:    int(c.headers),
		RxOffloads: uint64(c.rx_offloads), TxOffloads: uint64(c.tx_offloads),
	}
}
