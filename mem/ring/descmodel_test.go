package ring

import (
	"fmt"
	"testing"
)

// A model of the protocol of Descriptors, one atomic access a step, and a search through all
// interleavings. The payload of a slot is two words, so that a torn read shows. What a consumer
// reads must be what was published with its ticket; each ticket ends once; and where no thread can
// go on, everything has been published and has ended.

// bug is a fault of the seed's ring, put back into the model. The numbers are those of
// docs/feed.md.
type bug int

const (
	noBug          bug = 0
	checkThenAdd   bug = 1  // a consumer looks at head and tail, and then adds to head without a comparison
	oneValueCaught bug = 2  // after the addition it finds an over-claim only where its ticket equals tail
	noUndo         bug = 3  // it finds every over-claim, and skips the ticket for ever
	maskedTail     bug = 4  // the producer keeps tail masked, consumers keep head whole
	claimIsRelease bug = 5  // a slot is free as soon as it is claimed
	plainPublish   bug = 7  // the sequence word is seen before the payload
	ownSnapshots   bug = 11 // two groups, each with a snapshot of its own; the first frees for both
)

const (
	modelSlots   = 2
	modelMask    = modelSlots - 1
	modelTickets = 12
)

// The places of a thread in its program.
const (
	atStart = iota
	atScan
	atCAS
	atFirst  // word of payload
	atSecond // word of payload
	atPublish
	atRelease
	atOldest // of drop-old
	atOldestScan
	atOldestCAS
	atOldestFree
)

type modelThread struct {
	at      uint8
	t, n, i uint8 // run of tickets, and the place in it
	left    uint8 // descriptors to publish
	word    uint8 // first word read
}

type modelState struct {
	head, tail uint8
	seq        [modelSlots]uint8
	pay        [modelSlots][2]uint8
	published  uint8               // ghost: how many
	tag        [modelTickets]uint8 // ghost: with which payload, by ticket
	ends       [modelTickets]uint8 // ghost: how often it ended
	th         [4]modelThread
}

type model struct {
	producers, consumers int
	each, batch          uint8
	dropOld              bool
	bug                  bug
}

// indexes reports whether the two indexes alone say what is in the ring, as in the seed: the
// producer moves tail when it has written.
func (m *model) indexes() bool {
	return m.bug == checkThenAdd || m.bug == oneValueCaught || m.bug == noUndo || m.bug == maskedTail
}

func (m *model) start() (s modelState) {
	for i := range s.seq {
		s.seq[i] = uint8(i)
	}
	for p := range m.producers {
		s.th[p].left = m.each
	}
	return s
}

// search visits every state, and returns how many there are and what is wrong with the first bad
// one.
func (m *model) search() (states int, wrong string) {
	seen := map[modelState]struct{}{}
	stack := []modelState{m.start()}
	seen[stack[0]] = struct{}{}
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		stuck := true
		for k := range m.producers + m.consumers {
			next := s
			var why string
			if k < m.producers {
				why = m.produce(&next, k)
			} else {
				why = m.consume(&next, k)
			}
			if why != "" {
				return len(seen), fmt.Sprintf("thread %d: %s in %+v", k, why, s)
			}
			if next != s {
				stuck = false
			}
			if _, ok := seen[next]; !ok {
				seen[next] = struct{}{}
				stack = append(stack, next)
			}
		}
		if why := m.whole(&s, stuck); why != "" {
			return len(seen), fmt.Sprintf("%s in %+v", why, s)
		}
	}
	return len(seen), ""
}

// whole is the end of the program: nobody has anything to do but to look at an empty ring.
func (m *model) whole(s *modelState, stuck bool) string {
	for k := range m.producers + m.consumers {
		if t := s.th[k]; t.left > 0 || t.at > atScan {
			if stuck {
				return "nobody can go on"
			}
			return ""
		}
	}
	// Consumers circle between the start and the scan. They must find what there is.
	for t := range s.published {
		if s.ends[t] == 0 && (s.seq[t&modelMask] != t+1 || int8(s.head-t) > 0) {
			return fmt.Sprintf("ticket %d is lost", t)
		}
	}
	return ""
}

func (m *model) produce(s *modelState, k int) string {
	th := &s.th[k]
	ticket := th.t + th.n - 1 - th.i // a run is published from its end
	slot := ticket & modelMask
	switch th.at {
	case atStart:
		if th.left > 0 {
			th.t, th.n, th.i, th.at = s.tail, 0, 0, atScan
		}
	case atScan:
		if m.indexes() {
			full := th.t-s.head == modelSlots
			if m.bug == maskedTail {
				full = (th.t+1)&modelMask == s.head
			}
			if th.n, th.at = 1, atFirst; full {
				*th = modelThread{left: th.left}
			}
			return ""
		}
		seq := s.seq[(th.t+th.n)&modelMask]
		switch {
		case th.n < min(m.batch, th.left) && seq == th.t+th.n:
			th.n++
		case th.n > 0:
			th.at = atCAS
		case m.dropOld && int8(seq-th.t) < 0:
			th.at = atOldest
		default:
			*th = modelThread{left: th.left}
		}
	case atCAS:
		if s.tail != th.t {
			*th = modelThread{left: th.left}
			return ""
		}
		s.tail += th.n
		th.at = atFirst
		if m.bug == plainPublish {
			th.at = atPublish
		}
	case atFirst:
		s.pay[slot][0] = payTag(k, th.left)
		th.at = atSecond
	case atSecond:
		s.pay[slot][1] = payTag(k, th.left)
		th.at = atPublish
		if m.bug == plainPublish {
			m.published(th)
		}
	case atPublish:
		switch {
		case m.bug == maskedTail:
			ticket = s.published
			s.tail = (th.t + 1) & modelMask
		case m.indexes():
			s.tail++
		}
		s.tag[ticket] = payTag(k, th.left)
		s.seq[slot] = ticket + 1
		s.published++
		if m.bug == plainPublish {
			th.at = atFirst
			return ""
		}
		m.published(th)
	case atOldest:
		th.t, th.at = s.head, atOldestScan
	case atOldestScan:
		if th.at = atOldestCAS; s.seq[th.t&modelMask] != th.t+1 {
			*th = modelThread{left: th.left}
		}
	case atOldestCAS:
		if s.head != th.t {
			*th = modelThread{left: th.left}
			return ""
		}
		s.head++
		th.at = atOldestFree
	case atOldestFree:
		s.seq[th.t&modelMask] = th.t + modelSlots
		if s.ends[th.t]++; s.ends[th.t] > 1 {
			return "a ticket ends twice"
		}
		*th = modelThread{left: th.left}
	}
	return ""
}

// published goes on to the next of the run.
func (m *model) published(th *modelThread) {
	th.left--
	if th.i++; th.i == th.n {
		*th = modelThread{left: th.left}
		return
	}
	th.at = atFirst
	if m.bug == plainPublish {
		th.at = atPublish
	}
}

func payTag(producer int, left uint8) uint8 { return uint8(producer+1)<<4 | left }

func (m *model) consume(s *modelState, k int) string {
	th := &s.th[k]
	switch th.at {
	case atStart:
		if !m.indexes() {
			th.t, th.n, th.i, th.at = s.head, 0, 0, atScan
		} else if s.head != s.tail && (m.bug != noUndo || int8(s.head-s.tail) < 0) {
			// with noUndo heads that run away are caught, or there would be no end
			th.at = atCAS
		}
	case atScan:
		ready := s.seq[(th.t+th.n)&modelMask] == th.t+th.n+1
		switch {
		case ready && th.n < m.batch:
			th.n++
		case th.n == 0:
			*th = modelThread{}
		case m.bug == ownSnapshots:
			th.at = atFirst
			if k > m.producers {
				th.i = 1
			}
			if th.i >= th.n {
				*th = modelThread{}
			}
		default:
			th.at = atCAS
		}
	case atCAS:
		if m.indexes() {
			th.t, th.n, th.i, th.at = s.head, 1, 0, atFirst
			s.head++
			if m.bug == oneValueCaught && th.t == s.tail || m.bug == noUndo && int8(th.t-s.tail) >= 0 {
				*th = modelThread{}
			}
			return ""
		}
		if s.head != th.t {
			*th = modelThread{}
			return ""
		}
		s.head += th.n
		th.at = atFirst
		if m.bug == claimIsRelease {
			th.i, th.at = th.n, atRelease
		}
	case atFirst:
		th.word = s.pay[(th.t+th.i)&modelMask][0]
		th.at = atSecond
	case atSecond:
		ticket := th.t + th.i
		if second := s.pay[ticket&modelMask][1]; ticket >= s.published || ticket >= modelTickets ||
			th.word != s.tag[ticket] || second != s.tag[ticket] {
			return fmt.Sprintf("ticket %d is torn or was never published: words %#x and %#x, expected %#x", ticket,
				th.word, second, s.tag[ticket%modelTickets])
		}
		if s.ends[ticket]++; s.ends[ticket] > 1 {
			return "a ticket ends twice"
		}
		th.word = 0
		if th.i++; m.bug == ownSnapshots {
			th.i++
		}
		if th.at = atFirst; th.i >= th.n {
			th.i, th.at = th.n, atRelease
			switch {
			case m.bug == claimIsRelease:
				*th = modelThread{}
			case m.bug == ownSnapshots && k > m.producers:
				*th = modelThread{}
			case m.bug == ownSnapshots:
				s.head = th.t + th.n
			}
		}
	case atRelease: // the last one first
		th.i--
		s.seq[(th.t+th.i)&modelMask] = th.t + th.i + modelSlots
		if th.i == 0 {
			if m.bug == claimIsRelease {
				th.at = atFirst
				return ""
			}
			*th = modelThread{}
		}
	}
	return ""
}

// TestDescriptorsModel searches all interleavings of small rings: nothing is lost, torn or given
// twice. With a bug of the seed put back, the search finds it.
func TestDescriptorsModel(t *testing.T) {
	for _, m := range []model{
		{producers: 1, consumers: 1, each: 5, batch: 2},
		{producers: 2, consumers: 1, each: 2, batch: 2},
		{producers: 1, consumers: 2, each: 4, batch: 2},
		{producers: 2, consumers: 2, each: 2, batch: 1},
		{producers: 1, consumers: 2, each: 4, batch: 1, dropOld: true},
		{producers: 2, consumers: 1, each: 2, batch: 2, dropOld: true},
	} {
		states, wrong := m.search()
		t.Logf("%+v: %d states", m, states)
		if wrong != "" || states < 100 {
			t.Errorf("%+v: %d states: %s", m, states, wrong)
		}
	}
	for _, b := range []struct {
		name string
		bug  bug
	}{{"bug 1", checkThenAdd}, {"bug 2", oneValueCaught}, {"bug 3", noUndo}, {"bug 4", maskedTail},
		{"bug 5", claimIsRelease}, {"bug 7", plainPublish}, {"bug 11", ownSnapshots}} {
		t.Run(b.name, func(t *testing.T) {
			m := model{producers: 1, consumers: 3, each: 4, batch: 2, bug: b.bug}
			states, wrong := m.search()
			if wrong == "" {
				t.Errorf("the search found nothing in %d states", states)
			}
			t.Logf("%d states: %s", states, wrong)
		})
	}
}
