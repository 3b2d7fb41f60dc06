package cli

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/internal/sys"
)

// messageLog keeps the newest messages for the screen; any goroutine may add some.
type messageLog struct {
	mu   sync.Mutex
	all  []string
	more chan struct{} // holds one element when there is a new message
}

const keptMessages = 16

func newMessageLog() *messageLog { return &messageLog{more: make(chan struct{}, 1)} }

func (l *messageLog) add(text string) {
	l.mu.Lock()
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			l.all = append(l.all, line)
		}
	}
	l.all = slices.Clone(l.all[max(len(l.all)-keptMessages, 0):])
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

func (l *messageLog) newest() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// Write makes it the output of a logger: one message in each call.
func (l *messageLog) Write(p []byte) (int, error) {
	l.add(string(p))
	return len(p), nil
}

// terminalScreen draws on the alternate screen of a terminal, and puts the terminal back as it was.
// Its methods may be called from any goroutine.
type terminalScreen struct {
	out *os.File

	mu      sync.Mutex // guards what follows, and is held while something is drawn
	on      bool
	restore func() error // of the keys; nil: they are as they were
	keys    *os.File     // nil: none are read
	wg      sync.WaitGroup
}

// screenFor is the terminal that out is, if a screen can be drawn on it by this process: nil
// otherwise.
func screenFor(out io.Writer) *os.File {
	f, ok := out.(*os.File)
	if !ok || os.Getenv("TERM") == "" || os.Getenv("TERM") == "dumb" {
		return nil
	}
	if columns, _, err := sys.TermSize(f.Fd()); err != nil || columns == 1 || !sys.Foreground(f.Fd()) {
		return nil
	}
	return f
}

// openScreen begins to draw. pressed is called for each key, on a goroutine of its own, until
// close.
func openScreen(out *os.File, pressed func(key byte)) *terminalScreen {
	t := &terminalScreen{out: out, on: true}
	// A descriptor of its own, in Go's poller, so that close ends a Read.
	if keys, err := os.OpenFile("/dev/tty", os.O_RDONLY, 0); err == nil {
		if t.restore, err = sys.SingleKeys(out.Fd()); err != nil {
			keys.Close() // then lines and Ctrl-C do
		} else {
			t.keys = keys
			t.wg.Go(func() {
				var b [16]byte
				for {
					n, err := keys.Read(b[:])
					for _, k := range b[:n] {
						pressed(k)
					}
					if err != nil {
						return
					}
				}
			})
		}
	}
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l\x1b[H")
	return t
}

// size is that of the terminal; 80 x 24 where the terminal does not say.
func (t *terminalScreen) size() (columns, rows int) {
	columns, rows, _ = sys.TermSize(t.out.Fd())
	if columns == 0 {
		columns = 80
	}
	if rows == 0 {
		rows = 24
	}
	return columns, rows
}

// draw shows lines instead of what was there, in one write: a screen must not flicker.
func (t *terminalScreen) draw(lines []string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.on {
		return nil
	}
	_, err := io.WriteString(t.out, "\x1b[H"+strings.Join(lines, "\x1b[K\r\n")+"\x1b[K\x1b[J")
	return err
}

// close puts the terminal back. Calling it again does nothing.
func (t *terminalScreen) close() {
	t.mu.Lock()
	if !t.on {
		t.mu.Unlock()
		return
	}
	t.on = false
	fmt.Fprint(t.out, "\x1b[?25h\x1b[?1049l")
	if t.restore != nil {
		t.restore()
	}
	if t.keys != nil {
		t.keys.Close()
	}
	t.mu.Unlock()
	t.wg.Wait()
}

// resizes is a channel of the signals that say that the terminal has another size.
func resizes() (c chan os.Signal, stop func()) {
	c = make(chan os.Signal, 1)
	signal.Notify(c, sys.WindowChange)
	return c, func() { signal.Stop(c) }
}
