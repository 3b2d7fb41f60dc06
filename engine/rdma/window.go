package rdma

// A message for which the receiver has no buffer is refused by its adapter (RNR NAK), and the
// sender's adapter tries again after a pause, in which nothing moves. So the receiver tells how
// many messages may come, as a count since the channel began, and tells it again as it posts more
// buffers: credits. Counts only grow, so one that gets lost or comes late does no harm.

// window is the sender's side of it.
type window struct {
	sent  uint64 // messages
	limit uint64 // that may be sent in all
}

// room is the number of messages that may be sent now.
func (w *window) room() int {
	if w.sent >= w.limit {
		return 0
	}
	return int(w.limit - w.sent)
}

// raise takes the low half of a new limit, which is at most 2^31 messages ahead of the last one. It
// reports whether the limit has grown: older ones that come late change nothing.
func (w *window) raise(low uint32) bool {
	ahead := int32(low - uint32(w.limit))
	if ahead <= 0 {
		return false
	}
	w.limit += uint64(ahead)
	return true
}

// grants is the receiver's side.
type grants struct {
	received uint64 // messages
	limit    uint64 // that may come in all
	told     uint64 // the limit as the sender knows it
}

// raise makes the limit what buffers allow: so many are posted, of which this channel may count on
// share. A limit is never lowered.
func (g *grants) raise(posted, share int) {
	g.limit = max(g.limit, g.received+uint64(min(posted, share)))
}

// due reports whether a credit should go to the sender: when it may have used up half of what it
// knows of, or, if it knows of nothing, as soon as there is anything.
func (g *grants) due() bool {
	if g.limit <= g.told {
		return false
	}
	left := uint64(0) // of what it knows
	if g.told > g.received {
		left = g.told - g.received
	}
	return left <= (g.limit-g.received)/2
}

// share is the part of posted buffers that one of so many channels may count on. Several together
// may count on twice as many as there are: seldom do all send at once, and when they do adapters
// wait a little and try again.
func share(posted, channels int) int {
	if channels <= 1 {
		return posted
	}
	return max(2*posted/channels, min(posted, 4))
}
