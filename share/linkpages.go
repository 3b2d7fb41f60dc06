package share

import (
	"context"
	"encoding/binary"
	"unicode/utf8"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/job"
)

// Links, and directories without files, are listed by pages. A request for one has the length u8
// and the name behind which it begins, and a prefix of names. A page says whether there are more,
// and has names in their order, of links each with its text.

// linkPage has as many of the links, in the order of their names, as one answer takes; without
// texts those of directories.
func linkPage(links []link, texts bool) []byte {
	out := []byte{0}
	for _, l := range links {
		if len(out)+1+len(l.name)+2+len(l.to) > transfer.MaxCall {
			out[0] = 1
			break
		}
		out = append(append(out, byte(len(l.name))), l.name...)
		if texts {
			out = append(binary.BigEndian.AppendUint16(out, uint16(len(l.to))), l.to...)
		}
	}
	return out
}

// parseLinkPage reads links whose names rise from after.
func parseLinkPage(b []byte, after string, texts bool) (links []link, more bool, err error) {
	in := fieldsOf(b)
	more = in.flag()
	for len(in.b) > 0 {
		l := link{name: in.sized(1)}
		if texts {
			l.to = in.sized(2)
		}
		in.expect(l.name > after && (texts || utf8.ValidString(l.name))) // unfitLink says which link is not UTF-8
		links, after = append(links, l), l.name
	}
	in.expect(!more || len(links) > 0)
	return links, more, in.err("answer about links or directories")
}

// allPages asks a service of the other side for all that it lists under a prefix. op is what a
// request begins with.
func (c Conn) allPages(ctx context.Context, service, op, prefix string, texts bool) (links []link, err error) {
	err = c.do(ctx, job.DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
		links = nil
		size := 0
		for after, more := "", true; more; {
			b, err := p.Call(ctx, service, []byte(op+string([]byte{byte(len(after))})+after+prefix))
			if err != nil {
				return err
			}
			var these []link
			if these, more, err = parseLinkPage(b, after, texts); err != nil {
				return err
			}
			links, size = append(links, these...), size+len(b)
			if more {
				after = links[len(links)-1].name
			}
			if len(links) > maxLinks || size > maxLinkBytes {
				return control.Errorf(control.OverBudget,
					"more than %d links or directories, or more than %d bytes of them", maxLinks, maxLinkBytes)
			}
		}
		return nil
	})
	return links, err
}
