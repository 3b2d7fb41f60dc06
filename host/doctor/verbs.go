package doctor

import (
	"context"
	"encoding/json"

	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/internal/ibv"
)

// askVerbs has libibverbs tell of the devices. It is asked only where there are some.
var askVerbs = host.Source{Name: host.VerbsFile, Ask: func(ctx context.Context) ([]byte, error) {
	return json.Marshal(verbsAnswer(ctx, ""))
}}

// verbsAnswer opens each device and closes it again; library is the file of libibverbs, "" the
// loader's.
func verbsAnswer(ctx context.Context, library string) (out host.VerbsAnswer) {
	l, err := ibv.Load(ibv.Options{Path: library})
	if err != nil {
		out.Error = err.Error()
		return out
	}
	all, err := l.Devices()
	if err != nil {
		out.Error = err.Error()
		return out
	}
	for _, d := range all {
		if err := ctx.Err(); err != nil {
			return host.VerbsAnswer{Error: err.Error()}
		}
		out.Devices = append(out.Devices, verbsDevice(d))
	}
	return out
}

func verbsDevice(d *ibv.Device) (out host.VerbsDevice) {
	out.Name = d.Name()
	failed := func(err error) bool {
		if err != nil && out.Error == "" {
			out.Error = err.Error()
		}
		return err != nil
	}
	c, err := d.Open()
	if failed(err) {
		return out
	}
	defer func() { failed(c.Close()) }()
	a, err := c.Attr()
	if failed(err) {
		return out
	}
	if a.DMABuf != nil {
		out.DMABuf = a.DMABuf.Error()
	}
	for i := range a.Ports {
		p, err := c.Port(i + 1)
		if failed(err) {
			return out
		}
		x := host.VerbsPort{ID: p.Port, MTU: p.ActiveMTU.Bytes(), MaxMTU: p.MaxMTU.Bytes(), GID: -1}
		// That there is none is seen in the table; the error has addresses, which do not belong
		// into a recording.
		if g, _, err := c.ChooseGID(p.Port, ibv.GIDWant{}); err == nil {
			x.GID = g.Index
		}
		out.Ports = append(out.Ports, x)
	}
	return out
}
