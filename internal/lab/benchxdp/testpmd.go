package benchxdp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	xdpref "github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
	"github.com/penstock-io/penstock/internal/peers"
)

// maxTestpmd is the largest packet that net_af_xdp of DPDK 22.11 receives, by what it says itself:
// one mbuf of one chunk.
const maxTestpmd = 3560

// testpmd is a live run of DPDK's net_af_xdp. It looks at no byte, and as the sender it makes
// packets of its own.
func (g *xdpRig) testpmd(ctx context.Context) (out paired.Sample, err error) {
	row := &g.row
	before, err := g.cables()
	if err != nil {
		return out, err
	}
	o := peers.PacketTest{Duration: row.time, Size: 0, CPUs: bench.CPUs(), In: g.net.Hosts[1].Do, NoFirst: true,
		Mbufs: 16384, Burst: row.batch,
		Devices: []string{"net_af_xdp0,iface=eth0"}, Huge: g.huge}
	switch row.op {
	case xdpref.Receive:
		o.Forward = "rxonly"
	case xdpref.Send:
		o.Forward, o.Size = "txonly", row.size
		if err := g.sink.Begin(xdpref.Command{Op: xdpref.Receive, From: g.sinkPort(), Live: true}); err != nil {
			return out, err
		}
	case xdpref.Forward:
		o.Devices = append(o.Devices, "net_af_xdp1,iface=eth1")
		o.Forward = "io"
		if row.touch {
			o.Forward = "mac"
		}
		if err := g.sink.Begin(xdpref.Command{Op: xdpref.Receive, From: g.sinkPort(), Live: true}); err != nil {
			return out, err
		}
	}
	var sent xdpref.Result
	ports, err := g.forwarding(ctx, o, func() (err error) {
		if row.op != xdpref.Send {
			sent, err = run(ctx, g.far, g.load(xdpref.Command{Time: row.time, Check: true}))
			return err
		}
		t := time.NewTimer(row.time)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	})
	var end xdpref.Result
	if row.op != xdpref.Receive {
		end, err = finish(ctx, g.sink, err)
	}
	if err != nil {
		return out, err
	}
	after, err := g.cables()
	if err != nil {
		return out, err
	}
	t := tally{what: row.title() + " by testpmd", sent: sent.Packets, got: end.Packets, dropped: lost(end),
		cable: after - before}
	// its end takes half a second, so what it forwards after the load's end is a present: 2,048
	// packets at most
	took := sent.Wall
	switch row.op {
	case xdpref.Receive:
		t.got = min(ports[0].RX, sent.Packets) // it counts what the kernel's stack says, too
	case xdpref.Send:
		t.sent, took = ports[0].TX, end.Wall
	}
	t.uncounted()
	g.seq += sent.Packets
	if err := t.check(); err != nil {
		return out, err
	}
	if t.got == 0 {
		return out, wrong("%s: no packet came", t.what)
	}
	return paired.Sample{Value: row.value(t.got, took)}, nil
}

// forwarding runs f while testpmd forwards.
func (g *xdpRig) forwarding(ctx context.Context, o peers.PacketTest, f func() error) (ports []peers.PacketPort,
	err error) {
	r, err := peers.StartPackets(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := f(); err != nil {
		return nil, err
	}
	if ports, err = r.Stop(); err != nil {
		return nil, err
	}
	if len(ports) != len(o.Devices) {
		return nil, fmt.Errorf("bench: testpmd told of %d ports: expected %d", len(ports), len(o.Devices))
	}
	return ports, nil
}
