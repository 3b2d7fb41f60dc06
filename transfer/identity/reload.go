package identity

import (
	"fmt"
	"sync/atomic"
)

// look reads files that changed, unless the last read was less than an interval ago or another goroutine reads them.
func (i *Identity) look() {
	w := i.watch
	if w == nil {
		return
	}
	now := i.clock().UnixNano()
	next := w.next.Load()
	// A next that is further away than an interval comes from a clock that was set back since.
	if wait := next - now; wait > 0 && wait <= int64(i.interval()) {
		return
	}
	select {
	case w.turn <- struct{}{}:
	default:
		return
	}
	w.next.Store(now + int64(i.interval()))
	events := i.reload(false)
	<-w.turn
	i.tell(events)
}

// Reload reads the files now, whatever their time stamps say, and returns why they cannot be used, if so; then what was in use
// stays. An identity that lives in memory has nothing to read.
func (i *Identity) Reload() error {
	w := i.watch
	if w == nil {
		return nil
	}
	w.turn <- struct{}{}
	events := i.reload(true)
	<-w.turn
	i.tell(events)
	if err := failure(&i.credentialsError); err != nil {
		return err
	}
	return failure(&i.rulesError)
}

// failure is why a group of files cannot be used at the moment.
func failure(p *atomic.Pointer[error]) error {
	if err := p.Load(); err != nil {
		return *err
	}
	return nil
}

func (i *Identity) tell(events []Event) {
	for _, e := range events {
		i.notify(e)
	}
}

// reload is called by the goroutine that has the turn.
func (i *Identity) reload(force bool) (events []Event) {
	w := i.watch
	// group reads files that changed or could not be used last time: that may have been a matter of time, such as a certificate
	// that was not valid yet. A repeated failure for the same content makes no event.
	group := func(g *group, mark *atomic.Pointer[error], ok, refused EventKind, use func() (bool, error)) {
		failing := failure(mark) != nil
		if !force && !failing && !g.changed() {
			return
		}
		defer g.forget()
		fresh, err := g.read()
		if !fresh && !failing {
			return
		}
		used := false
		if err == nil {
			used, err = use()
		}
		mark.Store(&err)
		switch {
		case err != nil && fresh:
			i.loadErrors.Add(1)
			events = append(events, Event{Kind: refused, Self: i.Self(), Err: err})
		case err == nil && used:
			i.loaded.Add(1)
			events = append(events, Event{Kind: ok, Self: i.Self()})
		}
	}
	group(&w.credentials, &i.credentialsError, CredentialsLoaded, CredentialsRefused, i.useCredentials)
	group(&w.rules, &i.rulesError, RulesLoaded, RulesRefused, i.useRules)
	return events
}

// useCredentials takes up what was read.
func (i *Identity) useCredentials() (bool, error) {
	s, err := i.watch.parseCredentials(i.clock())
	if err != nil {
		return false, err
	}
	if name := i.Name(); s.self.Name != name {
		return false, fmt.Errorf("identity: %s: the certificate now says %q and this node is %q; start it again to change its name: %w",
			i.watch.credentials.files[0].path, s.self.Name, name, ErrCredentials)
	}
	i.change(func(old *state) { s.rules = old.rules }, s)
	return true, nil
}

// useRules takes up what was read; false: there is no file and was none. The rules of a file that was removed are no rules at all.
func (i *Identity) useRules() (bool, error) {
	w := i.watch
	r, err := w.parseRules()
	if err != nil || r == nil && !w.hadRules {
		return false, err
	}
	w.hadRules = true
	var s state
	i.change(func(old *state) { s = *old; s.rules = r }, &s)
	if r == nil {
		return false, fmt.Errorf("identity: %s was removed: no peer has rights on this node until there is one again: %w", w.rules.files[0].path, ErrPolicy)
	}
	return true, nil
}
