package tune

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// undoing is one Undo at work.
type undoing struct {
	h        machine
	st       *store
	r        *record
	same     bool // the device is the one that was tuned
	force    bool
	outcomes []Outcome
}

// fate is what becomes of an entry.
type fate struct {
	state State  // empty: nothing to do and nothing to tell
	first string // the value at the beginning
	why   string
	err   error
}

// passes is how often Undo looks at everything: restoring one setting can change another that was
// restored before it, or be possible only when another is restored.
const passes = 3

func (u *undoing) run(ctx context.Context) error {
	r := u.r
	fates := make([]fate, len(r.Entries))
	var missing []string
	for i := range r.Entries {
		e := &r.Entries[i]
		fates[i] = u.decide(e, r.Unfinished)
		if fates[i].state != Restored {
			continue
		}
		if _, m := u.h.needs(r.Interface, e.Setting); m != "" {
			missing = append(missing, fmt.Sprintf("%s takes %s", e.What, m))
		}
	}
	for i := range r.Entries {
		if fates[i].state != Restored {
			continue
		}
		if err := u.h.refuses(r.Interface, r.Entries[i].Setting, r.Entries[i].From); err != nil {
			return err
		}
	}
	if missing != nil {
		return fmt.Errorf("%w; nothing was changed: %s", ErrRights, strings.Join(missing, "; "))
	}
	r.Unfinished = true // also of this: what it changes besides is our doing
	if err := u.st.save(r); err != nil {
		return err
	}
	for range passes {
		again := false
		for i := len(r.Entries) - 1; i >= 0; i-- {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("tune: %s: %w before %s", subject(r.Interface), err, r.Entries[i].What)
			}
			again = u.restore(&r.Entries[i], &fates[i]) || again
		}
		if !again {
			break
		}
	}
	return u.close(fates)
}

// decide looks at an entry before anything is changed.
func (u *undoing) decide(e *entry, unfinished bool) (f fate) {
	if !u.same && !e.Host {
		if len(e.Ours) > 0 {
			f.state, f.why = Gone, "the interface is another one than that which was tuned, or is not there"
		}
		return f
	}
	var err error
	f.first, err = u.h.get(u.r.Interface, e.Setting)
	switch {
	case errors.Is(err, errGone):
		f.state, f.why = Gone, err.Error()
	case err != nil:
		f.state, f.err = Failed, err
	case f.first == e.From:
		if len(e.Ours) > 0 {
			f.state = Already
		}
	// killed before it could say what else it had changed
	case unfinished && !strings.HasPrefix(string(e.Setting), "hugepages "):
		f.state = Restored
	case len(e.Ours) == 0: // never ours
	case e.mine(f.first) || u.force:
		f.state = Restored
	default:
		f.state = Skipped
		f.why = fmt.Sprintf("it was set to %s since; it was %s, and %s after tuning", short(f.first), short(e.From),
			short(e.Ours[len(e.Ours)-1]))
	}
	return f
}

// restore puts a setting back if that is its fate, or if it has changed since the beginning. It
// says whether it has set something.
func (u *undoing) restore(e *entry, f *fate) bool {
	switch f.state {
	case Skipped, Failed:
		return false
	}
	if !u.same && !e.Host {
		return false
	}
	now, err := u.h.get(u.r.Interface, e.Setting)
	if errors.Is(err, errGone) {
		f.state, f.why, f.err = Gone, err.Error(), nil
		return false
	}
	if f.state == Gone { // it came back with what was restored after it, as a queue does with its number
		if err != nil {
			return false
		}
		*f = fate{state: Restored, first: now}
		if now == e.From {
			if f.state = Already; len(e.Ours) == 0 {
				f.state = ""
			}
			return false
		}
	}
	if err == nil && (now == e.From || f.state != Restored && now == f.first) {
		f.err = nil
		return false
	}
	if err == nil {
		err = u.h.set(u.r.Interface, e.Setting, e.From)
		got, gerr := u.h.get(u.r.Interface, e.Setting)
		if err == nil && gerr == nil && got != e.From {
			err = fmt.Errorf("%w: it is %s", ErrNotSo, short(got))
		}
		err = errors.Join(err, gerr)
		if gerr == nil && got != e.From && !slices.Contains(e.Ours, got) { // half done
			e.Ours = append(e.Ours, got)
		}
	}
	f.state, f.err = Restored, err // an error may be gone when others are restored
	return true
}

// close says what became of everything. While something is still to be done, the record stays, with
// all that may change as its consequence.
func (u *undoing) close(fates []fate) error {
	var errs []error
	var keep []entry
	left := false
	for i := len(fates) - 1; i >= 0; i-- {
		e, f := u.r.Entries[i], fates[i]
		if f.err != nil {
			f.state = Failed
		}
		out := Outcome{What: e.What, Setting: e.Setting, State: f.state, From: f.first, To: e.From, Why: f.why}
		switch f.state {
		case Failed:
			left = true
			out.Why = f.err.Error()
			errs = append(errs, fmt.Errorf("tune: %s: %s from %s back to %s: %w", subject(u.r.Interface), e.What,
				short(f.first), short(e.From), f.err))
			// It may be another value now, as a consequence of what was restored after it.
			if now, err := u.h.get(u.r.Interface, e.Setting); err == nil && !slices.Contains(e.Ours, now) {
				e.Ours = append(e.Ours, now)
			}
		case Skipped:
			left = true
		case Gone:
			if !steers(e.Setting) {
				e.Ours = nil
			}
		default:
			e.Ours = nil
		}
		if f.state != Gone || steers(e.Setting) {
			// a queue may come back when the next Undo restores how many there are
			keep = append(keep, e)
		}
		if f.state != "" {
			u.outcomes = append(u.outcomes, out)
		}
	}
	if !left {
		return errors.Join(append(errs, u.st.remove(u.r.Interface, u.r.Device))...)
	}
	slices.Reverse(keep)
	u.r.Entries, u.r.Unfinished = keep, false
	return errors.Join(append(errs, u.st.save(u.r))...)
}
