// Reorder receives samples of an instrument and places them into tensors by sequence number. It
// prints, for each batch, which packets are there and the first elements, which are fp16.
//
//	go run ./examples/reorder
//	go run ./examples/reorder -address udp://:5000 -send=false
//
// As it is, the program sends the packets to itself over UDP, in another order than that of their
// numbers, and leaves some out.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
)

const (
	header   = 4  // bytes: the sequence number
	perBatch = 16 // packets
	samples  = 64 // of a packet
)

func main() {
	address := flag.String("address", "udp://127.0.0.1:0", "where to receive: udp://HOST:PORT")
	batches := flag.Int("batches", 8, "how many batches to wait for")
	self := flag.Bool("send", true, "send the packets, too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *address, *batches, *self); err != nil {
		fmt.Fprintln(os.Stderr, "reorder:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, address string, batches int, self bool) error {
	packets, err := mem.NewPool(mem.PoolOptions{Name: "packets", SlotSize: 2048, Slots: 1024})
	if err != nil {
		return err
	}
	defer packets.Close()
	// Where batches go: one slot each, of two bytes for each sample.
	dst, err := mem.NewPool(mem.PoolOptions{Name: "batches", SlotSize: perBatch * samples * 2, Slots: 64})
	if err != nil {
		return err
	}
	defer dst.Close()

	engines, err := drivers.Engines()
	if err != nil {
		return err
	}
	eng, err := engines.Get("socket")
	if err != nil {
		return err
	}
	port, err := eng.OpenPort(ctx, engine.PortSpec{Address: address})
	if err != nil {
		return err
	}
	defer port.Close()
	q, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{packets}})
	if err != nil {
		return err
	}
	stage, err := reorder.New(q, engine.StageSpec{Queue: "samples"}, reorder.Plan{
		Name:     "samples",
		Flows:    []uint32{0}, // packets that no rule has marked
		Sequence: reorder.Field{Offset: 0, Width: 32},
		PerBatch: perBatch,
		Offset:   header,
		Payload:  samples * 2,
		Convert:  &convert.Spec{From: convert.Format{Bits: 16, BigEndian: true}, To: tensor.F16, Scale: 1.0 / 1024},
		Timeout:  200 * time.Millisecond,
		Pool:     dst,
	})
	if err != nil {
		return err
	}
	defer stage.Close()
	if self {
		if err := send(port.Info().Address, batches); err != nil {
			return err
		}
	}

	rx := engine.NewRx(stage, engine.Batching{})
	b := burst.New(8)
	defer b.Release()
	for got := 0; got < batches; {
		if err := rx.Recv(ctx, b); err != nil {
			return err
		}
		for i := range b.Len() {
			x := reorder.Of(b, i)
			fmt.Fprintf(out, "batch %d: %2d of %d packets ", x.ID, x.Packets, x.PerBatch)
			for k := range x.PerBatch {
				fmt.Fprint(out, map[bool]string{true: "#", false: "."}[x.Has(k)])
			}
			elements := b.Bytes(i, 0)
			fmt.Fprint(out, " fp16")
			for k := range 4 {
				fmt.Fprintf(out, " %.3f", half(binary.LittleEndian.Uint16(elements[2*k:])))
			}
			fmt.Fprintln(out)
			got++
		}
		b.Release()
	}
	n := stage.Plans()[0]
	fmt.Fprintf(out, "%d batches whole, %d partial, %d lost; %d packets placed, dropped: %v\n", n.Whole, n.Partial,
		n.Lost, n.Placed, n.Drops.String())
	return nil
}

// send sends batches in an order of its own and leaves out one packet of 40.
func send(address string, batches int) error {
	c, err := net.Dial("udp", strings.TrimPrefix(address, "udp://"))
	if err != nil {
		return err
	}
	defer c.Close()
	r := rand.New(rand.NewPCG(7, 7))
	order := r.Perm(2 * perBatch)
	for n := range batches * perBatch {
		at := n / (2 * perBatch) * 2 * perBatch
		k := at + order[n-at] // all of two batches, shuffled
		if k >= batches*perBatch || r.IntN(40) == 0 {
			continue
		}
		p := binary.BigEndian.AppendUint32(nil, uint32(k))
		for i := range samples {
			p = binary.BigEndian.AppendUint16(p, uint16(int16(1024*math.Sin(float64(k*samples+i)/50))))
		}
		if _, err := c.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// half is the value of an fp16.
func half(v uint16) float64 {
	e, m := int(v>>10&31), float64(v&1023)
	x := math.Ldexp(1+m/1024, e-15)
	if e == 0 {
		x = math.Ldexp(m, -24)
	}
	if v>>15 == 1 {
		return -x
	}
	return x
}
