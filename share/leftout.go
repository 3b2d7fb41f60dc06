package share

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
)

// A share says by the service "share/leftout/1" what it has and does not serve. Numbers are
// big-endian.
//
//	prefix of paths -> count u32 of them, then for those that fit, in the order of the paths: length u16 and path, length u16 and reason
const (
	leftOutService = "share/leftout/1"
	maxLeftOut     = transfer.MaxCall // bytes of an answer
	maxReason      = 512
)

// leftOutNames answers a call of leftOutService.
func (s *Server) leftOutNames(_ context.Context, _ *transfer.Peer, b []byte) ([]byte, error) {
	if len(b) > MaxName || !utf8.Valid(b) {
		return nil, control.Errorf(control.BadRequest, "a prefix of %d bytes, expected UTF-8 of at most %d", len(b),
			MaxName)
	}
	prefix := string(b)
	s.mu.Lock()
	skipped, more := maps.Clone(s.skipped), s.left-len(s.skipped)
	s.mu.Unlock()
	maps.DeleteFunc(skipped, func(p, _ string) bool { return !strings.HasPrefix(p, prefix) })
	out := binary.BigEndian.AppendUint32(nil, uint32(len(skipped)+max(more, 0)))
	for _, p := range slices.Sorted(maps.Keys(skipped)) {
		reason := skipped[p]
		if len(reason) > maxReason {
			reason = reason[:maxReason]
		}
		if len(p) > maxLeftOut || len(out)+4+len(p)+len(reason) > maxLeftOut {
			break
		}
		for _, text := range []string{p, reason} {
			out = append(binary.BigEndian.AppendUint16(out, uint16(len(text))), text...)
		}
	}
	return out, nil
}

func parseLeftOut(b []byte) (list []Skipped, total int, err error) {
	in := fieldsOf(b)
	total = int(in.num(4))
	for len(in.b) > 0 {
		list = append(list, Skipped{in.sized(2), in.sized(2)})
	}
	in.expect(len(list) <= total)
	return list, total, in.err("answer about files left out")
}

// LeftOut is what the other side has and does not serve, and why: files and directories whose paths
// begin with prefix. The list is cut where it gets long; total counts all. Of a node without a
// share, there are none.
func LeftOut(ctx context.Context, c Conn, prefix string) (list []Skipped, total int, err error) {
	err = c.do(ctx, job.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
		b, err := p.Call(ctx, leftOutService, []byte(prefix))
		if err == nil {
			list, total, err = parseLeftOut(b)
		}
		return err
	})
	if err != nil && !errors.Is(err, control.Unsupported) {
		return nil, 0, fmt.Errorf("share: what is left out: %w", err)
	}
	return list, total, nil
}
