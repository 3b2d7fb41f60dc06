package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer/job"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/spf13/cobra"
)

// displayMode is how a command that moves bytes shows what it does.
type displayMode int

const (
	displayPlain    displayMode = iota // lines, for a file or a pipe
	displayTerminal                    // one line that is drawn again
	displayJSON                        // an object per event, on the standard output
	displayQuiet                       // nothing
)

// How often a display speaks at most.
const (
	redrawEvery = 125 * time.Millisecond
	plainEvery  = 10 * time.Second // or each tenth of the bytes
	eventEvery  = time.Second
)

// display shows the progress of a command. Its methods may be called from any goroutine. A caller
// of update never waits for a terminal that is stopped or a pipe that is full.
type display struct {
	mode  displayMode
	out   io.Writer // events; results of commands that print any
	err   io.Writer
	width func() int
	bold  bool

	mu sync.Mutex // guards s, held only for a moment
	s  status

	w      sync.Mutex // guards what follows and is held while something is written; taken before mu
	m      meter
	active bool
	drawn  bool // a line stands on the terminal that is to be drawn over
	spoke  time.Time
	tenth  int
	quit   chan struct{}
	over   sync.WaitGroup
}

// displayFlags are the flags of every command with a display.
type displayFlags struct{ json, quiet bool }

func (f *displayFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.json, "json", false,
		"print one JSON object per event, the last one the result (penstock help json)")
	c.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print errors only")
	fromEnvironment(c, "quiet")
}

func newDisplay(s streams, f displayFlags) *display {
	d := &display{mode: displayPlain, out: s.out, err: s.err, width: func() int { return terminalWidth(s.err) }}
	terminal := terminalWidth(s.err) > 0 && os.Getenv("TERM") != "dumb" && os.Getenv("TERM") != ""
	d.bold = terminal && os.Getenv("NO_COLOR") == ""
	switch {
	case f.json:
		d.mode = displayJSON
	case f.quiet:
		d.mode = displayQuiet
	case terminal:
		d.mode = displayTerminal
	}
	return d
}

// terminalWidth is the number of columns of the terminal that w is, or 0 when it is none.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	columns, _, err := sys.TermSize(f.Fd())
	if err != nil {
		return 0
	}
	if columns == 0 { // the terminal does not say
		return 80
	}
	return columns
}

// terminalRows is the number of lines of the terminal that w is.
func terminalRows(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if _, rows, err := sys.TermSize(f.Fd()); err == nil && rows > 0 {
			return rows
		}
	}
	return 24 // the terminal does not say
}

// begin starts to show a transfer of s.total bytes, of which s.done are there already.
func (d *display) begin(s status) {
	d.w.Lock()
	defer d.w.Unlock()
	s.resumed = s.done
	d.mu.Lock()
	d.s = s
	d.mu.Unlock()
	d.spoke, d.active = time.Now(), true
	d.m.start(d.spoke, s.total, s.done)
	d.tenth = d.m.percent() / 10
	d.quit = make(chan struct{})
	every := redrawEvery
	switch d.mode {
	case displayQuiet:
		return
	case displayJSON:
		every = eventEvery
	}
	quit := d.quit
	d.over.Go(func() { d.run(quit, every) })
}

// update changes what is shown. f is called at once, with a lock held.
func (d *display) update(f func(s *status)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.s)
}

func (d *display) run(quit chan struct{}, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-quit:
			return
		case now := <-t.C:
			d.w.Lock()
			if d.active {
				d.tick(now)
			}
			d.w.Unlock()
		}
	}
}

// tick shows the state at now, if it is time. d.w is held.
func (d *display) tick(now time.Time) {
	s := d.measure(now)
	switch d.mode {
	case displayTerminal:
		if w := d.width(); w > 1 { // the last column stays free: terminals differ in what they do after it
			fmt.Fprintf(d.err, "\r%s\x1b[K", s.render(w-1))
			d.drawn = true
		}
	case displayPlain:
		tenth := d.m.percent() / 10
		if tenth == d.tenth && now.Sub(d.spoke) < plainEvery {
			return
		}
		d.tenth, d.spoke = tenth, now
		if d.m.done < d.m.total { // the end has a line of its own
			fmt.Fprintln(d.err, s.line())
		}
	case displayJSON:
		d.emit(s.event())
	}
}

// measure brings the figures up to now. d.w is held.
func (d *display) measure(now time.Time) status {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.m.total = d.s.total // a mirror learns what is there already
	d.m.set(now, d.s.done)
	d.s.rate = d.m.rate()
	d.s.eta, d.s.hasETA = d.m.eta()
	return d.s
}

// event is the event "progress".
func (s status) event() event {
	e := event{Event: "progress", Name: s.name, Done: &s.done, Bytes: &s.total, BytesPerSecond: s.rate, Path: s.path}
	if s.hasETA {
		seconds := s.eta.Seconds()
		e.ETA = &seconds
	}
	return e
}

// say prints a line for people, on the standard error.
func (d *display) say(format string, args ...any) { d.line(d.err, format, args...) }

// print prints a line of the command's result for people, on the standard output.
func (d *display) print(format string, args ...any) { d.line(d.out, format, args...) }

func (d *display) line(to io.Writer, format string, args ...any) {
	d.w.Lock()
	defer d.w.Unlock()
	if d.mode == displayPlain || d.mode == displayTerminal {
		d.clear()
		fmt.Fprintf(to, format+"\n", args...)
	}
}

// warn is say for what must not be overlooked; it speaks also when the display is quiet.
func (d *display) warn(format string, args ...any) {
	d.w.Lock()
	defer d.w.Unlock()
	text := fmt.Sprintf(format, args...)
	if d.mode == displayJSON {
		d.emit(event{Event: "warning", Text: text})
		return
	}
	d.clear()
	mark := "WARNING:"
	if d.bold {
		mark = "\x1b[1m" + mark + "\x1b[0m"
	}
	fmt.Fprintf(d.err, "%s %s\n", mark, text)
}

// event prints an event for programs, where those are asked for.
func (d *display) event(e event) {
	d.w.Lock()
	defer d.w.Unlock()
	if d.mode == displayJSON {
		d.emit(e)
	}
}

func (d *display) emit(e event) {
	printJSONLine(d.out, e) // a reader that has gone ends the program by SIGPIPE
}

// clear removes the line that is drawn again and again. d.w is held.
func (d *display) clear() {
	if d.drawn {
		fmt.Fprint(d.err, "\r\x1b[K")
		d.drawn = false
	}
}

// end stops showing and leaves the terminal with an empty line. It returns how long it took and how
// fast it was on the average. More than one call does no harm.
func (d *display) end() (took time.Duration, bytesPerSecond float64) {
	d.w.Lock()
	if d.active {
		close(d.quit)
		d.active = false
		d.measure(time.Now())
	}
	d.clear()
	took, bytesPerSecond = d.m.elapsed(), d.m.average()
	d.w.Unlock()
	d.over.Wait()
	return took, bytesPerSecond
}

// began shows that a file begins to come or go.
func (d *display) began(name, file string, p share.Progress) {
	d.event(event{Event: "start", Name: name, File: file, Bytes: &p.Size, From: p.Start})
	s := status{what: share.Printable(name), name: name, done: p.Bytes, total: p.Size}
	if d.mode == displayPlain {
		d.say("%s", s.beginning())
	}
	d.begin(s)
}

// beginning is the first line of a log.
func (s status) beginning() string {
	text := fmt.Sprintf("%s: %s", s.what, formatBytes(s.total))
	if s.done > 0 {
		text += fmt.Sprintf(", resumed at %s", formatBytes(s.done))
	}
	return text
}

// lost shows that the peer is lost and looked for, or that something else failed and is tried
// again.
func (d *display) lost(name string, attempt int, f job.LinkFailure) {
	what := "connection lost"
	if !f.Lost && !f.Dial {
		what = "failed"
	}
	d.event(event{Event: "lost", Name: name, Attempt: attempt, Text: f.Err.Error()})
	if attempt == 1 {
		cause := escapeControls(f.Err.Error())
		if errors.Is(f.Err, path.ErrRevoked) {
			cause = "the peer serves the file no more, for now: it ends, or the file has changed"
		}
		const enough = 120 // columns; --json and --log-level have all of it
		d.say("%s, trying again: %s", what, shorten(cause, enough))
	}
	d.update(func(s *status) { s.problem = fmt.Sprintf("%s, attempt %d", what, attempt) })
}

// summary is the last line of a file that was moved.
func (d *display) summary(what string, r event) {
	text := fmt.Sprintf("%s: %s", share.Printable(what), formatBytes(*r.Bytes))
	moved := *r.Bytes - min(r.From, *r.Bytes)
	if r.From > 0 {
		text += fmt.Sprintf(", resumed at %s", formatBytes(r.From))
	}
	if moved > 0 {
		text += fmt.Sprintf(", in %s, %s", formatTime(time.Duration(*r.Seconds*1e9)), formatRate(r.BytesPerSecond))
	}
	if r.Path != "" {
		text += " over " + r.Path
	}
	if r.SHA256 != "" {
		text += "\nSHA-256 " + r.SHA256
	}
	d.say("%s", text)
}

// finish ends a command: the display ends, the result is the last event, and the error is what the
// command returns.
func (d *display) finish(ctx context.Context, r event, err error) error {
	d.end()
	err = interruption(ctx, err)
	ok, code := err == nil, exitStatus(err)
	r.Event, r.OK, r.Status = "result", &ok, &code
	if err != nil {
		r.Error = err.Error()
	}
	d.event(r)
	return err
}

// event is one line of --json; penstock help json has the words for it.
type event struct {
	Event string  `json:"event"`
	Name  string  `json:"name,omitempty"` // as the peer calls it
	File  string  `json:"file,omitempty"` // of this machine
	Link  string  `json:"link,omitempty"` // the text of a symbolic link
	Done  *uint64 `json:"done,omitempty"`
	Bytes *uint64 `json:"bytes,omitempty"`
	From  uint64  `json:"resumed_at,omitempty"`

	BytesPerSecond float64  `json:"bytes_per_second,omitempty"`
	ETA            *float64 `json:"eta_seconds,omitempty"`
	Seconds        *float64 `json:"seconds,omitempty"`
	Path           string   `json:"path,omitempty"`
	SHA256         string   `json:"sha256,omitempty"`

	Action  string `json:"action,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	Text    string `json:"text,omitempty"`

	Fetched *int `json:"fetched,omitempty"`
	Sent    *int `json:"sent,omitempty"`
	Kept    *int `json:"kept,omitempty"`
	Removed *int `json:"removed,omitempty"`
	Failed  *int `json:"failed,omitempty"`
	LeftOut *int `json:"left_out,omitempty"`

	Addresses []string `json:"addresses,omitempty"`
	Root      string   `json:"root,omitempty"`
	Files     *int     `json:"files,omitempty"`
	Writable  *bool    `json:"writable,omitempty"`
	Encrypted *bool    `json:"encrypted,omitempty"`
	Metrics   string   `json:"metrics,omitempty"`
	Peer      string   `json:"peer,omitempty"`

	OK     *bool  `json:"ok,omitempty"`
	Status *int   `json:"status,omitempty"`
	Error  string `json:"error,omitempty"`
}
