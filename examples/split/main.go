// Split receives packets with their headers in one memory and their payload in another, as an accelerator wants it: the payload pool
// can be any memory that the engine takes. The program sends itself UDP datagrams in Ethernet frames over a loop of the simulator:
//
//	go run ./examples/split
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
)

const payload = 1000 // bytes

func main() {
	address := flag.String("address", "sim://split?loop", "where to receive: sim://NAME?loop")
	packets := flag.Int("packets", 100, "how many packets to send and receive")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := split(ctx, os.Stdout, *address, *packets); err != nil {
		fmt.Fprintln(os.Stderr, "split:", err)
		os.Exit(1)
	}
}

func split(ctx context.Context, out io.Writer, address string, packets int) error {
	headers, err := mem.NewPool(mem.PoolOptions{Name: "headers", SlotSize: 128, Slots: 4096})
	if err != nil {
		return err
	}
	defer headers.Close()
	data, err := mem.NewPool(mem.PoolOptions{Name: "data", SlotSize: 2048, Slots: 4096})
	if err != nil {
		return err
	}
	defer data.Close()

	port, err := sim.Default.OpenPort(ctx, engine.PortSpec{Address: address})
	if err != nil {
		return err
	}
	defer port.Close()
	// Two pools make header/data split. Without SplitAt the border is behind the UDP header, wherever that is.
	rxq, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{headers, data}})
	if err != nil {
		return err
	}
	tx, err := port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{data}})
	if err != nil {
		return err
	}

	mac := port.Info().MAC
	frame := packet.UDPFrame{SrcMAC: mac, DstMAC: mac, Src: netip.MustParseAddrPort("10.0.0.1:4000"), Dst: netip.MustParseAddrPort("10.0.0.2:5000")}
	rx := engine.NewRx(rxq, engine.Batching{Timeout: time.Millisecond})
	b := burst.New(64)
	defer b.Release()
	sent, received, headerBytes, sum := 0, 0, 0, 0
	for received < packets {
		if sent == received {
			n, err := tx.Alloc(b, min(b.Cap(), packets-sent), frame.HeaderLen()+payload)
			if err != nil {
				return err
			}
			for i := range n {
				p := b.Bytes(i, 0)
				clear(p)
				p[len(p)-1] = byte(sent + i)
				if _, err := frame.Fill(p, payload); err != nil {
					return err
				}
			}
			if err := tx.Send(b); err != nil {
				return err
			}
			sent += n
		}
		if err := rx.Recv(ctx, b); err != nil {
			return err
		}
		for i := range b.Len() {
			if b.Segments(i) != 2 || b.Role(i, 0) != burst.Header || b.Role(i, 1) != burst.Payload {
				return fmt.Errorf("packet %d has no header and payload", received+i)
			}
			headerBytes += len(b.Bytes(i, 0))
			body := b.Bytes(i, 1) // in the second pool: b.Segment(i, 1) says where, for those that need no bytes
			sum += int(body[len(body)-1])
		}
		received += b.Len()
		b.Release()
	}
	fmt.Fprintf(out, "%d packets, %d bytes of headers each, the payloads' numbers add up to %d\n", received, headerBytes/received, sum)
	return nil
}
