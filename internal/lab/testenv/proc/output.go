package proc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
)

// How much of a process's output is kept: the first and the last lines, each cut at maxLine bytes.
const (
	keepFirst = 100
	keepLast  = 400
	maxLine   = 4 << 10
)

// output keeps lines of a process and lets others wait for them.
type output struct {
	onLine func(string)
	wg     sync.WaitGroup
	files  []*os.File

	mu     sync.Mutex
	first  []string
	last   []string // a ring once it is full; next is its oldest
	next   int
	total  int           // lines seen
	more   chan struct{} // closed and replaced with each line, closed for good at the end
	ended  bool
	cursor int // NextLine looks at lines from this number on
}

func newOutput(onLine func(string)) *output {
	return &output{onLine: onLine, more: make(chan struct{})}
}

// read takes lines from both streams until they end.
func (o *output) read(stdout, stderr *os.File) {
	o.files = []*os.File{stdout, stderr}
	for i, f := range o.files {
		o.wg.Go(func() {
			defer f.Close()
			r := bufio.NewReader(f)
			for {
				line, err := readLine(r)
				if err == nil || line != "" {
					o.add(line)
					if i == 0 && o.onLine != nil {
						o.onLine(line)
					}
				}
				if err != nil {
					return
				}
			}
		})
	}
}

// follow reads a terminal instead.
func (o *output) follow(t *Terminal) {
	o.files = []*os.File{t.user}
	o.wg.Go(t.read)
}

// readLine is the next line without its end, cut at maxLine bytes; the rest is skipped.
func readLine(r *bufio.Reader) (string, error) {
	var b strings.Builder
	cut := 0
	for {
		part, err := r.ReadSlice('\n')
		text := strings.TrimSuffix(string(part), "\n")
		room := min(len(text), maxLine-b.Len())
		b.WriteString(text[:room])
		cut += len(text) - room
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if cut > 0 {
			fmt.Fprintf(&b, " [... %d more bytes]", cut)
		}
		return b.String(), err
	}
}

func (o *output) add(line string) {
	o.mu.Lock()
	switch {
	case len(o.first) < keepFirst:
		o.first = append(o.first, line)
	case len(o.last) < keepLast:
		o.last = append(o.last, line)
	default:
		o.last[o.next] = line
		o.next = (o.next + 1) % keepLast
	}
	o.total++
	close(o.more)
	o.more = make(chan struct{})
	o.mu.Unlock()
}

// finish waits for the end of both streams and closes them after the time limit; it reports whether
// they ended by themselves.
func (o *output) finish(limit time.Duration) bool {
	end := make(chan struct{})
	go func() {
		o.wg.Wait()
		close(end)
	}()
	t := time.NewTimer(limit)
	defer t.Stop()
	good := true
	select {
	case <-end:
	case <-t.C:
		good = false
		for _, f := range o.files {
			f.Close()
		}
		<-end
	}
	o.mu.Lock()
	o.ended = true
	close(o.more)
	o.mu.Unlock()
	return good
}

// numbered is a line with its number, from 0 on.
type numbered struct {
	n    int
	text string
}

// kept are the lines that are still there from number from on.
func (o *output) kept(from int) (lines []numbered) {
	for n := from; n < len(o.first); n++ {
		lines = append(lines, numbered{n, o.first[n]})
	}
	for n := max(from, o.total-len(o.last)); n < o.total; n++ {
		lines = append(lines, numbered{n, o.last[(o.next+n-(o.total-len(o.last)))%len(o.last)]})
	}
	return lines
}

// wait looks at each kept line from number from on, as they come, and returns the first match and
// its line's number.
func (o *output) wait(ctx context.Context, from int, re *regexp.Regexp) (match []string, at int, err error) {
	for {
		o.mu.Lock()
		lines := o.kept(from)
		total, more, ended := o.total, o.more, o.ended
		o.mu.Unlock()
		for _, l := range lines {
			if m := re.FindStringSubmatch(l.text); m != nil {
				return m, l.n, nil
			}
		}
		from = total
		if ended {
			return nil, 0, errors.New("the process ended")
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// text is everything that was kept, with a mark where lines are missing.
func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var b strings.Builder
	for at, l := range o.kept(0) {
		if gap := l.n - at; gap > 0 && at == len(o.first) {
			fmt.Fprintf(&b, "[... %d lines]\n", gap)
		}
		b.WriteString(l.text + "\n")
	}
	return b.String()
}

// tail is the last lines, for errors.
func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := o.kept(max(0, o.total-20))
	if len(lines) == 0 {
		return "it printed nothing"
	}
	var b strings.Builder
	b.WriteString("its last lines:")
	for _, l := range lines {
		b.WriteString("\n" + l.text)
	}
	return b.String()
}

// Output is what the process printed on both streams until now: the first 100 and the last 400
// lines, in the order in which they were read, each cut at 4 KiB. For a process on a terminal it is
// what that shows.
func (p *Process) Output() string {
	if p.term != nil {
		return p.term.Text()
	}
	return p.out.text()
}

// WaitLine waits until a line of either stream matches and returns the submatches of the first that
// does; lines that came before the call count, as far as they are kept. The error says what the
// process printed last, and how it ended if it did.
func (p *Process) WaitLine(ctx context.Context, re *regexp.Regexp) ([]string, error) {
	m, _, err := p.out.wait(ctx, 0, re)
	return m, p.lineError(re, err)
}

// NextLine is WaitLine for the lines after the one that the last NextLine found.
func (p *Process) NextLine(ctx context.Context, re *regexp.Regexp) ([]string, error) {
	p.out.mu.Lock()
	from := p.out.cursor
	p.out.mu.Unlock()
	m, at, err := p.out.wait(ctx, from, re)
	if err == nil {
		p.out.mu.Lock()
		p.out.cursor = max(p.out.cursor, at+1)
		p.out.mu.Unlock()
	}
	return m, p.lineError(re, err)
}

func (p *Process) lineError(re *regexp.Regexp, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("proc: no line of %s matches %q: %w; %s", p, re, err, p.out.tail())
}
