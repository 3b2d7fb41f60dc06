package cli

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/stage/app"
	"github.com/penstock-io/penstock/stage/record"
	root "github.com/penstock-io/penstock/system"
)

// runOutput shows a run: as a screen, lines, JSON, or not at all. Its methods may be called from
// any goroutine.
type runOutput struct {
	mode     displayMode
	out, err io.Writer
	terminal *os.File // nil: no screen
	interval time.Duration
	log      *messageLog
	quit     chan struct{} // holds one element when q was pressed
	limit    time.Duration
	noted    []string // notes of interfaces that were said; of the goroutine that shows

	mu     sync.Mutex // guards what follows, and is held while something is written
	screen *terminalScreen
	title  string
	shown  *runSample // the newest
	last   *runSample // of the end; nil if nothing was opened
}

func newRunOutput(s streams, o runOptions) *runOutput {
	w := &runOutput{mode: displayPlain, out: s.out, err: s.err, interval: o.interval, log: newMessageLog(),
		quit: make(chan struct{}, 1), limit: o.duration}
	switch {
	case o.json:
		w.mode = displayJSON
	case o.quiet:
		w.mode = displayQuiet
	case !o.dryRun:
		if w.terminal = screenFor(s.out); w.terminal != nil {
			w.mode = displayTerminal
		}
	}
	if w.interval == 0 {
		w.interval = 10 * time.Second
		if w.mode == displayTerminal {
			w.interval = time.Second
		}
	}
	return w
}

// emit prints a JSON object.
func (w *runOutput) emit(v any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := printJSONLine(w.out, v); err != nil {
		fmt.Fprintf(w.err, "penstock: %v\n", err)
	}
}

// runDiagnosed is the events "problem" and "warning".
type runDiagnosed struct {
	Event       string             `json:"event"`
	Text        string             `json:"text,omitempty"`
	Diagnostics config.Diagnostics `json:"diagnostics,omitempty"`
}

// problems says what is wrong with the file, and returns the error that ends the command.
func (w *runOutput) problems(name string, d config.Diagnostics, text []byte) error {
	if w.mode == displayJSON {
		w.emit(runDiagnosed{"problem", name + ": " + d.Summary(), d})
		return errReported
	}
	fmt.Fprint(w.err, printableText(fmt.Sprintf("%s\n%s: %s\n", d.Text(text), name, d.Summary())))
	return errReported
}

func (w *runOutput) warnings(d config.Diagnostics, text []byte) {
	if w.mode == displayJSON {
		w.emit(runDiagnosed{"warning", "", d})
		return
	}
	fmt.Fprint(w.err, printableText(d.Text(text)+"\n"))
}

// warn says what must not be overlooked.
func (w *runOutput) warn(text string) {
	if w.mode == displayJSON {
		w.emit(runDiagnosed{Event: "warning", Text: text})
		return
	}
	fmt.Fprintf(w.err, "WARNING: %s\n", printableText(text))
}

// runPlan is the event "plan".
type runPlan struct {
	Event string `json:"event"`
	OK    bool   `json:"ok"` // whether it could be run here
	*root.Plan
}

// unclaimed are warnings of receive queues that have no application.
func unclaimed(p *root.Plan) (out []string) {
	for _, a := range p.Applications {
		if a.Unclaimed {
			out = append(out, fmt.Sprintf("no application takes the packets of receive queue %s: they are counted "+
				"and dropped", a.From))
		}
	}
	return out
}

// dryRun prints the plan, and says by its error whether it could be run.
func (w *runOutput) dryRun(p *root.Plan) error {
	if w.mode == displayJSON {
		for _, x := range unclaimed(p) {
			w.warn(x)
		}
		w.emit(runPlan{"plan", p.Err() == nil, p})
	} else {
		fmt.Fprint(w.out, printableText(p.Text()))
		for _, x := range unclaimed(p) {
			w.warn(x)
		}
	}
	if p.Err() != nil {
		return w.missingError(p)
	}
	return nil
}

// missing says what is not here.
func (w *runOutput) missing(p *root.Plan, text []byte) error {
	if w.mode == displayJSON {
		w.emit(runDiagnosed{"problem", "", p.Missing})
	} else {
		fmt.Fprint(w.err, printableText(p.Missing.Text(text)+"\n"))
	}
	return w.missingError(p)
}

func (w *runOutput) missingError(p *root.Plan) error {
	is := "is"
	if len(p.Missing) > 1 {
		is = "are"
	}
	return &worded{fmt.Sprintf("%s %s not here that %s needs", count(len(p.Missing), "thing", "things"), is, p.File),
		root.ErrMissing}
}

// plan says what will be opened.
func (w *runOutput) plan(p *root.Plan) {
	switch w.mode {
	case displayJSON:
		w.emit(runPlan{"plan", true, p})
	case displayPlain, displayTerminal:
		fmt.Fprint(w.out, printableText(p.Text()))
		if p.GPU != nil && p.GPU.Runtime == "opencl" {
			fmt.Fprintf(w.out, "opening: %s builds kernels, which can take seconds\n", printableText(p.GPU.Devices[0]))
		}
	}
	for _, x := range unclaimed(p) {
		w.warn(x)
		if w.mode == displayTerminal {
			w.log.add("WARNING: " + x)
		}
	}
}

// logger is where the system's log goes while there is a screen; nil leaves that to the file.
func (w *runOutput) logger(c *config.Config) *slog.Logger {
	if w.mode != displayTerminal || c.Logging.File != "" {
		return nil
	}
	level, some := c.Logging.Least()
	if !some {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.String("at", a.Value.Time().Format(time.TimeOnly))
			}
			return a
		}}))
}

// notes says once what interfaces do not do, but not what the plan has said.
func (w *runOutput) notes(p *root.Plan, s *root.Snapshot) {
	for i := range s.Interfaces {
		f := &s.Interfaces[i]
		for _, n := range f.Notes {
			said := func(d config.Diagnostic) bool { return d.Message == fmt.Sprintf("interface %q: %s", f.Name, n) }
			text := fmt.Sprintf("interface %s: %s", f.Name, n)
			if slices.Contains(w.noted, text) || slices.ContainsFunc(p.Notes, said) {
				continue
			}
			w.noted = append(w.noted, text)
			if w.screen == nil && (w.mode == displayTerminal || w.mode == displayPlain) { // below the plan
				w.mu.Lock()
				fmt.Fprint(w.out, printableText(wrapped(text, 0, 80)+"\n"))
				w.mu.Unlock()
			} else {
				w.message(text)
			}
		}
	}
}

// started begins to show.
func (w *runOutput) started(r *runner, m *sampler) {
	raw := r.read()
	first := m.sample(raw)
	w.notes(r.sys.Plan(), &raw.sys)
	w.title = r.name
	switch w.mode {
	case displayJSON:
		addrs := []string{}
		if n := r.sys.Node(); n != nil {
			addrs = n.Addrs()
		}
		w.emit(struct {
			Event     string   `json:"event"`
			Addresses []string `json:"addresses"`
		}{"started", addrs})
	case displayPlain:
		w.message("running")
		if n := r.sys.Node(); n != nil {
			for _, a := range n.Addrs() {
				w.message("at " + a)
			}
		}
	case displayTerminal:
		t := openScreen(w.terminal, func(key byte) {
			if key == 'q' || key == 'Q' {
				select {
				case w.quit <- struct{}{}:
				default:
				}
			}
		})
		w.mu.Lock()
		w.screen = t
		w.mu.Unlock()
		w.show(first)
	}
}

// show shows a sample.
func (w *runOutput) show(s *runSample) {
	switch w.mode {
	case displayJSON:
		w.emit(s)
	case displayPlain:
		w.mu.Lock()
		defer w.mu.Unlock()
		fmt.Fprintln(w.out, sampleLine(s))
	case displayTerminal:
		w.mu.Lock()
		w.shown = s
		w.mu.Unlock()
		w.redraw()
	}
}

// redraw draws the newest sample again: the terminal has another size, or there is a message.
func (w *runOutput) redraw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.screen == nil || w.shown == nil {
		return
	}
	columns, rows := w.screen.size()
	f := &runFrame{title: w.title, sample: w.shown, messages: w.log.newest(), color: terminalColor(),
		limited: w.limit > 0}
	f.left = w.limit - time.Duration(w.shown.Seconds*1e9)
	w.screen.draw(f.lines(columns, rows))
}

// closeScreen puts the terminal back. The messages that were on it follow.
func (w *runOutput) closeScreen() {
	w.mu.Lock()
	t := w.screen
	w.screen = nil
	w.mu.Unlock()
	if t == nil {
		return
	}
	t.close()
	for _, m := range w.log.newest() {
		fmt.Fprintln(w.err, printableText(m))
	}
}

// rescue puts the terminal back when something panics, so that it can be read.
func (w *runOutput) rescue() {
	if p := recover(); p != nil {
		w.closeScreen()
		panic(p)
	}
}

// hungUp reports whether the terminal has gone: then its signal does not ask for a reload.
func (w *runOutput) hungUp() bool {
	if w.terminal == nil {
		return false
	}
	_, _, err := sys.TermSize(w.terminal.Fd())
	return err != nil
}

// message says what happens beside.
func (w *runOutput) message(text string) {
	switch w.mode {
	case displayJSON:
		w.emit(runDiagnosed{Event: "message", Text: text})
	case displayPlain:
		w.mu.Lock()
		defer w.mu.Unlock()
		fmt.Fprintln(w.out, printableText(text))
	case displayTerminal:
		w.log.add(time.Now().Format(time.TimeOnly) + " " + text)
	}
}

// runLink is the event "link".
type runLink struct {
	Event     string          `json:"event"`
	Interface string          `json:"interface"`
	Change    root.LinkChange `json:"change"` // down, up, lost, reopened
}

// link says what became of the link of an interface.
func (w *runOutput) link(e root.LinkEvent) {
	text := fmt.Sprintf("interface %s: %s", e.Interface, map[root.LinkChange]string{
		root.LinkDown: "the link is down", root.LinkUp: "the link is up", root.LinkLost: "it is gone",
		root.LinkReopened: "it is back, and was opened again",
	}[e.Change])
	switch w.mode {
	case displayJSON:
		w.emit(runLink{"link", e.Interface, e.Change})
	case displayQuiet:
		w.warn(text)
	default:
		w.message(text)
	}
}

// runReload is the event "reload".
type runReload struct {
	Event       string             `json:"event"`
	OK          bool               `json:"ok"`
	Changes     *root.Changes      `json:"changes,omitempty"`
	Error       string             `json:"error,omitempty"`
	Diagnostics config.Diagnostics `json:"diagnostics,omitempty"`
}

// reload says what came of an attempt to put the flows of the file in force.
func (w *runOutput) reload(r root.Reloaded) {
	if w.mode == displayJSON {
		e := runReload{Event: "reload", OK: r.Err == nil, Changes: r.Changes, Diagnostics: r.Problems}
		if r.Err != nil {
			e.Error = r.Err.Error()
		}
		w.emit(e)
		return
	}
	var text string
	switch {
	case r.Err == nil:
		text = "reloaded: " + strings.ReplaceAll(r.Changes.String(), "\n", "; ")
	case r.Problems.Count(config.Error) > 0:
		text = "reload: the file is wrong, nothing was changed\n" + r.Problems.Only(config.Error).Text(r.Text)
	default:
		text = "reload: nothing was changed: " + r.Err.Error()
	}
	if w.mode == displayQuiet {
		if r.Err == nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		fmt.Fprintln(w.err, printableText(text))
		return
	}
	w.message(text)
}

// runEnded is the event "ended": the last sample, whose counts are exact, and how it ended.
type runEnded struct {
	*runSample
	Event  string `json:"event"`
	OK     bool   `json:"ok"`
	Status int    `json:"status"`
	Error  string `json:"error,omitempty"`
}

// ended adds up, and returns the error of the command.
func (w *runOutput) ended(err error) error {
	if w.mode == displayJSON {
		e := runEnded{runSample: w.last, Event: "ended", OK: err == nil, Status: exitStatus(err)}
		if err != nil {
			e.Error = err.Error()
		}
		if e.runSample == nil {
			e.runSample = &runSample{}
		}
		w.emit(e)
	} else if w.last != nil && w.mode != displayQuiet {
		fmt.Fprint(w.out, printableText(summary(w.last)))
	}
	return err
}

// sampleLine is a sample in one line.
func sampleLine(s *runSample) string {
	var parts []string
	for _, f := range s.Interfaces {
		parts = append(parts, fmt.Sprintf("%s in %s/s %s out %s/s %s", f.Name, formatPerSecond(f.In.PacketsPerSecond),
			formatBits(f.In.BitsPerSecond), formatPerSecond(f.Out.PacketsPerSecond), formatBits(f.Out.BitsPerSecond)))
	}
	var dropped uint64
	var rate float64
	for _, d := range s.Drops {
		dropped += d.Packets
		rate += d.PacketsPerSecond
	}
	text := fmt.Sprintf("%s  %s", formatETA(time.Duration(s.Seconds*1e9)), strings.Join(parts, ", "))
	if n := s.Node; n != nil {
		text += fmt.Sprintf("; %s, in %s out %s", count(len(n.Peers), "peer", "peers"), formatRate(n.InPerSecond),
			formatRate(n.OutPerSecond))
	}
	if dropped > 0 {
		text += fmt.Sprintf("; dropped %d, %s/s", dropped, formatPerSecond(rate))
	}
	return text
}

// summary is what came of the whole run.
func summary(s *runSample) string {
	var b strings.Builder
	fmt.Fprintf(&b, "ran for %s\n", formatTime(time.Duration(s.Seconds*1e9)))
	drops := func(iface, app string) string {
		var parts []string
		for _, d := range s.Drops {
			if d.iface == iface && (iface != "" || d.Where == app) {
				parts = append(parts, fmt.Sprintf("%s %d", d.Reason, d.Packets))
			}
		}
		if parts == nil {
			return "nothing dropped"
		}
		return "dropped: " + strings.Join(parts, ", ")
	}
	for _, f := range s.Interfaces {
		fmt.Fprintf(&b, "%s: received %s, %s; sent %s, %s; %s\n", f.Name, count(int(f.In.Packets), "packet", "packets"),
			formatBytes(f.In.Bytes), count(int(f.Out.Packets), "packet", "packets"), formatBytes(f.Out.Bytes),
			drops(f.Name, ""))
		for _, r := range s.Rules {
			if r.Interface == f.Name && r.Closed > 0 {
				fmt.Fprintf(&b, "  flow %s: %s, of which %d waited at the end and were thrown away\n",
					cmp.Or(r.Name, r.Rule), count(int(r.Packets), "packet", "packets"), r.Closed)
			}
		}
	}
	var stage string
	var counts []string
	end := func() {
		if counts != nil {
			fmt.Fprintf(&b, "%s: %s\n", stage, strings.Join(counts, ", "))
		}
		counts = nil
	}
	for _, x := range s.Stages {
		if x.Where != stage {
			end()
			stage = x.Where
		}
		if x.Count > 0 {
			counts = append(counts, fmt.Sprintf("%s %d", x.Event, x.Count))
		}
	}
	end()
	for _, x := range s.Recordings {
		fmt.Fprintf(&b, "%s: recorded %s\n", x.Where, recordText(x.Snapshot))
	}
	for _, a := range s.Applications {
		fmt.Fprintf(&b, "%s: took %s", a.Name, count(int(a.Packets), "packet", "packets"))
		if a.Sent > 0 {
			fmt.Fprintf(&b, ", sent %d", a.Sent)
		}
		fmt.Fprintf(&b, "; %s\n", drops("", a.Name))
		if t := a.Tensor; t != nil {
			fmt.Fprintf(&b, "  tensor %s: %s, %d rows, %d missing%s\n", t.Name,
				count(int(t.Generations), "was made", "were made"), t.Rows, t.Missing, batchesText(t))
		}
		if r := a.Record; r != nil {
			fmt.Fprintf(&b, "  recorded %s\n", recordText(r))
		}
	}
	if n := s.Node; n != nil {
		fmt.Fprintf(&b, "node: %s; those of the end: in %s, out %s\n", count(int(n.PeersEver), "peer", "peers"),
			formatBytes(n.In), formatBytes(n.Out))
	}
	return b.String()
}

// recordText says what is in the files of a recording, and what is not.
func recordText(r *record.Snapshot) string {
	s := fmt.Sprintf("%s, %s, %s", count(int(r.Packets), "packet", "packets"), formatBytes(r.Bytes),
		count(int(r.Files), "whole file", "whole files"))
	if r.Held > 0 {
		s += fmt.Sprintf(", %d in the ring", r.Held)
	}
	if r.Filtered > 0 {
		s += fmt.Sprintf(", filtered %d", r.Filtered)
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Lost)) {
		s += fmt.Sprintf(", %s %d", reason, r.Lost[reason])
	}
	if r.Error != "" {
		s += "; " + safeText(r.Error, 200)
	}
	if u := r.Upload; u != nil {
		s += fmt.Sprintf("; uploaded %s, %s, %d wait, %d removed before", count(int(u.Files), "file", "files"),
			formatBytes(u.Bytes), u.Waiting, u.Removed)
		if u.Error != "" {
			s += ": " + safeText(u.Error, 300)
		}
	}
	return s
}

// batchesText says which packets of batches are missing in the rows of a tensor.
func batchesText(t *app.TensorSnapshot) string {
	if t.Batches == nil {
		return ""
	}
	return fmt.Sprintf("; %s of batches missing in them", count(int(t.Batches.Missing), "packet", "packets"))
}
