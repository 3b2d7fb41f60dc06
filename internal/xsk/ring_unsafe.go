package xsk

import (
	"sync/atomic"
	"unsafe"

	"github.com/penstock-io/penstock/internal/sys"
)

// entries is a ring's memory as a slice: from here on the language itself keeps every access
// inside.
func entries[T Entry](mapped []byte, n int, o sys.XDPRingOffset) (words, []T, error) {
	var t T
	if err := layout(len(mapped), n, int(unsafe.Sizeof(t)), o); err != nil {
		return words{}, nil, err
	}
	word := func(off uint64) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mapped[off])) }
	return words{word(o.Producer), word(o.Consumer), word(o.Flags)},
		unsafe.Slice((*T)(unsafe.Pointer(&mapped[o.Desc])), n), nil
}

// open makes p the producer of a ring in mapped memory, where its indices are now.
func (p *Producer[T]) open(mapped []byte, n int, o sys.XDPRingOffset) error {
	w, d, err := entries[T](mapped, n, o)
	if err != nil {
		return err
	}
	p.words, p.desc, p.mask = w, d, uint32(n-1)
	p.next, p.seen = w.producer.Load(), w.consumer.Load()
	return nil
}

// open makes c the consumer of a ring in mapped memory, where its indices are now.
func (c *Consumer[T]) open(mapped []byte, n int, o sys.XDPRingOffset) error {
	w, d, err := entries[T](mapped, n, o)
	if err != nil {
		return err
	}
	c.words, c.desc, c.mask = w, d, uint32(n-1)
	c.next, c.seen = w.consumer.Load(), w.producer.Load()
	return nil
}

// shut takes the memory away: from now on the ring is empty and has no room.
func (p *Producer[T]) shut() {
	p.words, p.desc, p.mask, p.next, p.seen = nowords(), nil, 0, 0, 0
}

func (c *Consumer[T]) shut() {
	c.words, c.desc, c.mask, c.next, c.seen = nowords(), nil, 0, 0, 0
}

// nowords are the words of a ring that has no memory.
func nowords() words { return words{new(atomic.Uint32), new(atomic.Uint32), new(atomic.Uint32)} }

// start is the address of b's first byte.
func start(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
