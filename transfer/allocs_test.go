package transfer

import (
	"context"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/transfer/path"
)

// putAllocs is how many Go objects a convenience put of one block takes on both sides together,
// callbacks not counted: the transfer, its channel, and what the receiver's notification needs.
const putAllocs = 12

func TestPutAllocatesLittle(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{})
			src, dst := region(t, 4096), region(t, 4096)
			export(t, p.b, dst, "dst", path.Write)
			copies := []path.Copy{lookup(t, p.ab, "dst").At(0, src.All())}
			only := []string{name}
			put := func() {
				x, err := p.ab.Put(context.Background(), copies, PutOptions{Paths: only})
				wait2(t, x, err)
				<-p.heard
			}
			put()
			if n := testing.AllocsPerRun(200, put); !testenv.Race && n > putAllocs {
				t.Errorf("%v allocations per put, expected at most %d", n, putAllocs)
			} else {
				t.Logf("%v allocations per put", n)
			}
		})
	}
}

// wait2 waits without a context of its own, which would allocate.
func wait2(t *testing.T, x *Transfer, err error) {
	if err == nil {
		<-x.Done()
		err = x.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}
