package sections

// window is how far behind the highest number of a sequence a packet may be and still be told from
// one that came twice.
const window = 1 << 20

// arrival is what a number says of its packet.
type arrival uint8

const (
	fresh  arrival = iota
	late           // fresh, and a higher one came before
	twice          // it came before
	beyond         // it is further behind than the window, or before the first
)

// numbers keeps account of the sequence numbers of one sender, which has 32 bits for them and
// begins again after the last. Its memory is bounded: one bit for each number of the window.
type numbers struct {
	begun bool
	open  bool   // beginAt was not called: the first number is the lowest that comes
	low   uint64 // the lowest number that belongs to it
	next  uint64 // one above the highest that came
	seen  []uint64

	unique uint64 // different numbers that came
	late   uint64 // of them, those behind a higher one
	twice  uint64
	beyond uint64
}

// beginAt says which number is the first. Without it that is the lowest that comes.
func (k *numbers) beginAt(first uint32) {
	k.begun, k.low, k.next = true, uint64(first), uint64(first)
}

// enter notes a number that came.
func (k *numbers) enter(seq uint32) arrival {
	if k.seen == nil {
		k.seen = make([]uint64, window/64)
	}
	if !k.begun {
		k.begun, k.open, k.low = true, true, 1<<32|uint64(seq) // there are numbers before it
		k.next = k.low
	}
	// Which of the numbers with these lower 32 bits is nearest to the one that is expected.
	n := k.next&^0xffffffff | uint64(seq)
	switch half := uint64(1) << 31; {
	case n >= k.next+half && n >= 1<<32:
		n -= 1 << 32
	case n+half < k.next:
		n += 1 << 32
	}
	switch {
	case n >= k.next:
		k.forget(k.next, n)
		k.next = n + 1
		k.set(n)
		k.unique++
		return fresh
	case n < k.low && !k.open || k.next-n > window:
		k.beyond++
		return beyond
	case k.has(n):
		k.twice++
		return twice
	}
	k.set(n)
	k.low = min(k.low, n)
	k.unique++
	k.late++
	return late
}

// forget clears the places of the numbers from a to b, both included, which held those of a window
// before.
func (k *numbers) forget(a, b uint64) {
	if b-a >= window {
		clear(k.seen)
		return
	}
	for n := a; n <= b; {
		i := n % window
		if i&63 == 0 && b-n >= 63 {
			k.seen[i/64] = 0
			n += 64
			continue
		}
		k.seen[i/64] &^= 1 << (i & 63)
		n++
	}
}

func (k *numbers) set(n uint64) { k.seen[n%window/64] |= 1 << (n & 63) }

func (k *numbers) has(n uint64) bool { return k.seen[n%window/64]>>(n&63)&1 != 0 }

// gaps is how many numbers below the highest did not come.
func (k *numbers) gaps() uint64 { return k.next - k.low - k.unique }
