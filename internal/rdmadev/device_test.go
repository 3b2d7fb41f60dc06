package rdmadev

import (
	"testing"

	"github.com/penstock-io/penstock/internal/ibv"
)

// The owner of a completion queue is called between Own and Disown, and no other one.
func TestOwners(t *testing.T) {
	d := Device{owners: map[*ibv.CQ]func(){}}
	a, b := &ibv.CQ{}, &ibv.CQ{}
	var calls [2]int
	d.Own(a, func() { calls[0]++ })
	d.Own(b, func() { calls[1]++; d.Disown(b) }) // an owner may close its queue
	d.Notify(a)
	d.Notify(b)
	d.Notify(b)
	d.Disown(a)
	d.Notify(a)
	if calls != [2]int{1, 1} {
		t.Errorf("calls of the owners: %v", calls)
	}
}
