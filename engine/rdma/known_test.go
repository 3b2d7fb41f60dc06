package rdma

import "net/netip"

// ConnInfo is what is known of a connection.
type ConnInfo struct {
	ID            uint32
	Local, Remote netip.AddrPort
	Queue         int  // receive queue that its messages come to, -1 while there is none
	Sends         bool // the peer has given a channel to send on
	Waiting       int  // packets that wait to be sent
	Flying        int  // packets that the device has
	Room          int  // messages that the peer has room for now, as far as is known; -1 where peers do not say (ByCM)
}

func (c *conn) info() ConnInfo {
	i := ConnInfo{ID: c.ID, Local: c.Local, Remote: c.Remote, Queue: -1}
	if c.q != nil {
		i.Queue = c.q.ID()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i.Waiting = c.held.Len()
	if o := c.out; o != nil {
		i.Sends, i.Flying, i.Room = o.ready, o.flying(), o.w.room()
	}
	if c.plain {
		i.Room = -1
	}
	return i
}

// Conn is what is known of a connection; false when there is none of that id (any more).
func (p *Port) Conn(id uint32) (ConnInfo, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns.Get(id)
	if c == nil || !c.Met {
		return ConnInfo{}, false
	}
	return c.info(), true
}

// Conns are the connections, in no order.
func (p *Port) Conns() []ConnInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]ConnInfo, 0, p.conns.Len())
	for c := range p.conns.All() {
		if c.Met {
			out = append(out, c.info())
		}
	}
	return out
}
