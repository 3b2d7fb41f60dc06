package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"
*/
import "C"

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/penstock-io/penstock/config"
)

// maxRecords is how many bytes of records wait for penstock_log, with recordCost for each.
const (
	maxRecords = 256 << 10
	recordCost = 64
)

// store has what systems log until C takes it. It is the writer of their handlers, which write a line for each record.
type store struct {
	mu      sync.Mutex
	asked   bool // somebody takes records
	open    int  // systems
	lines   [][]byte
	size    int
	dropped int           // since the last line
	changed chan struct{} // closed when lines or open change
}

var records = &store{changed: make(chan struct{})}

// opening counts a system, and is the logger of it; nil: it logs as its configuration says.
func (s *store) opening(c *config.Config) *slog.Logger {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	level, some := c.Logging.Least()
	if !s.asked || !some || c.Logging.File != "" {
		return nil
	}
	// The group keeps attributes apart from what a record has besides.
	l := slog.New(slog.NewJSONHandler(s, &slog.HandlerOptions{Level: level, ReplaceAttr: plain}).WithGroup("attributes"))
	if c.Transfers != nil && c.Transfers.Name != "" {
		l = l.With("system", c.Transfers.Name)
	}
	return l
}

// closed counts a system that is closed, or was not opened.
func (s *store) closed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.tell()
}

// tell wakes all who wait. The caller holds the lock.
func (s *store) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
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
func (s *store) Write(line []byte) (int, error) {
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
func (s *store) gap() {
	if s.dropped > 0 {
		s.add(fmt.Appendf(nil, `{"time":%d,"level":%d,"msg":"records were dropped: nobody took them in time","attributes":{"records":%d}}`, time.Now().UnixNano(), slog.LevelWarn, s.dropped))
		s.dropped = 0
	}
}

func (s *store) add(line []byte) {
	s.lines = append(s.lines, line)
	s.size += len(line) + recordCost
}

// take writes the oldest record to C, and keeps it if there is no room for it.
func (s *store) take(ctx context.Context, to *C.char, n C.size_t) C.int64_t {
	for {
		s.mu.Lock()
		s.asked = true
		if len(s.lines) == 0 {
			s.gap()
		}
		if len(s.lines) > 0 {
			k := text(string(s.lines[0]), to, n)
			if to != nil && k < C.int64_t(n) {
				s.size -= int(k) + recordCost
				s.lines[0] = nil
				s.lines = s.lines[1:]
			}
			s.mu.Unlock()
			return k
		}
		open, changed := s.open, s.changed
		s.mu.Unlock()
		if open == 0 {
			return 0
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0
		}
	}
}

//export penstock_log
func penstock_log(to *C.char, n C.size_t, timeout C.int64_t, out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		ctx, end := within(timeout)
		defer end()
		return records.take(ctx, to, n), nil
	})
}
