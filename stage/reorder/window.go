package reorder

// verdict is what a window says of a packet.
type verdict uint8

const (
	fits  verdict = iota // its batch is in the window, which may have moved
	late                 // its batch has left
	stray                // far away
	far                  // so are those before it: the window restarts
)

const (
	behind = 4 // windows: how far behind the window a packet is late
	inARow = 8 // strays that have the window go to them
)

// window says which batches are open: those from base on, size of them. It counts positions:
// packets where the number of a batch follows from the sequence number, else batches. Numbers in
// packets begin again after modulus positions; positions, and ids of batches, do not. A number is
// the position that is nearest to the highest one that was seen.
type window struct {
	size, modulus int64
	shift         int   // of a position, to the id of its batch
	base          int64 // the lowest id that may be open
	newest        int64 // the highest position that was seen
	first         int64 // the lowest id that is expected: batches below it are not lost
	given         bool  // a batch has left: base does not go down any more
	begun         bool

	strays int
	near   int64 // id of the last stray
}

// reach is how many batches can be open: those of the positions that a number can mean, up to the
// highest one that was seen.
func reach(modulus int64, shift int) int64 { return (modulus/2-2)>>shift + 2 }

// see takes in a packet with number n, and returns its position. Then batches below low are to
// leave; behind far all are, and begin is next.
func (w *window) see(n int64) (at int64, v verdict) {
	if !w.begun {
		w.begin(n)
		return n, fits
	}
	d := (n - w.newest) & (w.modulus - 1)
	if d > w.modulus/2 {
		d -= w.modulus
	}
	at = w.newest + d
	id, last := at>>w.shift, w.last()
	switch {
	case id > last && id <= last+w.size:
	case id >= w.base && id <= last:
	case !w.given && id < w.base && id > last-w.size: // the first that came was not the first that was sent
		w.base, w.first = id, id
	case id < w.base && id >= w.base-behind*w.size:
		w.newest = max(w.newest, at) // of a batch that has left before it was whole
		return at, late
	default:
		if w.strays == 0 || id-w.near > w.size || w.near-id > w.size {
			w.strays = 0
		}
		w.near = id
		if w.strays++; w.strays < inARow {
			return at, stray
		}
		return at, far
	}
	w.newest = max(w.newest, at)
	w.strays = 0
	return at, fits
}

// clear reports whether every number of batch id means that batch, also when more of its packets
// have come.
func (w *window) clear(id int64) bool {
	return w.modulus>>w.shift > 1 && id<<w.shift > w.newest-w.modulus/2
}

// saw takes in a packet of batch id, for which clear holds, and its place there.
func (w *window) saw(id int64, place int) {
	w.newest = max(w.newest, id<<w.shift+int64(place)&(1<<w.shift-1))
	w.strays = 0
}

// last is the id of the newest batch.
func (w *window) last() int64 { return w.newest >> w.shift }

// low is the lowest id that there is room for.
func (w *window) low() int64 { return max(w.base, w.last()-w.size+1) }

// begin has the window begin at the batch of a position.
func (w *window) begin(at int64) {
	w.newest = at
	w.base, w.first = w.last(), w.last()
	w.begun, w.given, w.strays = true, false, 0
}

// pass takes in that batches below id have left, or never came.
func (w *window) pass(id int64) { w.given, w.base = true, id }
