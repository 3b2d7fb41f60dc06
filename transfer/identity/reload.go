package identity

import "fmt"

// look reads files that changed, unless the last read was less than an interval ago or another
// goroutine reads them.
func (i *Identity) look() {
	w := i.watch
	if w == nil {
		return
	}
	now := i.clock().UnixNano()
	next := w.next.Load()
	// A next that is further away than an interval comes from a clock that was set back since.
	if wait := next - now; wait > 0 && wait <= w.interval {
		return
	}
	if !w.turn.TryLock() {
		return
	}
	defer w.turn.Unlock()
	w.next.Store(now + w.interval)
	i.reload()
}

// reload is called by the goroutine that has the turn.
func (i *Identity) reload() {
	i.reloadGroup(&i.watch.credentials, i.useCredentials)
	i.reloadGroup(&i.watch.rules, i.useRules)
	i.reloadGroup(&i.watch.denials, i.useDenials)
}

// reloadGroup reads files that changed or could not be used last time: that may have been a matter
// of time, such as a certificate that was not valid yet. A repeated failure for the same content is
// not counted again.
func (i *Identity) reloadGroup(g *group, use func() (bool, error)) {
	failing := g.failure() != nil
	if !failing && !g.changed() {
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
	g.failed.Store(&err)
	switch {
	case err != nil && fresh:
		i.loadErrors.Add(1)
	case err == nil && used:
		i.loaded.Add(1)
	}
}

// useCredentials takes up what was read.
func (i *Identity) useCredentials() (bool, error) {
	s, err := i.watch.parseCredentials(i.clock())
	if err != nil {
		return false, err
	}
	if name := i.Name(); s.self.Name != name {
		return false, fmt.Errorf("identity: %s: the certificate now says %q and this node is %q; start it again to "+
			"change its name: %w",
			i.watch.credentials.files[0].path, s.self.Name, name, ErrCredentials)
	}
	i.now.Store(s)
	return true, nil
}

// useRules takes up what was read; false: there is no file and was none. The rules of a file that
// was removed are no rules at all.
func (i *Identity) useRules() (bool, error) {
	w := i.watch
	r, err := w.rules.parseRules()
	if err != nil || r == nil && !w.hadRules {
		return false, err
	}
	w.hadRules = true
	i.rules.Store(r)
	if r == nil {
		return false, fmt.Errorf("identity: %s was removed: no peer has rights on this node until there is one "+
			"again: %w", w.rules.files[0].path, ErrPolicy)
	}
	return true, nil
}

// useDenials takes up the directory's own rules where others give the rights. What they denied
// stays so when the file is removed: a missing file must not admit a peer.
func (i *Identity) useDenials() (bool, error) {
	r, err := i.watch.denials.parseRules()
	if err != nil || r == nil && i.denials.Load() == nil {
		return false, err
	}
	if r == nil {
		return false, fmt.Errorf("identity: %s was removed: what it denied stays denied until there is one again: %w",
			i.watch.denials.files[0].path, ErrPolicy)
	}
	i.denials.Store(r)
	return true, nil
}
