package job

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
)

// Attempt is one try of a job.
type Attempt struct {
	Number    int
	Peer      string // "" if no session could be had
	Session   uint64 // number of the session on this node
	Dials     int    // that failed while the attempt waited for a session
	Restarted bool   // it began at 0 again, because the content had changed
	Moved     uint64 // bytes that it brought into place
	Paths     []string
	Proof     path.Proof // of the last piece
	Begin     time.Time
	Took      time.Duration
	Connect   time.Duration // of that, waiting for a session
	// First is the time from having a session until the first piece was in place: asking for the
	// name, setting a path up if it was not, and moving the piece. 0: no piece was.
	First time.Duration
	Err   error // nil: it succeeded, or is under way
}

// Times says where the time of a job went. What is in none of the parts went into the job's own
// work.
type Times struct {
	Connect time.Duration // waiting for a session
	Lookup  time.Duration // asking for the name
	Move    time.Duration // moving bytes
	Wait    time.Duration // waiting before the next attempt
	Total   time.Duration
}

// maxHistory bounds the attempts that a job remembers: the first ones and the last ones.
const (
	firstAttempts = 4
	lastAttempts  = 12
	maxHistory    = firstAttempts + lastAttempts
)

// Explanation is the account of one job.
type Explanation struct {
	Kind     string // "fetch" or "store"
	Name     string
	Addr     string
	Bytes    uint64 // to be moved, From included
	From     uint64 // in place before
	Verified uint64 // in place without a gap
	Attempts int
	Restarts int       // how often it began at 0 again
	History  []Attempt // the first and the last attempts, the one under way included
	Times    Times
	Err      error
}

// Error is why a job failed: the account of it, with the error that ended it, which it matches.
type Error struct{ Explanation }

// Unwrap returns what ended the job.
func (e *Error) Unwrap() error { return e.Err }

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "transfer: %s %q at %s: %d of %d bytes verified, %s in %v: %v", e.Kind, e.Name, e.Addr, e.Verified,
		e.Bytes,
		count(e.Attempts, "attempt"), e.Times.Total.Round(time.Millisecond), e.Err)
	if len(e.History) > 1 {
		for _, s := range reasons(e.History) {
			b.WriteString("; ")
			b.WriteString(s)
		}
	}
	return b.String()
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// maxReason is the length in bytes of one attempt's error in a text.
const maxReason = 200

func (a *Attempt) reason() string {
	s := "under way"
	if a.Err != nil {
		s = a.Err.Error()
	}
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "..."
	}
	if a.Restarted {
		s = "(from 0) " + s
	}
	return s
}

// reasons lists attempts in words; those in a row that failed alike are one line.
func reasons(history []Attempt) (out []string) {
	for i := 0; i < len(history); {
		k := i + 1
		for k < len(history) && history[k].reason() == history[i].reason() &&
			history[k].Number == history[k-1].Number+1 {
			k++
		}
		if k-i > 1 {
			out = append(out, fmt.Sprintf("attempts %d to %d: %s", history[i].Number, history[k-1].Number,
				history[i].reason()))
		} else {
			out = append(out, fmt.Sprintf("attempt %d: %s", history[i].Number, history[i].reason()))
		}
		if k < len(history) && history[k].Number > history[k-1].Number+1 {
			out = append(out, fmt.Sprintf("%s not listed", count(history[k].Number-history[k-1].Number-1, "attempt")))
		}
		i = k
	}
	return out
}

// open begins an attempt.
func (j *Job) open(a *Attempt) {
	j.mu.Lock()
	j.attempts++
	a.Number, a.Begin = j.attempts, time.Now()
	j.now = a
	first := j.attempts == 1
	if !first {
		before := &j.history[len(j.history)-1]
		j.times.Wait += a.Begin.Sub(before.Begin) - before.Took
	}
	j.mu.Unlock()
	l := j.link
	l.mu.Lock()
	l.counts.Attempts++
	if !first {
		l.counts.Retries++
	}
	l.mu.Unlock()
	if !first {
		l.node.Retried(j.kind)
	}
}

// close records an attempt.
func (j *Job) close(a *Attempt, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	a.Err, a.Took = err, time.Since(a.Begin)
	j.now = nil
	if len(j.history) == maxHistory {
		j.history = slices.Delete(j.history, firstAttempts, firstAttempts+1)
	}
	j.history = append(j.history, *a)
}

func (j *Job) spent(f func(*Times)) {
	j.mu.Lock()
	f(&j.times)
	j.mu.Unlock()
}

// Explain says how the job went: attempts, what each moved and by which paths, where the time went.
// It may be called at any time.
func (j *Job) Explain() Explanation {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.explain(j.err)
}

// explain is Explain for a job that err ended. The mutex is held.
func (j *Job) explain(err error) Explanation {
	e := Explanation{Kind: j.verb(), Name: j.name, Addr: j.link.addr, Bytes: j.bytes, From: j.o.From,
		Verified: j.have.Prefix(),
		Attempts: j.attempts, Restarts: j.restarts, History: slices.Clone(j.history), Times: j.times, Err: err}
	if j.now != nil {
		a := *j.now
		a.Took = time.Since(a.Begin)
		e.History = append(e.History, a)
	}
	// The attempt that is under way goes on adding to its list.
	for i := range e.History {
		e.History[i].Paths = slices.Clone(e.History[i].Paths)
	}
	if !j.finished {
		e.Times.Total = time.Since(j.begin)
	}
	return e
}

// String is the account in words, several lines.
func (e Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q at %s: %d of %d bytes verified, %s, begun again %d times", e.Kind, e.Name, e.Addr,
		e.Verified, e.Bytes,
		count(e.Attempts, "attempt"), e.Restarts)
	if e.Err != nil {
		fmt.Fprintf(&b, "\n  failed: %v", e.Err)
	}
	last := 0
	for i := range e.History {
		a := &e.History[i]
		if a.Number > last+1 {
			fmt.Fprintf(&b, "\n  %s not listed", count(a.Number-last-1, "attempt"))
		}
		last = a.Number
		fmt.Fprintf(&b, "\n  attempt %d: %d bytes in %v", a.Number, a.Moved, a.Took)
		if a.Peer != "" {
			fmt.Fprintf(&b, " with %s (session %d)", a.Peer, a.Session)
		}
		if len(a.Paths) > 0 {
			fmt.Fprintf(&b, " over %s, proof %v", strings.Join(a.Paths, ", "), a.Proof)
		}
		if a.Dials > 0 {
			fmt.Fprintf(&b, ", %s failed", count(a.Dials, "dial"))
		}
		if a.First > 0 {
			fmt.Fprintf(&b, ", session after %v, first piece %v later", a.Connect, a.First)
		}
		if a.Err != nil || a.Restarted {
			fmt.Fprintf(&b, ": %s", a.reason())
		}
	}
	t := e.Times
	fmt.Fprintf(&b, "\n  time: connect %v, lookup %v, move %v, wait %v; total %v", t.Connect, t.Lookup, t.Move, t.Wait,
		t.Total)
	return b.String()
}
