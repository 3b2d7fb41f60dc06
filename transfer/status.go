package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
)

// statusRows is how many rows of each list an answer to a peer has at most.
const statusRows = 256

// answerStatus packs the node's snapshot into one answer, with as many rows as fit.
func (p *Peer) answerStatus(q *control.Status) (control.Body, error) {
	rows := statusRows
	if q.Rows > 0 {
		rows = int(min(q.Rows, statusRows))
	}
	// One at a time: peers that ask often cannot keep more than one core busy.
	p.node.answering.Lock()
	defer p.node.answering.Unlock()
	s, body := p.node.Snapshot(), p.maxBody()
	for explain := true; ; {
		r, err := observe.Pack(s.Cut(rows, explain), body)
		switch {
		case err == nil:
			return r, nil
		case !errors.Is(err, control.ErrTooLarge) || rows == 0:
			return nil, err
		case explain:
			explain = false
		default:
			rows /= 2
		}
	}
}

// Status asks the peer for its Snapshot: who its peers are and what moves. A peer that does not let
// this node see it answers with an error that matches control.NotPermitted. A large node leaves
// rows out (Snapshot.Omitted), and histograms do not travel.
func (p *Peer) Status(ctx context.Context) (observe.Snapshot, error) {
	r, err := p.request(ctx, &control.Status{})
	if err != nil {
		return observe.Snapshot{}, err
	}
	s, err := observe.Unpack(r.Body)
	if err != nil {
		return observe.Snapshot{}, fmt.Errorf("transfer: status of %s: %w", p, err)
	}
	return s, nil
}
