package loop

import (
	"errors"
	"os"
	"testing"
)

type nothing struct{}

func (nothing) Serve(bool) (more, woke bool) { return false, false }
func (nothing) Attended() bool               { return false }

// TestLoopAfterClose: a loop that has ended writes to no descriptor. The number of its own may be
// that of a file by then.
func TestLoopAfterClose(t *testing.T) {
	dir := t.TempDir()
	errClosed := errors.New("closed")
	for range 1000 {
		l, err := New(0, func(err error) { t.Error(err) }, errClosed, errors.New("failed"))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		var f *os.File
		for f == nil || int(f.Fd()) < l.wake {
			if f, err = os.CreateTemp(dir, ""); err != nil {
				t.Fatal(err)
			}
			defer f.Close()
		}
		if int(f.Fd()) != l.wake { // another goroutine was quicker
			continue
		}
		l.Kick(nothing{})
		if fi, err := f.Stat(); err != nil || fi.Size() != 0 {
			t.Errorf("a file that was opened behind the loop's end has %d bytes, %v", fi.Size(), err)
		}
		if _, err := l.Add(nothing{}, 0); !errors.Is(err, errClosed) {
			t.Errorf("Add: %v, expected %v", err, errClosed)
		}
		return
	}
	t.Error("no file gets the number of the closed descriptor")
}
