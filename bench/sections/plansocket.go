package sections

import (
	"fmt"
	"net/netip"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
)

const (
	// maxDatagram is the longest payload of a UDP datagram over IPv4.
	maxDatagram = 65507
	// overRDMA is the protocol of rdma_bench_*: each message is one of an RDMA connection.
	overRDMA = "rdma"
)

// sockets plans socket_bench_server and socket_bench_client, or rdma_bench_server and
// rdma_bench_client, of those that the role is for, and returns how many the file has.
func (x *planner) sockets() (n int) {
	kind, ends := "socket_bench_", []*config.BenchSocket{x.c.SocketServer, x.c.SocketClient}
	if x.c.RDMAServer != nil || x.c.RDMAClient != nil {
		if ends[0] != nil || ends[1] != nil {
			x.miss("", "leave one kind in the file",
				"the file has socket_bench_* and rdma_bench_*, which do not run at once")
		}
		kind, ends = "rdma_bench_", []*config.BenchSocket{x.c.RDMAServer, x.c.RDMAClient}
	}
	for i, role := range []string{"server", "client"} {
		asked := x.o.Role == role
		if ends[i] != nil {
			n++
			if asked || x.o.Role == "" {
				x.socket(kind+role, role, ends[i])
			}
		} else if asked {
			x.miss("", "", "the file has no %s, and the role %s was asked for", kind+role, role)
		}
	}
	return n
}

// leads reports whether an interface is the one of an end: a server's has the address that the
// section says, a client's leads there. A client of RDMA may lead nowhere yet, as DAQIRI's do, and
// has the client's address if the section says one.
func leads(p *config.Interface, role string, b *config.BenchSocket, want netip.AddrPort, rdma bool) bool {
	s := p.Engine.Spec()
	if s == nil || p.Socket == nil || p.Socket.Mode != role || rdma != (s.Needs.RDMA && s.Capabilities.Connections) ||
		!rdma && !s.Needs.Buffers {
		return false
	}
	local, remote := p.Socket.Local, p.Socket.Remote
	e := local
	if role == "client" {
		if e = remote; rdma && b.ClientAddress.IsValid() && local.Host.IsValid() &&
			local.Host.Unmap() != b.ClientAddress.Unmap() {
			return false
		}
		if rdma {
			return remote.IsZero() || e.Port == int(want.Port()) && e.Host.Unmap() == want.Addr()
		}
	}
	return e.Port == int(want.Port()) && (e.Host.Unmap() == want.Addr() || !rdma && !e.Host.IsValid() ||
		e.Host.IsUnspecified())
}

// socket plans one end, on the interface of its mode with the server's address.
func (x *planner) socket(path, role string, b *config.BenchSocket) {
	want := netip.AddrPortFrom(b.ServerAddress.Unmap(), uint16(b.ServerPort))
	rdma, over := b == x.c.RDMAServer || b == x.c.RDMAClient, "udp:// or tcp://"
	if rdma {
		over = "roce://"
	}
	var p *config.Interface
	for i := range x.c.Interfaces {
		if p == nil && leads(&x.c.Interfaces[i], role, b, want, rdma) {
			p = &x.c.Interfaces[i]
		}
	}
	if p == nil {
		x.miss(path, "", "%s: no interface is the %s of %v over %s", path, role, want, over)
		return
	}
	e := p.Socket.Local
	if role == "client" {
		e = p.Socket.Remote
	}
	at, _ := x.place(path, p.Name, 0, b.CPUCore)
	s := Socket{Place: at, Role: role, Protocol: e.Scheme, Send: b.Send, Receive: b.Receive, Iterations: b.Iterations,
		Size: int(b.MessageSize), Batch: 1}
	if rdma {
		s.Protocol, s.rxDepth, s.txDepth = overRDMA, b.RxDepth, b.TxDepth
		if role == "client" && p.Socket.Remote.IsZero() {
			s.Peer = want
		}
		can, _, err := engine.Check(p.Engine.Spec().New(), &engine.Ask{Port: p.PortSpec()})
		if err == nil && can.MaxPacket > 0 {
			x.miss(path, "transport: RC",
				"%s: datagrams (transport UD) carry no more than the MTU of the device, which is not known yet", path)
		}
	}
	most := 1 << 62 // bytes of a message; over TCP it may take several slots
	if s.Protocol == "udp" {
		most = maxDatagram
		for _, q := range p.Asked() {
			if n, ok := q.Value.(int64); ok && q.What == "packet_bytes" && n > 0 {
				most = min(most, int(n))
			}
		}
	}
	slot := func(regions []string) (size int) {
		if len(regions) > 0 {
			if r := x.region(regions[len(regions)-1]); r != nil {
				size = int(r.BufSize)
			}
		}
		if size > 0 && s.Protocol != "tcp" {
			most = min(most, size)
		}
		return size
	}
	if p.Rx != nil {
		for _, q := range p.Rx.Queues {
			s.Queues = append(s.Queues, q.ID)
			slot(q.Regions)
		}
	}
	sends := s.Send && p.Tx != nil && len(p.Tx.Queues) > 0
	if sends {
		q := &p.Tx.Queues[0]
		s.Queue, s.Batch, s.piece = q.ID, max(1, q.BatchSize), slot(q.Regions)
	}
	switch {
	case !s.Send && !s.Receive:
		x.miss(path, "send: true or receive: true", "%s neither sends nor receives", path)
	case s.Send != sends || s.Receive && len(s.Queues) == 0:
		x.miss(path, "", "the interface %s has no queue for what %s does", p.Name, path)
	case s.Size > most:
		x.miss(path+".message_size", fmt.Sprintf("%d or less", most),
			"a message of %d bytes does not fit: %s takes %d at most", s.Size, p.Name, most)
	}
	// A client that sends tells the server where it is.
	if c := x.c.SocketClient; role == "server" && s.Protocol == "udp" && s.Send && c != nil && !c.Send {
		if s.Peer = x.peer(b); !s.Peer.IsValid() {
			x.miss(path+".send", "send: true in socket_bench_client, or a local_addr with a port in its interface",
				"the server sends, the client does not, and nothing says at which port the client receives")
		}
	}
	x.p.Sockets = append(x.p.Sockets, s)
}

// peer is where the client of the file receives, if it says so.
func (x *planner) peer(b *config.BenchSocket) netip.AddrPort {
	for i := range x.c.Interfaces {
		if s := x.c.Interfaces[i].Socket; s != nil && s.Mode == "client" && s.Remote.Port == b.ServerPort &&
			s.Remote.Host.Unmap() == b.ServerAddress.Unmap() && s.Local.Port > 0 && s.Local.Host.IsValid() {
			return netip.AddrPortFrom(s.Local.Host.Unmap(), uint16(s.Local.Port))
		}
	}
	return netip.AddrPort{}
}
