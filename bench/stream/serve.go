package stream

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
)

// ServeOptions are those of the far end in a process of its own.
type ServeOptions struct {
	// Engine is one of Engines() that reaches other machines.
	Engine string
	// Listen is where control connections come, host:port. The connection is neither encrypted nor
	// authenticated: a host that reaches it can have this process open queues of Engine at Address
	// and count packets there, and nothing else.
	Listen string
	// Address is where packets come: an interface for afpacket and xdp, host:port for socket; ""
	// with sockets is the address that the control connection came to, and a free port.
	Address  string
	Progress bench.Progress
	// Ready, if not nil, gets the address of the control connection once a near end can reach it.
	Ready func(net.Addr)
}

// Serve is the far end of Run in another process: a sink or a reflector, as each session asks. It
// serves one session at a time, until the context ends, and returns nil then. A session that is
// lost leaves nothing behind.
func Serve(ctx context.Context, o ServeOptions) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: stream: serve: %s", engine.ErrInvalid, fmt.Sprintf(format, a...))
	}
	switch {
	case !slices.Contains(Engines(), o.Engine):
		return bad("engine %q: expected %s", o.Engine, strings.Join(Engines(), ", "))
	case drivers.Get(o.Engine).Pair != nil:
		return bad("engine %s: it is within one process", o.Engine)
	case drivers.Get(o.Engine).Capabilities.Frames && o.Address == "":
		return bad("engine %s: expected the interface that packets come to", o.Engine)
	case o.Listen == "":
		return bad("expected an address for control connections, host:port")
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("stream: serve: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	if o.Ready != nil {
		o.Ready(l.Addr())
	}
	say := func(format string, a ...any) {
		if o.Progress != nil {
			o.Progress(fmt.Sprintf(format, a...))
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	busy := make(chan struct{}, 1)
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("stream: serve: %w", err)
		}
		turn := time.NewTimer(turnTime) // who comes as another goes waits for its end
		select {
		case busy <- struct{}{}:
			turn.Stop()
		case <-turn.C:
			say("%s: refused: another session is under way", conn.RemoteAddr())
			conn.SetDeadline(time.Now().Add(time.Second))
			json.NewEncoder(conn).Encode(reply{Err: "another session is under way: try later"})
			conn.Close()
			continue
		}
		wg.Go(func() {
			defer func() { <-busy }()
			say("%s: session begins", conn.RemoteAddr())
			s := &session{o: &o, conn: conn}
			if err := s.serve(ctx); err != nil {
				say("%s: session ends: %v", conn.RemoteAddr(), err)
				return
			}
			say("%s: session ends", conn.RemoteAddr())
		})
	}
}

// turnTime is how long a session waits for the end of the one before it, before it is refused.
const turnTime = 300 * time.Millisecond

// session is one control connection of a server.
type session struct {
	o     *ServeOptions
	conn  net.Conn
	back  *localReceiver
	trial time.Duration
}

func (s *session) serve(ctx context.Context) error {
	tend(s.conn)
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	defer stop()
	defer s.conn.Close()
	defer s.free()
	r := bufio.NewReader(s.conn)
	for {
		s.conn.SetReadDeadline(time.Now().Add(idleTime + 2*s.trial))
		line, err := readLine(r)
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		var a reply
		q, err := parseRequest(line)
		if err == nil {
			err = s.do(ctx, q, &a)
		}
		if err != nil {
			a = reply{Err: err.Error()}
		}
		b, err := json.Marshal(a)
		if err != nil {
			return err
		}
		s.conn.SetWriteDeadline(time.Now().Add(replyTime))
		if _, err := s.conn.Write(append(b, '\n')); err != nil {
			return err
		}
	}
}

func (s *session) free() error {
	if s.back == nil {
		return nil
	}
	h := s.back
	s.back = nil
	return h.close()
}

func (s *session) do(ctx context.Context, q *request, a *reply) error {
	if s.back == nil && (q.Do == "begin" || q.Do == "end") {
		return fmt.Errorf("%w: stream: %s: nothing was prepared", engine.ErrInvalid, q.Do)
	}
	switch q.Do {
	case "hello":
		a.Version, a.Engine, a.Machine = protocolVersion, s.o.Engine, thisMachine()
		return nil
	case "prepare":
		if err := s.free(); err != nil {
			return err
		}
		if q.Cell.Engine != s.o.Engine {
			return fmt.Errorf("%w: stream: engine %s: this end serves %s", engine.ErrInvalid, q.Cell.Engine, s.o.Engine)
		}
		at := s.o.Address
		if !q.Cell.frames() {
			if at == "" {
				host, _, err := net.SplitHostPort(s.conn.LocalAddr().String())
				if err != nil {
					return err
				}
				at = net.JoinHostPort(host, "0")
			}
			at = socketAddress(q.Cell, at)
		}
		h, t, err := openFar(ctx, &place{address: at}, q.Cell, newClock())
		if err != nil {
			return err
		}
		s.back, s.trial, a.Target = h, q.Trial, &t
		return nil
	case "begin":
		return s.back.begin(ctx, q.Run)
	case "end":
		// The near end gives up one replyTime later.
		ctx, cancel := context.WithTimeout(ctx, q.Settle+2*replyTime)
		defer cancel()
		var err error
		a.Arrivals, err = s.back.end(ctx, q.Sent, max(q.Settle, time.Millisecond))
		return err
	case "free":
		return s.free()
	}
	return fmt.Errorf("%w: stream: unknown request %.20q", engine.ErrInvalid, q.Do)
}
