package cli

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/filter"
	"github.com/penstock-io/penstock/packet/pcap"
	"github.com/penstock-io/penstock/stage/app"
	"github.com/penstock-io/penstock/stage/record"
)

// linePrinter prints a line for each packet. It is the consumer of a capture without files.
type linePrinter struct {
	w      *bufio.Writer
	filter *filter.Filter
	frames bool
	hex    bool
	snap   int
	count  uint64
	ended  func(error)
	over   bool
	frame  []byte
	layers packet.Layers

	printed, filtered atomic.Uint64
}

func newLinePrinter(w io.Writer, o *captureOptions, x *app.Options, ended func(error)) (*linePrinter, error) {
	p := &linePrinter{w: bufio.NewWriter(w), frames: x.Frames, hex: o.hex, snap: o.snap, count: o.count, ended: ended,
		frame: make([]byte, 0, pcap.SnapLen)}
	var err error
	if o.expression != "" {
		p.filter, err = filter.Compile(o.expression, record.LinkOf(x.Frames))
	}
	return p, err
}

// Consume implements engine.Consumer.
func (p *linePrinter) Consume(_ context.Context, b *burst.Burst) error {
	for i := 0; i < b.Len() && !p.over; i++ {
		p.frame = p.frame[:min(b.PacketLen(i), cap(p.frame))]
		p.frame = p.frame[:b.CopyTo(p.frame, i)]
		wire, out := max(len(p.frame), b.WireLen(i)), b.Flags(i)&burst.Outgoing != 0
		if p.filter != nil && !p.filter.Match(p.frame, wire, out) {
			p.filtered.Add(1)
			continue
		}
		at := time.Now()
		if ns, ok := b.Time(i); ok {
			at = time.Unix(0, ns)
		}
		way := "in "
		if out {
			way = "out"
		}
		fmt.Fprintf(p.w, "%s %s %s %d\n", at.Format("15:04:05.000000000"), way, p.text(), wire)
		if p.hex {
			shown := p.frame
			if p.snap > 0 {
				shown = shown[:min(len(shown), p.snap)]
			}
			p.w.WriteString(hex.Dump(shown))
		}
		if p.printed.Add(1) == p.count {
			p.end(nil)
		}
	}
	if err := p.w.Flush(); err != nil {
		p.end(err)
	}
	return nil
}

func (p *linePrinter) end(err error) {
	if !p.over {
		p.over = true
		p.ended(err)
	}
}

// text is addresses, ports and protocol of the packet.
func (p *linePrinter) text() string {
	if !p.frames {
		return "datagram"
	}
	if len(p.frame) < packet.EthernetLen {
		return "frame without a header"
	}
	l := &p.layers
	why := packet.Parse(p.frame, l)
	e := packet.Ethernet(p.frame)
	var s strings.Builder
	for _, tag := range l.Tags[:l.NumTags] {
		fmt.Fprintf(&s, "vlan %d ", tag.ID())
	}
	switch {
	case l.IPVersion == 0:
		fmt.Fprintf(&s, "%v > %v %v", e.Src(), e.Dst(), l.EtherType)
	case l.HasPorts && l.IPVersion == 6:
		fmt.Fprintf(&s, "[%v]:%d > [%v]:%d %v", l.Src(p.frame), l.SrcPort, l.Dst(p.frame), l.DstPort, l.Proto)
	case l.HasPorts:
		fmt.Fprintf(&s, "%v:%d > %v:%d %v", l.Src(p.frame), l.SrcPort, l.Dst(p.frame), l.DstPort, l.Proto)
	default:
		fmt.Fprintf(&s, "%v > %v %v", l.Src(p.frame), l.Dst(p.frame), l.Proto)
	}
	if why != packet.OK {
		fmt.Fprintf(&s, " (%v)", why)
	}
	return s.String()
}

// Close implements engine.Consumer.
func (p *linePrinter) Close() error { return nil }

var _ engine.Consumer = (*linePrinter)(nil)
