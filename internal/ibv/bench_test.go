package ibv

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
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/internal/sys"
)

// postPoll builds a chain of small writes, posts it in one call and polls its completion.
func (e *end) postPoll(tb testing.TB, peer *end, depth int, wc []WC) {
	e.send.Reset()
	for i := range depth {
		flags := SendFlags(0)
		if i == depth-1 {
			flags = Signaled
		}
		e.send.Write(uint64(i), flags, peer.mr.Addr()+uint64(8*i), peer.mr.RKey(), e.mr.SGE(uint64(8*i), 8))
	}
	if n, err := e.qp.PostSend(e.send); n != depth || err != nil {
		tb.Fatal(n, err)
	}
	for {
		n, err := e.cq.Poll(wc)
		if err != nil || n > 0 && (n != 1 || wc[0].Status() != Success || wc[0].ID() != uint64(depth-1)) {
			tb.Fatal(n, err)
		}
		if n > 0 {
			return
		}
	}
}

// BenchmarkPostPoll is the time of a chain; much of it is the fake's own work.
func BenchmarkPostPoll(b *testing.B) {
	for _, depth := range []int{64, 8, 1} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			w := fakeWorld(b, "")
			l, r := w.pair(b, options{qp: QPSpec{SendWRs: depth, SendSGEs: 1, RecvSGEs: 1, RecvWRs: 1}})
			wc := make([]WC, 64)
			calls := w.count(b, "ibv_post_send") + w.count(b, "ibv_poll_cq")
			b.ReportAllocs()
			for b.Loop() {
				l.postPoll(b, r, depth, wc)
			}
			requests := float64(b.N) * float64(depth)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/requests, "ns/request")
			b.ReportMetric(float64(w.count(b, "ibv_post_send")+w.count(b, "ibv_poll_cq")-calls)/requests,
				"calls/request")
		})
	}
}

// BenchmarkBesideC compares processor time with the same loop in C (testdata/loop.c) on the same
// library, in interleaved pairs: go test -run - -bench BesideC -benchtime 1x ./internal/ibv.
// docs/measurements/verbs.md has what it said.
func BenchmarkBesideC(b *testing.B) {
	program, dir := loopC(b)
	for _, depth := range []int{64, 8, 1} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			w := fakeWorld(b, "")
			l, r := w.pair(b, options{qp: QPSpec{SendWRs: depth, SendSGEs: 1, RecvSGEs: 1, RecvWRs: 1}})
			wc := make([]WC, 64)
			rounds := 300_000 / depth
			row, err := paired.Run(b.Context(), paired.Plan{
				Name: fmt.Sprintf("post and poll, %d requests a chain", depth), Unit: paired.Nanoseconds, Pairs: 25,
				Target: 1.5,
				Ours: paired.Contender{Name: "internal/ibv", Run: func(context.Context) (paired.Sample, error) {
					fill(l.buf[:8*depth], byte(rounds))
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					from, err := sys.ThreadCPU()
					for range rounds {
						l.postPoll(b, r, depth, wc)
					}
					to, err2 := sys.ThreadCPU()
					sameBytes(b, r.buf[:8*depth], l.buf[:8*depth])
					return paired.Sample{Value: float64((to - from).Nanoseconds()) / float64(rounds*depth),
						Verified: uint64(8 * depth)}, errors.Join(err, err2)
				}},
				Theirs: []paired.Contender{{Name: "C", Command: program,
					Run: func(context.Context) (paired.Sample, error) {
						return paired.Sample{Value: runLoopC(b, program, dir, rounds, depth),
								Verified: uint64(8 * depth)},
							nil
					}}},
			})
			if err != nil {
				b.Fatal(err)
			}
			ratio := row.Theirs[0].Ratio
			b.Logf("%s: ours %.1f ns a request, C %.1f; %+v", row.Name, row.Ours.Stats.Median,
				row.Theirs[0].Stats.Median, *ratio)
		})
	}
}

// loopC compiles the loop.
func loopC(tb testing.TB) (program, dir string) {
	tb.Helper()
	lib, err := verbs.Build()
	if errors.Is(err, verbs.ErrMissing) {
		testenv.Missing(tb, "the headers of libibverbs", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	if dir, err = verbs.Dir(); err != nil {
		tb.Fatal(err)
	}
	program, err = testenv.Compile("ibv-loop", []string{"testdata/loop.c"}, "-std=gnu11", "-D_GNU_SOURCE", "-O2",
		"-Wall", "-Wextra", "-Werror", lib)
	if err != nil {
		tb.Fatal(err)
	}
	return program, dir
}

func runLoopC(tb testing.TB, program, dir string, rounds, depth int) float64 {
	tb.Helper()
	c := exec.Command(program, strconv.Itoa(rounds), strconv.Itoa(depth))
	c.Env = verbs.Env(dir, "")
	out, err := c.CombinedOutput()
	if err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
	ns, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil || ns <= 0 {
		tb.Fatalf("%q: %v", out, err)
	}
	return ns
}

// TestLoopInC: the other side of the benchmark works.
func TestLoopInC(t *testing.T) {
	testenv.Once(t)
	program, dir := loopC(t)
	runLoopC(t, program, dir, 10, 64)
}
