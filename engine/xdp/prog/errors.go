package prog

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/penstock-io/penstock/internal/sys"
)

// The errors of this package; what is returned wraps one of them, or flow.Problems.
var (
	// ErrSpec: the specification cannot be.
	ErrSpec = errors.New("bad specification")
	// ErrTooLarge: the rules need more than a program can have. The text names the limit.
	ErrTooLarge = errors.New("the rules are too much for one XDP program")
	// ErrPermission: a capability is missing. The text names it.
	ErrPermission = errors.New("not permitted")
	// ErrUnavailable: the kernel or the driver cannot do it. The text says what is missing.
	ErrUnavailable = errors.New("not available")
	// ErrInterface: there is no such interface in the network namespace of the calling thread.
	ErrInterface = errors.New("no such interface")
	// ErrOccupied: another XDP program is on the interface; see OccupiedError.
	ErrOccupied = errors.New("another XDP program is on the interface")
	// ErrClosed: the program was closed.
	ErrClosed = errors.New("closed")
)

// kernelError is an answer of the kernel with what it means. With %+v it shows the log of the
// kernel's verifier, for developers.
type kernelError struct {
	what string // was tried
	why  string // it failed, and how to fix it; empty if unknown
	kind error  // of this package; may be nil
	err  error
}

func (e *kernelError) Error() string {
	if e.why == "" {
		return fmt.Sprintf("prog: %s: %v", e.what, e.err)
	}
	return fmt.Sprintf("prog: %s: %v: %s (%v)", e.what, e.kind, e.why, e.err)
}

func (e *kernelError) Unwrap() []error {
	if e.kind == nil {
		return []error{e.err}
	}
	return []error{e.kind, e.err}
}

// Format writes the error; with %+v also the verifier's log.
func (e *kernelError) Format(f fmt.State, verb rune) {
	io.WriteString(f, e.Error())
	var v *ebpf.VerifierError
	if f.Flag('+') && errors.As(e.err, &v) {
		fmt.Fprintf(f, "\n%s", strings.Join(v.Log, "\n"))
	}
}

// explain makes an error of this package of one of the kernel.
func explain(what string, err error) error {
	if err == nil {
		return nil
	}
	e := &kernelError{what: what, err: err}
	switch {
	case errors.Is(err, sys.EPERM):
		e.kind, e.why = ErrPermission, missing()
	case errors.Is(err, sys.ENOMEM):
		e.kind, e.why = ErrTooLarge, "the kernel has no memory for it: use fewer rules, or free memory"
	case errors.Is(err, sys.E2BIG):
		e.kind, e.why = ErrTooLarge,
			"the kernel's limit of 1,000,000 steps of verification, or of the size of a map: use fewer different fields"
	case errors.Is(err, sys.ENODEV), errors.Is(err, sys.ENOLINK):
		e.kind, e.why = ErrInterface, "it was deleted, or is in another network namespace"
	case errors.Is(err, sys.ENOSYS):
		e.kind, e.why = ErrUnavailable, "the kernel is built without BPF (CONFIG_BPF_SYSCALL)"
	case errors.Is(err, sys.ERANGE):
		e.kind, e.why = ErrUnavailable,
			"frames of this MTU do not fit into one buffer of the driver: set Frags where the driver has XDP for "+
				"several buffers, or lower the MTU"
	case errors.Is(err, sys.EOPNOTSUPP):
		e.kind, e.why = ErrUnavailable, "the driver or the kernel does not have it"
	}
	var v *ebpf.VerifierError
	if errors.As(err, &v) && e.kind == nil {
		if log := strings.Join(v.Log, "\n"); strings.Contains(log, "invalid func") ||
			strings.Contains(log, "unknown func") {
			e.kind, e.why = ErrUnavailable,
				"the kernel is older than Linux 5.18, which reads frames in several buffers: use a newer one, or the "+
					"engine afpacket"
		} else if strings.Contains(log, "too large") || strings.Contains(log, "too complex") {
			e.kind, e.why = ErrTooLarge,
				"the kernel's limit of 1,000,000 steps of verification: use fewer different fields"
		}
	}
	return e
}

// missing says which rights the calling thread lacks for XDP programs.
func missing() string {
	var lack []string
	for _, c := range []struct {
		number int
		name   string
	}{{sys.CapNetAdmin, "CAP_NET_ADMIN"}, {sys.CapBPF, "CAP_BPF"}} {
		if has, err := sys.HasCapability(c.number); err == nil && !has {
			lack = append(lack, c.name)
		}
	}
	if lack == nil {
		return "CAP_NET_ADMIN and CAP_BPF are there, but count only outside of user namespaces, and not where a " +
			"security module or a seccomp profile forbids bpf(2): run outside of the container, or allow bpf"
	}
	return strings.Join(lack, " and ") + " is missing: run as root, or \"" + setcap + "\" the program"
}

// setcap gives a program the capabilities that it needs here.
const setcap = "setcap cap_net_admin,cap_bpf,cap_perfmon+ep"
