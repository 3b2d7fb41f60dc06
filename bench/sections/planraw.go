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

	onlyHost = "the processor makes and checks the packets of a benchmark"
)

// queue looks up the queue of one of bench_tx or bench_rx, by its index in its interface; -1: it is
// missing.
func (x *planner) queue(at *Place, gpu bool, p *config.Interface, tx bool) int {
	does, instead, kind := "bench_rx receives", "socket_bench_server receives messages over sockets", "receive"
	k := -1
	switch {
	case tx:
		does, instead, kind = "bench_tx sends", "socket_bench_client sends messages over sockets", "transmit"
		if p.Tx != nil {
			k = slices.IndexFunc(p.Tx.Queues, func(q config.TxQueue) bool { return q.ID == at.Queue })
		}
	case p.Rx != nil:
		k = slices.IndexFunc(p.Rx.Queues, func(q config.RxQueue) bool { return q.ID == at.Queue })
	}
	if gpu {
		x.miss(at.Path+".gpu_direct", "gpu_direct: false leaves the payload in host memory", "gpu_direct: "+onlyHost)
	}
	switch {
	case !frames(p.Engine):
		x.miss(at.Path+".interface_name", instead, "%s Ethernet frames, and the interface %s is of the engine %s", does,
			p.Name, p.Engine)
		return -1
	case k < 0:
		x.miss(at.Path+".queue_id", "", "the interface %s has no %s queue %d", p.Name, kind, at.Queue)
	}
	return k
}

func (x *planner) sender(path string, b *config.BenchTx) {
	at, p := x.place(path, b.Interface, b.Queue, b.CPUCore)
	if p == nil {
		return
	}
	s := Sender{Place: at, Batch: max(1, b.BatchSize), Header: int(b.HeaderSize), Payload: int(b.PayloadSize),
		EthSrc: b.EthSrc,
		EthDst: b.EthDst, Src: b.IPSrc, Dst: b.IPDst, SrcPorts: b.UDPSrc, DstPorts: b.UDPDst, Sequence: -1,
		Start: uint32(b.SequenceStart)}
	if b.SequenceOffset.Set {
		s.Sequence = b.SequenceOffset.Value
	}
	s.Number = room(s.Payload, s.Sequence)
	headers := packet.EthernetLen + packet.IPv4Len + packet.UDPLen
	if s.Src.IsValid() && !s.Src.Unmap().Is4() {
		headers += packet.IPv6Len - packet.IPv4Len
	}
	k := x.queue(&s.Place, b.GPUDirect, p, true)
	switch n := ports(&s); {
	case k < 0:
		return
	case s.Header < headers:
		x.miss(path+".header_size", fmt.Sprintf("%d or more", headers),
			"header_size %d: the headers of Ethernet, IP and UDP take %d bytes",
			s.Header, headers)
		return
	case n > maxPorts:
		x.miss(path+".udp_src_port", fmt.Sprintf("at most %d", maxPorts), "the port ranges make %d pairs of ports", n)
		return
	}
	q := &p.Tx.Queues[k]
	s.Rate, s.split = q.Rate, len(q.Regions) == 2
	if s.EthSrc == (packet.MAC{}) {
		x.p.note("packets without eth_src_addr carry the address of their interface")
	}
	if s.rules = p.Tx.Rules(); len(s.rules) > 0 {
		x.p.note("tags and tunnels of tx.flows are in the packets as the sender makes them: no engine here adds them " +
			"on the way out")
		if s.Src.IsValid() && s.Dst.IsValid() { // otherwise placeholders, which are missing anyway
			if t, err := newTemplate(&s, s.EthSrc); err == nil {
				s.Overhead = t.head - s.Header
			} else {
				i := slices.IndexFunc(x.c.Interfaces, func(o config.Interface) bool { return o.Name == p.Name })
				x.miss(item("interfaces", i)+".tx.flows", "", "tx.flows of %s cannot be done to the packets of %s: %v",
					p.Name, path, err)
			}
		}
	}
	x.fits(&s, p, q)
	x.p.Senders = append(x.p.Senders, s)
}

// fits compares packets with the slots and the MTU.
func (x *planner) fits(s *Sender, p *config.Interface, q *config.TxQueue) {
	path, head := s.Path+".payload_size", s.Header+s.Overhead
	for k, name := range q.Regions {
		need := s.Size()
		if len(q.Regions) == 2 {
			need = []int{head, s.Payload}[min(k, 1)]
		}
		if r := x.region(name); r != nil && need > int(r.BufSize) {
			x.miss(path, fmt.Sprintf("buf_size: %d or more", need),
				"%d bytes of each packet do not fit into the slots of %s, which have %d",
				need, name, int(r.BufSize))
		}
	}
	if x.o.Host == nil {
		return
	}
	size := s.Size() - packet.EthernetLen
	if h := x.o.Host.Interface(p.Address); h != nil && h.MTU > 0 && size > h.MTU {
		x.miss(path, fmt.Sprintf("penstock tune nic %s --mtu %d shows how, or --set '%s=%d'", h.Name, size, path,
			max(0, h.MTU+packet.EthernetLen-head)),
			"packets of %d bytes without their Ethernet header do not fit the MTU %d of %s", size, h.MTU, h.Name)
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
	if p == nil {
		return
	}
	k := x.queue(&at, b.GPUDirect, p, false)
	if k < 0 {
		return
	}
	q := &p.Rx.Queues[k]
	r := Receiver{Place: at, Batch: b.BatchSize, Timeout: q.Timeout, Regions: q.Regions, SplitAt: q.SplitAt}
	if r.Batch == 0 {
		r.Batch = max(1, q.BatchSize)
	}
	if n := int(b.SplitBoundary); n > 0 && len(q.Regions) == 2 && n != q.SplitAt {
		x.miss(path+".split_boundary", fmt.Sprintf("split_boundary: %d", q.SplitAt),
			"split_boundary %d: the queue %d of %s splits at %d", n,
			b.Queue, p.Name, q.SplitAt)
	}
	for i := range x.p.Receivers {
		if o := &x.p.Receivers[i]; o.Interface == r.Interface && o.Queue == r.Queue {
			x.miss(path+".queue_id", "one receiver for each receive queue", "queue %d of %s has a receiver already: %s",
				r.Queue, r.Interface,
				o.Path)
		}
	}
	x.p.Receivers = append(x.p.Receivers, r)
}

// latencySizes are the payloads of DAQIRI's latency benchmark, where the file names none.
var latencySizes = []int{64, 128, 256, 512, 1024, 2048, 4096, 8192}

// latency plans bench_latency.
func (x *planner) latency(path string, b *config.BenchLatency) {
	before := len(x.p.Missing)
	for _, k := range []struct {
		key    string
		absent bool
	}{{"tx_interface_name", b.TxInterface == ""}, {"rx_interface_name", b.RxInterface == ""},
		{"ip_src_addr", !b.IPSrc.IsValid()},
		{"ip_dst_addr", !b.IPDst.IsValid()}} {
		if k.absent && x.c.Source(path+"."+k.key).Text == "" { // a placeholder is said by itself
			x.miss(path, "", "%s has no %s", path, k.key)
		}
	}
	if len(x.p.Missing) > before || b.TxInterface == "" || b.RxInterface == "" {
		return
	}
	tx, t := x.place(path, b.TxInterface, 0, b.CPUCore)
	rx, r := x.place(path, b.RxInterface, 0, b.CPUCore)
	switch {
	case t == nil || r == nil:
		return
	case !frames(t.Engine) || !frames(r.Engine):
		x.miss(path, "", "bench_latency sends Ethernet frames, and its interfaces are of sockets")
		return
	case t.Tx == nil || len(t.Tx.Queues) == 0 || r.Rx == nil || len(r.Rx.Queues) == 0:
		x.miss(path, "", "bench_latency needs a transmit queue of %s and a receive queue of %s", t.Name, r.Name)
		return
	}
	l := &Latency{Path: path, At: tx.At, Tx: tx, Rx: rx, Header: int(b.HeaderSize), EthDst: b.EthDst, Src: b.IPSrc,
		Dst:     b.IPDst,
		SrcPort: b.UDPSrc.Lo, DstPort: b.UDPDst.Lo}
	x.p.Latency = l
	most := x.from(&l.Tx, t, l.Header)
	l.Rx.Queue = r.Rx.Queues[0].ID
	if t.Name != r.Name && r.Tx != nil && len(r.Tx.Queues) > 0 && t.Rx != nil && len(t.Rx.Queues) > 0 {
		l.Back, l.back, l.home = true, rx, tx
		most = min(most, x.from(&l.back, r, l.Header))
		l.home.Queue = t.Rx.Queues[0].ID
	}
	for _, p := range []*config.Interface{t, r} {
		if x.o.Host == nil {
			break
		}
		if h := x.o.Host.Interface(p.Address); h != nil && h.MTU > 0 {
			most = min(most, h.MTU+packet.EthernetLen-l.Header)
		}
	}
	sizes := latencySizes
	if b.PayloadSize > 0 {
		sizes = []int{int(b.PayloadSize)}
	}
	for _, n := range sizes {
		switch {
		case n <= most && room(n, -1) >= 0:
			l.Payloads = append(l.Payloads, n)
		case b.PayloadSize > 0 && n > most:
			x.miss(path+".payload_size", "", "a payload of %d bytes has no room: there are %d", n, max(0, most))
		case b.PayloadSize > 0:
			x.miss(path+".payload_size", "18 or more", "a payload of %d bytes has no room for a number", n)
		default:
			x.p.note(fmt.Sprintf("bench_latency: payloads of more than %d bytes have no room", most))
		}
	}
	if len(l.Payloads) == 0 && b.PayloadSize == 0 {
		x.miss(path, "", "no payload of %d bytes or more has room: there are %d", latencySizes[0], max(0, most))
	}
}

// from sets the queue that bench_latency sends from, and returns the longest payload that it can
// send.
func (x *planner) from(at *Place, p *config.Interface, header int) int {
	q := &p.Tx.Queues[0]
	at.Queue, at.split = q.ID, len(q.Regions) == 2
	most := 65535
	for k, name := range q.Regions {
		r := x.region(name)
		switch {
		case r == nil || at.split && k == 0:
		case len(q.Regions) == 1:
			most = min(most, int(r.BufSize)-header)
		default:
			most = min(most, int(r.BufSize))
		}
	}
	return most
}
