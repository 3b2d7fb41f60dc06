// Package toy is a path from outside: this folder and one line, an append to drivers.Table, are all
// that a program needs to have it. Its paths are those of TCP under another name.
package toy

import (
	"errors"

	"github.com/penstock-io/penstock/internal/option"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// Spec is what programs know of the path.
var Spec = setup.Spec{Name: "toy", Doc: "Connections, to show what a path takes.",
	Options: []option.Option{
		{Key: "wheels", Type: option.Int, Min: 1, Max: 99, Default: "4", Field: "Wheels", Doc: "How many wheels it has."},
		{Key: "broken", Type: option.Bool, Default: "false", Field: "Broken", Doc: "Whether it is missing on this machine."},
	},
	New: func(insecure bool) (any, func() (setup.Driver, error)) {
		o := &Options{}
		return o, func() (setup.Driver, error) {
			return Driver{tcp.New(tcp.Options{Insecure: insecure}), *o}, o.check()
		}
	},
}

// Options are the options of the path.
type Options struct {
	Wheels int
	Broken bool
}

func (o *Options) check() error {
	if o.Wheels == 13 {
		return errors.New("toy: Options.Wheels is 13: the toy is superstitious")
	}
	return nil
}

// Driver makes the paths.
type Driver struct {
	*tcp.Driver
	Options
}

// Name implements setup.Driver.
func (Driver) Name() string { return "toy" }

// Probe implements setup.Prober.
func (d Driver) Probe() error {
	if d.Broken {
		return errors.New("toy: this machine has no toy")
	}
	return nil
}
