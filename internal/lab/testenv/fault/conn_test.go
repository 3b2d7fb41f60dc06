package fault

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/transfer/path/pathtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// piped is a Conn over net.Pipe and its far end, which have both ended when f returns.
func piped(t *testing.T, plan string, f func(t *testing.T, c *Conn, far net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		c, err := NewConn(a, parse(t, plan), 1)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		defer c.Close()
		f(t, c, b)
	})
}

func pattern(n int) []byte {
	b := make([]byte, n)
	pathtest.Fill(b, 1)
	return b
}

// fetch reads all that comes and how many reads that took.
func fetch(r io.Reader) (b []byte, reads int, err error) {
	buf := make([]byte, 1<<16)
	for {
		n, err := r.Read(buf)
		b = append(b, buf[:n]...)
		if err != nil {
			return b, reads, err
		}
		reads++
	}
}

func TestConnWithoutFaults(t *testing.T) {
	piped(t, "", func(t *testing.T, c *Conn, far net.Conn) {
		data := pattern(100_000)
		go func() {
			if n, err := c.Write(data); n != len(data) || err != nil {
				t.Errorf("Write = %d, %v", n, err)
			}
			c.Close()
		}()
		if got, _, _ := fetch(far); !bytes.Equal(got, data) {
			t.Errorf("%d bytes came, different", len(got))
		}
		if l := c.Log(); l.Up != 100_000 || l.Counts.Total() != 0 {
			t.Errorf("log %+v", l)
		}
	})
}

// What the plan says of one direction is what the far end sees, for what Conn writes and for what
// it reads.
func TestConnFaults(t *testing.T) {
	data := pattern(1000)
	flip := func(at ...int) []byte {
		b := bytes.Clone(data)
		for _, i := range at {
			b[i] = 0
		}
		return b
	}
	for _, c := range []struct {
		plan  string
		check func(t *testing.T, got []byte, reads int, took time.Duration, err error)
	}{
		{"cut at=400", func(t *testing.T, got []byte, _ int, _ time.Duration, err error) {
			if !bytes.Equal(got, data[:400]) || err == nil {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		}},
		{"short every=300", func(t *testing.T, got []byte, reads int, _ time.Duration, err error) {
			if !bytes.Equal(got, data) || reads != 4 {
				t.Errorf("%d bytes in %d reads, %v", len(got), reads, err)
			}
		}},
		{"corrupt at=500 n=2", func(t *testing.T, got []byte, _ int, _ time.Duration, err error) {
			if len(got) != 1000 || got[500] == data[500] || got[501] == data[501] {
				t.Fatalf("%d bytes, not damaged where planned", len(got))
			}
			got[500], got[501] = 0, 0
			if !bytes.Equal(got, flip(500, 501)) {
				t.Error("damaged where not planned")
			}
		}},
		{"drop at=10 n=5", func(t *testing.T, got []byte, _ int, _ time.Duration, err error) {
			if !bytes.Equal(got, append(bytes.Clone(data[:10]), data[15:]...)) {
				t.Errorf("%d bytes came", len(got))
			}
		}},
		{"duplicate at=10 n=5", func(t *testing.T, got []byte, _ int, _ time.Duration, err error) {
			if !bytes.Equal(got, append(bytes.Clone(data[:15]), data[10:]...)) {
				t.Errorf("%d bytes came", len(got))
			}
		}},
		{"delay every=400 for=1s; stall at=900 for=1h",
			func(t *testing.T, got []byte, _ int, took time.Duration, err error) {
				if !bytes.Equal(got, data) || took != time.Hour+2*time.Second {
					t.Errorf("%d bytes came in %v", len(got), took)
				}
			}},
		{"halfclose at=300", func(t *testing.T, got []byte, _ int, _ time.Duration, err error) {
			if !bytes.Equal(got, data[:300]) || err != io.EOF {
				t.Errorf("%d bytes came, %v", len(got), err)
			}
		}},
	} {
		t.Run("read/"+c.plan, func(t *testing.T) {
			piped(t, c.plan, func(t *testing.T, x *Conn, far net.Conn) {
				go func() {
					far.Write(data)
					far.Close()
				}()
				start := time.Now()
				got, reads, err := fetch(x)
				c.check(t, got, reads, time.Since(start), err)
			})
		})
		t.Run("write/"+c.plan, func(t *testing.T) {
			piped(t, c.plan, func(t *testing.T, x *Conn, far net.Conn) {
				go func() {
					x.Write(data)
					x.Close()
				}()
				start := time.Now()
				got, reads, err := fetch(far)
				c.check(t, got, reads, time.Since(start), err)
			})
		})
	}
}

func TestConnCutSaysSo(t *testing.T) {
	piped(t, "cut up at=3", func(t *testing.T, c *Conn, far net.Conn) {
		go io.Copy(io.Discard, far)
		if n, err := c.Write(pattern(10)); n != 3 || !errors.Is(err, ErrInjected) {
			t.Errorf("Write = %d, %v", n, err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, ErrInjected) {
			t.Errorf("Read: %v", err)
		}
	})
	piped(t, "refuse", func(t *testing.T, c *Conn, far net.Conn) {
		if _, err := c.Write(pattern(10)); !errors.Is(err, ErrInjected) {
			t.Errorf("Write: %v", err)
		}
		if _, err := far.Read(make([]byte, 1)); err == nil {
			t.Error("the far end of a refused connection reads")
		}
	})
}

// A stall ends by Resume, by its time, by a deadline and by Close, and by nothing else.
func TestConnStallEnds(t *testing.T) {
	piped(t, "stall down", func(t *testing.T, c *Conn, far net.Conn) {
		go far.Write(pattern(10))
		c.SetReadDeadline(time.Now().Add(time.Minute))
		start := time.Now()
		if _, err := c.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) ||
			time.Since(start) != time.Minute {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		c.SetReadDeadline(time.Time{})
		time.AfterFunc(time.Hour, func() { c.Resume(Down) })
		if n, err := c.Read(make([]byte, 10)); n != 10 || err != nil || time.Since(start) != time.Hour+time.Minute {
			t.Fatalf("after %v: %d bytes, %v", time.Since(start), n, err)
		}
		c.Stall(Both)
		time.AfterFunc(time.Hour, func() { c.Close() })
		if _, err := c.Read(make([]byte, 10)); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("Read of a closed connection: %v", err)
		}
		if _, err := c.Write(pattern(1)); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("Write to a closed connection: %v", err)
		}
	})
}

func TestConnByHand(t *testing.T) {
	piped(t, "", func(t *testing.T, c *Conn, far net.Conn) {
		c.HalfClose(Up)
		if n, err := c.Write(pattern(5)); n != 5 || err != nil {
			t.Errorf("Write after the half-close = %d, %v", n, err)
		}
		go far.Write(pattern(5))
		if n, err := c.Read(make([]byte, 10)); n != 5 || err != nil {
			t.Errorf("the other direction: %d, %v", n, err)
		}
		c.Cut()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, ErrInjected) {
			t.Errorf("after the cut: %v", err)
		}
		if l := c.Log(); l.Counts[HalfClose] != 1 || l.Counts[Cut] != 1 || l.Up != 0 || l.Down != 5 {
			t.Errorf("log %+v", l)
		}
	})
}
