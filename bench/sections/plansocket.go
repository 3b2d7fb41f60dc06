package sections

import (
	"fmt"
	"net/netip"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/packet"
)

// maxDatagram is the longest payload of a UDP datagram over IPv4.
const maxDatagram = 65507

// sockets plans socket_bench_server and socket_bench_client, or rdma_bench_server and
// rdma_bench_client, of those that the role is for.
func (x *planner) sockets() {
	kind := "socket_bench_"
	ends := []*config.BenchSocket{x.c.SocketServer, x.c.SocketClient}
	if x.c.RDMAServer != nil || x.c.RDMAClient != nil {
		if ends[0] != nil || ends[1] != nil {
			x.miss("", "the file has socket_bench_* and rdma_bench_*, which do not run at once",
				"leave one kind in the file")
		}
		kind, ends = "rdma_bench_", []*config.BenchSocket{x.c.RDMAServer, x.c.RDMAClient}
	}
	for i, role := range []string{"server", "client"} {
		b := struct {
			role string
			s    *config.BenchSocket
		}{role, ends[i]}
		path := kind + role
		switch {
		case b.s != nil && (x.o.Role == "" || x.o.Role == b.role):
			x.has(path)
			x.socket(path, b.role, b.s)
		case b.s != nil:
			x.has(path)
		case x.o.Role == b.role:
			x.miss("", fmt.Sprintf("the file has no %s, and the role %s was asked for", path, b.role), "")
		}
	}
}

// socket finds the interface of one end: the one of its mode with the server's address.
func (x *planner) socket(path, role string, b *config.BenchSocket) {
	want := netip.AddrPortFrom(b.ServerAddress.Unmap(), uint16(b.ServerPort))
	rdma := b == x.c.RDMAServer || b == x.c.RDMAClient
	var p *config.Interface
	over := "udp:// or tcp://"
	if rdma {
		p, over = x.rdmaInterface(role, b, want), "roce://"
	}
	for i := range x.c.Interfaces {
		if rdma {
			break
		}
		q := &x.c.Interfaces[i]
		if buffered(q.Engine) && q.Socket != nil && q.Socket.Mode == role {
			e := q.Socket.Remote
			if role == "server" {
				e = q.Socket.Local
			}
			if e.Port == int(want.Port()) && (e.Host.Unmap() == want.Addr() || !e.Host.IsValid() ||
				e.Host.IsUnspecified()) {
				p = q
				break
			}
		}
	}
	if p == nil {
		x.miss(path, fmt.Sprintf("%s: no interface is the %s of %v over %s", path, role, want, over), "")
		return
	}
	e := p.Socket.Local
	if role == "client" {
		e = p.Socket.Remote
	}
	s := Socket{Place: Place{Path: path, At: place(x.c, path), Interface: p.Name, Engine: p.Engine, Address: p.Address,
		Core: b.CPUCore}, Role: role, Protocol: e.Scheme, Send: b.Send, Receive: b.Receive,
		Iterations: b.Iterations, Size: int(b.MessageSize), Batch: 1}
	if rdma {
		x.rdma(path, &s, p, b, want)
	}
	if p.Rx != nil {
		for _, q := range p.Rx.Queues {
			s.Queues = append(s.Queues, q.ID)
			x.slot(path, &s, q.Regions, "receive")
		}
	}
	if s.Receive && len(s.Queues) == 0 {
		x.miss(path+".receive", fmt.Sprintf("%s receives, and the interface %s has no receive queue", path, p.Name), "")
	}
	if s.Send && (p.Tx == nil || len(p.Tx.Queues) == 0) {
		x.miss(path+".send", fmt.Sprintf("%s sends, and the interface %s has no transmit queue", path, p.Name), "")
	} else if s.Send {
		q := &p.Tx.Queues[0]
		s.Queue, s.Batch = q.ID, max(1, q.BatchSize)
		s.piece = x.slot(path, &s, q.Regions, "transmit")
	}
	if !s.Send && !s.Receive {
		x.miss(path, path+" neither sends nor receives", "send: true or receive: true")
	}
	most := maxPayload(p)
	if s.Protocol == "udp" && (s.Size > maxDatagram || most > 0 && s.Size > most) {
		if most == 0 || most > maxDatagram {
			most = maxDatagram
		}
		x.miss(path+".message_size", fmt.Sprintf("a message of %d bytes does not fit into a datagram of %s, %d at most",
			s.Size, p.Name, most), fmt.Sprintf("%d or less, or tcp:// addresses", most))
	}
	if role == "server" && s.Protocol == "udp" && s.Send {
		// A client that sends tells the server where it is.
		if c := x.c.SocketClient; c != nil && !c.Send {
			s.Peer = x.peer(b)
		}
		if c := x.c.SocketClient; !s.Peer.IsValid() && c != nil && !c.Send {
			x.miss(path+".send",
				"the server sends, the client does not, and nothing says at which port the client receives",
				"send: true in socket_bench_client, or a local_addr with a port in its interface")
		}
	}
	x.p.Sockets = append(x.p.Sockets, s)
}

// buffered reports whether ports of an engine are sockets of the kernel.
func buffered(e config.Engine) bool {
	s := e.Spec()
	return s != nil && s.Needs.Buffers
}

// maxPayload is the longest payload that the file gives an interface, 0 without a limit.
func maxPayload(p *config.Interface) int {
	for _, q := range p.Asked() {
		if n, ok := q.Value.(int64); ok && q.What == "packet_bytes" {
			return int(n)
		}
	}
	return 0
}

// slot compares messages with the memory of a queue, and returns the bytes of a slot.
func (x *planner) slot(path string, s *Socket, regions []string, what string) int {
	if len(regions) == 0 {
		return 0
	}
	r := x.region(regions[len(regions)-1])
	if r == nil {
		return 0
	}
	if s.Protocol != "tcp" && s.Size > int(r.BufSize) {
		x.miss(path+".message_size",
			fmt.Sprintf("a message of %d bytes does not fit into the slots of %s (%s), which have %d", s.Size, r.Name,
				what, int(r.BufSize)), fmt.Sprintf("buf_size: %d or more", s.Size))
	}
	return int(r.BufSize)
}

// peer is where the client of the file receives, if it says so.
func (x *planner) peer(b *config.BenchSocket) netip.AddrPort {
	for i := range x.c.Interfaces {
		p := &x.c.Interfaces[i]
		if s := p.Socket; s != nil && s.Mode == "client" && s.Remote.Port == b.ServerPort &&
			s.Remote.Host.Unmap() == b.ServerAddress.Unmap() && s.Local.Port > 0 && s.Local.Host.IsValid() {
			return netip.AddrPortFrom(s.Local.Host.Unmap(), uint16(s.Local.Port))
		}
	}
	return netip.AddrPort{}
}

// latencySizes are the payloads of DAQIRI's latency benchmark, where the file names none.
var latencySizes = []int{64, 128, 256, 512, 1024, 2048, 4096, 8192}

// latency plans bench_latency.
func (x *planner) latency() {
	b := x.c.Latency
	if b == nil {
		return
	}
	const path = "bench_latency"
	x.has(path)
	before := len(x.p.Missing)
	for _, k := range []struct {
		key    string
		absent bool
	}{{"tx_interface_name", b.TxInterface == ""}, {"rx_interface_name", b.RxInterface == ""},
		{"ip_src_addr", !b.IPSrc.IsValid()}, {"ip_dst_addr", !b.IPDst.IsValid()}} {
		if k.absent && x.c.Source(path+"."+k.key).Text == "" { // a placeholder is said by itself
			x.miss(path, fmt.Sprintf("%s has no %s", path, k.key), "")
		}
	}
	if len(x.p.Missing) > before || b.TxInterface == "" || b.RxInterface == "" {
		return
	}
	tx, t := x.place(path, b.TxInterface, 0, b.CPUCore)
	rx, r := x.place(path, b.RxInterface, 0, b.CPUCore)
	if t == nil || r == nil {
		return
	}
	if !frames(t.Engine) || !frames(r.Engine) {
		x.miss(path, "bench_latency sends Ethernet frames, and its interfaces are of sockets", "")
		return
	}
	if t.Tx == nil || len(t.Tx.Queues) == 0 || r.Rx == nil || len(r.Rx.Queues) == 0 {
		x.miss(path, fmt.Sprintf("bench_latency needs a transmit queue of %s and a receive queue of %s", t.Name,
			r.Name), "")
		return
	}
	l := &Latency{Path: path, At: place(x.c, path), Tx: tx, Rx: rx, Header: int(b.HeaderSize), EthDst: b.EthDst,
		Src: b.IPSrc, Dst: b.IPDst, SrcPort: b.UDPSrc.Lo, DstPort: b.UDPDst.Lo}
	l.Tx.Queue, l.Rx.Queue = t.Tx.Queues[0].ID, r.Rx.Queues[0].ID
	if t.Name != r.Name && r.Tx != nil && len(r.Tx.Queues) > 0 && t.Rx != nil && len(t.Rx.Queues) > 0 {
		l.Back = true
		l.back, _ = x.place(path, r.Name, r.Tx.Queues[0].ID, b.CPUCore)
		l.home, _ = x.place(path, t.Name, t.Rx.Queues[0].ID, b.CPUCore)
	}
	most := x.payloadRoom(t.Tx.Queues[0].Regions, l.Header)
	if l.Back {
		most = min(most, x.payloadRoom(r.Tx.Queues[0].Regions, l.Header))
	}
	if x.o.Host != nil {
		for _, p := range []*config.Interface{t, r} {
			if h := x.o.Host.Interface(p.Address); h != nil && h.MTU > 0 {
				most = min(most, h.MTU+packet.EthernetLen-l.Header)
			}
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
			x.miss(path+".payload_size", fmt.Sprintf("a payload of %d bytes has no room: there are %d", n,
				max(0, most)), "")
		case b.PayloadSize > 0:
			x.miss(path+".payload_size", fmt.Sprintf("a payload of %d bytes has no room for a number", n), "18 or more")
		default:
			x.p.note(fmt.Sprintf("bench_latency: payloads of more than %d bytes have no room", most))
		}
	}
	if len(l.Payloads) == 0 && b.PayloadSize == 0 {
		x.miss(path, fmt.Sprintf("no payload of %d bytes or more has room: there are %d", latencySizes[0],
			max(0, most)), "")
	}
	x.p.Latency = l
}

// payloadRoom is the longest payload that a queue with these regions can send.
func (x *planner) payloadRoom(regions []string, header int) int {
	most := 65535
	for k, name := range regions {
		if r := x.region(name); r != nil {
			n := int(r.BufSize)
			if len(regions) == 1 {
				n -= header
			} else if k == 0 {
				continue
			}
			most = min(most, n)
		}
	}
	return most
}
