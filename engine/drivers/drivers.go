// Package drivers is the table of the packet engines in this build. What a program knows of engines
// (their keys in configuration files and addresses, what they need of a machine, how to open them)
// it knows from here: no other package asks for an engine by its name.
//
//	for _, s := range drivers.Table() { fmt.Println(s.Name, s.Doc) }
//	err := drivers.Add(&mine.Spec) // an engine from outside, before the first configuration is read
//
// An engine is a package with a Spec, and one line in the table.
package drivers

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/dpdk"
	"github.com/penstock-io/penstock/engine/null"
	"github.com/penstock-io/penstock/engine/rawqp"
	"github.com/penstock-io/penstock/engine/rdma"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/engine/xdp"
)

var table = append([]*engine.Spec{
	// Of several engines that could open an address the first one does, if none is named.
	&xdp.Spec,
	&afpacket.Spec,
	&socket.Spec,
	&sim.Spec,
	&rawqp.Spec,
	&rdma.Spec,
	&dpdk.Spec,
	&null.Spec,
}, planned...)

// planned are engines that DAQIRI's files name, or that are to come. Files with them are checked;
// nothing opens them.
var planned = []*engine.Spec{
	{Name: "gpunetio", Doc: "Whole frames into memory of a GPU, whose kernels drive the card.", Capabilities: engine.Capabilities{Frames: true},
		Needs:  engine.Needs{Interface: true, Pins: true},
		Absent: "it needs NVIDIA's DOCA; the engines xdp and afpacket receive into host memory",
		Options: []engine.Option{{Key: "tx_kernel", Of: engine.OfTx, Type: engine.Word,
			Words: []string{"persistent", "per_burst"}, Default: "persistent",
			Doc: "Whether the kernel on the GPU stays."}}},
	{Name: "efa", DAQIRI: "efa_config", Doc: "Messages over AWS's Elastic Fabric Adapter.", Capabilities: engine.Capabilities{Connections: true},
		Needs:  engine.Needs{IP: true},
		Absent: "it needs libfabric and an AWS machine; the engine socket carries the same bytes over udp:// and tcp://",
		Options: []engine.Option{
			{Key: "mode", Type: engine.Word, Words: []string{"client", "server"}, Needed: true, Doc: "A server waits for clients."},
			{Key: "local_port", Type: engine.Int, Min: 0, Max: 65535, Default: "0", Doc: "Port here."},
			{Key: "remote_port", Type: engine.Int, Min: 0, Max: 65535, Default: "0", Doc: "Port of the server."},
		}},
	{Name: "pcie", Doc: "Packets of an FPGA card on the bus.", Absent: "it needs the FPGA card and its driver"},
}

var (
	adding sync.Mutex
	added  []*engine.Spec
	read   bool // Table was called: what follows from it stays as it is
)

// Table is the engines of this build and those that were added, the preferred one first, and behind
// them those that are planned. The caller must not change what it points to.
func Table() []*engine.Spec {
	adding.Lock()
	defer adding.Unlock()
	read = true
	return slices.Concat(table[:len(table)-len(planned)], added, planned)
}

// Add puts an engine into the table, behind those of this build. The error says what is wrong with
// the Spec, that its name is taken (engine.ErrExists), or that Table was called before.
func Add(s *engine.Spec) error {
	adding.Lock()
	defer adding.Unlock()
	if read {
		return fmt.Errorf("drivers: engine %q comes too late: the table was read: add engines in init functions: %w",
			s.Name, engine.ErrInvalid)
	}
	for _, o := range slices.Concat(table, added) {
		if o.Name == s.Name || slices.Contains(o.Aliases, s.Name) ||
			slices.ContainsFunc(s.Schemes, func(x string) bool {
				return slices.Contains(o.Schemes, x)
			}) {
			return fmt.Errorf("drivers: engine %q: its name or a scheme of it is that of engine %q: %w", s.Name, o.Name,
				engine.ErrExists)
		}
	}
	if err := check(s); err != nil {
		return fmt.Errorf("drivers: engine %q: %w: %w", s.Name, err, engine.ErrInvalid)
	}
	added = append(added, s)
	return nil
}

// check says what is wrong with a Spec.
func check(s *engine.Spec) error {
	switch {
	case s.Name == "" || strings.ContainsAny(s.Name, " .:/?[]"):
		return errors.New("it has no name that is valid in a file")
	case s.Doc == "":
		return errors.New("it has no Doc")
	case s.Built() != (s.New != nil):
		return errors.New("it has no New")
	}
	return s.CheckOptions()
}

// Get is the engine of a name; nil if there is none.
func Get(name string) *engine.Spec {
	for _, s := range Table() {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Engines is a table of all engines that a program can open, each new. Those that are planned are
// in it too, and say so.
func Engines() (*engine.Table, error) {
	var all []engine.Engine
	for _, s := range Table() {
		if s.Built() {
			all = append(all, s.New())
		} else {
			all = append(all, engine.NotBuilt(s.Name, s.Absent))
		}
	}
	return engine.NewTable(all...)
}
