package transfer

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/budget"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/sched"
)

// peerConn is the control connection of a peer.
type peerConn struct {
	conn    net.Conn // TLS on top of raw, if the session is encrypted
	raw     net.Conn
	tls     *tls.ConnectionState // nil: no TLS
	shook   time.Duration        // what its handshake took
	writing sync.Mutex           // held while the connection is written
}

// peerUser is who a peer is, and what it may do. The handshake sets it.
type peerUser struct {
	role control.Role
	id   [16]byte      // of the session: random bits that only its two ends know
	cert identity.Peer // with TLS
	user user          // without TLS, on this machine
	// the user at the other end of a connection on this machine; the kernel is asked once
	owner  func() (int, error)
	rights identity.Rights // when the session began; see holds
	local  bool            // the other end is on this machine
	info   control.Identity
}

// peerLife says how far a peer is between its first byte and its end.
type peerLife struct {
	ctx        context.Context // ends when the peer is lost
	end        context.CancelCauseFunc
	introduced chan struct{} // closed when OnPeer has returned, Dial returns or the introduction failed
	ready      chan struct{} // closed when the handshake is done
	gone       chan struct{} // closed when nothing of the peer is left
	kick       chan struct{} // wakes the writer
	unwelcome  atomic.Bool   // its introduction failed: the application never gets it
	closed     atomic.Bool   // by Close
}

// peerLimits is what a peer may take of its node, and what it has taken.
type peerLimits struct {
	limits    *sched.Bounds // set before ready is closed
	grant     *grant        // of the session; set in its handshake
	held      *budget.Grant // of what the session holds for the peer; guarded by mu
	heldBytes uint64        // of held
}

// peerPaths are the paths to a peer. The mutex of the peer guards them.
type peerPaths struct {
	channels map[string]*opening
	paths    map[uint64]*channel // by path id
	queues   map[*Queue]bool
	nextID   uint64
	coming   map[uint64]*upcoming // paths that are being set up: that a peer was told the id of, or that told it
}

// peerExports are the exports of a peer that this node has looked up. The mutex of the peer guards
// them.
type peerExports struct {
	remotes map[path.Key]remote
	// by the index of a key: the last epoch in which the peer revoked an export that this node knew
	revokedTo map[uint32]uint32
}
