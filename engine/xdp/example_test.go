package xdp_test

import (
	"context"
	"fmt"
	"log"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/xdp"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// Datagrams to port 5000 come to this program, in the pool's own slots; the rest stays with the
// kernel.
func Example() {
	ctx := context.Background()
	port, err := xdp.New().OpenPort(ctx, engine.PortSpec{Address: "eth0", Isolated: true})
	if err != nil {
		log.Fatal(err) // it says which capability is missing, or who has the interface
	}
	defer port.Close()
	pool, err := mem.NewPool(mem.PoolOptions{SlotSize: 2048, Slots: 8192})
	if err != nil {
		log.Fatal(err)
	}
	rxq, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		log.Fatal(err)
	}
	video, err := flow.ParseRule("udp dst 5000 -> queue 0")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := port.Rules().Apply(flow.Add(video)); err != nil {
		log.Fatal(err)
	}
	rx, b := engine.NewRx(rxq, engine.Batching{}), burst.New(64)
	for rx.Recv(ctx, b) == nil {
		for i := range b.Len() {
			fmt.Println(len(b.Bytes(i, 0)), "bytes")
		}
		b.Release()
	}
}

// Packets are forwarded from one interface to another without a copy in this process: both ports
// use one memory, and all pools are parts of it.
func ExampleNewMemory() {
	region, err := mem.Alloc(mem.Options{Size: 16 << 20, Kind: mem.Huge, AllowFallback: true})
	if err != nil {
		log.Fatal(err)
	}
	memory, err := xdp.NewMemory(xdp.MemoryOptions{Region: region})
	if err != nil {
		log.Fatal(err)
	}
	var ports [2]engine.Port
	for i, name := range []string{"eth0", "eth1"} {
		if ports[i], err = xdp.New().OpenPort(context.Background(),
			engine.PortSpec{Address: name, Options: xdp.Options{Memory: memory}}); err != nil {
			log.Fatal(err)
		}
		defer ports[i].Close()
	}
	if err := memory.Close(); err != nil { // the ports keep it
		log.Fatal(err)
	}
	pool, err := mem.NewPool(mem.PoolOptions{SlotSize: 2048, Slots: 8192, Region: region})
	if err != nil {
		log.Fatal(err)
	}
	in, err := ports[0].AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		log.Fatal(err)
	}
	out, err := ports[1].AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		log.Fatal(err)
	}
	rx, b := engine.NewRx(in, engine.Batching{}), burst.New(64)
	for rx.Recv(context.Background(), b) == nil {
		if _, err := out.Forward(b); err != nil {
			log.Print(err)
		}
		if err := out.Send(b); err != nil {
			log.Print(err)
		}
	}
}
