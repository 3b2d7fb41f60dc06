package socket_test

import (
	"context"
	"fmt"
	"log"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// A server sends every packet back to whom it came from, out of the memory that it came into.
func Example_echo() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	open := func(address string) (engine.Port, engine.RxQueue, engine.TxQueue) {
		port, err := socket.New().OpenPort(ctx, engine.PortSpec{Address: address})
		if err != nil {
			log.Fatal(err)
		}
		pool, err := mem.NewPool(mem.PoolOptions{Name: address, SlotSize: 2048, Slots: 256})
		if err != nil {
			log.Fatal(err)
		}
		rx, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
		if err != nil {
			log.Fatal(err)
		}
		tx, err := port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})
		if err != nil {
			log.Fatal(err)
		}
		return port, rx, tx
	}

	server, in, out := open("udp://127.0.0.1:0")
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		rx, b := engine.NewRx(in, engine.Batching{}), burst.New(64)
		for rx.Recv(ctx, b) == nil {
			if _, err := out.Forward(b); err != nil { // what found no room was dropped
				log.Print(err)
			}
			out.Send(b)
		}
	}()

	client, rx, tx := open("udp://?remote=" + server.(*socket.UDPPort).LocalAddr().String())
	defer client.Close()
	b := burst.New(1)
	if _, err := tx.Alloc(b, 1, 100); err != nil {
		log.Fatal(err)
	}
	b.SetLen(0, 0, copy(b.Bytes(0, 0), "there and back"))
	if err := tx.Send(b); err != nil {
		log.Fatal(err)
	}
	if err := engine.NewRx(rx, engine.Batching{}).Recv(ctx, b); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", b.Bytes(0, 0))
	b.Release()
	cancel()
	<-done
	// Output: there and back
}
