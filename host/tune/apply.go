package tune

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Options say how Apply and Undo work. The zero value is right for programs that run as root.
type Options struct {
	// StateDir is the directory of the records of what was changed; empty: DefaultStateDir. It
	// belongs to this user, and no other user may write to it.
	StateDir string
	// Force makes Undo also restore what another process has changed since.
	Force bool
}

// Outcome is what became of one setting.
type Outcome struct {
	What    string  `json:"what"`
	Setting Setting `json:"setting"`
	State   State   `json:"state"`
	From    string  `json:"from,omitempty"`
	To      string  `json:"to,omitempty"`
	Why     string  `json:"why,omitempty"` // of Skipped, Gone and Failed
}

// State is what became of a setting, in a word.
type State string

// The states.
const (
	Changed  State = "changed"
	Already  State = "already" // it was as wanted
	Restored State = "restored"
	Skipped  State = "skipped" // another process has changed it since
	Gone     State = "gone"    // what it was about is not there any more
	Failed   State = "failed"
)

func (o Outcome) String() string {
	switch o.State {
	case Changed, Restored:
		return fmt.Sprintf("%s: %s, from %s to %s", o.What, o.State, short(o.From), short(o.To))
	case Already:
		return fmt.Sprintf("%s: already %s", o.What, short(o.To))
	}
	return fmt.Sprintf("%s: %s: %s", o.What, o.State, o.Why)
}

// Result is what Apply or Undo did, in order, also where they ended with an error.
type Result struct {
	Interface string    `json:"interface"`
	Outcomes  []Outcome `json:"outcomes"`
}

// Nic makes the plan for an interface of the calling thread's network namespace. It changes nothing
// and needs no rights. The error wraps ErrGoal where the device cannot have what is wanted.
func Nic(ctx context.Context, iface string, goals Goals) (Plan, error) {
	return makePlan(ctx, linux{}, iface, goals)
}

// Apply does the steps of the plan in order, without the advice. It begins only if it has the
// rights for all (ErrRights), writes down what was there before each change, reads each value back,
// and stops at the first error. The result says what was done; Undo takes it back.
func (p Plan) Apply(ctx context.Context, o Options) (Result, error) { return apply(ctx, linux{}, p, o) }

// Undo restores what was there before the first Apply, in the reverse order. It leaves alone what
// another process has changed since, unless o.Force, and goes on behind what it cannot restore:
// both stay in the record. The error wraps ErrNothing if there is no record, or one of an earlier
// boot.
func Undo(ctx context.Context, iface string, o Options) (Result, error) {
	return undo(ctx, linux{}, iface, o)
}

func makePlan(ctx context.Context, h machine, iface string, goals Goals) (Plan, error) {
	if err := goals.check(); err != nil {
		return Plan{}, err
	}
	f, err := h.facts(ctx, iface)
	if err != nil {
		return Plan{}, err
	}
	b := builder{host: h, iface: iface, facts: f, goals: goals}
	return b.build()
}

func apply(ctx context.Context, h machine, p Plan, o Options) (res Result, err error) {
	res.Interface = p.Interface
	steps := p.Changes()
	var missing []string
	for i := range steps {
		if _, m := h.needs(p.Interface, steps[i].Setting); m != "" {
			missing = append(missing, fmt.Sprintf("%s takes %s", steps[i].What, m))
		}
	}
	if missing != nil {
		return res, fmt.Errorf("%w; nothing was changed: %s", ErrRights, strings.Join(missing, "; "))
	}
	for _, s := range steps {
		if err := h.refuses(p.Interface, s.Setting, s.Wanted); err != nil {
			return res, err
		}
	}
	if len(steps) == 0 {
		return res, nil
	}
	id, err := h.identity(p.Interface)
	if err != nil {
		return res, err
	}
	st, err := openStore(o.StateDir, true)
	if err != nil {
		return res, err
	}
	defer st.close()
	r, _, err := st.load(p.Interface, id)
	if err != nil {
		return res, err
	}
	if r != nil && (r.Device.Index != id.Index || r.Device.Bus != id.Bus) {
		// another device, for which only what is about the machine holds
		r.Entries = slices.DeleteFunc(r.Entries, func(e entry) bool { return !e.Host })
		r.Device = id
	}
	if r == nil {
		r = &record{Version: recordVersion, Interface: p.Interface, Device: id}
	}
	start, err := watch(h, r, steps)
	if err != nil {
		return res, err
	}
	r.Unfinished = true // what changes from here on is our doing; the first step writes it down
	i := 0
	for ; i < len(steps) && err == nil; i++ {
		s := steps[i]
		if err = ctx.Err(); err != nil {
			err = fmt.Errorf("tune: %s: %w before %s", subject(p.Interface), err, s.What)
			break
		}
		var out Outcome
		out, err = applyStep(h, st, r, s)
		res.Outcomes = append(res.Outcomes, out)
		if err != nil {
			err = fmt.Errorf("tune: %s: %s from %s to %s: %w; %d of %d steps were done, %q takes them back",
				subject(p.Interface), s.What, short(out.From), short(s.Wanted), err, i, len(steps),
				undoCommand(p.Interface))
		}
	}
	return res, errors.Join(err, finish(h, st, r, start))
}

// watch writes into the record what is there of all settings, before anything changes: a change can
// have others for consequence, as when a driver places its interrupts again. It returns the values.
func watch(h machine, r *record, steps []Step) (start map[Setting]string, err error) {
	lost(h, r)
	start = map[Setting]string{}
	all := make([]entry, 0, len(steps))
	for _, s := range steps {
		all = append(all, entry{Setting: s.Setting, What: s.What, Host: s.Host})
	}
	for _, s := range h.settings(r.Interface) {
		if !slices.ContainsFunc(all, func(e entry) bool { return e.Setting == s }) {
			all = append(all, entry{Setting: s, What: string(s)})
		}
	}
	for i, e := range all {
		v, err := h.get(r.Interface, e.Setting)
		if err != nil {
			if i >= len(steps) { // no step changes it
				continue
			}
			return nil, fmt.Errorf("tune: %s: %s cannot be read; nothing was changed: %w", subject(r.Interface), e.What,
				err)
		}
		e.From, start[e.Setting] = v, v
		switch i := r.find(e.Setting); {
		case i < 0:
			r.Entries = append(r.Entries, e)
		case len(r.Entries[i].Ours) == 0 && !r.Unfinished: // Apply never changed it: Undo restores what is there now
			r.Entries[i] = e
		// of an Apply that was killed
		case r.Unfinished && v != r.Entries[i].From && !slices.Contains(r.Entries[i].Ours, v):
			r.Entries[i].Ours = append(r.Entries[i].Ours, v)
		}
	}
	return start, nil
}

// lost notes RPS and XPS that went with their queues: should those come back, it is empty, which is
// our doing then.
func lost(h machine, r *record) {
	for i := range r.Entries {
		e := &r.Entries[i]
		if !steers(e.Setting) || e.From == noCPUs || slices.Contains(e.Ours, noCPUs) {
			continue
		}
		if _, err := h.get(r.Interface, e.Setting); errors.Is(err, errGone) {
			e.Ours = append(e.Ours, noCPUs)
		}
	}
}

// finish notes which other settings have changed as a consequence.
func finish(h machine, st *store, r *record, start map[Setting]string) error {
	lost(h, r)
	touched := false
	for i := range r.Entries {
		e := &r.Entries[i]
		if was, ok := start[e.Setting]; ok {
			if now, err := h.get(r.Interface, e.Setting); err == nil && now != was && !slices.Contains(e.Ours, now) {
				e.Ours = append(e.Ours, now)
			}
		}
		touched = touched || len(e.Ours) > 0
	}
	r.Unfinished = false
	if !touched {
		return st.remove(r.Interface, r.Device)
	}
	return st.save(r)
}

func applyStep(h machine, st *store, r *record, s Step) (out Outcome, err error) {
	out = Outcome{What: s.What, Setting: s.Setting, To: s.Wanted}
	fail := func(err error) (Outcome, error) {
		out.State, out.Why = Failed, err.Error()
		return out, err
	}
	if out.From, err = h.get(r.Interface, s.Setting); err != nil {
		return fail(err)
	}
	if out.From == s.Wanted {
		out.State = Already
		return out, nil
	}
	e := &r.Entries[r.find(s.Setting)]
	ours := func(v string) error {
		if !slices.Contains(e.Ours, v) {
			e.Ours = append(e.Ours, v)
		}
		return st.save(r)
	}
	if err := ours(s.Wanted); err != nil {
		return fail(err)
	}
	serr := h.set(r.Interface, s.Setting, s.Wanted)
	got, err := h.get(r.Interface, s.Setting)
	if err != nil {
		return fail(errors.Join(serr, err))
	}
	if got != out.From { // rounded, or half done: that is ours too
		if err := ours(got); err != nil {
			return fail(errors.Join(serr, err))
		}
	}
	out.To = got
	if serr != nil {
		return fail(serr)
	}
	if !enough(s.Setting, s.Wanted, got) {
		return fail(fmt.Errorf("%w: it is %s", ErrNotSo, short(got)))
	}
	out.State = Changed
	return out, nil
}

// enough reports whether a value that was read is what was wanted: rings may be longer, there may
// be more huge pages, and a driver that the kernel chooses has a name.
func enough(s Setting, wanted, got string) bool {
	if got == wanted {
		return true
	}
	if s == theDriver && wanted == KernelDriver {
		b := binding(got)
		return b.override == "" && b.driver != noDriver && !b.user()
	}
	if s != "rings" && !strings.HasPrefix(string(s), "hugepages ") {
		return false
	}
	w, g := strings.Fields(wanted), strings.Fields(got)
	if len(w) != len(g) {
		return false
	}
	for i := range w {
		a, err1 := strconv.Atoi(w[i])
		b, err2 := strconv.Atoi(g[i])
		if (err1 == nil) != (err2 == nil) || err1 == nil && b < a || err1 != nil && w[i] != g[i] {
			return false
		}
	}
	return true
}

func undo(ctx context.Context, h machine, iface string, o Options) (res Result, err error) {
	res.Interface = iface
	id, err := h.identity(iface)
	if err != nil {
		return res, err
	}
	st, err := openStore(o.StateDir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return res, fmt.Errorf("%w for %s", ErrNothing, subject(iface))
	}
	if err != nil {
		return res, err
	}
	defer st.close()
	r, rebooted, err := st.load(iface, id)
	switch {
	case err != nil:
		return res, err
	case rebooted:
		return res, fmt.Errorf("%w for %s: the machine was booted since, and these settings do not outlive that",
			ErrNothing, subject(iface))
	case r == nil:
		return res, fmt.Errorf("%w for %s", ErrNothing, subject(iface))
	}
	u := undoing{h: h, st: st, r: r, same: id.Index != 0 && r.Device.Index == id.Index && r.Device.Bus == id.Bus,
		force: o.Force}
	err = u.run(ctx)
	res.Outcomes = u.outcomes
	return res, err
}

// mine reports whether an Apply of ours may have set this value: one that it wrote down, or, when
// it was killed before it could read it back, a ring that the driver has made longer, or a part of
// the huge pages.
func (e *entry) mine(now string) bool {
	if slices.Contains(e.Ours, now) {
		return true
	}
	for _, o := range e.Ours {
		switch {
		case e.Setting == "rings" && enough(e.Setting, o, now):
			return true
		case strings.HasPrefix(string(e.Setting), "hugepages ") && enough(e.Setting, e.From, now) &&
			enough(e.Setting, now, o):
			return true
		}
	}
	return false
}
