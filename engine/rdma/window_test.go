package rdma

import (
	"testing"

	"pgregory.net/rapid"
)

// TestWindow is a sender and a receiver whose words get lost, come late and come twice: the sender
// never sends what the receiver has no buffer for, and as long as some word comes, it goes on.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.Uint64Max(1<<40).Draw(t, "start") // as if it had gone on for long
		buffers := rapid.IntRange(1, 40).Draw(t, "buffers")
		g := grants{received: start, limit: start, told: start}
		posted, held := buffers, 0
		g.raise(posted, posted)
		g.told = g.limit
		w := window{sent: start, limit: g.limit}
		var words []uint32
		flying := 0
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0: // send
				if w.room() > 0 {
					w.sent++
					flying++
				}
			case 1: // receive
				if flying == 0 {
					continue
				}
				if flying--; posted == 0 {
					t.Fatal("a message came for which there is no buffer")
				}
				posted--
				held++
				g.received++
			case 2: // the application gives buffers back, and the sender gets a credit when it is time
				posted, held = posted+held, 0
				if g.raise(posted, posted); g.due() {
					words = append(words, uint32(g.limit))
					g.told = g.limit
				}
			case 3: // a word arrives, any of those that were ever sent
				if len(words) > 0 {
					before := w.limit
					if grew := w.raise(words[rapid.IntRange(0, len(words)-1).Draw(t, "word")]); w.limit < before ||
						grew != (w.limit > before) {
						t.Fatalf("the limit went from %d to %d, and grew: %v", before-start, w.limit-start, grew)
					}
				}
			case 4: // the latest word arrives
				if len(words) > 0 {
					w.raise(words[len(words)-1])
				}
			}
			if w.limit > g.limit || w.sent > g.limit {
				t.Fatalf("the sender has sent %d and thinks it may send %d, the receiver said %d", w.sent-start,
					w.limit-start, g.limit-start)
			}
		}
		// In the end everything arrives and is given back: the sender can send again.
		g.received += uint64(flying)
		posted, held = buffers, 0
		if g.raise(posted, posted); g.due() {
			words = append(words, uint32(g.limit))
		}
		if len(words) > 0 {
			w.raise(words[len(words)-1])
		}
		if w.room() == 0 {
			t.Fatalf("the sender waits for ever: %+v %+v", w, g)
		}
	})
}

// TestDue: a sender that has used up everything gets a credit for a single buffer, and one that has
// enough does not get one for each.
func TestDue(t *testing.T) {
	g := grants{received: 100, limit: 101, told: 100}
	if !g.due() {
		t.Error("a sender that knows of nothing is not told of a buffer")
	}
	told := 0
	g = grants{}
	g.raise(64, 64)
	g.told = g.limit
	for range 6400 {
		g.received++
		if g.raise(64, 64); g.due() {
			g.told = g.limit
			told++
		}
		if g.told == g.received {
			t.Fatalf("after %d messages the sender knows of no buffer, and there are 64", g.received)
		}
	}
	if told == 0 || told > 6400/30 {
		t.Errorf("the sender was told %d times in 6400 messages with 64 buffers", told)
	}
}

func TestShare(t *testing.T) {
	for _, c := range [][3]int{{100, 0, 100}, {100, 1, 100}, {100, 2, 100}, {100, 4, 50}, {100, 1000, 4}, {2, 1000, 2},
		{0, 3, 0}} {
		if got := share(c[0], c[1]); got != c[2] {
			t.Errorf("share of %d buffers among %d: %d, expected %d", c[0], c[1], got, c[2])
		}
	}
}
