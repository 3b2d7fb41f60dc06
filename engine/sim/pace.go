package sim

import (
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/packet/burst"
)

// newBox makes the front half of the queue, with a pacer before the wire where packets do not leave
// at once.
func (q *txQueue) newBox(paced bool, o pace.Options) (*engine.Outbox, error) {
	if !paced {
		return engine.NewOutbox((*sink)(q), q.spec.Depth, false)
	}
	p, err := pace.New((*sink)(q), o)
	if err != nil {
		return nil, err
	}
	q.pacer = p
	return engine.NewOutbox((*pacedSink)(q), q.spec.Depth, false)
}

// pacedSink is the pacer, locked: it counts packets when the receiver may have them already, and
// Stats is to know of them then.
type pacedSink txQueue

// Transmit implements engine.Sink.
func (k *pacedSink) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	k.pacing.Lock()
	defer k.pacing.Unlock()
	return k.pacer.Transmit(b, from, to)
}
