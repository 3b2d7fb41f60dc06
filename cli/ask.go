package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/penstock-io/penstock/internal/sys"
)

// terminal is the terminal that standard input is; nil: it is none.
func (s streams) terminal() *os.File {
	f, ok := s.in.(*os.File)
	if !ok {
		return nil
	}
	if _, _, err := sys.TermSize(f.Fd()); err != nil {
		return nil
	}
	return f
}

// askLine prints a question on a terminal and returns the line that the user types, without its
// end. Without echo the terminal does not show it. When ctx ends it returns its error.
func askLine(ctx context.Context, terminal *os.File, question string, echo bool) (line string, err error) {
	// A descriptor of its own, in Go's poller, so that Close ends a Read.
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("the terminal: %w", err)
	}
	defer tty.Close()
	restore, err := sys.LineInput(terminal.Fd(), echo)
	if err != nil {
		return "", fmt.Errorf("the terminal: %w", err)
	}
	defer func() { err = errors.Join(err, restore()) }()
	if _, err := io.WriteString(tty, question); err != nil {
		return "", fmt.Errorf("the terminal: %w", err)
	}
	defer context.AfterFunc(ctx, func() { tty.Close() })()
	in := bufio.NewScanner(tty)
	if !in.Scan() {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", errors.Join(errors.New("no answer"), in.Err())
	}
	return in.Text(), nil
}
