//go:build dpdk && invariants

package cdpdk

// #include "shim.h"
// #include <rte_flow.h>
// void ps_record(int action);
// int ps_recorded(void);
import "C"

import "syscall"

// Refusals is the number of functions of DPDK that Refuse knows.
var Refusals = int(C.ps_refuse(-1, 0))

// Refuse has function n answer with an error from now on, and all others as they do; -1 for none. It is for tests.
func Refuse(n int, e syscall.Errno) { C.ps_refuse(C.int(n), C.int(e)) }

// Actions of rules that a device of a test may be without.
const (
	NoAction = -1
	NoMarks  = C.RTE_FLOW_ACTION_TYPE_MARK
	NoQueues = C.RTE_FLOW_ACTION_TYPE_QUEUE
)

// Record has devices take each rule of rte_flow that does not have an action, count 7 packets of 100 bytes for each that counts, and mark all that is
// received as taken by the newest rule. Refuse ends that. It is for tests.
func Record(without int) { C.ps_record(C.int(without)) }

// Recorded is the number of rules that such devices have.
func Recorded() int { return int(C.ps_recorded()) }
