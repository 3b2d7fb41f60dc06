// Package setup connects the two ends of a path: drivers, offers, endpoint descriptions, listeners.
// Package path is the contract of what comes of it.
package setup

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
)

// ErrPeerClosed is why a path is down that the peer has closed in order.
var ErrPeerClosed = errors.New("the peer closed the path")

// DefaultWindow is the number of operations that may be outstanding on a path, in each direction,
// unless Config says more.
const DefaultWindow = 256

// Config is what both sides of a path are given when it is set up.
type Config struct {
	// Exports is what the peer may reach on this node; required. Rights and Peer narrow it: see
	// path.Reach.
	Exports *path.Exports
	// Rights are what the peer may do at most, whatever an export permits; 0 means nothing.
	Rights path.Rights
	// Peer is the number that this node gave to the peer; exports that are for one peer only
	// compare with it. 0 reaches only what is for all peers.
	Peer uint64
	// Principal is who is charged for what the path takes of the process while it is used, such as
	// mappings of the peer's memory: paths with the same principal share what one may have. "" is a
	// principal like any other.
	Principal string
	// Secret is a secret of SecretSize bytes that only the two ends of this path know, from which a
	// path derives the keys that it encrypts with. nil: the session has none, and nothing is
	// encrypted. Both ends have it or neither. The path does not keep it and never shows it.
	Secret []byte
	// Users are the users of this machine who may be at the other end if there is no secret and the
	// connection has a loopback address. The zero value is the user of this process.
	Users path.Users
	// Window is the number of operations outstanding in each direction; 0 means DefaultWindow. The
	// smaller of both sides' holds.
	Window int
	// NoChecksum turns the payload checksum off where the path has one; it is on only if both sides
	// leave this false.
	NoChecksum bool
	// Streams is the number of data connections of a wire path; 0 leaves it to the path. A listener
	// takes no more from a dialer.
	Streams int
	// RoundTrip is that of the connection to the peer, 0 where it is not known. A dialer may judge
	// by it what was lost.
	RoundTrip time.Duration
}

// SecretSize is the length of Config.Secret in bytes.
const SecretSize = 32

// Reach is what the peer of a path with this configuration may reach.
func (c *Config) Reach() path.Reach { return c.Exports.Reach(c.Rights, c.Peer) }

// Token binds a dialed path to the session that asked for it: 128 random bits, used once.
type Token [16]byte

// Offer is what an accepting node sends to its peer over their control connection, so that the peer
// can dial.
type Offer struct {
	Addr  string // in the driver's own syntax; for Dial of a PortDriver, an IP address and a port
	Token Token
}

// Traits are what is known of a driver's paths before one is set up.
type Traits struct {
	SameHost bool // both ends must share a machine
	Whole    bool // reaches only exports that are whole memfds (path.Desc.Whole)
	Borrow   bool // its paths implement path.Borrower
	Encrypts bool // with Config.Secret its paths reach path.SecurityEncrypted
	Devices  bool // its paths implement path.DeviceReacher
	// what a path is taken to cost until something was measured; only the order of magnitude has to
	// be right
	Prior path.Cost
}

// Driver sets paths up. It is a ListenDriver or an EndpointDriver as well, which say how the two
// ends of a path come together.
type Driver interface {
	// Name is the name in addresses, reports and configuration.
	Name() string
	// Traits are what is known before a path is set up.
	Traits() Traits
}

// ListenDriver is a Driver whose paths are connections that one side dials and a listener of the
// other accepts.
type ListenDriver interface {
	Driver
	// Listen opens the place to which peers come. One listener serves all peers of a node.
	Listen() (Listener, error)
	// Dial sets up the path that was offered. It checks the other side as far as the path can (user
	// id, token, version).
	Dial(ctx context.Context, o Offer, cfg Config) (path.Path, error)
}

// EndpointDriver is a Driver whose paths need no listener: each side makes an endpoint, and the
// session carries the description of each to the other side, as it does with the worker addresses
// of UCX or the metadata of NIXL. What vouches for a description is the session.
type EndpointDriver interface {
	Driver
	// Endpoint makes this side's end of a path. peer is the description of the other end for the
	// side that is asked for a path, nil for the side that asks. An error with a peer says in words
	// for the peer why the two ends do not fit.
	Endpoint(cfg Config, peer []byte) (Endpoint, error)
}

// MaxDescription is the largest size of Endpoint.Description in bytes.
const MaxDescription = 1024

// Endpoint is an end of a path that is not connected to the other one yet. Its owner calls Connect
// or Close, once.
type Endpoint interface {
	// Description is what the other side passes to Endpoint or Connect, 1 to MaxDescription bytes
	// that only the driver understands. It begins with a version, and an end of another version is
	// refused in words that name both.
	Description() []byte
	// Connect connects the two ends and returns the path when both are connected. The context
	// bounds it. peer is the description of the other end. The endpoint is used up, also by an
	// error.
	Connect(ctx context.Context, peer []byte) (path.Path, error)
	// Close gives up an endpoint that was not connected.
	Close() error
}

// Checker is a Driver with options that can be wrong.
type Checker interface {
	// Check returns an error that names the option, its value and what was expected.
	Check() error
}

// Needs are what one side of a path takes of its process from when it is set up until it is closed.
type Needs struct {
	Descriptors int
	Memory      uint64 // bytes of buffers, also in the kernel
}

// StreamCounter is a Driver whose paths have more data connections over some links.
type StreamCounter interface {
	// Streams is the number over a link with this round trip; 0: the driver's usual one.
	Streams(roundTrip time.Duration) int
}

// Estimator is a Driver that says what its paths need. A node guesses for others, and not too
// little.
type Estimator interface {
	// Needs is for one path with this configuration, whatever its peer does.
	Needs(cfg *Config) Needs
}

// Prober is a Driver that needs something which not every machine has.
type Prober interface {
	// Probe says whether this machine can have paths of the driver now. The error wraps
	// path.ErrUnavailable and says what is missing and how to get it. It leaves nothing open.
	Probe() error
}

// PreambleSize is the length of what tells connections that come to one port from each other.
const PreambleSize = 4

// PortDriver is a ListenDriver whose connections may come to the TCP port at which a node listens
// for control connections. A node has no other port for it then: what reaches the one reaches the
// other, through firewalls, tunnels and proxies. The side that dialed the session dials its paths
// as well, whichever side asks for them: the other direction may lead nowhere.
type PortDriver interface {
	ListenDriver
	// Preamble is what each connection begins with. No TLS record and no frame of the control
	// protocol does.
	Preamble() [PreambleSize]byte
	// Receiver opens a listener without a port of its own. One serves all peers of a node.
	Receiver() (Receiver, error)
}

// Receiver is a Listener whose connections were accepted elsewhere. Its Addr is "", which stands
// for the address that the session was dialed at.
type Receiver interface {
	Listener
	// Receive takes over a connection from which the preamble was read. It does not wait. What the
	// connection shows after that is checked, and how long it takes and how many there are is
	// bounded, as with a port of its own.
	Receive(c *net.TCPConn, preamble [PreambleSize]byte)
}

// Listener is the accepting side of a ListenDriver.
type Listener interface {
	// Addr goes into an Offer.
	Addr() string
	// Accept waits for the peer that presents token and returns its path. Unknown peers, wrong
	// tokens and slow handshakes are dropped without disturbing others. Several Accepts may wait at
	// once, each for its own token.
	Accept(ctx context.Context, token Token, cfg Config) (path.Path, error)
	Close() error
}
