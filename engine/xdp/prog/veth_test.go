package prog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
)

// cable is a veth pair: frames are sent at one end, and the program is at the other.
type cable struct {
	t     testing.TB
	net   *netns.Net
	index [2]int
	raw   int // a packet socket of the sending end

	p     *Program
	umem  *xsk.Umem
	queue *xsk.Queue
	socks []*xsk.Socket
	parts []byte // of the frame that is being put together
	held  struct {
		slot int
		meta Meta
		has  bool
	}
	took func(slot int, meta Meta, has bool, frame []byte)
	n    int // frames taken
}

func lay(t testing.TB, spec netns.LinkSpec) *cable {
	t.Helper()
	c := &cable{t: t, net: netns.New(t, netns.Topology{Link: spec, Neighbours: true})}
	for i, h := range c.net.Hosts {
		c.do(i, func() error {
			if err := h.Sysctl("net.ipv6.conf.eth0.disable_ipv6", "1"); err != nil { // so that only the test sends
				return err
			}
			d, err := net.InterfaceByName("eth0")
			if err == nil {
				c.index[i] = d.Index
			}
			return err
		})
	}
	c.do(0, func() (err error) {
		if c.raw, err = sys.PacketSocket(); err == nil {
			err = sys.BindPacket(c.raw, c.index[0], false)
		}
		return err
	})
	t.Cleanup(func() { sys.Close(c.raw) })
	return c
}

func (c *cable) do(host int, fn func() error) {
	c.t.Helper()
	if err := c.net.Hosts[host].Do(fn); err != nil {
		c.t.Fatalf("%+v", err)
	}
}

// load puts a program on the far end.
func (c *cable) load(s Spec, mode Mode) *Program {
	c.t.Helper()
	s.Interface, s.Name = c.index[1], "eth0"
	c.p = load1(c.t, s)
	c.do(1, func() error { return c.p.Attach(mode) })
	return c.p
}

const chunkSize = 4096

// open opens a socket for each slot on NIC queue 0.
func (c *cable) open(slots ...int) {
	c.t.Helper()
	const chunks = 4096
	b, err := sys.MmapAnonymous(chunks * chunkSize)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { sys.Munmap(b) })
	if c.umem, err = xsk.NewUmem(xsk.UmemConfig{Memory: b, ChunkSize: chunkSize}); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	c.do(1, func() error {
		c.queue, err = c.umem.OpenQueue(ctx, xsk.QueueConfig{Interface: c.index[1], NeedWakeup: true,
			MultiBuffer: c.p.spec.Frags, FillSize: 2048, CompletionSize: 64})
		return err
	})
	c.t.Cleanup(func() { c.queue.Close() })
	addrs := make([]uint64, 2048)
	for i := range addrs {
		addrs[i] = uint64(i * chunkSize)
	}
	if n := c.queue.Fill().Put(addrs); n != len(addrs) {
		c.t.Fatalf("the fill ring took %d", n)
	}
	for _, slot := range slots {
		c.do(1, func() error {
			s, err := c.queue.OpenSocket(xsk.SocketConfig{RxSize: 2048})
			if err != nil {
				return err
			}
			c.t.Cleanup(func() { s.Close() })
			for len(c.socks) <= slot {
				c.socks = append(c.socks, nil)
			}
			c.socks[slot] = s
			return c.p.Set(0, slot, s.FD())
		})
	}
}

// send sends one frame.
func (c *cable) send(frame []byte) {
	c.t.Helper()
	for {
		_, err := unix.Write(c.raw, frame)
		if err == nil {
			return
		}
		if err != unix.ENOBUFS && err != unix.EAGAIN {
			c.t.Fatalf("send %d bytes: %v", len(frame), err)
		}
		c.take()
	}
}

// take takes what the sockets have received.
func (c *cable) take() {
	var back []uint64
	for slot, s := range c.socks {
		if s == nil {
			continue
		}
		var in [64]xsk.Desc
		for {
			n := s.Rx().Get(in[:])
			if n == 0 {
				break
			}
			for _, d := range in[:n] {
				var m Meta
				var has bool
				if len(c.parts) == 0 {
					at := d.Addr % chunkSize
					m, has = TakeMeta(c.umem.Data(xsk.Desc{Addr: d.Addr - at, Len: uint32(at)}))
				}
				c.first(slot, m, has, c.umem.Data(d), d.Options&xsk.More != 0)
				back = append(back, c.umem.Chunk(d.Addr))
			}
		}
	}
	if len(back) > 0 {
		if n := c.queue.Fill().Put(back); n != len(back) {
			c.t.Fatal("the fill ring is full")
		}
	}
}

func (c *cable) first(slot int, m Meta, has bool, b []byte, more bool) {
	if len(c.parts) == 0 {
		c.held.slot, c.held.meta, c.held.has = slot, m, has
	}
	c.parts = append(c.parts, b...)
	if more {
		return
	}
	c.n++
	if c.took != nil {
		c.took(c.held.slot, c.held.meta, c.held.has, c.parts)
	}
	c.parts = c.parts[:0]
}

// counts reads the counters.
func (c *cable) counts() (n Counts) {
	c.t.Helper()
	if err := c.p.Counters(&n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// ends is how many packets have ended.
func (n *Counts) ends() uint64 {
	return n.Redirected.Packets + n.Kernel.Packets + n.Discarded.Packets + n.NoSocket.Packets + n.Faults.Packets
}

// await waits until as many packets have ended, and those for sockets are taken.
func (c *cable) await(sent uint64) Counts {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		c.take()
		n := c.counts()
		if n.ends() >= sent && uint64(c.n) >= n.Redirected.Packets {
			return n
		}
		if time.Now().After(end) {
			c.t.Fatalf("sent %d, taken %d: %+v", sent, c.n, n)
		}
		unix.Select(0, nil, nil, nil, &unix.Timeval{Usec: 100})
	}
}

func udp(dst uint16, n int) []byte {
	p := flowtest.Packet{EthDst: packet.MAC{2, 0x77, 0, 0, 0, 1}, EthSrc: packet.MAC{2, 0x77, 0, 0, 0, 0},
		EtherType: packet.EtherTypeIPv4, Proto: packet.ProtoUDP,
		SrcPort: 9, DstPort: dst, Payload: make([]byte, n)}
	p.Src, p.Dst = parse("192.0.2.1"), parse("192.0.2.2")
	return p.Frame()
}

func TestVeth(t *testing.T) {
	for _, mode := range []Mode{Native, Generic} {
		for _, jumbo := range []bool{false, true} {
			t.Run(fmt.Sprint(mode, jumbo), func(t *testing.T) { veth(t, mode, jumbo) })
		}
	}
}

// veth sends packets for each way that a packet can end.
func veth(t *testing.T, mode Mode, jumbo bool) {
	mtu := 1500
	if jumbo {
		mtu = 9000
	}
	c := lay(t, netns.LinkSpec{MTU: mtu})
	rules := parseRules(t, "udp dst 5000 -> queue 0", "udp dst 5001 -> queue 3", "udp dst 5002 -> drop",
		"udp dst 5003 -> kernel", "udp dst 5004 -> queue 7",
		"udp dst 5005 flex 8 0x01020304 -> queue 3")
	c.load(Spec{Rules: rules, Queues: 1, Slots: 8, Metadata: true, Frags: jumbo}, mode)
	c.open(0, 3)
	got := map[int]int{}
	c.took = func(slot int, m Meta, has bool, frame []byte) {
		port := binary.BigEndian.Uint16(frame[36:])
		want := Meta{Rule: uint32(port - 5000 + 1), Queue: uint16(slot)}
		if !has || m != want || slot != map[uint16]int{5000: 0, 5001: 3}[port] {
			t.Fatalf("port %d in slot %d with %v %+v", port, slot, has, m)
		}
		got[slot]++
	}
	sent := uint64(0)
	for i := range 60 {
		for k := range 7 {
			size := 30 + i
			if jumbo && i%2 == 0 {
				size = 8000 + i
			}
			c.send(udp(uint16(5000+k), size))
			sent++
		}
		c.take()
	}
	n := c.await(sent)
	if got[0] != 60 || got[3] != 60 {
		t.Errorf("got %v", got)
	}
	want := Counts{}
	for k, to := range []*flow.Count{&want.Redirected, &want.Redirected, &want.Discarded, &want.Kernel, &want.NoSocket,
		&want.Kernel, &want.Kernel} {
		_ = k
		to.Packets += 60
	}
	if n.Redirected.Packets != want.Redirected.Packets || n.Discarded.Packets != want.Discarded.Packets ||
		n.Kernel.Packets != want.Kernel.Packets ||
		n.NoSocket.Packets != want.NoSocket.Packets || n.Unmatched.Packets != 120 ||
		n.Faults.Packets+n.Bare.Packets != 0 {
		t.Errorf("%+v", n)
	}
	for i, r := range n.Rules {
		if want := uint64(60); i < 5 && r.Packets != want || i == 5 && r.Packets != 0 {
			t.Errorf("rule %d: %+v", i, r)
		}
	}
	if i := c.p.Info(); !i.Attached || i.Mode != mode {
		t.Errorf("%+v", i)
	}
}

// TestHints: veth has a hash of each packet and no time; generic mode has neither.
func TestHints(t *testing.T) {
	t.Run("native", func(t *testing.T) { hinted(t, Native, true) })
	t.Run("generic", func(t *testing.T) { hinted(t, Generic, false) })
}

// hinted asks for hash and time, which are there or not; the packets come all the same.
func hinted(t *testing.T, mode Mode, there bool) {
	c := lay(t, netns.LinkSpec{})
	s := Spec{Rules: parseRules(t, "udp -> queue 0", "prio 1 udp dst 5003 -> queue 0"), Queues: 1, Slots: 1,
		Metadata: true, Hash: true, Time: true,
		Interface: c.index[1], Name: "eth0"}
	s.Rules[1].ID = 0
	c.do(1, func() (err error) {
		if c.p, err = Load(s); err == nil {
			err = c.p.Attach(mode)
		}
		return err
	})
	t.Cleanup(func() { c.p.Close() })
	i := c.p.Info()
	if there && len(i.Notes) > 0 {
		testenv.Missing(t, "a kernel with functions for receive metadata", errors.New(i.Notes[0]))
	}
	if i.Hash != there || i.Time != there || (len(i.Notes) == 0) != there {
		t.Fatalf("%+v", i)
	}
	c.open(0)
	hashes := map[uint32]int{}
	c.took = func(slot int, m Meta, has bool, frame []byte) {
		if !has || m.HasTime || m.HasHash != there ||
			m.Rule != map[bool]uint32{true: 0, false: 1}[binary.BigEndian.Uint16(frame[36:]) == 5003] {
			t.Fatalf("%v %+v", has, m)
		}
		hashes[m.Hash]++
	}
	// The kernel gives frames of packet sockets a hash only when it needs one; its own sockets give
	// one to each flow.
	for k := range 8 {
		c.do(0, func() error { return dial(k) })
	}
	n := c.await(8)
	if c.n < 8 || n.Redirected.Packets < 8 || n.Rules[0].Packets < 7 || n.Rules[1].Packets != 1 || there &&
		len(hashes) < 2 {
		t.Errorf("%d packets, hashes %v: %+v", c.n, hashes, n)
	}
	// Changes are bound to the interface as well.
	rules := parseRules(t, "udp -> queue 0", "tcp -> drop")
	c.do(1, func() error { return c.p.Apply(rules, flow.Isolation{}) })
	if again := c.p.Info(); again.Hash != there || len(again.Notes) != len(i.Notes) {
		t.Errorf("after a change: %+v", again)
	}
	c.do(0, func() error { return dial(9) })
	c.await(9)
}

// dial sends a datagram from a socket of the kernel's.
func dial(k int) error {
	conn, err := net.Dial("udp", fmt.Sprintf("10.77.0.2:%d", 5000+k))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("a datagram"))
	return err
}

// TestSparse: there is no Meta before the first rule, and one on every packet from then on, also
// when the last rule has gone.
func TestSparse(t *testing.T) {
	p := load1(t, Spec{Interface: 1, Queues: 1, Slots: 1, Metadata: true, Sparse: true,
		Isolation: flow.Isolation{Unmatched: flow.Deliver}})
	before := p.Info().Instructions
	one := parseRules(t, "udp dst 5000 -> queue 0")
	if err := p.Apply(one, flow.Isolation{Unmatched: flow.Deliver}); err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(nil, flow.Isolation{Unmatched: flow.Deliver}); err != nil {
		t.Fatal(err)
	}
	after := p.Info().Instructions
	whole := load1(t, Spec{Interface: 1, Queues: 1, Slots: 1, Metadata: true,
		Isolation: flow.Isolation{Unmatched: flow.Deliver}}).Info().Instructions
	if before >= whole || after != whole {
		t.Errorf("%d instructions without rules, %d after there were some, %d with a Meta always", before, after, whole)
	}
}
