package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// The control connection carries one JSON object a line, a request and its reply in turn:
//
//	hello    {version}                  -> version, engine, machine
//	prepare  {cell, trial_ns}           -> target: where the near end sends to
//	begin    {run}                      -> counting has begun
//	end      {sent, settle_ns}          -> arrivals
//	free                                -> the cell is closed
//
// The one who asks measures; the one who answers only counts. Numbers that came are bounded before
// anything is allocated for them.
const (
	protocolVersion = 1
	maxLine         = 1 << 20 // bytes
	replyTime       = 10 * time.Second
	idleTime        = time.Minute // without a request, besides twice a trial
)

type request struct {
	Do      string        `json:"do"`
	Version int           `json:"version,omitempty"`
	Cell    *cell         `json:"cell,omitempty"`
	Trial   time.Duration `json:"trial_ns,omitempty"`
	Run     uint16        `json:"run,omitempty"`
	Sent    []uint64      `json:"sent,omitempty"`
	Settle  time.Duration `json:"settle_ns,omitempty"`
}

type reply struct {
	Err      string    `json:"err,omitempty"`
	Version  int       `json:"version,omitempty"`
	Engine   string    `json:"engine,omitempty"`
	Machine  string    `json:"machine,omitempty"`
	Target   *target   `json:"target,omitempty"`
	Arrivals *Arrivals `json:"arrivals,omitempty"`
}

// parseRequest reads a request and checks everything in it that has bounds.
func parseRequest(line []byte) (*request, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	q := new(request)
	if err := d.Decode(q); err != nil {
		return nil, fmt.Errorf("%w: stream: request %.60q: %w", engine.ErrInvalid, line, err)
	}
	bad := func(format string, a ...any) (*request, error) {
		return nil, fmt.Errorf("%w: stream: request %.20q: %s", engine.ErrInvalid, q.Do, fmt.Sprintf(format, a...))
	}
	switch {
	case q.Do == "prepare" && q.Cell == nil:
		return bad("expected a cell")
	case q.Trial < 0 || q.Trial > time.Hour || q.Settle < 0 || q.Settle > time.Minute:
		return bad("trial of %v, settle %v: expected up to 1h and 1m", q.Trial, q.Settle)
	case len(q.Sent) > MaxStreams:
		return bad("%d streams: expected up to %d", len(q.Sent), MaxStreams)
	}
	for i, n := range q.Sent {
		if n > MaxPackets {
			return bad("%d packets of stream %d: expected up to %d", n, i, MaxPackets)
		}
	}
	if q.Cell != nil {
		if err := q.Cell.check(); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// thisMachine is a word that is the same in all processes that share CLOCK_MONOTONIC; "" where that
// is not known.
func thisMachine() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	clocks, e := os.Readlink("/proc/self/ns/time")
	if err != nil || e != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + clocks
}

// tend makes a connection notice within some ten seconds that the other end is gone.
func tend(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second,
			Count: 3})
	}
}

// readLine reads a line of at most maxLine bytes.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return nil, fmt.Errorf("stream: a line of more than %d bytes", maxLine)
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// client is the near end of a control connection.
type client struct {
	at   string
	conn net.Conn
	r    *bufio.Reader
	hi   reply
}

// dial connects to a server.
func dial(ctx context.Context, at string) (*client, error) {
	d := net.Dialer{Timeout: replyTime}
	conn, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, fmt.Errorf("stream: server %s: %w: is penstock bench stream --serve running there?", at, err)
	}
	tend(conn)
	c := &client{at: at, conn: conn, r: bufio.NewReader(conn)}
	a, err := c.ask(ctx, request{Do: "hello", Version: protocolVersion}, replyTime)
	if err == nil && a.Version != protocolVersion {
		err = fmt.Errorf("stream: server %s: control protocol %d: expected %d; use the same program at both ends", at,
			a.Version, protocolVersion)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	c.hi = *a
	return c, nil
}

// ask makes one request. After an error of the connection it cannot be used any more.
func (c *client) ask(ctx context.Context, q request, limit time.Duration) (*reply, error) {
	stop := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.conn.SetDeadline(time.Now().Add(limit))
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fail := func(err error) (*reply, error) {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if errors.Is(err, io.EOF) {
			err = errors.New("it closed the control connection")
		}
		c.conn.Close()
		return nil, fmt.Errorf("stream: server %s: %s: %w", c.at, q.Do, err)
	}
	b, err := json.Marshal(q)
	if err != nil {
		return fail(err)
	}
	if _, err := c.conn.Write(append(b, '\n')); err != nil {
		return fail(err)
	}
	line, err := readLine(c.r)
	if err != nil {
		return fail(err)
	}
	a := new(reply)
	if err := json.Unmarshal(line, a); err != nil {
		return fail(err)
	}
	if a.Err != "" {
		return nil, fmt.Errorf("stream: server %s: %s: %q", c.at, q.Do, a.Err)
	}
	return a, nil
}

// hangUp ends the session.
func (c *client) hangUp() error { c.conn.Close(); return nil }

// prepare has the server open a cell.
func (c *client) prepare(ctx context.Context, x *cell, trial time.Duration) (*distant, error) {
	if x.Engine != c.hi.Engine {
		return nil, fmt.Errorf("%w: stream: server %s serves engine %q, not %s", engine.ErrInvalid, c.at, c.hi.Engine,
			x.Engine)
	}
	a, err := c.ask(ctx, request{Do: "prepare", Cell: x, Trial: trial}, 3*replyTime)
	if err != nil {
		return nil, err
	}
	if a.Target == nil {
		return nil, fmt.Errorf("stream: server %s: prepare: it told no address", c.at)
	}
	here := thisMachine()
	return &distant{c: c, target: *a.Target, sharedClock: here != "" && here == c.hi.Machine}, nil
}

// distant is a receiving end behind a control connection.
type distant struct {
	c           *client
	target      target
	sharedClock bool
}

func (d *distant) begin(ctx context.Context, run uint16) error {
	_, err := d.c.ask(ctx, request{Do: "begin", Run: run}, replyTime)
	return err
}

func (d *distant) end(ctx context.Context, sent []uint64, settle time.Duration) (*Arrivals, error) {
	// The server waits as long as packets come, and longer than what was sent cannot take.
	a, err := d.c.ask(ctx, request{Do: "end", Sent: sent, Settle: settle}, settle+3*replyTime)
	if err != nil {
		return nil, err
	}
	if a.Arrivals == nil {
		return nil, fmt.Errorf("stream: server %s: end: it told nothing", d.c.at)
	}
	total := uint64(0)
	for _, n := range sent {
		total += n
	}
	return a.Arrivals, a.Arrivals.check(total)
}

func (d *distant) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), replyTime)
	defer cancel()
	_, err := d.c.ask(ctx, request{Do: "free"}, replyTime)
	return err
}
