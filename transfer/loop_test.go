package transfer

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/loop"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// With one processor and a loop that never stops to poll, the goroutine that waits for a transfer
// runs as soon as the transfer has ended: the loop polls a few times meanwhile at most. A loop that
// keeps the processor polls until the runtime takes it away, tens of thousands of times.
func TestSpinningLoopYields(t *testing.T) {
	d := over("tcp")
	var polls atomic.Int64 // of both nodes
	var most int64
	var ended, count atomic.Bool
	d.poll = func(p path.Path, events []path.Event) int {
		n := p.Poll(events)
		if !count.Load() {
			return n
		}
		for _, e := range events[:n] {
			if e.Kind == path.EventDone {
				ended.Store(true)
				polls.Store(0)
			}
		}
		if ended.Load() {
			polls.Add(1)
		}
		return n
	}
	p := newPair(t, Options{Paths: []setup.Driver{d}, Spin: time.Hour})
	put := putter(t, p, "tcp", 1)
	put()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	export(t, p.b, region(t, 4096), "dst", path.Write)
	rem, src := lookup(t, p.ab, "dst"), region(t, 4096)
	p.ignore(t)
	count.Store(true)
	for range 100 {
		x, err := p.ab.Put(t.Context(), []path.Copy{rem.At(0, src.All())}, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		<-x.Done()
		if ended.Swap(false) {
			most = max(most, polls.Load())
		}
		if x.Err() != nil {
			t.Fatal(x.Err())
		}
	}
	count.Store(false)
	if most > 20*loop.LookRounds {
		t.Errorf("the loops polled %d times before the caller of an ended put ran", most)
	}
}

// A node whose loop cannot wait for events moves nothing. Its transfers and peers end with the
// reason, no peer comes any more, and log, events and status say so.
func TestLoopFails(t *testing.T) {
	failed := make(chan struct{})
	d := over("tcp")
	var deaf atomic.Bool // nothing that comes is looked at
	d.poll = func(p path.Path, events []path.Event) int {
		if deaf.Load() {
			return 0
		}
		return p.Poll(events)
	}
	p := newPair(t, Options{})
	others := epolls(t)
	p.a = open(t, Options{Paths: []setup.Driver{d}, OnEvent: func(e observe.Event) {
		if e.Kind == observe.EventNodeFailed {
			close(failed) // once
		}
	}})
	own := epolls(t)
	own = slices.DeleteFunc(own, func(fd int) bool { return slices.Contains(others, fd) })
	if len(own) != 1 {
		t.Fatalf("the loop has the epoll instances %v, expected one", own)
	}
	var err error
	if p.ab, err = p.a.Dial(ctx(t), p.b.Addrs()[0]); err != nil {
		t.Fatal(err)
	}
	export(t, p.b, region(t, 4096), "dst", path.Write)
	rem, src := lookup(t, p.ab, "dst"), region(t, 4096)
	put := putter(t, p, "tcp", 1)
	put()
	deaf.Store(true)
	x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{"tcp"}})
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	// epoll_wait on a file that is no epoll instance is EINVAL.
	if err := syscall.Dup3(int(null.Fd()), own[0], syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	p.a.loop.Kick(channelOf(t, p.ab, "tcp"))
	soon(t, failed, "the event")
	deaf.Store(false)
	soon(t, p.ab.Gone(), "the end of the peer")
	soon(t, x.Done(), "the end of the transfer")
	if !errors.Is(x.Err(), ErrFailed) || !errors.Is(x.Err(), syscall.EINVAL) {
		t.Errorf("the transfer ended with %v", x.Err())
	}
	if err := p.ab.Err(); !errors.Is(err, ErrFailed) || !errors.Is(err, ErrPeerLost) || Retriable(err) {
		t.Errorf("the peer ended with %v", err)
	}
	if _, err := p.a.Dial(ctx(t), p.b.Addrs()[0]); !errors.Is(err, ErrFailed) {
		t.Errorf("Dial: %v", err)
	}
	if s := p.a.Snapshot(); s.Node.Failed == "" || len(s.Peers) != 0 {
		t.Errorf("the snapshot says %q and has %d peers", s.Node.Failed, len(s.Peers))
	}
	if err := p.a.Close(); err != nil {
		t.Error(err)
	}
}

// epolls are the descriptors of the epoll instances of this process.
func epolls(t *testing.T) (out []int) {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); to == "anon_inode:[eventpoll]" {
			fd, _ := strconv.Atoi(e.Name())
			out = append(out, fd)
		}
	}
	return out
}
