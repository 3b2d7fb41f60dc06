package rdmadev

import "testing"

// A queue pair that gets on, or has nothing to do, is never still; one that has is asked soon, then
// now and then, and given up when it has had the time of a slow network.
func TestWatch(t *testing.T) {
	var w Watch
	if n := w.Look(true, 5); n != 0 {
		t.Errorf("the first look: %d", n)
	}
	asked := 0
	for i := 1; i <= 40; i++ {
		n := w.Look(true, 5)
		if n != i {
			t.Fatalf("look %d: %d", i, n)
		}
		if Sparse(n) {
			asked++
		}
	}
	if asked != 6 { // after 1, 2, 4, 8, 16 and 32
		t.Errorf("%d requests in 40 looks", asked)
	}
	if a, b, c := w.Look(true, 6), w.Look(true, 6), w.Look(false, 6); a != 0 || b != 1 || c != 0 {
		t.Errorf("it got on: %d, then not: %d, then had nothing to do: %d", a, b, c)
	}
	if Patience(0) != WatchMost || Patience(5*WatchPace) != WatchMost+5 {
		t.Error("patience does not grow with what is under way")
	}
}
