package prog

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/flow"
)

// await waits until ok; whatever it waits for happens, so the time does not matter.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for %s", what)
		}
		unix.Select(0, nil, nil, nil, &unix.Timeval{Usec: 1000})
	}
}

// TestApplyLosesNothing: while rules change, each packet goes by the old rules or by the new ones,
// and each is counted.
func TestApplyLosesNothing(t *testing.T) {
	for _, mode := range []Mode{Native, Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			c := lay(t, netns.LinkSpec{})
			sets := make([][]flow.Rule, 2)
			for i := range sets {
				sets[i] = parseRules(t, "udp dst 5001 -> drop", fmt.Sprintf("udp dst 5000 -> queue %d", i))
			}
			c.load(Spec{Rules: sets[0], Queues: 1, Slots: 2, Metadata: true}, mode)
			c.open(0, 1)
			changes := map[Mode]int{Native: 200, Generic: 40}[mode]
			done := make(chan error)
			go func() {
				for i := range changes {
					set := append([]flow.Rule(nil), sets[i%2]...)
					set[1].ID = uint32(10 + i/5) // now the rule before, now another one
					if err := c.p.Apply(set, flow.Isolation{}); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			got, slots := map[uint64]bool{}, [2]int{}
			c.took = func(slot int, m Meta, has bool, frame []byte) {
				n := binary.BigEndian.Uint64(frame[42:])
				if got[n] || !has || int(m.Queue) != slot {
					t.Fatalf("packet %d in slot %d: twice, or %v %+v", n, slot, has, m)
				}
				got[n] = true
				slots[slot]++
			}
			frame := udp(5000, 60)
			sent := uint64(0)
			for changing := true; changing; {
				select {
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
					changing = false
				default:
				}
				for range 16 {
					binary.BigEndian.PutUint64(frame[42:], sent)
					c.send(frame)
					sent++
				}
				// No queue on the way may overflow: only the rules are tested here.
				await(t, "the packets", func() bool { c.take(); return uint64(len(got)) == sent })
			}
			n := c.await(sent)
			if uint64(len(got)) != sent || n.Redirected.Packets != sent || n.ends() != sent {
				t.Errorf("sent %d, got %d: %+v", sent, len(got), n)
			}
			if sum(n.Rules)+n.Deleted.Packets+n.Unmatched.Packets != sent || n.Unmatched.Packets != 0 {
				t.Errorf("sent %d, counted for rules: %+v", sent, n)
			}
			if slots[0] == 0 || slots[1] == 0 {
				t.Errorf("the rules did not change while packets came: %v", slots)
			}
			t.Logf("%d packets over %d changes, %v", sent, changes, slots)
		})
	}
}

// TestCountersStay: a rule that keeps its ID keeps its counts, one that goes leaves them in
// Deleted.
func TestCountersStay(t *testing.T) {
	rules := parseRules(t, "udp dst 1 -> drop", "udp dst 2 -> drop")
	p := load1(t, Spec{Rules: rules})
	for i := range 5 {
		run(t, p, udp(uint16(1+i%2), 20))
	}
	next := parseRules(t, "udp dst 7 -> drop", "udp dst 1 -> kernel")
	next[0].ID, next[1].ID = 9, 1
	if err := p.Apply(next, flow.Isolation{}); err != nil {
		t.Fatal(err)
	}
	run(t, p, udp(1, 20))
	run(t, p, udp(7, 20))
	run(t, p, udp(8, 20))
	var n Counts
	if err := p.Counters(&n); err != nil {
		t.Fatal(err)
	}
	size := uint64(len(udp(1, 20)))
	want := Counts{
		Discarded: flow.Count{Packets: 6, Bytes: 6 * size}, Kernel: flow.Count{Packets: 2, Bytes: 2 * size},
		Unmatched: flow.Count{Packets: 1, Bytes: size}, Deleted: flow.Count{Packets: 2, Bytes: 2 * size},
		Rules: []flow.Count{{Packets: 1, Bytes: size}, {Packets: 4, Bytes: 4 * size}},
	}
	if fmt.Sprint(n) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", n, want)
	}
	if a := testing.AllocsPerRun(10, func() { p.Counters(&n) }); a != 0 {
		t.Errorf("Counters allocates %v times", a)
	}
	// A set that is refused changes nothing.
	bad := parseRules(t, "udp dst 1 -> vlan-pop, queue 1")
	var problems flow.Problems
	if err := p.Apply(bad, flow.Isolation{}); !errors.As(err, &problems) || problems[0].Kind != flow.Unsupported ||
		!strings.Contains(err.Error(), "XDP program") {
		t.Errorf("a transformation: %v", err)
	}
	run(t, p, udp(7, 20))
	if p.Counters(&n); n.Rules[0].Packets != 2 {
		t.Errorf("after a refused set: %+v", n)
	}
	var ended Counts
	if err := errors.Join(p.Close(), p.Counters(&ended)); err != nil || fmt.Sprint(ended) != fmt.Sprint(n) {
		t.Errorf("after Close %+v, %v; before it %+v", ended, err, n)
	}
}

// TestKilled: nothing is left of the program of a process that was killed.
func TestKilled(t *testing.T) {
	if os.Getenv("PENSTOCK_PROG_CHILD") != "" {
		killedChild()
		return
	}
	c := lay(t, netns.LinkSpec{})
	for range 2 { // the second takes the place of the first at once
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := c.net.Hosts[1].Command(exe, "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "PENSTOCK_PROG_CHILD="+fmt.Sprint(c.index[1]))
		ids, end := start(t, c, cmd)
		on := c.on()
		if on == 0 || on != ids[0] {
			t.Fatalf("program %d is on the interface, the child loaded %v", on, ids)
		}
		var occupied *OccupiedError
		p := load1(t, Spec{Name: "eth0", Interface: c.index[1]})
		c.do(1, func() error {
			if err := p.Attach(Auto); !errors.As(err, &occupied) || !errors.Is(err, ErrOccupied) {
				return fmt.Errorf("a second program: %w", err)
			}
			return nil
		})
		if occupied.ID != on || occupied.Program != "penstock" || occupied.Link == 0 ||
			!slices.Contains(occupied.Holders, cmd.Process.Pid) ||
			!strings.Contains(occupied.Error(), fmt.Sprint("process ", cmd.Process.Pid)) {
			t.Errorf("%+v\n%v", occupied, occupied)
		}
		end()
		// another process may just be listing all links
		await(t, "the program to leave the interface", func() bool { return c.on() == 0 })
		await(t, "the kernel to free the program", func() bool {
			return gone(ebpf.NewProgramFromID(ebpf.ProgramID(ids[0])))
		})
		for _, id := range ids[1:] {
			await(t, "the kernel to free the maps", func() bool { return gone(ebpf.NewMapFromID(ebpf.MapID(id))) })
		}
	}
}

// on is the number of the XDP program at the far end; 0: none.
func (c *cable) on() (id uint32) {
	c.do(1, func() error {
		l, err := device(c.index[1])
		id = l.XDPProgram
		return err
	})
	return id
}

func gone[T io.Closer](x T, err error) bool {
	if err == nil {
		x.Close()
	}
	return errors.Is(err, os.ErrNotExist)
}

// start starts a child that loads a program, and returns the IDs that it tells, and what kills it.
func start(t *testing.T, c *cable, cmd *exec.Cmd) (ids []uint32, end func()) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.net.Hosts[1].Start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			cmd.Process.Kill()
			cmd.Wait()
			in.Close()
			ended = true
		}
	}
	t.Cleanup(end)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if line, ok := strings.CutPrefix(lines.Text(), "IDs:"); ok {
			for _, f := range strings.Fields(line) {
				var id uint32
				fmt.Sscan(f, &id)
				ids = append(ids, id)
			}
			return ids, end
		}
	}
	t.Fatalf("the child said nothing: %v", lines.Err())
	return nil, nil
}

func killedChild() {
	var ifindex int
	fmt.Sscan(os.Getenv("PENSTOCK_PROG_CHILD"), &ifindex)
	p, err := Load(Spec{Interface: ifindex, Queues: 1, Slots: 2})
	if err == nil {
		err = p.Attach(Auto)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print("IDs: ", p.Info().ID)
	for _, m := range []*ebpf.Map{p.sockets, p.counters.m, p.now.blob, p.grace.outer, p.grace.inner} {
		i, err := m.Info()
		if err != nil {
			fmt.Println(err)
			return
		}
		id, _ := i.ID()
		fmt.Print(" ", uint32(id))
	}
	fmt.Println()
	io.Copy(io.Discard, os.Stdin) // until it is killed
	runtime.KeepAlive(p)
}

// TestModes: native mode where it can be, and why not.
func TestModes(t *testing.T) {
	c := lay(t, netns.LinkSpec{MTU: 9000})
	// A frame of MTU 9000 has no room in one buffer: native mode needs Frags, and Auto falls back.
	p := load1(t, Spec{Name: "eth0", Interface: c.index[1]})
	c.do(1, func() error {
		if err := p.Attach(Native); err == nil {
			t.Error("native mode for frames that are too long")
		}
		return p.Attach(Auto)
	})
	if i := p.Info(); i.Mode != Generic || i.Fallback == "" {
		t.Errorf("%+v", i)
	} else {
		t.Log(i.Fallback)
	}
	c.do(1, func() error {
		if err := p.Attach(Auto); !errors.Is(err, ErrSpec) {
			t.Errorf("attached twice: %v", err)
		}
		return nil
	})
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(p.Close()); err != nil {
		t.Error(err)
	}
	for _, err := range []error{p.Attach(Auto), p.Apply(nil, flow.Isolation{}), p.Set(0, 0, 1), p.Unset(0, 0),
		p.Wait()} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	// The loopback device has no native mode.
	lo := load1(t, Spec{Name: "lo", Interface: 1, Frags: true})
	c.do(1, func() error {
		if err := lo.Attach(Native); !errors.Is(err, ErrUnavailable) {
			t.Errorf("native mode on the loopback device: %v", err)
		} else {
			t.Log(err)
		}
		return lo.Attach(Auto)
	})
	if i := lo.Info(); i.Mode != Generic || i.Fallback == "" {
		t.Errorf("%+v", i)
	}
	q := load1(t, Spec{Interface: 1 << 20})
	if err := q.Attach(Auto); !errors.Is(err, ErrInterface) {
		t.Errorf("no interface: %v", err)
	}
}

// TestInterfaceGone: when the interface is deleted the program is still there, and says why its
// rules cannot change.
func TestInterfaceGone(t *testing.T) {
	c := lay(t, netns.LinkSpec{})
	rules := parseRules(t, "udp dst 5000 -> drop")
	c.load(Spec{Queues: 1, Slots: 1, Rules: rules}, Auto)
	c.send(udp(5000, 20))
	c.await(1)
	if _, err := c.net.Hosts[1].Output(t.Context(), "ip", "link", "del", "eth0"); err != nil {
		t.Fatal(err)
	}
	if err := c.p.Apply(parseRules(t, "tcp -> drop", "udp -> drop"), flow.Isolation{}); !errors.Is(err, ErrInterface) {
		t.Errorf("other rules: %v", err)
	}
	if n := c.counts(); n.Discarded.Packets != 1 || len(n.Rules) != 1 || n.Rules[0].Packets != 1 {
		t.Errorf("the counts: %+v", n)
	}
	if err := c.p.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// TestRights: without root it works with a few capabilities, and the error names the one that is
// missing.
func TestRights(t *testing.T) {
	c := lay(t, netns.LinkSpec{})
	var ns *os.File
	c.do(1, func() (err error) {
		ns, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", sys.ThreadID()))
		return err
	})
	defer ns.Close()
	at := c.index[1]
	names := map[int]string{sys.CapNetAdmin: "CAP_NET_ADMIN", sys.CapBPF: "CAP_BPF", sys.CapPerfmon: "CAP_PERFMON"}
	for _, c := range []struct {
		have, missing []int
		rules         []flow.Rule
	}{
		{have: []int{sys.CapNetAdmin, sys.CapBPF}},
		{have: []int{sys.CapNetAdmin, sys.CapBPF, sys.CapPerfmon}, rules: rightsRules(t)},
		{have: []int{sys.CapNetAdmin, sys.CapBPF}, rules: rightsRules(t), missing: []int{sys.CapPerfmon}},
		{have: []int{sys.CapNetAdmin, sys.CapPerfmon}, missing: []int{sys.CapBPF}},
		{have: []int{sys.CapBPF, sys.CapPerfmon}, missing: []int{sys.CapNetAdmin}},
		{have: nil, missing: []int{sys.CapNetAdmin, sys.CapBPF}},
	} {
		err := as(ns, c.have, func() error {
			for _, frags := range []bool{false, true} {
				p, err := Load(Spec{Name: "eth0", Interface: at, Queues: 1, Slots: 8, Rules: c.rules, Metadata: true,
					Frags: frags})
				if err != nil {
					return err
				}
				defer p.Close()
				if err := p.Attach(Auto); err != nil {
					return err
				}
				if err := p.Apply(c.rules, flow.Isolation{Unmatched: flow.Deliver}); err != nil {
					return err
				}
				p.Close()
			}
			return nil
		})
		if c.missing == nil {
			if err != nil {
				t.Errorf("with %v: %+v", c.have, err)
			}
			continue
		}
		if !errors.Is(err, ErrPermission) {
			t.Errorf("with %v: %v", c.have, err)
			continue
		}
		said, _, _ := strings.Cut(err.Error(), " missing")
		for number, name := range names {
			if strings.Contains(said, name) != slices.Contains(c.missing, number) {
				t.Errorf("with %v: %v", c.have, err)
			}
		}
	}
}

func rightsRules(t testing.TB) []flow.Rule {
	return parseRules(t, "udp dst 5000-5005 ip src 10.0.0.0/8 -> rss 0 1 2", "ip src 2001:db8::/32 -> queue 4",
		"vlan 5 eth dst 02:00:00:00:00:01 -> drop",
		"udp flex 3 0x01020304 -> queue 1", "ecpri type 0 pc_id 7 -> queue 2")
}

// as runs fn on a thread of its own in a network namespace, as user 65534 with some capabilities.
// The thread ends with it.
func as(ns *os.File, capabilities []int, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good
		done <- func() error {
			if err := sys.JoinNetwork(ns); err != nil {
				return err
			}
			if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
				return err
			}
			const nobody = 65534
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); e != 0 {
				return e
			}
			h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var d [2]unix.CapUserData
			for _, c := range capabilities {
				d[c/32].Effective |= 1 << (c % 32)
				d[c/32].Permitted |= 1 << (c % 32)
			}
			if err := unix.Capset(&h, &d[0]); err != nil {
				return err
			}
			return fn()
		}()
	}()
	return <-done
}

// TestAttachOutlastsLook: a process that lists all links holds each for a moment, also one that its
// owner closes just then; the next program waits.
func TestAttachOutlastsLook(t *testing.T) {
	c := lay(t, netns.LinkSpec{})
	spec := Spec{Name: "eth0", Interface: c.index[1]}
	first := load1(t, spec)
	c.do(1, func() error { return first.Attach(Auto) })
	info, err := first.link.Info()
	if err != nil {
		t.Fatal(err)
	}
	held, err := link.NewFromID(info.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if c.on() == 0 {
		t.Fatal("the link is gone although it is held")
	}
	release := time.AfterFunc(20*time.Millisecond, func() { held.Close() })
	defer release.Stop()
	second := load1(t, spec)
	c.do(1, func() error { return second.Attach(Auto) })
}
