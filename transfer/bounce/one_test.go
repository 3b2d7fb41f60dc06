package bounce

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// process is memory of another process: the CPU copies, and no copy is waited for.
type process struct{ card }

func (process) Staging() mem.Provider { return mem.Pages }

// CarryOne takes work that waits for nothing: of memory that the CPU copies, once there is a slot,
// but not of a device that copies by itself.
func TestCarryOne(t *testing.T) {
	const size = 4096
	var left atomic.Int64
	left.Store(-1)
	for name, m := range map[string]mem.Mover{"process": process{card{make([]byte, size), &left}},
		"card": card{make([]byte, size), &left}} {
		t.Run(name, func(t *testing.T) {
			ours, err := New(Least, errors.New("closed"))
			if err != nil {
				t.Fatal(err)
			}
			w := &world{t: t, kind: path.Put, far: path.Key{Index: 1 << 20}, lent: map[path.Key]mem.Span{}}
			there, _ := host(t, size)
			w.lent[w.far] = there.All()
			r, err := mem.AdoptMapping(name, mem.Mapping{Kind: mem.Device, Size: size, PageSize: 4096, FD: -1,
				NUMANode: -1, Mover: m})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			p := NewPeer(t.Context(), ours, w)
			work := Work{Kind: path.Put, Copies: []path.Copy{{Local: r.All(), Key: w.far}}, Bytes: size, Blocks: 3,
				Plain: 64 << 10}
			ended := make(chan error, 1)
			one := func() bool {
				return p.CarryOne(t.Context(), work, &ends{world: w}, func(err error) { ended <- err })
			}
			if one() {
				t.Fatal("it has taken a slot that does not exist")
			}
			if err := p.Carry(t.Context(), work, &ends{world: w}); err != nil { // makes a slot
				t.Fatal(err)
			}
			if took := one(); took != (name == "process") {
				t.Fatalf("taken: %t", took)
			} else if took {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			if err := errors.Join(ours.Verify(), ours.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}
