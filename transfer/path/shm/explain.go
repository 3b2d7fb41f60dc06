package shm

import "fmt"

// Explain describes the path in words. It is called by the path's owner.
func (p *Path) Explain() []string {
	out := []string{
		fmt.Sprintf("shm: %s, peer is process %d of the same user (SO_PEERCRED)", p.role, p.pid),
		fmt.Sprintf("one copy by the poster into or out of the peer's mapped memfd; borrow without a copy; window "+
			"%d, notifications through rings of %d cells of 64 bytes", p.window, cells(p.window)),
	}
	if p.helps {
		out = append(out, fmt.Sprintf("puts of %d MiB and more are copied by both sides' cores in chunks of %d KiB; "+
			"%d bytes of ours so far by the peer",
			helpBytes>>20, chunkBytes>>10, p.stats.helped.Load()))
	} else {
		out = append(out, "each side copies alone: one CPU, or helping was turned off by a side")
	}
	mapped, bytes := 0, 0
	for _, a := range p.atts {
		if a.state == attachReady {
			mapped++
			bytes += len(a.main)
		}
	}
	out = append(out, fmt.Sprintf("%d exports of the peer mapped (%d bytes), %d of ours handed over", mapped, bytes,
		len(p.granted)))
	if len(p.viewed) > 0 {
		out = append(out, fmt.Sprintf("%d exports of the peer given up, but views of them were not released",
			len(p.viewed)))
	}
	if p.downErr != nil {
		out = append(out, p.downErr.Error())
		if len(p.granted) > 0 {
			out = append(out, fmt.Sprintf("the peer has not confirmed that %d exports of ours are unmapped: that "+
				"memory is retired", len(p.granted)))
		}
	}
	return out
}
