package system

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/mem"
)

// Close closes everything in order: applications of the file, what the program sees of receive
// queues (Recv says engine.ErrClosed), pollers, stages, queues and ports, the page of metrics, what
// is shared, the node with its links, memory. Packets that wait are dropped and counted, by flow
// (RxSnapshot.Closed) unless their sender waits for an acknowledgement. Close waits a second at
// most for packets that applications sent to leave, and two for peers to let go of their tensors.
// It waits as long as files of recordings are being uploaded. It does not wait for bursts that are
// out: the error says of which region how many slots are (it wraps mem.ErrInUse), and their memory
// goes when they are released. Errors are joined. Closing again returns the same.
func (s *System) Close() error {
	s.close.Do(func() { s.err = s.shut() })
	return s.err
}

func (s *System) shut() error {
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("penstock: closing %s: %w", what, err))
		}
	}
	s.closeApplications(note)
	s.reload.Lock() // one that runs ends first
	defer s.reload.Unlock()
	s.closed = true
	s.watched.close()
	for i := range s.ifaces {
		can := s.ifaces[i].Port.Capabilities()
		for k := range s.ifaces[i].Rx {
			q, depth := &s.ifaces[i].Rx[k], s.plan.cfg.Interfaces[i].Rx.Queues[k].Depth
			if can.Lossless || can.Stream {
				depth = 0 // what is received is acknowledged: the sender must see that it was not
			}
			q.guard.leave(depth)
			for id, n := range q.guard.thrown() {
				s.log.Warn("packets that no application received were thrown away", "interface", s.ifaces[i].Name,
					"queue", q.Name, "flow", id, "packets", n.Packets)
			}
		}
	}
	for _, p := range s.pollers {
		p.Close()
	}
	for i := range s.ifaces {
		f := &s.ifaces[i]
		for k := range f.Rx {
			note(fmt.Sprintf("receive queue %d of %q", f.Rx[k].ID, f.Name), f.Rx[k].guard.closeQueue())
		}
		for k := range f.Tx {
			note(fmt.Sprintf("transmit queue %d of %q", f.Tx[k].ID, f.Name), f.Tx[k].Queue.Close())
		}
		note(fmt.Sprintf("interface %q", f.Name), f.Port.Close())
	}
	if s.shares != nil {
		note("the memory that interfaces share", s.shares())
	}
	if s.stop != nil {
		note("the page of metrics", s.stop())
	}
	if s.share != nil {
		note("what is shared", s.share.Close())
	}
	if s.node != nil {
		note("the node", s.node.Close())
	}
	if s.id != nil {
		s.id.Close()
	}
	for i := len(s.regions) - 1; i >= 0; i-- {
		r := s.regions[i]
		err := r.pool.Close()
		if errors.Is(err, mem.ErrInUse) {
			err = fmt.Errorf("%d slots are out: release the bursts that were received, or send those that were "+
				"allocated: %w", r.pool.Stats().InUse, err)
		}
		note(fmt.Sprintf("region %q", r.name), err)
	}
	for _, a := range s.areas {
		note("memory "+a.Name(), a.Close())
	}
	note("the accelerators", s.gpus.close())
	for _, r := range s.recorders() {
		if u := r.Stats().Uploads; u.Waiting > 0 {
			s.log.Warn("files are being uploaded; a second interrupt leaves them to the next run", "to", u.To, "files",
				u.Waiting)
		}
		note("the uploads", r.Uploaded())
	}
	err := errors.Join(errs...)
	if err != nil {
		s.log.Warn("closed", "error", err)
	} else {
		s.log.Info("closed")
	}
	if s.logFile != nil {
		err = errors.Join(err, s.logFile.Close())
	}
	return err
}
