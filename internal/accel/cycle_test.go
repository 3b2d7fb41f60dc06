package accel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	gpucuda "github.com/penstock-io/penstock/gpu/cuda"
	"github.com/penstock-io/penstock/gpu/opencl"
	"github.com/penstock-io/penstock/gpu/runtimes"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/mem"
)

// cycleEnv makes the test binary a process that does nothing but open and close.
const cycleEnv = "PENSTOCK_TEST_ACCEL_CYCLES"

// cycles is what that process does.
type cycles struct {
	Runtime string
	File    string // CUDA: the library
	Only    string // OpenCL: the platform
	Rounds  int
}

// state is what a process holds.
type state struct{ Descriptors, Goroutines, Mappings, Resident int } // Resident: MiB

// child runs the cycles where this process is for that, and prints what it held before and after.
func child() bool {
	text := os.Getenv(cycleEnv)
	if text == "" {
		return false
	}
	var c cycles
	err := json.Unmarshal([]byte(text), &c)
	var held [2]state
	if err == nil {
		held, err = c.run()
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(held)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func (c cycles) run() (held [2]state, err error) {
	table := runtimes.Table()
	for i, e := range table {
		switch e.Name {
		case "cuda":
			table[i].Open = func() (*gpu.Runtime, error) { return gpucuda.Open(gpucuda.Options{Library: c.File}) }
		case "opencl":
			table[i].Open = func() (*gpu.Runtime, error) { return opencl.Open(opencl.Options{Platform: c.Only}) }
		}
	}
	warm := max(c.Rounds/10, 2) // what is made once is made
	for i := range warm + c.Rounds {
		if i == warm {
			if held[0], err = look(); err != nil {
				return held, err
			}
		}
		if err := cycle(table, c.Runtime); err != nil {
			return held, fmt.Errorf("round %d: %w", i, err)
		}
	}
	held[1], err = look()
	if report := mem.LeakReport(); err == nil && len(report) > 0 {
		err = fmt.Errorf("%v", report)
	}
	return held, err
}

// cycle opens a device, makes memory of both kinds, moves bytes, and closes everything.
func cycle(table gpu.Table, name string) (err error) {
	a, err := Open(Options{Runtime: name, Table: table})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	for _, kind := range []mem.Kind{mem.Device, mem.HostPinned} {
		r, err := a.Alloc("cycle", kind, 10000)
		if err != nil {
			return err
		}
		err = draw(context.Background(), r.All(), 5)
		if err == nil {
			// The kernel's module is another test's: building it again each time is all that this
			// would measure.
			_, err = holds(context.Background(), nil, r.All(), 5)
		}
		if err = errors.Join(err, r.Close()); err != nil {
			return err
		}
	}
	return nil
}

func look() (s state, err error) {
	runtime.GC()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return s, err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return s, err
	}
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return s, err
	}
	pages, err := strconv.Atoi(strings.Fields(string(statm))[1])
	return state{len(files), runtime.NumGoroutine(), bytes.Count(maps, []byte("\n")), pages * os.Getpagesize() >> 20},
		err
}

// Runtimes, providers and regions that come and go a thousand times leave nothing: no descriptor,
// goroutine, mapping or memory.
func TestOpenAndClose(t *testing.T) {
	grown := func(t *testing.T, c cycles, env ...string) {
		c.Rounds = testenv.Rounds(c.Rounds)
		spec, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(append(os.Environ(), env...), cycleEnv+"="+string(spec))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, stderr.String())
		}
		var held [2]state
		if err := json.Unmarshal(out, &held); err != nil {
			t.Fatalf("%v: %q", err, out)
		}
		before, after := held[0], held[1]
		t.Logf("before %+v, after %d rounds %+v", before, c.Rounds, after)
		// Threads end a moment after what they were for: only what grows with the number of rounds
		// is a leak.
		if after.Descriptors > before.Descriptors+10 || after.Goroutines > before.Goroutines+2 ||
			after.Mappings > before.Mappings+20+c.Rounds/2 || after.Resident > before.Resident+64 {
			t.Errorf("before %+v, after %d rounds %+v", before, c.Rounds, after)
		}
	}
	t.Run("host", func(t *testing.T) { grown(t, cycles{Runtime: "host", Rounds: 1000}) })
	t.Run("pocl", func(t *testing.T) { grown(t, cycles{Runtime: "opencl", Only: peers.PoCL(t), Rounds: 1000}) })
	t.Run("cuda", func(t *testing.T) {
		library, err := fake.Build()
		if err != nil {
			if _, missing := testenv.Tool("gcc", "gcc libc6-dev"); missing != nil && os.Getenv("CC") == "" {
				testenv.Missing(t, "a C compiler", missing)
			}
			t.Fatal(err)
		}
		testenv.Record(t, "fake", "cuda", "accel")
		grown(t, cycles{Runtime: "cuda", File: library, Rounds: 1000}, "LD_LIBRARY_PATH="+filepath.Dir(library))
	})
}
