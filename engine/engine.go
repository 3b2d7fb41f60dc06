package engine

import (
	"context"
	"net/netip"
	"strconv"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// Engine opens ports of one kind. Its methods may be called from any goroutine.
type Engine interface {
	// Name is the word that chooses it in a configuration: "sim", "socket".
	Name() string
	// Available says whether it can run here: nil, or an error that wraps ErrUnavailable or
	// ErrNotBuilt and says what is missing and how to get it.
	Available() error
	// Capabilities are the most that its ports can do; each port has its own.
	Capabilities() Capabilities
	// OpenPort opens a port. The context bounds the opening only.
	OpenPort(ctx context.Context, spec PortSpec) (Port, error)
}

// PortSpec says which port to open. It is inert.
type PortSpec struct {
	Name    string // for messages and statistics; "" becomes Address
	Address string // what the engine opens: an interface, a URL such as udp://[::]:5000, a port of a network
	// MTU is the largest packet in bytes that the port must carry, L3 and up; 0 leaves what is
	// there.
	MTU int
	// Isolated says that only packets that a rule matches belong to this port, and that the rest
	// stays with the kernel. Without it the port takes everything, and what no rule matches goes to
	// its first receive queue.
	Isolated bool
	// RxQueues and TxQueues are how many queues will be added, 0 where that is not known. Devices
	// whose number of queues is fixed when they start (DPDK) wait for that many; without it they
	// stop for a moment with each queue that is added.
	RxQueues, TxQueues int
	// Options are the engine's own, a struct of its package; nil means its defaults.
	Options any
}

// Port is an open port. Its methods may be called from any goroutine.
type Port interface {
	Name() string
	Info() PortInfo
	Capabilities() Capabilities

	// AddRxQueue and AddTxQueue add a queue to the running port. An id that is in use is ErrExists.
	AddRxQueue(spec RxSpec) (RxQueue, error)
	AddTxQueue(spec TxSpec) (TxQueue, error)

	// Rules is the table of steering rules, nil where Capabilities.Rules is false.
	Rules() Rules

	// Stats fills s with the port's own counts, and with the sums over its queues, also those that
	// were closed.
	Stats(s *PortStats)

	// Close closes the queues and the port. Bursts that are out stay valid, and go back when they
	// are released. Closing again does nothing and returns nil, which holds for queues as well.
	Close() error
}

// PortInfo is what is known of a port.
type PortInfo struct {
	Engine  string
	Address string // as opened
	Device  string // the interface, "" where there is none
	MAC     packet.MAC
	IPs     []netip.Prefix
	MTU     int // bytes, L3 and up
	Up      bool
	Speed   uint64 // bits per second, 0 where unknown
	NUMA    int    // node of the device, -1 where unknown
}

// Capabilities say what an engine or a port can do.
type Capabilities struct {
	// Frames says that packets are whole Ethernet frames; otherwise they are payloads of datagrams
	// or pieces of a byte stream.
	Frames bool
	// Stream says that a packet is a piece of a byte stream, whose borders mean nothing.
	Stream bool
	// Connections says that packets carry connection ids, see burst.Burst.Conn.
	Connections bool
	RxQueues    int // at most; 0 for none
	TxQueues    int
	// RxQueuesHint says what makes them more, "" where nothing does. RxNeeded says why a port that
	// sends has a receive queue too; "" where it need not.
	RxQueuesHint, RxNeeded string
	// RxDepth is the greatest Depth of a receive queue, 0 for no limit of the engine's own;
	// RxDepthHint says what makes it greater.
	RxDepth     int
	RxDepthHint string
	// Rules says that the port steers by rules; RulesIn names who does it ("software", "XDP
	// program", "NIC").
	Rules   bool
	RulesIn string
	// Steering is what rules may say, nil where the engine does not tell.
	Steering *flow.Capabilities
	// Split is header/data split: headers and payload in memory of their own.
	Split bool
	// Chains says that queues send packets of several segments, and receive such packets, in one
	// segment or several.
	Chains bool
	// Timestamps says that receive times are taken in software, HardwareTime by the NIC.
	Timestamps, HardwareTime bool
	// Hash says that packets have a receive hash, and Types that they have a packet type: see
	// burst.Burst.Hash and Type. Ports without either may still give them to some packets.
	Hash, Types bool
	// Pacing is a rate limit for each transmit queue. SendAt is sending at a given time; SendAtIn
	// names who waits ("software", "qdisc etf").
	Pacing, SendAt bool
	SendAtIn       string
	// TxChecksum and TxSegmentation say who computes the checksums that packets ask for
	// (burst.Burst.Ask), and who cuts packets with a segment size: "device", "kernel" or
	// "software"; "" where the port does not look at requests. Over a byte stream nothing is cut.
	TxChecksum, TxSegmentation string
	// ZeroCopyForward says that Forward copies nothing where both queues use the same memory.
	ZeroCopyForward bool
	// Memory are the kinds of memory that queues take, MemoryUse what they do with it (PlanMemory).
	Memory    []mem.Kind
	MemoryUse MemoryUse
	// Pools says whether receive queues take the caller's pools; PoolsWhy says in a sentence why
	// not, or what a queue without pools lends.
	Pools    PoolUse
	PoolsWhy string
	// MinSlot is the least size of a slot to receive whole packets into. Strides are the distances
	// from slot to slot that pools must have, nil for any; PoolsWhy says why.
	MinSlot int
	Strides []int
	// Lossless says that a receiver without room stops its senders, and loses nothing for lack of
	// memory: what waits for it holds descriptors of the sender's queue.
	Lossless bool
	// ExactDrops says that every lost packet is attributed: Unattributed stays 0.
	ExactDrops bool
	// MaxPacket is the largest packet in bytes as it lies in memory, 0 for no limit of the engine's
	// own.
	MaxPacket int
	// Notes say why something is not there, a line each.
	Notes []string
}

// DeviceReacher is a Port whose Capabilities.Memory has mem.Device, but whose card does not reach
// all such memory, or does so on some machines.
type DeviceReacher interface {
	// ReachesRegion is nil where queues take pools in that region; else the error wraps
	// ErrUnsupported or ErrUnavailable and says what is missing. Any goroutine may ask.
	ReachesRegion(r *mem.Region) error
}

// Connector is a Port whose connections begin and end.
type Connector interface {
	// ConnIDs are the connections that are there, see burst.Burst.Conn.
	ConnIDs() []uint32
	// WaitConnected waits until there is one. The error is why there will be none, or that of the
	// context.
	WaitConnected(ctx context.Context) error
}

// Counted is a Port with counts besides those of PortStats.
type Counted interface {
	// Families are the counts for exporters, of a port that its user calls name.
	Families(name string) []metrics.Family
}

// QueueID says which number a queue gets. The zero value is the lowest that is free.
type QueueID struct{ next int } // the number and 1

// Queue is the QueueID of a number, 0 or more.
func Queue(number int) QueueID { return QueueID{number + 1} }

// Number is the number, -1 for the lowest that is free.
func (q QueueID) Number() int { return q.next - 1 }

// String is the number, or says that it is the next one.
func (q QueueID) String() string {
	if q.next == 0 {
		return "next"
	}
	return strconv.Itoa(q.next - 1)
}

// RxSpec describes a receive queue.
type RxSpec struct {
	Name string
	ID   QueueID // steering rules name it; the zero value is the lowest that is free
	// Pools is the memory: one pool for whole packets, or two for header/data split, headers first.
	Pools []*mem.Pool
	// SplitAt is the length of the header segment in bytes with two pools; 0 splits behind the L4
	// header.
	SplitAt int
	// Depth is the number of packets that wait for the application, at least; 0 means 1024. What
	// comes on top is dropped as DropQueueFull, or by the kernel or card that holds the packets
	// (DropKernel, DropNIC).
	Depth int
	// Timestamps asks for receive times; HardwareTime for those of the NIC.
	Timestamps, HardwareTime bool
	// Conn binds the queue to one connection: only its bytes come here. 0 for any.
	Conn uint32
	// Options are the engine's own for a queue; nil means its defaults.
	Options any
}

// TxSpec describes a transmit queue.
type TxSpec struct {
	Name string
	ID   QueueID // the zero value is the lowest that is free
	// Pools is the memory that Alloc takes packets from: one pool, or two for a header and a
	// payload segment in each packet.
	Pools []*mem.Pool
	// Headroom is the number of bytes in front of each packet that Prepend can use.
	Headroom int
	// Depth is the number of descriptors: packets that are allocated and not yet sent. 0 means
	// 1024.
	Depth int
	// Rate limits the queue to that many bits per second of packets as they lie in memory; 0 for no
	// limit.
	Rate uint64
	// SendAt says that packets carry times (burst.Burst.SetTime) and leave no earlier.
	SendAt bool
	// SourceMAC writes the port's own address into each frame as it is sent.
	SourceMAC bool
	// Options are the engine's own for a queue; nil means its defaults.
	Options any
}

// RxQueue is a receive queue. It has one owner: TryRecv, Arm, Discard and Close are called by one
// goroutine at a time; Stats by any. A queue never waits.
type RxQueue interface {
	ID() int
	// TryRecv adds the packets that are there to b, as many as there is room for, and returns how
	// many it added. 0 and nil mean that there is nothing now, or no room. It does not allocate.
	// After Close, and when the queue has failed, the error says so once everything that was
	// received before has been taken, and not before that. A packet that has more segments, or lies
	// in more memories, than an empty b has room for is dropped as DropTooLong: it would hold up
	// the others for ever.
	TryRecv(b *burst.Burst) (int, error)
	// Arm asks for one Wake of w when TryRecv may have something to say, and reports whether it has
	// already: then there will be no Wake. Arming again replaces w. Close wakes it, and a closed
	// queue always has something to say.
	Arm(w *Waker) (ready bool)
	// Discard throws away what is waiting, counts it as DropFlushed, and returns how many packets
	// that were.
	Discard() (int, error)
	Stats(s *RxStats)
	// Close ends reception. Packets that wait are dropped and counted as DropClosed; bursts that
	// are out stay valid.
	Close() error
}

// TxQueue is a transmit queue. All methods may be called from any goroutine; none but Drain waits.
// Packets of one Send leave in order, those of several goroutines in the order of their Sends.
type TxQueue interface {
	ID() int
	// Alloc fills b, which must be empty, with n packets of length bytes each and reserves a
	// descriptor for each. Their content is undefined. Where there are fewer than n it returns how
	// many there were and ErrFull (no descriptors) or ErrNoBuffers (no memory). A burst that is not
	// empty, and a length that is negative or more than the memory of one packet, are ErrInvalid or
	// ErrUnsupported. With two pools length is that of the payload segment, and the header segment
	// is as long as its slot.
	Alloc(b *burst.Burst, n, length int) (int, error)
	// Forward makes received packets ready for Send: it reserves a descriptor for each, and copies
	// those that the queue cannot reach where they lie into its own memory (TxStats count them as
	// copied). Those that find no room, the last ones, are released: b holds n packets then, all of
	// them ready, and err is ErrFull or ErrNoBuffers.
	Forward(b *burst.Burst) (n int, err error)
	// Send sends the packets of b, which Alloc or Forward have prepared, and empties b whatever it
	// returns. An error says that some of them will not be sent; each is counted under its reason.
	Send(b *burst.Burst) error
	// Drain waits until everything that was sent before has left, or the context ends.
	Drain(ctx context.Context) error
	Stats(s *TxStats)
	// Close drops what was not sent, as DropClosed. Later Allocs and Sends fail with ErrClosed.
	Close() error
}

// Clock is the time by which an engine's ports live: the machine's, or that of a simulation.
type Clock interface {
	Now() time.Time
}
