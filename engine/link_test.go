package engine

import "testing"

// TestLinkUp has a reader see each change together with its count, and counts no word that changes
// nothing.
func TestLinkUp(t *testing.T) {
	const changes = 20_000
	var l LinkUp
	l.Begin(true)
	if s := l.State(); s != (LinkState{Up: true}) || l.Set(true) {
		t.Errorf("it begins with %+v", s)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range changes {
			if up := i%2 != 0; !l.Set(up) || l.Set(up) {
				t.Errorf("change %d", i)
			}
		}
	}()
	for last := uint64(0); last < changes; {
		s := l.State()
		if s.Up != (s.Changes%2 == 0) || s.Changes < last {
			t.Fatalf("%+v, seen after %d changes", s, last)
		}
		last = s.Changes
	}
	<-done
	l.Begin(false)
	if s := l.State(); s != (LinkState{}) {
		t.Errorf("it begins with %+v", s)
	}
}
