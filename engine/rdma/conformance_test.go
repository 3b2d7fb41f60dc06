package rdma

import (
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
)

// harness is connected ports of the fake's devices.
func harness(script string, o Options) enginetest.Harness {
	most := 9000
	if o.Transport == UD {
		most = 0 // what the port says
	}
	return enginetest.Harness{
		MaxPacket:  most,
		Boundaries: []int{64, 1024, 2048, 4096},
		Open: func(t testing.TB) enginetest.Pair {
			s, c, id := onFake(t, script).pair(t, o, o)
			return enginetest.Pair{A: c, B: s, Conn: func(from engine.Port) uint32 {
				if from == engine.Port(s) {
					return id
				}
				return 0
			}}
		},
		Rx: func(spec *engine.RxSpec) {
			if len(spec.Pools) == 1 && spec.Pools[0].SlotSize() == 512 { // packets are longer than slots there
				spec.Options = RxOptions{MaxMessage: 2048}
			}
		},
	}
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name, script string
		o            Options
	}{
		{"post", "mode post", Options{}},
		{"UC", "mode wire", Options{Transport: UC}},
		{"wire", "mode wire", Options{SendDepth: 7, SignalEvery: 3, Inline: -1}},
	} {
		t.Run(c.name, func(t *testing.T) { enginetest.Run(t, harness(c.script, c.o)) })
	}
}
