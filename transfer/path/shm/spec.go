package shm

import "github.com/penstock-io/penstock/transfer/path/setup"

// Spec describes the path.
var Spec = setup.Spec{Name: Driver{}.Name(), Doc: "Shared memory between processes of one user on this machine.",
	New: func(bool) (any, func() (setup.Driver, error)) {
		return nil, func() (setup.Driver, error) { return Driver{}, nil }
	}}
