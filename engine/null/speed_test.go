package null

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

// receive receives packets in bursts through the whole path, and returns the processor time of one
// in nanoseconds.
func receive(tb testing.TB, rx *engine.Rx, b *burst.Burst, packets int) float64 {
	tb.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from, err := sys.ThreadCPU()
	n := 0
	for n < packets {
		k, err := rx.TryRecv(b)
		if k == 0 {
			tb.Fatalf("no packets: %v", err)
		}
		n += k
		b.Release()
	}
	to, err2 := sys.ThreadCPU()
	if err := errors.Join(err, err2); err != nil {
		tb.Fatal(err)
	}
	return float64((to - from).Nanoseconds()) / float64(n)
}

// loopC makes the same loop in C (testdata/loop.c).
func loopC(tb testing.TB) (run func(packets, burst int) float64) {
	tb.Helper()
	program, err := testenv.Compile("null-loop", []string{"testdata/loop.c"}, "-std=gnu11", "-O2", "-Wall", "-Wextra",
		"-Werror")
	if err != nil {
		testenv.Missing(tb, "a C compiler", err)
	}
	return func(packets, burst int) float64 {
		out, err := exec.Command(program, strconv.Itoa(packets), strconv.Itoa(burst),
			strconv.Itoa(defaultSize)).CombinedOutput()
		if err != nil {
			tb.Fatalf("%v\n%s", err, out)
		}
		ns, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
		if err != nil || ns <= 0 {
			tb.Fatalf("%q: %v", out, err)
		}
		return ns
	}
}

// Both loops of BenchmarkBesideC run, and neither loses a byte.
func TestBesideC(t *testing.T) {
	_, q := receiver(t, "null://", newPool(t, defaultSize, 4096))
	receive(t, engine.NewRx(q, engine.Batching{}), burst.New(64), 1000)
	var s engine.RxStats
	if q.Stats(&s); s.Packets != 1024 || s.Bytes != 1024*defaultSize {
		t.Errorf("%+v", s)
	}
	loopC(t)(1000, 64) // checks its own
}

// BenchmarkBesideC compares the processor time of a packet, from Collect to Release, with that of
// the same loop in C, in interleaved pairs: go test -run - -bench BesideC -benchtime 1x
// ./engine/null.
func BenchmarkBesideC(b *testing.B) {
	inC := loopC(b)
	_, q := receiver(b, "null://", newPool(b, defaultSize, 4096))
	rx := engine.NewRx(q, engine.Batching{})
	for _, size := range []int{64, 256, 16} {
		b.Run(fmt.Sprintf("burst=%d", size), func(b *testing.B) {
			x := burst.New(size)
			const packets = 1 << 23
			row, err := paired.Run(b.Context(), paired.Plan{
				Name: fmt.Sprintf("receive and release, bursts of %d", size), Unit: paired.Nanoseconds, Pairs: 25,
				Target: 4,
				Ours: paired.Contender{Name: "engine/null", Run: func(context.Context) (paired.Sample, error) {
					return paired.Sample{Value: receive(b, rx, x, packets), Verified: packets * defaultSize}, nil
				}},
				Theirs: []paired.Contender{{Name: "C", Run: func(context.Context) (paired.Sample, error) {
					return paired.Sample{Value: inC(packets, size), Verified: packets * defaultSize}, nil
				}}},
			})
			if err != nil {
				b.Fatal(err)
			}
			ours := row.Ours.Stats.Median
			b.ReportMetric(1000/ours, "Mpps")
			b.Logf("%s: ours %.2f ns a packet (%.0f M/s), C %.2f; %+v", row.Name, ours, 1000/ours,
				row.Theirs[0].Stats.Median, *row.Theirs[0].Ratio)
		})
	}
}
