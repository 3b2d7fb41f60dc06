package sections

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/packet"
)

const (
	// sequenceLen is the length of the sequence number that a file can ask for.
	sequenceLen = 4
	// maxPorts is how many pairs of ports packets go through at most: the headers of each are made
	// before the start.
	maxPorts = 1 << 16
)

// frames reports whether an engine carries whole Ethernet frames.
func frames(e config.Engine) bool {
	s := e.Spec()
	return s == nil || s.Capabilities.Frames
}

// raw plans bench_tx and bench_rx.
func (x *planner) raw() {
	for i := range x.c.BenchTx {
		x.has("bench_tx")
		x.sender(item("bench_tx", i), &x.c.BenchTx[i])
	}
	for i := range x.c.BenchRx {
		x.has("bench_rx")
		x.receiver(item("bench_rx", i), &x.c.BenchRx[i])
	}
}

func (x *planner) sender(path string, b *config.BenchTx) {
	at, p := x.place(path, b.Interface, b.Queue, b.CPUCore)
	s := Sender{Place: at, Batch: max(1, b.BatchSize), Header: int(b.HeaderSize), Payload: int(b.PayloadSize),
		EthSrc: b.EthSrc, EthDst: b.EthDst, Src: b.IPSrc, Dst: b.IPDst,
		SrcPorts: b.UDPSrc, DstPorts: b.UDPDst, Sequence: -1, Start: uint32(b.SequenceStart)}
	if b.SequenceOffset.Set {
		s.Sequence = b.SequenceOffset.Value
	}
	s.Number = room(s.Payload, s.Sequence)
	if p == nil {
		return
	}
	if b.GPUDirect {
		x.miss(path+".gpu_direct", "gpu_direct: the processor makes and checks the packets of a benchmark",
			"gpu_direct: false leaves the payload in host memory")
	}
	if !frames(p.Engine) {
		x.miss(path+".interface_name",
			fmt.Sprintf("bench_tx sends Ethernet frames, and the interface %s is of the engine %s", p.Name, p.Engine),
			"socket_bench_client sends messages over sockets")
		return
	}
	headers := packet.EthernetLen + packet.IPv4Len + packet.UDPLen
	if s.Src.IsValid() && !s.Src.Unmap().Is4() {
		headers = packet.EthernetLen + packet.IPv6Len + packet.UDPLen
	}
	if s.Header < headers {
		x.miss(path+".header_size", fmt.Sprintf("header_size %d: the headers of Ethernet, IP and UDP take %d bytes",
			s.Header, headers), fmt.Sprintf("%d or more", headers))
		return
	}
	if n := ports(&s); n > maxPorts {
		x.miss(path+".udp_src_port", fmt.Sprintf("the port ranges make %d pairs of ports", n),
			fmt.Sprintf("at most %d", maxPorts))
		return
	}
	k := -1
	if p.Tx != nil {
		k = slices.IndexFunc(p.Tx.Queues, func(q config.TxQueue) bool { return q.ID == b.Queue })
	}
	if k < 0 {
		x.miss(path+".queue_id", fmt.Sprintf("the interface %s has no transmit queue %d", p.Name, b.Queue), "")
		return
	}
	q := &p.Tx.Queues[k]
	s.Rate, s.split = q.Rate, len(q.Regions) == 2
	if s.EthSrc == (packet.MAC{}) {
		x.p.note("packets without eth_src_addr carry the address of their interface")
	}
	s.rules = p.Tx.Rules()
	x.overhead(&s, p)
	x.fits(path, &s, p, q)
	x.p.Senders = append(x.p.Senders, s)
}

// overhead plans the tags and tunnels of the interface's tx.flows, which the sender puts on itself.
func (x *planner) overhead(s *Sender, p *config.Interface) {
	if len(s.rules) == 0 {
		return
	}
	x.p.note("tags and tunnels of tx.flows are in the packets as the sender makes them: no engine here adds them on " +
		"the way out")
	if !s.Src.IsValid() || !s.Dst.IsValid() {
		return // a placeholder, which is missing anyway
	}
	t, err := newTemplate(s, s.EthSrc)
	if err != nil {
		_, path := x.iface(p.Name)
		x.miss(path+".tx.flows", fmt.Sprintf("tx.flows of %s cannot be done to the packets of %s: %v", p.Name, s.Path,
			err), "")
		return
	}
	s.Overhead = len(t.heads[0]) - s.Header
}

// fits compares packets with the slots and the MTU.
func (x *planner) fits(path string, s *Sender, p *config.Interface, q *config.TxQueue) {
	head, body := s.Header+s.Overhead, s.Payload
	for k, name := range q.Regions {
		r := x.region(name)
		if r == nil {
			continue
		}
		need := head + body
		if len(q.Regions) == 2 {
			need = []int{head, body}[min(k, 1)]
		}
		if need > int(r.BufSize) {
			x.miss(path+".payload_size",
				fmt.Sprintf("%d bytes of each packet do not fit into the slots of %s, which have %d", need, name,
					int(r.BufSize)), fmt.Sprintf("buf_size: %d or more", need))
		}
	}
	if x.o.Host == nil {
		return
	}
	if h := x.o.Host.Interface(p.Address); h != nil && h.MTU > 0 && s.Size()-packet.EthernetLen > h.MTU {
		x.miss(path+".payload_size",
			fmt.Sprintf("packets of %d bytes without their Ethernet header do not fit the MTU %d of %s",
				s.Size()-packet.EthernetLen, h.MTU, h.Name),
			fmt.Sprintf("penstock tune nic %s --mtu %d shows how, or --set '%s.payload_size=%d'", h.Name,
				s.Size()-packet.EthernetLen, path, max(0, h.MTU+packet.EthernetLen-head)))
	}
}

func (p *Plan) note(text string) {
	if !slices.Contains(p.Notes, text) {
		p.Notes = append(p.Notes, text)
	}
}

// ports is the number of pairs of ports that packets go through: both ranges advance with each
// packet.
func ports(s *Sender) int {
	n, m := int(s.SrcPorts.Hi)-int(s.SrcPorts.Lo)+1, int(s.DstPorts.Hi)-int(s.DstPorts.Lo)+1
	a, b := n, m
	for b != 0 {
		a, b = b, a%b
	}
	return n / a * m
}

// room is where our header fits into a payload beside the file's sequence number, or -1.
func room(payload, sequence int) int {
	switch {
	case sequence < 0 || sequence >= stream.HeaderLen:
		if payload >= stream.HeaderLen {
			return 0
		}
	case payload >= sequence+sequenceLen+stream.HeaderLen:
		return sequence + sequenceLen
	}
	return -1
}

func (x *planner) receiver(path string, b *config.BenchRx) {
	at, p := x.place(path, b.Interface, b.Queue, b.CPUCore)
	r := Receiver{Place: at, Batch: b.BatchSize}
	if p == nil {
		return
	}
	if b.GPUDirect {
		x.miss(path+".gpu_direct", "gpu_direct: the processor makes and checks the packets of a benchmark",
			"gpu_direct: false leaves the payload in host memory")
	}
	if !frames(p.Engine) {
		x.miss(path+".interface_name",
			fmt.Sprintf("bench_rx receives Ethernet frames, and the interface %s is of the engine %s", p.Name,
				p.Engine), "socket_bench_server receives messages over sockets")
		return
	}
	k := -1
	if p.Rx != nil {
		k = slices.IndexFunc(p.Rx.Queues, func(q config.RxQueue) bool { return q.ID == b.Queue })
	}
	if k < 0 {
		x.miss(path+".queue_id", fmt.Sprintf("the interface %s has no receive queue %d", p.Name, b.Queue), "")
		return
	}
	q := &p.Rx.Queues[k]
	if r.Batch == 0 {
		r.Batch = max(1, q.BatchSize)
	}
	r.Timeout, r.Regions, r.SplitAt = q.Timeout, q.Regions, q.SplitAt
	if n := int(b.SplitBoundary); n > 0 && len(q.Regions) == 2 && n != q.SplitAt {
		x.miss(path+".split_boundary", fmt.Sprintf("split_boundary %d: the queue %d of %s splits at %d", n, b.Queue,
			p.Name, q.SplitAt), fmt.Sprintf("split_boundary: %d", q.SplitAt))
	}
	for i := range x.p.Receivers {
		if o := &x.p.Receivers[i]; o.Interface == r.Interface && o.Queue == r.Queue {
			x.miss(path+".queue_id", fmt.Sprintf("queue %d of %s has a receiver already: %s", r.Queue, r.Interface,
				o.Path), "one receiver for each receive queue")
		}
	}
	x.p.Receivers = append(x.p.Receivers, r)
}
