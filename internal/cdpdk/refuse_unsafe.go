//go:build dpdk && invariants

package cdpdk

// #include "shim.h"
import "C"

import "syscall"

// Refusals is the number of functions of DPDK that Refuse knows.
var Refusals = int(C.ps_refuse(-1, 0))

// Refuse has function n answer with an error from now on, and all others as they do; -1 for none. It is for tests.
func Refuse(n int, e syscall.Errno) { C.ps_refuse(C.int(n), C.int(e)) }
