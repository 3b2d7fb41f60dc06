package share

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/job"
)

// A server has no more than before when many peers, which came all at once, have left: neither in
// its tally nor in the process.
func TestMemoryReturnsAfterAStorm(t *testing.T) {
	const files, peers, gets = 500, 8, 25
	ctx, root, local := testCtx(t), t.TempDir(), t.TempDir()
	content := randomBytes(1, 4096)
	for i := range files {
		write(t, filepath.Join(root, fmt.Sprint("d", i%4), fmt.Sprint(i)), content)
	}
	write(t, filepath.Join(root, "large"), randomBytes(2, 1<<20))
	var mu sync.Mutex
	var came []weak.Pointer[transfer.Peer]
	n := testNode(t, transfer.Options{Name: "server", Listen: []string{"tcp://127.0.0.1:0"},
		OnPeer: func(p *transfer.Peer) {
			mu.Lock()
			defer mu.Unlock()
			came = append(came, weak.Make(p))
		}})
	s, err := Serve(ctx, n, Options{Root: root, Writable: true, OnAccess: func(Access) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	peer := func(who string) error {
		c, err := transfer.Open(ctx, transfer.Options{Name: who})
		if err != nil {
			return err
		}
		defer c.Close()
		// a session may end on a busy machine
		l := job.NewLink(c, n.Addrs()[0], job.LinkOptions{Retry: job.Retry{Attempts: -1, Total: -1,
			Max: 100 * time.Millisecond}})
		defer l.Close()
		m, err := Mirror(ctx, OverLink(l), filepath.Join(local, who), MirrorOptions{})
		if err != nil || m.Fetched != files+1 {
			return fmt.Errorf("%+v: %w", m, err)
		}
		several(ctx, func(yield func(int) bool) {
			for i := range gets {
				if !yield(i) {
					return
				}
			}
		}, gets, func(i int) {
			name := fmt.Sprint("d", i%4, "/", i)
			if i%2 == 0 {
				name = "large"
			}
			if _, ferr := Fetch(ctx, OverLink(l).ByPath(), name,
				FetchOptions{Output: filepath.Join(local, fmt.Sprint(who, "-", i))}); ferr != nil {
				t.Error(ferr)
			}
		})
		return nil
	}
	type held struct {
		goroutines, files, mappings int // mappings of files and shared memory
		peers                       int // that came, and are in memory
		heap                        uint64
	}
	now := func() held {
		runtime.GC()
		runtime.GC() // what finalizers and pools held through the first
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fds, err := os.ReadDir("/proc/self/fd")
		maps, merr := os.ReadFile("/proc/self/maps")
		if err = errors.Join(err, merr); err != nil {
			t.Fatal(err)
		}
		h := held{runtime.NumGoroutine(), len(fds), bytes.Count(maps, []byte(" /")), 0, m.HeapInuse}
		mu.Lock()
		defer mu.Unlock()
		for _, p := range came {
			if p.Value() != nil {
				h.peers++
			}
		}
		return h
	}
	if err := peer("first"); err != nil { // what is made once
		t.Fatal(err)
	}
	left(t, ctx, n)
	before, tally := now(), n.Snapshot().Memory
	var wg sync.WaitGroup
	for i := range peers {
		wg.Go(func() {
			if err := peer(fmt.Sprint("p", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	left(t, ctx, n)
	after := now()
	for deadline := time.Now().Add(wait / 12); (after.goroutines > before.goroutines || after.files > before.files ||
		after.peers > 0) && time.Now().Before(deadline); after = now() {
		// what ends with a connection does so in its goroutine
		runtime.Gosched()
	}
	if after.goroutines > before.goroutines || after.files > before.files || after.mappings > before.mappings ||
		after.peers > 0 || after.heap > before.heap+8<<20 || len(came) <= peers {
		t.Errorf("after the storm %+v, before it %+v", after, before)
	}
	x, m := n.Snapshot(), s.Snapshot()
	if x.Memory.LandingUsed != tally.LandingUsed || x.Memory.LandingReserved != tally.LandingReserved ||
		x.Memory.Registrations != tally.Registrations || x.Memory.Registered != tally.Registered ||
		len(x.Exports) != files+1 || len(x.Transfers) != 0 || len(m.Reads) != 0 || len(m.Uploads) != 0 {
		t.Errorf("%+v, before the storm %+v; %d exports, %d transfers, %+v", x.Memory, tally, len(x.Exports),
			len(x.Transfers), m)
	}
}

// left waits until a node has no peers.
func left(t *testing.T, ctx context.Context, n *transfer.Node) {
	t.Helper()
	for len(n.Peers()) > 0 {
		if ctx.Err() != nil {
			t.Fatalf("%d peers are left", len(n.Peers()))
		}
		runtime.Gosched()
	}
}
