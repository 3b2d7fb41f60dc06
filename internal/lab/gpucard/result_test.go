package gpucard

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/nvml"
)

// Format is the version of the result file.
const Format = 1

// revision is the version of Penstock's sources: the Makefile sets it.
var revision = "unknown"

// Result is the result file.
type Result struct {
	Format   int               `json:"format"`
	When     time.Time         `json:"when"`
	Revision string            `json:"revision"` // of Penstock's sources
	Go       string            `json:"go"`
	Machine  string            `json:"machine"` // architecture and kernel
	Fake     bool              `json:"fake"`    // the driver is the lab's stand-in: nothing here was shown on a card
	Driver   string            `json:"driver"`  // CUDA's version, and NVIDIA's of the driver where NVML tells it
	Features map[string]string `json:"features"`
	Devices  []cuda.Info       `json:"devices"`
	NVML     []nvml.Status     `json:"nvml,omitempty"`
	NoNVML   string            `json:"no_nvml,omitempty"` // why there is nothing of NVML
	Tests    []Test            `json:"tests"`             // in the order in which they ended
	Passed   int               `json:"passed"`
	Failed   int               `json:"failed"`
	Skipped  int               `json:"skipped"`
	Exit     int               `json:"exit"`   // of the program that ran the tests
	Output   string            `json:"output"` // of it, whole
}

// Test is one test that ran.
type Test struct {
	Name    string  `json:"name"`
	Result  string  `json:"result"` // PASS, FAIL, SKIP
	Seconds float64 `json:"seconds"`
}

// Exit statuses of the program.
const (
	exitFailed  = 1 // a test failed
	exitMissing = 2 // there is no card, or no driver: nothing was run
)

const (
	runEnv     = "PENSTOCK_GPU_TEST_RUN"     // set in the process that runs the tests
	libraryEnv = "PENSTOCK_GPU_TEST_LIBRARY" // the driver's file, where it is not the system's
)

// running reports whether this process is the one that runs the tests on a card.
func running() bool { return os.Getenv(runEnv) != "" }

// library is the driver's file, "" for the system's.
func library() string { return os.Getenv(libraryEnv) }

// Main is TestMain of the program. Called without any of go test's flags it looks for a card, runs
// the tests in a process of its own and writes the result file. Otherwise it runs m.
func Main(m *testing.M) {
	if running() || slices.ContainsFunc(os.Args[1:], func(a string) bool {
		return strings.HasPrefix(strings.TrimLeft(a, "-"), "test.")
	}) {
		os.Exit(m.Run())
	}
	os.Exit(program(os.Args, os.Stdout, os.Stderr))
}

// program looks, runs and writes.
func program(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("gpu-test", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("result", "gpu-test.json", "the file that the result is written to")
	driver := flags.String("library", "", "the driver's file, where it is not the system's "+cuda.Library)
	only := flags.String("run", "", "run only tests whose names match this regular expression")
	if err := flags.Parse(args[1:]); err != nil {
		return exitMissing
	}
	r, err := look(*driver)
	if err != nil {
		fmt.Fprintf(stderr, "gpu-test: nothing was run, since there is no card to run it on: %v\n", err)
		return exitMissing
	}
	r.describe(stdout)
	if err := r.run(args[0], *driver, *only, stdout); err != nil {
		fmt.Fprintf(stderr, "gpu-test: %v\n", err)
		return exitFailed
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(*file, append(b, '\n'), 0o644)
	}
	if err != nil {
		fmt.Fprintf(stderr, "gpu-test: the result could not be written: %v\n", err)
		return exitFailed
	}
	fmt.Fprintf(stdout, "%d passed, %d failed, %d skipped; the result is in %s\n", r.Passed, r.Failed, r.Skipped, *file)
	if r.Fake {
		fmt.Fprintln(stdout, "this was the lab's fake driver: nothing was shown on a card")
	}
	if r.Exit != 0 || r.Failed > 0 || r.Passed == 0 {
		return exitFailed
	}
	return 0
}

// look is what machine and cards say of themselves; an error where there is no card.
func look(driver string) (*Result, error) {
	d, err := cuda.Load(driver)
	if err != nil {
		return nil, err
	}
	all, err := d.Devices()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("the driver sees no device: see nvidia-smi and CUDA_VISIBLE_DEVICES")
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return nil, err
	}
	r := &Result{Format: Format, When: time.Now().UTC(), Revision: revision, Go: runtime.Version(),
		Machine: fmt.Sprintf("%s/%s, kernel %s", runtime.GOOS, runtime.GOARCH, strings.TrimSpace(string(kernel))),
		Driver:  "CUDA " + cuda.Version(d.Version()), Features: map[string]string{}}
	if r.Fake, err = standIn(d.Path()); err != nil {
		return nil, err
	}
	for _, f := range cuda.Features() {
		r.Features[f.String()] = "ok"
		if err := d.Has(f); err != nil {
			r.Features[f.String()] = err.Error()
		}
	}
	for _, dev := range all {
		info, err := dev.Info()
		if err != nil {
			return nil, err
		}
		r.Devices = append(r.Devices, info)
	}
	if r.Fake {
		r.NoNVML = "the driver is the lab's fake, which has none"
	} else if err := r.nvml(); err != nil {
		r.NoNVML = err.Error()
	}
	return r, nil
}

// standIn reports whether the library has what only the lab's fake driver has.
func standIn(path string) (bool, error) {
	l, err := dl.Open(path)
	if err != nil {
		return false, err
	}
	defer l.Close()
	_, err = l.Symbol("penstock_fake_cuda_report")
	return err == nil, nil
}

// nvml asks NVML about the devices that CUDA sees.
func (r *Result) nvml() (err error) {
	l, err := nvml.Load("")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	v, err := l.DriverVersion()
	if err != nil {
		return err
	}
	r.Driver += ", driver " + v
	for _, d := range r.Devices {
		dev, err := l.Device(d.Bus)
		if err != nil {
			return err
		}
		s, err := dev.Status()
		if err != nil {
			return err
		}
		r.NVML = append(r.NVML, s)
	}
	return nil
}

// describe says what the tests will run on.
func (r *Result) describe(w io.Writer) {
	fmt.Fprintf(w, "%s on %s\n", r.Driver, r.Machine)
	for i, d := range r.Devices {
		fmt.Fprintf(w, "device %d: %s, sm_%d%d, %d MiB, %s\n", i, d.Name, d.Major, d.Minor, d.Memory>>20, d.Bus)
	}
	if r.NoNVML != "" {
		fmt.Fprintf(w, "without NVML: %s\n", r.NoNVML)
	}
}

// timeout is how long the tests may take: a card that hangs is a result too.
const timeout = 20 * time.Minute

// run runs the tests in a process of its own, so that a card that takes it down does not take the
// result file with it.
func (r *Result) run(self, driver, only string, w io.Writer) error {
	if only == "" {
		// the others are tests of this program
		only = "^Test(Driver|Runtime|Memory|Transfer|Stream|PTX|NVML|Figures|Feed)$"
	}
	cmd := exec.Command(self, "-test.v", "-test.run="+only, "-test.timeout="+timeout.String())
	cmd.Env = append(os.Environ(), runEnv+"=1", libraryEnv+"="+driver)
	var out bytes.Buffer
	cmd.Stdout = io.MultiWriter(&out, w)
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("the tests did not start: %w", err)
	}
	r.Exit = cmd.ProcessState.ExitCode()
	r.Output = out.String()
	r.Tests = Parse(r.Output)
	for _, t := range r.Tests {
		switch t.Result {
		case "PASS":
			r.Passed++
		case "FAIL":
			r.Failed++
		default:
			r.Skipped++
		}
	}
	return nil
}

var verdict = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)$`)

// Parse finds the tests in what a test binary printed with -test.v.
func Parse(output string) []Test {
	var all []Test
	for _, m := range verdict.FindAllStringSubmatch(output, -1) {
		s, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			continue
		}
		all = append(all, Test{m[2], m[1], s})
	}
	return all
}
