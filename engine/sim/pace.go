package sim

import (
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
)

// newBox makes the front half of the queue, with a pacer before the wire where packets do not leave at once.
func (q *txQueue) newBox() (*engine.Outbox, error) {
	if q.spec.Rate == 0 && !q.spec.SendAt {
		return engine.NewOutbox((*sink)(q), q.spec.Depth, false)
	}
	p, err := pace.New((*sink)(q), pace.Options{Rate: q.spec.Rate, SendAt: q.spec.SendAt})
	if err != nil {
		return nil, err
	}
	q.pacer = p
	return engine.NewOutbox(p, q.spec.Depth, false)
}
