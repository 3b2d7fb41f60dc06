package sys

import (
	"testing"
	"time"
)

// TestTimerfd: a descriptor that has become readable is not when it is set again, and is again when
// that time has passed.
func TestTimerfd(t *testing.T) {
	fd, err := Timerfd(0)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(fd)
	readable := func(ms int) bool {
		t.Helper()
		i, err := PollIn(ms, fd)
		for until := time.Now().Add(time.Duration(ms) * time.Millisecond); err == nil && i < 0 &&
			time.Now().Before(until); {
			// a signal came
			i, err = PollIn(ms, fd)
		}
		if err != nil {
			t.Fatal(err)
		}
		return i == 0
	}
	if !readable(30_000) {
		t.Error("it never became readable")
	}
}
