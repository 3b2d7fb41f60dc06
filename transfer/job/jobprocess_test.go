package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Jobs against processes that are killed, stopped and started again for real.

const (
	jobSize  = 8 << 20
	jobPiece = 128 << 10
	jobSeed  = 77
)

var jobTag = [16]byte{1, 9, 7, 0}

// runJobChild is the other process of a job.
//
//	server                  exports the same content under the same tag each time, as "x", and memory of zeros as "sink"
//	fetcher ADDR FILE FROM  fetches "x" from that offset on into a file, and prints how far the file is right
func runJobChild(role string) error {
	ctx := context.Background()
	r, err := mem.Alloc(mem.Options{Name: "child", Size: jobSize})
	if err != nil {
		return err
	}
	if args := strings.Fields(role); args[0] == "fetcher" {
		return runFetcher(ctx, r, args[1], args[2], args[3])
	}
	fill(r, jobSeed)
	sink, err := mem.Alloc(mem.Options{Name: "sink", Size: jobSize})
	if err != nil {
		return err
	}
	n, err := transfer.Open(ctx, transfer.Options{Anonymous: identity.All, Name: "child",
		Listen: []string{"tcp://127.0.0.1:0"}})
	if err != nil {
		return err
	}
	if _, err := n.Export(r.All(), transfer.ExportOptions{Name: "x", Tag: jobTag}); err != nil {
		return err
	}
	if _, err := n.Export(sink.All(), transfer.ExportOptions{Name: "sink",
		Rights: path.Read | path.Write}); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(n.Addrs()[0]); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func runFetcher(ctx context.Context, r *mem.Region, addr, file, from string) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	var off uint64
	if _, err := fmt.Sscan(from, &off); err != nil {
		return err
	}
	n, err := transfer.Open(ctx, transfer.Options{Name: "fetcher"})
	if err != nil {
		return err
	}
	var werr error
	last := off
	j, err := NewLink(n, addr, LinkOptions{}).Fetch(ctx, "x", r.All(),
		Options{From: off, Tag: jobTag, Piece: 4096, Window: 1,
			OnVerified: func(off uint64) {
				if off > last && werr == nil {
					_, werr = f.WriteAt(r.All().Bytes()[last:off], int64(last))
				}
				last = off
				fmt.Println(off)
			}})
	if err != nil {
		return err
	}
	return errors.Join(j.Wait(ctx), werr)
}

// patient goes on for as long as it takes.
var patient = LinkOptions{Retry: Retry{Max: 50 * time.Millisecond, Attempts: -1}}

// distant is a job against another process that is held in the middle.
type distant struct {
	c     *child
	proxy *fault.Proxy
	n     *transfer.Node
	g     *gate
	mem   *mem.Region
	job   *Job
}

func newDistant(t *testing.T, via, name string, lo LinkOptions) *distant {
	t.Helper()
	d := overPath(via)
	x := &distant{c: startChild(t, "server"), g: gateOver(jobSize/jobPiece/2, d), mem: region(t, jobSize)}
	var err error
	if x.proxy, err = fault.NewProxy("tcp", strings.TrimPrefix(x.c.addr, "tcp://"), fault.Plan{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.proxy.Close() })
	x.n = open(t, transfer.Options{Name: "parent", Paths: []setup.Driver{d}, HeartbeatEvery: 100 * time.Millisecond,
		DeadAfter: time.Second})
	l := link(t, x.n, "tcp://"+x.proxy.Addr(), lo)
	o := Options{Piece: jobPiece, Window: 3, Restarts: -1}
	if name == "x" {
		want := region(t, jobSize)
		fill(want, jobSeed)
		o.OnVerified = func(off uint64) {
			if !bytes.Equal(x.mem.All().Bytes()[:off], want.All().Bytes()[:off]) {
				t.Errorf("the first %d bytes are not right", off)
			}
		}
		x.job, err = l.Fetch(ctx(t), name, x.mem.All(), o)
	} else {
		fill(x.mem, 5)
		x.job, err = l.Store(ctx(t), name, x.mem.All(), o)
	}
	if err != nil {
		t.Fatal(err)
	}
	soon(t, x.g.held, "the middle of the job")
	return x
}

func (x *distant) good(t *testing.T) {
	t.Helper()
	if err := x.job.Wait(ctx(t)); err != nil {
		t.Fatalf("%v\n%v", err, x.job.Explain())
	}
	e := x.job.Explain()
	var moved uint64
	for _, a := range e.History {
		moved += a.Moved
	}
	if moved != jobSize || e.Attempts < 2 || e.Restarts != 0 || e.History[0].Moved == 0 {
		t.Errorf("%d of %d bytes moved: %v", moved, jobSize, e)
	}
}

func TestFetchFromKilledServer(t *testing.T) {
	for _, via := range paths {
		t.Run(via, func(t *testing.T) {
			x := newDistant(t, via, "x", patient)
			lost := x.n.Peers()
			x.c.Process.Kill()
			for _, p := range lost {
				soon(t, p.Gone(), "the loss of the peer")
			}
			x.g.release(x.n)
			x.c = startChild(t, "server")
			x.proxy.SetTarget(strings.TrimPrefix(x.c.addr, "tcp://"))
			x.good(t)
			want := region(t, jobSize)
			fill(want, jobSeed)
			if !bytes.Equal(x.mem.All().Bytes(), want.All().Bytes()) {
				t.Error("the bytes are not right")
			}
		})
	}
}

// Whatever way a peer dies, a job that cannot go on says that it is lost.
func TestJobDeadPeer(t *testing.T) {
	few := LinkOptions{Retry: Retry{First: time.Millisecond, Attempts: 2}, DialTimeout: time.Second}
	for _, via := range paths {
		for how, die := range map[string]func(t *testing.T, x *distant){
			"killed":  func(_ *testing.T, x *distant) { x.c.kill() },
			"stopped": func(t *testing.T, x *distant) { x.c.stop(t) },
			"cut off": func(_ *testing.T, x *distant) { x.proxy.Refuse(true); x.proxy.Cut() },
		} {
			t.Run(via+"/"+how, func(t *testing.T) {
				x := newDistant(t, via, "x", few)
				lost := x.n.Peers()
				die(t, x)
				for _, p := range lost {
					soon(t, p.Gone(), "the loss of the peer")
				}
				x.g.release(x.n)
				if err := x.job.Wait(ctx(t)); !errors.Is(err, transfer.ErrPeerLost) || !errors.Is(err, ErrGaveUp) ||
					errors.Is(err, transfer.ErrClosed) || errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
	}
}

// A server that is stopped for longer than it takes to be given up, and then goes on: what it still
// had in its sockets must not come after what the job brings on the next session.
func TestJobsWithFrozenServer(t *testing.T) {
	for _, via := range paths {
		for _, name := range []string{"x", "sink"} {
			t.Run(via+"/"+name, func(t *testing.T) {
				x := newDistant(t, via, name, patient)
				lost := x.n.Peers()
				x.c.stop(t)
				for _, p := range lost {
					soon(t, p.Gone(), "the loss of the peer")
				}
				x.g.release(x.n)
				if err := x.c.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
				x.good(t)
				if name == "x" {
					return
				}
				p, err := x.job.link.Peer(ctx(t))
				if err != nil {
					t.Fatal(err)
				}
				back := region(t, jobSize)
				rem := lookup(t, p, "sink")
				for range 2 {
					y, err := p.Get(ctx(t), []path.Copy{rem.At(0, back.All())}, transfer.PutOptions{})
					wait(t, y, err)
					if !bytes.Equal(back.All().Bytes(), x.mem.All().Bytes()) {
						t.Fatal("what was stored is not right")
					}
				}
				// And what comes later stays.
				zero := region(t, jobSize)
				y, err := p.Put(ctx(t), []path.Copy{rem.At(0, zero.All())}, transfer.PutOptions{})
				wait(t, y, err)
				for range 3 {
					y, err := p.Get(ctx(t), []path.Copy{rem.At(0, back.All())}, transfer.PutOptions{})
					wait(t, y, err)
					if !bytes.Equal(back.All().Bytes(), zero.All().Bytes()) {
						t.Fatal("bytes of the store came after its end")
					}
				}
			})
		}
	}
}

// The process that fetches is killed, and a new one goes on from what the old one said was right.
func TestFetchByKilledClient(t *testing.T) {
	s := startChild(t, "server")
	file := t.TempDir() + "/part"
	var off uint64
	for round := 0; ; round++ {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=fetcher %s %s %d", childEnv, s.addr, file, off))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		began := off
		for {
			if _, err := fmt.Fscan(out, &off); err != nil {
				break
			}
			if off < began {
				t.Errorf("round %d began at %d again", round, off)
			}
			if round < 3 && off > began+jobSize/8 {
				cmd.Process.Kill()
			}
		}
		err = cmd.Wait()
		b, rerr := os.ReadFile(file)
		if rerr != nil {
			t.Fatal(rerr)
		}
		want := region(t, jobSize)
		fill(want, jobSeed)
		if uint64(len(b)) < off || !bytes.Equal(b[:off], want.All().Bytes()[:off]) {
			t.Fatalf("round %d: the first %d bytes are not right", round, off)
		}
		if err == nil {
			if off != jobSize || round == 0 {
				t.Errorf("ended after %d rounds at %d", round+1, off)
			}
			return
		}
		if round > 3 {
			t.Fatal(err)
		}
	}
}
