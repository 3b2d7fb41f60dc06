package rdma

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/engine"
)

// CheckPort says what OpenPort says, and leaves nothing at the device: the stand-in reports what
// was left.
func TestCheckPort(t *testing.T) {
	for _, c := range []struct {
		spec  engine.PortSpec
		holds string
		want  error
	}{
		{engine.PortSpec{Address: "roce://127.0.0.1:0?listen=1&device=fake0"}, "", nil},
		{engine.PortSpec{Address: "roce://127.0.0.1:5000?listen=1&device=fake0"}, "roce://127.0.0.1:5000", nil},
		{engine.PortSpec{Address: "roce://127.0.0.1:0?listen=1&device=fake9"}, "", engine.ErrNotFound},
		{engine.PortSpec{Address: "roce://127.0.0.1:0?listen=1&device=fake0", Isolated: true}, "", engine.ErrUnsupported},
		{engine.PortSpec{Address: "roce://127.0.0.1:0?listen=1&device=fake0", Options: Options{MTU: 7}}, "", engine.ErrInvalid},
	} {
		f := onFake(t, "")
		holds, err := f.engine.CheckPort(within(t), c.spec)
		if holds != c.holds || !errors.Is(err, c.want) {
			t.Errorf("%+v: %q, %v", c.spec, holds, err)
		}
		p, opened := f.engine.OpenPort(within(t), c.spec)
		if opened == nil {
			p.Close()
		}
		if (err == nil) != (opened == nil) || err != nil && err.Error() != opened.Error() {
			t.Errorf("%+v: CheckPort says %v, and OpenPort %v", c.spec, err, opened)
		}
	}
}
