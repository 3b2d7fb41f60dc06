package xdp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// ip runs the tool of that name in a host.
func ip(t testing.TB, h *netns.Host, args ...string) {
	t.Helper()
	if _, err := h.Output(t.Context(), "ip", args...); err != nil {
		t.Fatal(err)
	}
}

// flood sends numbered frames until stop is closed, and says how many were given to Send.
func flood(t testing.TB, q engine.TxQueue, stop <-chan struct{}) (sent func() int) {
	var wg sync.WaitGroup
	n := 0
	wg.Add(1)
	go func() {
		defer wg.Done()
		b := burst.New(16)
		for {
			select {
			case <-stop:
				return
			default:
			}
			k, err := q.Alloc(b, 16, 200)
			for i := range k {
				copy(b.Bytes(i, 0), udp(t, 7, 200, uint32(n+i)))
			}
			if k > 0 {
				n += k
				err = q.Send(b)
			}
			if errors.Is(err, engine.ErrClosed) {
				return
			}
			if err != nil || k == 0 {
				runtime.Gosched()
			}
		}
	}()
	return func() int { wg.Wait(); return n }
}

// The interface goes away under load: queues say so, every packet given to Send is counted, and all
// memory comes back.
func TestRemoved(t *testing.T) {
	for range 3 {
		n := hosts(t, netns.LinkSpec{})
		a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
		pools := []*mem.Pool{newPool(t, 2048, 512)}
		tx := addTx(t, a, engine.TxSpec{Depth: 128, Pools: pools})
		arx, q := addRx(t, a, engine.RxSpec{Depth: 64, Pools: pools}),
			addRx(t, b, engine.RxSpec{Pools: []*mem.Pool{newPool(t, 2048, 2048)}})
		stop := make(chan struct{})
		sent := flood(t, tx, stop)
		x := burst.New(64)
		got := 0
		until(t, "some packets", func() bool {
			k, err := q.TryRecv(x)
			if err != nil {
				t.Fatal(err)
			}
			x.Release()
			got += k
			return got > 100
		})
		ip(t, n.Hosts[0], "link", "del", "eth0") // with its other end
		until(t, "the queue to say so", func() bool {
			k, err := q.TryRecv(x)
			x.Release()
			got += k
			if err != nil && !errors.Is(err, ErrRemoved) {
				t.Fatal(err)
			}
			return err != nil
		})
		w := engine.NewWaker()
		if !q.Arm(w) {
			<-w.C()
		}
		close(stop)
		given := sent()
		if _, err := arx.TryRecv(x); err != nil && !errors.Is(err, ErrRemoved) ||
			!errors.Is(ErrRemoved, engine.ErrDown) {
			t.Error(err)
		}
		if err := tx.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		var s engine.TxStats
		tx.Stats(&s)
		if s.Packets+s.Drops.Total() != uint64(given) || s.Drops[engine.DropDown] == 0 {
			t.Errorf("%d packets were given: %+v", given, s)
		}
		if _, err := a.AddRxQueue(engine.RxSpec{ID: engine.Queue(5), Pools: pools}); !errors.Is(err, ErrRemoved) {
			t.Errorf("a queue of an interface that is gone: %v", err)
		}
		for _, p := range []*Port{a, b} {
			if i := p.Info(); i.Up {
				t.Error("it is up")
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, p := range pools {
			if k := p.Stats().InUse; k != 0 {
				t.Errorf("%d slots are out", k)
			}
		}
	}
}

// The MTU and the number of queues change while packets come and go.
func TestChanged(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/ethtool"); err != nil {
		testenv.Missing(t, "ethtool", err)
	}
	n := hosts(t, netns.LinkSpec{Queues: 2})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	pool, mine := newPool(t, 4096, 2048), newPool(t, 4096, 1024)
	tx, q := addTx(t, a, engine.TxSpec{Depth: 128, Pools: []*mem.Pool{mine}}),
		addRx(t, b, engine.RxSpec{Pools: []*mem.Pool{pool}})
	stop := make(chan struct{})
	sent := flood(t, tx, stop)
	x := burst.New(64)
	got := 0
	more := func() {
		t.Helper()
		want := got + 200
		until(t, "more packets", func() bool {
			k, err := q.TryRecv(x)
			if err != nil {
				t.Fatal(err)
			}
			x.Release()
			got += k
			return got > want
		})
	}
	more()
	for _, mtu := range []string{"3000", "1500", "9000"} {
		for _, h := range n.Hosts {
			ip(t, h, "link", "set", "eth0", "mtu", mtu)
		}
		until(t, "both ports to know", func() bool { return fmt.Sprint(a.Info().MTU, b.Info().MTU) == mtu+" "+mtu })
		more()
	}
	for _, queues := range []string{"1", "2"} {
		if out, err := n.Hosts[1].Output(t.Context(), "ethtool", "-L", "eth0", "rx", queues); err != nil {
			t.Logf("%s receive queues: %s %v", queues, out, err)
		}
		more()
	}
	close(stop)
	given := sent()
	if err := tx.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	// With the greater MTU, frames of that length go through as chains.
	long := udp(t, 7, 9014, 1)
	until(t, "the rest", func() bool {
		k, _ := q.TryRecv(x)
		x.Release()
		got += k
		return k == 0
	})
	chains := addTx(t, a, engine.TxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{mine}})
	send(t, chains, long)
	if f := receive(t, q, 1, nil); len(f[0]) != len(long) {
		t.Errorf("%d of %d bytes", len(f[0]), len(long))
	}
	var s engine.TxStats
	if chains.Stats(&s); s.Packets != 1 || s.Queued != 0 || s.Bytes != 9014 || chains.out.Free() != 1024 {
		t.Errorf("one packet of several chunks: %+v, %d descriptors free", s, chains.out.Free())
	}
	if tx.Stats(&s); s.Packets+s.Drops.Total() != uint64(given) || s.Queued != 0 {
		t.Errorf("%d packets were given: %+v", given, s)
	}
}

// Another program on the interface is named, and stays.
func TestOccupied(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	first := open(t, n.Hosts[0], engine.PortSpec{})
	err := n.Hosts[0].Do(func() error {
		p, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "eth0"})
		if err == nil {
			p.Close()
		}
		return err
	})
	if !errors.Is(err, ErrOccupied) || !errors.Is(err, engine.ErrInUse) ||
		!strings.Contains(err.Error(), fmt.Sprint(first.prog.Info().ID)) {
		t.Errorf("a second port on the interface: %v", err)
	}
	q := addRx(t, first, engine.RxSpec{Pools: []*mem.Pool{newPool(t, 2048, 128)}})
	back := open(t, n.Hosts[1], engine.PortSpec{})
	send(t, addTx(t, back, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 128)}}), udp(t, 7, 100, 1))
	receive(t, q, 1, nil)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, n.Hosts[0], engine.PortSpec{})
}

// A consumer stands still while much more is sent than fits: what is not received is counted, each
// packet once, by its reason.
func TestStalled(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 2048)}})
	for _, c := range []struct {
		what         string
		depth, slots int
		why          engine.Drop
	}{
		{"the ring is full", 64, 1024, engine.DropQueueFull},
		{"the pool is empty", 512, 256, engine.DropNoBuffers},
	} {
		q := addRx(t, b, engine.RxSpec{Depth: c.depth, Pools: []*mem.Pool{newPool(t, 2048, c.slots)}})
		var from engine.TxStats
		tx.Stats(&from)
		const many = 3000
		x := burst.New(50)
		for range many / 50 {
			until(t, "descriptors", func() bool { k, _ := tx.Alloc(x, 50, 100); x.Truncate(k); return k == 50 })
			for i := range 50 {
				copy(x.Bytes(i, 0), udp(t, 7, 100, uint32(i)))
			}
			if err := tx.Send(x); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := 0
		var rs engine.RxStats
		var ts engine.TxStats
		until(t, c.what, func() bool {
			k, err := q.TryRecv(x)
			if err != nil {
				t.Fatal(err)
			}
			x.Release()
			got += k
			q.Stats(&rs)
			tx.Stats(&ts)
			return uint64(got)+rs.Drops.Total()+ts.Drops.Total()-from.Drops.Total() >= many
		})
		left := ts.Packets - from.Packets
		if rs.Drops[c.why] == 0 || rs.Drops.Total() != rs.Drops[c.why] || uint64(got)+rs.Drops.Total() != left ||
			got < min(c.depth, c.slots*7/8) {
			t.Errorf("%s: %d of %d packets received, drops: %v", c.what, got, left, &rs.Drops)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What the device drops when it is given to it is counted: the other end of the cable takes no
// frames of this length.
func TestDeviceDrops(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	ip(t, n.Hosts[0], "link", "set", "eth0", "mtu", "3000")
	a := open(t, n.Hosts[0], engine.PortSpec{})
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 4096, 256)}})
	for i := range 10 {
		send(t, tx, udp(t, 7, 2900, uint32(i)), udp(t, 7, 60, uint32(i)))
	}
	var s engine.TxStats
	if tx.Stats(&s); s.Packets != 10 || s.Drops[engine.DropRefused] != 10 || s.Drops.Total() != 10 || s.Queued != 0 {
		t.Errorf("%+v", s)
	}
}

// Receive queues come and go under load: of what has left the other end, each packet is received or
// counted.
func TestCloseCounts(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	tx := addTx(t, a, engine.TxSpec{Depth: 256, Pools: []*mem.Pool{newPool(t, 2048, 1024)}})
	pool := newPool(t, 2048, 512)
	rx := func() *rxQueue { return addRx(t, b, engine.RxSpec{Depth: 256, Pools: []*mem.Pool{pool}}) }
	q, x := rx(), burst.New(64)
	stop := make(chan struct{})
	sent := flood(t, tx, stop)
	for range 40 {
		until(t, "a packet", func() bool {
			k, err := q.TryRecv(x)
			if err != nil {
				t.Fatal(err)
			}
			x.Release()
			return k > 0
		})
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		q = rx()
	}
	close(stop)
	sent()
	if err := tx.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	var as, bs engine.PortStats
	until(t, "all to be counted", func() bool {
		if _, err := q.TryRecv(x); err != nil {
			t.Fatal(err)
		}
		x.Release()
		a.Stats(&as)
		b.Stats(&bs)
		got := bs.Rx.Packets + bs.Rx.Drops.Total() + bs.Drops.Total()
		if got > as.Tx.Packets {
			t.Fatalf("%d packets have left, %d are counted: %+v", as.Tx.Packets, got, bs)
		}
		return got == as.Tx.Packets
	})
}

// What no rule accepts goes to the receive queue with the lowest number, whichever that is.
func TestFirst(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	pools := []*mem.Pool{newPool(t, 2048, 1024)}
	two := addRx(t, b, engine.RxSpec{ID: engine.Queue(2), Depth: 64, Pools: pools})
	goes := func(q *rxQueue) {
		t.Helper()
		send(t, tx, udp(t, 7, 100, 1))
		receive(t, q, 1, nil)
	}
	goes(two)
	for range 2 {
		one := addRx(t, b, engine.RxSpec{ID: engine.Queue(1), Depth: 64, Pools: pools})
		goes(one)
		if err := one.Close(); err != nil {
			t.Fatal(err)
		}
		goes(two)
	}
}

// The application keeps all slots, goes to sleep, and another goroutine releases them: it is woken
// by the next packet.
func TestStarved(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	q := addRx(t, b, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{newPool(t, 2048, 64)}})
	x := burst.New(128)
	for range 5 {
		for i := 0; x.Len() < 64; i++ {
			send(t, tx, udp(t, 7, 100, uint32(i)))
			until(t, "a packet or a drop", func() bool {
				k, err := q.TryRecv(x)
				if err != nil {
					t.Fatal(err)
				}
				var s engine.RxStats
				q.Stats(&s)
				return k > 0 || s.Drops.Total() > 0
			})
		}
		w := engine.NewWaker()
		for q.Arm(w) {
			t.Fatal("there is something, in a pool without slots")
		}
		x.Release()
		// Packets that come before the queue has given the slots to the kernel are dropped: so send
		// until one comes.
		until(t, "a Wake for a packet", func() bool {
			send(t, tx, udp(t, 7, 100, 1))
			select {
			case <-w.C():
			default:
				return false
			}
			k, err := q.TryRecv(x)
			if err != nil {
				t.Fatal(err)
			}
			if k == 0 && q.Arm(w) {
				w.Wake()
			}
			return k > 0
		})
		x.Release()
	}
}

// Queues and ports are closed under full load: nothing is written into memory that has gone back to
// its pool (-tags invariants looks), and all of it is back.
func TestCloseUnderLoad(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a := open(t, n.Hosts[0], engine.PortSpec{})
	mine := newPool(t, 2048, 1024)
	tx := addTx(t, a, engine.TxSpec{Depth: 256, Pools: []*mem.Pool{mine}})
	stop := make(chan struct{})
	sent := flood(t, tx, stop)
	rounds := 15
	if testenv.Race || testenv.Invariants {
		rounds = 6
	}
	pool := newPool(t, 2048, 512)
	for i := range rounds {
		b := open(t, n.Hosts[1], engine.PortSpec{})
		q := addRx(t, b, engine.RxSpec{Depth: 256, Pools: []*mem.Pool{pool}})
		x := burst.New(64)
		for got := 0; got < 200; {
			k, err := q.TryRecv(x)
			if err != nil {
				t.Fatal(err)
			}
			for i := range k {
				if f := x.Bytes(i, 0); len(f) != 200 || binary.BigEndian.Uint16(f[36:]) != 7 {
					t.Fatalf("a packet of %d bytes: % x", len(f), f)
				}
			}
			got += k
			x.Release()
		}
		if i%2 == 0 {
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			all := make([]mem.Handle, pool.Slots()) // each is looked at when it is taken
			if k := pool.GetBatch(all); k != len(all) {
				t.Fatalf("%d of %d slots are back", k, len(all))
			}
			pool.PutBatch(all)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if k := pool.Stats().InUse; k != 0 {
			t.Fatalf("%d slots are out", k)
		}
	}
	close(stop)
	given := sent()
	if err := tx.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	var s engine.TxStats
	if tx.Stats(&s); s.Packets+s.Drops.Total() != uint64(given) {
		t.Errorf("%d packets were given: %+v", given, s)
	}
}

// Without root it works with four capabilities, and the error names what is missing.
func TestRights(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	pool := newPool(t, 2048, 8192)
	all := map[string]int{"CAP_NET_ADMIN": sys.CapNetAdmin, "CAP_NET_RAW": sys.CapNetRaw, "CAP_BPF": sys.CapBPF,
		"CAP_PERFMON": sys.CapPerfmon, "CAP_IPC_LOCK": sys.CapIPCLock}
	for _, missing := range []string{"", "CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF", "CAP_IPC_LOCK"} {
		err := as(t, n.Hosts[0], all, missing, func() error {
			p, err := New().OpenPort(context.Background(), engine.PortSpec{Address: "eth0"})
			if err != nil {
				return err
			}
			defer p.Close()
			q, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
			if err != nil {
				return err
			}
			return q.Close()
		})
		switch {
		case missing == "" && err != nil:
			t.Errorf("with all capabilities that are needed: %v", err)
		case missing != "" && (err == nil || !strings.Contains(err.Error(), missing) ||
			!errors.Is(err, engine.ErrUnavailable)):
			t.Errorf("without %s: %v", missing, err)
		}
	}
}

// as runs f in a host's network on a thread of its own as user 65534, with all but one of these
// capabilities and 8 MiB of locked memory.
func as(t testing.TB, h *netns.Host, have map[string]int, without string, f func() error) error {
	t.Helper()
	var ns *os.File
	if err := h.Do(func() (err error) {
		ns, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", sys.ThreadID()))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		done <- func() error {
			if err := sys.JoinNetwork(ns); err != nil {
				return err
			}
			if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
				return err
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
				return e
			}
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var d [2]unix.CapUserData
			for name, c := range have {
				if name != without {
					d[c/32].Effective |= 1 << (c % 32)
					d[c/32].Permitted |= 1 << (c % 32)
				}
			}
			if err := unix.Capset(&head, &d[0]); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-done
}

// A process that is killed leaves nothing on the interface, and another one takes its queues at
// once.
func TestKilled(t *testing.T) {
	if os.Getenv("PENSTOCK_XDP_CHILD") != "" {
		child()
		return
	}
	n := hosts(t, netns.LinkSpec{})
	for range 3 {
		cmd := n.Hosts[0].Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "PENSTOCK_XDP_CHILD=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Hosts[0].Start(cmd); err != nil {
			t.Fatal(err)
		}
		ended := false
		end := func() {
			if !ended {
				ended = true
				cmd.Process.Kill()
				cmd.Wait()
				in.Close()
			}
		}
		t.Cleanup(end)
		line, err := bufio.NewReader(out).ReadString('\n')
		if line != "ready\n" {
			t.Fatalf("the child said %q, %v", line, err)
		}
		end()
		p := open(t, n.Hosts[0], engine.PortSpec{})
		q, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{newPool(t, 2048, 256)}})
		if err != nil {
			t.Fatalf("after the process that had the queue was killed: %v", err)
		}
		b := open(t, n.Hosts[1], engine.PortSpec{})
		send(t, addTx(t, b, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 64)}}), udp(t, 7, 100, 1))
		receive(t, q, 1, nil)
		if err := errors.Join(p.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func child() {
	pool, err := mem.NewPool(mem.PoolOptions{SlotSize: 2048, Slots: 256})
	if err == nil {
		var p engine.Port
		if p, err = New().OpenPort(context.Background(), engine.PortSpec{Address: "eth0"}); err == nil {
			_, err = p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
		}
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n') // until it is killed
}
