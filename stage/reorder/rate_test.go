package reorder

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/null"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/packet/burst"
)

// The benchmarks of this file measure whole stages, in rounds in turn with what they are compared
// with: medians.
const (
	rateHead = 64 // bytes in front of a payload; the first four are the sequence number
	ratePer  = 64 // packets of a batch
)

// counting numbers what it receives.
type counting struct {
	engine.Receiver
	next uint32
}

func (n *counting) TryRecv(b *burst.Burst) (int, error) {
	had := b.Len()
	k, err := n.Receiver.TryRecv(b)
	for i := range k {
		binary.BigEndian.PutUint32(b.Bytes(had+i, 0), n.next)
		n.next++
	}
	return k, err
}

// batchesOf is a stage of one plan on a queue.
func batchesOf(b *testing.B, from engine.Receiver, size int) (*Stage, *mem.Pool) {
	b.Helper()
	batches, err := mem.NewPool(mem.PoolOptions{Name: "batches", SlotSize: ratePer * size, Slots: 32})
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(from, engine.StageSpec{Queue: "q"},
		Plan{Flows: []uint32{0}, Sequence: Field{0, 32}, PerBatch: ratePer, Offset: rateHead, Pool: batches})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
		batches.Close()
	})
	return s, batches
}

// drainTo receives until so many packets, or batches that are whole, are there.
func drainTo(b *testing.B, from engine.Receiver, in *burst.Burst, want int, batches bool) {
	for got := 0; got < want; in.Release() {
		n, err := from.TryRecv(in)
		if err != nil {
			b.Fatal(err)
		}
		got += n
		for i := range n {
			if batches && !Of(in, i).Whole() {
				b.Fatalf("batch %d has %d packets", Of(in, i).ID, Of(in, i).Packets)
			}
		}
	}
}

// report reports the medians of two times for a packet, and of their ratios.
func report(b *testing.B, ours, theirs []float64, what string) {
	ratio := make([]float64, len(ours))
	for i := range ours {
		ratio[i] = theirs[i] / ours[i]
	}
	for unit, of := range map[string][]float64{"ns/packet": ours, "ns/" + what: theirs, what + "/packet": ratio} {
		slices.Sort(of)
		b.ReportMetric(of[len(of)/2], unit)
	}
}

// BenchmarkNull is what packages engine/null and reorder take for a packet, beside a copy of its
// payload.
func BenchmarkNull(b *testing.B) {
	for _, size := range []int{1024, 4096, 8192} {
		const packets = 1024
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			port, err := null.New().OpenPort(b.Context(),
				engine.PortSpec{Address: fmt.Sprintf("null://?size=%d", size+rateHead)})
			if err != nil {
				b.Fatal(err)
			}
			defer port.Close()
			pool, err := mem.NewPool(mem.PoolOptions{Name: "in", SlotSize: size + rateHead, Slots: packets})
			if err != nil {
				b.Fatal(err)
			}
			defer pool.Close()
			q, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
			if err != nil {
				b.Fatal(err)
			}
			s, batches := batchesOf(b, &counting{Receiver: q}, size)
			dst, from := batches.Region().All().Bytes(), make([]byte, packets*(size+rateHead))
			in := burst.New(16)
			var ours, theirs []float64
			at := 0
			for range b.N {
				begin := time.Now()
				drainTo(b, s, in, packets/ratePer, true)
				between := time.Now()
				for k := range packets {
					vec.Copy(dst[at*size:][:size], from[k*(size+rateHead)+rateHead:][:size])
					at = (at + 1) % (32 * ratePer)
				}
				end := time.Now()
				ours, theirs = append(ours, float64(between.Sub(begin))/packets),
					append(theirs, float64(end.Sub(between))/packets)
			}
			report(b, ours, theirs, "copy")
			q.Close()
		})
	}
}

// BenchmarkUDP is the time from the first packet that a goroutine sends to the last one that is
// received: in batches, and as they come.
func BenchmarkUDP(b *testing.B) {
	for _, size := range []int{1024, 8192} {
		const packets = 2048
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var queues [2]engine.RxQueue
			var wires [2]net.Conn
			for i := range queues {
				port, err := socket.New().OpenPort(b.Context(),
					engine.PortSpec{Address: "udp://127.0.0.1:0", Options: socket.UDPOptions{ReceiveBuffer: 128 << 20}})
				if err != nil {
					b.Fatal(err)
				}
				defer port.Close()
				pool, err := mem.NewPool(mem.PoolOptions{Name: "in", SlotSize: size + rateHead, Slots: 1024})
				if err != nil {
					b.Fatal(err)
				}
				defer pool.Close()
				if queues[i], err = port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}}); err != nil {
					b.Fatal(err)
				}
				defer queues[i].Close()
				if wires[i], err = net.Dial("udp", strings.TrimPrefix(port.Info().Address, "udp://")); err != nil {
					b.Fatal(err)
				}
				defer wires[i].Close()
			}
			s, _ := batchesOf(b, queues[0], size)
			frame, in := make([]byte, size+rateHead), burst.New(64)
			var took [2][]float64
			next := uint32(0)
			for range b.N {
				for i, w := range wires {
					sent := make(chan error, 1)
					begin := time.Now()
					go func() {
						for k := range packets {
							binary.BigEndian.PutUint32(frame, next+uint32(k))
							if _, err := w.Write(frame); err != nil {
								sent <- err
								return
							}
						}
						sent <- nil
					}()
					if i == 0 {
						drainTo(b, s, in, packets/ratePer, true)
					} else {
						drainTo(b, queues[i], in, packets, false)
					}
					took[i] = append(took[i], float64(time.Since(begin))/packets)
					if err := <-sent; err != nil {
						b.Fatal(err)
					}
				}
				next += packets
			}
			report(b, took[0], took[1], "plain")
		})
	}
}
