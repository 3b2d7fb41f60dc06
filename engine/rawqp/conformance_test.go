package rawqp

import (
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
)

// harness is two ports of the stand-in's, on one segment.
func harness(script string, o Options, mtu int) enginetest.Harness {
	return enginetest.Harness{
		MinPacket: 60,
		Open: func(t testing.TB) enginetest.Pair {
			f := onStand(t, "raw on; "+script)
			a := f.port(t, engine.PortSpec{Address: "fake0", MTU: mtu, Options: o})
			b := f.port(t, engine.PortSpec{Address: "fake1", MTU: mtu, Options: &o})
			return enginetest.Pair{A: a, B: b, SetLink: func(up bool) {
				word := map[bool]string{true: "up", false: "down"}[up]
				f.do(t, "port 0 "+word+"; port 1 "+word)
				until(t, "the ports to know", func() bool { return a.Info().Up == up && b.Info().Up == up })
			}}
		},
	}
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name, script string
		o            Options
		mtu          int
	}{
		{"post", "mode post", Options{}, 1500},
		{"wire", "mode wire", Options{SendDepth: 7, Checksum: true}, 1500},
		{"ticks", "mode wire; absent wallclock", Options{}, 1500},
	} {
		t.Run(c.name, func(t *testing.T) { enginetest.Run(t, harness(c.script, c.o, c.mtu)) })
	}
}
