package benchxdp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	xdpref "github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
	"github.com/penstock-io/penstock/internal/sys"
)

// xdpRig is two hosts on two cables. The far one makes the load on eth0 and is the sink, by the
// program in C; what is measured runs on the near one.
//
// Held, everything that is to be received or forwarded lies in the ring of the side under test
// before it begins, and the sink's ring holds everything that was sent until it looks: at each
// moment one program works, so that two processors are enough, and other work on the machine
// disturbs little. Live, all work at the same time.
type xdpRig struct {
	net  *netns.Net
	far  *xdpref.Peer // both interfaces; live, the sink alone has the second
	sink *xdpref.Peer // far, or a process of its own
	row  xdpRow
	seq  uint64
	huge bool
}

// xdpRow is one row of the report.
type xdpRow struct {
	op     xdpref.Op
	size   int
	touch  bool
	live   bool
	path   bool          // held, but what the load used counts too: the kernel's part of receiving is there
	burst  uint64        // packets of one burst, held
	bursts int           // of one sample, held
	time   time.Duration // of one sample, live
	cpu    bool          // held: by the processor time of the thread that works
	batch  int           // packets taken and sent at a time
}

var xdpOps = map[xdpref.Op]string{xdpref.Receive: "receive", xdpref.Send: "send", xdpref.Forward: "forward"}

func (r xdpRow) title() string {
	touch, how := "untouched", "held"
	if r.touch {
		touch = "headers touched"
	}
	switch {
	case r.live:
		how = "live"
	case r.path:
		how = "path"
	}
	if r.batch != defaultBatch {
		how += fmt.Sprintf(", bursts of %d", r.batch)
	}
	return fmt.Sprintf("%s %d B, %s, %s", xdpOps[r.op], r.size, touch, how)
}

// mtu is what the cables carry.
func (r xdpRow) mtu() int {
	if r.size > 1514 {
		return 9000
	}
	return 1500
}

// unit is what a row is counted in: packets of 64 bytes, bytes of larger ones.
func (r xdpRow) unit() paired.Unit {
	if r.size <= 64 {
		return paired.MopsPerSec
	}
	return paired.GBs
}

// brief is whether the sink looks at headers alone in what is timed: an engine makes a packet of
// several slots anew each time, and from slots in any order, so that nothing in them stays where it
// was prepared. The burst before what is timed is written and checked as a whole.
func (r xdpRow) brief() bool { return r.op == xdpref.Send && (&sideSpec{size: r.size}).chains() }

// checks is how many bytes of so many packets the last receiver looks at.
func (r xdpRow) checks(packets uint64, whole bool) uint64 {
	if r.brief() && !whole {
		return packets * xdpref.HeaderSize
	}
	return packets * uint64(r.size)
}

// value is a rate in that unit.
func (r xdpRow) value(packets uint64, d time.Duration) float64 {
	if r.unit() == paired.MopsPerSec {
		return float64(packets) / max(d.Seconds(), 1e-12) / 1e6
	}
	return bench.GBps(packets*uint64(r.size), d)
}

// spec is what a side is opened with.
func (g *xdpRig) spec() sideSpec {
	s := sideSpec{interfaces: []string{"eth0"}, size: g.row.size, slots: int(g.row.burst), cpu: 1, batch: g.row.batch,
		huge: g.huge}
	if g.row.op == xdpref.Forward {
		s.interfaces = append(s.interfaces, "eth1")
	}
	return s
}

// openXDPRig makes the hosts and starts the far programs.
func openXDPRig(ctx context.Context, row xdpRow, huge bool) (_ *xdpRig, err error) {
	g := &xdpRig{row: row, huge: huge}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if g.net, err = netns.Open(netns.Topology{Rails: 2, Neighbours: true,
		Link: netns.LinkSpec{MTU: row.mtu()}}); err != nil {
		return g, err
	}
	for _, h := range g.net.Hosts { // no stack of the kernel's says anything by itself
		for _, l := range h.Links {
			if err := h.Sysctl("net.ipv6.conf."+l.Name+".disable_ipv6", "1"); err != nil {
				return g, err
			}
		}
	}
	cpu, err := sys.Processor(0)
	if err != nil {
		return g, err
	}
	s := g.spec()
	c := s.config(cpu)
	apart := row.live && row.op == xdpref.Forward
	if apart {
		c.Interfaces = c.Interfaces[:1]
	}
	if g.far, err = xdpref.Start(g.net.Hosts[0].Start, c); err != nil {
		return g, err
	}
	g.sink = g.far
	if apart {
		c.Interfaces = []string{"eth1"}
		c.Poll = true // it shares the sender's processor
		g.sink, err = xdpref.Start(g.net.Hosts[0].Start, c)
	}
	return g, err
}

func (g *xdpRig) close() error {
	var err error
	if g.sink != nil && g.sink != g.far {
		err = errors.Join(err, g.sink.Close())
	}
	if g.far != nil {
		err = errors.Join(err, g.far.Close())
	}
	if g.net != nil {
		err = errors.Join(err, g.net.Close())
	}
	return err
}

// sinkPort is the interface of the sink's process that receives what the near host sends.
func (g *xdpRig) sinkPort() int {
	if g.row.op == xdpref.Forward && g.sink == g.far {
		return 1
	}
	return 0
}

// wrong is a run that is not to be believed.
func wrong(format string, a ...any) error {
	return fmt.Errorf("%w: %s", paired.ErrFailed, fmt.Sprintf(format, a...))
}

// cables are the packets that the interfaces lost, which no socket knows of.
func (g *xdpRig) cables() (uint64, error) {
	var n uint64
	for _, h := range g.net.Hosts {
		err := h.Do(func() error {
			for _, l := range h.Links {
				for _, name := range []string{"rx_dropped", "tx_dropped"} {
					b, err := os.ReadFile("/sys/class/net/" + l.Name + "/statistics/" + name)
					if err != nil {
						return err
					}
					v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
					if err != nil {
						return fmt.Errorf("%s of %s: %w", name, l.Name, err)
					}
					n += v
				}
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return n, nil
}

// lost are the packets that a result says were lost on the way in.
func lost(r xdpref.Result) uint64 { return r.Dropped + r.RingFull }

// tally holds the two ends of a run against each other.
type tally struct {
	what           string
	sent, got      uint64
	dropped        uint64 // by the receiver's socket
	cable          uint64
	bytes, checked uint64 // of got, and how many of them were looked at and right
	bad, gaps      uint64
}

// uncounted counts as dropped what is missing. net_af_xdp does not count packets that find its
// receive ring full: its rx_missed is the kernel's rx_dropped alone.
func (t *tally) uncounted() { t.dropped = max(t.dropped, t.sent-min(t.got, t.sent)) }

// check fails when the ends disagree by more than what was counted as lost, when a byte is wrong,
// or when packets came in another order.
func (t tally) check() error {
	switch {
	case t.got > t.sent:
		return wrong("%s: %d packets came, %d were sent", t.what, t.got, t.sent)
	case t.got+t.dropped+t.cable < t.sent:
		return wrong("%s: %d packets came of %d, and only %d were counted as lost (%d by sockets, %d by interfaces)",
			t.what, t.got, t.sent, t.dropped+t.cable, t.dropped, t.cable)
	case t.bad > 0:
		return wrong("%s: %d packets are wrong", t.what, t.bad)
	case t.checked > 0 && t.checked != t.bytes:
		return wrong("%s: %d bytes of %d were checked", t.what, t.checked, t.bytes)
	case t.checked > 0 && t.gaps > t.dropped+t.cable:
		return wrong("%s: %d gaps in the sequence numbers, and %d packets were lost", t.what, t.gaps, t.dropped+t.cable)
	}
	return nil
}

// step is what one burst or one live run gave.
type step struct {
	packets  uint64
	took     time.Duration
	verified uint64
}

// load is the far program's command that sends a burst.
func (g *xdpRig) load(c xdpref.Command) xdpref.Command {
	c.Op, c.Seq = xdpref.Send, g.seq
	return c
}

// held makes one burst. check makes the side under test look at every byte of it, when that side
// receives.
func (g *xdpRig) held(ctx context.Context, s packetSide, check bool) (st step, err error) {
	row := &g.row
	before, err := g.cables()
	if err != nil {
		return st, err
	}
	var sent, near, end xdpref.Result
	if row.op != xdpref.Send {
		if sent, err = run(ctx, g.far, g.load(xdpref.Command{Packets: row.burst, Check: true})); err != nil {
			return st, fmt.Errorf("load: %w", err)
		}
	}
	work := xdpref.Command{Op: row.op, Touch: row.touch, Check: check && row.op != xdpref.Forward, Seq: g.seq}
	switch row.op {
	case xdpref.Send:
		work.Packets = row.burst
	case xdpref.Forward:
		work.To = 1
	}
	if near, err = run(ctx, s, work); err != nil {
		return st, err
	}
	if row.op == xdpref.Send {
		sent = near
	} else if row.touch && near.Matched != near.Packets {
		return st, wrong("headers of %d packets of %d were found", near.Matched, near.Packets)
	}
	end = near
	if row.op != xdpref.Receive {
		if end, err = run(ctx, g.sink, xdpref.Command{Op: xdpref.Receive, From: g.sinkPort(), Check: true,
			Brief: row.brief() && !check, Seq: g.seq}); err != nil {
			return st, fmt.Errorf("sink: %w", err)
		}
	}
	after, err := g.cables()
	if err != nil {
		return st, err
	}
	t := tally{what: row.title(), sent: sent.Packets, got: end.Packets, dropped: lost(end), cable: after - before,
		bytes:   row.checks(end.Packets, check),
		checked: end.Checked, bad: end.Bad, gaps: end.Gaps}
	if row.op == xdpref.Forward {
		t.dropped += lost(near)
	}
	if row.op == xdpref.Send && !row.touch && !check {
		t.gaps = 0 // they have no numbers
	}
	g.seq += sent.Packets
	st = step{packets: near.Packets, took: near.Wall, verified: end.Checked}
	if row.cpu {
		st.took = near.CPU
	}
	if row.path {
		st.took = near.CPU + sent.CPU
	}
	if err := t.check(); err != nil {
		return st, err
	}
	if t.dropped > 0 { // the rings have room for all; a cable may lose some on a busy machine, before a ring has them
		return st, wrong("%s: %d packets of %d found no room", t.what, t.dropped, t.sent)
	}
	return st, nil
}

// live has all ends work at the same time.
func (g *xdpRig) live(ctx context.Context, s packetSide) (st step, err error) {
	row := &g.row
	before, err := g.cables()
	if err != nil {
		return st, err
	}
	var sent, near, end xdpref.Result
	sink := xdpref.Command{Op: xdpref.Receive, From: g.sinkPort(), Live: true, Check: true, Brief: row.brief(),
		Seq: g.seq}
	timed := xdpref.Command{Time: row.time, Check: true}
	switch row.op {
	case xdpref.Receive:
		if err = s.Begin(xdpref.Command{Op: xdpref.Receive, Live: true, Touch: row.touch, Seq: g.seq}); err != nil {
			return st, err
		}
		sent, err = run(ctx, g.far, g.load(timed))
		near, err = finish(ctx, s, err)
		end = near
		st = step{packets: near.Packets, took: sent.Wall}
	case xdpref.Send:
		if err = g.sink.Begin(sink); err != nil {
			return st, err
		}
		near, err = run(ctx, s, xdpref.Command{Op: xdpref.Send, Time: row.time, Touch: row.touch, Seq: g.seq})
		end, err = finish(ctx, g.sink, err)
		sent = near
		// Until the last one had come back as sent, which is when it is in the sink's ring: the
		// sink may look late.
		st = step{packets: end.Packets, took: near.Wall}
	case xdpref.Forward:
		if err = g.sink.Begin(sink); err != nil {
			return st, err
		}
		var took time.Duration
		if err = s.Begin(xdpref.Command{Op: xdpref.Forward, To: 1, Live: true, Touch: row.touch}); err == nil {
			began := time.Now()
			sent, err = run(ctx, g.far, g.load(timed))
			near, err = finish(ctx, s, err)
			took = time.Since(began) // what is left in the ring at the load's end is forwarded too
		}
		end, err = finish(ctx, g.sink, err)
		st = step{packets: end.Packets, took: took}
	}
	if err != nil {
		return st, err
	}
	after, err := g.cables()
	if err != nil {
		return st, err
	}
	if row.touch && row.op != xdpref.Send && near.Matched != near.Packets {
		return st, wrong("headers of %d packets of %d were found", near.Matched, near.Packets)
	}
	t := tally{what: row.title(), sent: sent.Packets, got: end.Packets, dropped: lost(end), cable: after - before,
		bytes:   row.checks(end.Packets, false),
		checked: end.Checked, bad: end.Bad}
	if row.op == xdpref.Forward {
		t.dropped += lost(near)
	}
	if w, ok := s.(*worker); ok && w.blind() {
		t.uncounted()
	}
	g.seq += sent.Packets
	st.verified = end.Checked
	return st, t.check()
}

// finish stops a side that works until then and returns what it did, also after another part
// failed.
func finish(ctx context.Context, s packetSide, err error) (xdpref.Result, error) {
	if e := s.Stop(); e != nil {
		return xdpref.Result{}, errors.Join(err, e)
	}
	r, e := s.Wait(ctx)
	return r, errors.Join(err, e)
}

// sample is one run of a contender: the side is opened, does one burst with every byte checked and
// then those that are timed, or one live run, and is closed.
func (g *xdpRig) sample(ctx context.Context, open openerOf) (out paired.Sample, err error) {
	s, err := open(ctx, g.net.Hosts[1], g.spec())
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	first, err := g.held(ctx, s, true)
	if err != nil {
		return out, fmt.Errorf("the burst before the timed ones: %w", err)
	}
	out.Verified = first.verified
	var packets uint64
	var took time.Duration
	if g.row.live {
		st, err := g.live(ctx, s)
		if err != nil {
			return out, err
		}
		packets, took = st.packets, st.took
		out.Verified += st.verified
	} else {
		for range g.row.bursts {
			st, err := g.held(ctx, s, false)
			if err != nil {
				return out, err
			}
			packets += st.packets
			took += st.took
			out.Verified += st.verified
		}
	}
	if packets == 0 {
		return out, wrong("%s: no packet came", g.row.title())
	}
	out.Value = g.row.value(packets, took)
	return out, nil
}
