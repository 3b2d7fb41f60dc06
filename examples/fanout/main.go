// Fanout spreads packets over several receive queues by a hash of their flow (RSS), one goroutine
// for each queue. As it is, the program sends itself datagrams of 64 flows over a port of the
// simulator that is looped to itself; with an interface it takes what comes there:
//
//	go run ./examples/fanout
//	go run ./examples/fanout -address eth0
//	go run ./examples/fanout -address eth0 -engine xdp
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

const (
	queues = 4
	flows  = 64 // of the simulator
)

func main() {
	address := flag.String("address", "sim://fanout?loop", "where to receive: sim://NAME?loop or an interface")
	name := flag.String("engine", "afpacket", "who receives from an interface: afpacket or xdp")
	packets := flag.Int("packets", 160, "how many packets each queue waits for")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := fanout(ctx, os.Stdout, *address, *name, *packets); err != nil {
		fmt.Fprintln(os.Stderr, "fanout:", err)
		os.Exit(1)
	}
}

func fanout(ctx context.Context, out io.Writer, address, name string, packets int) error {
	pool, err := mem.NewPool(mem.PoolOptions{Name: "packets", SlotSize: 2048, Slots: 4096})
	if err != nil {
		return err
	}
	defer pool.Close()
	engines, err := drivers.Engines()
	if err != nil {
		return err
	}
	simulated := strings.HasPrefix(address, "sim:")
	if simulated {
		name = "sim"
	}
	eng, err := engines.Get(name)
	if err != nil {
		return err
	}
	port, err := eng.OpenPort(ctx, engine.PortSpec{Address: address, Isolated: true})
	if err != nil {
		return err
	}
	defer port.Close()

	// Each queue has one owner, which therefore needs no lock. It ends with its share or with the
	// context.
	receiving, stop := context.WithCancel(ctx)
	var owners sync.WaitGroup
	defer owners.Wait()
	defer stop()
	var count [queues]int
	var seen [queues]map[uint32]bool // flows
	for i := range queues {
		q, err := port.AddRxQueue(engine.RxSpec{ID: engine.Queue(i), Pools: []*mem.Pool{pool}})
		if err != nil {
			return err
		}
		seen[i] = map[uint32]bool{}
		owners.Go(func() {
			rx := engine.NewRx(q, engine.Batching{})
			b := burst.New(64)
			defer b.Release()
			var l packet.Layers
			for count[i] < packets && rx.Recv(receiving, b) == nil {
				for k := range b.Len() {
					if frame := b.Bytes(k, 0); packet.Parse(frame, &l) == packet.OK {
						seen[i][packet.FlowHash(frame, &l)] = true
					}
				}
				count[i] += b.Len()
				b.Release()
			}
		})
	}

	// One rule for UDP. On an isolated port everything else stays with the kernel.
	rule, err := flow.ParseRule("name all udp -> rss 0-3")
	if err != nil {
		return err
	}
	if _, err := port.Rules().Apply(flow.Add(rule)); err != nil {
		return err
	}
	if simulated {
		if err := send(port, pool, queues*packets); err != nil {
			return err
		}
	}
	owners.Wait()
	for i := range queues {
		fmt.Fprintf(out, "queue %d: %d packets of %d flows\n", i, count[i], len(seen[i]))
	}
	return ctx.Err()
}

// send sends datagrams from as many ports as there are flows, in turn.
func send(port engine.Port, pool *mem.Pool, packets int) error {
	tx, err := port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		return err
	}
	mac := port.Info().MAC
	f := packet.UDPFrame{SrcMAC: mac, DstMAC: mac, Dst: netip.MustParseAddrPort("10.0.0.2:5000")}
	b := burst.New(packets)
	defer b.Release()
	if _, err := tx.Alloc(b, packets, f.HeaderLen()+100); err != nil {
		return err
	}
	for i := range packets {
		f.Src = netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(4000+i%flows))
		if _, err := f.Fill(b.Bytes(i, 0), 100); err != nil {
			return err
		}
	}
	return tx.Send(b)
}
