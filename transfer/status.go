package transfer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// statusRows is how many rows of each list an answer to a peer has at most.
const statusRows = 256

// maxStatusValues is how many values a status from a peer may have. A value takes a few hundred
// bytes in memory at most, so that the peer cannot make us take more than some 30 MB.
const maxStatusValues = 1 << 15

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
		r, err := packStatus(s.Cut(rows, explain), body)
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

func packStatus(s observe.Snapshot, body int) (*control.StatusReport, error) {
	doc, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(doc, []byte{','}); n > maxStatusValues {
		return nil, fmt.Errorf("transfer: a status of %d values, at most %d: %w", n, maxStatusValues,
			control.ErrTooLarge)
	}
	return control.NewStatusReport(doc, body)
}

// Status asks the peer for its Snapshot: who its peers are and what moves. A peer that does not let
// this node see it answers with an error that matches control.NotPermitted. A large node leaves
// rows out (Snapshot.Omitted), and histograms do not travel.
func (p *Peer) Status(ctx context.Context) (observe.Snapshot, error) {
	r, err := p.request(ctx, &control.Status{})
	if err != nil {
		return observe.Snapshot{}, err
	}
	s, err := parseStatus(r.Body)
	if err != nil {
		return observe.Snapshot{}, fmt.Errorf("transfer: status of %s: %w", p, err)
	}
	return s, nil
}

// parseStatus reads the body of an answer that came from a peer.
func parseStatus(b []byte) (observe.Snapshot, error) {
	m, err := control.Parse[control.StatusReport](b)
	if err != nil {
		return observe.Snapshot{}, err
	}
	doc, err := m.JSON()
	if err != nil {
		return observe.Snapshot{}, err
	}
	if n := bytes.Count(doc, []byte{','}); n > maxStatusValues {
		return observe.Snapshot{}, fmt.Errorf("%d values, at most %d: %w", n, maxStatusValues, path.ErrProtocol)
	}
	var s observe.Snapshot
	if err := json.Unmarshal(doc, &s); err != nil {
		return observe.Snapshot{}, fmt.Errorf("%w: %w", path.ErrProtocol, err)
	}
	return s, nil
}
