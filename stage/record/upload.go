package record

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// An Uploader copies whole files to another place, which its String names.
type Uploader interface {
	// Check returns what is wrong with the place and does not mend itself.
	Check() error
	// Upload returns nil when the place has all of the file at path, also from before. One
	// goroutine at a time calls it.
	Upload(path string) error
	String() string
}

// Uploads are what a Recorder has uploaded so far.
type Uploads struct {
	To       string `json:"to"`    // "": nowhere
	Files    uint64 `json:"files"` // that are there, those of earlier runs included
	Bytes    uint64 `json:"bytes"` // of them
	Waiting  uint64 `json:"waiting"`
	Failures uint64 `json:"failures"`        // of tries
	Removed  uint64 `json:"removed"`         // files that Keep removed although they were not there
	Error    string `json:"error,omitempty"` // of the last try
}

// pause is how long files wait that could not be uploaded.
const pause = 10 * time.Second

// A version is a file under a name, which another one may have later.
type version struct {
	name string
	size int64
	at   int64
}

func versionOf(name string, info fs.FileInfo) version {
	return version{name, info.Size(), info.ModTime().UnixNano()}
}

// uploads uploads the whole files of a Recorder, one at a time. The directory is what remembers
// them. The Recorder's lock guards sent, and its statistics.
type uploads struct {
	r    *Recorder
	wake chan struct{}
	end  sync.WaitGroup
	sent map[version]bool
}

func (u *uploads) loop() {
	for last := false; ; {
		waiting, failed := u.scan(), false
		for _, v := range waiting {
			ok, closed := u.try(v)
			if failed = failed || !ok; failed && closed {
				break
			}
		}
		if last {
			return
		}
		var again <-chan time.Time
		if failed {
			again = time.After(pause)
		}
		select {
		case <-u.wake:
		case <-again:
		case <-u.r.done:
			last = true
		}
	}
}

// scan returns the files that wait, and forgets those that have gone. The oldest is the first;
// after Close the newest, which those that have failed would hold up.
func (u *uploads) scan() (waiting []version) {
	sent := map[version]bool{}
	err := u.r.files.name.each(func(name string, info fs.FileInfo) {
		if v := versionOf(name, info); u.sent[v] { // which no other goroutine changes
			sent[v] = true
		} else if !strings.HasSuffix(name, partial) {
			waiting = append(waiting, v)
		}
	})
	u.r.mu.Lock()
	defer u.r.mu.Unlock()
	if u.sent, u.r.stats.Uploads.Waiting = sent, uint64(len(waiting)); err != nil {
		u.r.stats.Uploads.Error = err.Error()
	}
	slices.SortFunc(waiting, func(a, b version) int {
		return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.name, b.name))
	})
	if u.r.closed {
		slices.Reverse(waiting)
	}
	return waiting
}

// try uploads a file, and returns whether Close was called.
func (u *uploads) try(v version) (ok, closed bool) {
	err := u.r.o.Upload.Upload(filepath.Join(u.r.files.name.dir, v.name))
	u.r.mu.Lock()
	defer u.r.mu.Unlock()
	s := &u.r.stats.Uploads
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // else the file is gone
		s.Failures, s.Error = s.Failures+1, err.Error()
		return false, u.r.closed
	}
	if s.Waiting--; err == nil {
		u.sent[v] = true
		s.Files, s.Bytes, s.Error = s.Files+1, s.Bytes+uint64(v.size), ""
	}
	return true, u.r.closed
}

// waits returns 1 for a file that is to be uploaded, 0 for others.
func (u *uploads) waits(name string, info fs.FileInfo) (n int) {
	u.r.mu.Lock()
	defer u.r.mu.Unlock()
	if u.r.o.Upload != nil && !u.sent[versionOf(name, info)] {
		n = 1
	}
	return n
}

// Uploaded returns, after Close, when the last files are uploaded or one of them could not be. It
// has no limit but those of Options.Upload.
func (r *Recorder) Uploaded() error {
	r.mu.Lock()
	late := r.late
	r.mu.Unlock()
	if !late {
		r.up.end.Wait()
	}
	if s := r.Stats().Uploads; s.Waiting > 0 {
		return fmt.Errorf("%d files wait to be uploaded to %s, which the next recording of the name tries again: %s",
			s.Waiting, s.To, s.Error)
	}
	return nil
}
