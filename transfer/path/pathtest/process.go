package pathtest

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/scope"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// processLarge is the size in bytes of operations that are interrupted.
const processLarge = 32 << 20

// RunProcess tests a driver between two real processes: bytes and notifications in both directions,
// a peer that is frozen for a while, a peer that is killed. It starts the test binary again as the
// peer, which gets here, too, and stays; so it must be the first thing that its test does, and the
// test must be a top-level one.
func RunProcess(t *testing.T, d setup.ListenDriver) {
	if os.Getenv(childEnv) != "" {
		childMain(d)
	}
	scope.Run(t, func(t testing.TB) { startChild(t) }) // the first process starts what stays for the life of this one
	for _, childListens := range []bool{false, true} {
		name := "ChildDials"
		if childListens {
			name = "ChildListens"
		}
		t.Run(name, func(t *testing.T) {
			run := func(name string, f func(t testing.TB, s *Side, c *child)) {
				t.Run(name, func(t *testing.T) {
					check{name, func(t testing.TB, _ Factory) {
						s, c := connect(t, d, childListens)
						f(t, s, c)
					}}.runChecked(t, Factory{}.defaults())
				})
			}
			run("Transfers", processTransfers)
			run("Stop", processStop)
			run("Close", processClose)
			for _, kind := range bothKinds {
				word := strings.ToTitle(kindNames[kind][:1]) + kindNames[kind][1:]
				run("Kill"+word, func(t testing.TB, s *Side, c *child) { processKill(t, s, c, kind, false, 0) })
				run("KillLater"+word, func(t testing.TB, s *Side, c *child) { processKill(t, s, c, kind, false, 3) })
				run("KillFrozen"+word, func(t testing.TB, s *Side, c *child) { processKill(t, s, c, kind, true, 100) })
				run("KillPoster"+word, func(t testing.TB, s *Side, c *child) { processKillPoster(t, s, c, kind) })
			}
			run("KillIdle", func(t testing.TB, s *Side, c *child) {
				c.must(c.Signal(sys.SIGKILL))
				await(t, s)
			})
		})
	}
}

// export asks the child for an export and returns its key.
func (c *child) export(s *Side, size int, seed uint64) path.Key {
	c.t.Helper()
	return path.ParseKey(c.ask(s, request{Do: "export", Size: size, Seed: seed}).Key)
}

func processTransfers(t testing.TB, s *Side, c *child) {
	const room = 4 << 20
	theirs := c.export(s, room, 1)
	local, mine := s.Region(room), s.Region(room)
	export := s.Export(mine, path.Read|path.Write)
	key := export.Key().Append(nil)
	notices := 0
	for i, n := range []int{0, 1, 64, 4097, 300_001, room} {
		seed := uint64(100 + i)
		span := local.All()
		span.Len = uint64(n)
		copies := []path.Copy{{Local: span, Key: theirs, RemoteOff: uint64(room - n)}}

		Fill(span.Bytes(), seed)
		s.MustDo(path.Op{Kind: path.Put, Copies: copies, Notify: true})
		notices++
		if r := c.ask(s, request{Do: "verify", Off: room - n, N: n, Seed: seed}); r.Bad >= 0 {
			t.Fatalf("put of %d bytes: the child finds byte %d wrong", n, r.Bad)
		}
		c.ask(s, request{Do: "change", Off: room - n, N: n, Seed: seed + 50})
		s.MustDo(path.Op{Kind: path.Get, Copies: copies})
		wantFill(t, "get from the child", span.Bytes(), seed+50)

		before := len(s.Notices)
		c.ask(s, request{Do: "op", Kind: path.Put, Key: key, Off: room - n, N: n, Seed: seed + 70, Imm: seed})
		wantFill(t, "the child's put", mine.All().Bytes()[room-n:], seed+70)
		s.pair.Drive("the child's notification", func() bool { return len(s.Notices) > before })
		if got := s.Notices[before]; got.Imm != seed || got.Bytes != uint64(n) {
			t.Errorf("notification of the child's put: %+v", got)
		}
		if r := c.ask(s, request{Do: "op", Kind: path.Get, Key: key, Off: room - n, N: n,
			Seed: seed + 70}); r.Bad >= 0 {
			t.Fatalf("the child's get of %d bytes: byte %d is wrong", n, r.Bad)
		}
	}
	if r := c.ask(s, request{Do: "notices", Want: notices}); r.Notices != notices {
		t.Errorf("the child received %d notifications of %d", r.Notices, notices)
	}
	bad := s.Do(path.Op{Kind: path.Put, Copies: []path.Copy{{Local: local.All(), Key: theirs, RemoteOff: 1}}})
	wantErr(t, "put beyond the child's export", bad.Err, path.ErrBounds)
}

// processStop freezes the child for a moment while both sides have something to do.
func processStop(t testing.TB, s *Side, c *child) {
	theirs := c.export(s, processLarge, 1)
	local, mine := s.Region(processLarge), s.Region(processLarge)
	key := s.Export(mine, path.Read|path.Write).Key().Append(nil)
	Fill(local.All().Bytes(), 5)
	c.send(request{Do: "op", Kind: path.Put, Key: key, N: processLarge, Seed: 6, Imm: 77})
	s.pair.Pump(3)
	c.must(c.Stop())
	put := s.Post(path.Op{Kind: path.Put, Notify: true, Copies: []path.Copy{{Local: local.All(), Key: theirs}}},
		path.Op{Kind: path.Notify, Imm: 1})
	// The peer is stopped. What can go on without it does; then this side must sleep.
	const moment = 400 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), moment)
	defer cancel()
	wall, cpu := s.serve(t, ctx, func() bool { return false })
	if cpu > wall/2 {
		t.Errorf("%v of processor time in %v of waiting for a frozen peer: this side spins", cpu, wall)
	}
	if s.Down != nil {
		t.Fatalf("the path went down although the peer was only frozen: %v", s.Down)
	}
	c.must(c.Continue())
	ctx, cancel = context.WithTimeout(t.Context(), s.pair.f.Patience)
	defer cancel()
	s.serve(t, ctx, func() bool { return put[0].Times+put[1].Times == 2 && len(s.Notices) > 0 })
	for _, r := range put {
		if r.Times != 1 || r.Err != nil {
			t.Fatalf("operation across a freeze: %d EventDones, error %v\n%s", r.Times, r.Err, s.pair.Dump())
		}
	}
	if len(s.Notices) != 1 || s.Notices[0].Imm != 77 || s.Notices[0].Bytes != processLarge {
		t.Fatalf("notifications across a freeze: %+v", s.Notices)
	}
	wantFill(t, "the child's put across a freeze", mine.All().Bytes(), 6)
	if _, err := c.receive(s); err != nil {
		t.Errorf("the child's put across a freeze: %v", err)
	}
	if r := c.ask(s, request{Do: "verify", N: processLarge, Seed: 5}); r.Bad >= 0 {
		t.Errorf("put across a freeze: the child finds byte %d wrong", r.Bad)
	}
	if r := c.ask(s, request{Do: "notices", Want: 2}); r.Notices != 2 {
		t.Errorf("the child received %d notifications of 2", r.Notices)
	}
}

// processClose lets the child close in good order.
func processClose(t testing.TB, s *Side, c *child) {
	c.send(request{Do: "close"})
	await(t, s)
	if _, err := c.receive(s); err != nil {
		t.Errorf("the child's Close: %v", err)
	}
}

// processKill kills the child after this side has polled a few times since a large operation was
// posted. A child that is frozen before cannot have done anything about the operation.
func processKill(t testing.TB, s *Side, c *child, kind path.OpKind, frozen bool, polls int) {
	theirs := c.export(s, processLarge, 1)
	local := s.Region(processLarge)
	if frozen {
		c.must(c.Stop())
	}
	s.Post(path.Op{Kind: kind, Copies: []path.Copy{{Local: local.All(), Key: theirs}}}, path.Op{Kind: path.Notify})
	s.pair.Pump(polls)
	c.must(c.Signal(sys.SIGKILL))
	await(t, s)
}

// processKillPoster kills the child while it writes to or reads from this side, which then gives
// its memory back.
func processKillPoster(t testing.TB, s *Side, c *child, kind path.OpKind) {
	mine := s.Region(processLarge)
	export := s.Export(mine, path.Read|path.Write)
	Fill(mine.All().Bytes(), 3)
	c.send(request{Do: "op", Kind: kind, Key: export.Key().Append(nil), N: processLarge, Seed: 3})
	s.pair.Pump(3)
	c.must(c.Signal(sys.SIGKILL))
	await(t, s)
	if exit, err := c.Wait(t.Context()); err != nil || exit.OK() {
		t.Errorf("the child ended by itself: %v, %v", exit, err)
	}
	want := string(mine.All().Bytes())
	s.pair.Pump(100)
	if string(mine.All().Bytes()) != want {
		t.Error("memory changed after EventDown")
	}
}

// await sleeps on FD until the path is down. It demands that this comes within a second of the
// call, that waiting costs no processor time, and that everything outstanding has ended by then.
func await(t testing.TB, s *Side) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), s.pair.f.Patience)
	defer cancel()
	wall, cpu := s.serve(t, ctx, func() bool { return s.Down != nil })
	if s.Down == nil {
		t.Fatalf("the peer is gone, and no EventDown came within %v\n%s", wall, s.pair.Dump())
	}
	if wall > time.Second {
		t.Errorf("EventDown came %v after the peer was gone; expected less than 1s", wall)
	}
	if wall > 100*time.Millisecond && cpu > wall/2 {
		t.Errorf("%v of processor time in %v of waiting for the end: this side spins", cpu, wall)
	}
	if s.pending != 0 {
		t.Errorf("%d operations without an EventDone after EventDown", s.pending)
	}
	for _, r := range s.ops {
		if r.Err != nil {
			wantErr(t, "operation outstanding when the peer went away", r.Err, path.ErrDown)
		}
	}
	wantDown(t, s)
}

// serve sleeps and polls this side until cond holds or ctx ends, and returns how long that took and
// what it cost.
func (s *Side) serve(t testing.TB, ctx context.Context, cond func() bool) (wall, cpu time.Duration) {
	t.Helper()
	w, err := path.NewWaiter()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := sys.ThreadCPU()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	events := make([]path.Event, 16)
	for !cond() {
		n, err := w.Wait(ctx, s.Path, events, 0)
		if err != nil {
			break
		}
		s.record(events[:n])
	}
	wall = time.Since(start)
	after, err := sys.ThreadCPU()
	if err != nil {
		t.Fatal(err)
	}
	return wall, after - before
}
