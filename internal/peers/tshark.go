package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Packet is what tshark understands of one packet. A packet without a layer has its fields empty.
type Packet struct {
	Number             int       // from 1
	Time               time.Time // of its capture
	Length, Captured   int       // bytes on the wire, and of them in the file
	Protocols          []string  // from the outside in: eth, ethertype, ip, udp, data
	Source, Target     netip.Addr
	SourcePort, ToPort uint16 // of TCP or UDP
	// those that were asked for, in their order; several values of one are separated by commas
	Fields []string
}

// Dissection asks tshark for the packets of a file.
type Dissection struct {
	File string // pcap or pcapng
	// Filter is a display filter, "" for all packets.
	Filter string
	// DecodeAs are rules as in "tcp.port==4000,http".
	DecodeAs []string
	// Fields are names of tshark's fields whose values are wanted: "udp.payload",
	// "ip.checksum.status".
	Fields []string
	// Options are preferences as in "ip.check_checksum:TRUE".
	Options []string
}

// Dissect reads the packets of a capture file with tshark.
func Dissect(ctx context.Context, o Dissection) (_ []Packet, err error) {
	p, err := Get("tshark")
	if err != nil {
		return nil, err
	}
	bin, err := p.tool("tshark")
	if err != nil {
		return nil, err
	}
	h, err := newHome("tshark")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.remove()) }()
	args := []string{bin, "-n", "-r", o.File, "-T", "fields", "-E", "separator=/t", "-E", "occurrence=a", "-E",
		"aggregator=,"}
	for _, f := range append(packetFields, o.Fields...) {
		args = append(args, "-e", f)
	}
	for _, d := range o.DecodeAs {
		args = append(args, "-d", d)
	}
	for _, x := range o.Options {
		args = append(args, "-o", x)
	}
	if o.Filter != "" {
		args = append(args, "-Y", o.Filter)
	}
	// The file's name counts from our working directory, so tshark is not moved into its own.
	out, err := command{args: args, home: h}.run(ctx)
	if err != nil {
		return nil, err
	}
	return parsePacketFields(out, len(o.Fields))
}

// packetFields are the columns of a Packet. The slice has no room at its end, so appending copies
// it.
var packetFields = strings.Fields(`frame.number frame.time_epoch frame.len frame.cap_len frame.protocols ip.src ip.dst ipv6.src
	ipv6.dst tcp.srcport tcp.dstport udp.srcport udp.dstport`)

// parsePacketFields reads lines of tab-separated values: those of packetFields and extra more.
func parsePacketFields(out []byte, extra int) ([]Packet, error) {
	var packets []Packet
	for l := range strings.Lines(string(out)) {
		whole, ended := strings.CutSuffix(l, "\n")
		if !ended {
			return nil, fmt.Errorf("peers: tshark: %w: its last line has no end: %.200q", ErrOutput, l)
		}
		p, err := parsePacketLine(strings.Split(whole, "\t"), extra)
		if err != nil {
			return nil, fmt.Errorf("peers: tshark: %w: %.200q: %w", ErrOutput, l, err)
		}
		packets = append(packets, p)
	}
	return packets, nil
}

func parsePacketLine(f []string, extra int) (p Packet, err error) {
	const own = 13
	if len(f) != own+extra {
		return p, fmt.Errorf("%d values; expected %d", len(f), own+extra)
	}
	if p.Number, err = strconv.Atoi(f[0]); err != nil {
		return p, err
	}
	whole, fraction, _ := strings.Cut(f[1], ".")
	s, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return p, err
	}
	ns, err := strconv.ParseUint((fraction + "000000000")[:9], 10, 32)
	if err != nil {
		return p, err
	}
	p.Time = time.Unix(s, int64(ns)).UTC()
	if p.Length, err = strconv.Atoi(f[2]); err != nil {
		return p, err
	}
	if p.Captured, err = strconv.Atoi(f[3]); err != nil {
		return p, err
	}
	p.Protocols = strings.Split(f[4], ":")
	// A tunnel or an ICMP error has several addresses; the outermost ones, which come first, are
	// the packet's.
	first := func(values ...string) string {
		for _, v := range values {
			if v != "" {
				v, _, _ = strings.Cut(v, ",")
				return v
			}
		}
		return ""
	}
	if a := first(f[5], f[7]); a != "" {
		if p.Source, err = netip.ParseAddr(a); err != nil {
			return p, err
		}
	}
	if a := first(f[6], f[8]); a != "" {
		if p.Target, err = netip.ParseAddr(a); err != nil {
			return p, err
		}
	}
	for i, to := range []*uint16{&p.SourcePort, &p.ToPort} {
		if v := first(f[9+i], f[11+i]); v != "" {
			n, err := strconv.ParseUint(v, 10, 16)
			if err != nil {
				return p, err
			}
			*to = uint16(n)
		}
	}
	p.Fields = f[own:]
	return p, nil
}

// Capture is a running capture of packets from an interface into a file. It needs CAP_NET_RAW.
type Capture struct {
	p    *child
	home *home
	file string
}

// StartCapture captures packets until count have come; it returns when the capture has begun.
// filter is one of pcap-filter(7), "" is none; network is as in [Replay]. The caller calls Packets
// or Stop.
func StartCapture(ctx context.Context, network *os.File, iface, filter string, count int) (*Capture, error) {
	p, err := Get("tshark")
	if err != nil {
		return nil, err
	}
	bin, err := p.tool("tshark")
	if err != nil {
		return nil, err
	}
	h, err := newHome("tshark")
	if err != nil {
		return nil, err
	}
	c := &Capture{home: h, file: filepath.Join(h.dir, "capture.pcapng")}
	args, err := enter(network)
	if err != nil {
		return nil, errors.Join(err, h.remove())
	}
	args = append(args, bin, "-n", "-q", "-i", iface, "-c", strconv.Itoa(count), "-w", c.file)
	if filter != "" {
		args = append(args, "-f", filter)
	}
	begun := make(chan struct{})
	seen := false
	c.p, err = command{args: args, home: h, onError: func(b []byte) {
		if !seen && strings.Contains(string(b), "Capture started") {
			seen = true
			close(begun)
		}
	}}.start(ctx)
	if err != nil {
		return nil, errors.Join(err, h.remove())
	}
	defer runtime.KeepAlive(network)
	select {
	case <-begun:
		return c, nil
	case <-c.p.done:
		_, err := c.p.wait()
		if err == nil {
			err = c.p.failure(errors.New("ended before its capture began"))
		}
		return nil, errors.Join(err, h.remove())
	}
}

// Packets waits until the packets have come and reads them. The capture is over and its file gone
// when it returns.
func (c *Capture) Packets(ctx context.Context, fields ...string) (_ []Packet, err error) {
	defer func() { err = errors.Join(err, c.home.remove()) }()
	if _, err := c.p.wait(); err != nil {
		return nil, err
	}
	return Dissect(ctx, Dissection{File: c.file, Fields: fields})
}

// Stop ends a capture and drops its packets.
func (c *Capture) Stop() error {
	c.p.stop()
	return c.home.remove()
}
