package sys

import (
	"testing"
	"time"
)

// A parking Epoll reports what an ordinary one does: what was ready before, what becomes ready
// while it waits, nothing when its time is over, and again while the member stays ready.
func TestParkingEpoll(t *testing.T) {
	e, err := NewParkingEpoll()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	bell, err := Eventfd()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(bell)
	if err := e.Add(bell, EventIn, 7); err != nil {
		t.Fatal(err)
	}
	var ev [4]EpollEvent
	for _, timeout := range []int{0, 1} {
		if n, err := e.Wait(ev[:], timeout); n != 0 || err != nil {
			t.Fatalf("nothing is ready, timeout %d: %d events, %v", timeout, n, err)
		}
	}
	for range 100 {
		time.AfterFunc(100*time.Microsecond, func() { Ring(bell) })
		for range 3 { // it stays ready until it is emptied
			if n, err := e.Wait(ev[:], -1); n != 1 || err != nil || ev[0].Tag != 7 {
				t.Fatalf("rung: %d events, %v: %+v", n, err, ev[0])
			}
		}
		Unring(bell)
		if n, err := e.Wait(ev[:], 1); n != 0 || err != nil {
			t.Fatalf("emptied: %d events, %v", n, err)
		}
	}
}

func TestReadSetting(t *testing.T) {
	if s, err := ReadSetting("/proc/sys/kernel/ostype"); s != "Linux" || err != nil {
		t.Errorf("%q, %v", s, err)
	}
	if _, err := ReadSetting("/proc/sys/kernel/no-such-thing"); !IsErrno(err, ENOENT) {
		t.Errorf("a file that is not there: %v", err)
	}
}
