// Count receives packets and counts them. As it is, it needs nothing: a port of the simulator is
// looped to itself, and the program sends to it what it counts. The same program counts on a
// network:
//
//	go run ./examples/count
//	go run ./examples/count -address udp://:5000 -send=false
//	go run ./examples/count -address eth0 -send=false
//
// and past the kernel's network stack, by another word:
//
//	go run ./examples/count -address eth0 -send=false -engine xdp
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

func main() {
	address := flag.String("address", "sim://count?loop",
		"where to receive: sim://NAME?loop, udp://HOST:PORT or an interface")
	name := flag.String("engine", "", "who receives: sim, socket, afpacket or xdp; nothing for what the address tells")
	packets := flag.Int("packets", 1000, "how many packets to wait for")
	send := flag.Bool("send", true, "send them, too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := count(ctx, os.Stdout, *address, *name, *packets, *send); err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(1)
	}
}

func count(ctx context.Context, out io.Writer, address, name string, packets int, send bool) error {
	// The memory that packets are received into, and sent from.
	pool, err := mem.NewPool(mem.PoolOptions{Name: "packets", SlotSize: 2048, Slots: 4096})
	if err != nil {
		return err
	}
	defer pool.Close()

	engines, err := drivers.Engines()
	if err != nil {
		return err
	}
	if name == "" {
		name = "afpacket" // whole frames of an interface
		scheme, _, _ := strings.Cut(address, "://")
		for _, s := range drivers.Table() {
			if slices.Contains(s.Schemes, scheme) {
				name = s.Name
			}
		}
	}
	eng, err := engines.Get(name)
	if err != nil {
		return err
	}
	port, err := eng.OpenPort(ctx, engine.PortSpec{Address: address})
	if err != nil {
		return err
	}
	defer port.Close()
	rxq, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		return err
	}
	var tx engine.TxQueue
	if send {
		if tx, err = port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}}); err != nil {
			return err
		}
	}

	// A burst is delivered when it is full, or a millisecond after its first packet.
	rx := engine.NewRx(rxq, engine.Batching{Timeout: time.Millisecond})
	b := burst.New(64)
	defer b.Release()
	sent, received, bytes := 0, 0, 0
	for received < packets {
		if send && sent == received {
			n, err := tx.Alloc(b, min(b.Cap(), packets-sent), 100)
			if err != nil {
				return err
			}
			if err := tx.Send(b); err != nil {
				return err
			}
			sent += n
		}
		if err := rx.Recv(ctx, b); err != nil {
			return err
		}
		received += b.Len()
		bytes += b.TotalLen()
		b.Release() // the memory goes back to the pool
	}

	var s engine.PortStats
	port.Stats(&s)
	s.Drops.Add(&s.Rx.Drops)
	fmt.Fprintf(out, "%d packets, %d bytes, dropped: %v\n", received, bytes, &s.Drops)
	return nil
}
