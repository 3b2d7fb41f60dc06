package inbox

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/transfer/control"
)

// Messages that are not complete are few, and all that is charged for them is given back.
func TestPartsAreBounded(t *testing.T) {
	charged := 0
	l := Parts{Charge: func(n int) error {
		charged += n
		return nil
	}}
	for i := range uint64(2 * MaxParts) {
		if _, err := l.Add(i, 10, 0, make([]byte, 4), 0); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.all) != MaxParts || charged != 10*MaxParts {
		t.Errorf("%d messages are kept, %d bytes charged", len(l.all), charged)
	}
	if _, err := l.Add(0, 10, 4, make([]byte, 6), 0); !errors.Is(err, control.BadRequest) {
		t.Errorf("the oldest goes on: %v", err)
	}
	if b, err := l.Add(2*MaxParts-1, 10, 4, make([]byte, 6), 0); len(b) != 10 || err != nil {
		t.Errorf("the latest has %d bytes: %v", len(b), err)
	}
	charged -= 10 // for who got it
	if _, err := l.Add(100, 10, 0, make([]byte, 4), MaxLong+1); !errors.Is(err, control.Busy) {
		t.Errorf("while too many wait: %v", err)
	}
	lost := errors.New("lost")
	l.End(lost)
	if _, err := l.Add(101, 10, 0, make([]byte, 4), 0); err != lost {
		t.Errorf("after the end: %v", err)
	}
	if charged != 0 {
		t.Errorf("%d bytes are charged at the end", charged)
	}
}
