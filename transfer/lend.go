package transfer

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// stageSession is a peer as package bounce sees it.
type stageSession Peer

// Ask sends a request about slots. When a Place or Fetch is not answered the session is ended: the
// peer's device may still write. A session that is lost is quiet before the next one begins.
func (s *stageSession) Ask(q control.Query) (*control.Response, error) {
	p := (*Peer)(s)
	r, err := p.request(p.ctx, q)
	if err == nil {
		return r, nil
	}
	switch q.(type) {
	case *control.Place, *control.Fetch:
		var said *control.Error
		if errors.Is(err, control.Timeout) && (!errors.As(err, &said) || !said.Remote) {
			p.fail(fmt.Errorf("%w: no answer about staged bytes: %w", path.ErrDown, err))
			<-p.gone
		}
	}
	return nil, p.lostOr(err)
}

// Lend exports memory to the peer alone.
func (s *stageSession) Lend(m mem.Span) (bounce.Export, error) {
	x, err := s.node.Export(m, ExportOptions{Rights: path.Read | path.Write, Peer: (*Peer)(s)})
	if err != nil {
		return nil, err
	}
	return x, nil
}

// Device finds a block of an export of memory of a device for the peer, and keeps the export until
// done is called.
func (s *stageSession) Device(b control.Block, want path.Rights) (span mem.Span, done func(), err error) {
	p := (*Peer)(s)
	p.node.mu.Lock()
	x := p.node.byKey[b.Key]
	p.node.mu.Unlock()
	done, ok := x.use()
	_, have, err := p.reach().Lookup(b.Key)
	switch {
	case err != nil:
	case have == 0:
		err = path.ErrRights
	case !ok:
		err = path.ErrRevoked
	case !x.e.Desc().Device:
		err = control.Errorf(control.BadRequest, "the export is not memory of a device: move its bytes by a path")
	case want == 0:
		return x.Span(), done, nil
	default:
		if span, err = p.reach().Locate(b.Key, b.Off, b.Len, want); err == nil {
			return span, done, nil
		}
	}
	if ok {
		done()
	}
	return mem.Span{}, nil, err
}
