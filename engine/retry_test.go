package engine

import "testing"

// Retry wakes a queue that found no slot, each time that it asks; after Stop it does not.
func TestRetry(t *testing.T) {
	w := NewWaker()
	var r Retry
	for range 3 {
		r.Arm(w)
		<-w.C()
	}
	r.Arm(w)
	r.Stop()
	select {
	case <-w.C(): // it was quicker than Stop
	default:
	}
	r.fire() // as a timer does that had begun when Stop came
	select {
	case <-w.C():
		t.Error("woken after Stop")
	default:
	}
}
