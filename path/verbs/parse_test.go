package verbs

import (
	"testing"
)

// Every transport and every way to meet that the driver takes has a word, and what is written is read.
func TestWords(t *testing.T) {
	for n := range 256 {
		x := Transport(n)
		takes := Options{Transport: x}.Check() == nil
		got, err := ParseTransport(x.String())
		if takes != (err == nil) || err == nil && got != x {
			t.Errorf("transport %d: the driver takes it: %v; %q is read as %d, %v", n, takes, x, got, err)
		}
		m := Meet(n)
		takes = Options{Meet: m}.Check() == nil
		way, err := ParseMeet(m.String())
		if takes != (err == nil) || err == nil && way != m {
			t.Errorf("meet %d: the driver takes it: %v; %q is read as %d, %v", n, takes, m, way, err)
		}
	}
	for i, w := range Transports() {
		if x, err := ParseTransport(w); err != nil || x != transports[i] {
			t.Errorf("%q: %v, %v", w, x, err)
		}
	}
	for i, w := range Meets() {
		if m, err := ParseMeet(w); err != nil || m != Meet(i) {
			t.Errorf("%q: %v, %v", w, m, err)
		}
	}
	for _, s := range []string{"", "rcc", "transport(0)"} {
		if x, err := ParseTransport(s); err == nil {
			t.Errorf("%q passed as %v", s, x)
		}
		if m, err := ParseMeet(s); err == nil {
			t.Errorf("%q passed as %v", s, m)
		}
	}
}

// What MeetCMRails says is what a request of the connection manager has room for.
func TestMeetCMRails(t *testing.T) {
	for _, x := range transports {
		if n := MeetCMRails(x); n < 1 || n+x.extra() != cmRails {
			t.Errorf("%v: %d rails", x, n)
		}
	}
}
