package doctor

import (
	"errors"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
)

// checkDPDK looks at this program, and at the libraries of the machine.
func checkDPDK(x *exam) {
	d := x.f.DPDK
	var seen []string
	for _, i := range x.n.Interfaces {
		s := drivers.Get(i.Engine)
		if s == nil || !s.Built() || !s.Needs.VFIO || slices.Contains(seen, i.Engine) {
			continue
		}
		seen = append(seen, i.Engine)
		switch err := s.New().Available(); {
		case errors.Is(err, engine.ErrNotBuilt):
			x.add(Finding{Subject: "engine " + i.Engine, Verdict: Fail, Read: "this program was built without it",
				Needed: "a build with the tag dpdk",
				Fix:    []string{"CGO_ENABLED=1 go build -tags dpdk ./cmd/penstock"}})
		case err != nil:
			x.add(Finding{Subject: "engine " + i.Engine, Verdict: Fail, Read: err.Error(),
				Needed: "libraries of DPDK that the program loads", Fix: []string{"apt-get install libdpdk-dev"}})
		default:
			x.ok("engine "+i.Engine, "this program has it")
		}
		if d.Build == "" && d.Runtime == nil {
			x.add(Finding{Subject: "libdpdk", Verdict: Fail, Read: "not found where libraries are",
				Needed: "DPDK 22.11 or later", Fix: []string{"apt-get install libdpdk-dev",
					"on Fedora and RHEL: dnf install dpdk-devel"}})
			continue
		}
		x.ok("libdpdk", "to run: "+orNone(strings.Join(d.Runtime, ", "))+"; to build: "+orNone(d.Build))
	}
	if x.out == nil {
		x.skip("no engine of DPDK is asked for")
	}
}
