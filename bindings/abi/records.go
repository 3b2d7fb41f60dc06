package abi

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/penstock-io/penstock/config"
)

// maxRecords is how many bytes of records wait for Log, with recordCost for each.
const (
	maxRecords = 256 << 10
	recordCost = 64
)

// records has what the systems of a table log until the caller takes it. It is the writer of their
// handlers, which write a line for each record.
type records struct {
	mu      sync.Mutex
	asked   bool // the caller takes records
	open    int  // systems
	lines   [][]byte
	size    int
	dropped int           // since the last line
	changed chan struct{} // closed when lines or open change; nil: no call waits
}

// opening counts a system, and is the logger of it; nil: it logs as its configuration says.
func (s *records) opening(c *config.Config) *slog.Logger {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	level, some := c.Logging.Least()
	if !s.asked || !some || c.Logging.File != "" {
		return nil
	}
	// The group keeps attributes apart from what a record has besides.
	l := slog.New(slog.NewJSONHandler(s, &slog.HandlerOptions{Level: level,
		ReplaceAttr: plain}).WithGroup("attributes"))
	if c.Transfers != nil && c.Transfers.Name != "" {
		l = l.With("system", c.Transfers.Name)
	}
	return l
}

// closed counts a system that is closed, or was not opened.
func (s *records) closed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.tell()
}

// tell wakes all who wait. The caller holds the lock.
func (s *records) tell() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// plain makes numbers of the time and the level of a record.
func plain(groups []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case time.Time:
		if len(groups) == 0 {
			return slog.Int64(a.Key, v.UnixNano())
		}
	case slog.Level:
		if len(groups) == 0 {
			return slog.Int(a.Key, int(v))
		}
	}
	return a
}

// Write keeps a line, if there is room for it.
func (s *records) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size+len(line)+2*recordCost > maxRecords { // of which one is for the gap
		s.dropped++
		return len(line), nil
	}
	s.gap()
	s.add(bytes.Clone(bytes.TrimSuffix(line, []byte("\n"))))
	s.tell()
	return len(line), nil
}

// gap puts the number of dropped records where they would be.
func (s *records) gap() {
	if s.dropped > 0 {
		s.add(fmt.Appendf(nil, `{"time":%d,"level":%d,"msg":"records were dropped: the program did not take them in time","attributes":{"records":%d}}`, time.Now().UnixNano(), slog.LevelWarn, s.dropped))
		s.dropped = 0
	}
}

func (s *records) add(line []byte) {
	s.lines = append(s.lines, line)
	s.size += len(line) + recordCost
}

// Log is the oldest record that is kept, as JSON, and takes it if it has less than room bytes. It
// waits for one as long as a system is open and ctx has not ended; "" says that there is none. From
// the first call on, systems that are opened keep what they log.
func (t *Table) Log(ctx context.Context, room uint64) string {
	s := &t.records
	for {
		s.mu.Lock()
		s.asked = true
		if len(s.lines) == 0 {
			s.gap()
		}
		if len(s.lines) > 0 {
			line := s.lines[0]
			if uint64(len(line)) < room {
				s.size -= len(line) + recordCost
				s.lines[0] = nil
				s.lines = s.lines[1:]
			}
			s.mu.Unlock()
			return string(line)
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		open, changed := s.open, s.changed
		s.mu.Unlock()
		if open == 0 {
			return ""
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ""
		}
	}
}
