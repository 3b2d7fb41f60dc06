//go:build dpdk

package dpdk

import (
	"os"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/internal/host"
)

// processors are those of the process, not of a thread that was bound to some: the arguments are the same whoever asks.
var processors = sync.OnceValue(func() string {
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				return strings.TrimSpace(rest)
			}
		}
	}
	return "0"
})

// thisMachine looks at the machine.
func thisMachine() machine {
	m := machine{PID: os.Getpid(), CPUs: processors()}
	pools, _ := host.HugePages(os.DirFS("/"), -1) // without any, DPDK takes ordinary memory
	for _, p := range pools {
		m.Huge = m.Huge || p.Free > 0
	}
	return m
}
