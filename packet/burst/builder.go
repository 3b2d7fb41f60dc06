package burst

// Builder is a burst as devices, and what stands between queues and devices, see it: with the
// methods that fill it, say what is known of its packets, and take its memory over. It is the same
// memory as the Burst. Applications need none of it.
type Builder Burst

// Builder is b as devices see it.
func (b *Burst) Builder() *Builder { return (*Builder)(b) }

// Burst is b as applications see it.
func (b *Builder) Burst() *Burst { return (*Burst)(b) }
