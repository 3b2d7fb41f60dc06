package sim

import (
	"fmt"

	"github.com/penstock-io/penstock/engine"
)

// newBox makes the front half of the queue. A rate and times to send at belong between it and the sink.
func (q *txQueue) newBox() (*engine.Outbox, error) {
	if q.spec.Rate > 0 || q.spec.SendAt {
		return nil, fmt.Errorf("%w: sim: port %q: transmit queue %d with Rate or SendAt: limit the link with Faults.Rate", engine.ErrUnsupported,
			q.port.name, q.id)
	}
	return engine.NewOutbox((*sink)(q), q.spec.Depth, false)
}

// paced adds what the pacer counted.
func (q *txQueue) paced(*engine.TxStats) {}
