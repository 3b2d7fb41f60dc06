// Package control is the control protocol between two transfer nodes, without I/O: bytes and times
// in, bytes and deadlines out. Payload never goes this way.
//
// The package is pure. It has no socket, clock, goroutine or lock: bytes and times go in; bytes,
// messages and the next deadline come out. That is how the tests reach every state, in virtual
// time, and how a caller is free to choose the stream (a unix socket, TCP, TLS) and the threading.
// docs/protocol.md and docs/protocol-requests.md hold the layout of every message.
//
// A [Session] is one end of one reliable byte stream. Its owner, one goroutine at a time, does
// this:
//
//	s, err := control.New(control.Dialer, control.Options{Identity: me}, time.Now())
//	for {
//		n, err := conn.Write(s.Outgoing())        // whenever there is something to write
//		s.Sent(n)
//		n, err = conn.Read(buf)                   // until s.Deadline() at the latest
//		err = s.Receive(time.Now(), buf[:n])      // an error: the session has ended, s.State() and s.Err() say how
//		err = s.Tick(time.Now())                  // at s.Deadline(): heartbeats, death of the peer, timeouts
//		for m, ok := s.Next(); ok; m, ok = s.Next() {
//			switch m := m.(type) { ... }          // *Request, *Response, *Notification, *Complete, *Revoked
//		}
//	}
//
// When the session ends by an error there may still be a goodbye to write and messages to take:
// flush Outgoing and drain Next once more. Each request that [Session.Request] accepted gives
// exactly one *Response, also when the session ends.
//
// [Batcher] is a second pure rule of transfers that lives here: when queued small operations are
// handed to a path.
package control
