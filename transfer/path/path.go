package path

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/mem"
)

// MaxMessage is the largest message in bytes that a notification can carry on every path.
const MaxMessage = 1024

// Errors that every path uses; match them with errors.Is. An Event or a call wraps them with what
// happened where.
var (
	// Post accepted fewer operations than given: Poll, then post the rest
	ErrFull = errors.New("window full")
	// the peer died, the connection was cut, or the path was closed
	ErrDown        = errors.New("path is down")
	ErrProtocol    = errors.New("protocol violation")     // the peer sent what the protocol forbids; the path is down
	ErrCanceled    = errors.New("operation canceled")     // by Cancel
	ErrIntegrity   = errors.New("integrity check failed") // bytes were damaged on the way
	ErrKey         = errors.New("unknown export key")     // forged, foreign, or of another node
	ErrRevoked     = errors.New("export revoked")
	ErrRights      = errors.New("export does not permit this")
	ErrBounds      = errors.New("outside the export")
	ErrTooLarge    = errors.New("message too large")
	ErrUnreachable = errors.New("path cannot reach this memory") // for example a part of a region over shared memory
	ErrUnavailable = errors.New("path not available")            // missing on this machine or between these peers
)

// OpKind is what an operation does.
type OpKind uint8

const (
	// Put copies local spans to the peer's export.
	Put OpKind = iota + 1
	// Get copies from the peer's export to local spans.
	Get
	// Notify only delivers Imm and Msg to the peer.
	Notify
	// Fence concerns an export of this node that was revoked (Op.Key): it completes when nothing
	// that came by this path can read or write that memory any more.
	Fence
)

// Copy is one block of a Put or Get: local bytes and where they are in the peer's export. Its
// length is Local.Len.
type Copy struct {
	Local     mem.Span
	Key       Key    // the peer's export
	RemoteOff uint64 // bytes from the start of the export
}

// Op is one operation. The poster keeps leases on the local regions until EventDone; Copies belongs
// to the path until then and is not changed by it; Msg is copied by Post.
type Op struct {
	Kind   OpKind
	Bulk   bool   // a part of something large, whatever its own size: nothing that is small should wait for it
	Notify bool   // Put and Get: tell the peer when done, with Imm and Msg (Get: when its memory has been read)
	Key    Key    // Fence: the export of this node
	Token  uint64 // the poster's; comes back in EventDone
	Imm    uint64 // delivered with the notification
	Msg    []byte // delivered with the notification, at most MaxMessage bytes
	Copies []Copy
}

// Bytes is the sum of the blocks' lengths.
func (o *Op) Bytes() uint64 {
	var n uint64
	for i := range o.Copies {
		n += o.Copies[i].Local.Len
	}
	return n
}

// EventKind says what an event reports.
type EventKind uint8

const (
	EventDone   EventKind = iota + 1 // an operation of ours ended: Token, Bytes, Err, Proof
	EventNotify                      // the peer notified us: Imm, Msg, Bytes (of its Put or Get)
	EventDown                        // the path is down for the reason in Err; the last event
)

// Event is what Poll reports. Msg is valid until the next call of Poll.
type Event struct {
	Kind  EventKind
	Proof Proof
	Token uint64
	Imm   uint64
	Bytes uint64
	Msg   []byte
	Err   error
}

// Proof says by what the integrity of a completed operation was checked.
type Proof uint8

const (
	ProofNone   Proof = iota // the transport's own checks only (TCP's 16-bit checksum)
	ProofMemory              // the same memory: there was nothing to damage on the way
	ProofCRC32C              // CRC32C (RFC 3720) over each frame, checked by the side that placed the bytes
	ProofICRC                // RDMA's invariant CRC, checked by the adapter
	// the tag of an authenticated cipher over each record, checked by the side that placed the
	// bytes
	ProofAEAD
)

var proofNames = [...]string{"none", "same memory", "crc32c", "icrc", "aead"}

func (p Proof) String() string {
	if int(p) < len(proofNames) {
		return proofNames[p]
	}
	return fmt.Sprintf("proof(%d)", uint8(p))
}

// Security says what keeps others from reading or changing the bytes on a path. The levels are
// ordered: a transfer may ask for one, and takes no path below it.
type Security uint8

const (
	SecurityNone Security = iota // hosts on the way can read and change them
	SecurityHost                 // they do not leave this machine
	// encrypted and authenticated with keys that only the two ends of the session have
	SecurityEncrypted
)

var securityNames = [...]string{"none", "same host", "encrypted"}

func (s Security) String() string {
	if int(s) < len(securityNames) {
		return securityNames[s]
	}
	return fmt.Sprintf("security(%d)", uint8(s))
}

// Path is a way between this node and one peer. See the package comment for who may call what.
type Path interface {
	// Name is the driver's name: "shm", "tcp".
	Name() string

	Capabilities() Capabilities

	// Post hands over operations in order and returns how many were accepted. Fewer than len(ops)
	// come with an error: ErrFull when the window is used up, or what is wrong with operation n
	// (nothing of it was done). Small operations may be done before Post returns; their events
	// still come by Poll. Post does not block and does not allocate.
	Post(ops []Op) (n int, err error)

	// Poll makes progress for both sides and fills events; it returns how many. It does not block
	// and does not allocate. One call does a bounded amount of work, so that its owner can serve
	// others. After events the owner polls or arms again before it waits for anything else:
	// acknowledgements may still be on their way out.
	Poll(events []Event) int

	// Arm prepares for sleeping: after Arm returned false, FD becomes readable when Poll has
	// something to do, also when a Post left work behind. Arm returns true when Poll has something
	// to do already.
	Arm() (ready bool)

	// FD is a descriptor for epoll or poll; see Arm. It belongs to the path.
	FD() int

	// Cancel asks to end an operation early; its EventDone comes all the same, with ErrCanceled if
	// bytes were still missing. It returns false when no such operation is outstanding.
	Cancel(token uint64) bool

	// Reaches says whether the path can reach an export as described; the error wraps
	// ErrUnreachable and says why not. It may be called from any goroutine, as Name and
	// Capabilities may.
	Reaches(d Desc) error

	// Stats may be called from any goroutine.
	Stats() Stats

	// Explain says how the path is set up: what was chosen, what was measured, in words for people.
	Explain() []string

	// Close ends the path. When it returns, the peer can write nothing more by it, or the memory it
	// could write is retired (see transfer/path/shm). Outstanding operations complete with ErrDown;
	// Poll still reports them.
	Close() error
}

// Borrower is a path that can show a peer's memory without copying it.
type Borrower interface {
	// Borrow gives a read-only view of n bytes of the peer's export at off. The bytes are the
	// peer's memory itself: they change when the peer writes there. The view is valid until
	// Release. ErrFull means that the export is being attached: Poll and try again.
	Borrow(key Key, off, n uint64) (View, error)
}

// Immediate is a path on which the poster does small operations itself, inside Post. A
// poster that takes their completions there as well wakes no other goroutine for them.
type Immediate interface {
	// PostNow is Post which also fills events with the ends of operations, as Poll would; done is
	// how many. It makes no other progress: a path that is armed stays armed, and what is left,
	// events beyond the room for them included, makes FD readable.
	PostNow(ops []Op, events []Event) (n, done int, err error)
}

// DeviceReacher is a path that gets at memory of devices by itself, where devices, adapters and the
// other side allow it. A path that is none is never given such memory: package transfer stages it.
// Its driver has Traits.Devices. Both methods may be called from any goroutine; their errors wrap
// ErrUnreachable and say why not.
type DeviceReacher interface {
	// ReachesRegion says whether operations of this side may name a local region that the CPU
	// cannot reach.
	ReachesRegion(r *mem.Region) error
	// ReachesDevice says whether operations of this side may name an export of the peer that has
	// Desc.Device.
	ReachesDevice(d Desc) error
}

// View is borrowed memory. Bytes must not be written or used after Release. Copies of the value
// share one release.
type View struct {
	Bytes  []byte
	lender Lender
	handle uint64
}

// Lender is what lent a view: an implementation of Borrower.
type Lender interface {
	// EndView ends the view of that handle. The error wraps mem.ErrReleased when it had ended
	// already; nothing changes then. Any goroutine may call it.
	EndView(handle uint64) error
}

// NewView is for implementations of Borrower. No two views of a lender ever have the same handle.
func NewView(b []byte, by Lender, handle uint64) View { return View{b, by, handle} }

// Release gives the view back. A second Release, of a copy as well, changes nothing and returns an
// error that wraps mem.ErrReleased. Any goroutine may call it. The zero View has nothing to
// release, and no error.
func (v View) Release() error {
	if v.lender == nil {
		return nil
	}
	return v.lender.EndView(v.handle)
}

// Capabilities are fixed when a path is set up.
type Capabilities struct {
	OneSided   bool  // puts and gets are placed without the peer's CPU
	Proof      Proof // of a successful operation
	Security   Security
	Window     int // operations outstanding, each direction
	MaxMessage int // bytes
	// UserCopies and KernelCopies are payload copies per byte that this path makes by design.
	UserCopies, KernelCopies int
}

// Cost orders paths: moving n bytes is expected to take Latency + n/BytesPerSec.
type Cost struct {
	Latency     time.Duration // one small put until its completion
	BytesPerSec float64
	Measured    bool // false: a prior, nothing was measured yet
}

// Time is the expected duration for n bytes.
func (c Cost) Time(n uint64) time.Duration {
	if c.BytesPerSec <= 0 {
		return c.Latency
	}
	return c.Latency + time.Duration(float64(n)/c.BytesPerSec*1e9)
}

// Stats are counters since the path was set up; all of them only grow.
type Stats struct {
	OpsPosted, OpsDone, OpsFailed uint64
	BytesPut, BytesGot            uint64 // completed payload of our operations
	BytesPlaced, BytesServed      uint64 // the peer's: written to, read from our exports by this side
	BytesCopied                   uint64 // payload copied in user space that the design would not need (staging)
	NotifySent, NotifyReceived    uint64
	WindowFull                    uint64 // Post returned ErrFull
	Rejected                      uint64 // references of the peer refused: key, rights, bounds
	Corrupt                       uint64 // frames that failed their checksum
	Syscalls                      uint64 // send and receive calls; 0 where there are none
	Wakeups                       uint64 // doorbells rung to wake the peer
	ZeroCopySends, ZeroCopyCopied uint64 // kernel's MSG_ZEROCOPY completions, and those that were copied after all
	HelpedBytes                   uint64 // copied by the peer's core on our behalf
}

// Carrier is a Path over an adapter that was chosen among several.
type Carrier interface {
	// Carrier says in a few words what carries the bytes: the adapter, its port, and the service
	// that is used, such as "mlx5_0 port 1, RC". It may be called from any goroutine.
	Carrier() string
}
