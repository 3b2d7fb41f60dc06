package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
)

// fan puts the same bytes to all workers that are connected, into the same part of what each
// exports for this one.
func (m *mover) fan() {
	i := m.r.IntN(len(partShare))
	var to []*link
	var index []int
	m.h.mu.Lock()
	for at := range m.h.w.c.Peers {
		if l := m.h.links[at]; l != nil {
			l.mu.Lock()
			if !l.parts[i].busy {
				l.parts[i].busy = true
				to, index = append(to, l), append(index, at)
			}
			l.mu.Unlock()
		}
	}
	m.h.mu.Unlock()
	if len(to) == 0 {
		return
	}
	base, room := partAt(m.h.w.c.MaxBytes, i)
	size := logSize(m.r, room)
	msg := message{Key: m.h.w.key(), Node: m.h.name, Kind: "fan", Seed: m.r.Uint64(), Export: inName(m.h.w.c.Index),
		Blocks: [][2]uint64{{base, size}}}
	s, err := m.src.Span(0, size)
	if err != nil {
		m.h.complain("source: %v", err)
		return
	}
	fill(s.Bytes(), msg.Seed)
	text, _ := json.Marshal(msg)
	o := job.FanoutOptions{Put: m.how(text), AtOnce: m.r.IntN(3), StopOnError: m.r.IntN(8) == 0}
	var targets []job.Target
	var acks []chan struct{}
	for k, l := range to {
		targets = append(targets, job.Target{Peer: l.peer, Copies: []path.Copy{l.in.At(base, s)}})
		key, ack := legKey(msg.Key, index[k]), make(chan struct{})
		m.h.mu.Lock()
		m.h.acks[key] = ack
		m.h.mu.Unlock()
		acks = append(acks, ack)
		m.h.begin("fan", key, l.to, size)
	}
	f, err := job.PutAll(context.Background(), targets, o)
	if err == nil && m.r.IntN(12) == 0 {
		pause(m.h.living, time.Duration(m.r.IntN(1500))*time.Microsecond)
		f.Cancel()
	}
	ends := make([]error, len(to))
	for k := range to { // all of them before any of the acknowledgements, of which one may never come
		key, end := legKey(msg.Key, index[k]), err
		if err != nil {
			m.h.ended(key, "", err)
		} else {
			leg := f.Legs()[k]
			<-leg.Done() // at the latest when the node is closed
			end = leg.Err()
			if t := leg.Transfer(); t != nil {
				m.h.finished(key, t.ID(), leg.Explain(), end)
			} else {
				m.h.ended(key, "", end)
			}
		}
		ends[k] = end
	}
	for k, l := range to {
		key, end := legKey(msg.Key, index[k]), ends[k]
		free := end != nil || m.h.acknowledged(l, acks[k])
		m.h.mu.Lock()
		delete(m.h.acks, key)
		m.h.mu.Unlock()
		if free {
			l.mu.Lock()
			l.parts[i] = part{last: fmt.Sprintf("%s of %d bytes, which ended with %v", key, size, end)}
			l.mu.Unlock()
		}
	}
	if err == nil {
		<-f.Done()
	}
}
