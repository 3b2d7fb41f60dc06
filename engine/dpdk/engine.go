//go:build dpdk

package dpdk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/internal/host"
)

// Available implements engine.Engine.
func (*Engine) Available() error { return nil }

// CheckPort implements engine.Checker. It starts nothing: whether the device is there only its driver can say.
func (*Engine) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	a, o, err := settle(spec)
	if err != nil {
		return "", err
	}
	if err := o.agrees(cdpdk.Running()); err != nil {
		return "", err
	}
	name, _, _ := strings.Cut(a.Where, ",")
	return "device " + name, nil
}

// agrees is the error of options of EAL that are not those with which it runs.
func (o *Options) agrees(running []string) error {
	if running == nil {
		return nil
	}
	for _, huge := range []bool{true, false} {
		if args := o.Args(huge, cores(), os.Getpid()); slices.Equal(args, running) && (o.Huge == HugeAuto || huge == (o.Huge == HugeOn)) {
			return nil
		}
	}
	return fmt.Errorf("dpdk: EAL runs in this process with %q, and the options of this port are others: give all ports the same cores, memory, huge, file_prefix, drivers and log: %w",
		strings.Join(running, " "), engine.ErrInUse)
}

// cores are those that the process may run on, as a list.
func cores() string {
	b, err := os.ReadFile("/proc/self/status")
	if err == nil {
		for line := range strings.Lines(string(b)) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				return strings.TrimSpace(list)
			}
		}
	}
	return "0"
}

// freeHuge is the memory in free huge pages in bytes.
func freeHuge() (n int) {
	pools, _ := host.HugePages(os.DirFS("/"), -1) // without any, EAL takes ordinary memory
	for _, p := range pools {
		n += int(p.Free) * int(p.Size)
	}
	return n
}

// start starts EAL.
func (o *Options) start() error {
	running := cdpdk.Running()
	if err := o.agrees(running); err != nil || running != nil {
		return err
	}
	huge := o.Huge == HugeOn || o.Huge == HugeAuto && freeHuge() >= o.Heap
	args := o.Args(huge, cores(), os.Getpid())
	if err := cdpdk.Start(args); err != nil {
		return fmt.Errorf("dpdk: %w%s: %w", err, advice(err), engine.ErrUnavailable)
	}
	return nil
}

// advice says what to do about an error of DPDK.
func advice(err error) string {
	var e *cdpdk.Error
	if !errors.As(err, &e) {
		return ""
	}
	for _, x := range advices {
		if x.errno != 0 && x.errno != e.Errno || !strings.Contains(strings.ToLower(e.Log+" "+e.Call), x.says) {
			continue
		}
		return ": " + x.do
	}
	return ""
}

// advices are what EAL and drivers write about what is missing, in small letters, the first that fits.
var advices = []struct {
	says  string
	errno syscall.Errno
	do    string
}{
	{"hugepage", 0, "reserve huge pages (echo 512 >/proc/sys/vm/nr_hugepages), or say huge: off"},
	{"invalid parameters for --lcores", 0, "cores names cores that the process does not have"},
	{"cannot open shared object", 0, "drivers names a file that is not there"},
	{"memlock", 0, "raise the limit of locked memory (ulimit -l)"},
	{"vfio", 0, "bind the card to vfio-pci (penstock tune driver), and switch the IOMMU on (intel_iommu=on or amd_iommu=on)"},
	{"rte_eal_init", syscall.ENOMEM, "memory asks for more than there is"},
	{"rte_eal_init", syscall.EACCES, "run as root, or give the program CAP_IPC_LOCK and CAP_SYS_RAWIO"},
	{"rte_dev_probe", syscall.ENODEV, "no driver has found the device: bind a card to vfio-pci (penstock tune driver); a virtual device is named by its driver, such as net_ring0"},
	{"rte_dev_probe", syscall.EEXIST, "another port of this process has the device"},
}

// OpenPort implements engine.Engine. spec.Address is a place on the PCI bus or a virtual device with its arguments, and spec.Options an Options or a
// pointer to one.
func (*Engine) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a, o, err := settle(spec)
	if err != nil {
		return nil, err
	}
	if err := o.start(); err != nil {
		return nil, err
	}
	return open(spec, a.Where, o)
}
