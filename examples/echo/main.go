// Echo sends every packet back to its sender without touching the payload. As it is, it talks to
// itself over the simulator; with an address it serves until it is interrupted:
//
//	go run ./examples/echo
//	go run ./examples/echo -address udp://:7777
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

func main() {
	address := flag.String("address", "", "where to serve: udp://HOST:PORT; nothing for the simulator")
	packets := flag.Int("packets", 1000, "how many packets to send on the simulator")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *address == "" {
		err = both(ctx, os.Stdout, *packets)
	} else if e, failed := open(ctx, "socket", *address); failed != nil {
		err = failed
	} else {
		err = errors.Join(serve(ctx, e), e.close())
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

// end is a port with a queue in each direction and the memory for them.
type end struct {
	pool *mem.Pool
	port engine.Port
	rx   *engine.Rx
	tx   engine.TxQueue
}

// open opens a port and its queues.
func open(ctx context.Context, name, address string) (e end, err error) {
	engines, err := drivers.Engines()
	if err != nil {
		return e, err
	}
	eng, err := engines.Get(name)
	if err != nil {
		return e, err
	}
	if e.pool, err = mem.NewPool(mem.PoolOptions{Name: address, SlotSize: 2048, Slots: 4096}); err != nil {
		return e, err
	}
	if e.port, err = eng.OpenPort(ctx, engine.PortSpec{Address: address}); err != nil {
		return e, errors.Join(err, e.pool.Close())
	}
	rxq, err := e.port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{e.pool}})
	if err == nil {
		e.rx = engine.NewRx(rxq, engine.Batching{})
		e.tx, err = e.port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{e.pool}})
	}
	if err != nil {
		return e, errors.Join(err, e.close())
	}
	return e, nil
}

func (e end) close() error { return errors.Join(e.port.Close(), e.pool.Close()) }

// serve echoes until the context ends, which is the error.
func serve(ctx context.Context, e end) error {
	b := burst.New(64)
	defer b.Release()
	for {
		if err := e.rx.Recv(ctx, b); err != nil {
			return err
		}
		// Forward makes received packets ready to be sent from where they lie, each to whom it came
		// from. What finds no room is dropped, and Send takes the rest.
		if _, err := e.tx.Forward(b); err != nil && !errors.Is(err, engine.ErrFull) {
			return err
		}
		if err := e.tx.Send(b); err != nil {
			return err
		}
	}
}

// both serves on one port of the simulator, and sends to it from another.
func both(ctx context.Context, out io.Writer, packets int) error {
	server, err := open(ctx, "sim", "sim://echo-server")
	if err != nil {
		return err
	}
	defer server.close()
	client, err := open(ctx, "sim", "sim://echo-client")
	if err != nil {
		return err
	}
	defer client.close()

	serving, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { serve(serving, server) })
	defer wg.Wait()
	defer stop()

	b := burst.New(1)
	defer b.Release()
	for i := range packets {
		if _, err := client.tx.Alloc(b, 1, 100); err != nil {
			return err
		}
		b.Bytes(0, 0)[0] = byte(i)
		if err := client.tx.Send(b); err != nil {
			return err
		}
		if err := client.rx.Recv(ctx, b); err != nil {
			return err
		}
		if got := b.Bytes(0, 0)[0]; got != byte(i) {
			return fmt.Errorf("packet %d came back as %d", i, got)
		}
		b.Release()
	}
	fmt.Fprintf(out, "%d packets came back\n", packets)
	return nil
}
