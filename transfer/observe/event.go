package observe

import (
	"fmt"
	"slices"
	"time"
)

// EventKind says what an event reports.
type EventKind uint8

// The kinds of events. The names that String gives are stable: they are what JSON and metrics show.
const (
	EventPeerUp        EventKind = iota + 1 // a peer is connected: Peer, PeerID, Address, Security
	EventPeerDown                           // it was closed or lost: Reason
	EventPathUp                             // a path to a peer is set up: Path, PathID, Security
	EventPathDown                           // it ended, also with its peer: Reason
	EventTransferBegun                      // Transfer, Operation, Bytes
	// the same with the Path taken; Bytes are those known to be in place; Reason if it failed
	EventTransferEnded
	// a transfer goes on by another path: Path is the new one, Reason names the old one
	EventTransferFailedOver
	EventExportAdded      // Name, Bytes
	EventExportRevoked    // Name, Bytes: peers cannot name it any more
	EventRefused          // something that a peer asked for was refused: Operation, Reason
	EventIdentityReloaded // the node uses other certificates from now on: Name
	// changed certificates or rules cannot be used: Name, Reason; again each minute until they can
	EventIdentityRefused
	// the node listens or dials without encryption beyond this machine: Address
	EventPlaintext
	// the node moves nothing any more, and every peer is ended: Name, Reason
	EventNodeFailed
	eventKinds
)

var eventNames = [eventKinds]string{EventPeerUp: "peer_up", EventPeerDown: "peer_down", EventPathUp: "path_up",
	EventPathDown:      "path_down",
	EventTransferBegun: "transfer_begun", EventTransferEnded: "transfer_ended",
	EventTransferFailedOver: "transfer_failed_over",
	EventExportAdded:        "export_added", EventExportRevoked: "export_revoked", EventRefused: "refused",
	EventIdentityReloaded: "identity_reloaded", EventIdentityRefused: "identity_refused", EventPlaintext: "plaintext",
	EventNodeFailed: "node_failed"}

func (k EventKind) String() string {
	if k > 0 && k < eventKinds {
		return eventNames[k]
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}

// MarshalText gives the name.
func (k EventKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a name.
func (k *EventKind) UnmarshalText(b []byte) error {
	i := slices.Index(eventNames[:], string(b))
	if i <= 0 {
		return fmt.Errorf("observe: event kind %q is not known", b)
	}
	*k = EventKind(i)
	return nil
}

// Event is something that happened at a node. Which fields are set depends on Kind. Texts that came
// from a peer (its name, the reasons it gives) may hold any characters: quote them for a terminal.
// No event holds a key, token or other secret.
type Event struct {
	Time      time.Time `json:"time"`
	Kind      EventKind `json:"kind"`
	Peer      string    `json:"peer,omitempty"`
	PeerID    uint64    `json:"peer_id,omitempty"` // the node's own number of the connection, never used again
	Address   string    `json:"address,omitempty"`
	Security  string    `json:"security,omitempty"`
	Path      string    `json:"path,omitempty"` // the driver's name
	PathID    uint64    `json:"path_id,omitempty"`
	Queue     string    `json:"queue,omitempty"` // the path belongs to the queue of that name
	Transfer  ID        `json:"transfer,omitzero"`
	Operation string    `json:"operation,omitempty"` // "put", "get", "notify", or the request that was refused
	Name      string    `json:"name,omitempty"`
	Bytes     uint64    `json:"bytes,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	// Missed is the number of events that this subscriber missed since the one before, because it
	// was too slow.
	Missed uint64 `json:"missed,omitempty"`
}
