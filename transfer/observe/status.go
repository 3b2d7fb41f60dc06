package observe

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// maxValues is how many values a status from a peer may have. A value takes a few hundred
// bytes in memory at most, so that the peer cannot make us take more than some 30 MB.
const maxValues = 1 << 15

// Pack makes the body of an answer of a snapshot; the error wraps control.ErrTooLarge when it is
// too large for one.
func Pack(s Snapshot, body int) (*control.StatusReport, error) {
	doc, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(doc, []byte{','}); n > maxValues {
		return nil, fmt.Errorf("transfer: a status of %d values, at most %d: %w", n, maxValues,
			control.ErrTooLarge)
	}
	return control.NewStatusReport(doc, body)
}

// Unpack reads the body of an answer that came from a peer.
func Unpack(b []byte) (Snapshot, error) {
	m, err := control.Parse[control.StatusReport](b)
	if err != nil {
		return Snapshot{}, err
	}
	doc, err := m.JSON()
	if err != nil {
		return Snapshot{}, err
	}
	if n := bytes.Count(doc, []byte{','}); n > maxValues {
		return Snapshot{}, fmt.Errorf("%d values, at most %d: %w", n, maxValues, path.ErrProtocol)
	}
	var s Snapshot
	if err := json.Unmarshal(doc, &s); err != nil {
		return Snapshot{}, fmt.Errorf("%w: %w", path.ErrProtocol, err)
	}
	return s, nil
}
