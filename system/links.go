package system

import (
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/bounce"
)

// LinkChange is what became of the link of an interface.
type LinkChange string

// The changes.
const (
	LinkDown     LinkChange = "down"
	LinkUp       LinkChange = "up"
	LinkLost     LinkChange = "lost" // the interface was removed, or its device has failed
	LinkReopened LinkChange = "reopened"
)

// LinkEvent says that the link of an interface has changed. Changes that follow each other faster
// than they are looked at may be one.
type LinkEvent struct {
	Interface string
	Change    LinkChange
}

// linkWatch reports the links of all interfaces whose ports report theirs (engine.LinkReporter).
type linkWatch struct {
	s     *System
	ports []engine.LinkReporter // of each interface; nil where it reports no link
	was   []engine.LinkState
	waker *engine.Waker
	stop  chan struct{}
	done  chan struct{}
}

// watchLinks begins to report. It reports an interface whose link is down already at once.
func (s *System) watchLinks() *linkWatch {
	w := &linkWatch{s: s, waker: engine.NewWaker(), stop: make(chan struct{}), done: make(chan struct{})}
	for i := range s.ifaces {
		port, _ := s.ifaces[i].Port.(engine.LinkReporter)
		if b, staged := s.ifaces[i].Port.(*bounce.Port); staged {
			port, _ = b.Port.(engine.LinkReporter)
		}
		w.ports, w.was = append(w.ports, port), append(w.was, engine.LinkState{Up: true})
		if port != nil {
			w.was[i].Changes = port.LinkState(w.waker).Changes
		}
	}
	w.waker.Wake()
	go w.run()
	return w
}

func (w *linkWatch) run() {
	defer close(w.done)
	for {
		select {
		case <-w.stop:
			return
		case <-w.waker.C():
		}
		for i, port := range w.ports {
			if port == nil {
				continue
			}
			now := port.LinkState(w.waker)
			for _, c := range linkChanges(w.was[i], now) {
				w.s.log.Info("link", "interface", w.s.ifaces[i].Name, "change", string(c))
				if w.s.plan.o.OnLink != nil {
					w.s.plan.o.OnLink(LinkEvent{w.s.ifaces[i].Name, c})
				}
			}
			w.was[i] = now
		}
	}
}

// linkChanges are what has happened between two looks at a link.
func linkChanges(was, now engine.LinkState) (out []LinkChange) {
	if now.Reopened > was.Reopened {
		if !was.Gone {
			out = append(out, LinkLost)
		}
		out = append(out, LinkReopened)
		was = engine.LinkState{Up: true, Changes: now.Changes}
	}
	state := map[bool]LinkChange{true: LinkUp, false: LinkDown}
	switch {
	case now.Gone && !was.Gone:
		return append(out, LinkLost)
	case now.Gone:
	case now.Up != was.Up:
		out = append(out, state[now.Up])
	case now.Changes > was.Changes: // there and back
		out = append(out, state[!now.Up], state[now.Up])
	}
	return out
}

// close ends it. OnLink is not called any more.
func (w *linkWatch) close() {
	if w != nil {
		close(w.stop)
		<-w.done
	}
}
