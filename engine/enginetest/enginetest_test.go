package enginetest

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/testenv"
)

func fakeHarness(s Shape, f flaw) Harness {
	return Harness{
		Open: func(t testing.TB) Pair {
			e := NewFake(s)
			e.flaw = f
			p := Pair{SetLink: e.SetLink, Held: e.Held}
			for at, to := range map[string]*engine.Port{"a": &p.A, "b": &p.B} {
				port, err := e.OpenPort(t.Context(), engine.PortSpec{Address: at})
				if err != nil {
					t.Fatal(err)
				}
				*to = port
			}
			if s == Stream {
				p.Conn = func(engine.Port) uint32 { return streamConn }
			}
			return p
		},
		OwnRx: s == Foreign || s == Blocks,
		OwnTx: s == Foreign,
	}
}

func TestFakes(t *testing.T) {
	for s := range numShapes {
		for _, virtual := range []bool{false, true} {
			if virtual && s != Plain && (testenv.Race || testenv.Invariants) {
				continue // the plain build of the same run has it
			}
			t.Run(fmt.Sprintf("%v virtual=%v", s, virtual), func(t *testing.T) {
				h := fakeHarness(s, sound)
				h.Virtual = virtual
				Run(t, h)
			})
		}
	}
}

// TestSame runs the same programs over all shapes.
func TestSame(t *testing.T) {
	for seed := range uint64(3) {
		p := NewProgram(100+seed, 20)
		for s := range numShapes {
			Same(t, p, fakeHarness(Plain, sound), fakeHarness(s, sound))
		}
	}
}
