package rawqp

import (
	"fmt"

	"github.com/penstock-io/penstock/engine"
)

// Options are the options of a port, given as engine.PortSpec.Options. The zero value is right for
// most.
type Options struct {
	// Port is the port of the device, counted from 1; 0 is the one that has the interface which the
	// address names, else 1.
	Port int
	// Receives is how many receives all queues together may have posted, 0 for 32768; the device
	// may have fewer.
	Receives int
	// SendDepth is the number of frames that the device has at a time, for each transmit queue; 0
	// for 1024.
	SendDepth int
	// Checksum has the device write the checksums of IPv4, TCP and UDP into each frame that is
	// sent. It is ErrUnsupported where the device does not.
	Checksum bool
}

func (o *Options) complete() error {
	if o.Port < 0 || o.Port > 255 || o.Receives < 0 || o.Receives > 1<<24 || o.SendDepth < 0 || o.SendDepth > 1<<20 {
		return fmt.Errorf("verbs: port %d, %d receives, %d sends: expected 0 to 255, to %d and to %d: %w", o.Port,
			o.Receives, o.SendDepth, 1<<24, 1<<20, engine.ErrInvalid)
	}
	if o.Receives == 0 {
		o.Receives = 1 << 15
	}
	if o.SendDepth == 0 {
		o.SendDepth = 1024
	}
	return nil
}
