package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/internal/budget"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// budgetRole begins the roles of processes with few descriptors: the directory of an identity and
// the number of descriptors follow.
const budgetRole = "budget "

// runBudgetChild serves 1 MiB as "child" to all peers.
func runBudgetChild(role string) error {
	dir, most, _ := strings.Cut(role, " ")
	var files uint64
	if _, err := fmt.Sscan(most, &files); err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files, Max: files}); err != nil {
		return err
	}
	id, err := identity.Open(dir, identity.Options{})
	if err != nil {
		return err
	}
	r, err := mem.Alloc(mem.Options{Name: "child", Size: 1 << 20})
	if err != nil {
		return err
	}
	n, err := Open(context.Background(), Options{Identity: id, Policy: allRights{}, Listen: []string{loopback}})
	if err != nil {
		return err
	}
	n.AcceptQueues("") // and the application takes none of them
	if _, err := n.Export(r.All(), ExportOptions{Name: "child", Rights: path.Read | path.Write}); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(n.Addrs()[0]); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

type allRights struct{}

func (allRights) Rights(string) identity.Rights { return identity.All }

// takeAll opens sessions, and paths of 16 streams and large windows, until neither is given any
// more. It returns how much it got.
func takeAll(t *testing.T, n *Node, addr string) (sessions, paths int) {
	t.Helper()
	var peers []*Peer
	for {
		p, err := n.Dial(ctx(t), addr)
		if err != nil {
			if !errors.Is(err, control.Busy) || !strings.Contains(err.Error(), "asked for") {
				t.Fatalf("session %d: %v, expected %v with the numbers", sessions+1, err, control.Busy)
			}
			break
		}
		sessions++
		for _, q := range []control.OpenPath{{Path: "tcp", Streams: 16, Window: 4096}, {Path: "tcp"}, {Path: "shm"}} {
			for {
				_, err := p.request(ctx(t), &q)
				if err != nil {
					if !errors.Is(err, control.Busy) {
						t.Fatalf("path %d of session %d: %v, expected %v", paths+1, sessions, err, control.Busy)
					}
					break
				}
				paths++
			}
		}
		peers = append(peers, p)
	}
	t.Cleanup(func() {
		for _, p := range peers {
			p.Close()
		}
	})
	return sessions, paths
}

// moves dials as a newcomer would, and puts by each path.
func moves(t *testing.T, n *Node, addr, name string) {
	t.Helper()
	p, err := n.Dial(ctx(t), addr)
	if err != nil {
		t.Errorf("a newcomer: %v", err)
		return
	}
	defer p.Close()
	src := region(t, 1<<20)
	rem := lookup(t, p, name)
	x, err := p.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Paths: []string{"tcp"}})
	wait(t, x, err)
	x, err = p.Get(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
	wait(t, x, err)
}

// TestGreedyPeer has one principal take all it can get, by as many sessions as it gets; another one
// still moves its bytes. When they are gone everything was given back.
func TestGreedyPeer(t *testing.T) {
	ca := authority(t)
	b := open(t, Options{Identity: issue(t, ca, "server"), Policy: allRights{}, Listen: []string{loopback}})
	b.budget = budget.New(budget.Amounts{budget.Sessions: 64, budget.Paths: 300, budget.Descriptors: 1004,
		budget.Memory: 1 << 30})
	dst := region(t, 1<<20)
	export(t, b, dst, "dst", path.Read|path.Write)
	greedy := open(t, Options{Identity: issue(t, ca, "greedy"), Policy: allRights{}})
	sessions, invited := takeAll(t, greedy, b.Addrs()[0])
	held := b.budget.Held("cert:greedy")
	t.Logf("the greedy one got %d sessions and %d paths: %v", sessions, invited, held)
	if sessions < 2 || invited < 2 || held[budget.Sessions] != uint64(sessions) ||
		held[budget.Paths] != uint64(invited) {
		t.Errorf("%d sessions and %d paths are charged as %v", sessions, invited, held)
	}
	newcomer := open(t, Options{Identity: issue(t, ca, "newcomer"), Policy: allRights{}, Streams: 8})
	moves(t, newcomer, b.Addrs()[0], "dst")
	greedy.Close()
	newcomer.Close()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	for _, who := range []string{"cert:greedy", "cert:newcomer"} {
		if h := b.budget.Held(who); h != (budget.Amounts{}) {
			t.Errorf("%s is charged %v after all", who, h)
		}
	}
	if n := b.granted.Load(); n != 0 {
		t.Errorf("%d grants are not given back", n)
	}
}

// TestGreedyUser has another user of this machine open all sessions it can get, beside connections
// that say nothing: this user still gets in.
func TestGreedyUser(t *testing.T) {
	b := open(t, Options{AllowUID: path.AnyUser(), Listen: []string{loopback}})
	b.budget = budget.New(budget.Amounts{budget.Sessions: 64, budget.Paths: 300, budget.Descriptors: 1000,
		budget.Memory: 1 << 30})
	export(t, b, region(t, 1<<20), "dst", path.Read|path.Write)
	n := open(t, Options{})
	p, got := startUser(t, "greedy "+b.Addrs()[0], asOther(t), "sessions")
	if !strings.HasPrefix(got, "32 ") || !strings.Contains(got, "busy") {
		t.Errorf("another user has sessions %q, expected 32 and the refusal", got)
	}
	who := fmt.Sprint("uid:", otherUser)
	if h := b.budget.Held(who); h[budget.Sessions] != 32 {
		t.Errorf("%s is charged %v", who, h)
	}
	moves(t, n, b.Addrs()[0], "dst")
	p.Kill()
	n.Close()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if h := b.budget.Held(who); h != (budget.Amounts{}) || b.granted.Load() != 0 {
		t.Errorf("%s is charged %v after all, %d grants are out", who, h, b.granted.Load())
	}
}

// TestFewDescriptors does the same with a process that may have few descriptors, which hundreds of
// connections that say nothing knock at as well.
func TestFewDescriptors(t *testing.T) {
	for _, files := range []int{128, 256, 1024} {
		t.Run(fmt.Sprint(files), func(t *testing.T) {
			ca := authority(t)
			dir := filepath.Join(t.TempDir(), "child")
			creds, err := ca.Credentials("child", identity.IssueOptions{})
			if err == nil {
				err = identity.Save(dir, creds)
			}
			if err != nil {
				t.Fatal(err)
			}
			c := startChild(t, budgetRole+dir+" "+fmt.Sprint(files))
			_, addr, _ := strings.Cut(c.addr, "://")
			for range 400 {
				s, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
			}
			greedy := open(t, Options{Identity: issue(t, ca, "greedy"), Policy: allRights{}})
			sessions, invited := takeAll(t, greedy, c.addr)
			t.Logf("the greedy one got %d sessions and %d paths", sessions, invited)
			moves(t, open(t, Options{Identity: issue(t, ca, "newcomer"), Policy: allRights{}}), c.addr, "child")
		})
	}
}

// TestFewerStreams: a path that is refused for its many streams is opened with fewer.
func TestFewerStreams(t *testing.T) {
	p := newPair(t, Options{Streams: 16})
	p.b.budget = budget.New(budget.Amounts{budget.Paths: 80, budget.Descriptors: 30, budget.Memory: 1 << 30})
	dst, src := region(t, 1<<20), region(t, 1<<20)
	export(t, p.b, dst, "dst", path.Read|path.Write)
	x, err := p.ab.Put(ctx(t), []path.Copy{lookup(t, p.ab, "dst").At(0, src.All())}, PutOptions{Paths: []string{"tcp"}})
	wait(t, x, err)
	// 8 streams are 10 descriptors: 11 are free then above the 7 that are kept.
	if h := p.b.budget.Held(p.ba.principal()); h[budget.Descriptors] != 10 {
		t.Errorf("%v is charged, expected the descriptors of 8 streams", h)
	}
}

// TestPendingOfOneSource: connections from one source that say nothing push out each other, and
// none from elsewhere.
func TestPendingOfOneSource(t *testing.T) {
	n := open(t, Options{})
	closed := map[string]int{}
	come := func(from string) {
		c := closable{addressed{from: &net.TCPAddr{IP: net.ParseIP(from), Port: 1}}, func() { closed[from]++ }}
		if err := n.meet(&Peer{node: n, peerConn: peerConn{raw: c}, peerUser: peerUser{role: control.Acceptor,
			owner: func() (int, error) {
				return path.UserAt(c)
			}}}); err != nil {
			t.Fatal(err)
		}
	}
	come("2001:db8::1")
	come("127.0.0.1")
	for i := range 3 * setup.MaxPending() {
		come(fmt.Sprintf("2001:db8:7::%x", i))
	}
	if closed["2001:db8::1"]+closed["127.0.0.1"] != 0 || len(closed) != 2*setup.MaxPending()+2 ||
		n.handshaking.Len() != setup.MaxPending() {
		t.Errorf("%d are pending, %d were closed, of others %d and %d", n.handshaking.Len(), len(closed),
			closed["2001:db8::1"], closed["127.0.0.1"])
	}
}

// TestChargedSessionStays: a session that is charged to its principal does not make room for
// connections that say nothing, also while this side is not done with its handshake.
func TestChargedSessionStays(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	b := open(t, Options{Listen: []string{loopback}, Limits: Limits{ForPeer: func(string) (Quota, bool) {
		close(asked)
		<-release
		return Quota{}, true
	}}})
	export(t, b, region(t, 4096), "dst", path.Read)
	a := open(t, Options{DeadAfter: time.Minute})
	type answer struct {
		p   *Peer
		err error
	}
	got := make(chan answer, 1)
	go func() {
		p, err := a.Dial(ctx(t), b.Addrs()[0])
		got <- answer{p, err}
	}()
	<-asked
	_, addr, _ := strings.Cut(b.Addrs()[0], "://")
	var first net.Conn
	for i := range setup.MaxPending() + 2 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i == 0 {
			first = c
		}
	}
	io.ReadAll(first) // until the node ends it to make room, after the connections before it
	close(release)
	d := <-got
	if d.err != nil {
		t.Fatal(d.err)
	}
	lookup(t, d.p, "dst")
}

// closable is a connection that tells when it is closed.
type closable struct {
	addressed
	close func()
}

func (c closable) Close() error {
	c.close()
	return nil
}

// TestAcceptWithoutDescriptors: a node that can have no more descriptors waits a moment between its
// tries, and goes on when it can.
func TestAcceptWithoutDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{log: slog.New(slog.DiscardHandler), ctx: t.Context()}
		l := &starved{}
		n.wg.Add(1)
		start := time.Now()
		n.accept(l)
		if took := time.Since(start); l.tries != 100 || took != 99*acceptPause {
			t.Errorf("%d tries in %v, expected one for each %v", l.tries, took, acceptPause)
		}
	})
}

// starved is a listener in a process without descriptors; it is closed after a hundred tries.
type starved struct {
	net.Listener
	tries int
}

func (l *starved) Accept() (net.Conn, error) {
	errs := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS}
	if l.tries++; l.tries == 100 {
		return nil, net.ErrClosed
	}
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", errs[l.tries%len(errs)])}
}

// A node closes while handlers of calls still run, and while messages wait for the application:
// what is charged for them comes back when they end.
func TestCloseWhileHandlersRun(t *testing.T) {
	p := newPair(t, Options{})
	entered, gate, left := make(chan struct{}, 8), make(chan struct{}), make(chan struct{}, 8)
	handler := func() { entered <- struct{}{}; <-gate; left <- struct{}{} }
	p.b.opts.OnTransfer = func(Incoming) { handler() }
	if _, err := p.b.Handle("slow", func(context.Context, *Peer, []byte) ([]byte, error) {
		handler()
		return nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	x, err := p.ab.Notify(ctx(t), make([]byte, MaxNotify), PutOptions{})
	wait(t, x, err)
	for range 4 {
		go p.ab.Call(ctx(t), "slow", nil)
	}
	for range 5 {
		<-entered
	}
	if err := p.b.Close(); err != nil {
		t.Error(err)
	}
	close(gate)
	for range 5 {
		<-left
	}
}
