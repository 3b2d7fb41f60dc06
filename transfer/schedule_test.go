package transfer

import (
	"testing"
	"time"
)

// TestSharedRoom: on a shared path, what may be outstanding comes to what the wire carries in two
// to four round trips, and never below wireRoom.
func TestSharedRoom(t *testing.T) {
	for _, c := range []struct {
		name      string
		rate      float64 // bytes per second
		trip      time.Duration
		low, high uint64
	}{
		{"loopback", 3e9, 30 * time.Microsecond, wireRoom, wireRoom},
		{"1 Gb/s at 20 ms", 125e6, 20 * time.Millisecond, 5e6, 10e6},
		{"100 Gb/s at 80 ms", 12.5e9, 80 * time.Millisecond, 60e6, 2 * PieceSize},
		{"1 Mb/s at 600 ms", 125e3, 600 * time.Millisecond, wireRoom, wireRoom},
	} {
		shared := uint64(wireRoom)
		step := func() { // an operation that ends with as much outstanding as may be
			took := time.Duration(float64(shared) / c.rate * float64(time.Second))
			shared = carried(shared, shared, max(took, c.trip), c.trip)
		}
		for range 20 {
			step()
		}
		if shared < c.low || shared > c.high {
			t.Errorf("%s: %d bytes, expected %d to %d", c.name, shared, c.low, c.high)
		}
		c.rate /= 1e6
		for range 40 {
			step()
		}
		if shared != wireRoom {
			t.Errorf("%s: %d bytes when the wire became slow, expected %d", c.name, shared, uint64(wireRoom))
		}
	}
	if n := carried(wireRoom, 0, 0, time.Second); n != wireRoom {
		t.Errorf("nothing outstanding: %d bytes", n)
	}
}

// TestChannelLearnsSharedRoom: a channel over a wire knows its round trip, and its operations tell
// what the wire carries; one in memory does not adapt.
func TestChannelLearnsSharedRoom(t *testing.T) {
	s := newShared(t, 2*PieceSize, Options{})
	s.ch.mu.Lock()
	known := s.ch.trip > 0
	s.ch.trip = time.Hour // all operations are faster
	s.ch.mu.Unlock()
	if !known {
		t.Error("the round trip is not known")
	}
	wait(t, s.put(2*PieceSize, PutOptions{}), nil)
	s.ch.mu.Lock()
	grown := s.ch.shared
	s.ch.mu.Unlock()
	if grown <= PieceSize {
		t.Errorf("%d bytes may be outstanding after operations that were faster than the wire's round trip", grown)
	}
	s.idle()
	p := newPair(t, Options{})
	if err := p.ab.Ready(ctx(t), "shm"); err != nil {
		t.Fatal(err)
	}
	if ch := channelOf(t, p.ab, "shm"); ch.trip != 0 || ch.shared != nearRoom {
		t.Errorf("shm: %v, %d bytes", ch.trip, ch.shared)
	}
}
