package tcp

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// Values of Options.CongestionControl that are not names of algorithms.
const (
	CongestionAuto   = "auto"   // measured, once for each remote host and process
	CongestionSystem = "system" // what net.ipv4.tcp_congestion_control says
)

const (
	trialBytes  = 16 << 20               // enough that an algorithm leaves its start behind: in bursts of 4 MiB bbr looks as fast as reno
	trialRounds = 4                      // of each algorithm; the first one warms up
	trialLong   = 25 * time.Millisecond  // a round ends then at the latest, with what it has sent
	trialBudget = 100 * time.Millisecond // large operations wait no longer than this for a verdict
	hysteresis  = 1.10                   // how much faster than the system's choice another algorithm must be
	agreement   = 0.7                    // the second best round of an algorithm must reach this share of the best one
	maxTrials   = 4                      // a host that was tried so often without a clear result is left alone for a while
	trialPause  = time.Minute            // that while
)

// verdicts remembers which algorithm was the fastest to a host.
var verdicts = struct {
	sync.Mutex
	by map[route]*verdictOf
}{by: map[route]*verdictOf{}}

// route is what a verdict is about. Encryption takes so much of the time that it is another one.
type route struct {
	host   netip.Addr
	sealed bool
}

type verdictOf struct {
	measuring bool
	name      string
	line      string
	rate      float64
	certain   bool      // the rounds agreed: it stays for the life of the process
	until     time.Time // otherwise it may stay until then
	tries     int
	pool      []trial // the rounds of all tries that were not certain
}

// verdictFor returns what is known about a host. An uncertain verdict serves only the path that took it, so that the next
// one measures again.
func verdictFor(to route) (verdictOf, bool) {
	verdicts.Lock()
	defer verdicts.Unlock()
	if v := verdicts.by[to]; v != nil && (v.certain || v.tries == maxTrials && time.Now().Before(v.until)) {
		return *v, true
	}
	return verdictOf{}, false
}

// ForgetMeasurements makes the next path measure again which congestion control is the fastest.
func ForgetMeasurements() {
	verdicts.Lock()
	defer verdicts.Unlock()
	clear(verdicts.by)
}

// claim reserves the measurement for one path at a time.
func claim(to route) bool {
	verdicts.Lock()
	defer verdicts.Unlock()
	v := verdicts.by[to]
	if v == nil {
		v = &verdictOf{}
		verdicts.by[to] = v
	}
	if v.measuring || v.certain {
		return false
	}
	v.measuring = true
	return true
}

// settle ends what claim began: it adds the trials to what earlier tries found and returns the verdict on all of it.
func settle(to route, trials []trial, system string, now time.Time) verdictOf {
	verdicts.Lock()
	defer verdicts.Unlock()
	v := verdicts.by[to]
	if v == nil { // forgotten meanwhile
		v = &verdictOf{}
		verdicts.by[to] = v
	}
	v.measuring = false
	if v.tries == maxTrials {
		v.tries, v.pool = 0, nil
	}
	if !slices.ContainsFunc(trials, func(t trial) bool { return t.best > 0 }) {
		return verdictOf{} // nothing was measured; it does not count as a try
	}
	v.tries++
	for _, t := range trials {
		i := slices.IndexFunc(v.pool, func(q trial) bool { return q.name == t.name })
		if i < 0 {
			i = len(v.pool)
			v.pool = append(v.pool, trial{name: t.name, denied: t.denied})
		}
		v.pool[i].add(t.best)
		v.pool[i].add(t.second)
	}
	keep, why := incumbent(to.host, system, v.pool)
	chosen, certain := judge(v.pool, keep)
	v.name, v.rate, v.certain, v.until = chosen.name, chosen.best, certain, now.Add(trialPause)
	v.line = describe(v.pool, system) + " -> " + v.name + why
	if !certain {
		v.line += fmt.Sprintf(" (uncertain: other work disturbed the measurement; try %d of %d, the next path measures again)", v.tries, maxTrials)
	}
	return *v
}

// incumbent is the algorithm that another one has to beat: the system's choice, except that on loopback it does not pace.
// Pacing is for queues in a network, of which there is none; what it costs there, half of the rate when operations of a
// megabyte follow one another with answers in between, does not show in trials that send without a pause
// (docs/measurements/tcp.md).
func incumbent(host netip.Addr, system string, pool []trial) (name, why string) {
	if !host.IsLoopback() || !paced(system) {
		return system, ""
	}
	for _, name := range []string{"cubic", "reno"} {
		if slices.ContainsFunc(pool, func(t trial) bool { return t.name == name && !t.denied }) {
			return name, fmt.Sprintf(" (on loopback pacing serves nothing, so %s would have to be a tenth faster)", system)
		}
	}
	return system, ""
}

// judge picks an algorithm and says whether the rounds agree on it. Other work on the machine only ever slows a round down,
// so the best rounds say most; and another algorithm replaces keep only if two of its rounds beat all of those.
func judge(pool []trial, keep string) (chosen *trial, certain bool) {
	var best, own *trial
	for i := range pool {
		t := &pool[i]
		if best == nil || t.second > best.second || t.second == best.second && t.best > best.best {
			best = t
		}
		if t.name == keep && !t.denied {
			own = t
		}
	}
	if own == nil { // it cannot be had by this process
		return best, best.agrees()
	}
	if own.second > 0 && best.second > own.best*hysteresis {
		return best, true
	}
	for i := range pool {
		if t := &pool[i]; t.best > own.best*hysteresis {
			return own, false // it may be better, but not each time
		}
	}
	return own, own.agrees()
}

func describe(pool []trial, system string) string {
	var parts []string
	for i := range pool {
		t := &pool[i]
		switch {
		case t.denied:
			parts = append(parts, t.name+" not permitted")
		case t.best == 0:
			parts = append(parts, t.name+" not measured in time")
		case t.name == system:
			parts = append(parts, fmt.Sprintf("%s (system default) %.1f GB/s", t.name, t.best/1e9))
		default:
			parts = append(parts, fmt.Sprintf("%s %.1f GB/s", t.name, t.best/1e9))
		}
	}
	return strings.Join(parts, ", ")
}

func sysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// SystemCongestion is the congestion control that the system gives to connections by default.
func SystemCongestion() string { return sysctl("tcp_congestion_control") }

// AvailableCongestion lists what the kernel has loaded. Algorithms that pace their packets come last: a connection that was
// paced once stays so, which would falsify a measurement of another algorithm after it.
func AvailableCongestion() []string {
	list := strings.Fields(sysctl("tcp_available_congestion_control"))
	slices.SortStableFunc(list, func(a, b string) int {
		switch pa, pb := paced(a), paced(b); {
		case pa && !pb:
			return 1
		case pb && !pa:
			return -1
		}
		return strings.Compare(a, b)
	})
	return list
}

func paced(name string) bool { return strings.HasPrefix(name, "bbr") }

// initialCongestion sets what a connection starts with. It must run before connect and listen: an algorithm that paces
// must not touch the connection before it was found to be the fastest.
func initialCongestion(fd int, o *Options, host netip.Addr) error {
	switch o.CongestionControl {
	case CongestionSystem:
		return nil
	case CongestionAuto, "":
		if v, ok := verdictFor(route{host: host}); ok && sys.SetCongestion(fd, v.name) == nil {
			return nil
		}
		for _, name := range AvailableCongestion() {
			if !paced(name) && sys.SetCongestion(fd, name) == nil {
				return nil
			}
		}
		return nil // the system's choice it is
	}
	if err := sys.SetCongestion(fd, o.CongestionControl); err != nil {
		return fmt.Errorf("tcp: congestion control %q: %w; this kernel has %s (%q and %q are always possible)",
			o.CongestionControl, err, strings.Join(AvailableCongestion(), ", "), CongestionAuto, CongestionSystem)
	}
	return nil
}

type chooserState uint8

const (
	chooserOff  chooserState = iota // nothing to choose, or chosen
	chooserIdle                     // no large operation came yet
	chooserRun                      // trials are under way
)

func (p *Path) route() route { return route{p.peer.Addr(), p.sealed} }

// chooser finds the fastest congestion control for what this side sends. The trials run on a connection of their own
// while large operations wait; small ones go on.
type chooser struct {
	state  chooserState
	spent  bool // the measuring connection was paced, so it can measure only once
	trials []trial
	plan   []int // which algorithm is on trial in each round
	at     int   // the round
	began  time.Time
	start  time.Time // of the round; zero until it has sent something
	left   int       // bytes of the round still to be sent
	sent   int
	system string
	line   string // the verdict that was applied last
	alarm  int    // while trials run: a timer in the path's epoll set, which ends them although nothing comes
}

// trial is what is known about one algorithm: its two best rounds, in bytes per second.
type trial struct {
	name         string
	warm         bool
	denied       bool // not permitted to this process: not a candidate
	best, second float64
}

func (t *trial) add(rate float64) {
	if rate > t.best {
		t.best, t.second = rate, t.best
	} else {
		t.second = max(t.second, rate)
	}
}

func (t *trial) agrees() bool { return t.second > 0 && t.second >= agreement*t.best }

func (c *chooser) init(p *Path, o *Options) {
	name, _ := sys.Congestion(p.fds[0])
	switch o.CongestionControl {
	case CongestionAuto, "":
	case CongestionSystem:
		p.ccLine = name + ", the system's choice, as configured"
		return
	default:
		p.ccLine = name + ", as configured"
		return
	}
	c.state = chooserIdle
	if c.known(p) {
		return
	}
	if len(p.fds) == p.data {
		// Another path of this process may still find out; want looks again.
		p.ccLine = name + ", not measured: the path has no connection to spare"
	} else {
		p.ccLine = name + ", not measured yet: the first large operation does that"
	}
	if o.MeasureNow {
		c.begin(p)
	}
}

// known applies the verdict on this host, if there is one. An uncertain one is looked up again with each large operation.
func (c *chooser) known(p *Path) bool {
	v, ok := verdictFor(p.route())
	if !ok {
		return false
	}
	if v.certain {
		c.state = chooserOff
	} else if c.line == v.line {
		return true
	}
	c.line = v.line
	p.setCongestion(v.name, v.line)
	p.cost.rate(v.rate)
	return true
}

func (p *Path) setCongestion(name, line string) {
	for i := range p.data {
		if err := sys.SetCongestion(p.fds[i], name); err != nil {
			line = fmt.Sprintf("%s (but: %v)", line, err)
			break
		}
	}
	p.mu.Lock()
	p.ccLine = line
	p.mu.Unlock()
	p.dirty = true
}

// want starts the trials when there is something large to send.
func (c *chooser) want(p *Path) {
	if c.state == chooserIdle && p.big.n+p.serveBig.n > 0 {
		if !c.known(p) {
			c.begin(p)
		}
	}
}

func (c *chooser) begin(p *Path) {
	if c.spent || len(p.fds) == p.data || p.fds[p.data] < 0 || !claim(p.route()) {
		return
	}
	if err := c.setAlarm(p); err != nil {
		settle(p.route(), nil, "", time.Time{})
		p.setLine("not measured: no timer to end it: " + err.Error())
		return
	}
	c.system = SystemCongestion()
	c.trials, c.plan = c.trials[:0], c.plan[:0]
	for _, name := range AvailableCongestion() {
		c.trials = append(c.trials, trial{name: name})
	}
	// Round by round, so that a disturbance meets all of them; but those that pace last, see AvailableCongestion.
	for _, pacing := range []bool{false, true} {
		for range trialRounds {
			for i := range c.trials {
				if paced(c.trials[i].name) == pacing {
					c.plan = append(c.plan, i)
				}
			}
		}
	}
	c.spent = true
	c.at = -1
	c.state = chooserRun
	p.hold = true
	c.next(p, c.began)
}

// setAlarm begins the time that the trials may take. A path has no clock of its own: its owner sleeps until something comes,
// and nothing does when the connection for measuring has stalled.
func (c *chooser) setAlarm(p *Path) error {
	c.began = time.Now()
	fd, err := sys.Timerfd(trialBudget)
	if err != nil {
		return err
	}
	if err := p.ep.Add(fd, sys.EventIn, alarmTag); err != nil {
		sys.Close(fd)
		return err
	}
	c.alarm = fd
	return nil
}

// alarmTag is not the index of a connection. Nobody reads the tags: the set as a whole wakes the path's owner.
const alarmTag = 1 << 32

// next starts the next round or ends the trials.
func (c *chooser) next(p *Path, now time.Time) {
	for c.at++; c.at < len(c.plan) && now.Sub(c.began) < trialBudget; c.at++ {
		t := &c.trials[c.plan[c.at]]
		if t.denied || !paced(t.name) && now.Sub(c.began) > trialBudget/2 {
			continue // leave half of the time to the others
		}
		if t.denied = sys.SetCongestion(p.fds[p.data], t.name) != nil; !t.denied {
			c.left, c.sent, c.start = trialBytes, 0, time.Time{}
			return
		}
	}
	c.decide(p, now)
}

// fill gives the measuring connection its next batch.
func (c *chooser) fill(p *Path, s *stream) {
	if c.state != chooserRun || c.left == 0 {
		return
	}
	if c.start.IsZero() {
		c.start = time.Now()
	}
	seq := s.out.seq
	p.probe(s, c.left, p.trash)
	n := min(c.left, int(s.out.seq-seq)*p.frame)
	c.left -= n
	c.sent += n
}

// step looks whether a round is over.
func (c *chooser) step(p *Path) {
	if c.state == chooserIdle {
		c.want(p)
		return
	}
	if c.state != chooserRun {
		return
	}
	now := time.Now()
	late := now.Sub(c.began) >= trialBudget
	if c.left > 0 && (late || !c.start.IsZero() && now.Sub(c.start) >= trialLong) {
		c.left = 0
	}
	if late && p.probes > 0 {
		c.decide(p, now) // what is under way goes on, but nobody waits for it
		return
	}
	if c.left > 0 || p.probes > 0 {
		return
	}
	if t := &c.trials[c.plan[c.at]]; c.sent > 0 {
		if d := now.Sub(c.start); t.warm || d >= trialLong {
			t.add(float64(c.sent) / d.Seconds())
		}
		t.warm = true
	}
	c.next(p, now)
}

func (c *chooser) decide(p *Path, now time.Time) {
	c.left = 0
	c.stop(p)
	v := settle(p.route(), c.trials, c.system, now)
	if v.name == "" {
		v.name, _ = incumbent(p.peer.Addr(), c.system, c.trials)
		v.line = fmt.Sprintf("none could be measured in time -> %s (uncertain: the next path measures again)", v.name)
	}
	if !v.certain {
		c.state = chooserIdle // another path may find out
	}
	p.setCongestion(v.name, v.line)
	if v.rate > 0 {
		p.cost.rate(v.rate)
	}
}

func (c *chooser) stop(p *Path) {
	if c.state == chooserRun {
		sys.Close(c.alarm) // it leaves the epoll set with that
	}
	c.state = chooserOff
	p.hold = false
}

func (p *Path) setLine(line string) {
	p.mu.Lock()
	p.ccLine = line
	p.mu.Unlock()
}

// lost ends the trials because their connection is gone, or the whole path.
func (c *chooser) lost(p *Path) {
	if c.state == chooserRun {
		settle(p.route(), nil, c.system, time.Now())
		p.setLine("not measured: the connection for measuring was lost")
	}
	c.stop(p)
}
