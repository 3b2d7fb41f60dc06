package rdma

import (
	"cmp"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/rdmadev"
)

// Transport is how queue pairs carry messages.
type Transport uint8

// The transports.
const (
	RC Transport = iota // reliable connections: everything arrives, once and in order
	UC                  // unreliable connections: messages may be lost, not reordered; no reads
	UD                  // datagrams of up to the path's MTU, each with a routing header of 40 bytes in front
	numTransports
)

var transportNames = [numTransports]string{"RC", "UC", "UD"}

// String is the name as configurations have it.
func (t Transport) String() string {
	if t < numTransports {
		return transportNames[t]
	}
	return fmt.Sprintf("transport %d", uint8(t))
}

// Connector is how the connections of a port are made.
type Connector uint8

// The connectors.
const (
	ByTCP Connector = iota // records over TCP at the port's address: the peer is a port of this engine, and has credits
	ByCM                   // the connection manager of RDMA (rdma_cm): the peer is any program that uses it
	numConnectors
)

var connectorNames = [numConnectors]string{"tcp", "cm"}

// String is the name as configurations have it.
func (c Connector) String() string {
	if c < numConnectors {
		return connectorNames[c]
	}
	return fmt.Sprintf("connector %d", uint8(c))
}

// Options are the options of a port. The zero value is right for most.
type Options struct {
	Transport Transport
	// Connect says how connections are made. With ByCM a connection is one queue pair, used in both
	// directions, which needs a receive queue: the port accepts and connects when it has one,
	// OpenPort does not wait, and a receive queue that closes ends its connections. With UC and UD,
	// what finds no buffer at its receiver is lost. With UD a port does not notice that its peer
	// closes, and one that accepts can send after the peer's first message.
	Connect Connector
	// Device is the RDMA device by its name, "" for the one that has the port's IP address. GID is
	// the place in the device's table of the address to use, from 0; nil leaves the choice to what
	// fits the address; Port the device's port, 0 for 1.
	Device string
	Port   int
	GID    *int
	// SendDepth is the number of messages of one connection that the device may have at a time; 0
	// is 256.
	SendDepth int
	// Inline is up to how many bytes a message is copied into its request instead of being fetched
	// by the device; 0 is 64, negative for none.
	Inline int
	// SignalEvery is how many messages at most one completion stands for; 0 is 16. The last one of
	// each chain of requests always has one.
	SignalEvery int
	// Segments is the number of pieces that a message to be sent may have; 0 is 8, or as many as
	// the device takes if that is less.
	Segments int
	// AckTimeout is how long the device waits for an acknowledgement, at least; it takes 4.096 us
	// times a power of two. 0 is 67 ms. Retries is how often it tries again, 1 to 7; 0 is 6,
	// because Soft-RoCE never gives up with 7. MinRNR is the pause that a receiver without a buffer
	// asks for; 0 is 10 us, and 640 us with ByCM, whose peers know nothing of its buffers.
	AckTimeout, MinRNR time.Duration
	Retries            int
	// MTU is the most that one packet on the wire carries, in bytes: 256, 512, 1024, 2048 or 4096;
	// 0 is what the port has.
	MTU int
	conns.Options
	// Linger is how long Close waits for what the device has already been given; 0 is 2 s.
	Linger time.Duration

	every time.Duration // between two looks whether a channel gets on; 0: rdmadev.WatchEvery. For tests.
}

func (o *Options) looks() time.Duration {
	if o.every == 0 {
		return rdmadev.WatchEvery
	}
	return o.every
}

// RxOptions are the options of a receive queue (engine.RxSpec.Options).
type RxOptions struct {
	// MaxMessage is the longest message in bytes; 0 is what one slot holds, or with two pools one
	// of each. Longer ones take several slots of the last pool, and are received as several
	// segments.
	MaxMessage int
	// GRH delivers the routing header of a datagram as a header segment of 40 bytes in front of its
	// payload; with UD only.
	GRH bool
}

// What connections of this engine and of others have in common.
type (
	ConnEvent   = conns.Event
	ConnError   = conns.Error
	connections = conns.Connections
)

const (
	maxQueues   = 64
	maxDepth    = 1 << 16
	maxMessage  = 1 << 30 // bytes, which every device can carry
	grhLen      = 40
	controlSend = 8 // credits under way at a time
)

func (o *Options) complete() error {
	if err := o.Options.Complete(); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	o.Port = cmp.Or(o.Port, 1)
	o.SendDepth = cmp.Or(o.SendDepth, 256)
	o.Inline = cmp.Or(o.Inline, 64)
	o.Inline = max(o.Inline, 0)
	o.SignalEvery = cmp.Or(o.SignalEvery, 16)
	o.Segments = cmp.Or(o.Segments, 8)
	o.AckTimeout = cmp.Or(o.AckTimeout, 67*time.Millisecond)
	if o.Connect == ByCM {
		o.MinRNR = cmp.Or(o.MinRNR, 640*time.Microsecond)
	}
	o.MinRNR = cmp.Or(o.MinRNR, 10*time.Microsecond)
	o.Retries = cmp.Or(o.Retries, 6)
	o.Linger = cmp.Or(o.Linger, 2*time.Second)
	switch {
	case o.Transport >= numTransports:
		return invalid("Transport is %d: expected RC, UC or UD", o.Transport)
	case o.Connect >= numConnectors:
		return invalid("Connect is %d: expected ByTCP or ByCM", o.Connect)
	case o.Port < 1 || o.Port > 255 || o.GID != nil && *o.GID < 0:
		return invalid("Port %d, GID %v: expected 1 to 255, and 0 or more", o.Port, o.GID)
	case o.SendDepth < 1 || o.SendDepth > maxDepth:
		return invalid("SendDepth is %d: expected 1 to %d messages", o.SendDepth, maxDepth)
	case o.SignalEvery < 1 || o.Segments < 1:
		return invalid("SignalEvery %d and Segments %d: expected at least 1", o.SignalEvery, o.Segments)
	case o.Retries < 1 || o.Retries > 7:
		return invalid("Retries is %d: expected 1 to 7", o.Retries)
	case o.AckTimeout < 0 || o.MinRNR < 0 || o.Linger < 0:
		return invalid("a time is negative")
	}
	switch o.MTU {
	case 0, 256, 512, 1024, 2048, 4096:
	default:
		return invalid("MTU is %d: expected 256, 512, 1024, 2048 or 4096 bytes", o.MTU)
	}
	o.SignalEvery = min(o.SignalEvery, max(o.SendDepth/2, 1))
	return nil
}

// ackCode is the code of an acknowledgement timeout of at least d: 4.096 us times 2 to its power
// (InfiniBand specification, 9.7.6.1.3).
func ackCode(d time.Duration) uint8 {
	code := uint8(1)
	for t := 2 * 4096 * time.Nanosecond; t < d && code < 31; t *= 2 {
		code++
	}
	return code
}

// rnrPauses are the pauses that a receiver can ask for, by their code, in units of 10 us
// (InfiniBand specification, table 45). Code 0, which looks like none at all, is the longest: 655
// ms.
var rnrPauses = [32]time.Duration{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
	1024, 1536, 2048, 3072, 4096, 6144, 8192,
	12288, 16384, 24576, 32768, 49152}

// rnrCode is the code of the shortest pause of at least d.
func rnrCode(d time.Duration) uint8 {
	for code := 1; code < len(rnrPauses); code++ {
		if rnrPauses[code]*10*time.Microsecond >= d {
			return uint8(code)
		}
	}
	return 31
}

func invalid(format string, args ...any) error {
	return failed(engine.ErrInvalid, format, args...)
}

// failed is an error of this package that wraps err.
func failed(err error, format string, args ...any) error {
	return fmt.Errorf("rdma: %s: %w", fmt.Sprintf(format, args...), err)
}
