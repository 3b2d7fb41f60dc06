package rawqp

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/engine"
)

// CheckPort says what OpenPort says, and leaves nothing at the device: the stand-in reports what
// was left.
func TestCheckPort(t *testing.T) {
	for _, c := range []struct {
		script, address string
		options         any
		want            error
	}{
		{"raw on", "fake0", nil, nil},
		{"", "fake0", nil, ErrNoRaw},
		{"raw on", "fake9", nil, engine.ErrNotFound},
		{"raw on", "fake0", Options{Port: -1}, engine.ErrInvalid},
		{"raw on", "fake0", 7, engine.ErrInvalid},
	} {
		f := onStand(t, c.script)
		spec := engine.PortSpec{Address: c.address, Options: c.options}
		holds, err := f.eng.CheckPort(t.Context(), spec)
		if holds != "" || !errors.Is(err, c.want) {
			t.Errorf("%+v: %q, %v", c, holds, err)
		}
		p, opened := f.eng.OpenPort(t.Context(), spec)
		if opened == nil {
			p.Close()
		}
		if !errors.Is(opened, c.want) {
			t.Errorf("%+v: CheckPort says %v, and OpenPort %v", c, err, opened)
		}
	}
}
