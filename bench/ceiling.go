package bench

import (
	"runtime"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
)

const (
	// beyondCache is the size of an operation from which its ceiling is enforced: source and
	// destination together are larger than the last-level caches of the servers that we know. Below
	// it a figure says how warm they were.
	beyondCache = 128 << 20
	// CopyCeilingMethod says how, for the report.
	CopyCeilingMethod = "two cores copy memory of that size and kind"
)

// CopyCeilingHolds reports whether a figure above the ceiling of this size fails its row.
func CopyCeilingHolds(size uint64) bool { return size >= beyondCache }

// CopyCeiling copies memory with two cores and nothing else: what a put that both processes' cores
// share cannot exceed. It is measured between the samples that it bounds, on memory of the same
// kind and size.
type CopyCeiling struct {
	src, dst *mem.Region
	b        uint64
	go2      chan int // asks the helper for a copy of its half, this many times
	done     chan struct{}
	pin      bool
}

// NewCopyCeiling allocates twice size bytes, in huge pages with huge, and starts the second core's
// goroutine; with pin both keep to their processors. The caller closes it.
func NewCopyCeiling(size uint64, huge, pin bool) (*CopyCeiling, error) {
	c := &CopyCeiling{b: size, go2: make(chan int), done: make(chan struct{}), pin: pin}
	var err error
	if c.src, err = Allocate("ceiling source", size, huge); err != nil {
		return nil, err
	}
	if c.dst, err = Allocate("ceiling destination", size, huge); err != nil {
		c.src.Close()
		return nil, err
	}
	// Pages of a memfd exist once they are populated; writing makes them ordinary ones.
	s, d := c.src.All().Bytes(), c.dst.All().Bytes()
	for i := range s {
		s[i], d[i] = 1, 2
	}
	go func() {
		if pin {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if sys.PinThread(1) == nil {
				defer sys.UnpinThread()
			}
		}
		for n := range c.go2 {
			c.copyHalf(1, n)
			c.done <- struct{}{}
		}
		close(c.done)
	}()
	return c, nil
}

// Close ends the goroutine and gives the memory back.
func (c *CopyCeiling) Close() {
	close(c.go2)
	<-c.done
	c.src.Close()
	c.dst.Close()
}

// ceilingChunk is what one core copies before it skips what the other one copies. Two halves that
// are a power of two apart would meet in the same sets of the caches and banks of the memory, and
// be a lower ceiling than there is.
const ceilingChunk = 512 << 10

func (c *CopyCeiling) copyHalf(half, n int) {
	s, d := c.src.All().Bytes()[:c.b], c.dst.All().Bytes()[:c.b]
	chunk := uint64(ceilingChunk)
	if c.b < 2*chunk {
		chunk = max(c.b/2, 1)
		if chunk > vec.PartAlign {
			chunk &^= vec.PartAlign - 1
		}
	}
	for range n {
		for at := uint64(half) * chunk; at < c.b; at += 2 * chunk {
			end := min(at+chunk, c.b)
			vec.CopyPart(d[at:end], s[at:end], int(c.b))
		}
	}
}

// Sample copies everything n times with both cores and returns GB/s. It is the better of both cores
// and one: for small sizes starting a second core costs more than it brings.
func (c *CopyCeiling) Sample(n int) (float64, error) {
	var one, two time.Duration
	err := pinned(c.pin, func() error {
		// Once for the caches and the second core, which what ran before has left to something
		// else.
		c.go2 <- 1
		c.copyHalf(0, 1)
		<-c.done
		t := time.Now()
		c.go2 <- n
		c.copyHalf(0, n)
		<-c.done
		two = time.Since(t)
		t = time.Now()
		s, d := c.src.All().Bytes()[:c.b], c.dst.All().Bytes()[:c.b]
		for range max(1, n/2) {
			vec.Copy(d, s)
		}
		one = time.Since(t)
		return nil
	})
	return max(GBps(c.b*uint64(n), two), GBps(c.b*uint64(max(1, n/2)), one)), err
}
