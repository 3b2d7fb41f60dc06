package socket

import "github.com/penstock-io/penstock/internal/sys"

// linkWatch is a UDPPort as the watcher of its interface. Without it packets that are sent while
// there is no carrier would count as having left: the kernel takes them, and throws them away
// without a word.
type linkWatch UDPPort

// watchLink begins to listen, in the network namespace of the calling thread.
func (p *UDPPort) watchLink(up bool) (err error) {
	p.down.Store(!up)
	if p.links, err = sys.WatchLinks(); err != nil {
		return err
	}
	if p.ltag, err = events.Add(p.links.FD(), sys.EventIn, (*linkWatch)(p)); err != nil {
		p.links.Close()
		p.links = nil
		return err
	}
	// The kernel does not report what happened before the watch began.
	(*linkWatch)(p).Ready(0)
	return nil
}

func (p *UDPPort) unwatchLink() {
	if p.links != nil {
		events.Remove(p.links.FD(), p.ltag)
		p.links.Close()
		p.links = nil
	}
}

// Ready implements engine.Watcher.
func (w *linkWatch) Ready(uint32) {
	p := (*UDPPort)(w)
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.rx.Closed() || p.links == nil {
		return
	}
	p.links.Drain()
	up, _, err := sys.InterfaceState(p.fd, p.device)
	if down := err != nil || !up; p.down.Swap(down) != down {
		p.sum.LinkChanges++
		p.bell.Ring()
	}
}
