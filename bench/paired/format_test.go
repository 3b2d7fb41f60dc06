package paired

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

// wobble is a quiet machine: values within a hundredth.
func wobble(v float64) func(int) float64 {
	return func(i int) float64 { return v * (1 + float64(i*7%11-5)/1000) }
}

// sample is a report with everything that a report can hold. speed multiplies what ours measured.
func sample(t testing.TB, speed float64) *Report {
	t.Helper()
	r := &Report{Format: Format, Schema: Schema, Bench: "transfer", Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Took: 12.5,
		Machine: Machine{CPU: "a processor", Cores: 2, MaxProcs: 2,
			Caches:    []Cache{{1, "data", 48, "0"}, {1, "instruction", 32, "0"}, {2, "unified", 2048, "0-1"}},
			NUMANodes: 1, MemoryMiB: 32000, FreeMiB: 24000, Kernel: "6.18", Virtual: true, Governor: unknown,
			Turbo: unknown, Congestion: "bbr", Load: [3]float64{0.5, 0.25, 0.1}},
		Build: Build{Version: "devel", Commit: "0123456789abcdef0123", Modified: true, Go: "go1.26 linux/amd64",
			Flags: "CGO_ENABLED=0"},
		Method: Method{Pairs: 20, Alone: 10, Warmup: 1, Seed: 42, Gate: &GateMethod{0.25, 0.05, 1, 30},
			Peers: []Peer{{"ucx_perftest", "1.13.1"}}, Notes: []string{"two processes"}},
		Missing: []string{"fi: fi_pingpong is not installed: apt-get install libfabric-bin"},
		Notes:   []string{"tcp: congestion control: cubic"}}
	add := func(p Plan, more func(*Row)) {
		t.Helper()
		x, err := Run(context.Background(), p)
		if err != nil && !errors.Is(err, ErrFailed) {
			t.Fatal(err)
		}
		if p.Name != "shm put 1 MiB spin" {
			x.Gate = nil
		}
		more(x)
		r.Rows = append(r.Rows, *x)
	}
	busy := 0
	gate := &Gate{Window: time.Microsecond, Load: func() (Load, error) {
		busy++
		return Load{Total: time.Duration(busy) * time.Second}, nil
	}}
	ucx := fake(nil, "UCX posix put", wobble(14))
	run := ucx.Run
	ucx.Run = func(ctx context.Context) (Sample, error) {
		s, err := run(ctx)
		s.Verified = 0
		return s, err
	}
	ucx.Unchecked, ucx.Version, ucx.Command = "ucx_perftest does not look at the bytes", "1.13.1",
		"ucx_perftest -t ucp_put_bw"
	bad := failing(fake(nil, "libfabric shm", wobble(3)), func(i int) bool { return i > 4 })
	add(Plan{Name: "shm put 1 MiB spin", Unit: GBs, Seed: 1, Goal: 16, Gate: gate,
		Ours: fake(nil, "penstock", wobble(17*speed)), Theirs: []Contender{ucx, bad},
		Ceiling: &Ceiling{Method: "two cores copy", Measure: func(context.Context) (float64, error) {
			return 21.8, nil
		}}}, func(x *Row) {
		x.What, x.Path, x.Mode, x.Peers, x.Size, x.Cost = "put", "shm", "spin", 1, 1<<20, &Cost{0.11, 5, 0, 0.25}
		x.Memory = &Memory{Local: "device", Remote: "host", LocalDevice: "cuda 0: a card", UserCopies: 1,
			DeviceCopies: 1}
	})
	times := fake(nil, "penstock", wobble(0.135/speed))
	once := times.Run
	times.Run = func(ctx context.Context) (Sample, error) {
		s, err := once(ctx)
		s.Single = []float64{s.Value, s.Value * 1.1, s.Value * 80}
		return s, err
	}
	add(Plan{Name: "shm 64 B put + seen, p50", Unit: Microseconds, Seed: 2, Goal: 0.3, Pairs: 10, Ours: times},
		func(x *Row) {
			x.Size, x.Note = 64, "a note"
		})
	add(Plan{Name: "ring.SPSC, bursts of 8", Unit: MopsPerSec, Seed: 3, Margin: 0.02,
		Ours: fake(nil, "ring.SPSC", wobble(100*speed)),
		Theirs: []Contender{fake(nil, "channel", wobble(20)), fake(nil, "xsync", wobble(100*speed)),
			fake(nil, "rough", func(i int) float64 {
				return 50 + 100*float64(i%2)
			})}},
		func(*Row) {})
	idle := fake(nil, "penstock", wobble(9*speed))
	idle.Unchecked = "moves no bytes"
	add(Plan{Name: "pool get+put", Unit: MopsPerSec, Seed: 4, Pairs: 3, Ours: idle}, func(*Row) {})
	return r
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); d != "" {
		t.Error(d)
	}
}

func encode(t testing.TB, r *Report) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	if err := sample(t, 1).Table(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "table.txt", b.Bytes())
	for l := range strings.Lines(b.String()) {
		if len(l) > width+1 {
			t.Errorf("%d columns: %s", len(l)-1, l)
		}
	}
}

// What is wrong with a run is not to be overlooked.
func TestTableOfTrouble(t *testing.T) {
	r := sample(t, 1)
	p := plan(constant(30), nil)
	p.Name, p.Ceiling = "impossible", &Ceiling{Method: "counting", Enforce: true,
		Measure: func(context.Context) (float64, error) {
			return 10, nil
		}}
	x, err := Run(t.Context(), p)
	if !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	x.Gate = &GateLog{Looks: 20, Median: 1.5, Max: 2, Waited: 12}
	r.Rows = append(r.Rows, *x)
	var b bytes.Buffer
	if err := r.Table(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FAILED: ours: 30 GB/s is above the ceiling, 10 GB/s (counting)",
		`NOT IDLE: other programs used 1.50 processors when a run of "impossible" began`} {
		if !strings.Contains(strings.Join(strings.Fields(b.String()), " "), want) {
			t.Errorf("the table lacks %q:\n%s", want, &b)
		}
	}
	if err := r.Check(); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "impossible") {
		t.Errorf("check: %v", err)
	}
	// It is written and read all the same.
	back, err := Read(bytes.NewReader(encode(t, r)))
	if err != nil || back.Rows[4].Failed == "" {
		t.Error(err)
	}
}

func TestRoundTrip(t *testing.T) {
	r := sample(t, 1)
	b := encode(t, r)
	golden(t, "report.json", b)
	back, err := Read(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(r, back); d != "" {
		t.Error(d)
	}
	if again := encode(t, back); !bytes.Equal(b, again) {
		t.Error("written again, it is another file")
	}
	if err := back.Check(); err != nil {
		t.Error(err)
	}
}

// Whatever is wrong with a file is refused, with the place.
func TestReadRefuses(t *testing.T) {
	whole := string(encode(t, sample(t, 1)))
	for name, c := range map[string]struct{ old, new, want string }{
		"empty": {whole, "", "unexpected end of JSON input"},
		"cut":   {"\"notes\": [\n    \"tcp: congestion", "", "line "},
		"something else": {`"format": "penstock-bench"`, `"format": "benchstat"`,
			`format "benchstat": expected "penstock-bench"`},
		"newer": {`"schema": 1`, `"schema": 2`, "schema 2: this program knows schema 1"},
		"unknown field": {`"took_s": 12.5`, `"took_s": 12.5, "mood": "good"`,
			`line 6, column 25: unknown field "mood"`},
		"other case":       {`"took_s": 12.5`, `"Took_s": 12.5`, `unknown field "Took_s"`},
		"twice":            {`"took_s": 12.5`, `"took_s": 12.5, "took_s": 1`, `field "took_s" is there twice`},
		"missing":          {`"took_s": 12.5,`, ``, `field "took_s" is missing`},
		"missing in a row": {`"better": "higher",`, ``, `rows[0]: field "better" is missing`},
		"null":             {`"rows": [`, `"rows": null, "notes": [`, "rows: null: expected a value"},
		"NaN":              {`"seed": 1,`, `"seed": NaN,`, "line "},
		"infinite":         {`"seed": 1,`, `"seed": 1e999,`, "rows.seed: number 1e999 is not a uint64"},
		"wrong kind":       {`"schema": 1`, `"schema": "1"`, "line 3, column"},
		"object for list": {`"load": [0.5, 0.25, 0.1]`, `"load": {"a": 1}`,
			"machine.load: an object is not what is expected here"},
		"list for object": {`"took_s": 12.5`, `"took_s": [12.5]`, "took_s: a list is not what is expected here"},
		"too few loads":   {`"load": [0.5, 0.25, 0.1]`, `"load": [0.5, 0.25]`, "machine.load: 2 values: expected 3"},
		"sample missing": {`"samples": [17.034, 16.966,`, `"samples": [16.966,`,
			`row 0 ("shm put 1 MiB spin"): ours ("penstock"): stats are`},
		"sample 0": {`"samples": [17.034,`, `"samples": [0,`,
			`row 0 ("shm put 1 MiB spin"): ours ("penstock"): sample 0: 0: expected a positive number`},
		"sample null": {`"samples": [17.034,`, `"samples": [null,`, "ours.samples[0]: null"},
		"two of one name": {`"name": "pool get+put"`, `"name": "ring.SPSC, bursts of 8"`,
			`rows 2 and 3 are both named "ring.SPSC, bursts of 8"`},
		"unit": {`"unit": "GB/s"`, `"unit": "Gb/s"`,
			`row 0 ("shm put 1 MiB spin"): unit "Gb/s" is unknown`},
		"direction": {`"better": "higher"`, `"better": "lower"`, `better is "lower": of GB/s it is "higher"`},
		"median":    {`"median": 17.008499999999998,`, `"median": 18,`, "stats are"},
		"verdict": {`"verdict": "better"`, `"verdict": "same"`,
			`row 0 ("shm put 1 MiB spin"): theirs 0 ("UCX posix put"): ratio: verdict is "same": the interval says "better"`},
		"goal":   {`"verdict": "met"`, `"verdict": "missed"`, `goal 16 is "missed": the samples say "met"`},
		"failed": {`"seed": 4,`, `"seed": 4, "failed": "x",`, `row 3 ("pool get+put"): failed is "x"`},
		"verified": {`"verified_bytes": 2000`, `"verified_bytes": 0`,
			"verified_bytes is 0, and 20 of 20 samples are not counted as unverified"},
		"two reports":        {"\n}\n", "\n}\n{}\n", "line "},
		"time":               {`"began": "2026-01-02T03:04:05Z"`, `"began": "yesterday"`, "yesterday"},
		"pairs of the table": {`"pairs": 20`, `"pairs": -1`, "method: pairs"},
	} {
		if strings.Count(whole, c.old) == 0 {
			t.Errorf("%s: the file has no %q", name, c.old)
			continue
		}
		_, err := Read(strings.NewReader(strings.Replace(whole, c.old, c.new, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	file := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(file, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(file); err == nil || !strings.HasPrefix(err.Error(), file+": format") {
		t.Errorf("bad file: %v", err)
	}
}

// What Read would refuse is not written.
func TestWriteRefuses(t *testing.T) {
	for want, spoil := range map[string]func(*Report){
		`rows 0 and 1 are both named "shm put 1 MiB spin"`: func(r *Report) { r.Rows[1].Name = r.Rows[0].Name },
		"bench is empty":                         func(r *Report) { r.Bench = "" },
		"began: expected a time":                 func(r *Report) { r.Began = time.Time{} },
		"took_s -1":                              func(r *Report) { r.Took = -1 },
		"10001 rows":                             func(r *Report) { r.Rows = make([]Row, maxRows+1) },
		"name is empty":                          func(r *Report) { r.Rows[0].Name = "" },
		"must not be negative":                   func(r *Report) { r.Rows[0].Warmup = -1 },
		"ours: error and ratio belong to theirs": func(r *Report) { r.Rows[0].Ours.Ratio = r.Rows[0].Theirs[0].Ratio },
		`another side is named "penstock" too`:   func(r *Report) { r.Rows[0].Theirs[0].Name = "penstock" },
		"has samples, stats or a ratio":          func(r *Report) { r.Rows[0].Theirs[1].Samples = []float64{1} },
		"19 samples where ours has 20":           func(r *Report) { shorten(&r.Rows[0].Theirs[0]) },
		"unverified is 21 of 20 samples":         func(r *Report) { r.Rows[0].Theirs[0].Unverified = 21 },
		"all samples are counted as unverified":  func(r *Report) { r.Rows[0].Theirs[0].Verified = 1 },
		"ratio is missing":                       func(r *Report) { r.Rows[0].Theirs[0].Ratio = nil },
		"ratio: median is 2":                     func(r *Report) { r.Rows[0].Theirs[0].Ratio.Median = 2 },
		"expected positive bounds":               func(r *Report) { r.Rows[0].Theirs[0].Ratio.Interval.Low = 3 },
		"ratio: target 0":                        func(r *Report) { r.Rows[0].Theirs[0].Ratio.Target = 0 },
		"ceiling: samples are missing":           func(r *Report) { r.Rows[0].Ceiling.Samples = nil },
		"ceiling: stats are missing":             func(r *Report) { r.Rows[0].Ceiling.Stats = nil },
		"ceiling: slack -1":                      func(r *Report) { r.Rows[0].Ceiling.Slack = -1 },
		"10001 samples": func(r *Report) {
			r.Rows[3].Ours.Samples = make([]float64, maxSamples+1)
		},
		"latency: expected percentiles in ascend": func(r *Report) { r.Rows[1].Latency.P90 = 1e6 },
		"cost: expected no negative figure":       func(r *Report) { r.Rows[0].Cost.Allocs = -1 },
		"memory: expected a kind on both sides":   func(r *Report) { r.Rows[0].Memory.Remote = "" },
		"no negative number of copies":            func(r *Report) { r.Rows[0].Memory.DeviceCopies = -1 },
		"gate: expected looks":                    func(r *Report) { r.Rows[0].Gate.Max = -1 },
	} {
		r := sample(t, 1)
		spoil(r)
		if err := r.Write(&bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
		if r.Check() == nil {
			t.Errorf("%s: it passed Check", want)
		}
	}
}

// shorten takes a sample away from a side, with its statistics.
func shorten(s *Side) {
	s.Samples = s.Samples[1:]
	st, err := Summarize(s.Samples)
	if err != nil {
		panic(err)
	}
	s.Stats = &st
}

// A file that is too long is not read into memory.
func TestReadIsBounded(t *testing.T) {
	n := 0
	_, err := Read(readerFunc(func(b []byte) (int, error) {
		n += len(b)
		return len(b), nil
	}))
	if err == nil || !strings.Contains(err.Error(), "more than 32 MiB") || n > 3*maxFile {
		t.Errorf("%v after %d bytes", err, n)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func FuzzRead(f *testing.F) {
	whole := encode(f, sample(f, 1))
	f.Add(whole)
	f.Add([]byte(`{"format":"penstock-bench","schema":1}`))
	small := sample(f, 1)
	small.Rows, small.Notes, small.Missing, small.Method.Notes = small.Rows[3:], nil, nil, nil
	f.Add(encode(f, small))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := r.Write(&again); err != nil {
			t.Fatalf("read but not written: %v", err)
		}
		back, err := Read(&again)
		if err != nil {
			t.Fatalf("written but not read: %v", err)
		}
		x, _ := json.Marshal(r)
		y, _ := json.Marshal(back)
		if !bytes.Equal(x, y) {
			t.Fatalf("%s became %s", x, y)
		}
		if err := r.Table(&again); err != nil {
			t.Fatal(err)
		}
	})
}

func TestMachine(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	const cpu = "sys/devices/system/cpu/"
	root := fstest.MapFS{
		"proc/cpuinfo": file("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu " +
			"vme hypervisor lm\nmodel name\t: other\n"),
		"proc/meminfo":                        file("MemTotal:       24576000 kB\nMemFree: 1 kB\n"),
		"proc/loadavg":                        file("0.50 0.25 0.10 1/234 5678\n"),
		cpu + "cpu0/cpufreq/scaling_governor": file("performance\n"),
		cpu + "cpu1/cpufreq/scaling_governor": file("powersave\n"),
		cpu + "cpu2/cpufreq/scaling_governor": file("performance\n"),
		cpu + "intel_pstate/no_turbo":         file("1\n"),
	}
	m := machineOf(root)
	if m.CPU != "Some CPU @ 2 GHz" || !m.Virtual || m.MemoryMiB != 24000 || m.Load != [3]float64{0.5, 0.25, 0.1} ||
		m.Governor != "performance, powersave" || m.Turbo != "off" {
		t.Errorf("%+v", m)
	}
	for dir, f := range map[string]map[string]string{
		"a": {"level": "2\n", "type": "Unified\n", "size": "2048K\n", "shared_cpu_list": "0-1\n"},
		"b": {"level": "x", "type": "Unified", "size": "2048K"},
	} {
		for k, v := range f {
			root[dir+"/"+k] = file(v)
		}
	}
	if c, ok := cacheAt(root, "a"); !ok || c != (Cache{2, "unified", 2048, "0-1"}) {
		t.Errorf("%+v, %v", c, ok)
	}
	for _, dir := range []string{"b", "none"} {
		if c, ok := cacheAt(root, dir); ok {
			t.Errorf("%s: %+v", dir, c)
		}
	}
	// A machine that tells nothing.
	if m := machineOf(fstest.MapFS{}); m.CPU != unknown || m.Governor != unknown || m.Turbo != unknown ||
		m.NUMANodes != 1 || m.caches() != unknown {
		t.Errorf("%+v", m)
	}
	if here := ThisMachine(); here.Cores < 1 || here.Kernel == unknown || here.MemoryMiB == 0 || here.NUMANodes < 1 {
		t.Errorf("here: %+v", here)
	}
	if b := ThisBuild(); !strings.HasPrefix(b.Go, "go1.") || b.Commit == "" {
		t.Errorf("%+v", b)
	}
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 999: "999 B", 1000: "1 kB", 123456: "123 kB", 999499: "999 kB",
		999500: "1 MB", 1 << 30: "1.07 GB", 1 << 63: "9.22 EB"} {
		if got := FormatBytes(n); got != want {
			t.Errorf("%d: %q; want %q", n, got, want)
		}
	}
}
