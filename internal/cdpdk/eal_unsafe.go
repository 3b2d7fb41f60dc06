//go:build dpdk

package cdpdk

// #cgo pkg-config: libdpdk
// #cgo CFLAGS: -O2 -D_GNU_SOURCE -DALLOW_EXPERIMENTAL_API -Wno-unknown-pragmas
// #include <stdlib.h>
// #include <rte_version.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

// eal is the state of DPDK in this process.
var eal struct {
	sync.Mutex
	args   []string // nil before Start
	failed error    // why it cannot be started any more
	do     chan func()
}

// Version is that of the library.
func Version() string { return C.GoString(C.rte_version()) }

// Physical reports whether devices reach memory by physical addresses. EAL runs.
func Physical() bool { return physical }

var physical bool // written by Start

// Running is what Start was called with; nil before.
func Running() []string {
	eal.Lock()
	defer eal.Unlock()
	return eal.args
}

// Start starts EAL with arguments as a program's command line has them, without the program's name.
// There is one EAL for the process: with the same arguments Start does nothing more, with others
// the error names both. EAL pins the thread that starts it; this is one of its own, which stays.
// After a failure EAL cannot be started again.
func Start(args []string) error {
	eal.Lock()
	defer eal.Unlock()
	switch {
	case eal.failed != nil:
		return eal.failed
	case eal.args != nil && slices.Equal(eal.args, args):
		return nil
	case eal.args != nil:
		return fmt.Errorf("EAL runs in this process with %q: it cannot be started with %q as well: %w",
			strings.Join(eal.args, " "), strings.Join(args, " "), syscall.EALREADY)
	}
	do := make(chan func())
	go func() {
		runtime.LockOSThread() // and it is never unlocked: its affinity is EAL's
		for f := range do {
			f()
		}
	}()
	eal.do = do
	if err := onMain(func() error { return start(args) }); err != nil {
		eal.failed = err
		return err
	}
	eal.args, physical = slices.Clone(args), C.ps_physical() != 0
	return nil
}

// onMain runs f on EAL's thread. The lock of eal is held.
func onMain(f func() error) error {
	done := make(chan error)
	eal.do <- func() { done <- f() }
	return <-done
}

func start(args []string) error {
	argv := (*[1 << 10]*C.char)(C.calloc(C.size_t(len(args)+2), C.size_t(unsafe.Sizeof(uintptr(0)))))
	argv[0] = C.CString("penstock") // EAL keeps pointers into its arguments: they are never freed
	for i, a := range args {
		argv[i+1] = C.CString(a)
	}
	var log [4096]C.char
	if r := C.ps_eal_init(C.int(len(args)+1), &argv[0], &log[0], C.int(len(log))); r < 0 {
		return &Error{"rte_eal_init " + strings.Join(args, " "), syscall.Errno(-r), tidy(C.GoString(&log[0]))}
	}
	return nil
}

// Stop ends EAL, at the end of a test: it cannot be started again.
func Stop() error {
	eal.Lock()
	defer eal.Unlock()
	if eal.args == nil {
		return nil
	}
	eal.args, eal.failed = nil, fmt.Errorf("EAL was stopped: %w", syscall.EALREADY)
	return onMain(func() error { return failed("rte_eal_cleanup", C.ps_eal_cleanup()) })
}

// failed makes an error of what a function returned: nil unless it is negative.
func failed(call string, r C.int) error {
	if r >= 0 {
		return nil
	}
	var log [4096]C.char
	n := C.ps_log(&log[0], C.int(len(log)-1))
	return &Error{call, syscall.Errno(-r), tidy(C.GoStringN(&log[0], n))}
}

// tidy makes one line of what a log says, the last lines if it is long.
func tidy(log string) string {
	var out []string
	for line := range strings.Lines(log) {
		if line = strings.TrimSpace(line); line != "" && strings.IndexFunc(line, func(r rune) bool {
			return r < ' ' && r != '\t'
		}) < 0 {
			out = append(out, line)
		}
	}
	return strings.Join(out[max(0, len(out)-6):], "; ")
}

// Register says that memory which the process has mapped is going to be used by devices: a multiple
// of its page size. Unregister ends that.
func Register(base uintptr, size, page uint64) error {
	return extmem("rte_extmem_register", base, size, page, 1)
}

// Unregister ends what Register began.
func Unregister(base uintptr, size uint64) error {
	return extmem("rte_extmem_unregister", base, size, 0, 0)
}

func extmem(call string, base uintptr, size, page uint64, on C.int) error {
	return failed(call, C.ps_extmem(C.uintptr_t(base), C.size_t(size), C.size_t(page), on))
}
