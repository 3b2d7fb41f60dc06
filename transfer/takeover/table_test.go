package takeover

import "testing"

// TestLostSessionsAreBounded checks that what a node remembers of lost sessions does not grow
// without end.
func TestLostSessionsAreBounded(t *testing.T) {
	n := New(false)
	for i := range 2 * maxNodes {
		of := Party{Node: [16]byte{byte(i), byte(i >> 8)}}
		for j := range 3 {
			n.Lose(of, ID{byte(j)})
		}
	}
	if len(n.lost) > maxNodes {
		t.Errorf("%d nodes are remembered, at most %d are expected", len(n.lost), maxNodes)
	}
	for j := range 2 * maxLost {
		n.Lose(Party{}, ID{byte(j), 1})
	}
	if got := len(n.With(Party{})); got > maxLost {
		t.Errorf("%d sessions with one node are remembered, at most %d are expected", got, maxLost)
	}
	n.Forget(Party{}, n.With(Party{}))
	if n.Has(Party{}) {
		t.Error("ended sessions are remembered")
	}
}
