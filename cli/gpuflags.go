package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/gpu/runtimes"
	"github.com/penstock-io/penstock/mem"
	"github.com/spf13/cobra"
)

// gpuFlags are the flags of commands that may use the memory of an accelerator.
type gpuFlags struct {
	runtime string
	device  int
}

// flags adds them to a command.
func (g *gpuFlags) flags(c *cobra.Command) {
	g.runtimeFlag(c, "the runtime of the accelerator", "the best there is")
	c.Flags().IntVar(&g.device, "gpu", 0, "number of the accelerator in its runtime, as penstock devices counts")
	fromEnvironment(c, "gpu")
}

// runtimeFlag adds the runtime alone.
func (g *gpuFlags) runtimeFlag(c *cobra.Command, what, none string) {
	c.Flags().StringVar(&g.runtime, "gpu-runtime", "",
		what+": "+strings.Join(gpuRuntimes(), ", ")+" (default: "+none+")")
	complete(c, "gpu-runtime", gpuRuntimes()...)
	fromEnvironment(c, "gpu-runtime")
}

// gpuRuntimes are the words for a runtime.
func gpuRuntimes() []string { return append([]string{"auto"}, runtimes.Table().Names()...) }

// name is the runtime that was asked for, "" for the best there is.
func (g *gpuFlags) name() string {
	if g.runtime == "auto" {
		return ""
	}
	return g.runtime
}

// check is a usage error for a runtime that this program does not have.
func (g *gpuFlags) check() error {
	if g.runtime != "" && !slices.Contains(gpuRuntimes(), g.runtime) {
		return &usageError{fmt.Errorf("--gpu-runtime %s: expected %s", g.runtime, strings.Join(gpuRuntimes(), ", "))}
	}
	if g.device < 0 {
		return &usageError{fmt.Errorf("--gpu %d: expected a number from 0", g.device)}
	}
	return nil
}

// memoryKinds are the words for memory on a command line.
var memoryKinds = map[string]mem.Kind{"host": mem.Host, "pinned": mem.HostPinned, "device": mem.Device}

// memoryKind reads the value of a flag.
func memoryKind(value string) (mem.Kind, error) {
	k, ok := memoryKinds[value]
	if !ok {
		return 0, &usageError{fmt.Errorf("memory %q: expected host, pinned or device", value)}
	}
	return k, nil
}

// place is the memory of one side of a benchmark: one word for both sides, unless there is one for
// this.
func (g *gpuFlags) place(both, one string) (bench.Place, error) {
	if err := g.check(); err != nil {
		return bench.Place{}, err
	}
	k, err := memoryKind(cmp.Or(one, both))
	if err != nil || k == mem.Host {
		return bench.Place{}, err
	}
	return bench.Place{Kind: k, Runtime: g.name(), Device: g.device}, nil
}
