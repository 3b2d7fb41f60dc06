package burst

// Describer is an Owner that knows more of its memory than a burst holds: a stage that makes one
// packet of many, for example. Info asks it.
type Describer interface {
	// Describe returns what the owner knows of a piece of memory that is out; nil for nothing. Any
	// goroutine may call it.
	Describe(h Handle) any
}

// Info is what the owner of packet i's first segment knows of it; nil for nothing. It is valid as
// long as the packet is owned.
func (b *Burst) Info(i int) any {
	if b.Segments(i) == 0 {
		return nil
	}
	g := b.segment(i, 0)
	if d, ok := b.sources[g.src].owner.(Describer); ok {
		return d.Describe(g.handle)
	}
	return nil
}

// Describe implements Describer: what is shared is what it was.
func (o *shared) Describe(h Handle) any {
	d, ok := o.src.owner.(Describer)
	if !ok {
		return nil
	}
	o.s.mu.Lock()
	e := o.s.of(h)
	if e != nil {
		h = e.handle
	}
	o.s.mu.Unlock()
	if e == nil {
		return nil
	}
	return d.Describe(h)
}
