package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/puzpuzpuz/xsync/v4"
)

// RingOptions describe a run of Ring.
type RingOptions struct {
	Conditions
	Bursts []int // items per put and get; nil: 1, 8, 32, 256
	Pairs  int   // of each comparison; 0: paired.MinPairs
	Items  int   // that pass through the ring in one sample; 0: 200,000
}

// queue is a ring or what one would use instead: puts and gets return how many items they moved.
type queue struct {
	put func([]uint64) int
	get func([]uint64) int
}

const ringCapacity = 1024

// ringRivals are what one would use instead of each ring.
var ringRivals = []struct {
	ours   string
	theirs []string
}{
	{"ring.SPSC", []string{"channel", "xsync.SPSC", "xsync.MPMC"}},
	{"ring.MPSC", []string{"channel", "xsync.MPMC"}},
	{"ring.MPMC", []string{"channel", "xsync.MPMC"}},
	{"ring.Messages", []string{"channel"}},
}

// Ring compares the rings of package ring with a Go channel and with the queues of xsync, one
// goroutine putting and one getting, as interleaved pairs. Every item is counted and checked: sums
// and, as there is one producer, the order.
func Ring(ctx context.Context, o RingOptions) (*paired.Report, error) {
	if o.Bursts == nil {
		o.Bursts = []int{1, 8, 32, 256}
	}
	if o.Pairs == 0 {
		o.Pairs = paired.MinPairs
	}
	if o.Items == 0 {
		o.Items = 200_000
	}
	r := o.Begin("ring", fmt.Sprintf("one producer and one consumer goroutine pass %d items of 8 bytes through a "+
		"ring of %d; "+
		"the consumer checks every item and its order", o.Items, ringCapacity),
		"a burst is what one call puts or gets; a queue that takes one item at a time is called once per item")
	r.Method.Pairs = o.Pairs
	for _, v := range ringRivals {
		for _, burst := range o.Bursts {
			p := paired.Plan{Name: fmt.Sprintf("%s, bursts of %d", v.ours, burst), Unit: paired.MopsPerSec,
				Pairs: o.Pairs, Margin: partsMargin,
				Ours: o.contender(v.ours, burst)}
			for _, name := range v.theirs {
				p.Theirs = append(p.Theirs, o.contender(name, burst))
			}
			o.Progress.Say("%s", p.Name)
			if err := r.Measure(ctx, p, nil); err != nil {
				return r.End(err)
			}
		}
	}
	return r.End(nil)
}

func (o *RingOptions) contender(name string, burst int) paired.Contender {
	return paired.Contender{Name: name, Run: func(context.Context) (paired.Sample, error) {
		q, free, err := newQueue(name)
		if err != nil {
			return paired.Sample{}, err
		}
		defer free()
		d, err := pass(q, burst, o.Items)
		return paired.Sample{Value: float64(o.Items) / d.Seconds() / 1e6, Verified: 8 * uint64(o.Items)}, err
	}}
}

// pass sends items from one goroutine to another and returns how long that took.
func pass(q queue, burst, items int) (time.Duration, error) {
	var wg sync.WaitGroup
	start := time.Now()
	wg.Go(func() {
		batch := make([]uint64, burst)
		for sent := 0; sent < items; {
			n := min(burst, items-sent)
			for i := range n {
				batch[i] = uint64(sent + i)
			}
			for k := 0; k < n; {
				m := q.put(batch[k:n])
				if m == 0 {
					runtime.Gosched()
				}
				k += m
			}
			sent += n
		}
	})
	batch, wrong := make([]uint64, burst), -1
	for got := 0; got < items; {
		n := q.get(batch)
		if n == 0 {
			runtime.Gosched()
		}
		for i, v := range batch[:n] {
			if v != uint64(got+i) && wrong < 0 {
				wrong = got + i
			}
		}
		got += n
	}
	d := time.Since(start)
	wg.Wait()
	if wrong >= 0 {
		return 0, fmt.Errorf("%w: item %d is not in its place", paired.ErrFailed, wrong)
	}
	return d, nil
}

// single makes a queue that takes one item at a time look like one that takes bursts.
func single(put func(uint64) bool, get func() (uint64, bool)) queue {
	return queue{
		put: func(b []uint64) int {
			for i, v := range b {
				if !put(v) {
					return i
				}
			}
			return len(b)
		},
		get: func(b []uint64) int {
			for i := range b {
				v, ok := get()
				if !ok {
					return i
				}
				b[i] = v
			}
			return len(b)
		},
	}
}

func newQueue(name string) (q queue, free func(), err error) {
	free = func() {}
	switch name {
	case "ring.SPSC":
		r, err := ring.NewSPSC[uint64](ringCapacity)
		return queue{r.PutBatch, r.GetBatch}, free, err
	case "ring.MPSC":
		r, err := ring.NewMPSC[uint64](ringCapacity)
		return queue{r.PutBatch, r.GetBatch}, free, err
	case "ring.MPMC":
		r, err := ring.NewMPMC[uint64](ringCapacity)
		return queue{r.PutBatch, r.GetBatch}, free, err
	case "ring.Messages":
		return messageQueue()
	case "xsync.SPSC":
		x := xsync.NewSPSCQueue[uint64](ringCapacity)
		return single(x.TryEnqueue, x.TryDequeue), free, nil
	case "xsync.MPMC":
		x := xsync.NewMPMCQueue[uint64](ringCapacity)
		return single(x.TryEnqueue, x.TryDequeue), free, nil
	case "channel":
		// A blocking channel is the usual one: the runtime parks the goroutine that has to wait.
		c := make(chan uint64, ringCapacity)
		return queue{
			put: func(b []uint64) int {
				for _, v := range b {
					c <- v
				}
				return len(b)
			},
			get: func(b []uint64) int {
				b[0] = <-c
				n := 1
				for ; n < len(b); n++ {
					select {
					case v := <-c:
						b[n] = v
						continue
					default:
					}
					break
				}
				return n
			},
		}, free, nil
	}
	return queue{}, free, fmt.Errorf("bench: unknown queue %q", name)
}

// messageQueue is a ring of messages in shared memory, which checks what it reads as if the other
// side were hostile.
func messageQueue() (queue, func(), error) {
	r, err := mem.Alloc(mem.Options{Name: "bench ring", Size: ring.MessagesSize(ringCapacity)})
	if err != nil {
		return queue{}, func() {}, err
	}
	b := r.All().Bytes()[:ring.MessagesSize(ringCapacity)]
	w, err := ring.NewMessagesWriter(b)
	if err != nil {
		r.Close()
		return queue{}, func() {}, err
	}
	rd, err := ring.NewMessagesReader(b)
	if err != nil {
		r.Close()
		return queue{}, func() {}, err
	}
	var m ring.Message
	return single(
		func(v uint64) bool { ok, err := w.Put(1, v, 0, 0, 0, nil); return ok && err == nil },
		func() (uint64, bool) { ok, err := rd.Get(&m); return m.Words[0], ok && err == nil },
	), func() { r.Close() }, nil
}
