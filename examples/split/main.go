// Split receives the headers and the payload of packets into different memories. As it is, the
// program sends itself datagrams over a port of the simulator that is looped to itself; with an
// interface it takes what comes there:
//
//	go run ./examples/split
//	go run ./examples/split -address eth0
//	go run ./examples/split -address eth0 -engine xdp
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
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

func main() {
	address := flag.String("address", "sim://split?loop", "where to receive: sim://NAME?loop or an interface")
	name := flag.String("engine", "afpacket", "who receives from an interface: afpacket or xdp")
	packets := flag.Int("packets", 100, "how many packets to wait for")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := split(ctx, os.Stdout, *address, *name, *packets); err != nil {
		fmt.Fprintln(os.Stderr, "split:", err)
		os.Exit(1)
	}
}

func split(ctx context.Context, out io.Writer, address, name string, packets int) error {
	headers, err := mem.NewPool(mem.PoolOptions{Name: "headers", SlotSize: 128, Slots: 1024})
	if err != nil {
		return err
	}
	defer headers.Close()
	data, err := mem.NewPool(mem.PoolOptions{Name: "data", SlotSize: 2048, Slots: 1024})
	if err != nil {
		return err
	}
	defer data.Close()

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
	port, err := eng.OpenPort(ctx, engine.PortSpec{Address: address})
	if err != nil {
		return err
	}
	defer port.Close()
	// Two pools make header/data split. Without SplitAt the border is behind the UDP or TCP header,
	// wherever that is.
	q, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{headers, data}})
	if err != nil {
		return err
	}
	if simulated {
		if err := send(port, data, packets); err != nil {
			return err
		}
	}

	rx := engine.NewRx(q, engine.Batching{Timeout: time.Millisecond})
	b := burst.NewSegmented(64, 2*64) // of 64 packets with two segments each
	defer b.Release()
	received, head, body := 0, 0, 0
	for received < packets {
		if err := rx.Recv(ctx, b); err != nil {
			return err
		}
		for i := range b.Len() {
			for k := range b.Segments(i) {
				switch b.Role(i, k) {
				case burst.Header:
					head += len(b.Bytes(i, k)) // to be read by this program
				case burst.Payload:
					body += int(b.Segment(i, k).Len) // a program that passes it on needs only its place
				}
			}
		}
		received += b.Len()
		b.Release()
	}
	fmt.Fprintf(out, "%d packets: %d bytes of headers, %d bytes of payload\n", received, head, body)
	return nil
}

// send sends datagrams of 1000 bytes of payload.
func send(port engine.Port, pool *mem.Pool, packets int) error {
	tx, err := port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})
	if err != nil {
		return err
	}
	mac := port.Info().MAC
	f := packet.UDPFrame{SrcMAC: mac, DstMAC: mac, Src: netip.MustParseAddrPort("10.0.0.1:4000"),
		Dst: netip.MustParseAddrPort("10.0.0.2:5000")}
	b := burst.New(packets)
	defer b.Release()
	if _, err := tx.Alloc(b, packets, f.HeaderLen()+1000); err != nil {
		return err
	}
	for i := range packets {
		if _, err := f.Fill(b.Bytes(i, 0), 1000); err != nil {
			return err
		}
	}
	return tx.Send(b)
}
