//go:build dpdk

package dpdk

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/engine"
)

// processors are those of the process, not of a thread that is bound to some: all goroutines get
// the same arguments.
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

// thisMachine looks at the machine, and at the card of an address.
func thisMachine(a engine.Address) machine {
	m := machine{PID: os.Getpid(), CPUs: processors(), Memory: math.MaxInt}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kb int
		if _, err := fmt.Sscanf(string(b), "MemTotal: %d", &kb); err == nil {
			m.Memory = kb << 10
		}
	}
	pools, _ := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*/free_hugepages")
	for _, p := range pools {
		if b, err := os.ReadFile(p); err == nil && strings.TrimSpace(string(b)) != "0" {
			m.Huge = true
		}
	}
	if pci := cardOf(a.Where); pci != "" {
		driver, err := os.Readlink("/sys/bus/pci/devices/" + pci + "/driver")
		_, iommu := os.Stat("/sys/bus/pci/devices/" + pci + "/iommu_group")
		m.Direct = err == nil && (strings.Contains(filepath.Base(driver), "uio") || iommu != nil &&
			filepath.Base(driver) == "vfio-pci")
	}
	return m
}
