// Feed answers UDP datagrams from a persistent GPU kernel. As it is, it talks to itself over the
// simulator, with this process as the accelerator; -gpu takes a card, or the processor by OpenCL:
//
//	go run ./examples/feed
//	go run ./examples/feed -gpu opencl
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/runtimes"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/feed"
)

func main() {
	runtime := flag.String("gpu", "host", "the runtime of the accelerator: host, opencl, cuda")
	packets := flag.Int("packets", 1000, "how many packets to send")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *runtime, *packets); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "feed:", err)
		os.Exit(1)
	}
}

// end is a port with a queue in each direction and the memory for them.
type end struct {
	pool *mem.Pool
	port engine.Port
	rx   engine.RxQueue
	tx   engine.TxQueue
}

func open(ctx context.Context, address string, memory mem.Options) (e end, err error) {
	engines, err := drivers.Engines()
	if err != nil {
		return e, err
	}
	sim, err := engines.Get("sim")
	if err != nil {
		return e, err
	}
	if e.pool, err = mem.NewPool(mem.PoolOptions{Name: address, SlotSize: 2048, Slots: 1024,
		Memory: memory}); err != nil {
		return e, err
	}
	if e.port, err = sim.OpenPort(ctx, engine.PortSpec{Address: address}); err != nil {
		return e, errors.Join(err, e.pool.Close())
	}
	if e.rx, err = e.port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{e.pool}, Depth: 256}); err == nil {
		e.tx, err = e.port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{e.pool}})
	}
	if err != nil {
		return e, errors.Join(err, e.close())
	}
	return e, nil
}

func (e end) close() error { return errors.Join(e.port.Close(), e.pool.Close()) }

func run(ctx context.Context, out io.Writer, runtime string, packets int) (err error) {
	later := func(close func() error) { err = errors.Join(err, close()) }
	chosen, err := runtimes.Table().Open(runtime)
	if err != nil {
		return err
	}
	defer func() { later(chosen.Close) }()
	device, err := chosen.Devices()[0].Open()
	if err != nil {
		return err
	}
	defer func() { later(device.Close) }()
	provider, err := gpumem.New(device, gpumem.Options{})
	if err != nil {
		return err
	}
	defer func() { later(provider.Close) }()
	server, err := open(ctx, "sim://feed-server", mem.Options{Kind: mem.HostPinned, Provider: provider})
	if err != nil {
		return err
	}
	defer func() { later(server.close) }()
	client, err := open(ctx, "sim://feed-client", mem.Options{})
	if err != nil {
		return err
	}
	defer func() { later(client.close) }()
	stage, err := feed.New(server.rx, engine.StageSpec{Queue: "server",
		Options: feed.Options{Kernel: "echo", Pool: server.pool, Slots: 256, Ordered: true}})
	if err != nil {
		return err
	}
	defer func() { later(stage.Close) }()

	serving, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { serve(serving, engine.NewRx(stage, engine.Batching{Packets: 64}), server.tx) })
	defer wg.Wait()
	defer stop()
	if err := talk(ctx, client, packets); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d datagrams were answered by %s\n", packets, device.Device())
	for _, c := range stage.(engine.StageCounter).Counts() {
		fmt.Fprintf(out, "%-14s %d\n", c.Name, c.N)
	}
	return nil
}

// serve sends what the kernel answered: the slots that were received are sent.
func serve(ctx context.Context, rx *engine.Rx, tx engine.TxQueue) {
	b := burst.New(64)
	defer b.Release()
	for rx.Recv(ctx, b) == nil {
		if _, err := tx.Forward(b); err != nil && !errors.Is(err, engine.ErrFull) {
			return
		}
		if tx.Send(b) != nil {
			return
		}
	}
}

// talk sends one datagram after the other, and checks each answer.
func talk(ctx context.Context, e end, packets int) error {
	head := packet.UDPFrame{SrcMAC: packet.MAC{2, 0, 0, 0, 0, 1}, DstMAC: packet.MAC{2, 0, 0, 0, 0, 2},
		Src: netip.MustParseAddrPort("192.0.2.1:5000"), Dst: netip.MustParseAddrPort("192.0.2.2:7")}
	rx := engine.NewRx(e.rx, engine.Batching{})
	b := burst.New(1)
	defer b.Release()
	for i := range packets {
		if _, err := e.tx.Alloc(b, 1, head.HeaderLen()+4); err != nil {
			return err
		}
		f := b.Bytes(0, 0)
		copy(f[head.HeaderLen():], fmt.Sprintf("%04d", i%10000))
		if _, err := head.Fill(f, 4); err != nil {
			return err
		}
		if err := e.tx.Send(b); err != nil {
			return err
		}
		if err := rx.Recv(ctx, b); err != nil {
			return err
		}
		var l packet.Layers
		f = b.Bytes(0, 0)
		if packet.Parse(f, &l) != packet.OK || l.Src(f) != head.Dst.Addr() ||
			string(f[l.L4+packet.UDPLen:l.End]) != fmt.Sprintf("%04d", i%10000) {
			return fmt.Errorf("the answer to datagram %d is %x", i, f)
		}
		if u := packet.UDP(f[l.L4:l.End]); u.DstPort() != 5000 || !u.ChecksumOK(l.Src(f), l.Dst(f)) {
			return fmt.Errorf("the answer to datagram %d is for port %d, or its checksum is wrong", i, u.DstPort())
		}
		b.Release()
	}
	return nil
}
