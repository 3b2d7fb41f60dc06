package penstock

import (
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/ibverbs"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/engine/verbs"
	"github.com/penstock-io/penstock/engine/xdp"
)

// Engines is a table of all engines of this build. The engine sim is the network of the process (sim.Default). Those that a file may
// name and that are not built are in it too, and say so.
func Engines() *engine.Table {
	all := []engine.Engine{sim.Default, socket.New(), afpacket.New(), xdp.New(), verbs.New(""), ibverbs.New("")}
	for _, e := range []config.Engine{config.DPDK, config.GPUNetIO, config.EFAFabric, config.PCIe} {
		all = append(all, engine.NotBuilt(string(e), e.Missing()))
	}
	t, _ := engine.NewTable(all...) // it fails for names that are there twice, and a test opens each
	return t
}
