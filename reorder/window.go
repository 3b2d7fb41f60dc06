package reorder

// verdict is what a window says of a packet.
type verdict uint8

const (
	fits  verdict = iota // its batch is in the window, which may have moved
	late                 // its batch has left
	stray                // far away
	far                  // so are those before it: the window begins anew
)

const (
	behind = 4 // windows: how far behind the window a packet is late
	inARow = 8 // strays that have the window go to them
)

// window says which batches are open: those from base on, size of them. Numbers in packets begin again after modulus; ids of batches do not.
type window struct {
	size, modulus int64
	base          int64 // the lowest id that may be open
	newest        int64 // the highest id that was seen
	first         int64 // the lowest id that is expected: batches below it are not lost
	given         bool  // a batch has left: base does not go down any more
	begun         bool

	strays int
	near   int64 // id of the last stray
}

func newWindow(size int, modulus int64) window {
	return window{size: max(min(int64(size), modulus/2), 1), modulus: modulus}
}

// see takes in a packet of batch number n, and returns its id. Then batches below low are to leave; behind far all are, and begin is next.
func (w *window) see(n int64) (id int64, v verdict) {
	if !w.begun {
		w.begin(n)
		return n, fits
	}
	d := (n - w.newest) % w.modulus
	if d < 0 {
		d += w.modulus
	}
	if d > w.modulus/2 {
		d -= w.modulus
	}
	id = w.newest + d
	switch {
	case id > w.newest && id <= w.newest+w.size:
		w.newest = id
	case id >= w.base && id <= w.newest:
	case !w.given && id < w.base && id > w.newest-w.size: // the first that came was not the first that was sent
		w.base, w.first = id, id
	case id < w.base && id >= w.base-behind*w.size:
		return id, late
	default:
		if w.strays == 0 || id-w.near > w.size || w.near-id > w.size {
			w.strays = 0
		}
		w.near = id
		if w.strays++; w.strays < inARow {
			return id, stray
		}
		return id, far
	}
	w.strays = 0
	return id, fits
}

// low is the lowest id that there is room for.
func (w *window) low() int64 { return max(w.base, w.newest-w.size+1) }

// begin has the window begin at id.
func (w *window) begin(id int64) {
	w.base, w.newest, w.first = id, id, id
	w.begun, w.given, w.strays = true, false, 0
}

// pass takes in that batches below id have left, or never came.
func (w *window) pass(id int64) {
	w.given = true
	w.base = id
	w.newest = max(w.newest, id-1)
}
