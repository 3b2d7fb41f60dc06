package driver

import (
	"errors"
	"fmt"
	"strings"
)

// Kinds of errors; match them with errors.Is. Each error that wraps one says what happened, where,
// and what to do about it.
var (
	// ErrUnavailable means that there is no such runtime or device on this machine: no library, no
	// device, no permission.
	ErrUnavailable = errors.New("accelerator not available on this machine")
	// ErrOutOfMemory means that the device, or the host where it must pin memory, has too little
	// left. What was there before is as it was.
	ErrOutOfMemory = errors.New("out of accelerator memory")
	// ErrDeviceLost means that the device no longer works for this context: a fault in a kernel, a
	// reset, a card off the bus. Memory of the context has undefined content and everything in it
	// must be closed.
	ErrDeviceLost = errors.New("accelerator lost")
	// ErrArch means that no form of a program fits the device: another architecture, or a newer
	// form than its driver reads.
	ErrArch = errors.New("no form of the program fits this accelerator")
	// ErrBuild means that the runtime refuses a program's source; the error has its log.
	ErrBuild = errors.New("program does not compile")
	// ErrDriver means that the runtime's library refused a call, or is too old for it.
	ErrDriver = errors.New("accelerator's driver refused")
	// ErrUnsupported means that the device cannot do what was asked for; its capabilities say why.
	ErrUnsupported = errors.New("not a capability of this accelerator")
)

// Error is what a runtime's library said.
type Error struct {
	Kind error  // one of the sentinels
	Op   string // what was called: "cuMemAlloc", "clBuildProgram"
	Code int    // the library's number
	Name string // the library's name for it: "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // what happened, as far as it is known: sizes, names; "" for nothing more
	Hint string // what to do about it; "" where that is not known
	Log  string // of a compiler; "" where there is none
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %s", e.Kind, e.Op)
	if e.Name != "" || e.Code != 0 {
		fmt.Fprintf(&b, ": %s (%d)", e.Name, e.Code)
	}
	for _, part := range []string{e.Text, e.Hint} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	if e.Log != "" {
		b.WriteString("\n" + strings.TrimRight(e.Log, "\n"))
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Kind }
