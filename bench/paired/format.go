package paired

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Format and Schema are in every result file. A change that an older reader would misread makes a
// new Schema.
const (
	Format = "penstock-bench"
	Schema = 1
)

// Report is what a benchmark found: the content of a result file. See docs/bench-format.md.
type Report struct {
	Format  string    `json:"format"`
	Schema  int       `json:"schema"`
	Bench   string    `json:"bench"` // what was run: "ring", "transfer" and so on
	Began   time.Time `json:"began"`
	Took    float64   `json:"took_s"`
	Machine Machine   `json:"machine"`
	Build   Build     `json:"build"`
	Method  Method    `json:"method"`
	Missing []string  `json:"missing,omitempty"` // what was asked for and is not here, and how to get it
	Rows    []Row     `json:"rows"`
	Notes   []string  `json:"notes,omitempty"`
}

// Method is how the figures of a report came about.
type Method struct {
	// rounds of each comparison that were asked for; a row has as many as it has samples
	Pairs  int         `json:"pairs"`
	Alone  int         `json:"alone"`  // samples of each row without a comparison
	Warmup int         `json:"warmup"` // rounds of each row that were thrown away before those
	Seed   uint64      `json:"seed"`   // from which the rows' seeds were drawn
	Gate   *GateMethod `json:"gate,omitempty"`
	Peers  []Peer      `json:"peers,omitempty"`
	Notes  []string    `json:"notes,omitempty"`
}

// Peer is another program that was measured.
type Peer struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Row is one measured quantity.
type Row struct {
	Name string `json:"name"`           // unique in its report
	What string `json:"what,omitempty"` // what was done: "put", "get", "borrow"
	Path string `json:"path,omitempty"`
	// Carrier is what carried the bytes of a path over an adapter: which one, its port and the
	// service, such as "mlx5_0 port 1, RC".
	Carrier string    `json:"carrier,omitempty"`
	Mode    string    `json:"mode,omitempty"` // how both sides waited: "spin" or "event"
	Peers   int       `json:"peers,omitempty"`
	Size    uint64    `json:"size,omitempty"`   // bytes of one operation
	Blocks  int       `json:"blocks,omitempty"` // of one operation, where there are several
	Unit    Unit      `json:"unit"`
	Better  Direction `json:"better"`

	Ours    Side     `json:"ours"`
	Theirs  []Side   `json:"theirs,omitempty"`
	Goal    *Goal    `json:"goal,omitempty"`
	Ceiling *Limit   `json:"ceiling,omitempty"`
	Latency *Latency `json:"latency,omitempty"` // of ours
	Cost    *Cost    `json:"cost,omitempty"`    // of ours
	Traffic *Traffic `json:"traffic,omitempty"` // of ours, where packets can be lost
	Memory  *Memory  `json:"memory,omitempty"`  // of ours, where it is not host memory on both sides
	Gate    *GateLog `json:"gate,omitempty"`

	Seed     uint64 `json:"seed"`
	Warmup   int    `json:"warmup"`             // rounds that were thrown away
	Repeated int    `json:"repeated,omitempty"` // rounds that were made again because one of theirs failed
	Failed   string `json:"failed,omitempty"`   // why nothing here is to be believed
	Note     string `json:"note,omitempty"`
}

// Side is one contender of a row. Sample i of every side comes from round i.
type Side struct {
	Name       string    `json:"name"`
	Version    string    `json:"version,omitempty"`
	Command    string    `json:"command,omitempty"`
	Samples    []float64 `json:"samples,omitempty"` // in the order they were taken; none with an Error
	Stats      *Stats    `json:"stats,omitempty"`   // of the samples
	Verified   uint64    `json:"verified_bytes"`
	Unchecked  string    `json:"unchecked,omitempty"`  // why bytes are not checked here
	Unverified int       `json:"unverified,omitempty"` // samples whose bytes were not checked
	Failures   int       `json:"failures,omitempty"`   // runs that failed and were made again
	Error      string    `json:"error,omitempty"`      // why it was given up
	Ratio      *Ratio    `json:"ratio,omitempty"`      // of theirs: ours over this
}

// Limit is the ceiling of a row.
type Limit struct {
	Method   string    `json:"method"`
	Enforced bool      `json:"enforced"` // a median beyond it fails the row
	Slack    float64   `json:"slack"`    // a part of it that a median may be beyond the best sample
	Samples  []float64 `json:"samples"`
	Stats    *Stats    `json:"stats"`
}

// Latency is the distribution of single operations, all samples together, in the row's unit.
type Latency struct {
	N    int     `json:"n"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

func latencyOf(ascending []float64) *Latency {
	return &Latency{len(ascending), Percentile(ascending, 50), Percentile(ascending, 90), Percentile(ascending, 99),
		Percentile(ascending, 99.9),
		ascending[len(ascending)-1]}
}

// Cost is what an operation cost besides time, all processes of ours together.
type Cost struct {
	CPUPerGB float64 `json:"cpu_s_per_gb"`
	CPUPerOp float64 `json:"cpu_us_per_op"`
	Allocs   float64 `json:"allocs_per_op"`
	Syscalls float64 `json:"syscalls_per_op"` // that carried payload, as the path counts them
}

// Traffic is what became of the packets behind a row's samples. Sent = Received + Lost.
type Traffic struct {
	Sent       uint64 `json:"sent"`
	Received   uint64 `json:"received"` // different ones that came whole
	Lost       uint64 `json:"lost"`
	Duplicates uint64 `json:"duplicates"`
	Reordered  uint64 `json:"reordered"` // of Received
	Damaged    uint64 `json:"damaged"`   // that came with wrong bytes
	Foreign    uint64 `json:"foreign"`   // that belonged to something else
	// SendNS and ReceiveNS are nanoseconds of processor time of a packet in the threads of each
	// end; SendNS is 0 where it was not measured.
	SendNS    float64 `json:"send_ns"`
	ReceiveNS float64 `json:"receive_ns"`
	Limit     string  `json:"limit,omitempty"` // what a higher rate fails by: "loss", "sender"
}

// Memory says between which memories ours moved bytes, and how often they were copied on the way.
type Memory struct {
	Local        string `json:"local"`                   // kind of this process's: "host", "host_pinned", "device"
	Remote       string `json:"remote"`                  // of the other one's
	LocalDevice  string `json:"local_device,omitempty"`  // that it belongs to, in words
	RemoteDevice string `json:"remote_device,omitempty"` // of the other one's
	// Payload copies per byte, as the transfer explained them: by processors in user space and in
	// the kernel, and by devices between their memory and memory for staging.
	UserCopies   int `json:"user_copies"`
	KernelCopies int `json:"kernel_copies"`
	DeviceCopies int `json:"device_copies"`
}

// devices names the accelerators, for messages.
func (m *Memory) devices() string {
	if m.LocalDevice == "" || m.RemoteDevice == "" || m.LocalDevice == m.RemoteDevice {
		return cmp.Or(m.LocalDevice, m.RemoteDevice, "none")
	}
	return m.LocalDevice + " and " + m.RemoteDevice
}

// NewReport begins a report of this machine and program.
func NewReport(bench string) *Report {
	return &Report{Format: Format, Schema: Schema, Bench: bench, Began: time.Now().Round(time.Millisecond),
		Machine: ThisMachine(), Build: ThisBuild(), Rows: []Row{}}
}

// derive computes everything of a row that follows from its samples.
func (x *Row) derive() error {
	var err error
	side := func(s *Side) {
		if err != nil || s.Error != "" {
			return
		}
		var st Stats
		if st, err = Summarize(s.Samples); err != nil {
			err = fmt.Errorf("%s: %w", s.Name, err)
		}
		s.Stats = &st
	}
	side(&x.Ours)
	for i := range x.Theirs {
		side(&x.Theirs[i])
	}
	if err == nil && x.Ceiling != nil {
		var st Stats
		st, err = Summarize(x.Ceiling.Samples)
		x.Ceiling.Stats = &st
	}
	if err != nil {
		return err
	}
	x.Failed = x.failure()
	if x.Goal != nil {
		x.Goal.judge(x.Ours.Stats.Interval, x.Better)
		if x.Failed != "" {
			x.Goal.Verdict = Inconclusive
		}
	}
	for i := range x.Theirs {
		s := &x.Theirs[i]
		if s.Ratio == nil {
			continue
		}
		if s.Ratio.Median, s.Ratio.Interval, err = PairedRatio(x.Ours.Samples, s.Samples, x.Seed); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		s.Ratio.judge(len(s.Samples), x.Better, x.doubt(s))
	}
	return nil
}

// failure is why a row is not to be believed, or "".
func (x *Row) failure() string {
	if x.Ours.Unverified > 0 && x.Ours.Unchecked == "" {
		return fmt.Sprintf("the bytes of %d of %s were not verified", x.Ours.Unverified,
			count(len(x.Ours.Samples), "run"))
	}
	if x.Ceiling == nil || !x.Ceiling.Enforced {
		return ""
	}
	for _, s := range append([]Side{x.Ours}, x.Theirs...) {
		if s.Stats == nil {
			continue
		}
		v, top := s.Stats.Median, x.Ceiling.Stats
		if x.Better == Higher && v > top.Max*(1+x.Ceiling.Slack) {
			return fmt.Sprintf("%s: %.4g %s is above the ceiling, %.4g %s (%s)", s.Name, v, x.Unit, top.Max, x.Unit,
				x.Ceiling.Method)
		}
		if x.Better == Lower && v < top.Min/(1+x.Ceiling.Slack) {
			return fmt.Sprintf("%s: %.4g %s is less than it can take, %.4g %s (%s)", s.Name, v, x.Unit, top.Min, x.Unit,
				x.Ceiling.Method)
		}
	}
	return ""
}

// doubt is why a comparison gets no verdict, whatever its interval, or "".
func (x *Row) doubt(s *Side) string {
	if x.Failed != "" {
		return "failed run: " + x.Failed
	}
	if s.Unverified > 0 && s.Unchecked == "" {
		return fmt.Sprintf("the bytes of %d of %s of %s were not verified", s.Unverified, count(len(s.Samples), "run"),
			s.Name)
	}
	return ""
}

// err is the row's failure as an error, or nil.
func (x *Row) err() error {
	if x.Failed == "" {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", ErrFailed, x.Name, x.Failed)
}

// Check fails, with all reasons, when a report is not consistent or holds a row that is not to be
// believed.
func (r *Report) Check() error {
	errs := []error{r.validate()}
	for i := range r.Rows {
		errs = append(errs, r.Rows[i].err())
	}
	return joinErrors(errs)
}

// Limits of what a file may hold.
const (
	maxRows    = 10_000
	maxSamples = 10_000 // of one side of a row
)

// validate says what is wrong with a report, with the name of the row.
func (r *Report) validate() error {
	switch {
	case r.Format != Format:
		return fmt.Errorf("format %q: expected %q", r.Format, Format)
	case r.Schema != Schema:
		return fmt.Errorf("schema %d: this program knows schema %d; use the program that wrote the file, or a newer one", r.Schema, Schema)
	case r.Bench == "":
		return fmt.Errorf("bench is empty: expected what was run, such as \"ring\"")
	case r.Began.IsZero():
		return fmt.Errorf("began: expected a time")
	case !(r.Took >= 0):
		return fmt.Errorf("took_s %v: expected seconds", r.Took)
	case len(r.Rows) > maxRows:
		return fmt.Errorf("%d rows: expected at most %d", len(r.Rows), maxRows)
	case r.Method.Pairs < 0 || r.Method.Alone < 0 || r.Method.Warmup < 0:
		return fmt.Errorf("method: pairs, alone and warmup must not be negative")
	}
	seen := map[string]int{}
	for i := range r.Rows {
		x := &r.Rows[i]
		if k, ok := seen[x.Name]; ok {
			return fmt.Errorf("rows %d and %d are both named %q", k, i, x.Name)
		}
		seen[x.Name] = i
		if err := x.validate(); err != nil {
			return fmt.Errorf("row %d (%q): %w", i, x.Name, err)
		}
	}
	return nil
}

func (x *Row) validate() error {
	switch {
	case x.Name == "":
		return fmt.Errorf("name is empty")
	case x.Unit.Better() == "":
		return fmt.Errorf("unit %q is unknown", x.Unit)
	case x.Better != x.Unit.Better():
		return fmt.Errorf("better is %q: of %s it is %q", x.Better, x.Unit, x.Unit.Better())
	case x.Peers < 0 || x.Blocks < 0 || x.Warmup < 0 || x.Repeated < 0:
		return fmt.Errorf("peers, blocks, warmup and repeated must not be negative")
	case x.Ours.Error != "" || x.Ours.Ratio != nil:
		return fmt.Errorf("ours: error and ratio belong to theirs")
	}
	names := map[string]bool{}
	check := func(where string, s *Side) error {
		if names[s.Name] {
			return fmt.Errorf("%s: another side is named %q too", where, s.Name)
		}
		names[s.Name] = true
		if err := x.validateSide(s); err != nil {
			return fmt.Errorf("%s (%q): %w", where, s.Name, err)
		}
		return nil
	}
	if err := check("ours", &x.Ours); err != nil {
		return err
	}
	for i := range x.Theirs {
		if err := check(fmt.Sprintf("theirs %d", i), &x.Theirs[i]); err != nil {
			return err
		}
	}
	if c := x.Ceiling; c != nil {
		if err := validateSamples(c.Samples, c.Stats); err != nil {
			return fmt.Errorf("ceiling: %w", err)
		}
		if !(c.Slack >= 0) {
			return fmt.Errorf("ceiling: slack %v: expected a part", c.Slack)
		}
	}
	if want := x.failure(); (x.Failed == "") != (want == "") {
		return fmt.Errorf("failed is %q: the rest of the row says %q", x.Failed, want)
	}
	if g := x.Goal; g != nil {
		want := *g
		want.judge(x.Ours.Stats.Interval, x.Better)
		if x.Failed != "" {
			want.Verdict = Inconclusive
		}
		if positive(g.Value) != nil || g.Verdict != want.Verdict {
			return fmt.Errorf("goal %v is %q: the samples say %q", g.Value, g.Verdict, want.Verdict)
		}
	}
	if l := x.Latency; l != nil {
		if p := []float64{l.P50, l.P90, l.P99, l.P999, l.Max}; l.N < 1 || !(l.P50 >= 0) || !slices.IsSorted(p) {
			return fmt.Errorf("latency: expected percentiles in ascending order of at least one operation: %v of %d", p,
				l.N)
		}
	}
	if c := x.Cost; c != nil && !(c.CPUPerGB >= 0 && c.CPUPerOp >= 0 && c.Allocs >= 0 && c.Syscalls >= 0) {
		return fmt.Errorf("cost: expected no negative figure: %+v", *c)
	}
	if t := x.Traffic; t != nil && !(t.Received+t.Lost == t.Sent && t.Received <= t.Sent && t.Reordered <= t.Received &&
		t.SendNS >= 0 && t.ReceiveNS >= 0) {
		return fmt.Errorf("traffic: expected sent = received + lost, no more reordered than received, and no "+
			"negative figure: %+v", *t)
	}
	if m := x.Memory; m != nil && (m.Local == "" || m.Remote == "" || m.UserCopies < 0 || m.KernelCopies < 0 ||
		m.DeviceCopies < 0) {
		return fmt.Errorf("memory: expected a kind on both sides, and no negative number of copies: %+v", *m)
	}
	if g := x.Gate; g != nil && !(g.Looks >= 0 && g.Median >= 0 && g.Max >= g.Median && g.Waited >= 0) {
		return fmt.Errorf("gate: expected looks, processors and seconds: %+v", *g)
	}
	return nil
}

// validateSide checks one side of a row, of which ours is known to be good unless it is the one.
func (x *Row) validateSide(s *Side) error {
	ours := s == &x.Ours
	switch {
	case s.Name == "":
		return fmt.Errorf("name is empty")
	case s.Unverified < 0 || s.Failures < 0:
		return fmt.Errorf("unverified and failures must not be negative")
	case s.Error != "":
		if s.Samples != nil || s.Stats != nil || s.Ratio != nil {
			return fmt.Errorf("it was given up (%s) and has samples, stats or a ratio", s.Error)
		}
		return nil
	}
	if err := validateSamples(s.Samples, s.Stats); err != nil {
		return err
	}
	switch n := len(s.Samples); {
	case n != len(x.Ours.Samples):
		return fmt.Errorf("%s where ours has %d: every round has one of each", count(n, "sample"), len(x.Ours.Samples))
	case s.Unverified > n:
		return fmt.Errorf("unverified is %d of %s", s.Unverified, count(n, "sample"))
	case s.Verified == 0 && s.Unverified < n:
		return fmt.Errorf("verified_bytes is 0, and %d of %s are not counted as unverified", n-s.Unverified,
			count(n, "sample"))
	case s.Verified > 0 && s.Unverified == n:
		return fmt.Errorf("verified_bytes is %d, and all samples are counted as unverified", s.Verified)
	case ours:
		return nil
	case s.Ratio == nil:
		return fmt.Errorf("ratio is missing")
	}
	q := *s.Ratio
	ratios, err := pairedRatios(x.Ours.Samples, s.Samples)
	if err != nil {
		return err
	}
	slices.Sort(ratios)
	switch i := q.Interval; {
	case !near(q.Median, middle(ratios)):
		return fmt.Errorf("ratio: median is %v: the samples say %v", q.Median, middle(ratios))
	case !(i.Low > 0 && i.Low <= i.High && i.Level >= 0 && i.Level < 1) || math.IsInf(i.High, 0):
		return fmt.Errorf("ratio: interval %+v: expected positive bounds in ascending order and a level below 1", i)
	case positive(q.Target) != nil || !(q.Margin >= 0 && q.Margin < 1):
		return fmt.Errorf("ratio: target %v, margin %v: expected a positive ratio and a part from 0 up to 1", q.Target,
			q.Margin)
	}
	q.judge(len(s.Samples), x.Better, x.doubt(s))
	if q.Verdict != s.Ratio.Verdict {
		return fmt.Errorf("ratio: verdict is %q: the interval says %q", s.Ratio.Verdict, q.Verdict)
	}
	return nil
}

// validateSamples checks that there are samples and that the statistics are theirs.
func validateSamples(v []float64, s *Stats) error {
	switch {
	case len(v) == 0:
		return fmt.Errorf("samples are missing")
	case len(v) > maxSamples:
		return fmt.Errorf("%d samples: expected at most %d", len(v), maxSamples)
	case s == nil:
		return fmt.Errorf("stats are missing")
	}
	for i, f := range v {
		if err := positive(f); err != nil {
			return fmt.Errorf("sample %d: %w", i, err)
		}
	}
	want, err := Summarize(v)
	if err != nil {
		return err
	}
	i, w := s.Interval, want.Interval
	if s.N != want.N || !near(s.Min, want.Min) || !near(s.Median, want.Median) || !near(s.Max, want.Max) ||
		!near(i.Low, w.Low) || !near(i.High, w.High) || !near(i.Level, w.Level) {
		return fmt.Errorf("stats are %+v: the samples say %+v", *s, want)
	}
	return nil
}

// near allows for the last digits of a figure that was computed on another processor.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }
