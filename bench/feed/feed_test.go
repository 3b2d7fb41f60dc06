package feed

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/gpu/opencl"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// Every row is measured, in every packet that comes back the sum is right, and what does not fit is
// said.
func TestRun(t *testing.T) {
	quick := Options{Sizes: []uint64{200}, Pairs: 1, Budget: time.Millisecond}
	for _, x := range []struct {
		name    string
		open    func(t *testing.T) (*gpu.Runtime, error)
		threads []int
		rows    int
		note    string
	}{
		{"host", func(*testing.T) (*gpu.Runtime, error) { return host.Open(host.Options{}) }, []int{1, 3}, 3 + 2 + 3 + 3 + 1, "4096 groups of 1 work-items"},
		{"opencl", func(t *testing.T) (*gpu.Runtime, error) {
			return opencl.Open(opencl.Options{Platform: peers.PoCL(t)})
		}, []int{1, 60000}, 3 + 2 + 3 + 1, "60000 threads do not fit"},
	} {
		t.Run(x.name, func(t *testing.T) {
			o := quick
			o.Threads = x.threads
			rt, err := x.open(t)
			if err != nil {
				t.Fatal(err)
			}
			o.Table = gpu.Table{{Name: x.name, Open: func() (*gpu.Runtime, error) { return rt, nil }}}
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Rows) < x.rows {
				t.Errorf("%d rows, expected %d or, with more cores, more", len(r.Rows), x.rows)
			}
			if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, x.note) {
				t.Errorf("no %q in the notes\n%s", x.note, notes)
			}
		})
	}
}

// A wrong answer fails a run.
func TestWrongAnswer(t *testing.T) {
	rt, err := host.Open(host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	p, err := newPlace(rt.Devices()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	_, err = on(p, gpu.ResidentStay, 1, 1, 1, 64, 100, func(l *line) (paired.Sample, error) {
		l.payload[l.sent*l.stride()]++
		return l.flow(t.Context(), time.Millisecond, burst, true)
	})
	if !errors.Is(err, paired.ErrFailed) {
		t.Errorf("a packet with a wrong sum: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Sizes: []uint64{0}}, {Sizes: []uint64{mostSize + 1}}, {Threads: []int{0}}, {Pairs: -1},
		{Budget: -1}} {
		if _, err := Run(t.Context(), o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := Run(t.Context(), Options{Runtime: "host", Device: 7}); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("device 7: %v", err)
	}
}

var packets = flag.Uint64("packets", 1<<16, "packets of TestNothingIsLost")

// checksum is the sum of bytes.
func checksum(b []byte) (n uint64) {
	for _, x := range b {
		n += uint64(x)
	}
	return n
}

// Packets go to a persistent kernel on PoCL and come back, each once and with the sum of its bytes,
// while its launches end again and again. Each has bytes of its own, which the test writes over
// those of the packet that had the same place before: a packet that the kernel reads torn, or
// before it was published, has another sum.
func TestNothingIsLost(t *testing.T) {
	rt, err := opencl.Open(opencl.Options{Platform: peers.PoCL(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	p, err := newPlace(rt.Devices()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	seen := make([]uint64, (*packets+63)/64)
	_, err = on(p, gpu.ResidentStay, 1, 1, 1, slots, 64, func(l *line) (paired.Sample, error) {
		l.sent, l.got = 0, 0
		l.each = func(tag uint64) {
			if seen[tag/64]&(1<<(tag%64)) != 0 {
				t.Errorf("packet %d came back twice", tag)
			}
			seen[tag/64] |= 1 << (tag % 64)
		}
		for l.sent < *packets {
			n := min(32, *packets-l.sent, uint64(len(l.sums))-(l.sent-l.got)) // places whose packets have come back
			for tag := l.sent; tag < l.sent+n; tag++ {
				place := tag % uint64(len(l.sums))
				b := l.payload[place*l.stride():][:l.size]
				was := checksum(b[:8])
				binary.LittleEndian.PutUint64(b, tag*0x9e3779b97f4a7c15)
				l.sums[place] += checksum(b[:8]) - was
			}
			if err := errors.Join(l.publish(int(n)), l.collect()); err != nil {
				return paired.Sample{}, err
			}
		}
		err := l.drain(t.Context())
		t.Logf("%d packets in %d launches", l.got, l.r.Stats().Launches)
		return paired.Sample{}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	for tag := range *packets {
		if seen[tag/64]&(1<<(tag%64)) == 0 {
			t.Fatalf("packet %d is lost", tag)
		}
	}
}
