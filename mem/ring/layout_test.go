package ring

import (
	"reflect"
	"testing"
)

// TestLayoutKeepsSidesApart fails unless a whole line of distance lies between
// what different sides write (and the neighbours on the heap), so that no
// alignment of the struct can put them on the same or on adjacent cache lines.
func TestLayoutKeepsSidesApart(t *testing.T) {
	for _, c := range []struct {
		ring   reflect.Type
		groups [][]string // fields that one side writes
	}{
		{reflect.TypeFor[SPSC[uint64]](), [][]string{{"slots", "mask", "pointers"}, {"producer"}, {"consumer"}}},
		{reflect.TypeFor[MPSC[uint64]](), [][]string{{"slots", "mask", "pointers"}, {"tail", "seen", "retries"}, {"head"}}},
		{reflect.TypeFor[MPMC[uint64]](), [][]string{{"slots", "mask", "pointers"}, {"tail"}, {"head"}}},
	} {
		fields := 0
		var end uintptr // of the group before
		for i, group := range c.groups {
			last := end
			for _, name := range group {
				f, ok := c.ring.FieldByName(name)
				if !ok {
					t.Fatalf("%v has no field %s", c.ring, name)
				}
				if i > 0 && f.Offset < end+lineSize {
					t.Errorf("%v: %s lies %d bytes behind what another side writes, want %d", c.ring, name,
						f.Offset-end, lineSize)
				}
				last = max(last, f.Offset+f.Type.Size())
				fields++
			}
			end = last
		}
		if c.ring.Size() < end+lineSize {
			t.Errorf("%v: the next object begins %d bytes behind the last side, want %d", c.ring, c.ring.Size()-end,
				lineSize)
		}
		for i := range c.ring.NumField() {
			if c.ring.Field(i).Name == "_" {
				fields++
			}
		}
		if fields != c.ring.NumField() {
			t.Errorf("%v has fields that this test does not know", c.ring)
		}
	}
	for _, s := range []reflect.Type{reflect.TypeFor[MessagesWriter](), reflect.TypeFor[MessagesReader]()} {
		if last := s.Field(s.NumField() - 1); last.Name != "_" || last.Type.Size() != lineSize {
			t.Errorf("%v does not end in padding", s)
		}
	}
}
