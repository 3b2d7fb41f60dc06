package transfer

import (
	"fmt"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Limits that hold for whatever path is taken; single paths may allow less.
const (
	maxPathWindow  = 4096
	maxPathStreams = 16
)

// check returns an error if a field has a value that it cannot have, whatever machine this is.
func (o *Options) check() error {
	switch {
	case len(o.Name) > MaxName:
		return fmt.Errorf("Options.Name has %d bytes: expected at most %d", len(o.Name), MaxName)
	case o.HeartbeatEvery < 0:
		return fmt.Errorf("Options.HeartbeatEvery is %v: expected a positive time, or 0 for 500 ms", o.HeartbeatEvery)
	case o.DeadAfter < 0:
		return fmt.Errorf("Options.DeadAfter is %v: expected a positive time, or 0 for 1500 ms", o.DeadAfter)
	case o.Window != 0 && (o.Window < 1+fenceRoom || o.Window > maxPathWindow):
		return fmt.Errorf("Options.Window is %d: expected %d to %d operations, or 0 for %d", o.Window, 1+fenceRoom,
			maxPathWindow, setup.DefaultWindow)
	case o.Streams < 0 || o.Streams > maxPathStreams:
		return fmt.Errorf("Options.Streams is %d: expected 1 to %d connections, or 0 to leave it to the path",
			o.Streams, maxPathStreams)
	case o.Security > path.SecurityEncrypted:
		return fmt.Errorf("Options.Security is %d: expected SecurityNone to SecurityEncrypted", o.Security)
	}
	names := map[string]bool{}
	for i, d := range o.Paths {
		if d == nil {
			return fmt.Errorf("Options.Paths[%d] is nil: expected a driver, or Paths nil for all of package "+
				"transfer/path/drivers", i)
		}
		if names[d.Name()] {
			return fmt.Errorf("Options.Paths[%d] is %q again: expected each driver once", i, d.Name())
		}
		names[d.Name()] = true
		_, listens := d.(setup.ListenDriver)
		if _, ends := d.(setup.EndpointDriver); !listens && !ends {
			return fmt.Errorf("Options.Paths[%d] is %q: expected a path.ListenDriver or a path.EndpointDriver, so "+
				"that peers find it", i, d.Name())
		}
		if c, ok := d.(setup.Checker); ok {
			if err := c.Check(); err != nil {
				return fmt.Errorf("Options.Paths[%d]: %w", i, err)
			}
		}
	}
	return nil
}

// check is that of Options for the fields of a queue.
func (o *QueueOptions) check() error {
	switch {
	case len(o.Name) > MaxName:
		return fmt.Errorf("QueueOptions.Name has %d bytes: expected at most %d", len(o.Name), MaxName)
	case o.Window < 0 || o.Window > maxPathWindow:
		return fmt.Errorf("QueueOptions.Window is %d: expected 1 to %d operations, or 0 for that of the node", o.Window,
			maxPathWindow)
	case o.Streams < 0 || o.Streams > maxPathStreams:
		return fmt.Errorf("QueueOptions.Streams is %d: expected 1 to %d connections, or 0 for that of the node",
			o.Streams, maxPathStreams)
	case o.Security > path.SecurityEncrypted:
		return fmt.Errorf("QueueOptions.Security is %d: expected SecurityNone to SecurityEncrypted", o.Security)
	}
	return nil
}
