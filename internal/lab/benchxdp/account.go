package benchxdp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	xdpref "github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
)

// XDPAccount is what became of a number of packets that were forwarded, packet by packet and slot
// by slot.
type XDPAccount struct {
	Engine  string
	Size    int // bytes
	Bursts  uint64
	Sent    uint64 // by the load, in C
	Entered uint64 // the forwarder, by its own count
	LostIn  uint64 // by the forwarder's socket, by the kernel's count
	Arrived uint64 // at the sink, in C
	LostOut uint64 // by the sink's socket, by the kernel's count
	Cables  uint64 // lost by the interfaces
	Checked uint64 // bytes at the sink, each of them right
	Gaps    uint64 // in the order of sequence numbers at the sink
	Other   uint64 // packets that the load did not send
	Slots   uint64 // chunks of the load and of the sink, which are all back in their fill rings
	Took    time.Duration
}

// Exact fails unless each packet is accounted for once: sent = entered + lost before, entered =
// arrived + lost after.
func (a *XDPAccount) Exact() error {
	lost := a.LostIn + a.LostOut + a.Cables
	switch {
	case a.Sent != a.Arrived+lost:
		return wrong("%d packets were sent, %d arrived and %d were lost: %d are missing", a.Sent, a.Arrived, lost,
			int64(a.Sent-a.Arrived-lost))
	case a.Cables == 0 && a.Sent != a.Entered+a.LostIn:
		return wrong("%d packets were sent, %d entered the forwarder and %d were lost there", a.Sent, a.Entered,
			a.LostIn)
	case a.Checked != a.Arrived*uint64(a.Size):
		return wrong("%d bytes arrived and %d of them were right", a.Arrived*uint64(a.Size), a.Checked)
	case a.Gaps > lost:
		return wrong("%d gaps in the sequence numbers, and %d packets were lost", a.Gaps, lost)
	}
	return nil
}

// Table prints it.
func (a *XDPAccount) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%s, %d B, %d bursts, %v\t\n", a.Engine, a.Size, a.Bursts, a.Took.Round(time.Second))
	for _, x := range []struct {
		n    uint64
		what string
	}{{a.Sent, "sent by the load"}, {a.Entered, "entered the forwarder"}, {a.LostIn, "lost by its socket"},
		{a.Arrived, "arrived at the sink"},
		{a.LostOut, "lost by its socket"}, {a.Cables, "lost by interfaces"},
		{a.Checked, "bytes checked at the sink, all right"}, {a.Gaps, "gaps in their order"},
		{a.Other, "packets of others"}, {a.Slots, "chunks of load and sink, all back"}} {
		fmt.Fprintf(t, "%d\t %s\n", x.n, x.what)
	}
	return t.Flush()
}

// Account has an engine forward a number of packets between two interfaces, one burst after the
// other in one run of everything, and compares at the end what the load, the forwarder, the sink
// and the kernel counted, and whether every slot is back. The error wraps paired.ErrFailed when
// they disagree; the account comes with it.
func Account(ctx context.Context, o Options, packets uint64) (a *XDPAccount, err error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	if packets == 0 {
		return nil, errors.New("bench: no packets to account for")
	}
	row := o.row(xdpref.Forward, o.Sizes[0], o.Touched[0], false)
	g, err := openXDPRig(ctx, row, o.Huge)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	s, err := xdpSides[o.Engine](ctx, g.net.Hosts[1], g.spec())
	if err != nil {
		return nil, err
	}
	closed := false
	defer func() {
		if !closed {
			err = errors.Join(err, s.Close())
		}
	}()
	a = &XDPAccount{Engine: o.Engine, Size: row.size}
	began := time.Now()
	said := began
	before, err := g.cables()
	if err != nil {
		return nil, err
	}
	var end xdpref.Result
	for a.Sent < packets {
		n := min(row.burst, packets-a.Sent)
		sent, err := run(ctx, g.far, g.load(xdpref.Command{Packets: n, Check: true}))
		if err != nil {
			return a, fmt.Errorf("load: %w", err)
		}
		near, err := run(ctx, s, xdpref.Command{Op: xdpref.Forward, To: 1, Touch: row.touch})
		if err != nil {
			return a, err
		}
		if end, err = run(ctx, g.sink, xdpref.Command{Op: xdpref.Receive, From: 1, Check: true,
			Seq: g.seq}); err != nil {
			return a, fmt.Errorf("sink: %w", err)
		}
		g.seq += sent.Packets
		a.Bursts++
		a.Sent += sent.Packets
		a.Entered += near.Packets
		a.LostIn += lost(near)
		a.Arrived += end.Packets
		a.LostOut += lost(end)
		a.Checked += end.Checked
		a.Gaps += end.Gaps
		a.Other += near.Other + end.Other
		if end.Bad > 0 {
			return a, wrong("%d packets are wrong", end.Bad)
		}
		if now := time.Now(); now.Sub(said) > 10*time.Second {
			said = now
			o.Progress.Say("%d packets of %d, %d lost", a.Sent, packets, a.LostIn+a.LostOut)
		}
	}
	after, err := g.cables()
	if err != nil {
		return a, err
	}
	a.Cables, a.Took = after-before, time.Since(began)
	// The ends in C have every chunk again, and Close of ours reports chunks that are missing.
	for port := range 2 {
		r, err := run(ctx, g.far, xdpref.Command{Op: xdpref.Receive, From: port})
		if err != nil {
			return a, err
		}
		want := uint64(g.spec().slots * (&sideSpec{size: row.size}).chunks())
		if a.LostIn+a.LostOut == 0 && r.FillChunks+r.InFlight != want {
			return a, wrong("%d chunks of %d are in the fill ring of the far interface %d", r.FillChunks, want, port)
		}
		a.Slots += r.FillChunks
	}
	closed = true
	if err := s.Close(); err != nil {
		return a, fmt.Errorf("%w: slots: %w", paired.ErrFailed, err)
	}
	return a, a.Exact()
}
