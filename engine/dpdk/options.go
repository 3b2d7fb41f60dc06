package dpdk

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/engine"
)

// Buffers is where the packets of a port lie.
type Buffers uint8

// The places.
const (
	BuffersAuto    Buffers = iota // in place, but for drivers that are known not to take external buffers
	BuffersInPlace                // in the slots of pools
	BuffersLent                   // in memory of DPDK, which queues without pools lend, and queues with pools copy from
)

// RSS is how a card spreads what no rule matches over the receive queues of a port.
type RSS uint8

// The ways.
const (
	RSSNone  RSS = iota // all for the first queue
	RSSIP               // by the addresses
	RSSPorts            // by the addresses and ports
)

// Options are the options of a port, given as engine.PortSpec.Options. The zero value is right for most.
type Options struct {
	EAL
	Buffers Buffers
	// Promiscuous has the port take frames for other stations.
	Promiscuous bool
	// RSS and RSSKey spread packets over receive queues. The key is as long as the card's; nil is the driver's.
	RSS    RSS
	RSSKey []byte
}

const maxRSSKey = 256

func (o *Options) complete() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("dpdk: %s: %w", fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	switch {
	case o.Buffers > BuffersLent:
		return bad("Buffers %d: expected auto, in_place or lent", o.Buffers)
	case o.RSS > RSSPorts:
		return bad("RSS %d: expected none, ip or ports", o.RSS)
	case len(o.RSSKey) > maxRSSKey:
		return bad("RSSKey of %d bytes: expected at most %d", len(o.RSSKey), maxRSSKey)
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
