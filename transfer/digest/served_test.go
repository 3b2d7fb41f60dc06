package digest

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
)

// A digest is continued by the request that follows the last one, and no other. What a peer has
// open is bounded.
func TestServed(t *testing.T) {
	var s Served
	ask := func(id byte, at uint64) (*Open, error) {
		return s.Take(&control.Digest{ID: observe.ID{id}, At: at})
	}
	d, err := ask(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.Bytes = 10
	s.Give(d)
	if again, err := ask(1, 10); again != d || err != nil {
		t.Errorf("continued: %v", err)
	}
	if _, err := ask(1, 10); !errors.Is(err, control.NotFound) {
		t.Errorf("continued while it is: %v", err)
	}
	s.Give(nil)
	if len(s.kept) != 0 || s.busy != 0 {
		t.Errorf("%d digests are kept, %d busy", len(s.kept), s.busy)
	}
	for i := range MaxAsked {
		if _, err := ask(byte(i), 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ask(0, 0); !errors.Is(err, control.Busy) {
		t.Errorf("one request too many: %v", err)
	}
	for range MaxAsked {
		s.Give(nil)
	}
	for i := range MaxKept + 10 {
		d, err := s.Take(&control.Digest{ID: observe.ID{byte(i), byte(i >> 8)}})
		if err != nil {
			t.Fatal(err)
		}
		s.Give(d)
		s.busy++ // one that the peer asks for twice at once
		s.Give(d)
	}
	if len(s.kept) != MaxKept || s.kept[0].ID != (observe.ID{10}) || s.busy != 0 {
		t.Errorf("%d digests are kept, the oldest %v, %d busy", len(s.kept), s.kept[0].ID, s.busy)
	}
}
