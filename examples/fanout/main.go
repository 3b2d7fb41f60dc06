// Fanout spreads packets over several receive queues, each with a goroutine of its own, so that all packets of a flow meet the same
// one: receive-side scaling. The program sends itself datagrams of many flows over a loop of the simulator:
//
//	go run ./examples/fanout
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/flow"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
)

const (
	queues  = 4
	flows   = 64
	payload = 100 // bytes
)

func main() {
	address := flag.String("address", "sim://fanout?loop", "where to receive: sim://NAME?loop")
	rounds := flag.Int("rounds", 50, "how many packets of each flow to send")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := fanout(ctx, os.Stdout, *address, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "fanout:", err)
		os.Exit(1)
	}
}

func fanout(ctx context.Context, out io.Writer, address string, rounds int) error {
	pool, err := mem.NewPool(mem.PoolOptions{Name: "packets", SlotSize: 2048, Slots: 16384})
	if err != nil {
		return err
	}
	defer pool.Close()
	port, err := sim.Default.OpenPort(ctx, engine.PortSpec{Address: address})
	if err != nil {
		return err
	}
	defer port.Close()
	var rxs [queues]engine.RxQueue
	for i := range rxs {
		if rxs[i], err = port.AddRxQueue(engine.RxSpec{ID: i, Pools: []*mem.Pool{pool}, Depth: flows * rounds}); err != nil {
			return err
		}
	}
	tx, err := port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		return err
	}
	// One rule: all UDP packets, spread by the hash of their addresses and ports.
	rule, err := flow.ParseRule("name all udp -> rss 0-3")
	if err != nil {
		return err
	}
	if _, err := port.Rules().Apply(flow.Add(rule)); err != nil {
		return err
	}

	// Each queue has one owner, which needs no lock: it counts its packets by source port until there are no more to come.
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	var counts [queues]map[uint16]int
	var left atomic.Int64
	left.Store(int64(flows * rounds))
	var owners sync.WaitGroup
	for i, q := range rxs {
		counts[i] = map[uint16]int{}
		owners.Go(func() {
			rx := engine.NewRx(q, engine.Batching{})
			b := burst.New(64)
			var l packet.Layers
			for rx.Recv(receiving, b) == nil {
				for k := range b.Len() {
					if packet.Parse(b.Bytes(k, 0), &l) == packet.OK {
						counts[i][l.SrcPort]++
					}
				}
				if left.Add(-int64(b.Len())) == 0 {
					stop()
				}
				b.Release()
			}
		})
	}
	if err := send(tx, port.Info().MAC, rounds); err != nil {
		stop()
		owners.Wait()
		return err
	}
	owners.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}

	total, seen := 0, map[uint16]bool{}
	for i, c := range counts {
		for port, n := range c {
			if total += n; seen[port] || n != rounds {
				return fmt.Errorf("queue %d has %d packets of port %d: expected all %d or none", i, n, port, rounds)
			}
			seen[port] = true
		}
	}
	fmt.Fprintf(out, "%d packets of %d flows in %d queues, each flow in one\n", total, len(seen), queues)
	return nil
}

// send sends that many rounds of a packet of each flow.
func send(tx engine.TxQueue, mac packet.MAC, rounds int) error {
	frame := packet.UDPFrame{SrcMAC: mac, DstMAC: mac, Dst: netip.MustParseAddrPort("10.0.0.2:5000")}
	b := burst.New(flows)
	for range rounds {
		n, err := tx.Alloc(b, flows, frame.HeaderLen()+payload)
		if err != nil {
			b.Release() // what there was, if it was fewer
			return err
		}
		for i := range n {
			frame.Src = netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(4000+i))
			if _, err := frame.Fill(b.Bytes(i, 0), payload); err != nil {
				b.Release()
				return err
			}
		}
		if err := tx.Send(b); err != nil {
			return err
		}
	}
	return nil
}
