// Batches opens a configuration file and takes the batches that a GPU has made of packets. The
// processor copies each from the memory of the GPU and prints how many packets are there and the
// first elements, which are fp16. A kernel would read them where they are (docs/reorder.md).
//
//	penstock config generate gpu > rx.yaml
//	go run ./examples/batches rx.yaml
//	python3 examples/python/send_samples.py 127.0.0.1 5000 256
//
// The program takes the place of the applications of the file.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/system"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: batches FILE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = run(ctx, os.Stdout, os.Args[1], text)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "batches:", err)
		os.Exit(1)
	}
}

// run prints the batches of the first interface until the context ends.
func run(ctx context.Context, out io.Writer, name string, text []byte) error {
	cfg, problems := config.Load(name, text, config.Options{})
	if cfg == nil {
		return problems.Err()
	}
	if len(cfg.Interfaces) == 0 {
		return fmt.Errorf("%s has no interfaces", name)
	}
	cfg.Applications = nil
	s, err := system.Open(ctx, cfg, system.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	iface := cfg.Interfaces[0].Name
	rx, err := s.Rx(iface, 0)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "receiving at", s.Port(iface).Info().Address)
	b := burst.New(8)
	defer b.Release()
	for {
		if err := rx.Recv(ctx, b); err != nil {
			return err
		}
		for i := range b.Len() {
			x := reorder.Of(b, i)
			if x == nil {
				continue // a packet of no plan
			}
			elements, err := read(b, i)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "batch %d: %d of %d packets, %v:", x.ID, x.Packets, x.PerBatch, x.Tensor())
			for k := 0; k < 4 && 2*k+2 <= len(elements); k++ {
				fmt.Fprintf(out, " %g", half(binary.LittleEndian.Uint16(elements[2*k:])))
			}
			fmt.Fprintln(out)
		}
		b.Release()
	}
}

// read is the bytes of packet i, copied where the processor does not reach them.
func read(b *burst.Burst, i int) ([]byte, error) {
	if bytes := b.Bytes(i, 0); bytes != nil {
		return bytes, nil
	}
	from := b.Segment(i, 0)
	to, err := mem.Alloc(mem.Options{Size: int(from.Len)}) // one for all batches would be faster
	if err != nil {
		return nil, err
	}
	defer to.Close()
	move, err := from.Region.Mover().Load(to.All(), from.Off)
	if err == nil {
		err = move.Wait(context.Background()) // the copy writes to the memory until then
	}
	return append([]byte(nil), to.All().Bytes()...), err
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
