package system

import (
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
)

// Engines is a table of all engines of this build (package engine/drivers). The engine sim is the
// network of the process (sim.Default). Those that a file may name and that are not built are in it
// too, and say so.
func Engines() *engine.Table {
	t, _ := drivers.Engines() // it fails for names that are there twice, and the table refuses those
	return t
}
