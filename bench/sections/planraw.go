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

// queue looks up the queue of one of bench_tx or bench_rx among the ids of those of its interface;
// -1: it is missing.
func (x *planner) queue(at *Place, gpu bool, p *config.Interface, ids []int) int {
	if gpu {
		x.miss(at.Path+".gpu_direct", "gpu_direct: false leaves the payload in host memory", "gpu_direct: "+onlyHost)
	}
	if !frames(p.Engine) {
		x.miss(at.Path+".interface_name", "socket_bench_* sends messages over sockets",
			"%s is of Ethernet frames, and the interface %s of the engine %s", at.Path, p.Name, p.Engine)
		return -1
	}
	k := slices.Index(ids, at.Queue)
	if k < 0 {
		x.miss(at.Path+".queue_id", "", "the interface %s has no queue %d for %s", p.Name, at.Queue, at.Path)
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
	var ids []int
	for i := 0; p.Tx != nil && i < len(p.Tx.Queues); i++ {
		ids = append(ids, p.Tx.Queues[i].ID)
	}
	k := x.queue(&s.Place, b.GPUDirect, p, ids)
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
				x.miss(path, "", "tx.flows of %s cannot be done to its packets: %v", p.Name, err)
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
	size := s.Size() - packet.EthernetLen
	if mtu, name := x.mtu(p); mtu > 0 && size > mtu {
		x.miss(path, fmt.Sprintf("penstock tune nic %s --mtu %d shows how, or --set '%s=%d'", name, size, path,
			max(0, mtu+packet.EthernetLen-head)),
			"packets of %d bytes without their Ethernet header do not fit the MTU %d of %s", size, mtu, name)
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
	var ids []int
	for i := 0; p.Rx != nil && i < len(p.Rx.Queues); i++ {
		ids = append(ids, p.Rx.Queues[i].ID)
	}
	k := x.queue(&at, b.GPUDirect, p, ids)
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
	if b.TxInterface == "" || b.RxInterface == "" || !b.IPSrc.IsValid() || !b.IPDst.IsValid() {
		x.miss(path, "", "%s needs tx_interface_name, rx_interface_name, ip_src_addr and ip_dst_addr", path)
		return
	}
	tx, t := x.place(path, b.TxInterface, 0, b.CPUCore)
	rx, r := x.place(path, b.RxInterface, 0, b.CPUCore)
	if t == nil || r == nil {
		return
	}
	if !frames(t.Engine) || !frames(r.Engine) || t.Tx == nil || len(t.Tx.Queues) == 0 || r.Rx == nil ||
		len(r.Rx.Queues) == 0 {
		x.miss(path, "", "%s needs a transmit queue of %s and a receive queue of %s, both of engines of Ethernet frames",
			path, t.Name, r.Name)
		return
	}
	l := &Latency{Path: path, At: tx.At, Tx: tx, Rx: rx, Header: int(b.HeaderSize), EthDst: b.EthDst, Src: b.IPSrc,
		Dst: b.IPDst, SrcPort: b.UDPSrc.Lo, DstPort: b.UDPDst.Lo}
	x.p.Latency = l
	most := x.from(&l.Tx, t, l.Header)
	l.Rx.Queue = r.Rx.Queues[0].ID
	if t.Name != r.Name && r.Tx != nil && len(r.Tx.Queues) > 0 && t.Rx != nil && len(t.Rx.Queues) > 0 {
		l.Back, l.back, l.home = true, rx, tx
		most = min(most, x.from(&l.back, r, l.Header))
		l.home.Queue = t.Rx.Queues[0].ID
	}
	for _, p := range []*config.Interface{t, r} {
		if mtu, _ := x.mtu(p); mtu > 0 {
			most = min(most, mtu+packet.EthernetLen-l.Header)
		}
	}
	sizes := latencySizes
	if b.PayloadSize > 0 {
		sizes = []int{int(b.PayloadSize)}
	}
	for _, n := range sizes {
		if n <= most && room(n, -1) >= 0 {
			l.Payloads = append(l.Payloads, n)
		}
	}
	switch {
	case len(l.Payloads) == 0:
		x.miss(path+".payload_size", "", "no payload of %v bytes has room: %d to %d have", sizes, stream.HeaderLen,
			max(0, most))
	case len(l.Payloads) < len(sizes):
		x.p.note(fmt.Sprintf("bench_latency: payloads of more than %d bytes have no room", most))
	}
}

// mtu is the MTU of an interface on the machine, and its name there; 0: it is not known.
func (x *planner) mtu(p *config.Interface) (int, string) {
	if x.o.Host == nil {
		return 0, ""
	}
	h := x.o.Host.Interface(p.Address)
	if h == nil {
		return 0, ""
	}
	return h.MTU, h.Name
}

// from sets the queue that bench_latency sends from, and returns the longest payload that it can
// send.
func (x *planner) from(at *Place, p *config.Interface, header int) int {
	q := &p.Tx.Queues[0]
	at.Queue, at.split = q.ID, len(q.Regions) == 2
	most := 65535
	if at.split {
		header = 0 // it has a region of its own
	}
	if n := len(q.Regions); n > 0 {
		if r := x.region(q.Regions[n-1]); r != nil {
			most = min(most, int(r.BufSize)-header)
		}
	}
	return most
}
