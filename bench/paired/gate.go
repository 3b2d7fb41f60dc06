package paired

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// Load is processor time of the whole machine since it was started: how much of it programs other
// than this process used, and how much there was.
type Load struct {
	Others time.Duration
	Total  time.Duration // of all processors together
}

// tick is the unit of /proc/stat (USER_HZ, which Linux shows as 100 on every architecture that Go
// runs on).
const tick = 10 * time.Millisecond

// SystemLoad reads the load of the machine from /proc/stat, less what this process used itself.
// What a hypervisor took away (steal) counts as used by others.
func SystemLoad() (Load, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Load{}, err
	}
	own, err := sys.ProcessCPU()
	if err != nil {
		return Load{}, err
	}
	l, err := parseStat(string(b))
	l.Others -= own
	return l, err
}

// parseStat reads the first line of /proc/stat (man 5 proc): user nice system idle iowait irq
// softirq steal guest guest_nice. The time of guests is in user and nice already.
func parseStat(text string) (Load, error) {
	line, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 5 || f[0] != "cpu" {
		return Load{}, fmt.Errorf("paired: /proc/stat: line %q: expected cpu and at least four numbers", line)
	}
	var l Load
	for i, s := range f[1:min(len(f), 9)] {
		n, err := strconv.ParseUint(s, 10, 50)
		if err != nil {
			return Load{}, fmt.Errorf("paired: /proc/stat: %q in %q: expected a number of ticks", s, line)
		}
		d := time.Duration(n) * tick
		l.Total += d
		if i != 3 && i != 4 { // idle, iowait
			l.Others += d
		}
	}
	return l, nil
}

// Gate waits until other programs leave the machine alone, or no longer when that takes too long:
// then it tells how busy it was. One gate may serve many plans, one after the other; its budget is
// for all of them together. The zero Gate works.
type Gate struct {
	// Busy is how many processors others may use for the machine to count as idle; 0: 0.25.
	Busy float64
	// Window is how long one look takes; 0: 50 ms. The kernel counts in steps of 10 ms of each
	// processor.
	Window time.Duration
	// MaxWait bounds the wait before one round; 0: 1 s.
	MaxWait time.Duration
	// Budget bounds all waits together; 0: 30 s; negative: it looks once before each round and
	// never waits.
	Budget time.Duration
	// Load says how busy the machine is; nil: SystemLoad.
	Load func() (Load, error)

	spent time.Duration
}

// Defaults of a Gate.
const (
	gateBusy    = 0.25
	gateWindow  = 50 * time.Millisecond
	gateMaxWait = time.Second
	gateBudget  = 30 * time.Second
)

// GateMethod is how a gate was set, for the file.
type GateMethod struct {
	Busy    float64 `json:"busy_processors"` // up to which the machine counted as idle
	Window  float64 `json:"window_s"`
	MaxWait float64 `json:"max_wait_s"` // before one round
	Budget  float64 `json:"budget_s"`   // of all waits together
}

// Method tells how the gate is set, with its defaults.
func (g *Gate) Method() GateMethod {
	return GateMethod{orDefault(g.Busy, gateBusy), orDefault(g.Window, gateWindow).Seconds(),
		orDefault(g.MaxWait, gateMaxWait).Seconds(),
		max(0, orDefault(g.Budget, gateBudget)).Seconds()}
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// look is what the gate saw before one round.
type look struct {
	busy   float64 // processors that others used when the round began
	waited time.Duration
}

// errNoTime ends a look at a machine whose clock of processors stands still.
var errNoTime = errors.New("paired: /proc/stat did not advance")

// wait returns as soon as the machine is idle, the time of one round's wait is over, or the budget
// is spent. Its first look costs one window and is not charged to the budget.
func (g *Gate) wait(ctx context.Context) (look, error) {
	load, idle := g.Load, orDefault(g.Busy, gateBusy)
	if load == nil {
		load = SystemLoad
	}
	window := orDefault(g.Window, gateWindow)
	left := min(orDefault(g.MaxWait, gateMaxWait), orDefault(g.Budget, gateBudget)-g.spent)
	var l look
	for first := true; ; first = false {
		busy, err := observe(ctx, load, window)
		if err != nil {
			return l, err
		}
		l.busy = busy
		if !first {
			l.waited += window
			g.spent += window
		}
		if busy <= idle || l.waited+window > left {
			return l, nil
		}
	}
}

// observe is how many processors others used during a window.
func observe(ctx context.Context, load func() (Load, error), window time.Duration) (float64, error) {
	before, err := load()
	if err != nil {
		return 0, err
	}
	t := time.NewTimer(window)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-t.C:
	}
	after, err := load()
	if err != nil {
		return 0, err
	}
	if after.Total <= before.Total {
		return 0, errNoTime
	}
	// A part of all processors' time, so that a window that became longer changes nothing.
	part := float64(after.Others-before.Others) / float64(after.Total-before.Total)
	return min(max(0, part), 1) * float64(runtime.NumCPU()), nil
}

// GateLog is what the gate saw before the rounds of a row.
type GateLog struct {
	Looks  int     `json:"looks"`
	Median float64 `json:"busy_median"` // processors that others used when a round began
	Max    float64 `json:"busy_max"`
	Waited float64 `json:"waited_s"` // all rounds together
	Error  string  `json:"error,omitempty"`
}

func logOf(looks []look, failed error) *GateLog {
	g := &GateLog{Looks: len(looks)}
	if failed != nil {
		g.Error = failed.Error()
	}
	if len(looks) == 0 {
		return g
	}
	busy := make([]float64, len(looks))
	for i, l := range looks {
		busy[i] = l.busy
		g.Waited += l.waited.Seconds()
	}
	slices.Sort(busy)
	g.Median, g.Max = middle(busy), busy[len(busy)-1]
	return g
}
