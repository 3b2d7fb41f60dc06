package transfer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"go.uber.org/goleak"
)

// The tests of this file run against a second process: this test binary, started again with
// childEnv set.
const childEnv = "PENSTOCK_TRANSFER_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		if err := runChild(role); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if testenv.Race { // it is for races, the other runs are for the models
		flag.Set("rapid.checks", "25")
	}
	goleak.VerifyTestMain(m)
}

// never is a DeadAfter that no test reaches, however busy the machine is: tests give a peer up by
// giveUp.
const never = 10 * time.Minute

// giveUp makes p give its peer up as it does when nothing comes for DeadAfter, without that time
// passing.
func giveUp(p *Peer) {
	p.mu.Lock()
	for now := time.Now(); p.session.Tick(now) == nil; now = p.session.Deadline() {
	}
	p.mu.Unlock()
	p.wake()
}

// stop stops the child's threads, and returns when they stand.
func (c *child) stop(t testing.TB) {
	t.Helper()
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(c.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the child did not stop: %#x, %v", status, err)
	}
}

// childSize is the size of the memory that the child exports as "child", for reading and writing.
const childSize = 256 << 20

// hostRole begins the roles of processes in hosts of their own.
const hostRole = "host "

// runChild is the other process. It exports memory, prints its address, and obeys its standard
// input until that ends.
//
//	server       waits
//	verbs        answers every verb: takes queues and tensors, has a service
//	putter ADDR  dials and puts into the export "parent" for ever
//	host ROLE    see runInHost
//	budget ...   see runBudgetChild
//	user ROLE    see runUserChild
//	first ROLE   see runFirstChild
func runChild(role string) error {
	if r, ok := strings.CutPrefix(role, hostRole); ok {
		return runInHost(r)
	}
	if r, ok := strings.CutPrefix(role, budgetRole); ok {
		return runBudgetChild(r)
	}
	if r, ok := strings.CutPrefix(role, userRole); ok {
		return runUserChild(r)
	}
	if r, ok := strings.CutPrefix(role, firstRole); ok {
		return runFirstChild(r)
	}
	ctx := context.Background()
	r, err := mem.Alloc(mem.Options{Name: "child", Size: childSize, Lazy: true})
	if err != nil {
		return err
	}
	n, err := Open(ctx, Options{Anonymous: identity.All, Name: "child", Listen: []string{"tcp://127.0.0.1:0"},
		DeadAfter: never})
	if err != nil {
		return err
	}
	if _, err := n.Export(r.All(), ExportOptions{Name: "child", Rights: path.Read | path.Write}); err != nil {
		return err
	}
	if role == "verbs" {
		if err := answerVerbs(ctx, n); err != nil {
			return err
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(n.Addrs()[0]); err != nil {
		return err
	}
	if addr, ok := strings.CutPrefix(role, "putter "); ok {
		addr, via, _ := strings.Cut(addr, " ")
		p, err := n.Dial(ctx, addr)
		if err != nil {
			return err
		}
		rem, err := p.Lookup(ctx, "parent")
		if err != nil {
			return err
		}
		for {
			t, err := p.Put(ctx, []path.Copy{rem.At(0, mem.Span{Region: r, Len: rem.Size()})},
				PutOptions{Paths: []string{via}})
			if err != nil {
				return err
			}
			if err := t.Wait(ctx); err != nil {
				return err
			}
		}
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

type child struct {
	*exec.Cmd
	addr string
}

func startChild(t testing.TB, role string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: cmd}
	t.Cleanup(func() {
		in.Close()
		c.kill()
	})
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&c.addr); err != nil {
		t.Fatalf("the child did not start: %v", err)
	}
	return c
}

func (c *child) kill() {
	if c.ProcessState == nil {
		c.Process.Signal(syscall.SIGCONT)
		c.Process.Kill()
		c.Wait()
	}
}

// soon fails the test unless c is closed before long. It is no assertion of speed: it only keeps a
// hang from lasting.
func soon(t testing.TB, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-ctx(t).Done():
		buf := make([]byte, 1<<20)
		t.Fatalf("%s did not happen\n%s", what, buf[:runtime.Stack(buf, true)])
	}
}

func TestKilledReceiver(t *testing.T) {
	for _, name := range paths {
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			t.Run(fmt.Sprintf("%s/%v", name, sig), func(t *testing.T) {
				c := startChild(t, "server")
				n := open(t, Options{Name: "parent", DeadAfter: never})
				p, err := n.Dial(ctx(t), c.addr)
				if err != nil {
					t.Fatal(err)
				}
				src := region(t, childSize)
				rem := lookup(t, p, "child")
				var all []*Transfer
				ended := map[*Transfer]int{}
				ends := make(chan *Transfer, 1<<16)
				begin := func() error {
					do := p.Put
					if len(all)%2 == 1 {
						do = p.Get
					}
					x, err := do(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{name}})
					if err == nil {
						all = append(all, x)
						x.OnDone(func(x *Transfer) { ends <- x })
					}
					return err
				}
				if name == "shm" && sig == syscall.SIGSTOP {
					// Copies into the memory of a stopped peer succeed until the node gives the
					// peer up. They are below the size from which the peer copies too: a peer that
					// stops inside a chunk of its own keeps that operation.
					small := func(do func(context.Context, []path.Copy, PutOptions) (*Transfer, error)) {
						x, err := do(ctx(t), []path.Copy{rem.At(0, mem.Span{Region: src, Len: 1 << 20})},
							PutOptions{Paths: []string{name}})
						wait(t, x, err)
					}
					small(p.Put) // the peer has answered, and the path has its memory mapped
					c.stop(t)
					for range 3 {
						small(p.Put)
						small(p.Get)
					}
					c.Process.Signal(syscall.SIGCONT)
				}
				for range 8 {
					if err := begin(); err != nil {
						t.Fatal(err)
					}
				}
				for all[0].Progress() == 0 && all[0].Err() == nil {
					runtime.Gosched()
				}
				if sig == syscall.SIGSTOP {
					c.stop(t)
					giveUp(p)
				} else {
					c.Process.Signal(sig)
				}
				for p.Err() == nil {
					if begin() != nil || all[len(all)-1].Wait(ctx(t)) != nil {
						break
					}
				}
				soon(t, p.Gone(), "the loss of the peer")
				for _, x := range all {
					soon(t, x.Done(), "the end of a transfer")
					if err := x.Err(); err != nil && !errors.Is(err, path.ErrDown) && !errors.Is(err, ErrPeerLost) {
						t.Errorf("ended with %v\n%v", err, x.Explain())
					}
				}
				for range all {
					ended[<-ends]++
				}
				if len(ended) != len(all) || len(ends) > 0 {
					t.Errorf("%d transfers, %d ended, %d ended again", len(all), len(ended), len(ends))
				}
				if err := begin(); !errors.Is(err, ErrPeerLost) {
					t.Errorf("a transfer with a lost peer: %v", err)
				}
				src.Close()
				soon(t, src.Unmapped(), "the return of the source's last lease")
				if !errors.Is(p.Err(), ErrPeerLost) {
					t.Errorf("the peer's error is %v", p.Err())
				}
			})
		}
	}
}

func TestKilledSender(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			peers := make(chan *Peer, 1)
			heard := make(chan Incoming, 1024)
			n := open(t, Options{Name: "parent", Listen: []string{"tcp://127.0.0.1:0"},
				OnPeer: func(p *Peer) { peers <- p }, OnTransfer: func(i Incoming) { heard <- i }})
			dst := region(t, 64<<20)
			x := export(t, n, dst, "parent", path.Write)
			c := startChild(t, "putter "+n.Addrs()[0]+" "+name)
			p := <-peers
			first := <-heard // it is at work
			if first.Bytes != dst.Len() {
				t.Errorf("heard %+v", first)
			}
			c.Process.Kill()
			soon(t, p.Gone(), "the loss of the peer")
			// Nothing writes any more, and the memory can be taken back.
			before := bytes.Clone(dst.All().Bytes())
			if err := x.Revoke(ctx(t)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(before, dst.All().Bytes()) {
				t.Error("the memory changed after the peer was gone")
			}
			dst.Close()
			soon(t, dst.Unmapped(), "the return of the destination's last lease")
		})
	}
}

// A storm: the peer is killed again and again while 200 transfers are under way. Every future ends
// once, no id is delivered twice, and nothing is left behind.
func TestKillStorm(t *testing.T) {
	n := open(t, Options{Name: "parent"})
	src := region(t, 4<<20)
	fill(src, 1)
	const total = 200
	ended := map[observe.ID]int{}
	ends := make(chan *Transfer, 2*total)
	begun, failed, ok := 0, 0, 0
	for round := 0; begun < total; round++ {
		c := startChild(t, "server")
		p, err := n.Dial(ctx(t), c.addr)
		if err != nil {
			t.Fatal(err)
		}
		rem := lookup(t, p, "child")
		// By turns the peer is killed when all is done, when the first transfer is done, and while
		// transfers begin.
		const each = 20
		var mine []*Transfer
		for i := range each {
			x, err := p.Put(ctx(t), []path.Copy{rem.At(uint64(i)*src.Len(), src.All())},
				PutOptions{Paths: []string{paths[(round+i)%2]}})
			if err != nil { // the peer is gone already
				if !errors.Is(err, ErrPeerLost) {
					t.Fatal(err)
				}
				break
			}
			begun++
			mine = append(mine, x)
			x.OnDone(func(x *Transfer) { ends <- x })
			if i == each/2 && round%3 == 2 {
				c.Process.Kill()
			}
		}
		switch round % 3 {
		case 0:
			for _, x := range mine {
				wait(t, x, nil)
			}
		case 1:
			wait(t, mine[0], nil)
		}
		c.Process.Kill()
		soon(t, p.Gone(), "the loss of the peer")
		c.Wait()
	}
	for range begun {
		x := <-ends
		ended[x.ID()]++
		switch err := x.Err(); {
		case err == nil:
			ok++
		case errors.Is(err, path.ErrDown), errors.Is(err, ErrPeerLost), errors.Is(err, path.ErrUnavailable):
			failed++
		default:
			t.Errorf("ended with %v", err)
		}
	}
	if len(ended) != begun || len(ends) != 0 {
		t.Errorf("%d transfers began, %d ids ended, %d ended again", begun, len(ended), len(ends))
	}
	if failed == 0 || ok == 0 {
		t.Errorf("%d transfers failed, %d succeeded: expected both", failed, ok)
	}
	src.Close()
	soon(t, src.Unmapped(), "the return of the source's last lease")
	if k := len(n.Peers()); k != 0 {
		t.Errorf("%d peers are left", k)
	}
	t.Logf("%d succeeded, %d failed", ok, failed)
}

// memoryKB reads a figure of /proc/PID/status in KiB.
func memoryKB(t testing.TB, pid int, field string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, field+":"); ok {
			n, err := strconv.Atoi(strings.Fields(v)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s of process %d", field, pid)
	return 0
}

func TestThousandPeers(t *testing.T) {
	c := startChild(t, "server")
	n := open(t, Options{Name: "parent"})
	const maxKB = 256
	count := testenv.Rounds(1000)
	if testenv.Race {
		count = min(count, 200)
	}
	before, beforeChild := memoryKB(t, os.Getpid(), "VmRSS"), memoryKB(t, c.Process.Pid, "VmRSS")
	src := region(t, 4096)
	fill(src, 1)
	var all []*Peer
	for i := range count {
		p, err := n.Dial(ctx(t), c.addr)
		if err != nil {
			t.Fatalf("peer %d: %v", i, err)
		}
		all = append(all, p)
	}
	// Each of them works, over both paths by turns; an idle peer is one that has worked.
	for i, p := range all {
		rem := lookup(t, p, "child")
		x, err := p.Put(ctx(t), []path.Copy{rem.At(uint64(i)*4096, src.All())}, PutOptions{Paths: []string{paths[i%2]}})
		wait(t, x, err)
	}
	runtime.GC()
	mine := (memoryKB(t, os.Getpid(), "VmRSS") - before) / count
	theirs := (memoryKB(t, c.Process.Pid, "VmRSS") - beforeChild) / count
	t.Logf("%d KiB per peer here, %d KiB there", mine, theirs)
	// The race detector multiplies memory, so the bound is for ordinary builds.
	if !testenv.Race && (mine > maxKB || theirs > maxKB) {
		t.Errorf("%d and %d KiB per idle peer: expected at most %d", mine, theirs, maxKB)
	}
	c.Process.Kill()
	for _, p := range all {
		soon(t, p.Gone(), "the loss of a peer")
	}
}

// TestClosedNodeForgets: a node that was closed holds no socket, although it is kept and a peer
// that may still reach its memory is stopped.
func TestClosedNodeForgets(t *testing.T) {
	sockets := func() (n int) {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range all {
			if to, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil && strings.HasPrefix(to, "socket:") {
				n++
			}
		}
		return n
	}
	for _, lost := range []string{"closed", "lost first"} {
		t.Run(lost, func(t *testing.T) {
			before := sockets()
			heard := make(chan Incoming, 1024)
			peers := make(chan *Peer, 1)
			dead := never
			if lost == "closed" {
				dead = 3 * time.Second // as long as Close waits for an answer
			}
			n := open(t, Options{Name: "parent", Listen: []string{"tcp://127.0.0.1:0"}, DeadAfter: dead,
				OnPeer: func(p *Peer) { peers <- p }, OnTransfer: func(i Incoming) {
					select {
					case heard <- i:
					default:
					}
				}})
			export(t, n, region(t, 64<<20), "parent", path.Write)
			c := startChild(t, "putter "+n.Addrs()[0]+" shm")
			<-heard // it has the memory mapped
			c.stop(t)
			if p := <-peers; lost != "closed" {
				giveUp(p)
				soon(t, p.Gone(), "the loss of the peer")
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
			if now := sockets(); now > before {
				t.Errorf("%d sockets, %d before", now, before)
			}
			runtime.KeepAlive(n)
		})
	}
}

// TestIntroduction: a session that was ready counts as a peer, whatever has become of it by the
// time that the node looks.
func TestIntroduction(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	why := errors.New("over")
	for range 100 { // the order in which select looks is a matter of chance
		for _, ctx := range []context.Context{t.Context(), over} {
			p := &Peer{peerLife: peerLife{ready: make(chan struct{}), gone: make(chan struct{})}}
			p.ctx, p.end = context.WithCancelCause(t.Context())
			p.end(why)
			close(p.gone)
			close(p.ready)
			if err := p.introduction(ctx); err != nil {
				t.Fatalf("a session that was ready, and is over: %v", err)
			}
		}
	}
	p := &Peer{peerLife: peerLife{ready: make(chan struct{}), gone: make(chan struct{})}}
	p.ctx, p.end = context.WithCancelCause(t.Context())
	p.end(why)
	close(p.gone)
	if err := p.introduction(t.Context()); !errors.Is(err, why) {
		t.Errorf("a session that never was ready: %v", err)
	}
}
