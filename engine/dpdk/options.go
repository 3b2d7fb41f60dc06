package dpdk

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/engine"
)

// MemoryMode says where a port receives.
type MemoryMode uint8

// The modes.
const (
	MemoryAuto MemoryMode = iota // in place where the driver takes external memory, else lent
	// the NIC writes into the slots of the queue's pools, or opening the queue is an error
	MemoryInPlace
	// into memory of DPDK's, which queues without pools lend, and queues with pools copy from
	MemoryLent
)

var memoryModes = []string{"auto", "in_place", "lent"}

// String is the word of the mode in configurations.
func (m MemoryMode) String() string { return word(memoryModes, int(m)) }

// RSSType is a layer of a packet that receive side scaling hashes.
type RSSType uint8

// The layers. IP are the addresses of IPv4 and IPv6, the others add their ports, or what they have
// instead.
const (
	RSSIP RSSType = iota
	RSSTCP
	RSSUDP
	RSSSCTP
	RSSEthernet
	RSSVLAN
)

var rssTypes = []string{"ip", "tcp", "udp", "sctp", "ethernet", "vlan"}

// Options are the options of a port, given as engine.PortSpec.Options. The zero value is right for
// most.
type Options struct {
	EAL
	// Descriptors is the size of the ring of each queue of the device, 0 for as many as the queue's
	// Depth asks for. The driver rounds it to what it has.
	Descriptors int
	// Memory says where the port receives.
	Memory MemoryMode
	// RSSKey is the key of the Toeplitz hash, as many bytes as the NIC takes (40 or 52 in general);
	// nil for the driver's own.
	RSSKey []byte
	// RSSTypes are the layers that are hashed, nil for the addresses, and the ports of TCP and UDP.
	// What the NIC does not hash is left out.
	RSSTypes []RSSType
	// Promiscuous makes the NIC take frames for other MAC addresses.
	Promiscuous bool
}

const (
	minDescriptors = 8
	maxDescriptors = 1 << 16
	maxRSSKey      = 256
)

func (o *Options) complete() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("dpdk: %s: %w", fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	if o.RSSTypes == nil {
		o.RSSTypes = []RSSType{RSSIP, RSSTCP, RSSUDP}
	}
	switch {
	case o.Descriptors != 0 && (o.Descriptors < minDescriptors || o.Descriptors > maxDescriptors):
		return bad("Descriptors %d: expected %d to %d", o.Descriptors, minDescriptors, maxDescriptors)
	case o.Memory > MemoryLent:
		return bad("Memory %d: expected auto, in_place or lent", o.Memory)
	case o.RSSKey != nil && (len(o.RSSKey) == 0 || len(o.RSSKey) > maxRSSKey):
		return bad("RSSKey of %d bytes: expected 1 to %d", len(o.RSSKey), maxRSSKey)
	}
	for i, t := range o.RSSTypes {
		if t > RSSVLAN {
			return bad("RSSTypes has %d: expected %s", t, strings.Join(rssTypes, ", "))
		}
		if slices.Contains(o.RSSTypes[:i], t) {
			return bad("RSSTypes has %s twice", rssTypes[t])
		}
	}
	if wrong := o.EAL.check(); wrong != "" {
		return bad("%s", wrong)
	}
	return nil
}

// parseKey reads bytes in hexadecimal, with colons between them or without.
func parseKey(text string) (any, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	if err != nil || len(b) == 0 || len(b) > maxRSSKey {
		return nil, errors.New("expected bytes in hexadecimal, such as 6d:5a:56:da")
	}
	return b, nil
}
