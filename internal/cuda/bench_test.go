package cuda

import "testing"

// What it costs to be callable from any goroutine: a call in a context (the thread held, the
// context made current, the call) beside the call alone. On the fake driver, whose calls take a
// lock; the difference is what counts.
func BenchmarkCall(b *testing.B) {
	d, _ := start(b, "")
	c := open(b, d, 0)
	e, err := c.NewEvent(EventSpec{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { ok(b, e.Close()) }()
	b.Run("in a context", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := e.Done(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		if err := c.enter(); err != nil {
			b.Fatal(err)
		}
		defer leave()
		for b.Loop() {
			if r := d.fn[fnEventQuery].Call1(e.h); r != 0 {
				b.Fatal(r)
			}
		}
	})
}
