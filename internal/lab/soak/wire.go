package soak

import (
	"encoding/binary"
	"time"
)

// workerEnv holds the config of a worker, in JSON. It makes a process one.
const workerEnv = "PENSTOCK_SOAK_WORKER"

// noWorker is for a process that ends at once.
const noWorker = "none"

// config is what a worker gets at its start.
type config struct {
	Name     string   // "w1.3": the third life of worker 1
	Index    int      // which worker
	Peers    []string // addresses of all workers' proxies for sessions with certificates; the own one is not used
	Plain    []string // the same for sessions without, over unix sockets
	Dir      string   // of the run: identities (w0, w1 ...) and downloads that are not complete
	Seed     uint64
	MaxBytes uint64
	Patience time.Duration // until a transfer that does not end counts as lost
	Silence  time.Duration // after which a peer counts as dead
	Data     string        // plan of faults for data connections
	Break    string        // see Options
}

// line is what a worker tells, one line of JSON each on its standard output.
type line struct {
	T     string // what it tells: see below
	Key   string `json:",omitempty"` // of a transfer: worker, life and number
	Node  string `json:",omitempty"` // the node that tells
	To    string `json:",omitempty"` // begin: the node at the other side
	Kind  string `json:",omitempty"` // begin: put, get, push ...
	Bytes uint64 `json:",omitempty"` // begin, heard
	Path  string `json:",omitempty"` // end: the path it took
	Err   string `json:",omitempty"` // end: name of the reason; "" is success
	Text  string `json:",omitempty"` // end with an unknown reason, wrong, closed: words
	Hops  int    `json:",omitempty"` // end: failovers
	Tries int    `json:",omitempty"` // end of a job: attempts after the first
	From  uint64 `json:",omitempty"` // begin of a download: how much of it came to the last life of this worker
	Plain string `json:",omitempty"` // open: the address without certificates

	Sums map[string]uint64 `json:",omitempty"` // closed: what the node counted
}

// Kinds of lines.
const (
	tOpen   = "open"   // Node is up; Text is its address
	tBegin  = "begin"  // a transfer is about to begin
	tEnd    = "end"    // a transfer has ended
	tHeard  = "heard"  // the receiver knows of a transfer; Text says what is wrong with its bytes
	tBorrow = "borrow" // a view was looked at
	tLooked = "looked" // the receiver of a store found all bytes right
	tWrong  = "wrong"  // bytes are not what they must be, or an invariant does not hold
	tClosed = "closed" // Node is closed; Text says what is left over
	tQuiet  = "quiet"  // no transfer of this worker is under way any more
)

// Commands to a worker, one word per line on its standard input. Its end means finish, too.
const (
	cRenew  = "renew"  // close the node when its transfers have ended, and open another
	cLeave  = "leave"  // close the node at once, and open another
	cCut    = "cut"    // cut the data connections
	cStall  = "stall"  // stall the data connections
	cResume = "resume" // end that
	cDeny   = "deny"   // end the sessions of another worker by its certificate, and let it in no more
	cPardon = "pardon" // end that
	cTake   = "take"   // take rights away from all peers
	cGive   = "give"   // end that
	cQuiet  = "quiet"  // begin nothing any more and wait for what is under way
	cFinish = "finish" // close everything and exit
)

// message travels with each transfer, so that the receiver can report it and check it.
type message struct {
	Key    string
	Node   string `json:",omitempty"` // put: of the sender, which wants an acknowledgement
	Kind   string
	Seed   uint64      `json:",omitempty"` // put: of the pattern
	Export string      `json:",omitempty"` // put: where the blocks are
	Blocks [][2]uint64 `json:",omitempty"` // put: offset and length of each
	Ack    string      `json:",omitempty"` // acknowledges that a put was looked at
}

// mix is SplitMix64 (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// fill writes the bytes of a seed: every 8 bytes are different.
func fill(b []byte, seed uint64) {
	i := seed
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, mix(i))
		i++
	}
	for k, x := 0, mix(i); k < len(b); k++ {
		b[k] = byte(x >> (8 * k))
	}
}

// verify returns the offset of the first byte that fill would not have written, or -1.
func verify(b []byte, seed uint64) int {
	i, off := seed, 0
	for ; len(b)-off >= 8; off += 8 {
		if binary.LittleEndian.Uint64(b[off:]) != mix(i) {
			break
		}
		i++
	}
	x := mix(i)
	for k := range min(8, len(b)-off) {
		if b[off+k] != byte(x>>(8*k)) {
			return off + k
		}
	}
	return -1
}

// labelSize is the length in bytes of the label at the start of a tensor: its length (1) and the
// key that seeds the rest.
const labelSize = 64

// label writes a tensor's bytes: they say themselves what they must be.
func label(b []byte, key string) {
	clear(b[:labelSize])
	b[0] = byte(copy(b[1:labelSize], key))
	fill(b[labelSize:], seedOf(key))
}

// readLabel returns the key and the offset of the first wrong byte, or -1.
func readLabel(b []byte) (string, int) {
	if len(b) < labelSize || int(b[0]) >= labelSize {
		return "", 0
	}
	key := string(b[1 : 1+b[0]])
	if i := verify(b[labelSize:], seedOf(key)); i >= 0 {
		return key, labelSize + i
	}
	return key, -1
}

func seedOf(key string) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range []byte(key) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return mix(h)
}
