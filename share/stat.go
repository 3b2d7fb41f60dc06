package share

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
)

// A share answers by the service "share/stat/1" what many names stand for now. Numbers are
// big-endian.
//
//	via length u8 and text, then for each of at most 512 names: length u8 and name, tag [16]
//	-> for each name: 0, it does not stand for that content; or 1, modified i64 in ns since 1970, permissions u16
//
// A via that is not empty says that the caller has read all of them whole over that path, as the
// calls of "share/read/1" would.
const (
	statService = "share/stat/1"
	maxStat     = 512

	statOther = 0
	statSame  = 1
)

// stat is what a share says of a name: whether it stands for the content that was asked about, and
// of what file.
type stat struct {
	same bool
	like
}

// statName is a name with the content that it is thought to stand for.
type statName struct {
	name string
	tag  Tag
}

// appendNames appends as many of the names as one call takes, and says how many.
func appendNames(b []byte, names []statName) ([]byte, int) {
	n := 0
	for ; n < min(len(names), maxStat) && len(b)+1+len(names[n].name)+len(Tag{}) <= transfer.MaxCall; n++ {
		b = append(append(b, byte(len(names[n].name))), names[n].name...)
		b = append(b, names[n].tag[:]...)
	}
	return b, n
}

func parseStat(b []byte) (via string, names []statName, err error) {
	in := fieldsOf(b)
	via, names = in.text(), in.names()
	in.expect(len(via) <= maxVia)
	return via, names, in.err("request about names")
}

func appendStatAnswer(b []byte, s stat) []byte {
	if !s.same {
		return append(b, statOther)
	}
	return s.like.append(append(b, statSame))
}

// parseStatAnswer reads the answers about n names.
func parseStatAnswer(b []byte, n int) (out []stat, err error) {
	in := fieldsOf(b)
	for range n {
		s := stat{same: in.flag()}
		if s.same {
			s.like = in.like()
		}
		out = append(out, s)
	}
	return out, in.err("answer about names")
}

// statted answers a call of statService.
func (s *Server) statted(ctx context.Context, p *transfer.Peer, b []byte) ([]byte, error) {
	via, names, err := parseStat(b)
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, n := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.lookedUp(ctx, n.name)
		now, size := s.stat(n)
		if out = appendStatAnswer(out, now); now.same && via != "" && s.o.OnAccess != nil {
			s.readWhole(p, n.name, size, via)
		}
	}
	return out, nil
}

// stat is what a name stands for, and its size.
func (s *Server) stat(n statName) (stat, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.names[n.name]
	if !ok || v.tag != n.tag {
		return stat{}, 0
	}
	return stat{true, v.of.like()}, v.export.Span().Len
}

// askStat asks what names stand for, by as many calls as they need.
func askStat(ctx context.Context, p *transfer.Peer, via string, names []statName) (out []stat, err error) {
	if len(via) > maxVia {
		via = via[:maxVia]
	}
	for len(names) > 0 {
		q, n := appendNames(append([]byte{byte(len(via))}, via...), names)
		b, err := p.Call(ctx, statService, q)
		if err != nil {
			return nil, err
		}
		answers, err := parseStatAnswer(b, n)
		if err != nil {
			return nil, err
		}
		out, names = append(out, answers...), names[n:]
	}
	return out, nil
}

// like is what the file that a name stands for is like; nil if it has another content than that of
// the tag, or the other side does not say.
func (c Conn) like(ctx context.Context, name string, tag Tag) (*like, error) {
	var s []stat
	err := c.do(ctx, job.DoOptions{}, func(ctx context.Context, p *transfer.Peer) (err error) {
		s, err = askStat(ctx, p, "", []statName{{name, tag}})
		return err
	})
	switch {
	case errors.Is(err, control.Unsupported):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("share: the time and permissions of %q: %w", Printable(name), err)
	case !s[0].same:
		return nil, nil
	}
	return &s[0].like, nil
}
