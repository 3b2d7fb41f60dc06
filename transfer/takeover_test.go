package transfer

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// TestNoZombieWrites stops the receiver in the middle of a put, until the sender gives it up, dials
// again and puts something else to the same place. What the first put left in the receiver's
// sockets must not appear afterwards.
func TestNoZombieWrites(t *testing.T) {
	c := startChild(t, "server")
	n := open(t, Options{DeadAfter: never})
	const size = 4 << 20
	src, back := region(t, size), region(t, size)
	only := PutOptions{Paths: []string{"tcp"}}
	put := func(p *Peer, rem *Remote, pattern byte) (*Transfer, error) {
		b := src.All().Bytes()
		for i := range b {
			b[i] = pattern
		}
		return p.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, only)
	}
	for round := range 12 {
		p, err := n.Dial(ctx(t), c.addr)
		if err != nil {
			t.Fatal(err)
		}
		rem := lookup(t, p, "child")
		old, now := byte(2*round+1), byte(2*round+2)
		x, err := put(p, rem, old) // the path is there afterwards
		wait(t, x, err)
		c.stop(t)
		if x, err = put(p, rem, old); err != nil {
			t.Fatal(err)
		}
		for end := ctx(t); c.unread(t) < 64<<10; <-time.After(time.Millisecond) {
			// of the put; the control connection has less
			if end.Err() != nil {
				t.Fatal("the put does not reach the receiver's sockets")
			}
		}
		giveUp(p)
		soon(t, x.Done(), "the end of a put to a silent peer")
		soon(t, p.Gone(), "the end of a silent peer")
		c.Process.Signal(syscall.SIGCONT)
		q, err := n.Dial(ctx(t), c.addr)
		if err != nil {
			t.Fatal(err)
		}
		q.Import(rem.Desc)
		x, err = put(q, rem, now)
		wait(t, x, err)
		for range 3 {
			x, err = q.Get(ctx(t), []path.Copy{rem.At(0, back.All())}, only)
			wait(t, x, err)
			if at := bytes.IndexByte(back.All().Bytes(), old); at >= 0 {
				t.Fatalf("round %d: byte %d is that of the put that failed", round, at)
			}
		}
		q.Close()
	}
}

// unread is how many bytes lie in the TCP sockets of the child, which it has not read.
func (c *child) unread(t *testing.T) (n int) {
	t.Helper()
	fds := fmt.Sprintf("/proc/%d/fd/", c.Process.Pid)
	all, err := os.ReadDir(fds)
	if err != nil {
		t.Fatal(err)
	}
	sockets := map[string]bool{}
	for _, d := range all {
		if to, err := os.Readlink(fds + d.Name()); err == nil {
			sockets[to] = true
		}
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", c.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		// sl local remote state tx_queue:rx_queue tr:when retransmits uid timeout inode
		f := strings.Fields(line)
		if len(f) < 10 || !sockets["socket:["+f[9]+"]"] {
			continue
		}
		_, rx, _ := strings.Cut(f[4], ":")
		k, err := strconv.ParseInt(rx, 16, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		n += int(k)
	}
	return n
}

// lostQuietly makes two nodes with a session between them that one side has lost while the other
// one does not know: its control connection is cut off without an end, and a put of it lies unread
// in the other side's socket.
type lostQuietly struct {
	a, b   *Node
	r      *mem.Region // exported by b as rem
	src    *mem.Region
	rem    *Remote
	theirs *Peer        // b's side of the lost session
	living *Peer        // another session of the two nodes
	hold   *atomic.Bool // b does not read its data connections
}

func newLostQuietly(t *testing.T) *lostQuietly {
	s := &lostQuietly{hold: new(atomic.Bool), r: region(t, 1<<20), src: region(t, 1<<20)}
	d := over("tcp")
	d.poll = func(p path.Path, events []path.Event) int {
		if s.hold.Load() {
			return 0
		}
		return p.Poll(events)
	}
	s.b = open(t, Options{Listen: []string{"tcp://127.0.0.1:0"}, Paths: []setup.Driver{d}, DeadAfter: never})
	s.a = open(t, Options{Paths: []setup.Driver{over("tcp")}, DeadAfter: never})
	addr := s.b.Addrs()[0]
	proxy, err := fault.NewProxy("tcp", strings.TrimPrefix(addr, "tcp://"), fault.Plan{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	export(t, s.b, s.r, "x", path.Read|path.Write)
	s.living = s.dial(t, addr)
	one := s.dial(t, "tcp://"+proxy.Addr())
	s.rem = lookup(t, one, "x")
	s.living.Import(s.rem.Desc)
	for _, p := range []*Peer{one, s.living} {
		x, err := s.put(t, p, 1)
		wait(t, x, err)
	}
	for _, p := range s.b.Peers() {
		if p.id == one.id {
			s.theirs = p
		}
	}
	if s.theirs == nil {
		t.Fatal("the two ends name the session differently")
	}
	s.hold.Store(true)
	stuck, err := s.put(t, one, 2)
	if err != nil {
		t.Fatal(err)
	}
	proxy.Stall(fault.Both)
	giveUp(one)
	soon(t, one.Gone(), "the end of a silent peer")
	if err := stuck.Wait(ctx(t)); err == nil {
		t.Fatal("a put of a lost session succeeded")
	}
	return s
}

func (s *lostQuietly) dial(t *testing.T, addr string) *Peer {
	t.Helper()
	p, err := s.a.Dial(ctx(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (s *lostQuietly) put(t *testing.T, p *Peer, pattern byte) (*Transfer, error) {
	b := s.src.All().Bytes()
	for i := range b {
		b[i] = pattern
	}
	return p.Put(ctx(t), []path.Copy{s.rem.At(0, s.src.All())}, PutOptions{})
}

// ended checks that the lost session is ended at the other side by now, and that its bytes do not
// appear after others.
func (s *lostQuietly) ended(t *testing.T, p *Peer) {
	t.Helper()
	select {
	case <-s.theirs.Gone():
	default:
		t.Fatal("the lost session is not ended at the other side")
	}
	p.Import(s.rem.Desc)
	x, err := s.put(t, p, 3)
	if err != nil {
		t.Fatal(err)
	}
	s.release()
	wait(t, x, nil)
	if at := bytes.IndexByte(s.r.All().Bytes(), 2); at >= 0 {
		t.Errorf("byte %d is that of the put that failed", at)
	}
	if p.hasLostSessions() {
		t.Error("the lost session is not forgotten")
	}
}

// release lets b read what it held back.
func (s *lostQuietly) release() {
	s.hold.Store(false)
	for _, p := range s.b.Peers() {
		p.mu.Lock()
		for _, l := range p.paths {
			s.b.loop.Kick(l)
		}
		p.mu.Unlock()
	}
}

// TestDialEndsLostSessions checks that a node that lost a session has it ended at the other side by
// dialing again.
func TestDialEndsLostSessions(t *testing.T) {
	s := newLostQuietly(t)
	s.ended(t, s.dial(t, s.b.Addrs()[0]))
}

// TestLivingSessionEndsLostOnes checks that a session that is there already moves nothing before
// the ones that were lost with the same node are ended at the other side.
func TestLivingSessionEndsLostOnes(t *testing.T) {
	s := newLostQuietly(t)
	if !s.living.hasLostSessions() {
		t.Fatal("the lost session is forgotten")
	}
	x, err := s.living.Notify(ctx(t), nil, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	soon(t, s.theirs.Gone(), "the end of the lost session at the other side")
	s.release()
	wait(t, x, nil)
	s.ended(t, s.living)
}

// TestEndSessionsOfOthers checks that a peer cannot end a session by guessing, or by naming one of
// another node.
func TestEndSessionsOfOthers(t *testing.T) {
	b := open(t, Options{Listen: []string{"tcp://127.0.0.1:0"}})
	var peers [2]*Peer
	for i := range peers {
		n := open(t, Options{})
		p, err := n.Dial(ctx(t), b.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		peers[i] = p
	}
	stolen := peers[0].id
	if _, err := peers[1].request(ctx(t), &control.EndSessions{Sessions: [][16]byte{stolen, {1},
		peers[1].id}}); err != nil {
		t.Fatal(err)
	}
	for i, p := range peers {
		if _, err := p.List(ctx(t), ""); err != nil {
			t.Errorf("session %d: %v", i, err)
		}
	}
}
