package xdp_test

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, h *netns.Host, c xdp.Config) *xdp.Peer {
	t.Helper()
	p, err := xdp.Start(h.Start, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func do(t *testing.T, p *xdp.Peer, c xdp.Command) xdp.Result {
	t.Helper()
	r, err := p.Do(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if r.RxInvalid+r.TxInvalid+r.InFlight > 0 {
		t.Fatalf("%s: %+v", c, r)
	}
	return r
}

// All packets of all sizes come through receiver and forwarder, and every byte of them is right.
func TestTraffic(t *testing.T) {
	testenv.Once(t)
	xdp.Need(t)
	for _, c := range []xdp.Config{{Size: 64}, {Size: 1400, Poll: true, NoWakeup: true},
		{Size: 61, Generic: true, Chunk: 4096}, {Size: 8900, MultiBuffer: true}, {Size: 64, LibxdpProgram: true}} {
		t.Run(fmt.Sprintf("%dB/%v", c.Size, c.LibxdpProgram), func(t *testing.T) {
			mtu := 1500
			if c.MultiBuffer {
				mtu = 9000
			}
			n := netns.New(t, netns.Topology{Rails: 2, Neighbours: true, Link: netns.LinkSpec{MTU: mtu}})
			c.Interfaces, c.CPU, c.Slots = []string{"eth0", "eth1"}, -1, 1024
			far, near := start(t, n.Hosts[0], c), start(t, n.Hosts[1], c)
			const packets = 300
			size := uint64(c.Size)
			for round := range uint64(3) {
				seq := round * packets
				sent := do(t, far, xdp.Command{Op: xdp.Send, Packets: packets, Touch: true, Check: true, Seq: seq})
				r := do(t, near, xdp.Command{Op: xdp.Receive, Touch: true, Check: true, Seq: seq})
				if sent.Packets != packets || r.Packets != packets || r.Matched != packets ||
					r.Checked != packets*size || r.Bad != 0 || r.Gaps != 0 {
					t.Errorf("received %+v of %+v", r, sent)
				}
				do(t, far, xdp.Command{Op: xdp.Send, Packets: packets, Check: true, Seq: seq})
				f := do(t, near, xdp.Command{Op: xdp.Forward, To: 1, Touch: round == 1})
				r = do(t, far, xdp.Command{Op: xdp.Receive, From: 1, Check: true, Seq: seq})
				if f.Packets != packets || f.Bytes != packets*size || r.Packets != packets ||
					r.Checked != packets*size || r.Gaps != 0 || r.FillChunks != 1024 {
					t.Errorf("forwarded %+v, then received %+v", f, r)
				}
				// One interface, there and back.
				do(t, far, xdp.Command{Op: xdp.Send, Packets: packets, Check: true, Seq: seq})
				f = do(t, near, xdp.Command{Op: xdp.Forward})
				r = do(t, far, xdp.Command{Op: xdp.Receive, Check: true, Seq: seq})
				if f.Packets != packets || r.Packets != packets || r.Checked != packets*size || r.Gaps != 0 {
					t.Errorf("sent back %+v, then received %+v", f, r)
				}
			}
			// One that was not expected is seen.
			do(t, far, xdp.Command{Op: xdp.Send, Packets: 3, Check: true, Seq: 5})
			if r := do(t, near, xdp.Command{Op: xdp.Receive, Check: true}); r.Gaps != 1 || r.Packets != 3 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// Live, both ends work at the same time, and what is lost is counted by its reason.
func TestLive(t *testing.T) {
	testenv.Once(t)
	xdp.Need(t)
	n := netns.New(t, netns.Topology{Neighbours: true})
	far := start(t, n.Hosts[0], xdp.Config{Interfaces: []string{"eth0"}, CPU: -1})
	near := start(t, n.Hosts[1], xdp.Config{Interfaces: []string{"eth0"}, CPU: -1, Slots: 256})
	if near.Capacity() != 256 {
		t.Errorf("capacity %d", near.Capacity())
	}
	if err := near.Begin(xdp.Command{Op: xdp.Receive, Live: true}); err != nil {
		t.Fatal(err)
	}
	if err := near.Begin(xdp.Command{Op: xdp.Receive}); !errors.Is(err, xdp.ErrInvalid) {
		t.Errorf("a second command: %v", err)
	}
	sent := do(t, far, xdp.Command{Op: xdp.Send, Time: 50 * time.Millisecond, Packets: 100000})
	if err := near.Stop(); err != nil {
		t.Fatal(err)
	}
	r, err := near.Wait(t.Context())
	if err != nil || r.Packets == 0 || r.Packets+r.Dropped+r.RingFull < sent.Packets {
		t.Errorf("received %+v of %+v, %v", r, sent, err)
	}
	// While no receiver takes them, as many come as there are chunks.
	sent = do(t, far, xdp.Command{Op: xdp.Send, Packets: 1000})
	r = do(t, near, xdp.Command{Op: xdp.Receive})
	if r.Packets+r.Other != 256 || r.Dropped+r.RingFull < 1000-r.Packets {
		t.Errorf("received %+v of %+v", r, sent)
	}
	if _, err := near.Wait(t.Context()); !errors.Is(err, xdp.ErrInvalid) {
		t.Errorf("waiting for nothing: %v", err)
	}
	for _, c := range []xdp.Command{{Op: "dance"}, {Op: xdp.Forward, To: 1}, {Op: xdp.Send, From: -1},
		{Op: xdp.Send, Time: time.Microsecond}} {
		if _, err := near.Do(t.Context(), c); !errors.Is(err, xdp.ErrInvalid) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// Errors quote the system's words for what it refuses.
func TestRefusals(t *testing.T) {
	testenv.Once(t)
	xdp.Need(t)
	n := netns.New(t, netns.Topology{Neighbours: true, Each: func(_, host int, s *netns.LinkSpec) { s.MTU = 9000 }})
	for want, c := range map[string]xdp.Config{
		"there is no interface nosuch":     {Interfaces: []string{"nosuch"}},
		"socket on queue 7 of eth0":        {Interfaces: []string{"eth0"}, Queue: 7},
		"Operation not supported":          {Interfaces: []string{"eth0"}, ZeroCopy: true, MultiBuffer: true},
		"attach the XDP program to eth0":   {Interfaces: []string{"eth0"}}, // the MTU takes several chunks
		"size=20: expected at least":       {Interfaces: []string{"eth0"}, Size: 20},
		"chunk=8192: expected a number up": {Interfaces: []string{"eth0"}, Chunk: 8192},
	} {
		c.CPU = -1
		p, err := xdp.Start(n.Hosts[0].Start, c)
		if p != nil || !errors.Is(err, xdp.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	// Who is killed in the middle says so.
	c := xdp.Config{Interfaces: []string{"eth0"}, CPU: -1, MultiBuffer: true}
	var cmd *exec.Cmd
	p, err := xdp.Start(func(x *exec.Cmd) error { cmd = x; return n.Hosts[1].Start(x) }, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Begin(xdp.Command{Op: xdp.Receive, Live: true}); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Kill()
	if _, err := p.Wait(t.Context()); !errors.Is(err, xdp.ErrRefused) || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v", err)
	}
	p.Close()
	// Its queue and its program are free for the next one.
	p = start(t, n.Hosts[1], c)
	if r := do(t, p, xdp.Command{Op: xdp.Receive}); r.Packets != 0 {
		t.Errorf("%+v", r)
	}
}
