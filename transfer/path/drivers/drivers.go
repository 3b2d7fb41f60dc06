// Package drivers is the table of the transfer paths in this build.
//
//	all, err := drivers.New(drivers.Options{})                                              // what the machine has, the best first
//	rdma, err := drivers.New(drivers.Options{Names: []string{"verbs"}, Verbs: verbs.Options{Device: "mlx5_0"}})
//
// A program that opens a node has New make the list, so that a path is the same thing on the
// command line, in a configuration and in a benchmark. What the machine lacks is still in the list:
// Probe tells, and a node leaves it out with the reason.
package drivers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/shm"
	"github.com/penstock-io/penstock/transfer/path/tcp"
	"github.com/penstock-io/penstock/transfer/path/verbs"
)

// Options say which drivers are wanted and shape them.
type Options struct {
	Names []string // those that are wanted, in order of preference, each once; nil: all of Names()
	// Insecure permits paths to other machines that are not encrypted. An attacker on the way can
	// read and change everything.
	Insecure bool

	SHM   shm.Driver
	TCP   tcp.Options   // New sets Insecure
	Verbs verbs.Options // New sets Insecure
}

// Names are the names of all drivers, the preferred one first.
func Names() []string { return []string{shm.Driver{}.Name(), tcp.Name, verbs.Name} }

// New makes the drivers. Nothing is opened. A name that is not known or there twice, and options
// out of range are errors.
func New(o Options) ([]setup.Driver, error) {
	if o.Names == nil {
		o.Names = Names()
	}
	out := make([]setup.Driver, 0, len(o.Names))
	for i, name := range o.Names {
		if slices.Contains(o.Names[:i], name) {
			return nil, fmt.Errorf("path %q is there twice: name each path once", name)
		}
		var d setup.Driver
		switch name {
		case shm.Driver{}.Name():
			d = o.SHM
		case tcp.Name:
			o.TCP.Insecure = o.Insecure
			d = tcp.New(o.TCP)
		case verbs.Name:
			o.Verbs.Insecure = o.Insecure
			d = verbs.New(o.Verbs)
		default:
			return nil, fmt.Errorf("path %q: expected %s", name, strings.Join(Names(), " or "))
		}
		if c, ok := d.(setup.Checker); ok {
			if err := c.Check(); err != nil {
				return nil, err
			}
		}
		out = append(out, d)
	}
	return out, nil
}

// Probe says whether this machine can have paths of a driver now: nil, or what is missing and how
// to get it. It leaves nothing open.
func Probe(d setup.Driver) error {
	if p, ok := d.(setup.Prober); ok {
		return p.Probe()
	}
	return nil
}
